//! Calls that the application prefers to be answered later.

use super::Outbound;
use super::call::{Call, Plan, acknowledged_by};
use super::inherit::Errand;
use super::whom::Callee;
use crate::context::{Fields, header};
use crate::deferred::{Name, Seat};
use crate::proxy::attempt::Attempt;
use crate::proxy::body::Body;
use crate::proxy::forward::Answer;
use crate::proxy::intake::Source;
use crate::proxy::later::{
    self, ACKNOWLEDGED_WITHIN, Asked, Fetching, Later, PREFER, Prefer, RESPOND_ASYNC,
};
use crate::proxy::respond::Trouble;
use crate::proxy::stated;
use crate::proxy::upstream::Upstream;
use crate::task::{Id, Problem, State};
use http::request::Parts;
use http::{Request, Response};
use std::sync::Arc;
use tokio::time::Instant;

impl Outbound {
    /// Has a call made by itself, and returns what the application is told at first.
    pub(super) async fn deferred(
        self: Arc<Self>,
        prefer: Prefer,
        seat: Seat,
        (callee, head, source, errand, began): (Callee, Parts, Source, Errand, Instant),
    ) -> Response<Body> {
        let task_id = errand.fields.task_id.clone().unwrap_or_else(Id::mint);
        let later = Later::new(task_id, Id::mint());
        let meters = callee.found.meters().clone();
        let call = Call::new(self.clone(), callee, errand, Some(later.clone()), began);
        let asked = Asked {
            scope: scope(),
            names: call.asked(),
            prefer,
            began,
            meters,
            refusals: &self.refusals,
            seat,
        };
        let call = call.run(head, source);
        later::defer(&self.deferred, &self.keeper, later, asked, call).await
    }

    /// Hands out the reply of a call.
    pub(super) async fn fetch(&self, call_id: Id, head: &Parts) -> Response<Body> {
        let scope = scope();
        let name = Name { scope, call_id };
        let answered = later::answer(&self.deferred, &name, head).await;
        answered.unwrap_or_else(|told| self.refusals.refuse(&told.trouble, &told.names))
    }
}

/// Everybody who reaches this listener is the one application.
fn scope() -> Arc<str> {
    Arc::from("")
}

impl Call {
    /// Returns what is repeated of a call that is not answered yet.
    fn asked(&self) -> Fields {
        Fields {
            task_id: self.fields.task_id.clone(),
            step_id: self.fields.step_id.clone(),
            call_id: self.fields.call_id.clone(),
            agent: Some(self.callee.agent.clone()),
            ..self.repeated()
        }
    }

    /// Sends a request, and once it is acknowledged fetches its reply.
    pub(super) async fn ask_later(
        &mut self,
        later: &Later,
        attempt: &mut Attempt,
        plan: &mut Plan,
        upstream: &Arc<Upstream>,
        mut request: Request<Body>,
    ) -> Result<Answer, Trouble> {
        request.headers_mut().append(PREFER, RESPOND_ASYNC);
        let key = request.headers().get(header::IDEMPOTENCY_KEY);
        let is_own_key =
            key.is_some_and(|key| key.as_bytes() == self.ids.call_id.as_str().as_bytes());
        let within = acknowledged_by(Instant::now()).earliest(self.clock.ends());
        let asked = self.exchange(attempt, upstream, request, within).await;
        let answer = asked.map_err(unacknowledged)?;
        // An attempt that nobody answered may have begun all the same.
        let is_under_way = is_own_key && stated::is_in_flight(&answer);
        if !is_under_way && !later::is_acknowledgement(&answer) {
            return Ok(answer);
        }
        let now = Instant::now();
        // Asked again for what is still under way, it has moved before.
        if !plan.is_acknowledged {
            attempt.advance(State::Executing);
        }
        self.clock.acknowledged(now);
        plan.is_acknowledged = true;
        plan.deadline = self.clock.attempt_ends(now, plan.contract());
        later.acknowledged(attempt, plan.deadline);
        attempt.still_open();
        let fetching = Fetching {
            call_id: &self.ids.call_id,
            task_id: &self.ids.task_id,
            application: &self.outbound.config.application,
            pseudonym: &self.outbound.config.pseudonym,
            max: self.outbound.config.limits.max_body_bytes,
        };
        later::fetch(upstream, &fetching, plan.deadline).await
    }
}

/// Says of an attempt that ran out of time what it was waiting for.
fn unacknowledged(trouble: Trouble) -> Trouble {
    if trouble.problem != Problem::Timeout {
        return trouble;
    }
    let detail = format!("the callee did not acknowledge the call within {ACKNOWLEDGED_WITHIN:?}");
    Trouble { detail, ..trouble }
}
