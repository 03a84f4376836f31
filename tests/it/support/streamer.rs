//! An application that streams: events at a pace, uploads that are counted and let go.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, interval};

/// The running application; ends with its value.
///
/// `GET /events?count=N&every_ms=M` sends so many events at that pace, each telling when it was
/// sent; past `count` with `&then=silence` it sends nothing more and does not end.
/// `POST /upload` answers with the number of bytes it was sent, `POST /echo` with the bytes
/// themselves, each as it comes.
pub struct Streamer {
    address: SocketAddr,
    seen: Arc<Seen>,
    _worker: JoinSet<()>,
}

struct Seen {
    began: Instant,
    /// When the last stream lost its reader before its end.
    left_at: watch::Sender<Option<Instant>>,
}

impl Streamer {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen {
            began: Instant::now(),
            left_at: watch::Sender::new(None),
        });
        let mut worker = JoinSet::new();
        worker.spawn(accept(listener, Arc::clone(&seen)));
        Self {
            address,
            seen,
            _worker: worker,
        }
    }

    /// Returns its address as `application.upstream` takes it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns how long ago an event was sent, by its line.
    pub fn age(&self, event: &str) -> Duration {
        let sent = event.strip_prefix("data: ").unwrap().trim_end();
        let sent = Duration::from_micros(sent.parse().unwrap());
        self.seen.began.elapsed().saturating_sub(sent)
    }

    /// Waits until a stream has lost its reader, and returns when that was.
    pub async fn left_at(&self, within: Duration) -> Instant {
        let mut left = self.seen.left_at.subscribe();
        let seen = tokio::time::timeout(within, left.wait_for(Option::is_some)).await;
        let left = *seen.expect("no stream lost its reader").unwrap();
        left.unwrap()
    }

    /// Forgets the readers that have left.
    pub fn forget(&self) {
        self.seen.left_at.send_replace(None);
    }
}

async fn accept(listener: TcpListener, seen: Arc<Seen>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(stream, Arc::clone(&seen)));
    }
}

async fn serve(stream: TcpStream, seen: Arc<Seen>) {
    let service = service_fn(async |request| Ok::<_, Infallible>(respond(request, &seen).await));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // A reader that goes away ends it with an error.
    connection.await.ok();
}

async fn respond(
    request: Request<Incoming>,
    seen: &Arc<Seen>,
) -> Response<UnsyncBoxBody<Bytes, hyper::Error>> {
    let whole = |status: u16, text: String| {
        let body = Full::from(text).map_err(|never| match never {});
        let response = Response::builder().status(status);
        response.body(body.boxed_unsync()).unwrap()
    };
    match request.uri().path() {
        "/events" => {
            let events = Events::asked(request.uri().query().unwrap_or(""), Arc::clone(seen));
            let response = Response::builder().header("content-type", "text/event-stream");
            let events = events.map_err(|never| match never {});
            response.body(events.boxed_unsync()).unwrap()
        }
        "/echo" => Response::new(request.into_body().boxed_unsync()),
        "/upload" => {
            let (mut body, mut received) = (request.into_body(), 0);
            while let Some(Ok(frame)) = body.frame().await {
                received += frame.data_ref().map_or(0, Bytes::len);
            }
            whole(200, received.to_string())
        }
        _ => whole(404, String::new()),
    }
}

struct Events {
    left: u32,
    ends: bool,
    pace: Interval,
    seen: Arc<Seen>,
}

impl Events {
    fn asked(query: &str, seen: Arc<Seen>) -> Self {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let asked: HashMap<&str, &str> = pairs.collect();
        Self {
            left: asked["count"].parse().unwrap(),
            ends: !asked.contains_key("then"),
            pace: interval(Duration::from_millis(asked["every_ms"].parse().unwrap())),
            seen,
        }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return if self.ends {
                Poll::Ready(None)
            } else {
                Poll::Pending
            };
        }
        ready!(self.pace.poll_tick(context));
        self.left -= 1;
        let event = format!("data: {}\n\n", self.seen.began.elapsed().as_micros());
        Poll::Ready(Some(Ok(Frame::data(event.into()))))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if self.left > 0 || !self.ends {
            self.seen.left_at.send_replace(Some(Instant::now()));
        }
    }
}
