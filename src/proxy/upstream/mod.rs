//! Connections to one upstream: the application, another sidecar, a host of the outside.
//!
//! - HTTP/1.1: a connection carries one exchange at a time and is kept afterwards, newest first
//! - HTTP/2: a few connections are shared by all exchanges, the least busy one first
//! - at most a stated number is kept, each for a bounded time; an old one is let go unused, and
//!   so is every one from before a change of keys or roots
//! - a request that was never written, because a kept connection had died, or that the peer says
//!   it did not look at (RFC 9113 section 8.7), goes out once more on a fresh one (RFC 9110
//!   section 9.2.2 allows what was not acted upon); anything later is the retry rule's business
//! - elsewhere: deadlines and what a failure means for the call (`forward`)

mod by_address;
mod keep;
mod lease;
mod shared;

pub use by_address::Upstreams;
pub use keep::Keep;
pub use lease::{Lease, Unsent};

use super::body::Body;
use crate::socket::{ConnectError, Endpoint, Place, Speaks, Tracked};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use lease::Sender;
use shared::Shared;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// The most idle connections kept per upstream; more concurrency than that opens new ones.
const MOST_IDLE: usize = 512;
/// The longest wait for a connection to be accepted, within the attempt's own deadline: a peer
/// that does not answer a SYN for that long would not answer a call either.
const CONNECT: Duration = Duration::from_secs(5);
/// How long others wait for a connection that somebody opens to be shared.
const QUEUE: Duration = Duration::from_secs(1);
/// Response heads beyond these are refused, as request heads are.
const MOST_RESPONSE_HEADERS: usize = 200;
const LONGEST_RESPONSE_HEAD: u32 = 128 * 1024;
/// How much of an answer is taken in before it is asked for, and of all on one connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// How often a shared connection in use is asked whether its peer is still there, and for how long.
const PING_EVERY: Duration = Duration::from_secs(15);
const PING: Duration = Duration::from_secs(10);

/// How to reach an upstream and how long its idle connections are trusted.
#[derive(Debug)]
pub struct Upstream {
    endpoint: Endpoint,
    keep: Keep,
    idle: Mutex<VecDeque<Idle>>,
    shared: Mutex<Shared>,
    /// One connection to be shared is opened at a time, while that is quick: the others then find it.
    opening: Semaphore,
    /// Of the keys and roots that the kept connections were opened with.
    generation: AtomicU64,
    connections: TaskTracker,
}

#[derive(Debug)]
struct Idle {
    sender: http1::SendRequest<Body>,
    since: Instant,
}

/// Why an exchange did not come to an answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("open a connection")]
    Connect(#[source] ConnectError),
    #[error("{place} did not accept a connection within {CONNECT:?}")]
    ConnectTimeout { place: Place },
    #[error("begin HTTP with {place}")]
    Handshake {
        place: Place,
        #[source]
        source: hyper::Error,
    },
    #[error("{place} closes every connection at once")]
    Closed { place: Place },
    #[error("{place} refused the request unseen")]
    Refused {
        place: Place,
        #[source]
        source: hyper::Error,
    },
    #[error("{place} broke the connection before its answer")]
    Broken {
        place: Place,
        #[source]
        source: hyper::Error,
    },
}

impl Upstream {
    /// `keep` must be below the peer's own idle timeout, so that we close first.
    pub fn new(endpoint: Endpoint, keep: Keep, connections: TaskTracker) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            keep,
            idle: Mutex::default(),
            shared: Mutex::default(),
            opening: Semaphore::new(1),
            generation: AtomicU64::new(0),
            connections,
        })
    }

    /// Returns where it is.
    pub fn place(&self) -> &Place {
        &self.endpoint.place
    }

    /// Returns `host:port`, as `Host` names it.
    pub fn authority(&self) -> &str {
        self.endpoint.place.authority()
    }

    /// Takes a kept connection or opens one.
    pub async fn lease(self: &Arc<Self>, speaks: Speaks) -> Result<Lease, Error> {
        self.forget_old_keys();
        if let Some(lease) = self.kept(speaks) {
            return Ok(lease);
        }
        if !self.may_share(speaks) {
            return self.fresh(speaks).await;
        }
        let asked = Instant::now();
        // The semaphore is never closed.
        let turn = self.opening.acquire().await;
        if let Some(lease) = self.kept(speaks) {
            return Ok(lease);
        }
        // Who waited out somebody's vain attempt does not make the rest wait for its own as well:
        // one behind the other, the last would wait for all before it.
        let _turn = turn.ok().filter(|_| asked.elapsed() < QUEUE);
        self.fresh(speaks).await
    }

    /// Says whether HTTP/2 may be spoken.
    fn may_share(&self, speaks: Speaks) -> bool {
        match speaks {
            Speaks::Http1 => false,
            Speaks::Http2 => true,
            Speaks::Either => self.endpoint.tls.is_some(),
        }
    }

    /// Opens a connection, whatever is kept.
    pub async fn fresh(self: &Arc<Self>, speaks: Speaks) -> Result<Lease, Error> {
        let connecting = self.endpoint.connect(speaks);
        let (stream, http2) = match tokio::time::timeout(CONNECT, connecting).await {
            Ok(connected) => connected.map_err(Error::Connect)?,
            Err(_elapsed) => {
                let place = self.place().clone();
                return Err(Error::ConnectTimeout { place });
            }
        };
        let io = TokioIo::new(stream);
        let sender = match http2 {
            true => self.begin_http2(io).await?,
            false => self.begin_http1(io).await?,
        };
        Ok(self.holding(sender, speaks, false))
    }

    async fn begin_http1(&self, io: TokioIo<crate::socket::Stream>) -> Result<Sender, Error> {
        let handshake = http1::Builder::new()
            .max_headers(MOST_RESPONSE_HEADERS)
            .handshake(io);
        let (sender, connection) = handshake.await.map_err(|source| self.no_http(source))?;
        // Its end is seen through the sender; the error was or will be returned there.
        self.connections
            .spawn(async move { drop(connection.with_upgrades().await) });
        Ok(Sender::Http1(sender))
    }

    async fn begin_http2(&self, io: TokioIo<crate::socket::Stream>) -> Result<Sender, Error> {
        let handshake = http2::Builder::new(Tracked(self.connections.clone()))
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(LONGEST_RESPONSE_HEAD)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING)
            .handshake(io);
        let (sender, connection) = handshake.await.map_err(|source| self.no_http(source))?;
        self.connections
            .spawn(async move { drop(connection.await) });
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Sender::Http2(shared.add(sender)))
    }

    fn no_http(&self, source: hyper::Error) -> Error {
        let place = self.place().clone();
        Error::Handshake { place, source }
    }

    fn holding(self: &Arc<Self>, sender: Sender, speaks: Speaks, kept: bool) -> Lease {
        Lease {
            upstream: self.clone(),
            sender,
            speaks,
            kept,
        }
    }

    fn kept(self: &Arc<Self>, speaks: Speaks) -> Option<Lease> {
        let shared = match self.may_share(speaks) {
            true => self.shared(),
            false => None,
        };
        let sender = match (shared, speaks) {
            (Some(shared), _) => Sender::Http2(shared),
            (None, Speaks::Http2) => return None,
            (None, _) => Sender::Http1(self.newest_idle()?),
        };
        Some(self.holding(sender, speaks, true))
    }

    fn shared(&self) -> Option<shared::InUse> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.take(self.keep.get())
    }

    fn newest_idle(&self) -> Option<http1::SendRequest<Body>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, keep) = (Instant::now(), self.keep.get());
        while idle.front().is_some_and(|old| now - old.since > keep) {
            idle.pop_front();
        }
        while let Some(newest) = idle.pop_back() {
            if newest.sender.is_ready() {
                return Some(newest.sender);
            }
        }
        None
    }

    fn keep(&self, sender: http1::SendRequest<Body>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            let since = Instant::now();
            idle.push_back(Idle { sender, since });
        }
    }

    /// Lets go of connections that were opened with keys or roots that have been replaced.
    fn forget_old_keys(&self) {
        let Some(tls) = &self.endpoint.tls else {
            return;
        };
        let current = (tls.generation)();
        if self.generation.swap(current, Ordering::Relaxed) != current {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.clear();
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            *shared = Shared::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::ClientTls;
    use rustls::crypto::aws_lc_rs;

    /// Connects to a listener that never answers.
    fn silent(address: std::net::SocketAddr) -> Endpoint {
        let config =
            rustls::ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(rustls::RootCertStore::empty());
        let config = Arc::new(config.with_no_client_auth());
        let tls = ClientTls {
            name: "fraud".try_into().unwrap(),
            config: Arc::new(move |_| config.clone()),
            generation: Arc::new(|| 0),
        };
        Endpoint {
            place: Place::Tcp(address.to_string()),
            tls: Some(tls),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_is_silent_holds_nobody_up_for_others() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = silent(listener.local_addr().unwrap());
        let upstream = Upstream::new(endpoint, Keep::new(CONNECT), TaskTracker::new());
        let began = Instant::now();
        let tasks = TaskTracker::new();
        for _ in 0..20 {
            let upstream = upstream.clone();
            tasks.spawn(async move {
                let failed = upstream.lease(Speaks::Either).await.unwrap_err();
                assert!(matches!(failed, Error::ConnectTimeout { .. }));
            });
        }
        tasks.close();
        tasks.wait().await;
        assert!(began.elapsed() < 3 * CONNECT, "took {:?}", began.elapsed());
    }
}
