//! The upstreams in use, by address.

use super::upstream::Upstream;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::task::TaskTracker;

/// How many addresses are remembered before those nobody uses are forgotten.
const MOST: usize = 4096;

/// One `Upstream` per address, shared by all calls to it.
#[derive(Debug)]
pub struct Upstreams {
    by_authority: Mutex<HashMap<String, Arc<Upstream>>>,
    keep: Duration,
    connections: TaskTracker,
}

impl Upstreams {
    /// `keep` is how long idle connections are trusted.
    pub fn new(keep: Duration, connections: TaskTracker) -> Self {
        Self {
            by_authority: Mutex::default(),
            keep,
            connections,
        }
    }

    /// Returns the upstream at `authority`.
    pub fn at(&self, authority: String) -> Arc<Upstream> {
        self.known(authority.clone(), authority, None)
    }

    /// Returns the upstream that `authority` was resolved to; each of `addresses` is tried.
    pub fn among(&self, authority: String, mut addresses: Vec<SocketAddr>) -> Arc<Upstream> {
        addresses.sort_unstable();
        let key = format!("{authority} {addresses:?}");
        self.known(key, authority, Some(addresses))
    }

    fn known(
        &self,
        key: String,
        authority: String,
        addresses: Option<Vec<SocketAddr>>,
    ) -> Arc<Upstream> {
        let mut known = self
            .by_authority
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(upstream) = known.get(&key) {
            return upstream.clone();
        }
        if known.len() >= MOST {
            known.retain(|_, upstream| Arc::strong_count(upstream) > 1);
        }
        let connections = self.connections.clone();
        let upstream = Upstream::resolved(authority, addresses, self.keep, connections);
        known.insert(key, upstream.clone());
        upstream
    }
}
