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
mod lasting;
pub mod listen;
pub mod outbound;
mod respond;
mod target;
mod upstream;
mod upstreams;

pub use active::Active;
pub use attempt::Recorder;
pub use check::Mode;
pub use upstream::Upstream;
pub use upstreams::Upstreams;
