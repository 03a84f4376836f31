//! A bound socket that accepts connections.
//!
//! - a unix socket that nobody listens on any more is replaced; one that is in use is not
//! - our own socket file is removed when the listener is dropped
//! - out of descriptors, accepting waits instead of spinning

use super::address::Address;
use super::peer::Peer;
use super::stream::Stream;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// How long accepting waits after a failure.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener on TCP or a unix socket.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

/// A unix socket and the file that it owns.
#[derive(Debug)]
pub struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

/// Why a listener could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("bind the address")]
    Tcp(#[source] io::Error),
    #[error("bind the unix socket; its folder must exist and be writable")]
    Unix(#[source] io::Error),
    #[error("another process listens on this unix socket")]
    InUse,
    #[error("there is a file of another kind at this path; a socket would replace it")]
    NotASocket,
}

impl Listener {
    /// Binds an address; port 0 takes a free one.
    pub async fn bind(address: &Address) -> Result<Self, BindError> {
        match address {
            Address::Tcp(address) => {
                let bound = TcpListener::bind(address).await;
                bound.map(Listener::Tcp).map_err(BindError::Tcp)
            }
            Address::Unix(path) => UnixSocket::bind(path).await.map(Listener::Unix),
        }
    }

    /// Returns where it is bound, with the port that was taken.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Listener::Unix(unix) => Ok(Address::Unix(unix.path.clone())),
        }
    }

    /// Accepts one connection.
    pub async fn accept(&self) -> (Stream, Peer) {
        loop {
            match self.accepted().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn accepted(&self) -> io::Result<(Stream, Peer)> {
        let (stream, address) = match self {
            Listener::Tcp(listener) => {
                let (tcp, peer) = listener.accept().await?;
                // Only delays small replies where it fails.
                tcp.set_nodelay(true).ok();
                (Stream::Tcp(tcp), Some(peer))
            }
            Listener::Unix(unix) => (Stream::Unix(unix.listener.accept().await?.0), None),
        };
        let peer = Peer {
            address,
            name: None,
            secured: false,
        };
        Ok((stream, peer))
    }
}

impl UnixSocket {
    async fn bind(path: &Path) -> Result<Self, BindError> {
        let bound = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                clear(path).await?;
                UnixListener::bind(path)
            }
            bound => bound,
        };
        let listener = bound.map_err(BindError::Unix)?;
        let path = path.to_owned();
        Ok(Self { listener, path })
    }
}

/// Removes what a process that was killed has left behind.
async fn clear(path: &Path) -> Result<(), BindError> {
    let found = std::fs::symlink_metadata(path).map_err(BindError::Unix)?;
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket);
    }
    if UnixStream::connect(path).await.is_ok() {
        return Err(BindError::InUse);
    }
    std::fs::remove_file(path).map_err(BindError::Unix)
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // Gone already, or not ours to remove any more: nothing is left to do.
        std::fs::remove_file(&self.path).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_left_behind_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let address = Address::Unix(path.clone());
        let first = Listener::bind(&address).await.unwrap();
        assert!(matches!(
            Listener::bind(&address).await,
            Err(BindError::InUse)
        ));
        drop(first);
        assert!(!path.exists());
        // As kill -9 leaves it.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let again = Listener::bind(&address).await.unwrap();
        assert_eq!(again.address().unwrap(), address);
    }

    #[tokio::test]
    async fn a_file_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        std::fs::write(&path, "data").unwrap();
        let bound = Listener::bind(&Address::Unix(path.clone())).await;
        assert!(matches!(bound, Err(BindError::NotASocket)));
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }
}
