//! HTTP/2 connections that many exchanges share.

use crate::proxy::body::Body;
use hyper::client::conn::http2::SendRequest;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How busy a connection may be before another is opened, and how many are kept at most; beyond
/// both, requests wait for their turn on the least busy one.
const BUSY: usize = 100;
const MOST: usize = 8;

/// The shared connections of one upstream.
#[derive(Debug, Default)]
pub struct Shared(Vec<Connection>);

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Body>,
    /// Held by every exchange on it.
    exchanges: Arc<()>,
    used: Instant,
}

/// A shared connection, counted as in use until dropped.
#[derive(Debug, Clone)]
pub struct InUse {
    pub sender: SendRequest<Body>,
    _exchange: Arc<()>,
}

impl Shared {
    /// Takes the least busy connection, unless another one should be opened.
    pub fn take(&mut self, keep: Duration) -> Option<InUse> {
        let now = Instant::now();
        self.0.retain(|connection| {
            let rests = connection.busy() == 0 && now - connection.used > keep;
            !connection.sender.is_closed() && !rests
        });
        let full = self.0.len() >= MOST;
        let least = self.0.iter_mut().min_by_key(|one| one.busy())?;
        (full || least.busy() < BUSY).then(|| least.enter(now))
    }

    /// Adds a connection that was just opened and takes it.
    pub fn add(&mut self, sender: SendRequest<Body>) -> InUse {
        let used = Instant::now();
        let mut connection = Connection {
            sender,
            exchanges: Arc::default(),
            used,
        };
        let taken = connection.enter(used);
        if self.0.len() < MOST {
            self.0.push(connection);
        }
        taken
    }
}

impl Connection {
    fn busy(&self) -> usize {
        Arc::strong_count(&self.exchanges) - 1
    }

    fn enter(&mut self, now: Instant) -> InUse {
        self.used = now;
        InUse {
            sender: self.sender.clone(),
            _exchange: self.exchanges.clone(),
        }
    }
}
