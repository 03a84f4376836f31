//! One monotonic deadline per call and one per attempt; nobody restarts a clock.

use std::time::Duration;
use tokio::time::Instant;

/// How much longer than the contract's timeout a caller waits, so that its own timer fires only
/// when the callee's sidecar is silent.
pub const GRACE: Duration = Duration::from_millis(200);

/// The longest wait that is ever granted; larger wishes are clamped, so arithmetic never overflows.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// An instant by which something must have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// Sets the deadline `timeout` after `start`; a wait above 24 hours is clamped.
    pub fn after(start: Instant, timeout: Duration) -> Self {
        Self(start + timeout.min(LONGEST))
    }

    /// Returns the instant itself, for a timer.
    pub fn instant(self) -> Instant {
        self.0
    }

    /// Returns the earlier of the two.
    pub fn earliest(self, other: Self) -> Self {
        self.min(other)
    }

    /// Returns the time left at `now`, zero when it has passed.
    pub fn left(self, now: Instant) -> Duration {
        self.0.saturating_duration_since(now)
    }

    /// Says whether nothing is left at `now`.
    pub fn has_passed(self, now: Instant) -> bool {
        self.0 <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_remaining_time_shrinks_to_zero() {
        let deadline = Deadline::after(Instant::now(), Duration::from_millis(700));
        tokio::time::advance(Duration::from_millis(300)).await;
        assert_eq!(deadline.left(Instant::now()), Duration::from_millis(400));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(deadline.has_passed(Instant::now()));
        assert_eq!(deadline.left(Instant::now()), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn absurd_wishes_are_clamped() {
        let now = Instant::now();
        let deadline = Deadline::after(now, Duration::MAX);
        assert_eq!(deadline.left(now), LONGEST);
    }
}
