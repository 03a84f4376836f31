//! Proofs of who and what: digests of bytes, certificates of peers, secrets that stay out of logs.
//!
//! All cryptography comes from the one provider (`aws-lc-rs`).

mod digest;
mod hosts;
pub mod local;
mod secret;
pub mod tls;
mod trust;
pub mod web;

pub use digest::{ContentDigestError, Digest, DigestError};
pub use hosts::{Authority, BadPattern, Hosts, Pattern};
pub use secret::Secret;
pub use trust::{Allow, Network, NotANetwork, Trust};
