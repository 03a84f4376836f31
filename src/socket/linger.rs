//! Closing a connection so that its peer still reads our last words.
//!
//! A socket that is closed with unread bytes resets its connection. A peer that was still sending
//! while we said GOAWAY would then fail to write before it had read which of its requests we did
//! not look at, and could not know that it may send them again. So after a farewell the socket is
//! read on, unheeded, until the peer has closed, too, or a moment has passed.

use super::stream::Stream;
use super::traffic::Traffic;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio_util::task::TaskTracker;

/// A peer that is alive answers within a few round trips.
const LONGEST: Duration = Duration::from_secs(1);

/// A stream that outlives its drop for a moment where its peer was told farewell.
pub struct Lingering {
    /// There until it is dropped.
    stream: Option<Stream>,
    traffic: Arc<Traffic>,
    owner: TaskTracker,
}

impl Lingering {
    pub fn new(stream: Stream, traffic: Arc<Traffic>, owner: TaskTracker) -> Self {
        Self {
            stream: Some(stream),
            traffic,
            owner,
        }
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let Some(mut stream) = self.stream.take() else {
            return;
        };
        // HTTP/1.1 has no word for what was not looked at.
        if !self.traffic.said_farewell() || !self.traffic.is_http2() {
            return;
        }
        self.owner.spawn(async move {
            let mut unheeded = [0; 4096];
            let reading = async { while let Ok(1..) = stream.read(&mut unheeded).await {} };
            // Out of time, the reset is the peer's own fault.
            tokio::time::timeout(LONGEST, reading).await.ok();
        });
    }
}

/// Calls `$method` on the stream.
macro_rules! carried {
    ($lingering:expr, $method:ident $(, $argument:expr)*) => {
        match &mut $lingering.get_mut().stream {
            Some(stream) => Pin::new(stream).$method($($argument),*),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    };
}

impl AsyncRead for Lingering {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        carried!(self, poll_read, context, buffer)
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        carried!(self, poll_write, context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        carried!(self, poll_flush, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        carried!(self, poll_shutdown, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream
            .as_ref()
            .is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        carried!(self, poll_write_vectored, context, pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    /// What a peer reads that is still writing while we say farewell and close.
    async fn read_by_a_writing_peer(farewell: bool) -> io::Result<Vec<u8>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut peer = TcpStream::connect(listener.local_addr()?).await?;
        let (ours, _) = listener.accept().await?;
        let (traffic, owner) = (Traffic::new(), TaskTracker::new());
        let mut ours = Lingering::new(Stream::Tcp(ours), traffic.clone(), owner.clone());
        peer.write_all(b"unread").await?;
        traffic.speaks_http2();
        if farewell {
            traffic.says_farewell();
        }
        ours.write_all(b"goodbye").await?;
        ours.shutdown().await?;
        drop(ours);
        let mut told = Vec::new();
        let told = async {
            peer.write_all(b"a late request").await?;
            peer.write_all(b"and another").await?;
            peer.read_to_end(&mut told).await?;
            Ok(told)
        }
        .await;
        drop(peer);
        owner.close();
        owner.wait().await;
        told
    }

    #[tokio::test]
    async fn a_peer_that_still_writes_reads_our_farewell() {
        let told = read_by_a_writing_peer(true).await;
        assert_eq!(told.unwrap(), b"goodbye");
        // Without it the connection is reset under the peer's hands.
        assert!(read_by_a_writing_peer(false).await.is_err());
    }
}
