//! Where one contract of ours stands on its way to being called.

use crate::telemetry::metrics::Admission;
use std::time::Duration;
use tokio::sync::watch;

/// How long a check stays as it was without a beat.
pub(super) const TTL: Duration = Duration::from_secs(15);
/// A third of the TTL: two beats may be lost or late before the check turns.
pub(super) const BEAT: Duration = Duration::from_secs(5);
/// When Consul drops a service whose check stays critical.
pub(super) const DEREGISTER_AFTER: Duration = Duration::from_secs(600);

/// A state and, while it is not a good one, the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub state: Admission,
    pub reason: String,
}

impl Standing {
    /// Nothing was looked at yet.
    pub fn starting() -> Self {
        Self {
            state: Admission::Starting,
            reason: "the application has not been asked yet".to_owned(),
        }
    }

    /// Says whether calls are taken: from the first admission on. Who has not yet heard that the
    /// sidecar leaves is still served; the listener ends that after `drain_delay`.
    ///
    /// An application that falls ill later still gets calls that reach it: Consul hides it, and
    /// whoever comes all the same is better served by its answer than by ours.
    pub fn takes_calls(&self) -> bool {
        matches!(
            self.state,
            Admission::Admitted | Admission::Unhealthy | Admission::Draining
        )
    }
}

/// Reads one contract's standing; cheap to clone.
pub type Reader = watch::Receiver<Standing>;
