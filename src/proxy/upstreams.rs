//! The upstreams in use, by address.

use super::upstream::Upstream;
use std::collections::HashMap;
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
        let mut known = self
            .by_authority
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(upstream) = known.get(&authority) {
            return upstream.clone();
        }
        if known.len() >= MOST {
            known.retain(|_, upstream| Arc::strong_count(upstream) > 1);
        }
        let upstream = Upstream::new(authority.clone(), self.keep, self.connections.clone());
        known.insert(authority, upstream.clone());
        upstream
    }
}
