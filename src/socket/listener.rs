//! A bound socket that accepts connections.
//!
//! - a unix socket that nobody listens on any more is replaced; one that is in use is not, also
//!   where its owner is too busy to answer
//! - our own socket file is removed when the listener is dropped; one that another process has put
//!   in its place is left
//! - out of descriptors, accepting waits instead of spinning

use super::address::Address;
use super::peer::Peer;
use super::stream::Stream;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
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
    /// Which file is ours, where that could be found out.
    file: Option<FileId>,
}

/// Device and inode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    fn of(path: &Path) -> Option<Self> {
        let found = std::fs::symlink_metadata(path).ok()?;
        Some(Self(found.dev(), found.ino()))
    }
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
        Ok(Self {
            listener,
            path: path.to_owned(),
            file: FileId::of(path),
        })
    }
}

/// Removes what a process that was killed has left behind.
async fn clear(path: &Path) -> Result<(), BindError> {
    let found = std::fs::symlink_metadata(path).map_err(BindError::Unix)?;
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket);
    }
    match UnixStream::connect(path).await {
        // Only this says that nobody listens; a full queue or missing rights say the contrary.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(BindError::Unix)
        }
        _ => Err(BindError::InUse),
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if self.file.is_some() && FileId::of(&self.path) == self.file {
            // Gone meanwhile, or not ours to remove any more: nothing is left to do.
            std::fs::remove_file(&self.path).ok();
        }
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
    async fn a_busy_listener_keeps_its_socket() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let busy = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&busy, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&busy, 0).unwrap();
        let _waits = UnixStream::connect(&path).await.unwrap();
        let full = UnixStream::connect(&path).await.unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let bound = Listener::bind(&Address::Unix(path.clone())).await;
        assert!(matches!(bound, Err(BindError::InUse)));
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_successors_socket_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let address = Address::Unix(path.clone());
        let first = Listener::bind(&address).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = Listener::bind(&address).await.unwrap();
        drop(first);
        UnixStream::connect(&path).await.unwrap();
        drop(second);
        assert!(!path.exists());
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
