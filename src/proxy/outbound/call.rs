//! One call to another agent: checked, routed, bounded by one deadline, recorded.

use super::Outbound;
use super::choice::Asking;
use super::inherit::{Errand, Heritage};
use super::whom::Callee;
use crate::context::{Fields, Ids, Member, Trace, header};
use crate::contract::Compiled;
use crate::contract::watch::Offer;
use crate::identity::Digest;
use crate::proxy::attempt::{Attempt, Following, Presence, deadline_at};
use crate::proxy::body::Body;
use crate::proxy::check::{self, Check, Mode};
use crate::proxy::forward::{self, Answer};
use crate::proxy::head;
use crate::proxy::headers;
use crate::proxy::intake::Source;
use crate::proxy::later::Later;
use crate::proxy::respond::{self, Said, Timing, Trouble};
use crate::proxy::upstream::Upstream;
use crate::route;
use crate::socket::Speaks;
use crate::task::{Deadline, Failure, GRACE, Id, Problem, Report, Reporter, State, Timestamp};
use crate::telemetry::metrics::{AttemptKind, Direction, Side};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A call that has been understood and not yet been made.
pub struct Call {
    pub(super) outbound: Arc<Outbound>,
    pub(super) callee: Callee,
    key: route::Key,
    pub(super) ids: Ids,
    /// Own, inherited and minted context.
    pub(super) fields: Fields,
    pub(super) heritage: Heritage,
    pub(super) trace: Trace,
    presence: Arc<Presence>,
    began: Instant,
    timing: Timing,
    pub(super) later: Option<Later>,
}

/// What was decided before the call goes out.
pub struct Plan {
    pub offer: Offer,
    pub deadline: Deadline,
}

/// A whole answer and what it means.
struct Outcome {
    answer: Answer,
    digest: Digest,
    end: State,
    failure: Option<Failure>,
    executed: bool,
}

impl Call {
    /// Begins a call to `callee`.
    pub fn new(
        outbound: Arc<Outbound>,
        callee: Callee,
        errand: Errand,
        headers: &HeaderMap,
        later: Option<Later>,
        began: Instant,
    ) -> Self {
        let Errand {
            mut fields,
            heritage,
            key,
        } = errand;
        let call_id = later.as_ref().map(Later::call_id);
        fields.call_id = Some(call_id.unwrap_or_else(Id::mint));
        fields.attempt = Some(1);
        Self {
            ids: Ids::settle(&mut fields),
            trace: Trace::of(headers, fields.trace_id.clone()),
            outbound,
            callee,
            key,
            fields,
            heritage,
            presence: Arc::new(later.as_ref().map(Later::presence).unwrap_or_default()),
            began,
            timing: Timing::default(),
            later,
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
                return self.fail(attempt, trouble).await;
            }
        };
        if self.fields.force_refresh == Some(true) {
            let until = self.within(Deadline::after(Instant::now(), Duration::MAX));
            let directory = &self.outbound.directory;
            directory.refresh(&self.callee.found, until.instant()).await;
        }
        let digest = Digest::of(&input);
        let mut attempt = self.begin(Some(digest));
        match self.make(&mut attempt, head, input, digest).await {
            Ok(outcome) => self.finish(attempt, outcome, digest).await,
            Err(trouble) => self.fail(attempt, trouble).await,
        }
    }

    fn begin(&self, input: Option<Digest>) -> Attempt {
        let (ids, own) = (self.ids.clone(), &self.fields);
        let report = Report {
            call_id: ids.call_id,
            task_id: ids.task_id,
            step_id: ids.step_id,
            parent_step: self
                .heritage
                .parent
                .as_ref()
                .map(|step| step.step_id.clone()),
            attempt: ids.attempt,
            state: State::Pending,
            states: Vec::new(),
            reporter: Reporter::Caller,
            agent: self.callee.agent.id.clone(),
            agent_version: self.callee.agent.version.clone().unwrap_or_default(),
            instance: String::new(),
            deadline_at: Timestamp::now(),
            duration_ms: 0,
            input_digest: input.map(|digest| digest.to_string()),
            output_digest: None,
            degraded: false,
            undelivered: false,
            error: None,
            detail: None,
            sla_level: own.sla_level.unwrap_or_default(),
            scenario: own.scenario.clone(),
            requester: own.requester.clone(),
            trace_id: self.trace.reported_id(),
            application: self.outbound.config.application.clone(),
        };
        let recorder = self.outbound.recorder.clone();
        Attempt::begin(
            recorder,
            self.presence.clone(),
            Box::new(report),
            self.began,
        )
    }

    async fn make(
        &mut self,
        attempt: &mut Attempt,
        head: Parts,
        input: Bytes,
        digest: Digest,
    ) -> Result<Outcome, Trouble> {
        check::digest(&head.headers, digest, Problem::RequestDigestMismatch)?;
        let mut plan = self.plan(attempt)?;
        self.check_body(&plan, Side::Input, &input).await?;
        let timeout = plan.offer.contract.contract.constraints.timeout;
        if !plan.deadline.leaves_time(Instant::now(), timeout) {
            let detail = "the deadline left no time for an attempt";
            return Err(Trouble::new(Problem::BudgetExhausted, detail).executed(false));
        }
        let limits = self.outbound.config.limits.head;
        let request = self.request(&plan, head, input, digest);
        head::check_outgoing(request.headers(), &limits)?;
        attempt.note(|report| report.instance = plan.offer.instance.id.to_string());
        attempt.advance(State::Dispatched);
        self.callee.found.meters().attempted(AttemptKind::First);
        let started = Instant::now();
        let answered = self.ask(attempt, &mut plan, request).await;
        self.callee
            .found
            .meters()
            .timeout_used(started.elapsed(), timeout);
        let answer = answered?;
        head::check_answer(&answer.headers, &limits)?;
        self.judge(attempt, &plan, answer).await
    }

    /// Chooses the instance and bounds the call's time.
    fn plan(&mut self, attempt: &mut Attempt) -> Result<Plan, Trouble> {
        let started = Instant::now();
        let view = self.callee.found.view();
        let asking = Asking {
            fields: &self.fields,
            key: self.key,
        };
        let chosen = self.outbound.choose(&view, &self.callee, &asking);
        drop(view);
        self.timing.route = started.elapsed();
        let offer = chosen?;
        let deadline = self.deadline(&offer.contract);
        let version = offer.contract.contract.version.to_string();
        attempt.note(|report| {
            report.agent_version.clone_from(&version);
            report.deadline_at = deadline_at(deadline);
        });
        self.callee.agent.version = Some(version);
        Ok(Plan { offer, deadline })
    }

    /// The attempt's deadline: the contract's timeout and the grace for a callee that answers at
    /// its very end, within the call's own deadline and the rest of the task's.
    pub(super) fn deadline(&self, contract: &Compiled) -> Deadline {
        let timeout = contract.contract.constraints.timeout;
        self.within(Deadline::after(Instant::now(), timeout + GRACE))
    }

    /// Cuts a deadline to the call's own and to what is left of the task's.
    pub(super) fn within(&self, mut deadline: Deadline) -> Deadline {
        if let Some(asked) = self.fields.deadline {
            // Where the call is answered later, its time counts from the acknowledgement.
            let since = self.later.as_ref().map_or(self.began, Later::since);
            deadline = deadline.earliest(Deadline::after(since, asked));
        }
        self.within_task(deadline)
    }

    /// Cuts a deadline to what is left of the task's.
    pub(super) fn within_task(&self, deadline: Deadline) -> Deadline {
        match self.heritage.deadline {
            Some(inherited) => deadline.earliest(inherited),
            None => deadline,
        }
    }

    async fn check_body(&mut self, plan: &Plan, side: Side, body: &Bytes) -> Result<(), Trouble> {
        let check = Check {
            contract: &plan.offer.contract,
            limits: &self.outbound.config.limits.body,
            side,
            mode: Mode::Strict,
            deadline: plan.deadline,
            meters: self.callee.found.meters(),
            metrics: &self.outbound.recorder.metrics,
        };
        check.run(body, &mut self.timing).await
    }

    async fn ask(
        &mut self,
        attempt: &mut Attempt,
        plan: &mut Plan,
        request: Request<Body>,
    ) -> Result<Answer, Trouble> {
        let started = Instant::now();
        let upstream = self.outbound.peer(&plan.offer.instance)?;
        let answered = match self.later.clone() {
            None => {
                self.exchange(attempt, &upstream, request, plan.deadline)
                    .await
            }
            Some(later) => {
                let asking = self.ask_later(&later, attempt, plan, &upstream, request);
                asking.await
            }
        };
        self.timing.upstream = started.elapsed();
        answered
    }

    pub(super) async fn exchange(
        &self,
        attempt: &mut Attempt,
        upstream: &Arc<Upstream>,
        request: Request<Body>,
        deadline: Deadline,
    ) -> Result<Answer, Trouble> {
        let following = Following {
            attempt,
            executes: false,
            later: None,
        };
        let max = self.outbound.config.limits.max_body_bytes;
        let request = (request, Speaks::Either);
        let answered = forward::exchange(upstream, request, deadline, max, following).await;
        answered.map_err(|failed| failed.into_trouble(upstream.authority()))
    }

    /// Reads what the callee's sidecar says of the attempt, and checks a success again.
    async fn judge(
        &mut self,
        attempt: &mut Attempt,
        plan: &Plan,
        answer: Answer,
    ) -> Result<Outcome, Trouble> {
        let executed = stated_executed(&answer).unwrap_or(true);
        if executed {
            attempt.advance(State::Executing);
        }
        let digest = Digest::of(&answer.body);
        check::digest(&answer.headers, digest, Problem::ReplyDigestMismatch)
            .map_err(|trouble| trouble.executed(executed))?;
        if answer.status.is_success() {
            attempt.note(|report| report.output_digest = Some(digest.to_string()));
            self.check_body(plan, Side::Output, &answer.body)
                .await
                .map_err(|trouble| trouble.executed(executed))?;
        }
        let (end, failure) = match told_problem(&answer) {
            Some((state, failure)) => (state, Some(failure)),
            None => {
                attempt.note(|report| report.output_digest = Some(digest.to_string()));
                answer.verdict()
            }
        };
        Ok(Outcome {
            answer,
            digest,
            end,
            failure,
            executed,
        })
    }

    async fn finish(mut self, attempt: Attempt, outcome: Outcome, input: Digest) -> Response<Body> {
        if let Some(parent) = &self.heritage.parent {
            parent.made(self.member(input, outcome.digest));
        }
        self.timing.record = attempt.settle(outcome.end, outcome.failure).await;
        let answer = outcome.answer;
        let said = Said {
            names: &self.names(),
            end: outcome.end,
            executed: outcome.executed,
            digest: outcome.digest,
            timing: &self.timing,
            proxy: &self.outbound.config.pseudonym,
        };
        self.count(outcome.end, answer.status.as_u16());
        respond::answer(answer, &said)
    }

    async fn fail(mut self, attempt: Attempt, trouble: Trouble) -> Response<Body> {
        let end = trouble.problem.state().unwrap_or(State::FailedExecution);
        self.timing.record = attempt.settle(end, Some(trouble.failure())).await;
        let pseudonym = &self.outbound.config.pseudonym;
        let mut response = respond::trouble(&trouble, &self.names(), pseudonym);
        self.timing.write(response.headers_mut());
        let metrics = &self.outbound.recorder.metrics;
        metrics.rejected(Direction::Outbound, trouble.problem);
        self.count(end, trouble.problem.status());
        response
    }

    /// This call as a finished member of its parent's path.
    fn member(&self, input: Digest, output: Digest) -> Member {
        let step = self.ids.step_id.clone();
        let version = self.callee.agent.version.as_deref().unwrap_or_default();
        let agent = format!("{}@{version}", self.callee.agent.id);
        let mut member = Member::new(step, agent, Timestamp::now(), *input.as_bytes());
        member.output = Some(*output.as_bytes());
        member
    }

    /// Returns what every reply to it repeats.
    pub fn names(&self) -> Fields {
        Fields {
            task_id: self.fields.task_id.clone(),
            step_id: self.fields.step_id.clone(),
            call_id: self.fields.call_id.clone(),
            attempt: self.fields.attempt,
            agent: Some(self.callee.agent.clone()),
            trace_id: self.fields.trace_id.clone(),
            ..Fields::default()
        }
    }

    fn count(&self, end: State, status: u16) {
        let took = self.began.elapsed();
        let meters = self.callee.found.meters();
        match &self.later {
            // Its request was answered with 202 and counted then.
            Some(later) if !later.is_to_be_counted() => meters.finished(end, false),
            _ => meters.ended(end, status, took),
        }
        let metrics = &self.outbound.recorder.metrics;
        metrics.overhead(Direction::Outbound, self.timing.own(took));
    }
}

fn stated_executed(answer: &Answer) -> Option<bool> {
    crate::context::boolean(answer.headers.get(header::EXECUTED)?.as_bytes())
}

/// Reads a problem that the callee's sidecar made itself.
fn told_problem(answer: &Answer) -> Option<(State, Failure)> {
    #[derive(serde::Deserialize)]
    struct Told {
        r#type: String,
        title: String,
        detail: String,
    }
    if answer.status.is_success() || !headers::is_json(&answer.headers) {
        return None;
    }
    let told: Told = serde_json::from_slice(&answer.body).ok()?;
    let kind = told.r#type.strip_prefix(Problem::TYPE)?;
    let problem = Problem::from_wire(kind, answer.status.as_u16())?;
    // An application may relay a problem it was told itself; its own sidecar then states another
    // end than the problem leaves.
    let stated = answer.headers.get(header::STATE);
    let stated = stated.and_then(|state| State::from_wire(state.to_str().ok()?));
    if stated != problem.state() {
        return None;
    }
    let state = problem.state().unwrap_or(State::FailedExecution);
    let failure = Failure {
        kind: kind.to_owned(),
        title: told.title.chars().take(200).collect(),
        detail: told.detail.chars().take(500).collect(),
    };
    Some((state, failure))
}
