//! Opening TCP connections to names.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use tokio::net::TcpStream;

/// Connects to `host:port`, trying every address of the host in turn.
///
/// `localhost` is this machine in both families, whatever the resolver knows of it (RFC 6761
/// section 6.3): many a container lists it for one family, and the application listens on the other.
pub async fn dial(authority: &str) -> io::Result<TcpStream> {
    let error = match TcpStream::connect(authority).await {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    let port = match authority.rsplit_once(':') {
        Some((host, port)) if host.eq_ignore_ascii_case("localhost") => port.parse::<u16>().ok(),
        _ => None,
    };
    let Some(port) = port else {
        return Err(error);
    };
    if let Ok(stream) = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await {
        return Ok(stream);
    }
    match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        Ok(stream) => Ok(stream),
        // The first error is about what the resolver gave.
        Err(_also) => Err(error),
    }
}
