//! An application that speaks HTTP/1.1, HTTP/2 in clear and, after an upgrade, an echo.

use super::contract;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The running application; ends with its value.
///
/// Every path tells the protocol it was asked in, in `x-asked-in`. `/trailers` answers with the
/// trailers it was sent, as trailers. `/echo` grants any upgrade once `grant` was called and sends
/// back what comes; `/refuse` grants none. What else there is gets a valid fraud score.
pub struct Polyglot {
    seen: Arc<Seen>,
    _worker: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    heads: Mutex<Vec<(Version, String, HeaderMap)>>,
    granted: Notify,
    echoes: Mutex<JoinSet<()>>,
}

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;
type Io = Box<dyn Stream>;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> Io {
        match self {
            Listener::Tcp(listener) => Box::new(listener.accept().await.unwrap().0),
            Listener::Unix(listener) => Box::new(listener.accept().await.unwrap().0),
        }
    }
}

impl Polyglot {
    /// Starts it on a free port, and tells where.
    pub async fn on_port() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Self::serve(Listener::Tcp(listener)), address)
    }

    /// Starts it on a unix socket.
    pub fn on_socket(path: &Path) -> Self {
        Self::serve(Listener::Unix(UnixListener::bind(path).unwrap()))
    }

    fn serve(listener: Listener) -> Self {
        let seen = Arc::new(Seen::default());
        let mut worker = JoinSet::new();
        let shared = seen.clone();
        worker.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let io = TokioIo::new(listener.accept().await);
                let seen = shared.clone();
                connections.spawn(async move {
                    let service = service_fn(move |request| answer(request, seen.clone()));
                    let server = auto::Builder::new(TokioExecutor::new());
                    // A peer that breaks off is the test's own doing.
                    drop(server.serve_connection_with_upgrades(io, service).await);
                });
            }
        });
        Self {
            seen,
            _worker: worker,
        }
    }

    /// Lets one waiting upgrade, or the next, be granted.
    pub fn grant(&self) {
        self.seen.granted.notify_one();
    }

    /// Returns protocol, path and fields of every request so far.
    pub fn heads(&self) -> Vec<(Version, String, HeaderMap)> {
        self.seen.heads.lock().unwrap().clone()
    }
}

async fn answer(mut request: Request<Incoming>, seen: Arc<Seen>) -> Result<Reply, Infallible> {
    let version = request.version();
    let path = request.uri().path().to_owned();
    let head = (version, path.clone(), request.headers().clone());
    seen.heads.lock().unwrap().push(head);
    let mut reply = match path.as_str() {
        "/hermes/health" => whole("{}"),
        "/trailers" => with_trailers(request).await,
        "/echo" => {
            let upgrading = hyper::upgrade::on(&mut request);
            seen.granted.notified().await;
            let protocol = request.headers()[UPGRADE].clone();
            seen.echoes.lock().unwrap().spawn(async move {
                let Ok(upgraded) = upgrading.await else {
                    return;
                };
                let mut io = TokioIo::new(upgraded);
                let mut piece = [0; 1024];
                while let Ok(length @ 1..) = io.read(&mut piece).await {
                    io.write_all(&piece[..length]).await.unwrap();
                }
            });
            let mut reply = whole("");
            *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let fields = reply.headers_mut();
            fields.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            fields.insert(UPGRADE, protocol);
            reply
        }
        _ => {
            request.into_body().collect().await.ok();
            whole(&contract::fraud_output().to_string())
        }
    };
    let version = HeaderValue::try_from(format!("{version:?}")).unwrap();
    reply.headers_mut().insert("x-asked-in", version);
    Ok(reply)
}

fn whole(body: &str) -> Reply {
    let body = Full::new(Bytes::from(body.to_owned()));
    let mut reply = Response::new(body.boxed_unsync());
    let json = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(CONTENT_TYPE, json);
    reply
}

async fn with_trailers(request: Request<Incoming>) -> Reply {
    let names = request.headers().get("trailer").cloned();
    let is_http1 = request.version() < Version::HTTP_2;
    let collected = request.into_body().collect().await.unwrap();
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let body = Full::new(collected.to_bytes());
    let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut reply = Response::new(body.boxed_unsync());
    if let Some(names) = names {
        reply.headers_mut().insert("trailer", names);
    }
    // HTTP/1.1 has trailers only behind chunks.
    if is_http1 {
        let chunked = HeaderValue::from_static("chunked");
        reply.headers_mut().insert(TRANSFER_ENCODING, chunked);
    }
    reply
}
