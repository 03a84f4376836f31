//! How a task stands, in plain words.

use super::attempt::{Attempt, newest};
use super::step::{Step, culprit, ended_at};
use crate::task::{Reporter, State, Timestamp};
use std::time::Duration;

/// Says how long a task took, what it waits for, or which step is at fault and why.
pub(super) fn verdict(
    steps: &[Step<'_>],
    leading: &Step<'_>,
    started_at: Timestamp,
    now: Timestamp,
) -> String {
    if leading.is_open() {
        return open(leading, now);
    }
    let Some(attempt) = newest(&leading.attempts) else {
        return String::new();
    };
    match leading.call.state {
        State::Completed => completed(steps, leading, attempt, started_at),
        _ => failed(steps, leading, attempt),
    }
}

fn completed(
    steps: &[Step<'_>],
    leading: &Step<'_>,
    attempt: &Attempt<'_>,
    started_at: Timestamp,
) -> String {
    let took = text(started_at.age(ended_at(steps).unwrap_or(started_at)));
    let count = match steps.len() {
        1 => "1 step".to_owned(),
        count => format!("{count} steps"),
    };
    let late = attempt
        .late
        .then_some("; its caller had already given up (late)");
    let degraded = leading.call.degraded;
    let degraded = degraded.then_some("; degraded: a fallback answered");
    let marks = [late, degraded].map(Option::unwrap_or_default).concat();
    format!("completed in {took} over {count}{marks}")
}

fn failed(steps: &[Step<'_>], leading: &Step<'_>, attempt: &Attempt<'_>) -> String {
    let culprit = culprit(steps, leading);
    let name = culprit.name();
    let attempt = newest(&culprit.attempts).unwrap_or(attempt);
    let end = match attempt.state {
        State::Timeout => {
            let took = text(Duration::from_millis(attempt.decisive.duration_ms));
            let silent = attempt.by(Reporter::Callee).is_none() && !attempt.instance().is_empty();
            let silent = silent.then_some("; the callee's sidecar has said nothing");
            format!(
                "{name} ran out of time after {took}{}",
                silent.unwrap_or_default()
            )
        }
        State::FailedValidation => format!("{name} failed a contract check"),
        _ => format!("{name} failed"),
    };
    let retried = match culprit.attempts.len() {
        0 | 1 => String::new(),
        count => format!(", {count} attempts"),
    };
    let reason = match attempt.error() {
        Some(error) if error.detail.is_empty() => error.title.clone(),
        Some(error) => format!("{}: {}", error.title, error.detail),
        None => String::new(),
    };
    match reason.as_str() {
        "" => format!("{}: {end}{retried}", leading.call.state),
        reason => format!("{}: {end}{retried} ({reason})", leading.call.state),
    }
}

fn open(step: &Step<'_>, now: Timestamp) -> String {
    let name = step.name();
    let state = step.call.state;
    let since = newest(&step.attempts).map(Attempt::started_at);
    let since = text(since.unwrap_or(now).age(now));
    let overdue = step.call.deadline_at.age(now);
    if overdue.is_zero() {
        format!("{state}: {name} for {since}")
    } else {
        format!(
            "{state}: {name} is {} past its deadline and nobody has reported its end",
            text(overdue)
        )
    }
}

fn text(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        0..10_000 => format!("{millis} ms"),
        10_000..120_000 => format!("{} s", millis / 1000),
        _ => format!("{} min", millis / 60_000),
    }
}
