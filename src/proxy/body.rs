//! Message bodies as the proxy handles them: whole in memory, or streamed through.

use super::received::Received;
use super::upstream::Lease;
use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use prometheus::IntGauge;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// A body on its way out, to the application or back to the caller.
#[derive(Debug)]
pub enum Body {
    /// All of it, in one piece.
    Whole(Option<Bytes>),
    /// The same, with a mark once it is asked for.
    Marked(Option<Bytes>, Asked),
    /// Passed on as it comes, nothing kept.
    Stream(Box<Stream>),
}

/// Whether a body was asked for; before, none of it can have gone out.
#[derive(Debug, Clone, Default)]
pub struct Asked(Arc<AtomicBool>);

impl Asked {
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A streamed body ended in another way than by its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the body broke off")]
    Broken(#[source] hyper::Error),
    #[error("the stream was reset before the body's end")]
    Reset,
    #[error("no byte came for {0:?}")]
    Idle(Duration),
    #[error("the body is longer than {0} bytes")]
    TooLarge(usize),
}

/// A body being passed on, with a limit on its silence.
#[derive(Debug)]
pub struct Stream {
    incoming: Received,
    silence: Duration,
    timer: Pin<Box<Sleep>>,
    activity: Activity,
    /// The upstream connection, given back once the last byte has come.
    lease: Option<Lease>,
    /// The request that it answers, under way as long as the body is.
    counted: Option<Counted>,
}

/// Shows one more request for as long as it lives.
#[derive(Debug)]
pub struct Counted(IntGauge);

impl Counted {
    pub fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Body {
    /// Wraps bytes; none make an empty body.
    pub fn whole(bytes: Bytes) -> Self {
        Body::Whole((!bytes.is_empty()).then_some(bytes))
    }

    /// A message without content.
    pub fn empty() -> Self {
        Body::Whole(None)
    }

    /// Passes `incoming` on; `silence` is the longest pause between two pieces.
    pub fn stream(incoming: Received, silence: Duration, lease: Option<Lease>) -> Self {
        Body::Stream(Box::new(Stream {
            incoming,
            silence,
            timer: Box::pin(tokio::time::sleep(silence)),
            activity: Activity::default(),
            lease,
            counted: None,
        }))
    }

    /// Counts the request as under way until a streamed body has ended or was let go.
    pub fn counting(mut self, counted: Counted) -> Self {
        if let Body::Stream(stream) = &mut self {
            stream.counted = Some(counted);
        }
        self
    }

    /// Returns the same once more, if none of it has to come first.
    pub fn again(&self) -> Option<Self> {
        match self {
            Body::Whole(bytes) => Some(Body::Whole(bytes.clone())),
            Body::Marked(bytes, asked) => Some(Body::Marked(bytes.clone(), asked.clone())),
            Body::Stream(_) => None,
        }
    }

    /// Begins to watch whether it is asked for; nobody asks for no content, and a streamed body
    /// shows its progress otherwise.
    pub fn mark(&mut self) -> Option<Asked> {
        let Body::Whole(bytes @ Some(_)) = self else {
            return None;
        };
        let asked = Asked::default();
        *self = Body::Marked(bytes.take(), asked.clone());
        Some(asked)
    }

    /// Returns where a streamed body shows its progress.
    pub fn activity(&self) -> Option<Activity> {
        match self {
            Body::Whole(_) | Body::Marked(..) => None,
            Body::Stream(stream) => Some(stream.activity.clone()),
        }
    }
}

/// When the last piece of a streamed body passed; shared with whoever waits for its effect.
#[derive(Debug, Clone)]
pub struct Activity {
    began: Instant,
    millis: Arc<AtomicU64>,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            millis: Arc::default(),
        }
    }
}

impl Activity {
    /// Notes that a piece has passed.
    pub fn mark(&self) {
        let millis = self.began.elapsed().as_millis() as u64;
        self.millis.store(millis, Ordering::Relaxed);
    }

    /// Returns when the last piece passed.
    pub fn last(&self) -> Instant {
        self.began + Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match self.get_mut() {
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Marked(bytes, asked) => {
                asked.0.store(true, Ordering::Relaxed);
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            Body::Stream(stream) => stream.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Whole(bytes) | Body::Marked(bytes, _) => bytes.is_none(),
            // The end must be seen by `poll`, which gives the connection back.
            Body::Stream(stream) => stream.lease.is_none() && stream.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) | Body::Marked(bytes, _) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Body::Stream(stream) => stream.incoming.size_hint(),
        }
    }
}

impl Stream {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match Pin::new(&mut self.incoming).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                self.timer.as_mut().reset(Instant::now() + self.silence);
                self.activity.mark();
                // Whoever sends a body of known length does not ask for more after its last byte.
                if self.incoming.is_end_stream() {
                    self.release();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
            Poll::Ready(None) => {
                self.release();
                Poll::Ready(None)
            }
            Poll::Pending => {
                ready!(self.timer.as_mut().poll(context));
                Poll::Ready(Some(Err(Error::Idle(self.silence))))
            }
        }
    }

    /// Gives the upstream connection back.
    fn release(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.release();
        }
    }
}

/// Reads a whole body of at most `max` bytes; trailers are let go.
///
/// A body whose length is declared costs one allocation, one that comes in one piece none.
pub async fn collect(mut body: Received, max: usize) -> Result<Bytes, Error> {
    let declared = body.size_hint().exact().map(|length| length as usize);
    if declared.is_some_and(|length| length > max) {
        return Err(Error::TooLarge(max));
    }
    let Some(first) = next(&mut body).await? else {
        return Ok(Bytes::new());
    };
    if first.len() > max {
        return Err(Error::TooLarge(max));
    }
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut whole = BytesMut::with_capacity(declared.unwrap_or(first.len() * 2).min(max));
    whole.extend_from_slice(&first);
    while let Some(more) = next(&mut body).await? {
        if whole.len() + more.len() > max {
            return Err(Error::TooLarge(max));
        }
        whole.extend_from_slice(&more);
    }
    Ok(whole.freeze())
}

/// Reads what is left of a body and forgets it, at most `max` bytes; says whether it has ended.
pub async fn discard(mut body: Received, max: usize) -> bool {
    let mut seen = 0;
    while let Ok(Some(piece)) = next(&mut body).await {
        seen += piece.len();
        if seen > max {
            return false;
        }
    }
    body.is_end_stream()
}

async fn next(body: &mut Received) -> Result<Option<Bytes>, Error> {
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(error),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Ok(Some(data)),
                Err(_trailers) => {}
            },
        }
    }
}
