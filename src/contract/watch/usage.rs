//! When something that is followed was first and last asked for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The first use, and the last one to the second; calls touch it without a lock.
#[derive(Debug)]
pub struct Usage {
    first: Instant,
    /// Seconds from the first use to the last.
    last: AtomicU64,
}

impl Usage {
    /// Begins with a use now.
    pub fn begin() -> Self {
        Self {
            first: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    /// Notes a use.
    pub fn touch(&self) {
        let since = self.first.elapsed().as_secs();
        self.last.store(since, Ordering::Relaxed);
    }

    /// Returns when it was first used.
    pub fn first(&self) -> Instant {
        self.first
    }

    /// Returns how long it has not been used.
    pub fn unused_for(&self) -> Duration {
        let last = Duration::from_secs(self.last.load(Ordering::Relaxed));
        self.first.elapsed().saturating_sub(last)
    }
}
