//! Another attempt on the same agent: when, at which instance, and whether there is time for it.

use super::attempt::{Plan, Tried};
use super::judge::Outcome;
use super::{Call, Order};
use crate::backoff::Backoff;
use crate::contract::Compiled;
use crate::identity::Digest;
use crate::proxy::outbound::Retry;
use crate::proxy::outbound::choice::Asking;
use crate::task::{Course, Execution, Next, State};
use crate::telemetry::metrics::AttemptKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What a call has behind it on its own agent.
pub struct Tries {
    pub course: Course,
    /// Instances that were asked, oldest first.
    pub asked: Vec<Arc<str>>,
    /// The contract that the first attempt was made under.
    pub original: Option<Arc<Compiled>>,
    /// The digest of the contract that the input was last checked against.
    pub checked: Option<Digest>,
    backoff: Backoff,
}

impl Tries {
    pub fn new(retry: &Retry) -> Self {
        Self {
            course: Course::new(false, 0),
            asked: Vec::new(),
            original: None,
            checked: None,
            backoff: Backoff::new(retry.backoff, retry.max_backoff),
        }
    }
}

impl Call {
    /// Makes another attempt, unless nobody may be asked any more or there is no time for it.
    pub(super) async fn again(
        &mut self,
        tries: &mut Tries,
        last: &Outcome,
        next: Next,
        order: &Order,
    ) -> Option<Tried> {
        let timeout = tries.original.as_ref()?.contract.constraints.timeout;
        let wait = self.wait(tries, last, next);
        let now = Instant::now();
        let ends = self.clock.ends();
        // A wait may be absurd: it is compared before it is added to anything.
        let is_time = wait < ends.left(now) && ends.leaves_time(now + wait, timeout);
        let outbound = self.outbound.clone();
        let (retries, budget) = (&outbound.retries, outbound.config.retry.budget);
        if !is_time || !retries.may_grant(budget, now) {
            return None;
        }
        tokio::time::sleep(wait).await;
        let plan = self.elsewhere(tries, next)?;
        if !tries.course.retry(plan.contract().idempotent) {
            return None;
        }
        if tries.checked != Some(plan.contract().digest()) {
            tries.checked = Some(plan.contract().digest());
            if let Err(trouble) = self.check_input(&plan, &order.input).await {
                let attempt = self.follow(&plan, order, last.end, State::Dispatched);
                return Some(self.unsent(attempt, trouble));
            }
        }
        // Charged last: a retry that is not made takes nothing from the others.
        if !retries.grant(budget, Instant::now()) {
            return None;
        }
        tries.asked.push(plan.offer.instance.id.clone());
        let attempt = self.follow(&plan, order, last.end, State::Dispatched);
        Some(self.send(attempt, plan, order, AttemptKind::Retry).await)
    }

    /// Says how long to wait: not at all where another instance may do what was not begun. How long
    /// an instance asks to be left alone binds no other.
    fn wait(&self, tries: &mut Tries, last: &Outcome, next: Next) -> Duration {
        match next == Next::Elsewhere && self.has_others(tries) {
            true if last.execution == Execution::Not => Duration::ZERO,
            true => tries.backoff.next_wait(),
            false => {
                let asked = last.wait.unwrap_or_default();
                tries.backoff.next_wait().max(asked)
            }
        }
    }

    fn has_others(&self, tries: &Tries) -> bool {
        let asking = Asking {
            tried: &tries.asked,
            ..Asking::first(&self.fields, self.key)
        };
        let view = self.callee.found.view();
        self.outbound.has_others(&view, &self.callee, &asking)
    }

    fn elsewhere(&mut self, tries: &Tries, next: Next) -> Option<Plan> {
        let asking = Asking {
            tried: &tries.asked,
            only: match next {
                Next::SameInstance => tries.asked.last().map(|id| &**id),
                _ => None,
            },
            ..Asking::first(&self.fields, self.key)
        };
        let view = self.callee.found.view();
        let chosen = self.outbound.choose(&view, &self.callee, &asking).ok()?;
        let mut plan = self.plan(&self.callee, chosen);
        plan.awaits = next == Next::SameInstance;
        Some(plan)
    }
}
