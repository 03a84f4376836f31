//! What went wrong with one attempt: told apart by who can mend it.
//!
//! A step that is down, one that hung, one that returned bad data and one that was sent bad data
//! are four things, however alike their states look.

use super::{State, text};
use crate::collector::attempt::Attempt;
use crate::collector::step::Step;
use crate::task::{Problem, Reporter, Timestamp};
use std::time::Duration;

/// Tells how an attempt ended, and the reason that its reporter gave.
pub(super) fn told(
    steps: &[Step<'_>],
    step: &Step<'_>,
    attempt: &Attempt<'_>,
    now: Timestamp,
) -> String {
    let name = step.name();
    let end = match attempt.state {
        State::Completed => late(&name, attempt),
        State::Timeout => timeout(&name, attempt, now),
        State::FailedValidation => validation(&name, steps, attempt),
        _ => execution(&name, attempt),
    };
    let reason = match attempt.error() {
        Some(error) if error.detail.is_empty() => error.title.clone(),
        Some(error) => format!("{}: {}", error.title, error.detail),
        None => String::new(),
    };
    match reason.as_str() {
        "" => end,
        reason => format!("{end} ({reason})"),
    }
}

fn kind<'a>(attempt: &Attempt<'a>) -> &'a str {
    attempt.error().map_or("", |error| error.kind.as_str())
}

fn is(attempt: &Attempt<'_>, problem: Problem) -> bool {
    // Two kinds of problem share a name; their titles differ.
    let error = attempt.error();
    error.is_some_and(|error| error.kind == problem.as_str() && error.title == problem.title())
}

/// It did its work, and its caller was told too late.
fn late(name: &str, attempt: &Attempt<'_>) -> String {
    let took = text(Duration::from_millis(attempt.decisive.duration_ms));
    let caller = attempt.by(Reporter::Caller);
    let waited = caller.map(|caller| text(Duration::from_millis(caller.duration_ms)));
    let waited = waited.unwrap_or_default();
    format!(
        "{name} completed after {took} within its time, but its caller had given up after \
         {waited}: the reply was late on its way"
    )
}

fn timeout(name: &str, attempt: &Attempt<'_>, now: Timestamp) -> String {
    if attempt.is_marked() {
        let overdue = text(attempt.decisive.deadline_at.age(now));
        return format!(
            "{name} was due {overdue} ago and nobody has reported its end; the collector has \
             marked it for now, until somebody does"
        );
    }
    if kind(attempt) == Problem::BudgetExhausted.as_str() {
        return format!("no time was left for {name}");
    }
    let took = text(Duration::from_millis(attempt.decisive.duration_ms));
    let callee = attempt.by(Reporter::Callee);
    let why = match callee.map(|callee| (callee.state, callee)) {
        None if attempt.instance().is_empty() => "",
        None => "; the callee's sidecar has said nothing",
        Some((State::Timeout, callee)) if has_been(callee, State::Executing) => {
            ": its application did not answer"
        }
        Some((State::Completed, callee)) => {
            let after = text(Duration::from_millis(callee.duration_ms));
            return format!(
                "{name} ran out of time after {took}; it completed after {after}, too late"
            );
        }
        Some((state, _)) if !state.is_end() => {
            "; the callee's sidecar has begun it and told no end yet"
        }
        Some(_) => "",
    };
    format!("{name} ran out of time after {took}{why}")
}

fn has_been(report: &crate::task::Report, state: State) -> bool {
    report.states.iter().any(|at| at.state == state)
}

fn validation(name: &str, steps: &[Step<'_>], attempt: &Attempt<'_>) -> String {
    const SENT: [Problem; 6] = [
        Problem::InputInvalid,
        Problem::BadJson,
        Problem::BodyRequired,
        Problem::BadContext,
        Problem::TooLarge,
        Problem::UnsupportedMediaType,
    ];
    if kind(attempt) == Problem::OutputInvalid.as_str() {
        return format!("{name} returned bad data");
    }
    if is(attempt, Problem::ReplyDigestMismatch) {
        return format!("the reply of {name} was changed on its way");
    }
    if is(attempt, Problem::RequestDigestMismatch) {
        return format!("the input of {name} was changed on its way");
    }
    if !SENT.iter().any(|sent| kind(attempt) == sent.as_str()) {
        return format!("{name} failed a contract check");
    }
    let caller = attempt.by(Reporter::Caller);
    let sender = caller.map(|caller| format!(" by {}", caller.application));
    let sender = sender.unwrap_or_default();
    // The same bytes say whose they were.
    let source = source(steps, attempt);
    let source = source.map(|step| format!("; it is what {} had returned", step.name()));
    format!(
        "{name} was sent bad data{sender}{}",
        source.unwrap_or_default()
    )
}

/// Finds the step whose output this attempt was given as its input.
fn source<'s, 'a>(steps: &'s [Step<'a>], attempt: &Attempt<'_>) -> Option<&'s Step<'a>> {
    let input = attempt.input_digest()?;
    let gave = |step: &&Step<'_>| {
        let mut attempts = step.attempts.iter();
        attempts.any(|other| other.output_digest() == Some(input))
    };
    steps.iter().rev().find(gave)
}

fn execution(name: &str, attempt: &Attempt<'_>) -> String {
    let told_by_callee = attempt.by(Reporter::Callee).is_some();
    let by_kind = |problem: Problem| kind(attempt) == problem.as_str();
    let what = match kind(attempt) {
        "interrupted" => "was cut short: a sidecar stopped in the middle of it",
        "application_4xx" => "was refused by its application",
        _ if by_kind(Problem::UpstreamUnreachable) && told_by_callee => {
            "is down: its sidecar cannot reach the application"
        }
        _ if by_kind(Problem::UpstreamUnreachable) => "is down: its sidecar cannot be reached",
        _ if by_kind(Problem::UpstreamReset) => "broke off before its answer was whole",
        _ if by_kind(Problem::NoInstance) => "had no instance that fits",
        _ if by_kind(Problem::NotReady) || by_kind(Problem::Draining) => "takes no calls now",
        _ if by_kind(Problem::Overloaded) => "takes no more calls at a time",
        _ => "failed",
    };
    format!("{name} {what}")
}
