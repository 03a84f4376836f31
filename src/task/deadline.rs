//! One monotonic deadline per call and one per attempt; nobody restarts a clock.

use std::time::Duration;
use tokio::time::Instant;

/// How much longer than the contract's timeout a caller waits, so that its own timer fires only
/// when the callee's sidecar is silent.
pub const GRACE: Duration = Duration::from_millis(200);

/// The longest wait that is ever granted; larger wishes are clamped, so arithmetic never overflows.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// An attempt with less time than this is not begun: it could hardly end in time, and its work
/// would be for nobody.
const USEFUL: Duration = Duration::from_millis(5);

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

    /// Says whether at `now` enough is left to begin an attempt that may take `timeout`.
    pub fn leaves_time(self, now: Instant, timeout: Duration) -> bool {
        self.left(now) > USEFUL.min(timeout / 2)
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
        assert!(!deadline.leaves_time(Instant::now(), Duration::ZERO));
        assert_eq!(deadline.left(Instant::now()), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_useless_rest_is_no_time() {
        let now = Instant::now();
        let left = |millis| Deadline::after(now, Duration::from_millis(millis));
        let (long, short) = (Duration::from_secs(1), Duration::from_millis(2));
        for (millis, timeout, enough) in [(0, long, false), (1, long, false), (6, long, true)] {
            assert_eq!(left(millis).leaves_time(now, timeout), enough, "{millis}");
        }
        assert!(left(2).leaves_time(now, short), "a short contract is kept");
        assert!(!left(1).leaves_time(now, short));
    }

    #[tokio::test(start_paused = true)]
    async fn absurd_wishes_are_clamped() {
        let now = Instant::now();
        let deadline = Deadline::after(now, Duration::MAX);
        assert_eq!(deadline.left(now), LONGEST);
    }
}
