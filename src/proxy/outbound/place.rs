//! One attempt's place at an instance, and what the attempt says of the instance.

use super::fleet::Fleet;
use super::in_flight::InFlight;
use crate::proxy::respond::Trouble;
use crate::route::Call;
use crate::task::{Failure, Problem};
use http::{HeaderMap, StatusCode};
use std::sync::Arc;
use tokio::time::Instant;

/// What an attempt says of its instance; what it says of the call is another matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// The application there answered in time.
    Served,
    /// It speaks against the instance.
    Failed,
    /// It says nothing about the instance.
    Nothing,
}

impl Told {
    /// Reads an attempt that got no answer, or whose answer could not be used. It had its `whole`
    /// time unless a deadline had cut the contract's timeout.
    pub fn of_trouble(trouble: &Trouble, whole: bool) -> Self {
        Self::of_problem(trouble.problem, whole)
    }

    /// Reads a request on a path that no contract describes: whether somebody is there is all that
    /// can be told. Who answers, and how well, is not the application that contract calls meet.
    pub fn of_connection(trouble: &Trouble) -> Self {
        match (trouble.problem, trouble.executed) {
            (Problem::UpstreamUnreachable, _) | (Problem::Timeout, Some(false)) => Told::Failed,
            _ => Told::Nothing,
        }
    }

    /// Reads an attempt that was answered; `failure` is what was made of the answer.
    pub fn of_answer(status: StatusCode, failure: Option<&Failure>, whole: bool) -> Self {
        let told = failure.and_then(|told| Problem::from_wire(&told.kind, status.as_u16()));
        match (told, status.as_u16()) {
            (Some(problem), _) => Self::of_problem(problem, whole),
            (None, 500..) => Told::Failed,
            // "Not now" is neither a service nor a fault, and nobody had asked for a redirection.
            (None, 408 | 425 | 429 | 300..400) => Told::Nothing,
            // A refusal is the application's own judgement: it is there and answers.
            (None, _) => Told::Served,
        }
    }

    /// A table without a rest, so that a new kind has to be thought about.
    fn of_problem(problem: Problem, whole: bool) -> Self {
        match problem {
            // Nobody is there, or it goes away in the middle.
            Problem::UpstreamUnreachable | Problem::UpstreamReset => Told::Failed,
            // Silence counts only where it had the time that its contract asks for.
            Problem::Timeout if whole => Told::Failed,
            // It says of itself that it cannot serve, or its address is another's by now.
            Problem::NotReady
            | Problem::SpoolUnavailable
            | Problem::Internal
            | Problem::Misdirected
            | Problem::NotFound
            | Problem::MethodNotAllowed => Told::Failed,
            // An output that breaks the contract is the work of a version, which others run as
            // well: calls would be moved to where the same comes out. It is seen as violations.
            Problem::OutputInvalid | Problem::ReplyDigestMismatch | Problem::ReplyTooLarge => {
                Told::Nothing
            }
            // Busy is not broken: the load takes care of it. Who stops leaves Consul by itself.
            Problem::Overloaded | Problem::Draining => Told::Nothing,
            // The call's own fault, or its caller's.
            Problem::Timeout
            | Problem::BudgetExhausted
            | Problem::BadContext
            | Problem::BadJson
            | Problem::BodyRequired
            | Problem::InputInvalid
            | Problem::RequestDigestMismatch
            | Problem::BadRequest
            | Problem::TooLarge
            | Problem::UnsupportedMediaType
            | Problem::UnknownAgent
            | Problem::Forbidden
            | Problem::HostRefused
            | Problem::Loop
            | Problem::RequestTimeout
            | Problem::UriTooLong
            | Problem::HeadersTooLarge
            | Problem::InFlight
            | Problem::InDoubt
            | Problem::IdempotencyMismatch
            | Problem::NoInstance
            | Problem::UntrustedContract => Told::Nothing,
        }
    }
}

/// A place at an instance: the call is in flight there until this is let go of.
pub struct Place {
    fleet: Arc<Fleet>,
    instance: Arc<str>,
    in_flight: Arc<InFlight>,
    call: Call,
    told: Told,
}

impl Place {
    pub(super) fn take(
        fleet: Arc<Fleet>,
        instance: Arc<str>,
        in_flight: Arc<InFlight>,
        call: Call,
    ) -> Self {
        in_flight.begin();
        Self {
            fleet,
            instance,
            in_flight,
            call,
            told: Told::Nothing,
        }
    }

    /// Takes note of the load that an answer tells of.
    pub fn hears(&self, headers: &HeaderMap) {
        self.in_flight.hear(headers, Instant::now());
    }

    /// Gives the place back, with what the attempt said of the instance; dropped instead, it said
    /// nothing.
    pub fn ended(mut self, told: Told) {
        self.told = told;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.in_flight.end();
        match self.told {
            Told::Served => self.fleet.served(&self.instance, self.call),
            Told::Failed => self.fleet.failed(&self.instance, self.call),
            Told::Nothing if self.call.is_trial => self.fleet.untried(&self.instance),
            Told::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(kind: &str) -> Failure {
        Failure {
            kind: kind.to_owned(),
            title: String::new(),
            detail: String::new(),
        }
    }

    #[test]
    fn answers_and_what_they_say_of_an_instance() {
        for (status, kind, told) in [
            (200, None, Told::Served),
            (404, Some("application_4xx"), Told::Served),
            (408, Some("application_status"), Told::Nothing),
            (429, Some("application_status"), Told::Nothing),
            (302, Some("application_status"), Told::Nothing),
            (500, Some("application_status"), Told::Failed),
            (503, Some("application_status"), Told::Failed),
            // What its sidecar says.
            (504, Some("timeout"), Told::Failed),
            (502, Some("upstream-unreachable"), Told::Failed),
            (503, Some("not-ready"), Told::Failed),
            (421, Some("misdirected"), Told::Failed),
            (503, Some("draining"), Told::Nothing),
            (429, Some("overloaded"), Told::Nothing),
            (400, Some("input-invalid"), Told::Nothing),
            (502, Some("output-invalid"), Told::Nothing),
            (409, Some("in-flight"), Told::Nothing),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let failure = kind.map(failure);
            let found = Told::of_answer(status, failure.as_ref(), true);
            assert_eq!(found, told, "{status} {kind:?}");
        }
    }

    #[test]
    fn an_unchecked_path_tells_only_whether_somebody_is_there() {
        for (problem, executed, told) in [
            (Problem::UpstreamUnreachable, false, Told::Failed),
            (Problem::Timeout, false, Told::Failed),
            (Problem::Timeout, true, Told::Nothing),
            (Problem::UpstreamReset, true, Told::Nothing),
            (Problem::BadRequest, true, Told::Nothing),
        ] {
            let trouble = Trouble::new(problem, "").executed(executed);
            assert_eq!(
                Told::of_connection(&trouble),
                told,
                "{problem:?} {executed}"
            );
        }
    }

    #[test]
    fn a_deadline_that_was_too_short_says_nothing() {
        for (problem, whole, told) in [
            (Problem::Timeout, true, Told::Failed),
            (Problem::Timeout, false, Told::Nothing),
            (Problem::BudgetExhausted, true, Told::Nothing),
            (Problem::UpstreamUnreachable, false, Told::Failed),
            (Problem::UpstreamReset, false, Told::Failed),
        ] {
            let trouble = Trouble::new(problem, "");
            assert_eq!(
                Told::of_trouble(&trouble, whole),
                told,
                "{problem:?} {whole}"
            );
        }
        let cut = Some(failure("timeout"));
        let status = StatusCode::GATEWAY_TIMEOUT;
        assert_eq!(Told::of_answer(status, cut.as_ref(), false), Told::Nothing);
    }
}
