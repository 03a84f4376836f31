//! The one Consul client.
//!
//! Speaks the small part of Consul's HTTP API that 1.8.7 and every later version share: what we
//! send, an old agent knows; what we read is decoded tolerantly.
//!
//! - each call ends: connects, answers and blocking polls all have a timeout and a size limit
//! - the token travels in `X-Consul-Token` only and never shows in logs or errors
//! - an index comes from a good answer only, never from an error (`watch` holds the other rules)
//! - calls that make the local agent write go out one at a time: it queues them anyway
//! - elsewhere: which services and keys exist and what they mean (`route`, `admission`)

mod address;
mod answer;
mod client;
mod error;
mod instance;
mod kv;
mod layout;
mod observe;
mod service;
mod token;
mod transport;
pub mod watch;

pub use answer::{Answer, Poll};
pub use client::{Client, Load, RequestTimes};
pub use error::{Error, ErrorKind};
pub use instance::Instance;
pub use kv::{KvEntry, MAX_VALUE_BYTES};
pub use layout::Layout;
pub use observe::{Observe, Operation, Outcome};
pub use service::{Check, CheckKind, CheckStatus, Registered, Registration};
pub use transport::{Config, TlsOptions};
