//! Connections to one upstream: the application, or another sidecar.
//!
//! - a connection carries one exchange at a time and is kept afterwards, newest first
//! - at most `MOST_IDLE` idle ones are kept, each for a bounded time; an old one is let go unused
//! - a request that was never written, because a kept connection had died, goes out once more on
//!   a fresh one (RFC 9110 section 9.2.2 allows what was not acted upon); anything later is the
//!   retry rule's business
//! - elsewhere: deadlines and what a failure means for the call (`forward`)

use super::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// The most idle connections kept per upstream; more concurrency than that opens new ones.
const MOST_IDLE: usize = 512;
/// The longest wait for a connection to be accepted, within the attempt's own deadline: a peer
/// that does not answer a SYN for that long would not answer a call either.
const CONNECT: Duration = Duration::from_secs(5);
/// Response heads beyond these are refused, as request heads are.
const MOST_RESPONSE_HEADERS: usize = 200;

/// How to reach an upstream and how long its idle connections are trusted.
#[derive(Debug)]
pub struct Upstream {
    /// `host:port`; every address of the host is tried within the connect budget.
    authority: String,
    /// What the host was resolved to, where that was done already.
    addresses: Option<Vec<SocketAddr>>,
    keep: Duration,
    idle: Mutex<VecDeque<Idle>>,
    connections: TaskTracker,
}

#[derive(Debug)]
struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

/// A connection in use; dropped without `release` it is closed.
#[derive(Debug)]
pub struct Lease {
    upstream: Arc<Upstream>,
    sender: SendRequest<Body>,
}

/// Why an exchange did not come to an answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("connect to {authority}")]
    Connect {
        authority: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{authority} did not accept a connection within {CONNECT:?}")]
    ConnectTimeout { authority: String },
    #[error("speak HTTP/1.1 with {authority}")]
    Handshake {
        authority: String,
        #[source]
        source: hyper::Error,
    },
    #[error("{authority} closes every connection at once")]
    Closed { authority: String },
    #[error("{authority} broke the connection before its answer")]
    Broken {
        authority: String,
        #[source]
        source: hyper::Error,
    },
}

impl Upstream {
    /// `keep` must be below the peer's own idle timeout, so that we close first.
    pub fn new(authority: String, keep: Duration, connections: TaskTracker) -> Arc<Self> {
        Self::resolved(authority, None, keep, connections)
    }

    /// The same for a host that may be asked at these addresses only.
    pub fn resolved(
        authority: String,
        addresses: Option<Vec<SocketAddr>>,
        keep: Duration,
        connections: TaskTracker,
    ) -> Arc<Self> {
        Arc::new(Self {
            authority,
            addresses,
            keep,
            idle: Mutex::default(),
            connections,
        })
    }

    /// Returns `host:port`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Takes a kept connection or opens one.
    pub async fn lease(self: &Arc<Self>) -> Result<(Lease, bool), Error> {
        match self.kept() {
            Some(sender) => Ok((self.holding(sender), true)),
            None => Ok((self.fresh().await?, false)),
        }
    }

    /// Opens a connection, whatever is kept.
    pub async fn fresh(self: &Arc<Self>) -> Result<Lease, Error> {
        let authority = || self.authority.clone();
        let connecting = async {
            match &self.addresses {
                Some(addresses) => TcpStream::connect(&addresses[..]).await,
                None => TcpStream::connect(&self.authority).await,
            }
        };
        let tcp = match tokio::time::timeout(CONNECT, connecting).await {
            Err(_elapsed) => {
                return Err(Error::ConnectTimeout {
                    authority: authority(),
                });
            }
            Ok(Err(source)) => {
                return Err(Error::Connect {
                    authority: authority(),
                    source,
                });
            }
            Ok(Ok(tcp)) => tcp,
        };
        // Small messages must not wait for acknowledgements; a refusal only costs latency.
        tcp.set_nodelay(true).ok();
        let handshake = http1::Builder::new()
            .max_headers(MOST_RESPONSE_HEADERS)
            .handshake(TokioIo::new(tcp));
        let (sender, connection) = handshake.await.map_err(|source| Error::Handshake {
            authority: authority(),
            source,
        })?;
        // Its end is seen through the sender; the error was or will be returned there.
        self.connections
            .spawn(async move { drop(connection.await) });
        Ok(self.holding(sender))
    }

    fn holding(self: &Arc<Self>, sender: SendRequest<Body>) -> Lease {
        Lease {
            upstream: self.clone(),
            sender,
        }
    }

    fn kept(&self) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        while idle.front().is_some_and(|old| now - old.since > self.keep) {
            idle.pop_front();
        }
        while let Some(newest) = idle.pop_back() {
            if newest.sender.is_ready() {
                return Some(newest.sender);
            }
        }
        None
    }

    fn keep(&self, sender: SendRequest<Body>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            let since = Instant::now();
            idle.push_back(Idle { sender, since });
        }
    }
}

impl Lease {
    /// Sends a request and waits for the head of its answer.
    ///
    /// A request that a dead kept connection never wrote comes back to be sent elsewhere.
    pub async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, Unsent> {
        let sent = self.sender.try_send_request(request).await;
        sent.map_err(|mut failed| match failed.take_message() {
            Some(request) => Unsent::Whole(Box::new(request)),
            None => Unsent::Broken(Error::Broken {
                authority: self.upstream.authority.clone(),
                source: failed.into_error(),
            }),
        })
    }

    /// Keeps the connection for the next exchange; call once the answer was read to its end.
    pub fn release(self) {
        let Self {
            upstream,
            mut sender,
        } = self;
        if sender.is_ready() {
            upstream.keep(sender);
        } else if !sender.is_closed() {
            // The connection has read the last byte but has not come round to say so.
            let tracker = upstream.connections.clone();
            tracker.spawn(async move {
                if sender.ready().await.is_ok() {
                    upstream.keep(sender);
                }
            });
        }
    }
}

/// A request that got no answer.
#[derive(Debug)]
pub enum Unsent {
    /// Nothing of it was written.
    Whole(Box<Request<Body>>),
    /// It may have been acted upon.
    Broken(Error),
}
