//! The two data-path listeners.

mod active;
mod attempt;
mod body;
mod check;
mod dial;
mod envelope;
mod forward;
pub mod head;
mod headers;
pub mod inbound;
mod intake;
mod lasting;
pub mod listen;
pub mod outbound;
mod passing;
mod patience;
mod respond;
mod target;
mod upstream;
mod upstreams;

pub use active::Active;
pub use attempt::Recorder;
pub use check::Mode;
pub use intake::Limits;
pub use lasting::Keeper;
pub use upstream::Upstream;
pub use upstreams::Upstreams;
