//! TLS to PostgreSQL: the client asks in clear whether the server speaks it, then the handshake.

use crate::identity::web::{self, WebError};
use rustls::ClientConfig;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{self, ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::{Connect, TlsConnector, client};

/// Makes connections that verify the server's chain and name.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

/// A connection to one server, not yet begun.
pub(super) struct Named {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// A secured connection.
pub(super) struct Secured<S>(client::TlsStream<S>);

/// One that is being secured.
pub(super) struct Securing<S>(Connect<S>);

impl Tls {
    /// Trusts who is in `authorities`, else whom this machine trusts.
    pub(super) fn new(authorities: Option<&Path>) -> Result<Self, WebError> {
        let config = match authorities {
            Some(path) => web::client_of(path)?,
            None => web::client(None)?,
        };
        Ok(Self(Arc::new(config)))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> MakeTlsConnect<S> for Tls {
    type Stream = Secured<S>;
    type TlsConnect = Named;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Named, InvalidDnsNameError> {
        Ok(Named {
            config: self.0.clone(),
            name: ServerName::try_from(host.to_owned())?,
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsConnect<S> for Named {
    type Stream = Secured<S>;
    type Error = io::Error;
    type Future = Securing<S>;

    fn connect(self, stream: S) -> Securing<S> {
        Securing(TlsConnector::from(self.config).connect(self.name, stream))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Securing<S> {
    type Output = io::Result<Secured<S>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_ok(Secured)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> tls::TlsStream for Secured<S> {
    /// The verified name binds the channel; the password's proof does so not in addition.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
