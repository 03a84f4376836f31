//! The two data-path listeners.

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
pub mod outbound;
mod passing;
mod received;
mod refusal;
mod respond;
mod target;
mod tunnel;
mod upstream;

pub use active::Active;
pub use attempt::Recorder;
pub use check::Mode;
pub use intake::Limits;
pub use lasting::Keeper;
pub use tunnel::Tunnels;
pub use upstream::{Upstream, Upstreams};
