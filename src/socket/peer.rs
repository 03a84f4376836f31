//! Who is at the other end of a connection that we accepted.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// A connected peer: where it is, and the name its certificate proves.
#[derive(Debug, Clone)]
pub struct Peer {
    /// `None` for a unix socket.
    pub address: Option<SocketAddr>,
    /// The calling application, where the connection is mutually authenticated.
    pub name: Option<Arc<str>>,
    /// The connection is under TLS.
    pub secured: bool,
}

impl Peer {
    /// Returns its address; whoever reaches a unix socket is on this machine.
    pub fn ip(&self) -> IpAddr {
        match self.address {
            Some(address) => address.ip(),
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        }
    }

    /// Returns the scheme of what it asks.
    pub fn scheme(&self) -> &'static str {
        match self.secured {
            true => "https",
            false => "http",
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => address.fmt(f),
            None => f.write_str("a unix socket"),
        }
    }
}
