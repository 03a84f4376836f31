//! What an attempt came to: what its answer says, and what that means for the next one.

use super::{Call, Plan};
use crate::context::AgentName;
use crate::identity::Digest;
use crate::proxy::attempt::Attempt;
use crate::proxy::check;
use crate::proxy::forward::Answer;
use crate::proxy::head;
use crate::proxy::outbound::place::Told;
use crate::proxy::respond::Trouble;
use crate::proxy::stated::{self, Stated};
use crate::task::{Ended, Execution, Failure, Problem, State};
use crate::telemetry::metrics::Side;
use http::header::RETRY_AFTER;
use std::time::{Duration, SystemTime};

/// The kind of an application's own refusal.
const REFUSED: &str = "application_4xx";

/// What an attempt gives to reply with.
pub enum Given {
    Answer(Answer, Digest),
    Trouble(Trouble),
}

/// How an attempt ended.
pub struct Outcome {
    pub given: Given,
    pub end: State,
    /// What the reply says of the state: the callee's record may know more of the call.
    pub stated: State,
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
        let end = trouble.problem.state().unwrap_or(State::FailedExecution);
        Self {
            end,
            stated: end,
            failure: Some(trouble.failure()),
            executed: false,
            execution: Execution::Not,
            is_refusal: refuses(trouble.problem),
            was_sent: false,
            wait: None,
            agent,
            attempt,
            degraded: false,
            given: Given::Trouble(trouble),
        }
    }

    /// Reads an attempt that got no answer, or none that can be used.
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
            degraded: plan.relied_on.is_some(),
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
        let executed = stated::executed(&answer).unwrap_or(true);
        // One that was acknowledged is there already.
        if executed && !plan.is_acknowledged {
            attempt.advance(State::Executing);
        }
        head::check_answer(&answer.headers, &self.outbound.config.limits.head)?;
        let digest = Digest::of(&answer.body);
        check::digest(&answer.headers, digest, Problem::ReplyDigestMismatch)
            .map_err(|trouble| trouble.executed(executed))?;
        if answer.status.is_success() {
            attempt.note(|report| report.output_digest = Some(digest.to_string()));
            for contract in [Some(&plan.offer.contract), plan.relied_on.as_ref()] {
                let Some(contract) = contract else { continue };
                self.check_body(plan, contract, Side::Output, &answer.body)
                    .await
                    .map_err(|trouble| trouble.executed(executed))?;
            }
        }
        let read = match told_problem(&answer) {
            Some(told) => told,
            None => {
                attempt.note(|report| report.output_digest = Some(digest.to_string()));
                Read::of_application(&answer)
            }
        };
        Ok(Outcome {
            end: read.end,
            stated: read.stated,
            failure: read.failure,
            is_refusal: read.is_refusal,
            executed,
            execution: match executed {
                true => Execution::Done,
                false => Execution::Not,
            },
            was_sent: true,
            wait: wait(&answer, SystemTime::now()),
            agent: plan.agent.clone(),
            attempt: self.ids.attempt,
            degraded: plan.relied_on.is_some(),
            given: Given::Answer(answer, digest),
        })
    }
}

/// What a whole answer means.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    end: State,
    stated: State,
    failure: Option<Failure>,
    is_refusal: bool,
}

impl Read {
    /// Reads an answer that is the application's own.
    fn of_application(answer: &Answer) -> Self {
        let (end, failure) = answer.verdict();
        let refused = |failure: &Failure| failure.kind == REFUSED;
        Self {
            is_refusal: failure.as_ref().is_some_and(refused),
            stated: end,
            end,
            failure,
        }
    }
}

/// Reads how long a callee that says "not now" asks to be left alone; a bad value says nothing.
fn wait(answer: &Answer, now: SystemTime) -> Option<Duration> {
    if !matches!(answer.status.as_u16(), 429 | 503) {
        return None;
    }
    let mut values = answer.headers.get_all(RETRY_AFTER).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let text = value.to_str().ok()?.trim();
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().map(Duration::from_secs);
    }
    let date = httpdate::parse_http_date(text).ok()?;
    date.duration_since(now).ok()
}

/// Reads a problem that the callee's sidecar made itself.
fn told_problem(answer: &Answer) -> Option<Read> {
    let Stated {
        problem,
        title,
        detail,
    } = stated::problem(answer)?;
    let stated = stated::state(answer);
    let is_of_record = matches!(
        problem,
        Problem::InFlight | Problem::InDoubt | Problem::IdempotencyMismatch
    );
    // An application may relay a problem it was told itself. Its own sidecar then states another
    // end than the problem leaves, and says that the application was reached.
    let is_told = match is_of_record {
        true => stated::is_of_record(answer, problem),
        false => stated == problem.state(),
    };
    let end = match problem.state() {
        Some(end) => end,
        // The record says how it ended, as far as it knows.
        None if stated == Some(State::Timeout) => State::Timeout,
        None => State::FailedExecution,
    };
    let failure = Failure {
        kind: problem.as_str().to_owned(),
        title: title.chars().take(200).collect(),
        detail: detail.chars().take(500).collect(),
    };
    is_told.then_some(Read {
        end,
        stated: stated.unwrap_or(end),
        failure: Some(failure),
        is_refusal: refuses(problem),
    })
}

/// Says whether another instance would give the same problem.
fn refuses(problem: Problem) -> bool {
    let may_differ = matches!(
        problem,
        Problem::Misdirected | Problem::RequestTimeout | Problem::InDoubt
    );
    problem.state().is_none() && !may_differ
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};
    use serde_json::json;

    fn answer(status: u16, headers: &[(&'static str, &str)], body: String) -> Answer {
        let pair = |(name, value): &(&'static str, &str)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_str(value).unwrap())
        };
        Answer {
            version: Version::HTTP_11,
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers.iter().map(pair).collect::<HeaderMap>(),
            body: body.into(),
        }
    }

    fn told(problem: Problem, headers: &[(&'static str, &str)]) -> Option<Read> {
        let kind = format!("{}{}", Problem::TYPE, problem.as_str());
        let body = json!({"type": kind, "title": "t", "detail": "d"}).to_string();
        let mut all = vec![("content-type", "application/problem+json")];
        all.extend_from_slice(headers);
        told_problem(&answer(problem.status(), &all, body))
    }

    #[test]
    fn what_a_sidecar_tells_of_its_record() {
        for (problem, state, end, is_refusal) in [
            (Problem::InFlight, "executing", State::FailedExecution, true),
            (Problem::InDoubt, "timeout", State::Timeout, false),
            (Problem::InDoubt, "executing", State::FailedExecution, false),
            (
                Problem::IdempotencyMismatch,
                "completed",
                State::FailedExecution,
                true,
            ),
        ] {
            let read = told(problem, &[("hermes-state", state)]).unwrap();
            assert_eq!(
                (read.end, read.is_refusal),
                (end, is_refusal),
                "{problem:?}"
            );
            assert_eq!(read.failure.unwrap().kind, problem.as_str());
            // An application that relays it was reached.
            let relayed = [("hermes-state", state), ("hermes-executed", "?1")];
            assert_eq!(told(problem, &relayed), None, "{problem:?}");
        }
    }

    #[test]
    fn only_some_problems_end_a_call() {
        for (problem, ends_it) in [
            (Problem::Overloaded, false),
            (Problem::Draining, false),
            (Problem::UpstreamReset, false),
            (Problem::Timeout, false),
            (Problem::Misdirected, false),
            (Problem::Forbidden, true),
            (Problem::Loop, true),
            (Problem::HeadersTooLarge, true),
        ] {
            let state = problem
                .state()
                .map(|state| ("hermes-state", state.as_str()));
            let read = told(problem, state.as_slice()).unwrap();
            assert_eq!(read.is_refusal, ends_it, "{problem:?}");
        }
    }

    #[test]
    fn an_application_s_refusal_is_one_and_not_now_is_none() {
        for (status, is_refusal) in [
            (400, true),
            (401, true),
            (404, true),
            (409, true),
            (413, true),
            (422, true),
            (408, false),
            (425, false),
            (429, false),
            (500, false),
            (501, false),
            (503, false),
        ] {
            let read = Read::of_application(&answer(status, &[], String::new()));
            assert_eq!(read.is_refusal, is_refusal, "{status}");
            assert_eq!(read.end, State::FailedExecution);
        }
    }

    #[test]
    fn how_long_a_callee_asks_to_be_left_alone() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let later = httpdate::fmt_http_date(now + Duration::from_secs(30));
        let past = httpdate::fmt_http_date(now - Duration::from_secs(30));
        for (status, value, seconds) in [
            (503, "120", Some(120)),
            (429, " 0", Some(0)),
            (429, "31536000", Some(31_536_000)),
            (503, "99999999999999999999999", None),
            (503, "-5", None),
            (503, "1.5", None),
            (503, "soon", None),
            (503, "", None),
            (503, &*later, Some(30)),
            (503, &*past, None),
            (500, "120", None),
        ] {
            let answer = answer(status, &[("retry-after", value)], String::new());
            let seconds = seconds.map(Duration::from_secs);
            assert_eq!(wait(&answer, now), seconds, "{status} {value:?}");
        }
    }
}
