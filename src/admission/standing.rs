//! Where one contract of ours stands on its way to being called.

use crate::telemetry::metrics::{Admission, AdmissionStep};
use std::time::Duration;
use tokio::sync::watch;

/// How long a check stays as it was without a beat.
pub(super) const TTL: Duration = Duration::from_secs(15);
/// A third of the TTL: two beats may be lost or late before the check turns.
pub(super) const BEAT: Duration = Duration::from_secs(5);
/// When Consul drops a service whose check stays critical.
pub(super) const DEREGISTER_AFTER: Duration = Duration::from_secs(600);

/// A state, while it is not a good one the reason, and the steps that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub state: Admission,
    pub reason: String,
    /// In the order of `AdmissionStep`.
    pub steps: [Step; 3],
}

/// How one step stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub result: StepResult,
    /// What there is to say of it; why, where it failed.
    pub detail: String,
}

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepResult {
    /// The steps before it do not hold.
    Waiting,
    Running,
    Passed,
    /// It holds because there is nothing to judge.
    Skipped,
    Failed,
}

impl Step {
    pub fn waiting() -> Self {
        Self {
            result: StepResult::Waiting,
            detail: String::new(),
        }
    }
}

impl StepResult {
    /// Returns the word that readiness shows.
    pub fn as_str(self) -> &'static str {
        match self {
            StepResult::Waiting => "waiting",
            StepResult::Running => "running",
            StepResult::Passed => "ok",
            StepResult::Skipped => "skipped",
            StepResult::Failed => "failed",
        }
    }

    /// Says whether the next step may follow.
    pub fn holds(self) -> bool {
        matches!(self, StepResult::Passed | StepResult::Skipped)
    }
}

impl Standing {
    /// Nothing was looked at yet.
    pub fn starting() -> Self {
        Self {
            state: Admission::Starting,
            reason: "the application has not been asked yet".to_owned(),
            steps: [Step::waiting(), Step::waiting(), Step::waiting()],
        }
    }

    /// Lists the steps with their names.
    pub fn steps(&self) -> impl Iterator<Item = (AdmissionStep, &Step)> {
        AdmissionStep::ALL.into_iter().zip(&self.steps)
    }

    /// Says whether calls are taken: from the first admission on. Who has not yet heard that the
    /// sidecar leaves is still served; the listener ends that after `drain_delay`.
    ///
    /// An application that falls ill later still gets calls that reach it: Consul hides it, and
    /// whoever comes all the same is better served by its answer than by ours. One that runs
    /// another version than the contract's is admitted anew from the beginning and gets none: its
    /// answers would be to another question.
    pub fn takes_calls(&self) -> bool {
        matches!(
            self.state,
            Admission::Admitted | Admission::Unhealthy | Admission::Draining
        )
    }
}

/// Reads one contract's standing; cheap to clone.
pub type Reader = watch::Receiver<Standing>;
