//! One attempt: an instance is chosen, the request goes out, its end is queued for the record.

use super::again::Tries;
use super::judge::Outcome;
use super::{Call, Order};
use crate::backoff::Backoff;
use crate::consul::Instance;
use crate::context::AgentName;
use crate::contract::watch::Offer;
use crate::contract::{Compiled, Contract};
use crate::identity::Digest;
use crate::proxy::attempt::{Attempt, Following, deadline_at};
use crate::proxy::body::Body;
use crate::proxy::check::{Check, Mode};
use crate::proxy::forward::{self, Answer};
use crate::proxy::head;
use crate::proxy::outbound::choice::{Asking, Chosen};
use crate::proxy::outbound::place::Place;
use crate::proxy::outbound::whom::Callee;
use crate::proxy::respond::Trouble;
use crate::proxy::stated;
use crate::proxy::upstream::Upstream;
use crate::socket::Speaks;
use crate::task::{Course, Deadline, Problem, Report, Reporter, State, Timestamp};
use crate::telemetry::metrics::{self, AttemptKind, Side};
use bytes::Bytes;
use http::Request;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The shortest pause before an instance is asked again for what it is doing.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);

/// What was decided before an attempt goes out.
pub struct Plan {
    pub offer: Offer,
    /// The agent that runs, with the version chosen.
    pub agent: AgentName,
    /// When the attempt ends.
    pub deadline: Deadline,
    /// When the call ends, which the callee is told.
    pub call_ends: Deadline,
    /// The callee has said that its application has the request.
    pub is_acknowledged: bool,
    /// The contract of the agent that a fallback stands in for.
    pub relied_on: Option<Arc<Compiled>>,
    pub meters: Arc<metrics::Contract>,
    /// The instance may be carrying the call out, so its answer is waited for.
    pub awaits: bool,
    place: Place,
}

impl Plan {
    pub fn contract(&self) -> &Contract {
        &self.offer.contract.contract
    }
}

/// An attempt that has ended; its report is queued.
pub struct Tried {
    pub outcome: Outcome,
    /// Waits until the report is stored, and says how long that took.
    pub record: Pin<Box<dyn Future<Output = Duration> + Send>>,
}

impl Call {
    /// Makes the first attempt; it is one also where nobody can be asked.
    pub(super) async fn first(&mut self, tries: &mut Tries, order: &Order) -> Tried {
        let mut attempt = self.begin(Some(order.digest));
        match self.ready(&mut attempt, tries, order).await {
            Ok(plan) => self.send(attempt, plan, order, AttemptKind::First).await,
            Err(trouble) => self.unsent(attempt, trouble),
        }
    }

    /// Does what comes before the first request.
    async fn ready(
        &mut self,
        attempt: &mut Attempt,
        tries: &mut Tries,
        order: &Order,
    ) -> Result<Plan, Trouble> {
        Self::check_digest(order)?;
        let chosen = self.choose_first()?;
        let contract = &chosen.offer.contract.contract;
        tries.course = Course::new(contract.idempotent, contract.max_retries);
        tries.original = Some(chosen.offer.contract.clone());
        self.clock.grant(Instant::now(), contract);
        self.foresee(contract);
        let plan = self.plan(&self.callee, chosen);
        attempt.note(|report| {
            report.agent_version = plan.contract().version.to_string();
            report.deadline_at = deadline_at(plan.deadline);
        });
        self.check_input(&plan, &order.input).await?;
        tries.checked = Some(plan.contract().digest());
        if !plan
            .deadline
            .leaves_time(Instant::now(), plan.contract().constraints.timeout)
        {
            let detail = "the deadline left no time for an attempt";
            return Err(Trouble::new(Problem::BudgetExhausted, detail).executed(false));
        }
        let request = self.request(&plan, order);
        head::check_outgoing(request.headers(), &self.outbound.config.limits.head)?;
        attempt.note(|report| at(report, &plan.offer.instance));
        attempt.advance(State::Dispatched);
        tries.asked.push(plan.offer.instance.id.clone());
        Ok(plan)
    }

    fn choose_first(&mut self) -> Result<Chosen, Trouble> {
        let asking = Asking::first(&self.fields, self.key);
        let started = Instant::now();
        let view = self.callee.found.view();
        let chosen = self.outbound.choose(&view, &self.callee, &asking);
        self.timing.route = started.elapsed();
        chosen
    }

    /// Bounds the time of an attempt at the chosen instance.
    pub(super) fn plan(&self, callee: &Callee, chosen: Chosen) -> Plan {
        let Chosen { offer, place } = chosen;
        let contract = &offer.contract.contract;
        Plan {
            agent: AgentName {
                id: callee.agent.id.clone(),
                version: Some(contract.version.to_string()),
            },
            deadline: self.clock.attempt_ends(Instant::now(), contract),
            call_ends: self.clock.work_ends(Instant::now()),
            is_acknowledged: false,
            relied_on: None,
            meters: callee.found.meters().clone(),
            awaits: false,
            offer,
            place,
        }
    }

    /// Begins the first attempt.
    pub(super) fn begin(&self, input: Option<Digest>) -> Attempt {
        let report = self.report(&self.callee.agent, input);
        Attempt::begin(
            self.outbound.recorder.clone(),
            self.presence.clone(),
            Box::new(report),
            self.clock.began(),
        )
    }

    /// Begins an attempt after one that `ended`, in this state.
    pub(super) fn follow(
        &mut self,
        plan: &Plan,
        order: &Order,
        ended: State,
        state: State,
    ) -> Attempt {
        self.ids.attempt += 1;
        self.fields.attempt = Some(self.ids.attempt);
        let mut report = self.report(&plan.agent, Some(order.digest));
        report.state = state;
        at(&mut report, &plan.offer.instance);
        report.deadline_at = deadline_at(plan.deadline);
        report.degraded = state == State::FallbackInvoked;
        let recorder = self.outbound.recorder.clone();
        Attempt::follow(recorder, self.presence.clone(), Box::new(report), ended)
    }

    fn report(&self, agent: &AgentName, input: Option<Digest>) -> Report {
        let (ids, own) = (self.ids.clone(), &self.fields);
        Report {
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
            agent: agent.id.clone(),
            agent_version: agent.version.clone().unwrap_or_default(),
            instance: String::new(),
            peer: None,
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
        }
    }

    /// Ends an attempt that was sent to nobody.
    pub(super) fn unsent(&mut self, attempt: Attempt, trouble: Trouble) -> Tried {
        let agent = self.callee.agent.clone();
        let outcome = Outcome::unsent(trouble, agent, self.ids.attempt);
        self.end(attempt, outcome)
    }

    /// Sends a dispatched attempt and sees it to its end.
    pub(super) async fn send(
        &mut self,
        mut attempt: Attempt,
        mut plan: Plan,
        order: &Order,
        kind: AttemptKind,
    ) -> Tried {
        plan.meters.attempted(kind);
        let started = Instant::now();
        let answered = self.ask(&mut attempt, &mut plan, order).await;
        let timeout = plan.contract().constraints.timeout;
        plan.meters.timeout_used(started.elapsed(), timeout);
        let outcome = self.judge(&mut attempt, &plan, answered).await;
        let whole = plan.deadline >= Deadline::after(started, timeout);
        let told = outcome.of_instance(whole);
        let tried = self.end(attempt, outcome);
        plan.place.ended(told);
        tried
    }

    fn end(&mut self, attempt: Attempt, outcome: Outcome) -> Tried {
        self.reached |= outcome.may_have_run();
        Tried {
            record: Box::pin(attempt.end(outcome.end, outcome.failure.clone())),
            outcome,
        }
    }

    pub(super) async fn check_input(&mut self, plan: &Plan, input: &Bytes) -> Result<(), Trouble> {
        let side = Side::Input;
        self.check_body(plan, &plan.offer.contract, side, input)
            .await
    }

    pub(super) async fn check_body(
        &mut self,
        plan: &Plan,
        contract: &Compiled,
        side: Side,
        body: &Bytes,
    ) -> Result<(), Trouble> {
        let check = Check {
            contract,
            limits: &self.outbound.config.limits.body,
            side,
            mode: Mode::Strict,
            deadline: plan.deadline,
            meters: &plan.meters,
            metrics: &self.outbound.recorder.metrics,
        };
        check.run(body, &mut self.timing).await
    }

    /// Asks until there is an answer: what an earlier attempt may have begun is waited for.
    async fn ask(
        &mut self,
        attempt: &mut Attempt,
        plan: &mut Plan,
        order: &Order,
    ) -> Result<Answer, Trouble> {
        let retry = self.outbound.config.retry;
        let mut backoff = Backoff::new(retry.backoff, retry.max_backoff);
        loop {
            let answer = self.ask_once(attempt, plan, order).await?;
            if !plan.awaits || !stated::is_in_flight(&answer) {
                return Ok(answer);
            }
            let wait = backoff.next_wait().max(SHORTEST_WAIT);
            let now = Instant::now();
            if !plan
                .deadline
                .leaves_time(now + wait, plan.contract().constraints.timeout)
            {
                let detail = "the instance was still carrying the call out when the attempt's \
                              time was up";
                return Err(Trouble::new(Problem::Timeout, detail).executed(true));
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Sends the request and waits for the answer: the one place that does.
    async fn ask_once(
        &mut self,
        attempt: &mut Attempt,
        plan: &mut Plan,
        order: &Order,
    ) -> Result<Answer, Trouble> {
        let started = Instant::now();
        let request = self.request(plan, order);
        let upstream = self.outbound.peer(&plan.offer.instance)?;
        let answered = match self.later.clone() {
            None => {
                self.exchange(attempt, &upstream, request, plan.deadline)
                    .await
            }
            Some(later) => {
                let asked = self.ask_later(&later, attempt, plan, &upstream, request);
                asked.await
            }
        };
        self.timing.upstream += started.elapsed();
        let answer = answered?;
        plan.place.hears(&answer.headers);
        Ok(answer)
    }

    /// Sends a request within this deadline.
    pub(in crate::proxy::outbound) async fn exchange(
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
}

/// Says in a report where the attempt goes, and whom its caller means by that.
fn at(report: &mut Report, instance: &Instance) {
    report.instance = instance.id.to_string();
    report.peer = instance.app().map(str::to_owned);
}
