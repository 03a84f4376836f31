//! The task context that travels with every call, in headers and in bodies.
//!
//! Reading is strict: a field that is there and malformed is an error that names it, and no later
//! line asks again whether a value fits. Elsewhere: whose fields are believed and what a call
//! inherits from the task it serves (`proxy`).

mod fields;
pub mod header;
mod ids;
mod links;
mod path;
mod text;
mod token;
mod trace;
mod tracestate;
mod wrapper;

pub use fields::{AgentName, Differs, Fields, Malformed};
pub use ids::Ids;
pub use links::Links;
pub use path::{Member, Path};
pub use text::{boolean, list_of_text, text};
pub use token::{Claim, Token};
pub use trace::{Origin, Trace};
pub use tracestate::without_ours;
pub use wrapper::wrap;
