//! Accepting connections and speaking HTTP on them.
//!
//! - at most `max_connections` at a time; further ones wait in the kernel's queue
//! - limits may change: a connection keeps those that it began with, their number holds at once
//! - a TLS handshake and a head must each be complete `header_timeout` after they began, or the
//!   connection closes without an answer; an idle connection closes after `idle_timeout`, and one
//!   whose peer takes nothing of its answer after `stream_idle_timeout`
//! - from the moment the process leaves, our keys or roots are others than those the connection
//!   began with, or the certificate that its peer has shown expires, every reply asks the peer to
//!   close it: `Connection: close`, or GOAWAY; no connection is reset under a peer that is still
//!   sending then

use super::head_timer::HeadTimer;
use super::held::Held;
use super::linger::Lingering;
use super::listener::Listener;
use super::patience::Patient;
use super::peer::Peer;
use super::stream::Stream;
use super::traffic::{Busy, Traffic};
use crate::lifecycle::{Observer, Phase};
use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tokio_rustls::{TlsAcceptor, TlsStream};
use tokio_util::task::TaskTracker;

/// The most requests at once on one HTTP/2 connection; more wait at the peer.
pub(super) const MOST_STREAMS: u32 = 256;
/// How much of a request's body is taken in before it is asked for; and of all on a connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// The most streams that a peer may reset before they were looked at, and that we reset for its
/// faults, before the connection ends: opening and resetting is cheap for it and not for us
/// (RFC 9113 section 10.5).
const MOST_RESETS: usize = 64;
/// How long a peer may take to answer a ping.
const PING: Duration = Duration::from_secs(20);

/// What bounds a listener's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub max_connections: usize,
    pub header_timeout: Duration,
    pub idle_timeout: Duration,
    /// The longest wait for a peer to take some of its answer.
    pub stream_idle_timeout: Duration,
    pub max_header_bytes: usize,
    pub max_headers: usize,
    /// How long a connection may take to end once the process stops.
    pub close: Duration,
}

/// Answers requests; one value per listener.
pub trait Serve: Send + Sync + 'static {
    type Body: Body<Data = Bytes, Error: std::error::Error + Send + Sync>
        + std::fmt::Debug
        + Send
        + Unpin
        + 'static;

    /// Answers one request; every failure is an answer too.
    fn serve(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Peer,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// How a listener's connections are secured.
#[derive(Clone)]
pub struct ServerTls {
    /// Gives the configuration for the next handshake.
    pub config: Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>,
    /// Reads the name that a verified certificate chain proves.
    pub name: fn(&[CertificateDer<'_>]) -> Option<Arc<str>>,
    /// Tells how long that chain still holds; its connections are wound down then.
    pub time_left: fn(&[CertificateDer<'_>]) -> Option<Duration>,
    /// Grows when keys or roots change; connections from before are wound down.
    pub generation: watch::Receiver<u64>,
}

/// A connection's place among the most that a listener has; who takes a connection over after a
/// switch of protocols takes its place over, too.
#[derive(Debug, Clone)]
pub struct Occupied(#[expect(dead_code, reason = "held, not read")] Arc<OwnedSemaphorePermit>);

/// Runs what hyper spawns, with the connections' owner.
#[derive(Debug, Clone)]
pub struct Tracked(pub TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tracked {
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

/// Accepts until the process stops, then lets the connections end.
pub async fn serve<S: Serve>(
    listener: Listener,
    tls: Option<ServerTls>,
    service: Arc<S>,
    limits: watch::Receiver<Limits>,
    mut lifecycle: Observer,
    connections: TaskTracker,
) {
    let mut door = Door {
        tls,
        service,
        limits: limits.borrow().clone(),
        lifecycle: lifecycle.clone(),
        streams: Tracked(connections.clone()),
    };
    let mut slots = Slots::new(limits);
    let accepting = async {
        loop {
            let slot = slots.take().await;
            let (stream, peer) = listener.accept().await;
            door.limits = slots.limits();
            let door = door.clone();
            connections.spawn(async move {
                door.welcome(stream, peer, Occupied(Arc::new(slot))).await;
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = lifecycle.reached(Phase::Stopping) => {}
    }
}

/// The places of a listener's connections: as many as its limits say at present.
struct Slots {
    limits: watch::Receiver<Limits>,
    free: Arc<Semaphore>,
    /// How many there are, taken or free.
    count: usize,
}

impl Slots {
    fn new(mut limits: watch::Receiver<Limits>) -> Self {
        let count = limits.borrow_and_update().max_connections;
        Self {
            free: Arc::new(Semaphore::new(count)),
            limits,
            count,
        }
    }

    fn limits(&self) -> Limits {
        self.limits.borrow().clone()
    }

    /// Waits for a place; connections beyond a lowered number keep theirs, and nobody gets one
    /// until enough of them have ended.
    async fn take(&mut self) -> OwnedSemaphorePermit {
        loop {
            let wanted = self.limits.borrow_and_update().max_connections;
            if wanted > self.count {
                self.free.add_permits(wanted - self.count);
                self.count = wanted;
            }
            let place = self.free.clone().acquire_owned();
            tokio::select! {
                Ok(place) = place => match wanted < self.count {
                    false => return place,
                    true => {
                        place.forget();
                        self.count -= 1;
                    }
                },
                Ok(()) = self.limits.changed() => {}
            }
        }
    }
}

/// Tells one connection that keys or roots have changed since it began, or that the certificate its
/// peer has shown holds no longer: either needs a new handshake.
#[derive(Clone)]
struct Renewal {
    generation: Option<watch::Receiver<u64>>,
    expires: Option<Instant>,
}

impl Renewal {
    /// Looks from now on; to be called before the handshake asks for its configuration.
    fn of(tls: Option<&ServerTls>) -> Self {
        let generation = tls.map(|tls| {
            let mut generation = tls.generation.clone();
            generation.mark_unchanged();
            generation
        });
        Self {
            generation,
            expires: None,
        }
    }

    fn has_come(&self) -> bool {
        let generation = self.generation.as_ref();
        let expired = self
            .expires
            .is_some_and(|expires| expires <= Instant::now());
        expired || generation.is_some_and(|generation| generation.has_changed().unwrap_or(false))
    }

    /// Completes with the change; never without TLS.
    async fn comes(self) {
        let Some(mut generation) = self.generation else {
            return std::future::pending().await;
        };
        let changes = async {
            if generation.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let expires = async {
            match self.expires {
                Some(expires) => tokio::time::sleep_until(expires).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changes => {}
            () = expires => {}
        }
    }
}

/// What every connection of a listener needs.
struct Door<S> {
    tls: Option<ServerTls>,
    service: Arc<S>,
    limits: Limits,
    lifecycle: Observer,
    streams: Tracked,
}

impl<S> Clone for Door<S> {
    fn clone(&self) -> Self {
        Self {
            tls: self.tls.clone(),
            service: self.service.clone(),
            limits: self.limits.clone(),
            lifecycle: self.lifecycle.clone(),
            streams: self.streams.clone(),
        }
    }
}

impl<S: Serve> Door<S> {
    async fn welcome(&self, stream: Stream, mut peer: Peer, place: Occupied) {
        let mut renewal = Renewal::of(self.tls.as_ref());
        let secured = match &self.tls {
            None => stream,
            Some(tls) => match self.handshake(tls, stream).await {
                Ok((secured, name, left)) => {
                    // Beyond what can be counted it does not matter.
                    renewal.expires = left.and_then(|left| Instant::now().checked_add(left));
                    peer.name = name;
                    peer.secured = true;
                    secured
                }
                Err(error) => {
                    tracing::info!(%peer, %error, "a TLS handshake failed");
                    return;
                }
            },
        };
        self.speak(secured, peer, place, renewal).await;
    }

    async fn handshake(
        &self,
        tls: &ServerTls,
        stream: Stream,
    ) -> io::Result<(Stream, Option<Arc<str>>, Option<Duration>)> {
        let accepting = TlsAcceptor::from((tls.config)()).accept(stream);
        let mut lifecycle = self.lifecycle.clone();
        let accepted = tokio::select! {
            accepted = tokio::time::timeout(self.limits.header_timeout, accepting) => accepted,
            () = lifecycle.reached(Phase::Stopping) => return Err(io::ErrorKind::Interrupted.into()),
        };
        // Elapsed: the peer did not finish in time.
        let secured = accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        let chain = secured.get_ref().1.peer_certificates();
        let name = chain.and_then(|chain| (tls.name)(chain));
        let left = chain.and_then(|chain| (tls.time_left)(chain));
        let secured = Stream::Tls(Box::new(TlsStream::Server(secured)));
        Ok((secured, name, left))
    }

    async fn speak(&self, stream: Stream, peer: Peer, place: Occupied, renewal: Renewal) {
        let limits = &self.limits;
        let traffic = Traffic::new();
        let owner = self.streams.0.clone();
        let io = HeadTimer::new(
            Lingering::new(stream, traffic.clone(), owner),
            traffic.clone(),
            limits.idle_timeout,
            limits.header_timeout,
        );
        let seen = traffic.clone();
        let io = Patient::new(io, move || seen.is_busy(), limits.stream_idle_timeout);
        let answer = service_fn(|mut request: Request<Incoming>| {
            if request.headers().contains_key(UPGRADE) {
                request.extensions_mut().insert(place.clone());
            }
            self.answer(request, &peer, &traffic, &renewal)
        });
        let builder = self.protocols();
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(io), answer);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = traffic.let_go_stalled(limits.stream_idle_timeout) => Ok(()),
            () = traffic.flooded() => {
                tracing::warn!(%peer, "a peer let go most of its requests; its connection was closed");
                Ok(())
            }
            () = self.farewell(&traffic, &renewal) => {
                traffic.says_farewell();
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    // Dropped here, a call that still runs ends as interrupted.
                    () = self.cut(&traffic) => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            // Peers break connections every day; what it meant for a call is reported there.
            tracing::debug!(%peer, error, "a connection ended early");
        }
    }

    fn protocols(&self) -> auto::Builder<Tracked> {
        let limits = &self.limits;
        // Twice our own limits: up to there a refusal is ours and carries a problem body.
        let head = (limits.max_header_bytes * 2).max(8192);
        let mut builder = auto::Builder::new(self.streams.clone());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.idle_timeout)
            .max_headers(limits.max_headers * 2)
            .max_buf_size(head);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MOST_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
            .max_pending_accept_reset_streams(MOST_RESETS)
            .max_local_error_reset_streams(MOST_RESETS)
            .keep_alive_interval(limits.idle_timeout)
            .keep_alive_timeout(PING);
        builder
    }

    fn answer(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
        traffic: &Arc<Traffic>,
        renewal: &Renewal,
    ) -> impl Future<Output = Result<Response<Held<S::Body>>, Infallible>> + Send + use<S> {
        let busy = Busy::new(traffic.clone());
        let phase = self.lifecycle.clone();
        let version = request.version();
        let answering = self.service.clone().serve(request, peer.clone());
        let (traffic, renewal) = (traffic.clone(), renewal.clone());
        async move {
            // A stream may begin to answer long before the request's body has come.
            let mut response = answering.await.map(|body| busy.until_end_of(body));
            let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            if switches {
                traffic.switches();
            }
            let closes = phase.phase().closes_connections() || renewal.has_come();
            if closes && version < Version::HTTP_2 && !switches {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            Ok(response)
        }
    }

    /// Completes when a connection should end: the process stops, or an HTTP/2 peer must be told
    /// that it leaves or that keys have changed, or an HTTP/2 connection has been idle for too long.
    async fn farewell(&self, traffic: &Traffic, renewal: &Renewal) {
        let (mut stopping, mut leaving) = (self.lifecycle.clone(), self.lifecycle.clone());
        let leaves = async {
            let late = leaving.phase().closes_connections();
            leaving.reached(Phase::Leaving).await;
            // Whoever connected since is given one request before it is told.
            if late {
                traffic.request().await;
            }
            // HTTP/1.1 hears it with its next reply.
            if !traffic.is_http2() {
                std::future::pending::<()>().await;
            }
        };
        let idles = async {
            loop {
                traffic.idle(self.limits.idle_timeout).await;
                if traffic.is_http2() {
                    return;
                }
                // HTTP/1.1 has a timer of its own.
                tokio::time::sleep(self.limits.idle_timeout).await;
            }
        };
        let renewed = async {
            renewal.clone().comes().await;
            if !traffic.is_http2() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = stopping.reached(Phase::Stopping) => {}
            () = renewed => {}
            () = leaves => {}
            () = idles => {}
        }
    }

    /// Completes when a connection that was asked to end has had its time.
    async fn cut(&self, traffic: &Traffic) {
        let mut lifecycle = self.lifecycle.clone();
        let stopped = async {
            lifecycle.reached(Phase::Stopping).await;
            tokio::time::sleep(self.limits.close).await;
        };
        let silent = async {
            tokio::time::sleep(self.limits.idle_timeout).await;
            traffic.idle(self.limits.idle_timeout).await;
        };
        tokio::select! {
            () = stopped => {}
            () = silent => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_millis(10);

    fn limits(max_connections: usize) -> Limits {
        let length = Duration::from_secs(1);
        Limits {
            max_connections,
            header_timeout: length,
            idle_timeout: length,
            stream_idle_timeout: length,
            max_header_bytes: 1024,
            max_headers: 8,
            close: length,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn places_follow_their_number_while_some_are_taken() {
        let given = watch::Sender::new(limits(2));
        let mut slots = Slots::new(given.subscribe());
        let (first, second) = (slots.take().await, slots.take().await);
        assert!(timeout(SOON, slots.take()).await.is_err());

        given.send_replace(limits(3));
        let third = slots.take().await;
        assert!(timeout(SOON, slots.take()).await.is_err());

        // Of three, two have to end before there is one to take again.
        given.send_replace(limits(2));
        drop(first);
        assert!(timeout(SOON, slots.take()).await.is_err());
        drop(second);
        let fourth = slots.take().await;
        assert!(timeout(SOON, slots.take()).await.is_err());
        drop((third, fourth));
    }

    #[tokio::test(start_paused = true)]
    async fn a_raised_number_is_heard_by_who_waits() {
        let given = watch::Sender::new(limits(1));
        let mut slots = Slots::new(given.subscribe());
        let _first = slots.take().await;
        let mut taking = std::pin::pin!(slots.take());
        assert!(timeout(SOON, taking.as_mut()).await.is_err());
        given.send_replace(limits(2));
        assert!(timeout(SOON, taking).await.is_ok());
    }
}
