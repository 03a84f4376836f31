//! Accepting connections and speaking HTTP/1.1 on them.
//!
//! - at most `max_connections` at a time; further ones wait in the kernel's queue
//! - a head must be complete `header_timeout` after its first byte, or the connection closes
//!   without an answer; an idle connection closes after `idle_timeout`, and one whose peer takes
//!   nothing of its answer after `stream_idle_timeout`
//! - from the moment the process leaves, every reply asks the peer to close its connection
//! - elsewhere: what a request means (`inbound`, `outbound`)

use super::body::{Body, Busy};
use super::patience::Patient;
use crate::lifecycle::{Observer, Phase};
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};
use tokio_util::task::TaskTracker;

/// How long a connection may take to end once the process stops.
const CLOSE: Duration = Duration::from_secs(1);

/// What bounds a listener's connections.
#[derive(Debug, Clone)]
pub struct Limits {
    pub max_connections: usize,
    pub header_timeout: Duration,
    pub idle_timeout: Duration,
    /// The longest wait for a peer to take some of its answer.
    pub stream_idle_timeout: Duration,
    pub max_header_bytes: usize,
    pub max_headers: usize,
}

/// Answers requests; one value per listener.
pub trait Serve: Send + Sync + 'static {
    /// Answers one request; every failure is an answer too.
    fn serve(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// Accepts until the process stops, then lets the connections end.
pub async fn listen<S: Serve>(
    listener: TcpListener,
    service: Arc<S>,
    limits: Limits,
    mut lifecycle: Observer,
    connections: TaskTracker,
) {
    let slots = Arc::new(Semaphore::new(limits.max_connections));
    let limits = Arc::new(limits);
    let stop = lifecycle.clone();
    let accepting = async {
        loop {
            // The semaphore is never closed.
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return;
            };
            let (tcp, peer) = accept(&listener).await;
            tcp.set_nodelay(true).ok();
            let connection = serve(tcp, peer, service.clone(), limits.clone(), stop.clone());
            connections.spawn(async move {
                connection.await;
                drop(slot);
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = lifecycle.reached(Phase::Stopping) => {}
    }
}

/// Accepts one connection; out of descriptors it waits instead of spinning.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve<S: Serve>(
    tcp: TcpStream,
    peer: SocketAddr,
    service: Arc<S>,
    limits: Arc<Limits>,
    mut lifecycle: Observer,
) {
    let busy = Arc::new(AtomicBool::new(false));
    let io = HeadTimer::new(tcp, busy.clone(), limits.header_timeout);
    let answering = busy.clone();
    let is_busy = move || answering.load(Ordering::Relaxed);
    let io = Patient::new(io, is_busy, limits.stream_idle_timeout);
    let phase = lifecycle.clone();
    let answer = service_fn(move |request| {
        let (busy, phase) = (Busy::new(busy.clone()), phase.clone());
        let answer = service.clone().serve(request, peer);
        async move {
            // A stream may begin to answer long before the request's body has come.
            let mut response = answer.await.map(|body| body.keeping(busy));
            if phase.phase().closes_connections() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            Ok::<_, Infallible>(response)
        }
    });
    // Twice our own limits: up to there a refusal is ours and carries a problem body.
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_timeout)
        .max_headers(limits.max_headers * 2)
        .max_buf_size((limits.max_header_bytes * 2).max(8192))
        .serve_connection(TokioIo::new(io), answer);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = lifecycle.reached(Phase::Stopping) => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(CLOSE, connection).await {
                Ok(ended) => ended,
                // Dropped here, a call that still runs ends as interrupted.
                Err(_elapsed) => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        // Peers break connections every day; what it meant for a call is reported there.
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

/// A socket that fails a read once a request head has taken too long.
struct HeadTimer {
    tcp: TcpStream,
    /// A request is being answered: what is read belongs to it, not to a new head.
    busy: Arc<AtomicBool>,
    limit: Duration,
    began: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl HeadTimer {
    fn new(tcp: TcpStream, busy: Arc<AtomicBool>, limit: Duration) -> Self {
        Self {
            tcp,
            busy,
            limit,
            began: None,
            timer: None,
        }
    }

    /// Waits for the rest of a head, if one has begun; completes when it is late.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(began) = self.began else {
            return Poll::Pending;
        };
        let until = began + self.limit;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        timer.as_mut().poll(context)
    }
}

impl AsyncRead for HeadTimer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.busy.load(Ordering::Relaxed) {
            self.began = None;
            self.timer = None;
        }
        let before = buffer.filled().len();
        match Pin::new(&mut self.tcp).poll_read(context, buffer) {
            Poll::Ready(read) => {
                let busy = self.busy.load(Ordering::Relaxed);
                if !busy && buffer.filled().len() > before && self.began.is_none() {
                    self.began = Some(Instant::now());
                }
                Poll::Ready(read)
            }
            Poll::Pending => self
                .poll_late(context)
                .map(|()| Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl AsyncWrite for HeadTimer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(context, pieces)
    }
}
