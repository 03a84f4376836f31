//! One call to another agent, as a loop over attempts: checked, routed, bounded by one deadline.
//!
//! - every attempt has a report of its own, with its number within the call; the reply waits for
//!   the record of the last one
//! - what may follow an attempt is said by `task::Course`; time and the retry budget bound it
//! - elsewhere: one attempt (`attempt`), what its answer means (`judge`), the next one on the same
//!   agent (`again`), other agents (`fallback`), the call's time (`time`)

mod again;
mod attempt;
mod fallback;
mod judge;
mod time;

pub use attempt::Plan;
pub use time::acknowledged_by;

use super::Outbound;
use super::inherit::{Errand, Heritage};
use super::whom::Callee;
use crate::context::{AgentName, Fields, Ids, Member, Trace, header};
use crate::identity::Digest;
use crate::proxy::attempt::Presence;
use crate::proxy::body::Body;
use crate::proxy::check;
use crate::proxy::intake::Source;
use crate::proxy::later::Later;
use crate::proxy::respond::{self, Said, Timing, Trouble};
use crate::route;
use crate::task::{Id, Next, Problem, State, Timestamp};
use crate::telemetry::metrics::Direction;
use again::Tries;
use attempt::Tried;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response};
use judge::{Given, Outcome};
use std::sync::Arc;
use time::Clock;
use tokio::time::Instant;

/// A call that has been understood and not yet been made.
pub struct Call {
    pub(super) outbound: Arc<Outbound>,
    /// The agent asked for.
    pub(super) callee: Callee,
    key: route::Key,
    /// Those of the latest attempt.
    pub(super) ids: Ids,
    /// Own, inherited and minted context.
    pub(super) fields: Fields,
    pub(super) heritage: Heritage,
    pub(super) trace: Trace,
    presence: Arc<Presence>,
    pub(super) clock: Clock,
    pub(super) later: Option<Later>,
    timing: Timing,
    /// An attempt so far may have reached an application.
    reached: bool,
}

/// What the application asks for; the same bytes with every attempt.
pub struct Order {
    pub head: Parts,
    pub input: Bytes,
    pub digest: Digest,
}

impl Call {
    /// Begins a call to `callee`.
    pub fn new(
        outbound: Arc<Outbound>,
        callee: Callee,
        errand: Errand,
        later: Option<Later>,
        began: Instant,
    ) -> Self {
        let Errand {
            mut fields,
            heritage,
            trace,
            key,
        } = errand;
        let call_id = later.as_ref().map(Later::call_id);
        fields.call_id = Some(call_id.unwrap_or_else(Id::mint));
        fields.attempt = Some(1);
        let mut clock = Clock::new(began, fields.deadline, heritage.deadline);
        if later.is_some() {
            clock.await_acknowledgement();
        }
        Self {
            ids: Ids::settle(&mut fields),
            trace,
            clock,
            outbound,
            callee,
            key,
            fields,
            heritage,
            presence: Arc::new(later.as_ref().map(Later::presence).unwrap_or_default()),
            later,
            timing: Timing::default(),
            reached: false,
        }
    }

    /// Returns what hears that the downstream has gone.
    pub fn presence(&self) -> Arc<Presence> {
        self.presence.clone()
    }

    /// Makes the call; the reply goes out after its end state is stored.
    pub async fn run(mut self, head: Parts, source: Source) -> Response<Body> {
        let input = match source.read(&self.outbound.config.limits).await {
            Ok(input) => input,
            Err(trouble) if trouble.problem.state().is_none() => {
                return self.outbound.refusals.refuse(&trouble, &self.fields);
            }
            Err(trouble) => {
                let attempt = self.begin(None);
                let tried = self.unsent(attempt, trouble);
                return self.reply(tried, None).await;
            }
        };
        if self.fields.force_refresh == Some(true) {
            let until = self.clock.ends();
            let directory = &self.outbound.directory;
            directory.refresh(&self.callee.found, until.instant()).await;
        }
        let digest = Digest::of(&input);
        let order = Order {
            head,
            input,
            digest,
        };
        let last = self.make(&order).await;
        self.reply(last, Some(digest)).await
    }

    /// Makes attempts until one of them is the last.
    async fn make(&mut self, order: &Order) -> Tried {
        self.outbound.retries.called(Instant::now());
        let mut tries = Tries::new(&self.outbound.config.retry);
        let mut tried = self.first(&mut tries, order).await;
        loop {
            let ended = tried.outcome.ended();
            let next = match tried.outcome.was_sent {
                true => tries.course.after(ended),
                // Nobody could be asked, so nobody else can.
                false => ended.unsent(),
            };
            let again = match next {
                Next::Nothing => return tried,
                Next::Fallback => None,
                Next::Elsewhere | Next::SameInstance => {
                    self.again(&mut tries, &tried.outcome, next, order).await
                }
            };
            tried = match again {
                Some(again) => again,
                // Also where the budget is used up: it counts retries, and a fallback that the
                // contract declares is none.
                None => return self.fall_back(&tries, tried, order).await,
            };
        }
    }

    /// Holds the input against the digest that came with it.
    fn check_digest(order: &Order) -> Result<(), Trouble> {
        let headers = &order.head.headers;
        check::digest(headers, order.digest, Problem::RequestDigestMismatch)
    }

    async fn reply(mut self, last: Tried, input: Option<Digest>) -> Response<Body> {
        self.timing.record = last.record.await;
        let mut outcome = last.outcome;
        let names = self.names(&outcome);
        if let (Some(parent), Some(input), Given::Answer(_, output)) =
            (&self.heritage.parent, input, &outcome.given)
        {
            parent.made(self.member(&outcome.agent, input, *output));
        }
        let proxy = &self.outbound.config.pseudonym;
        let (mut response, status) = match outcome.given {
            Given::Answer(answer, digest) => {
                let said = Said {
                    names: &names,
                    end: outcome.stated,
                    executed: outcome.executed || self.reached,
                    digest,
                    timing: &self.timing,
                    proxy,
                };
                let status = answer.status.as_u16();
                (respond::answer(answer, &said), status)
            }
            Given::Trouble(ref mut trouble) => {
                if self.reached {
                    tell_of_earlier(trouble);
                }
                let mut response = respond::trouble(trouble, &names, proxy);
                self.timing.write(response.headers_mut());
                let metrics = &self.outbound.recorder.metrics;
                metrics.rejected(Direction::Outbound, trouble.problem);
                (response, trouble.problem.status())
            }
        };
        if outcome.degraded {
            let headers = response.headers_mut();
            headers.insert(header::DEGRADED, HeaderValue::from_static("?1"));
        }
        self.count(outcome.end, outcome.degraded, status);
        response
    }

    /// This call as a finished member of its parent's path.
    fn member(&self, agent: &AgentName, input: Digest, output: Digest) -> Member {
        let step = self.ids.step_id.clone();
        let version = agent.version.as_deref().unwrap_or_default();
        let agent = format!("{}@{version}", agent.id);
        let began_at = Timestamp::now().minus(self.clock.began().elapsed());
        let mut member = Member::new(step, agent, began_at, *input.as_bytes());
        member.output = Some(*output.as_bytes());
        member
    }

    fn names(&self, outcome: &Outcome) -> Fields {
        Fields {
            task_id: self.fields.task_id.clone(),
            step_id: self.fields.step_id.clone(),
            call_id: self.fields.call_id.clone(),
            attempt: Some(outcome.attempt),
            agent: Some(outcome.agent.clone()),
            ..self.repeated()
        }
    }

    /// Returns what replies repeat of every call, whoever answers it.
    pub(super) fn repeated(&self) -> Fields {
        Fields {
            application: Some(self.outbound.config.application.clone()),
            trace_id: self.fields.trace_id.clone(),
            region: self.fields.region.clone(),
            utc_offset: self.fields.utc_offset.clone(),
            ..Fields::default()
        }
    }

    fn count(&self, end: State, degraded: bool, status: u16) {
        let took = self.clock.began().elapsed();
        let meters = self.callee.found.meters();
        match &self.later {
            // Its request was answered with 202 and counted then.
            Some(later) if !later.is_to_be_counted() => meters.finished(end, degraded),
            _ => meters.call_ended(end, degraded, status, took),
        }
        let metrics = &self.outbound.recorder.metrics;
        metrics.overhead(Direction::Outbound, self.timing.own(took));
    }
}

/// Says of a call's last failure what holds of the call: where it reached nobody, an earlier
/// attempt had.
fn tell_of_earlier(last: &mut Trouble) {
    if last.executed != Some(true) {
        let detail = &last.detail;
        last.detail =
            format!("in the last attempt: {detail}; an earlier attempt may have been carried out");
    }
    last.executed = Some(true);
}
