//! A stream that fails a read once a request head has taken too long.
//!
//! hyper's own timer also runs between requests, where a connection may rest longer; so it is
//! set to the idle time, and this one runs from a head's first byte.

use super::linger::Lingering;
use super::traffic::Traffic;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How every HTTP/2 connection begins; no HTTP/1 request does (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0";

/// A stream with a limit on how long its heads take.
pub struct HeadTimer {
    stream: Lingering,
    traffic: Arc<Traffic>,
    /// From a head's first byte to its last.
    limit: Duration,
    /// When what is awaited is late: the first byte at first, then the rest of a head.
    until: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// How much of the preface has come, until it is clear that it is one or is none.
    preface: Option<usize>,
}

impl HeadTimer {
    /// `idle` is the longest wait for a first byte, `limit` for a head from its first byte on.
    pub fn new(stream: Lingering, traffic: Arc<Traffic>, idle: Duration, limit: Duration) -> Self {
        Self {
            stream,
            traffic,
            limit,
            until: Some(Instant::now() + idle),
            timer: None,
            preface: Some(0),
        }
    }

    /// Completes when what is awaited is late.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(until) = self.until else {
            return Poll::Pending;
        };
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        timer.as_mut().poll(context)
    }

    fn stop(&mut self) {
        self.until = None;
        self.timer = None;
    }

    /// Looks at bytes that came while no request was being answered.
    fn see(&mut self, bytes: &[u8]) {
        let at_start = self.preface == Some(0);
        if let Some(seen) = self.preface {
            self.preface = compare(seen, bytes);
            if self.preface == Some(PREFACE.len()) {
                // From here on its frames, streams and idle time have bounds of their own.
                self.traffic.speaks_http2();
                self.preface = None;
                return self.stop();
            }
        }
        if self.traffic.is_http2() || self.traffic.has_switched() {
            return;
        }
        if at_start || self.until.is_none() {
            self.until = Some(Instant::now() + self.limit);
            self.timer = None;
        }
    }
}

/// Says how much of the preface has come with `bytes`, or `None` where it is something else.
fn compare(seen: usize, bytes: &[u8]) -> Option<usize> {
    let wanted = &PREFACE[seen..];
    let length = wanted.len().min(bytes.len());
    (wanted[..length] == bytes[..length]).then_some(seen + length)
}

impl AsyncRead for HeadTimer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // What is read while a request is answered belongs to it, not to a new head.
        if self.traffic.is_busy() {
            self.stop();
        }
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(read) => {
                let came = buffer.filled().len() > before;
                if came && !self.traffic.is_busy() {
                    self.see(&buffer.filled()[before..]);
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
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preface_is_known_in_any_pieces() {
        assert_eq!(compare(0, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Some(14));
        assert_eq!(compare(0, b"PR"), Some(2));
        assert_eq!(compare(2, b"I * HTTP/2.0\r\n"), Some(14));
        assert_eq!(compare(0, b"PROPFIND / HTTP/1.1"), None);
        assert_eq!(compare(2, b"OPFIND"), None);
    }
}
