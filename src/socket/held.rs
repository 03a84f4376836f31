//! An answer's body on its way out, and what becomes of it when its peer takes nothing.
//!
//! HTTP/2 lets a peer hold back each stream by its window, on a connection that is otherwise
//! alive. An answer whose last piece is not asked on for too long is let go: its upstream, its
//! memory and its place among the requests in flight are free again, and should the peer ask after
//! all, it hears that the stream has broken.

use super::traffic::Busy;
use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// An answer's body that keeps its connection busy.
#[derive(Debug)]
pub enum Held<B> {
    /// HTTP/1.1 has one answer at a time, and whoever does not take it loses the connection.
    Own { body: B, _busy: Busy },
    /// May be let go while the connection goes on.
    Shared(Arc<Slot<B>>),
}

/// A body that may be let go.
#[derive(Debug)]
pub struct Slot<B>(Mutex<Answer<B>>);

#[derive(Debug)]
struct Answer<B> {
    /// Gone once it was let go.
    body: Option<(B, Busy)>,
    /// Since when the peer is awaited; `None` while the body itself is.
    waiting_since: Option<Instant>,
}

/// An answer ended in another way than by its end.
#[derive(Debug, thiserror::Error)]
pub enum HeldError<E: std::error::Error + 'static> {
    #[error(transparent)]
    Body(E),
    #[error("the peer took nothing of the answer for too long")]
    Stalled,
}

type Polled<D, E> = Poll<Option<Result<Frame<D>, HeldError<E>>>>;

/// The answers of one connection that may be let go.
#[derive(Debug, Default)]
pub struct Shelf(Mutex<Vec<Weak<dyn LetGo>>>);

/// Something that can be let go if it has waited for its peer for too long.
trait LetGo: std::fmt::Debug + Send + Sync {
    /// Returns whether it was.
    fn if_stalled(&self, limit: Duration) -> bool;
}

impl<B: Send + std::fmt::Debug + 'static> Held<B> {
    /// Holds a body whose connection ends with it.
    pub fn own(body: B, busy: Busy) -> Self {
        Held::Own { body, _busy: busy }
    }

    /// Holds a body that shares its connection with others.
    pub fn shared(body: B, busy: Busy, shelf: &Shelf) -> Self {
        let slot = Arc::new(Slot(Mutex::new(Answer {
            body: Some((body, busy)),
            waiting_since: Some(Instant::now()),
        })));
        shelf.put(Arc::downgrade(&slot) as Weak<dyn LetGo>);
        Held::Shared(slot)
    }
}

impl Shelf {
    fn put(&self, answer: Weak<dyn LetGo>) {
        let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // As many as there may be streams at once stay; so it never holds more than twice that.
        if shelf.len() >= 2 * super::serve::MOST_STREAMS as usize {
            shelf.retain(|answer| answer.strong_count() > 0);
        }
        shelf.push(answer);
    }

    /// Lets go of the answers whose peer has taken nothing for `limit`; returns how many.
    pub fn let_go_stalled(&self, limit: Duration) -> usize {
        let answers: Vec<_> = {
            let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            shelf.retain(|answer| answer.strong_count() > 0);
            shelf.iter().filter_map(Weak::upgrade).collect()
        };
        let stalled = answers.iter().filter(|answer| answer.if_stalled(limit));
        stalled.count()
    }
}

impl<B: Send + std::fmt::Debug> LetGo for Slot<B> {
    fn if_stalled(&self, limit: Duration) -> bool {
        let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = answer.waiting_since.filter(|_| answer.body.is_some());
        let stalled = since.is_some_and(|since| since.elapsed() >= limit);
        let body = if stalled { answer.body.take() } else { None };
        // What is let go runs code of its own; not under the lock.
        drop(answer);
        body.is_some()
    }
}

impl<D, B> Body for Held<B>
where
    D: Buf,
    B: Body<Data = D, Error: std::error::Error + 'static> + Unpin,
{
    type Data = D;
    type Error = HeldError<B::Error>;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<D>, Self::Error>>> {
        match self.get_mut() {
            Held::Own { body, .. } => poll(body, context),
            Held::Shared(slot) => slot.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Held::Own { body, .. } => body.is_end_stream(),
            Held::Shared(slot) => slot.look(false, B::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Held::Own { body, .. } => body.size_hint(),
            Held::Shared(slot) => slot.look(SizeHint::default(), B::size_hint),
        }
    }
}

impl<D: Buf, B: Body<Data = D, Error: std::error::Error + 'static> + Unpin> Slot<B> {
    fn poll(&self, context: &mut Context<'_>) -> Polled<D, B::Error> {
        let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((body, _)) = &mut answer.body else {
            return Poll::Ready(Some(Err(HeldError::Stalled)));
        };
        let polled = poll(body, context);
        answer.waiting_since = polled.is_ready().then(Instant::now);
        polled
    }

    fn look<T>(&self, gone: T, at: impl Fn(&B) -> T) -> T {
        let answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answer.body.as_ref().map_or(gone, |(body, _)| at(body))
    }
}

fn poll<D: Buf, B: Body<Data = D, Error: std::error::Error + 'static> + Unpin>(
    body: &mut B,
    context: &mut Context<'_>,
) -> Polled<D, B::Error> {
    let polled = Pin::new(body).poll_frame(context);
    polled.map(|frame| frame.map(|frame| frame.map_err(HeldError::Body)))
}

#[cfg(test)]
mod tests {
    use super::super::traffic::Traffic;
    use super::*;
    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    use std::convert::Infallible;

    const LIMIT: Duration = Duration::from_secs(3);

    #[derive(Debug)]
    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_is_let_go_and_says_so_when_asked() {
        let traffic = Traffic::new();
        let shelf = Shelf::default();
        let body = Full::new(Bytes::from_static(b"answer"));
        let mut held = Held::shared(body, Busy::new(traffic.clone()), &shelf);
        tokio::time::sleep(LIMIT / 2).await;
        assert_eq!(shelf.let_go_stalled(LIMIT), 0);
        assert!(traffic.is_busy());
        tokio::time::sleep(LIMIT).await;
        assert_eq!(shelf.let_go_stalled(LIMIT), 1);
        assert!(!traffic.is_busy());
        assert_eq!(shelf.let_go_stalled(LIMIT), 0);
        let frame = held.frame().await;
        assert!(matches!(frame, Some(Err(HeldError::Stalled))));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_has_nothing_to_say_yet_is_kept() {
        let shelf = Shelf::default();
        let mut held = Held::shared(Silent, Busy::new(Traffic::new()), &shelf);
        let asked = tokio::time::timeout(LIMIT * 5, held.frame()).await;
        assert!(asked.is_err(), "it had nothing to say");
        assert_eq!(shelf.let_go_stalled(LIMIT), 0);
    }
}
