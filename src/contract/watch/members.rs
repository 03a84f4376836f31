//! Which instances count as there, given what the watch has seen.
//!
//! An answer is believed at once on an unbroken watch. After a break (an error, an index that
//! went back, a hidden result) Consul may have forgotten what is still running, so the last good
//! set stays in use for `HOLD`, joined with what has come back. While Consul is silent the last
//! good set stays for as long as that lasts: an error is not an empty answer.

use crate::consul::Instance;
use crate::consul::watch::Seen;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long instances that did not come back after a break are still used.
pub const HOLD: Duration = Duration::from_secs(30);

/// The set in use and what it is based on.
#[derive(Debug, Default)]
pub struct Members {
    last_good: Vec<Arc<Instance>>,
    hold_until: Option<Instant>,
}

/// One reading of the set.
#[derive(Debug, PartialEq, Eq)]
pub struct Reading {
    pub instances: Vec<Arc<Instance>>,
    /// Consul does not confirm the set at present.
    pub stale: bool,
    /// When to look again although nothing was heard.
    pub again: Option<Instant>,
}

impl Members {
    /// Begins with a set that an earlier process knew.
    pub fn seeded(last_good: Vec<Arc<Instance>>) -> Self {
        Self {
            last_good,
            hold_until: None,
        }
    }

    /// Takes in what the watch has seen by `now`.
    pub fn read(&mut self, seen: &Seen<Vec<Instance>>, now: Instant) -> Reading {
        let answer = match (&seen.value, &seen.error) {
            (Some(value), None) => value,
            _ => return self.unconfirmed(),
        };
        let mut passing: Vec<Arc<Instance>> = answer
            .iter()
            .filter(|instance| instance.passing)
            .map(|instance| Arc::new(instance.clone()))
            .collect();
        // Only a set that was in use can be worth holding.
        if !seen.unbroken && !self.last_good.is_empty() && self.hold_until.is_none() {
            self.hold_until = Some(now + HOLD);
        }
        match self.hold_until.filter(|until| now < *until) {
            Some(until) => {
                passing.extend(self.missing_from(&passing));
                Reading {
                    instances: passing,
                    stale: true,
                    again: Some(until),
                }
            }
            None => {
                self.hold_until = None;
                self.last_good.clone_from(&passing);
                Reading {
                    instances: passing,
                    stale: false,
                    again: None,
                }
            }
        }
    }

    fn unconfirmed(&mut self) -> Reading {
        // A new break while holding starts the hold over at the next good answer.
        self.hold_until = None;
        Reading {
            instances: self.last_good.clone(),
            stale: true,
            again: None,
        }
    }

    fn missing_from(&self, present: &[Arc<Instance>]) -> Vec<Arc<Instance>> {
        let is_present = |held: &Instance| present.iter().any(|there| there.id == held.id);
        let held = self.last_good.iter().filter(|held| !is_present(held));
        held.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consul::{Error, watch::Seen};

    fn instance(id: &str) -> Instance {
        Instance {
            id: id.into(),
            node: "node".to_owned(),
            node_address: "127.0.0.1".to_owned(),
            service: "fraud-v1.0".to_owned(),
            address: "127.0.0.1".into(),
            port: 7401,
            tags: Vec::new(),
            weight: 100,
            meta: Default::default(),
            passing: true,
        }
    }

    fn seen(ids: Option<&[&str]>, unbroken: bool, failing: bool) -> Seen<Vec<Instance>> {
        Seen {
            value: ids.map(|ids| Arc::new(ids.iter().map(|id| instance(id)).collect())),
            at: None,
            unbroken,
            broken_at: None,
            error: failing.then(|| {
                Arc::new(Error::BadAnswer {
                    doing: "read health".to_owned(),
                    reason: "made up".to_owned(),
                })
            }),
            generation: 0,
        }
    }

    fn ids(reading: &Reading) -> Vec<&str> {
        reading.instances.iter().map(|i| &*i.id).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_unbroken_answer_is_believed_at_once_even_when_empty() {
        let mut members = Members::default();
        let now = Instant::now();
        members.read(&seen(Some(&["a", "b"]), true, false), now);
        let reading = members.read(&seen(Some(&[]), true, false), now);
        assert_eq!((ids(&reading), reading.stale), (vec![], false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_consul_keeps_the_last_good_set() {
        let mut members = Members::default();
        let now = Instant::now();
        members.read(&seen(Some(&["a"]), true, false), now);
        let later = now + Duration::from_secs(3600);
        let reading = members.read(&seen(Some(&["a"]), false, true), later);
        assert_eq!((ids(&reading), reading.stale), (vec!["a"], true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_consul_that_forgot_is_believed_after_the_hold() {
        let mut members = Members::default();
        let now = Instant::now();
        members.read(&seen(Some(&["a", "b"]), true, false), now);
        let reading = members.read(&seen(Some(&[]), false, false), now);
        assert_eq!(ids(&reading), ["a", "b"]);
        assert_eq!(reading.again, Some(now + HOLD));
        let soon = now + Duration::from_secs(5);
        let reading = members.read(&seen(Some(&["b", "c"]), true, false), soon);
        assert_eq!(ids(&reading), ["b", "c", "a"]);
        let reading = members.read(&seen(Some(&["b", "c"]), true, false), now + HOLD);
        assert_eq!((ids(&reading), reading.stale), (vec!["b", "c"], false));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_answer_of_all_is_believed() {
        let mut members = Members::default();
        let reading = members.read(&seen(Some(&[]), false, false), Instant::now());
        assert!(!reading.stale);
    }

    #[tokio::test(start_paused = true)]
    async fn a_seed_serves_until_consul_speaks() {
        let mut members = Members::seeded(vec![Arc::new(instance("a"))]);
        let reading = members.read(&seen(None, true, false), Instant::now());
        assert_eq!((ids(&reading), reading.stale), (vec!["a"], true));
    }
}
