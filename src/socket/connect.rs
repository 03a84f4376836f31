//! Opening a connection to somebody else's listener.

use super::dial::dial;
use super::stream::{Dialled, Stream};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsConnector, TlsStream};

/// What a client wants to speak on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    /// HTTP/1.1, and nothing else.
    Http1,
    /// HTTP/2, and nothing else: in clear by prior knowledge (RFC 9113 section 3.3).
    Http2,
    /// Under TLS the better one of the two, in clear HTTP/1.1.
    Either,
}

/// Where to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// `host:port`; every address of the host is tried.
    Tcp(String),
    /// A host that was looked up already: these addresses are tried and no others.
    Resolved {
        authority: String,
        addresses: Vec<SocketAddr>,
    },
    Unix(PathBuf),
}

/// Where to connect to, and how the connection is secured.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub place: Place,
    pub tls: Option<ClientTls>,
}

/// Whom to expect, and the configuration that verifies it.
#[derive(Clone)]
pub struct ClientTls {
    pub name: ServerName<'static>,
    /// Gives the configuration for the next handshake, offering what the client wants to speak.
    pub config: Arc<dyn Fn(Speaks) -> Arc<ClientConfig> + Send + Sync>,
    /// Grows when keys or roots change; connections from before are not used again.
    pub generation: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// Why a connection could not be opened; nothing was sent on it.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("connect to {place}")]
    Connect {
        place: Place,
        #[source]
        source: io::Error,
    },
    #[error("agree on TLS with {place}")]
    Tls {
        place: Place,
        #[source]
        source: io::Error,
    },
}

impl Endpoint {
    /// Opens a connection; says whether HTTP/2 is to be spoken on it.
    pub async fn connect(&self, speaks: Speaks) -> Result<(Stream, bool), ConnectError> {
        let stream = self.open().await.map_err(|source| ConnectError::Connect {
            place: self.place.clone(),
            source,
        })?;
        let Some(tls) = &self.tls else {
            return Ok((stream, speaks == Speaks::Http2));
        };
        let connector = TlsConnector::from((tls.config)(speaks));
        let secured = connector.connect(tls.name.clone(), stream).await;
        let secured = secured.map_err(|source| ConnectError::Tls {
            place: self.place.clone(),
            source,
        })?;
        let http2 = secured.get_ref().1.alpn_protocol() == Some(b"h2");
        let secured = Stream::Tls(Box::new(TlsStream::Client(secured)));
        Ok((secured, http2))
    }

    async fn open(&self) -> io::Result<Stream> {
        match &self.place {
            Place::Tcp(authority) => Ok(ready(dial(authority).await?)),
            Place::Resolved { addresses, .. } => {
                Ok(ready(TcpStream::connect(&addresses[..]).await?))
            }
            Place::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
        }
    }
}

fn ready(tcp: TcpStream) -> Stream {
    // Small messages must not wait for acknowledgements; a refusal costs latency.
    tcp.set_nodelay(true).ok();
    Stream::Dialled(Dialled::new(tcp))
}

impl Place {
    /// Returns what stands in `Host` where nothing better is known.
    pub fn authority(&self) -> &str {
        match self {
            Place::Tcp(authority) | Place::Resolved { authority, .. } => authority,
            // A unix socket has no name of its own (curl says the same).
            Place::Unix(_) => "localhost",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp(authority) | Place::Resolved { authority, .. } => f.write_str(authority),
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientTls({:?})", self.name)
    }
}
