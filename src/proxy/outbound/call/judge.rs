//! What an attempt came to: what its answer says, and what that means for the next one.

use super::{Call, Plan};
use crate::context::{AgentName, boolean, header};
use crate::identity::Digest;
use crate::proxy::attempt::Attempt;
use crate::proxy::check;
use crate::proxy::forward::Answer;
use crate::proxy::head;
use crate::proxy::headers;
use crate::proxy::outbound::place::Told;
use crate::proxy::respond::Trouble;
use crate::task::{Ended, Execution, Failure, Problem, State};
use crate::telemetry::metrics::Side;
use http::header::RETRY_AFTER;
use std::time::Duration;

/// What an attempt gives to reply with.
pub enum Given {
    Answer(Answer, Digest),
    Trouble(Trouble),
}

/// How an attempt ended.
pub struct Outcome {
    pub given: Given,
    pub end: State,
    pub failure: Option<Failure>,
    /// What the reply says of the application.
    pub executed: bool,
    pub execution: Execution,
    /// Another copy would refuse the same.
    pub is_refusal: bool,
    /// A request went out, or tried to.
    pub was_sent: bool,
    /// How long the callee asks to be left alone.
    pub wait: Option<Duration>,
    /// The agent that ran, and the number of the attempt.
    pub agent: AgentName,
    pub attempt: u32,
    pub degraded: bool,
}

impl Outcome {
    /// Reads an attempt that was sent to nobody.
    pub fn unsent(trouble: Trouble, agent: AgentName, attempt: u32) -> Self {
        Self {
            end: trouble.problem.state().unwrap_or(State::FailedExecution),
            failure: Some(trouble.failure()),
            executed: false,
            execution: Execution::Not,
            is_refusal: trouble.problem.state().is_none(),
            was_sent: false,
            wait: None,
            agent,
            attempt,
            degraded: false,
            given: Given::Trouble(trouble),
        }
    }

    fn of(trouble: Trouble, plan: &Plan, attempt: u32) -> Self {
        let execution = match (trouble.executed, trouble.problem) {
            (Some(false), _) => Execution::Not,
            (_, Problem::Timeout | Problem::UpstreamReset) if !plan.is_acknowledged => {
                Execution::Unknown
            }
            _ => Execution::Done,
        };
        Self {
            executed: trouble.executed.unwrap_or(true),
            execution,
            was_sent: true,
            ..Self::unsent(trouble, plan.agent.clone(), attempt)
        }
    }

    /// Returns what decides on the next attempt.
    pub fn ended(&self) -> Ended {
        Ended {
            state: self.end,
            is_refusal: self.is_refusal,
            execution: self.execution,
        }
    }

    /// Says whether the application may have been reached.
    pub fn may_have_run(&self) -> bool {
        self.execution != Execution::Not
    }

    /// Returns what the attempt says of its instance, given whether it had its whole time.
    pub fn of_instance(&self, whole: bool) -> Told {
        match &self.given {
            Given::Answer(answer, _) => {
                Told::of_answer(answer.status, self.failure.as_ref(), whole)
            }
            Given::Trouble(trouble) => Told::of_trouble(trouble, whole),
        }
    }
}

impl Call {
    /// Reads what came of an attempt.
    pub(super) async fn judge(
        &mut self,
        attempt: &mut Attempt,
        plan: &Plan,
        answered: Result<Answer, Trouble>,
    ) -> Outcome {
        let number = self.ids.attempt;
        let read = match answered {
            Ok(answer) => self.read(attempt, plan, answer).await,
            Err(trouble) => Err(trouble),
        };
        read.unwrap_or_else(|trouble| Outcome::of(trouble, plan, number))
    }

    /// Reads what the callee's sidecar says of the attempt, and checks a success again.
    async fn read(
        &mut self,
        attempt: &mut Attempt,
        plan: &Plan,
        answer: Answer,
    ) -> Result<Outcome, Trouble> {
        let executed = stated_executed(&answer).unwrap_or(true);
        if executed {
            attempt.advance(State::Executing);
        }
        head::check_answer(&answer.headers, &self.outbound.config.limits.head)?;
        let digest = Digest::of(&answer.body);
        check::digest(&answer.headers, digest, Problem::ReplyDigestMismatch)
            .map_err(|trouble| trouble.executed(executed))?;
        if answer.status.is_success() {
            attempt.note(|report| report.output_digest = Some(digest.to_string()));
            let contract = plan.offer.contract.clone();
            self.check_body(&contract, plan.deadline, Side::Output, &answer.body)
                .await
                .map_err(|trouble| trouble.executed(executed))?;
        }
        let told = told_problem(&answer);
        let (end, failure) = match &told {
            Some((problem, failure)) => {
                let end = problem.state().unwrap_or(State::FailedExecution);
                (end, Some(failure.clone()))
            }
            None => {
                attempt.note(|report| report.output_digest = Some(digest.to_string()));
                answer.verdict()
            }
        };
        let is_refusal = match &told {
            Some((problem, _)) => problem.state().is_none() && *problem != Problem::Misdirected,
            None => failure
                .as_ref()
                .is_some_and(|one| one.kind == "application_4xx"),
        };
        Ok(Outcome {
            end,
            failure,
            executed,
            execution: match executed {
                true => Execution::Done,
                false => Execution::Not,
            },
            is_refusal,
            was_sent: true,
            wait: wait(&answer),
            agent: plan.agent.clone(),
            attempt: self.ids.attempt,
            degraded: false,
            given: Given::Answer(answer, digest),
        })
    }
}

fn stated_executed(answer: &Answer) -> Option<bool> {
    boolean(answer.headers.get(header::EXECUTED)?.as_bytes())
}

/// Reads how long a callee that says "not now" asks to be left alone.
fn wait(answer: &Answer) -> Option<Duration> {
    if !matches!(answer.status.as_u16(), 429 | 503) {
        return None;
    }
    let value = answer.headers.get(RETRY_AFTER)?.to_str().ok()?;
    Some(Duration::from_secs(value.trim().parse().ok()?))
}

/// Reads a problem that the callee's sidecar made itself.
fn told_problem(answer: &Answer) -> Option<(Problem, Failure)> {
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
    let failure = Failure {
        kind: kind.to_owned(),
        title: told.title.chars().take(200).collect(),
        detail: told.detail.chars().take(500).collect(),
    };
    Some((problem, failure))
}
