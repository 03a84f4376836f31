//! How long a call may take: one clock, which no attempt restarts.

use crate::contract::Contract;
use crate::task::{Deadline, GRACE};
use std::time::Duration;
use tokio::time::Instant;

/// The time of one call.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began: Instant,
    /// Until when the caller wants to have its answer, if it says so.
    asked: Option<Deadline>,
    /// What is left to the task that the call is part of.
    inherited: Option<Deadline>,
    /// What the contracts allow, once they are known: counted from when the call was whole.
    granted: Option<Deadline>,
}

impl Clock {
    pub fn new(began: Instant, asked: Option<Duration>, inherited: Option<Deadline>) -> Self {
        Self {
            began,
            asked: asked.map(|asked| Deadline::after(began, asked)),
            inherited,
            granted: None,
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
        self.granted = Some(Deadline::after(now, whole.saturating_add(fallbacks)));
    }

    /// Returns when the call ends.
    pub fn ends(&self) -> Deadline {
        let own = self.asked.or(self.granted);
        let ends = [own, self.inherited].into_iter().flatten().min();
        ends.unwrap_or_else(|| Deadline::after(self.began, Duration::MAX))
    }

    /// Returns when an attempt ends that begins now.
    pub fn attempt_ends(&self, now: Instant, contract: &Contract) -> Deadline {
        Deadline::after(now, attempt(contract)).earliest(self.ends())
    }
}

/// Returns how long a caller waits for one attempt: the contract's timeout, and the grace for a
/// callee that answers at its very end.
pub fn attempt(contract: &Contract) -> Duration {
    contract.constraints.timeout.saturating_add(GRACE)
}
