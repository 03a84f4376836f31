//! One byte stream, whatever carries it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

/// A connection: TCP, unix, or TLS over either.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    /// TCP to somebody whom we ask.
    Dialled(Dialled),
    Unix(UnixStream),
    Tls(Box<TlsStream<Stream>>),
}

/// A connection that we opened, which acknowledges at once what it has read.
///
/// Many an application writes head and body of its answer apart. Where it leaves Nagle's rule on,
/// the second waits for the first to be acknowledged, and the kernel delays that by 40 ms.
#[derive(Debug)]
pub struct Dialled {
    tcp: TcpStream,
    /// Something was read since it was last acknowledged.
    has_read: bool,
}

impl Dialled {
    pub fn new(tcp: TcpStream) -> Self {
        Self {
            tcp,
            has_read: false,
        }
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.tcp).poll_read(context, buffer);
        match read.is_ready() {
            true => self.has_read = true,
            false if self.has_read => {
                self.has_read = false;
                // Only costs time where it fails, or cannot be asked for.
                #[cfg(target_os = "linux")]
                rustix::net::sockopt::set_tcp_quickack(&self.tcp, true).ok();
            }
            false => {}
        }
        read
    }
}

/// Calls `$method` on whatever carries the stream.
macro_rules! carried {
    ($stream:expr, $method:ident $(, $argument:expr)*) => {
        match $stream {
            Stream::Tcp(tcp) => Pin::new(tcp).$method($($argument),*),
            Stream::Dialled(dialled) => Pin::new(&mut dialled.tcp).$method($($argument),*),
            Stream::Unix(unix) => Pin::new(unix).$method($($argument),*),
            Stream::Tls(tls) => Pin::new(tls.as_mut()).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Dialled(dialled) => dialled.poll_read(context, buffer),
            stream => carried!(stream, poll_read, context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        carried!(self.get_mut(), poll_write, context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        carried!(self.get_mut(), poll_flush, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        carried!(self.get_mut(), poll_shutdown, context)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Tcp(tcp) => tcp.is_write_vectored(),
            Stream::Dialled(dialled) => dialled.tcp.is_write_vectored(),
            Stream::Unix(unix) => unix.is_write_vectored(),
            Stream::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        carried!(self.get_mut(), poll_write_vectored, context, pieces)
    }
}
