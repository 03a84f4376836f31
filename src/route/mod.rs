//! Which instance a call goes to.
//!
//! The choice is a pure function of the call and of the instances given: first what fits
//! (`filter`), then a weighted rendezvous on the call's key (`rank`), so that every sidecar picks
//! the same instance for the same task. The same key decides whether a call is tried on canaries
//! (`cohort`). Elsewhere: which instances there are (`contract`), and
//! what is sent to them (`proxy`).

mod cohort;
mod ejection;
mod filter;
mod rank;

pub use cohort::{Cohort, Lot};
pub use ejection::{Config as EjectionConfig, Ejector, Reason, Standing};
pub use filter::{Candidate, ForeignTeam, Misfit, Query};
pub use rank::{Key, best, ranking};
