//! One call to another agent: checked, routed, bounded by one deadline, recorded.

use super::inherit::Heritage;
use super::{Outbound, patience};
use crate::context::{AgentName, Fields, Member, Trace, header};
use crate::contract::Compiled;
use crate::contract::watch::{Agent, Offer};
use crate::identity::Digest;
use crate::proxy::attempt::{Attempt, Presence, STILL_OPEN, deadline_at};
use crate::proxy::body::Body;
use crate::proxy::check::{self, Check, Mode};
use crate::proxy::forward::{self, Answer, Progress};
use crate::proxy::headers;
use crate::proxy::intake::Source;
use crate::proxy::respond::{self, Said, Timing, Trouble};
use crate::route;
use crate::task::{Deadline, Failure, GRACE, Id, Problem, Report, Reporter, State, Timestamp};
use crate::telemetry::metrics::{AttemptKind, Direction, Phase, Side, Sidecar};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, EXPECT, HOST};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, Uri};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A call that has been understood and not yet been made.
pub struct Call {
    outbound: Arc<Outbound>,
    agent: AgentName,
    own: Fields,
    presence: Arc<Presence>,
    began: Instant,
    timing: Timing,
}

/// What was decided before the call goes out.
struct Plan {
    offer: Offer,
    deadline: Deadline,
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
    pub fn new(
        outbound: Arc<Outbound>,
        agent: AgentName,
        own: Fields,
        presence: Arc<Presence>,
        began: Instant,
    ) -> Self {
        Self {
            outbound,
            agent,
            own,
            presence,
            began,
            timing: Timing::default(),
        }
    }

    /// Makes the call; the reply goes out after its end state is stored.
    pub async fn run(mut self, head: Parts, source: Source) -> Response<Body> {
        let found = match self
            .outbound
            .find(&self.agent, patience(&self.own, self.began))
            .await
        {
            Ok(found) => found,
            Err(trouble) => return self.outbound.refuse(&trouble, &self.own),
        };
        let input = match source.read(&self.outbound.config.limits).await {
            Err(trouble) if trouble.problem.state().is_none() => {
                return self.outbound.refuse(&trouble, &self.own);
            }
            read => read,
        };
        if self.own.force_refresh == Some(true) {
            self.outbound.directory.refresh(&found).await;
        }
        let heritage = self.outbound.inherit(std::mem::take(&mut self.own));
        self.own = heritage.fields.clone();
        self.own.call_id = Some(Id::mint());
        self.own.attempt = Some(1);
        let trace = Trace::of(&head.headers, self.own.trace_id.clone());
        let input = match input {
            Ok(input) => input,
            Err(trouble) => {
                let attempt = self.begin(&heritage, &trace, None);
                return self.fail(attempt, &found, trouble).await;
            }
        };
        let digest = Digest::of(&input);
        let mut attempt = self.begin(&heritage, &trace, Some(digest));
        let made = self
            .make(&mut attempt, &found, &heritage, head, input, digest, &trace)
            .await;
        match made {
            Ok(outcome) => {
                self.finish(attempt, &found, &heritage, outcome, digest)
                    .await
            }
            Err(trouble) => self.fail(attempt, &found, trouble).await,
        }
    }

    fn begin(&self, heritage: &Heritage, trace: &Trace, input: Option<Digest>) -> Attempt {
        let own = &self.own;
        let id = |id: &Option<Id>| id.clone().unwrap_or_else(Id::mint);
        let report = Report {
            call_id: id(&own.call_id),
            task_id: id(&own.task_id),
            step_id: id(&own.step_id),
            parent_step: heritage.parent.as_ref().map(|step| step.step_id.clone()),
            attempt: 1,
            state: State::Pending,
            states: Vec::new(),
            reporter: Reporter::Caller,
            agent: self.agent.id.clone(),
            agent_version: self.agent.version.clone().unwrap_or_default(),
            instance: String::new(),
            deadline_at: Timestamp::now(),
            duration_ms: 0,
            input_digest: input.map(|digest| digest.to_string()),
            output_digest: None,
            degraded: false,
            undelivered: false,
            error: None,
            sla_level: own.sla_level.unwrap_or_default(),
            scenario: own.scenario.clone(),
            requester: own.requester.clone(),
            trace_id: trace.reported_id(),
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

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one call, each from elsewhere"
    )]
    async fn make(
        &mut self,
        attempt: &mut Attempt,
        found: &Arc<Agent>,
        heritage: &Heritage,
        head: Parts,
        input: Bytes,
        digest: Digest,
        trace: &Trace,
    ) -> Result<Outcome, Trouble> {
        check::digest(&head.headers, digest, Problem::RequestDigestMismatch)?;
        let plan = self.plan(attempt, found, heritage, &head)?;
        self.check_body(found, &plan.offer.contract, Side::Input, &input)?;
        if plan.deadline.has_passed(Instant::now()) {
            let detail = "the deadline left no time for an attempt";
            return Err(Trouble::new(Problem::BudgetExhausted, detail).executed(false));
        }
        attempt.note(|report| report.instance = plan.offer.instance.id.to_string());
        attempt.advance(State::Dispatched);
        found.meters.attempted(AttemptKind::First);
        let request = self.request(&plan, heritage, head, input, digest, trace);
        let started = Instant::now();
        let answered = self.ask(attempt, &plan, request).await;
        let timeout = plan.offer.contract.contract.constraints.timeout;
        found.meters.timeout_used(started.elapsed(), timeout);
        self.judge(attempt, found, &plan, answered?)
    }

    /// Chooses the instance and bounds the call's time.
    fn plan(
        &mut self,
        attempt: &mut Attempt,
        found: &Agent,
        heritage: &Heritage,
        head: &Parts,
    ) -> Result<Plan, Trouble> {
        let started = Instant::now();
        let view = found.view();
        let key = self.key(heritage, head);
        let chosen = self
            .outbound
            .choose(found, &view, &self.agent, &self.own, key);
        self.timing.route = started.elapsed();
        let offer = chosen?;
        let deadline = self.deadline(&offer.contract, heritage);
        let version = offer.contract.contract.version.to_string();
        attempt.note(|report| {
            report.agent_version.clone_from(&version);
            report.deadline_at = deadline_at(deadline);
        });
        self.agent.version = Some(version);
        Ok(Plan { offer, deadline })
    }

    /// A task id that the caller chose pins its calls; a minted one cannot, so there the
    /// application's own idempotency key does.
    fn key(&self, heritage: &Heritage, head: &Parts) -> u64 {
        let task = self.own.task_id.as_ref().map_or("", |id| id.as_str());
        let given = head.headers.get(header::IDEMPOTENCY_KEY);
        let given = given.and_then(|key| key.to_str().ok());
        route::key(given.filter(|_| heritage.minted).unwrap_or(task))
    }

    /// The attempt's deadline: the contract's timeout and the grace for a callee that answers at
    /// its very end, within the call's own deadline and the rest of the task's.
    fn deadline(&self, contract: &Compiled, heritage: &Heritage) -> Deadline {
        let timeout = contract.contract.constraints.timeout;
        let mut deadline = Deadline::after(self.began.max(Instant::now()), timeout + GRACE);
        if let Some(asked) = self.own.deadline {
            deadline = deadline.earliest(Deadline::after(self.began, asked));
        }
        match heritage.deadline {
            Some(inherited) => deadline.earliest(inherited),
            None => deadline,
        }
    }

    fn check_body(
        &mut self,
        found: &Agent,
        contract: &Compiled,
        side: Side,
        body: &Bytes,
    ) -> Result<(), Trouble> {
        let started = Instant::now();
        let (validator, phase) = match side {
            Side::Input => (&contract.input, Phase::ValidateInput),
            Side::Output => (&contract.output, Phase::ValidateOutput),
        };
        let metrics = &self.outbound.recorder.metrics;
        let checked = Check {
            validator,
            limits: &self.outbound.config.limits.body,
            side,
            mode: Mode::Strict,
            meters: &found.meters,
            metrics,
        }
        .run(body);
        metrics.phase(phase, started.elapsed());
        self.timing.validate += started.elapsed();
        checked
    }

    fn request(
        &self,
        plan: &Plan,
        heritage: &Heritage,
        head: Parts,
        input: Bytes,
        digest: Digest,
        trace: &Trace,
    ) -> Request<Body> {
        let instance = &plan.offer.instance;
        let (method, path) = instance.route().unwrap_or(("POST", "/hermes/invoke"));
        let mut request = Request::new(Body::whole(input));
        *request.method_mut() = Method::from_bytes(method.as_bytes()).unwrap_or(Method::POST);
        *request.uri_mut() = target(path, &head);
        let key = self.idempotency_key(heritage, &head);
        let version = head.version;
        let mut out = head.headers;
        headers::strip_hop_by_hop(&mut out);
        headers::strip_context(&mut out);
        headers::strip_length(&mut out);
        out.remove(EXPECT);
        let mut fields = self.own.clone();
        fields.agent = Some(self.agent.clone());
        fields.application = Some(self.outbound.config.application.clone());
        fields.trace_id = trace.correlation().cloned();
        fields.deadline = Some(told(plan.deadline.left(Instant::now())));
        fields.path = heritage.path().cloned();
        fields.force_refresh = None;
        fields.write(&mut out);
        trace.write(&mut out);
        respond::say_digest(&mut out, digest);
        if let Some(key) = key {
            out.insert(header::IDEMPOTENCY_KEY, key);
        }
        if !out.contains_key(CONTENT_TYPE) {
            out.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Ok(host) = HeaderValue::try_from(instance.authority()) {
            out.insert(HOST, host);
        }
        headers::add_via(&mut out, version, &self.outbound.config.pseudonym);
        *request.headers_mut() = out;
        request
    }

    /// The application's own key, but not the one of the call it serves; else the call's id.
    fn idempotency_key(&self, heritage: &Heritage, head: &Parts) -> Option<HeaderValue> {
        let call_id = self.own.call_id.as_ref()?;
        let served = heritage.parent.as_ref().map(|step| step.call_id.as_str());
        let key = headers::idempotency_key(&head.headers, call_id)?;
        if key.to_str().ok() == served && served.is_some() {
            return HeaderValue::from_str(call_id.as_str()).ok();
        }
        Some(key)
    }

    async fn ask(
        &mut self,
        attempt: &mut Attempt,
        plan: &Plan,
        request: Request<Body>,
    ) -> Result<Answer, Trouble> {
        let started = Instant::now();
        let upstream = self.outbound.upstreams.at(plan.offer.instance.authority());
        let mut following = Following {
            attempt,
            metrics: &self.outbound.recorder.metrics,
        };
        let max = self.outbound.config.limits.max_body_bytes;
        let answered = forward::exchange(
            &upstream,
            request,
            plan.deadline,
            max,
            STILL_OPEN,
            &mut following,
        )
        .await;
        self.timing.upstream = started.elapsed();
        answered.map_err(|failed| failed.into_trouble(upstream.authority()))
    }

    /// Reads what the callee's sidecar says of the attempt, and checks a success again.
    fn judge(
        &mut self,
        attempt: &mut Attempt,
        found: &Agent,
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
            self.check_body(found, &plan.offer.contract, Side::Output, &answer.body)
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

    async fn finish(
        mut self,
        attempt: Attempt,
        found: &Agent,
        heritage: &Heritage,
        outcome: Outcome,
        input: Digest,
    ) -> Response<Body> {
        if let Some(parent) = &heritage.parent {
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
        self.count(found, outcome.end, answer.status.as_u16());
        respond::answer(answer.status, answer.headers, answer.body, &said)
    }

    async fn fail(mut self, attempt: Attempt, found: &Agent, trouble: Trouble) -> Response<Body> {
        let end = trouble.problem.state().unwrap_or(State::FailedExecution);
        self.timing.record = attempt.settle(end, Some(trouble.failure())).await;
        let pseudonym = &self.outbound.config.pseudonym;
        let mut response = respond::trouble(&trouble, &self.names(), pseudonym);
        self.timing.write(response.headers_mut());
        let metrics = &self.outbound.recorder.metrics;
        metrics.rejected(Direction::Outbound, trouble.problem);
        self.count(found, end, trouble.problem.status());
        response
    }

    /// This call as a finished member of its parent's path.
    fn member(&self, input: Digest, output: Digest) -> Member {
        let step = self.own.step_id.clone().unwrap_or_else(Id::mint);
        let version = self.agent.version.as_deref().unwrap_or_default();
        let agent = format!("{}@{version}", self.agent.id);
        let mut member = Member::new(step, agent, Timestamp::now(), *input.as_bytes());
        member.output = Some(*output.as_bytes());
        member
    }

    fn names(&self) -> Fields {
        Fields {
            task_id: self.own.task_id.clone(),
            step_id: self.own.step_id.clone(),
            call_id: self.own.call_id.clone(),
            attempt: self.own.attempt,
            agent: Some(self.agent.clone()),
            trace_id: self.own.trace_id.clone(),
            ..Fields::default()
        }
    }

    fn count(&self, found: &Agent, end: State, status: u16) {
        let took = self.began.elapsed();
        found.meters.ended(end, status, took);
        let metrics = &self.outbound.recorder.metrics;
        metrics.overhead(Direction::Outbound, self.timing.own(took));
    }
}

/// Tells an attempt how its exchange gets on; whether it executes, the callee says later.
struct Following<'a> {
    attempt: &'a mut Attempt,
    metrics: &'a Sidecar,
}

impl Progress for Following<'_> {
    fn sending(&mut self) {}

    fn waiting(&mut self) {
        self.attempt.still_open();
    }

    fn connected(&mut self, after: Duration) {
        self.metrics.phase(Phase::Connect, after);
    }
}

/// The time the callee is told: a little less than is left, so that its answer still arrives.
fn told(left: Duration) -> Duration {
    left.saturating_sub((left / 10).min(Duration::from_millis(20)))
}

/// The contract's path, with the query that came along on the native form.
fn target(path: &str, head: &Parts) -> Uri {
    let query = head
        .uri
        .query()
        .filter(|_| head.uri.path().starts_with("/agents/"));
    let text = match query {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    text.parse().unwrap_or_default()
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
    let kind = told.r#type.strip_prefix("urn:hermes:problem:")?;
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
