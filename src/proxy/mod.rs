//! The two listeners of the data path: what peers call, and what the application calls others
//! through.
//!
//! - bodies of contract calls are held whole and checked; all else streams through unread
//! - every request ends in one answer, and every attempt in one report
//! - `respond` alone turns a failure into status, problem body and state
//! - elsewhere: sockets and HTTP on them (`socket`), who may serve a call (`route`)

mod active;
mod attempt;
mod body;
mod check;
mod envelope;
mod forward;
pub mod head;
mod headers;
pub mod inbound;
mod intake;
mod lasting;
mod later;
pub mod outbound;
mod passing;
mod received;
mod refusal;
mod respond;
mod stated;
mod target;
mod tunnel;
mod upstream;

pub use active::Active;
pub use attempt::Recorder;
pub use check::Mode;
pub use intake::Limits;
pub use lasting::Keeper;
pub use tunnel::Tunnels;
pub use upstream::{Keep, Upstream, Upstreams};
