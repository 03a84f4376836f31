//! How long to wait before trying again.
//!
//! Full jitter: every wait is drawn evenly from zero to a bound that doubles per failure up to a
//! cap, so that peers that failed together do not come back together.

use std::time::Duration;

/// A growing, capped, jittered wait; one value per thing that is retried.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// Starts at `base` and never waits longer than `max`.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self {
            base,
            max: max.max(base),
            failures: 0,
        }
    }

    /// Counts a failure and returns the wait before the next try.
    pub fn next_wait(&mut self) -> Duration {
        let bound = self.bound();
        self.failures = self.failures.saturating_add(1);
        bound.mul_f64(fastrand::f64())
    }

    /// Forgets past failures.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    fn bound(&self) -> Duration {
        // 2^20 times any base is past every sensible cap; more would only overflow.
        let factor = 1u32 << self.failures.min(20);
        self.base.saturating_mul(factor).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_double_up_to_the_cap_and_reset() {
        let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
        let mut bounds = Vec::new();
        for _ in 0..6 {
            bounds.push(backoff.bound().as_millis());
            let bound = backoff.bound();
            assert!(backoff.next_wait() <= bound);
        }
        assert_eq!(bounds, [250, 500, 1000, 2000, 4000, 5000]);
        backoff.reset();
        assert_eq!(backoff.bound(), Duration::from_millis(250));
    }

    #[test]
    fn endless_failures_do_not_overflow() {
        let mut backoff = Backoff::new(Duration::from_secs(1 << 40), Duration::MAX);
        backoff.failures = u32::MAX;
        assert!(backoff.next_wait() <= Duration::MAX);
    }
}
