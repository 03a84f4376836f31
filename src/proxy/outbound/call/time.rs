//! How long a call may take: one clock, which no attempt restarts.
//!
//! The time of a call that is answered later begins anew with its acknowledgement, once; until then
//! all its attempts together have the time for that.

use crate::contract::{Contract, ContractId};
use crate::proxy::later::ACKNOWLEDGED_WITHIN;
use crate::task::{Deadline, GRACE};
use std::time::Duration;
use tokio::time::Instant;

/// The time of one call.
#[derive(Debug)]
pub struct Clock {
    began: Instant,
    /// How long the caller would wait for its answer, if it says so.
    asked: Option<Duration>,
    /// What is left to the task that the call is part of.
    inherited: Option<Deadline>,
    granted: Option<Granted>,
    /// What each fallback adds that is known.
    fallbacks: Vec<(ContractId, Duration)>,
    acknowledgement: Acknowledgement,
}

/// From when on the call's contract is known, and how long that one allows.
#[derive(Debug, Clone, Copy)]
struct Granted {
    from: Instant,
    whole: Duration,
}

#[derive(Debug, Clone, Copy)]
enum Acknowledgement {
    /// The reply itself is waited for.
    NotAwaited,
    Awaited,
    At(Instant),
}

impl Clock {
    pub fn new(began: Instant, asked: Option<Duration>, inherited: Option<Deadline>) -> Self {
        Self {
            began,
            asked,
            inherited,
            granted: None,
            fallbacks: Vec::new(),
            acknowledgement: Acknowledgement::NotAwaited,
        }
    }

    /// Lets the call's own time begin with its acknowledgement.
    pub fn await_acknowledgement(&mut self) {
        self.acknowledgement = Acknowledgement::Awaited;
    }

    /// Hears of an acknowledgement; the first one counts.
    pub fn acknowledged(&mut self, now: Instant) {
        self.acknowledgement = self.once_acknowledged(now);
    }

    fn once_acknowledged(&self, now: Instant) -> Acknowledgement {
        match self.acknowledgement {
            Acknowledgement::Awaited => Acknowledgement::At(now),
            other => other,
        }
    }

    /// Returns when the call came.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Grants what the attempts of a call of `contract` may take from `now` on; once.
    pub fn grant(&mut self, now: Instant, contract: &Contract) {
        let attempts = 1 + contract.max_retries;
        self.granted.get_or_insert(Granted {
            from: now,
            whole: attempt(contract).saturating_mul(attempts),
        });
    }

    /// Adds the time of a fallback; once each.
    pub fn add(&mut self, fallback: &Contract) {
        if !self
            .fallbacks
            .iter()
            .any(|(known, _)| *known == fallback.id)
        {
            let more = (fallback.id.clone(), attempt(fallback));
            self.fallbacks.push(more);
        }
    }

    /// Returns when the call ends.
    pub fn ends(&self) -> Deadline {
        self.ends_if(self.acknowledgement)
    }

    /// Returns when the call ends if the work at its agent begins now.
    pub fn work_ends(&self, now: Instant) -> Deadline {
        self.ends_if(self.once_acknowledged(now))
    }

    fn ends_if(&self, acknowledgement: Acknowledgement) -> Deadline {
        let since = match acknowledgement {
            Acknowledgement::NotAwaited => Some(self.began),
            Acknowledgement::Awaited => None,
            Acknowledgement::At(instant) => Some(instant),
        };
        let asked = self.asked.zip(since);
        let asked = asked.map(|(asked, since)| Deadline::after(since, asked));
        let granted = self.granted.map(|granted| {
            let more: Duration = self.fallbacks.iter().map(|(_, more)| *more).sum();
            let whole = granted.whole.saturating_add(more);
            match acknowledgement {
                Acknowledgement::NotAwaited => Deadline::after(granted.from, whole),
                Acknowledgement::At(instant) => Deadline::after(instant, whole),
                Acknowledgement::Awaited => acknowledged_by(granted.from),
            }
        });
        let ends = [asked.or(granted), self.inherited].into_iter().flatten();
        let longest = || Deadline::after(self.began, Duration::MAX);
        ends.min().unwrap_or_else(longest)
    }

    /// Returns when an attempt ends that begins now.
    pub fn attempt_ends(&self, now: Instant, contract: &Contract) -> Deadline {
        Deadline::after(now, attempt(contract)).earliest(self.work_ends(now))
    }
}

/// Returns until when a caller waits for an acknowledgement that is asked for now: with the grace
/// for a callee that says at the very end that there is none.
pub fn acknowledged_by(now: Instant) -> Deadline {
    Deadline::after(now, ACKNOWLEDGED_WITHIN.saturating_add(GRACE))
}

/// Returns how long a caller waits for one attempt: the contract's timeout, and the grace for a
/// callee that answers at its very end.
pub fn attempt(contract: &Contract) -> Duration {
    contract.constraints.timeout.saturating_add(GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn contract(id: &str, timeout_ms: u64) -> Contract {
        let version = format!("{}.0", id.rsplit_once("-v").unwrap().1);
        let body = json!({
            "id": id, "version": version, "input_schema": {"type": "object"},
            "output_schema": {"type": "object"}, "constraints": {"timeout_ms": timeout_ms},
        });
        Contract::from_slice(body.to_string().as_bytes()).unwrap()
    }

    fn left(clock: &Clock, now: Instant) -> u128 {
        clock.ends().left(now).as_millis()
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_has_the_time_of_its_attempts_and_fallbacks() {
        let now = Instant::now();
        let mut clock = Clock::new(now, None, None);
        clock.grant(now, &contract("a-v1.0", 500));
        assert_eq!(left(&clock, now), 3 * 700);
        for _ in 0..2 {
            clock.add(&contract("b-v1.0", 300));
        }
        assert_eq!(left(&clock, now), 3 * 700 + 500);
        tokio::time::advance(Duration::from_millis(1_000)).await;
        // Nobody restarts it.
        let later = Instant::now();
        clock.grant(later, &contract("a-v1.0", 500));
        assert_eq!(left(&clock, later), 1_600);
        let attempt = clock.attempt_ends(later, &contract("a-v1.0", 500));
        assert_eq!(attempt.left(later).as_millis(), 700);
    }

    #[tokio::test(start_paused = true)]
    async fn all_attempts_together_wait_for_one_acknowledgement() {
        let now = Instant::now();
        let mut clock = Clock::new(now, Some(Duration::from_millis(400)), None);
        clock.await_acknowledgement();
        tokio::time::advance(Duration::from_secs(1)).await;
        // Not counted from before the agent was found.
        let granted = Instant::now();
        clock.grant(granted, &contract("a-v1.0", 20_000));
        clock.add(&contract("b-v1.0", 20_000));
        assert_eq!(left(&clock, granted), 3_200);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(left(&clock, Instant::now()), 200);
        // From the acknowledgement on it has what its caller asked for.
        let acknowledged = Instant::now();
        clock.acknowledged(acknowledged);
        assert_eq!(left(&clock, acknowledged), 400);
        clock.acknowledged(acknowledged + Duration::from_secs(5));
        assert_eq!(left(&clock, acknowledged), 400);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_caller_asks_for_counts_within_what_its_task_has_left() {
        let now = Instant::now();
        let task = Deadline::after(now, Duration::from_millis(900));
        for (asked, inherited, expected) in [
            (Some(400), None, 400),
            (Some(5_000), None, 5_000),
            (Some(5_000), Some(task), 900),
            (None, Some(task), 900),
        ] {
            let mut clock = Clock::new(now, asked.map(Duration::from_millis), inherited);
            clock.grant(now, &contract("a-v1.0", 500));
            assert_eq!(left(&clock, now), expected);
            let attempt = clock.attempt_ends(now, &contract("a-v1.0", 500));
            assert_eq!(attempt.left(now).as_millis(), expected.min(700));
        }
    }
}
