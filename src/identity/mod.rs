//! Who and what is believed: digests of bytes, keys and signatures, certificates of peers, hosts
//! and networks, secrets that stay out of logs.
//!
//! - all cryptography comes from the one provider (`aws-lc-rs`)
//! - a name counts where a certificate proves it, never because a message says it
//! - elsewhere: sockets and their handshakes (`socket`), what a name may do (`proxy`)

mod digest;
mod hosts;
pub mod jws;
pub mod key;
pub mod local;
mod secret;
pub mod tls;
mod trust;
mod unique;
pub mod web;

pub use digest::{ContentDigestError, Digest, DigestError};
pub use hosts::{Authority, BadPattern, Hosts, Pattern};
pub use secret::Secret;
pub use trust::{Allow, Network, NotANetwork, Trust};
