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
pub struct Way {
    pub course: Course,
    /// Instances that were asked, oldest first.
    pub tried: Vec<Arc<str>>,
    /// The contract that the first attempt was made under.
    pub original: Option<Arc<Compiled>>,
    /// The digest of the contract that the input was last checked against.
    pub checked: Option<Digest>,
    backoff: Backoff,
}

impl Way {
    pub fn new(retry: &Retry) -> Self {
        Self {
            course: Course::new(false, 0),
            tried: Vec::new(),
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
        way: &mut Way,
        last: &Outcome,
        next: Next,
        order: &Order,
    ) -> Option<Tried> {
        let timeout = way.original.as_ref()?.contract.constraints.timeout;
        let wait = self.wait(way, last, next);
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
        let plan = self.elsewhere(way, next)?;
        if !way.course.retry(plan.contract().idempotent) {
            return None;
        }
        if way.checked != Some(plan.contract().digest()) {
            way.checked = Some(plan.contract().digest());
            if let Err(trouble) = self.check_input(&plan, &order.input).await {
                let attempt = self.follow(&plan, order, last.end, State::Dispatched);
                return Some(self.unsent(attempt, trouble));
            }
        }
        // Charged last: a retry that is not made takes nothing from the others.
        if !retries.grant(budget, Instant::now()) {
            return None;
        }
        way.tried.push(plan.offer.instance.id.clone());
        let attempt = self.follow(&plan, order, last.end, State::Dispatched);
        Some(self.send(attempt, plan, order, AttemptKind::Retry).await)
    }

    /// Says how long to wait: not at all where another instance may do what was not begun.
    fn wait(&self, way: &mut Way, last: &Outcome, next: Next) -> Duration {
        let untouched = last.execution == Execution::Not && next == Next::Elsewhere;
        if untouched && self.has_others(way) {
            return Duration::ZERO;
        }
        let asked = last.wait.unwrap_or_default();
        way.backoff.next_wait().max(asked)
    }

    fn has_others(&self, way: &Way) -> bool {
        let asking = Asking {
            tried: &way.tried,
            ..Asking::first(&self.fields, self.key)
        };
        let view = self.callee.found.view();
        self.outbound.has_others(&view, &self.callee, &asking)
    }

    fn elsewhere(&mut self, way: &Way, next: Next) -> Option<Plan> {
        let asking = Asking {
            tried: &way.tried,
            only: match next {
                Next::SameInstance => way.tried.last().map(|id| &**id),
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
