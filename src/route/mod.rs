//! Which instance a call goes to.
//!
//! The choice is a pure function of the call and of the instances given: first what fits
//! (`filter`), then a weighted rendezvous on the call's key (`rank`), so that every sidecar picks
//! the same instance for the same task. The same key decides whether a call is tried on canaries
//! (`cohort`). Who fails is left out for a while (`ejection`), who has too much to do is passed
//! over (`load`). Elsewhere: which instances there are (`contract`), and what is sent to them
//! (`proxy`).

mod cohort;
mod ejection;
mod filter;
mod load;
mod rank;

pub use cohort::{Cohort, Lot};
pub use ejection::{Call, Config as EjectionConfig, Ejection, Ejector, Reason, Standing};
pub use filter::{Candidate, ForeignTeam, Misfit, Query};
pub use load::{Load, first_free};
pub use rank::{Key, best, ranking};
