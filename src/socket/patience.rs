//! How long a connection bears with its peer, in both directions.
//!
//! - a peer that takes nothing of what is written to it for `stall` loses its connection: its
//!   answer would stay in memory, and its place among the connections taken, for as long as it likes
//! - a peer that has said its last while it is being answered is taken for gone `FAREWELL` later:
//!   who has merely nothing more to say still reads a quick answer, and who has gone is not worked
//!   for much longer. A reset is believed at once.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long the end of what a peer says is kept to oneself. TCP does not tell a client that only
/// reads from one that has closed; the latter must be noticed within a second.
const FAREWELL: Duration = Duration::from_millis(100);

/// A stream with bounds on how long it waits for its peer.
pub struct Patient<T, B> {
    stream: T,
    /// Says whether a request is being answered.
    is_busy: B,
    stall: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    farewell: Option<Pin<Box<Sleep>>>,
}

impl<T, B: Fn() -> bool> Patient<T, B> {
    /// `stall` is the longest wait for a peer to take what is written.
    pub fn new(stream: T, is_busy: B, stall: Duration) -> Self {
        Self {
            stream,
            is_busy,
            stall,
            stalled: None,
            farewell: None,
        }
    }

    /// Completes when the end that has come may be told.
    fn poll_farewell(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !(self.is_busy)() {
            return Poll::Ready(());
        }
        let timer = self
            .farewell
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(FAREWELL)));
        timer.as_mut().poll(context)
    }

    /// Fails what cannot go on and has not for too long.
    fn bound<R>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stall = self.stall;
        let timer = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        timer
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin, B: Fn() -> bool + Unpin> AsyncRead for Patient<T, B> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if self.farewell.is_none() {
            ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
            if buffer.filled().len() > before || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_farewell(context).map(Ok)
    }
}

impl<T: AsyncWrite + Unpin, B: Fn() -> bool + Unpin> AsyncWrite for Patient<T, B> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bound(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bound(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bound(context, closed)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.bound(context, written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    const STALL: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_fails_the_write() {
        let (near, mut far) = tokio::io::duplex(8);
        let mut near = Patient::new(near, || true, STALL);
        near.write_all(b"12345678").await.unwrap();
        let began = Instant::now();
        let slow = async {
            tokio::time::sleep(STALL - Duration::from_secs(1)).await;
            far.read_exact(&mut [0; 8]).await.unwrap();
            std::future::pending::<()>().await;
        };
        let written = async {
            // What is taken late is taken.
            near.write_all(b"12345678").await.unwrap();
            assert_eq!(began.elapsed(), STALL - Duration::from_secs(1));
            near.write_all(b"1").await
        };
        let error = tokio::select! {
            written = written => written.unwrap_err(),
            () = slow => unreachable!(),
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), STALL * 2 - Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_is_told_late_only_while_a_request_is_answered() {
        let (near, far) = tokio::io::duplex(8);
        let busy = Arc::new(AtomicBool::new(true));
        let is_busy = busy.clone();
        let mut near = Patient::new(near, move || is_busy.load(Ordering::Relaxed), STALL);
        drop(far);
        let began = Instant::now();
        assert_eq!(near.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(began.elapsed(), FAREWELL);
        busy.store(false, Ordering::Relaxed);
        assert_eq!(near.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(began.elapsed(), FAREWELL);
    }
}
