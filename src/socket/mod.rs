//! Sockets: TCP and unix, in clear and under TLS, and HTTP served on them.
//!
//! - a listener serves HTTP/1.1 and HTTP/2 on one port: by ALPN under TLS, in clear by the
//!   preface that HTTP/2 begins with (RFC 9113 section 3.3)
//! - what a connection may cost is bounded: their number, a head's time, idle time, streams
//! - elsewhere: what a request means (the doors), keys and certificates (`identity`)

mod address;
mod connect;
mod dial;
mod head_timer;
mod held;
mod linger;
mod listener;
mod live;
mod patience;
mod peer;
mod routes;
mod serve;
mod stream;
mod traffic;

pub use address::Address;
pub use connect::{ClientTls, ConnectError, Endpoint, Place, Speaks};
pub use listener::{BindError, Listener};
pub use live::Live;
pub use peer::Peer;
pub use routes::Routes;
pub use serve::{Limits, Occupied, Serve, ServerTls, Tracked, serve};
pub use stream::Stream;
