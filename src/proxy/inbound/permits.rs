//! How many calls of one contract its application has at once, and who gets the last places.
//!
//! The more urgent a call, the more of the places it may use: when it gets tight, background work
//! is refused first and the most urgent finds room.

use crate::task::SlaLevel;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The places of one contract.
#[derive(Debug)]
pub struct Permits {
    limit: usize,
    /// Shared with the places of the contract's earlier versions, whose calls may still run.
    taken: Arc<AtomicUsize>,
}

/// A place, given back when it is let go of.
#[derive(Debug)]
pub struct Permit(Arc<Permits>);

impl Permits {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            taken: Arc::default(),
        }
    }

    /// Makes the places of the same contract's next version: what is taken stays taken.
    pub fn followed_by(&self, limit: usize) -> Self {
        Self {
            limit,
            taken: self.taken.clone(),
        }
    }

    /// Takes a place if there is one for calls of this level.
    pub fn take(self: &Arc<Self>, level: SlaLevel) -> Option<Permit> {
        let most = self.most(level);
        let taking = |taken| (taken < most).then_some(taken + 1);
        // Relaxed: the count is all there is, and nothing is published by it.
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, taking)
            .ok()?;
        Some(Permit(self.clone()))
    }

    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns how many places calls of this level may take; always at least one.
    pub fn most(&self, level: SlaLevel) -> usize {
        let percent = match level {
            SlaLevel::P0 => 100,
            SlaLevel::P1 => 95,
            SlaLevel::P2 => 90,
            SlaLevel::P3 => 80,
        };
        // Rounded up, so that a contract with few places keeps them for everybody.
        self.limit.saturating_mul(percent).div_ceil(100)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_places_are_for_urgent_calls() {
        let permits = Arc::new(Permits::new(100));
        let mut held = Vec::new();
        for (level, most) in [
            (SlaLevel::P3, 80),
            (SlaLevel::P2, 90),
            (SlaLevel::P1, 95),
            (SlaLevel::P0, 100),
        ] {
            while let Some(permit) = permits.take(level) {
                held.push(permit);
            }
            assert_eq!((held.len(), permits.taken()), (most, most), "{level:?}");
        }
        held.truncate(80);
        assert!(permits.take(SlaLevel::P3).is_none());
        assert!(permits.take(SlaLevel::P2).is_some());
        drop(held);
        assert_eq!(permits.taken(), 0);
    }

    #[test]
    fn calls_that_still_run_count_under_the_next_limit() {
        let before = Arc::new(Permits::new(4));
        let running = before.take(SlaLevel::P0);
        let after = Arc::new(before.followed_by(1));
        assert!(after.take(SlaLevel::P0).is_none());
        drop(running);
        assert!(after.take(SlaLevel::P0).is_some());
        assert_eq!(before.taken(), 0);
    }

    #[test]
    fn few_places_are_for_everybody() {
        for (limit, most) in [(1, 1), (2, 2), (4, 4), (5, 4), (10, 8)] {
            assert_eq!(Permits::new(limit).most(SlaLevel::P3), most, "of {limit}");
        }
    }
}
