//! One contract call on its way to the application and back.

use super::permits::Permit;
use super::repeat::{self, Before};
use super::{Inbound, Served, Style, names_of};
use crate::context::{self, AgentName, Fields, Ids, Member, Path, Token, Trace, header};
use crate::contract::guard;
use crate::identity::Digest;
use crate::proxy::active::Step;
use crate::proxy::attempt::{Attempt, Following, Presence, deadline_at};
use crate::proxy::body::Body;
use crate::proxy::check::{self, Check, Mode};
use crate::proxy::forward::{self, Answer};
use crate::proxy::head;
use crate::proxy::headers;
use crate::proxy::intake::Source;
use crate::proxy::later::{ACKNOWLEDGED_WITHIN, Later};
use crate::proxy::respond::{self, Said, Timing, Trouble};
use crate::reply::Ticket;
use crate::socket::Speaks;
use crate::task::{Deadline, Failure, Problem, Report, Reporter, State, Timestamp};
use crate::telemetry::metrics::{Direction, Side};
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE, EXPECT};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// More nested steps than this are a loop.
const DEEPEST: usize = 32;

/// A call that has been routed to one of our contracts.
pub struct Call {
    inbound: Arc<Inbound>,
    served: Arc<Served>,
    ids: Ids,
    fields: Fields,
    presence: Arc<Presence>,
    began: Instant,
    deadline: Deadline,
    timing: Timing,
    /// The row of this call in the record, until its end is known.
    ticket: Option<Ticket>,
    later: Option<Patient>,
}

/// A call that is answered later.
struct Patient {
    later: Later,
    /// How long it may take once the application has it.
    allowed: Duration,
}

/// What came of a call that was not refused.
struct Outcome {
    answer: Answer,
    digest: Digest,
    end: State,
    failure: Option<Failure>,
}

impl Call {
    /// Takes a call over; ids that the caller left out are minted here.
    pub fn new(
        inbound: Arc<Inbound>,
        served: Arc<Served>,
        mut fields: Fields,
        presence: Arc<Presence>,
        later: Option<Later>,
        began: Instant,
    ) -> Self {
        let contract = &served.contract.contract;
        let timeout = contract.constraints.timeout;
        let allowed = fields.deadline.map_or(timeout, |left| left.min(timeout));
        let deadline = match &later {
            None => allowed,
            // Its own time counts from the acknowledgement.
            Some(_) => ACKNOWLEDGED_WITHIN,
        };
        let deadline = Deadline::after(began, deadline);
        fields.agent = Some(AgentName {
            id: contract.id.to_string(),
            version: Some(contract.version.to_string()),
        });
        Self {
            ids: Ids::settle(&mut fields),
            inbound,
            served,
            fields,
            presence,
            began,
            deadline,
            timing: Timing::default(),
            ticket: None,
            later: later.map(|later| Patient { later, allowed }),
        }
    }

    /// Returns what every reply to it repeats.
    pub fn names(&self) -> Fields {
        names_of(&self.fields)
    }

    /// Carries the call out and says in the reply, whatever it is, how much is to be done here.
    pub async fn run(self, head: Parts, source: Source) -> Response<Body> {
        let served = self.served.clone();
        let mut response = self.reply(head, source).await;
        say_load(&served, response.headers_mut());
        response
    }

    /// Carries the call out; the reply goes out after its end state is stored.
    async fn reply(mut self, head: Parts, source: Source) -> Response<Body> {
        if let Err(trouble) = self.check_caller().and_then(|()| self.check_depth()) {
            return self.inbound.refusals.refuse(&trouble, &self.fields);
        }
        let trace = Trace::of(&head.headers, self.fields.trace_id.clone());
        let body = match source.read(&self.inbound.config.limits).await {
            Ok(body) => body,
            Err(trouble) if trouble.problem.state().is_none() => {
                return self.inbound.refusals.refuse(&trouble, &self.fields);
            }
            Err(trouble) => {
                let attempt = self.begin(&trace, None);
                return self.fail(attempt, trouble).await;
            }
        };
        let digest = Digest::of(&body);
        let mut attempt = self.begin(&trace, Some(digest));
        match self
            .carry_out(&mut attempt, head, body, digest, trace)
            .await
        {
            Ok(outcome) => self.finish(attempt, outcome).await,
            Err(again) if again.stands.is_some() => {
                attempt.withdraw();
                self.count_request(again.problem.status());
                self.inbound.refusals.refuse(&again, &self.fields)
            }
            Err(trouble) => self.fail(attempt, trouble).await,
        }
    }

    fn check_caller(&self) -> Result<(), Trouble> {
        let caller = self.fields.application.as_deref();
        let caller = caller.filter(|_| self.inbound.config.is_secured);
        let served = &self.served;
        if served.allow.admits(caller) {
            return Ok(());
        }
        let caller = caller.unwrap_or("an unknown application");
        tracing::warn!(
            caller,
            contract = served.id(),
            "a caller was refused: not in `allow`"
        );
        let detail = format!("{caller} may not call {}", served.id());
        Err(Trouble::new(Problem::Forbidden, detail).executed(false))
    }

    fn check_depth(&self) -> Result<(), Trouble> {
        let path = self.fields.path.as_ref();
        if path.is_some_and(|path| path.depth() > DEEPEST) {
            let detail = format!("more than {DEEPEST} nested steps");
            return Err(Trouble::new(Problem::Loop, detail));
        }
        Ok(())
    }

    fn begin(&self, trace: &Trace, input: Option<Digest>) -> Attempt {
        let (ids, fields) = (self.ids.clone(), &self.fields);
        let contract = &self.served.contract.contract;
        let report = Report {
            call_id: ids.call_id,
            task_id: ids.task_id,
            step_id: ids.step_id,
            parent_step: fields.path.as_ref().and_then(Path::parent).cloned(),
            attempt: ids.attempt,
            state: State::Pending,
            states: Vec::new(),
            reporter: Reporter::Callee,
            agent: contract.id.to_string(),
            agent_version: contract.version.to_string(),
            instance: self.served.instance.clone(),
            peer: fields.application.clone(),
            deadline_at: deadline_at(self.deadline),
            duration_ms: 0,
            input_digest: input.map(|digest| digest.to_string()),
            output_digest: None,
            degraded: false,
            undelivered: false,
            error: None,
            detail: None,
            sla_level: fields.sla_level.unwrap_or_default(),
            scenario: fields.scenario.clone(),
            requester: fields
                .requester
                .clone()
                .or_else(|| fields.application.clone()),
            trace_id: trace.reported_id(),
            application: self.inbound.config.application.clone(),
        };
        Attempt::begin(
            self.inbound.recorder.clone(),
            self.presence.clone(),
            Box::new(report),
            self.began,
        )
    }

    /// Does everything between the body's arrival and the verdict on the answer.
    async fn carry_out(
        &mut self,
        attempt: &mut Attempt,
        head: Parts,
        body: Bytes,
        digest: Digest,
        trace: Trace,
    ) -> Result<Outcome, Trouble> {
        check::digest(&head.headers, digest, Problem::RequestDigestMismatch)?;
        let crowded_out = match self.check_body(Side::Input, &body).await {
            Ok(()) => None,
            Err(crowded) if crowded.problem == Problem::Overloaded => Some(crowded),
            Err(invalid) => return Err(invalid),
        };
        if crowded_out.is_none() {
            self.check_wrappable(&body)?;
        }
        // Before all that refuses: "not carried out" must hold of every request of this key, and
        // an earlier one may be under way.
        let before = self
            .inbound
            .before(&self.served, &self.fields, &head, digest);
        match before.await? {
            Before::Nothing(ticket) => self.ticket = ticket,
            Before::Answered(answer, end, failure) => {
                return Ok(self.repeated(attempt, answer, end, failure));
            }
        }
        if let Some(crowded) = crowded_out {
            return Err(crowded);
        }
        self.check_readiness()?;
        let _permit = self.permit()?;
        let sent_by = self.begin_work();
        let speaks = self.inbound.config.protocol.speaks(head.version);
        let token = Token::draw();
        let key = headers::idempotency_key(&head.headers, &self.ids.call_id);
        let request = self.request(head, body, digest, (&trace, token));
        head::check_outgoing(request.headers(), &self.inbound.config.limits.head)?;
        attempt.advance(State::Dispatched);
        let step = self.step(digest, (trace, token)).under(key);
        attempt.note(|report| report.detail = Some(step.links().to_string()));
        let _serving = self.inbound.active.enter(step);
        let answer = self.ask(attempt, (request, speaks), sent_by).await?;
        head::check_answer(&answer.headers, &self.inbound.config.limits.head)?;
        let output = Digest::of(&answer.body);
        attempt.note(|report| report.output_digest = Some(output.to_string()));
        self.judge(&answer, output).await?;
        let (end, failure) = answer.verdict();
        if let Some(ticket) = self.ticket.take() {
            match is_not_now(answer.status) {
                true => ticket.undone(),
                false => ticket.answered(repeat::kept(&answer, end, failure.clone())),
            }
        }
        Ok(Outcome {
            answer,
            digest: output,
            end,
            failure,
        })
    }

    /// Returns by when the request must be on its way; from here on the deadline is that of the
    /// work.
    fn begin_work(&mut self) -> Deadline {
        let sent_by = self.deadline;
        if let Some(patient) = &self.later {
            self.deadline = Deadline::after(Instant::now(), patient.allowed);
        }
        sent_by
    }

    /// Gives the answer of a call that was carried out before, once more.
    fn repeated(
        &self,
        attempt: &mut Attempt,
        answer: Answer,
        end: State,
        failure: Option<Failure>,
    ) -> Outcome {
        let digest = Digest::of(&answer.body);
        attempt.advance(State::Dispatched);
        attempt.note(|report| report.output_digest = Some(digest.to_string()));
        Outcome {
            answer,
            digest,
            end,
            failure,
        }
    }

    fn permit(&self) -> Result<Permit, Trouble> {
        let (permits, level) = (
            &self.served.permits,
            self.fields.sla_level.unwrap_or_default(),
        );
        permits.take(level).ok_or_else(|| {
            let (most, limit) = (permits.most(level), permits.limit());
            let detail = match most < limit {
                true => format!(
                    "all {most} of {limit} concurrent calls of this contract that {} calls may \
                     take are taken",
                    level.as_str()
                ),
                false => format!("all {limit} concurrent calls of this contract are taken"),
            };
            let overloaded = Trouble::new(Problem::Overloaded, detail).executed(false);
            overloaded.retry_after(Duration::from_secs(1))
        })
    }

    async fn check_body(&mut self, side: Side, body: &Bytes) -> Result<(), Trouble> {
        let served = &self.served;
        let check = Check {
            contract: &served.contract,
            limits: &self.inbound.config.limits.body,
            side,
            mode: match side {
                Side::Input => served.input,
                Side::Output => served.output,
            },
            deadline: self.deadline,
            meters: &served.meters,
            metrics: &self.inbound.recorder.metrics,
        };
        check.run(body, &mut self.timing).await
    }

    /// Holds that what goes into a wrapper is one JSON value, also where the contract is not held
    /// strictly: anything else could end the wrapper and write a context of its own.
    fn check_wrappable(&self, input: &Bytes) -> Result<(), Trouble> {
        let is_checked = self.served.input == Mode::Strict;
        if is_checked || matches!(self.served.style, Style::Native { .. }) {
            return Ok(());
        }
        let parsed = guard::parse(input, &self.inbound.config.limits.body);
        parsed.map_err(|refusal| check::refused(&refusal))?;
        Ok(())
    }

    fn check_readiness(&self) -> Result<(), Trouble> {
        if self.inbound.is_draining() {
            let detail = "the sidecar is stopping; another instance will take the call";
            return Err(Trouble::new(Problem::Draining, detail).executed(false));
        }
        let standing = self.served.standing.borrow().clone();
        if !standing.takes_calls() {
            let detail = format!("the contract is not admitted yet: {}", standing.reason);
            let not_ready = Trouble::new(Problem::NotReady, detail).executed(false);
            return Err(not_ready.retry_after(Duration::from_secs(1)));
        }
        let timeout = self.served.contract.contract.constraints.timeout;
        let allowed = match &self.later {
            Some(patient) => {
                Deadline::after(Instant::now(), patient.allowed).earliest(self.deadline)
            }
            None => self.deadline,
        };
        if !allowed.leaves_time(Instant::now(), timeout) {
            let detail = "the call's deadline left no time to ask the application";
            return Err(Trouble::new(Problem::BudgetExhausted, detail).executed(false));
        }
        Ok(())
    }

    /// Describes this call as a step, for the calls the application makes while it serves it.
    fn step(&self, input: Digest, known_by: (Trace, Token)) -> Step {
        let now = Timestamp::now();
        let (step_id, name) = (self.ids.step_id.clone(), self.served.name.clone());
        let member = Member::new(step_id, name, now, *input.as_bytes());
        Step::new(
            self.ids.clone(),
            self.served.id().to_owned(),
            now,
            &self.fields,
            self.deadline,
            member,
            known_by,
        )
    }

    fn request(
        &self,
        head: Parts,
        body: Bytes,
        digest: Digest,
        (trace, token): (&Trace, Token),
    ) -> Request<Body> {
        let config = &self.inbound.config;
        let key = headers::idempotency_key(&head.headers, &self.ids.call_id);
        let version = head.version;
        let mut fields = self.fields.clone();
        fields.deadline = Some(self.deadline.left(Instant::now()));
        if !config.forward_path {
            fields.path = None;
        }
        let (body, digest) = match &self.served.style {
            Style::Native { .. } => (body, digest),
            Style::Envelope { .. } => {
                // An application that is somebody else's is told nothing of the task.
                let told = match config.outside {
                    Some(_) => None,
                    None => Some((&fields, trace.reported_id())),
                };
                let wrapper = context::wrap(&body, told);
                let digest = Digest::of(&wrapper);
                (wrapper, digest)
            }
        };
        let mut request = Request::new(Body::whole(body));
        *request.method_mut() = self.served.method.clone();
        *request.uri_mut() = self.target(&head.uri);
        let mut out = head.headers;
        headers::settle_host(&mut out, &head.uri);
        headers::strip_hop_by_hop(&mut out);
        headers::strip_context(&mut out);
        headers::strip_length(&mut out);
        out.remove(EXPECT);
        fields.write(&mut out);
        // An application that is somebody else's makes no calls through us.
        let token = config.outside.is_none().then_some(token);
        trace.write_for(token, &mut out);
        out.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if matches!(self.served.style, Style::Envelope { .. }) {
            // The wrapper is ours; a `+json` type was the input's.
            out.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        respond::say_digest(&mut out, digest);
        if let Some(key) = key {
            out.insert(header::IDEMPOTENCY_KEY, key);
        }
        headers::add_via(&mut out, version, &config.pseudonym);
        self.inbound.address(&mut out);
        *request.headers_mut() = out;
        request
    }

    /// The application's path, with the query that came along on the contract's own.
    fn target(&self, received: &Uri) -> Uri {
        let path = self.served.style.path();
        let target = match self.served.query(received) {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        };
        target.parse().unwrap_or_default()
    }

    async fn ask(
        &mut self,
        attempt: &mut Attempt,
        request: (Request<Body>, Speaks),
        sent_by: Deadline,
    ) -> Result<Answer, Trouble> {
        let started = Instant::now();
        let upstream = &self.inbound.upstream;
        let later = self.later.as_ref();
        let following = Following {
            attempt,
            executes: true,
            later: later.map(|patient| (&patient.later, patient.allowed)),
        };
        let max = self.inbound.config.limits.max_body_bytes;
        let answered = forward::exchange(upstream, request, sent_by, max, following).await;
        if let Some(patient) = &self.later {
            self.deadline = Deadline::after(patient.later.since(), patient.allowed);
        }
        self.timing.upstream = started.elapsed();
        answered.map_err(|failed| failed.into_trouble(upstream.authority()))
    }

    /// Holds a success against the contract; other answers are the application's own affair.
    async fn judge(&mut self, answer: &Answer, output: Digest) -> Result<(), Trouble> {
        if !answer.status.is_success() {
            return Ok(());
        }
        let checked = self.check_output(answer, output).await;
        checked.map_err(|trouble| trouble.executed(true))
    }

    async fn check_output(&mut self, answer: &Answer, output: Digest) -> Result<(), Trouble> {
        check::digest(&answer.headers, output, Problem::ReplyDigestMismatch)?;
        if headers::is_coded(&answer.headers) && self.served.output == Mode::Strict {
            let detail = "the reply is coded although identity was asked for; it cannot be checked";
            return Err(Trouble::new(Problem::OutputInvalid, detail));
        }
        self.check_body(Side::Output, &answer.body).await
    }

    async fn finish(mut self, attempt: Attempt, outcome: Outcome) -> Response<Body> {
        let Outcome {
            answer,
            digest,
            end,
            failure,
        } = outcome;
        self.timing.record = attempt.end(end, failure).await;
        let said = Said {
            names: &names_of(&self.fields),
            end,
            executed: true,
            digest,
            timing: &self.timing,
            proxy: &self.inbound.config.pseudonym,
        };
        let status = answer.status.as_u16();
        let mut response = respond::answer(answer, &said);
        respond::say_instance(response.headers_mut(), &self.served.instance);
        self.count(end, status);
        response
    }

    async fn fail(mut self, attempt: Attempt, trouble: Trouble) -> Response<Body> {
        let end = trouble.problem.state().unwrap_or(State::FailedExecution);
        self.timing.record = attempt.end(end, Some(trouble.failure())).await;
        let names = names_of(&self.fields);
        let mut response = respond::trouble(&trouble, &names, &self.inbound.config.pseudonym);
        self.settle_ticket(&trouble, end, &response);
        self.timing.write(response.headers_mut());
        respond::say_instance(response.headers_mut(), &self.served.instance);
        let metrics = &self.inbound.recorder.metrics;
        metrics.rejected(Direction::Inbound, trouble.problem);
        self.count(end, trouble.problem.status());
        response
    }

    /// Says in the record what a failure means for the same call, should it come again.
    fn settle_ticket(&mut self, trouble: &Trouble, end: State, response: &Response<Body>) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        match (trouble.executed, trouble.problem) {
            (Some(true), Problem::Timeout | Problem::UpstreamReset) => ticket.doubted(end),
            (Some(true), _) => {
                ticket.answered(repeat::kept_problem(response, end, trouble.failure()));
            }
            (Some(false) | None, _) => ticket.undone(),
        }
    }

    /// Counts a request that was answered from the record and is no attempt.
    fn count_request(&self, status: u16) {
        let later = self.later.as_ref();
        if later.is_none_or(|patient| patient.later.is_to_be_counted()) {
            let took = self.began.elapsed();
            self.served.meters.request_ended(Some(status), took);
        }
    }

    fn count(&self, end: State, status: u16) {
        let took = self.began.elapsed();
        let meters = &self.served.meters;
        match &self.later {
            // Its request was answered with 202 and counted then.
            Some(patient) if !patient.later.is_to_be_counted() => meters.finished(end, false),
            _ => meters.ended(end, status, took),
        }
        let metrics = &self.inbound.recorder.metrics;
        metrics.overhead(Direction::Inbound, self.timing.own(took));
    }
}

/// Says whether the application asks to be asked later, which is no answer to keep.
fn is_not_now(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_EARLY
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
    )
}

/// Says how many calls of the contract are under way, without the one that is answered.
fn say_load(served: &Served, headers: &mut HeaderMap) {
    let permits = &served.permits;
    let load = format!("inflight={}, limit={}", permits.taken(), permits.limit());
    if let Ok(load) = HeaderValue::try_from(load) {
        headers.insert(header::LOAD, load);
    }
}
