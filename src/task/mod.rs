//! The words of a task: ids, states, deadlines, and the report that tells of one attempt.
//!
//! A task is business work; a call is one step of it; an attempt is one try of a call. Pure values
//! and rules. Elsewhere: who acts on them (`proxy`), who keeps them (`spool`, `collector`).

mod attempt;
mod deadline;
mod id;
mod problem;
mod report;
mod retry;
mod short;
mod state;
mod timestamp;

pub use attempt::{Refused, Trail};
pub use deadline::{Deadline, GRACE};
pub use id::{Id, InvalidId};
pub use problem::Problem;
pub use report::{Failure, MOST_ATTEMPTS, Report, Reporter, SlaLevel, StateAt};
pub use retry::{Course, Ended, Execution, Next};
pub use short::{Short, Unfit};
pub use state::{State, TRANSITIONS};
pub use timestamp::Timestamp;
