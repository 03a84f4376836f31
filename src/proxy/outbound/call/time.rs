//! How long a call may take: one clock, which no attempt restarts.

use crate::contract::Contract;
use crate::proxy::later::ACKNOWLEDGED_WITHIN;
use crate::task::{Deadline, GRACE};
use std::time::Duration;
use tokio::time::Instant;

/// The time of one call.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began: Instant,
    /// What the call's own time counts from; none before a call that is answered later has been
    /// acknowledged.
    since: Option<Instant>,
    /// How long the caller would wait for its answer, if it says so.
    asked: Option<Duration>,
    /// What is left to the task that the call is part of.
    inherited: Option<Deadline>,
    /// What the contracts allow, once they are known: counted from when the call was whole.
    granted: Option<Deadline>,
    /// The same as a length, for a call that is answered later.
    whole: Option<Duration>,
}

impl Clock {
    pub fn new(began: Instant, asked: Option<Duration>, inherited: Option<Deadline>) -> Self {
        Self {
            began,
            since: Some(began),
            asked,
            inherited,
            granted: None,
            whole: None,
        }
    }

    /// Lets the call's own time begin with its acknowledgement.
    pub fn from_acknowledgement(&mut self) {
        self.since = None;
    }

    /// Hears of an acknowledgement; the first one counts.
    pub fn acknowledged(&mut self, now: Instant) {
        if self.since.is_none() {
            self.since = Some(now);
            self.granted = self.whole.map(|whole| Deadline::after(now, whole));
        }
    }

    /// Returns when the call came.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Grants what a call of `contract` may take from `now` on, with all its attempts and those of
    /// its fallbacks.
    pub fn grant(&mut self, now: Instant, contract: &Contract, fallbacks: Duration) {
        let attempts = 1 + contract.max_retries;
        let whole = attempt(contract).saturating_mul(attempts);
        let whole = whole.saturating_add(fallbacks);
        self.whole = Some(whole);
        let unacknowledged = match self.since {
            Some(_) => Duration::ZERO,
            // Each attempt may fail to be acknowledged, and is then followed by the next.
            None => ACKNOWLEDGED_WITHIN * (attempts + contract.fallback.len() as u32),
        };
        self.granted = Some(Deadline::after(now, whole.saturating_add(unacknowledged)));
    }

    /// Returns when the call ends.
    pub fn ends(&self) -> Deadline {
        let asked = self.since.zip(self.asked);
        let asked = asked.map(|(since, asked)| Deadline::after(since, asked));
        let ends = [asked.or(self.granted), self.inherited];
        let ends = ends.into_iter().flatten().min();
        ends.unwrap_or_else(|| Deadline::after(self.began, Duration::MAX))
    }

    /// Returns when the call ends if the work at its agent begins now.
    pub fn work_ends(&self, now: Instant) -> Deadline {
        let mut clock = *self;
        clock.acknowledged(now);
        clock.ends()
    }

    /// Returns when an attempt ends that begins now.
    pub fn attempt_ends(&self, now: Instant, contract: &Contract) -> Deadline {
        Deadline::after(now, attempt(contract)).earliest(self.work_ends(now))
    }
}

/// Returns how long a caller waits for one attempt: the contract's timeout, and the grace for a
/// callee that answers at its very end.
pub fn attempt(contract: &Contract) -> Duration {
    contract.constraints.timeout.saturating_add(GRACE)
}
