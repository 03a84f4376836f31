//! Every metric family, declared once, behind methods that take types.
//!
//! - labels come only from enums or from names that the configuration or the admitted contracts
//!   bound; never an id, a path or a peer
//! - every value of a closed label is there from the start, at 0: an alert on a series that does
//!   not exist yet cannot fire
//! - at most 64 contracts have series of their own, the rest share `_other` and are counted
//! - units are seconds and bytes; one bucket bound lies exactly on each promise
//! - a scrape reads memory, and of the database at most one indexed row or count

mod collector;
mod consul;
mod contract;
mod family;
mod proxy;
mod sidecar;
mod spool;
mod standing;
mod tasks;
mod tls;

pub use collector::{Audit, Collector, Received};
pub use contract::{AttemptKind, Contract, Direction, Side, UNKNOWN, Validation};
pub use proxy::Phase;
pub use sidecar::Sidecar;
pub use spool::SpoolLoss;
pub use standing::{Admission, AdmissionStep, Ready, StepEnd};
pub use tasks::{Cohort, Ejected};
pub use tls::TlsSeries;
