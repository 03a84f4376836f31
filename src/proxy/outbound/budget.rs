//! How many retries there may be: a share of the calls, so that a failing agent is not given the
//! blow of all its callers trying again.
//!
//! Each layer that retries three times makes 3^n calls of one; a share of the live traffic makes
//! 1.2 of it, whatever fails. First attempts always go out.
//!
//! - the share is that of the last ten seconds, and so is the minimum beside it: retries are never
//!   more than the larger of the two
//! - time is an argument; elsewhere: whether a retry makes sense (`task`)

use std::sync::{Mutex, PoisonError};
use tokio::time::Instant;

/// How many seconds are looked back on.
const SECONDS: usize = 10;

/// How many retries are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Retries per hundred calls.
    pub percent: u32,
    /// Retries in a second that are allowed where the share comes to less.
    pub min_per_second: u32,
}

impl Config {
    /// Says whether one more retry is within what there may be, given this second and all.
    fn allows(self, slot: Slot, sum: Slot) -> bool {
        let share = u64::from(sum.calls) * u64::from(self.percent) / 100;
        let minimum = u64::from(self.min_per_second) * SECONDS as u64;
        let retries = u64::from(sum.retries);
        // The minimum comes in place of the share, never on top of it.
        let is_few = slot.retries < self.min_per_second && retries < minimum;
        retries < share || is_few
    }
}

/// Counts calls and grants retries; shared by all calls of a sidecar.
#[derive(Debug)]
pub struct Budget {
    began: Instant,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    slots: [Slot; SECONDS],
    /// The second that the newest slot stands for.
    second: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Slot {
    calls: u32,
    retries: u32,
}

impl Budget {
    pub fn new(now: Instant) -> Self {
        Self {
            began: now,
            window: Mutex::default(),
        }
    }

    /// Counts a call that begins.
    pub fn called(&self, now: Instant) {
        self.at(now, |slot, _| slot.calls = slot.calls.saturating_add(1));
    }

    /// Grants a retry and counts it, or says no.
    pub fn grant(&self, config: Config, now: Instant) -> bool {
        self.at(now, |slot, sum| {
            let granted = config.allows(*slot, sum);
            slot.retries += u32::from(granted);
            granted
        })
    }

    /// Says whether a retry would be granted now, for those who would wait for it in vain.
    pub fn may_grant(&self, config: Config, now: Instant) -> bool {
        self.at(now, |slot, sum| config.allows(*slot, sum))
    }

    /// Works on the slot of this second, given the sum of all.
    fn at<T>(&self, now: Instant, work: impl FnOnce(&mut Slot, Slot) -> T) -> T {
        let second = now.saturating_duration_since(self.began).as_secs();
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = second.saturating_sub(window.second);
        for ahead in 1..=passed.min(SECONDS as u64) {
            let at = (window.second + ahead) as usize % SECONDS;
            window.slots[at] = Slot::default();
        }
        window.second = window.second.max(second);
        let sum = window.sum();
        let at = window.second as usize % SECONDS;
        work(&mut window.slots[at], sum)
    }
}

impl Window {
    fn sum(&self) -> Slot {
        self.slots.iter().fold(Slot::default(), |sum, slot| Slot {
            calls: sum.calls.saturating_add(slot.calls),
            retries: sum.retries.saturating_add(slot.retries),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const CONFIG: Config = Config {
        percent: 20,
        min_per_second: 3,
    };

    /// Makes `rate` calls a second for `seconds`, each of which asks for two retries; returns how
    /// many were granted in each second.
    fn granted(budget: &Budget, began: Instant, rate: u64, seconds: u64) -> Vec<u64> {
        let mut granted = vec![0; seconds as usize];
        for call in 0..rate * seconds {
            let now = began + Duration::from_micros(call * 1_000_000 / rate);
            budget.called(now);
            let slot = &mut granted[(call / rate) as usize];
            *slot += u64::from(budget.grant(CONFIG, now)) + u64::from(budget.grant(CONFIG, now));
        }
        granted
    }

    #[test]
    fn retries_are_at_most_the_larger_of_share_and_minimum() {
        for rate in [1, 5, 14, 15, 16, 20, 100, 1_000] {
            let began = Instant::now();
            let budget = Budget::new(began);
            let granted = granted(&budget, began, rate, 60);
            let (calls, minimum) = (rate * SECONDS as u64, 3 * SECONDS as u64);
            for window in granted.windows(SECONDS) {
                let retries: u64 = window.iter().sum();
                assert!(retries <= (calls / 5).max(minimum), "{rate}: {granted:?}");
            }
            // The first seconds have no calls behind them that could pay for more.
            for seconds in 1..SECONDS {
                let retries: u64 = granted[..seconds].iter().sum();
                let (calls, minimum) = (rate * seconds as u64, 3 * seconds as u64);
                assert!(retries <= (calls / 5).max(minimum), "{rate}: {granted:?}");
            }
            let all: u64 = granted.iter().sum();
            assert!(all * 100 >= rate * 60 * 19, "{rate}: {granted:?}");
        }
    }

    #[test]
    fn a_few_a_second_are_allowed_where_few_calls_are_made() {
        let began = Instant::now();
        let budget = Budget::new(began);
        assert_eq!(granted(&budget, began, 1, 30), [2; 30]);
        let later = began + Duration::from_secs(3_600);
        // To ask costs nothing.
        assert!((0..10).all(|_| budget.may_grant(CONFIG, later)));
        let at_once = (0..10).filter(|_| budget.grant(CONFIG, later)).count();
        assert_eq!(at_once, 3);
        assert!(!budget.may_grant(CONFIG, later));
        let none = Config {
            percent: 0,
            min_per_second: 0,
        };
        assert!(!Budget::new(began).grant(none, began));
    }

    #[test]
    fn what_happened_long_ago_counts_for_nothing() {
        let began = Instant::now();
        let budget = Budget::new(began);
        for _ in 0..1_000 {
            budget.called(began);
        }
        let later = began + Duration::from_secs(SECONDS as u64 + 1);
        let at_once = (0..50).filter(|_| budget.grant(CONFIG, later)).count();
        assert_eq!(at_once, 3);
    }
}
