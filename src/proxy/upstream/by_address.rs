//! The upstreams in use, by address.

use super::{Keep, Upstream};
use crate::socket::Endpoint;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::task::TaskTracker;

/// How many addresses are remembered before those nobody uses are forgotten.
const MOST: usize = 4096;

/// One `Upstream` per address and expected name, shared by all calls to it.
#[derive(Debug)]
pub struct Upstreams {
    known: Mutex<HashMap<Key, Arc<Upstream>>>,
    keep: Keep,
    connections: TaskTracker,
}

/// Where it is, and the name that its certificate must have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    place: crate::socket::Place,
    name: Option<rustls::pki_types::ServerName<'static>>,
}

impl Upstreams {
    /// `keep` is how long idle connections are trusted.
    pub fn new(keep: Keep, connections: TaskTracker) -> Self {
        Self {
            known: Mutex::default(),
            keep,
            connections,
        }
    }

    /// Returns the upstream at `endpoint`.
    pub fn at(&self, endpoint: Endpoint) -> Arc<Upstream> {
        let key = Key {
            place: endpoint.place.clone(),
            name: endpoint.tls.as_ref().map(|tls| tls.name.clone()),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(upstream) = known.get(&key) {
            return upstream.clone();
        }
        if known.len() >= MOST {
            known.retain(|_, upstream| Arc::strong_count(upstream) > 1);
        }
        let upstream = Upstream::new(endpoint, self.keep.clone(), self.connections.clone());
        known.insert(key, upstream.clone());
        upstream
    }
}
