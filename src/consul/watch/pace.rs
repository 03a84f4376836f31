//! How often watches ask, and how many polls they hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

/// The token bucket: this many at once, then one per interval.
const BURST: u32 = 3;
const TOKEN_EVERY: Duration = Duration::from_millis(500);

/// What the watches of one client share: how many polls may be blocked at a time, since one agent
/// has 200 connections for a whole host, and how often the agent was lost.
#[derive(Clone, Debug)]
pub struct Budget {
    free: Arc<Semaphore>,
    losses: Arc<AtomicU64>,
}

/// One blocked poll's part of the budget; given back when dropped.
#[derive(Debug)]
pub struct Slot(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl Budget {
    pub fn new(watches: usize) -> Budget {
        let free = Arc::new(Semaphore::new(watches.min(Semaphore::MAX_PERMITS)));
        Budget {
            free,
            losses: Arc::default(),
        }
    }

    /// Notes that a request did not reach the agent, or that its answer broke off.
    pub(crate) fn note_loss(&self) {
        self.losses.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the losses so far.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Takes a slot, if one is free.
    pub fn take(&self) -> Option<Slot> {
        self.free.clone().try_acquire_owned().ok().map(Slot)
    }

    pub fn free(&self) -> usize {
        self.free.available_permits()
    }
}

/// Any time up to the given one, all equally likely.
pub(super) fn random_up_to(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}

/// Bounds how often one watch asks.
pub(super) struct Bucket {
    tokens: u32,
    /// When the next token comes, while the bucket is not full.
    next: Instant,
}

impl Bucket {
    pub(super) fn full() -> Bucket {
        Bucket {
            tokens: BURST,
            next: Instant::now(),
        }
    }

    pub(super) async fn take(&mut self) {
        self.fill();
        if self.tokens == 0 {
            sleep(self.next.saturating_duration_since(Instant::now())).await;
            self.fill();
        }
        if self.tokens == BURST {
            self.next = Instant::now() + TOKEN_EVERY;
        }
        self.tokens = self.tokens.saturating_sub(1);
    }

    fn fill(&mut self) {
        let now = Instant::now();
        while self.tokens < BURST && self.next <= now {
            self.tokens += 1;
            self.next += TOKEN_EVERY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_bucket_gives_three_and_then_two_a_second() {
        let began = Instant::now();
        let mut bucket = Bucket::full();
        let mut at = Vec::new();
        for _ in 0..6 {
            bucket.take().await;
            at.push(began.elapsed().as_millis());
        }
        assert_eq!(at, [0, 0, 0, 500, 1000, 1500]);
        sleep(Duration::from_secs(3600)).await;
        let again = Instant::now();
        for _ in 0..4 {
            bucket.take().await;
        }
        assert_eq!(
            again.elapsed().as_millis(),
            500,
            "a long rest saves up three, not more"
        );
    }

    #[test]
    fn a_slot_comes_back_when_dropped() {
        let budget = Budget::new(1);
        let slot = budget.take();
        assert!(slot.is_some() && budget.take().is_none());
        drop(slot);
        assert_eq!(budget.free(), 1);
    }
}
