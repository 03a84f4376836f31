//! How a task stands, in one sentence that reads alone.
//!
//! - an open task: which step, who runs it, since when, how long it may still take, who waits; and
//!   which others hang or have failed
//! - a failed one: the step where the failure began, what happened there and what was tried; those
//!   above it only had to wait, and are not named
//! - a completed one: how long it took, and what a person should know all the same

mod fault;
mod trouble;

#[cfg(test)]
mod tests;

use super::attempt::{Attempt, newest};
use super::step::{Step, culprit, ended_at};
use crate::task::{Reporter, State, Timestamp};
use std::time::Duration;

/// Earlier attempts and failed steps that one sentence names; there may be many more.
const MOST_NAMED: usize = 3;

/// Says how long a task took, what it waits for, or which step is at fault and why.
pub(super) fn verdict(
    steps: &[Step<'_>],
    leading: &Step<'_>,
    started_at: Timestamp,
    now: Timestamp,
) -> String {
    let state = leading.call.state;
    let said = match (newest(&leading.attempts), state) {
        (None, _) => String::new(),
        (Some(attempt), _) if leading.is_open() => {
            open(leading, attempt, now) + &trouble::elsewhere(steps, leading, now)
        }
        (Some(attempt), State::Completed) => completed(steps, leading, attempt, started_at),
        (Some(_), _) => failed(steps, leading, now),
    };
    let marks = marks(steps);
    match state {
        State::Completed => format!("{said}{marks}"),
        _ => format!("{state}: {said}{marks}"),
    }
}

fn completed(
    steps: &[Step<'_>],
    leading: &Step<'_>,
    attempt: &Attempt<'_>,
    started_at: Timestamp,
) -> String {
    let took = text(started_at.age(ended_at(steps).unwrap_or(started_at)));
    let mut said = format!("completed in {took} over {}", count(steps.len(), "step"));
    if attempt.late {
        said.push_str("; its caller had already given up (late)");
    }
    let before = earlier(leading);
    match (leading.call.degraded, before.is_empty()) {
        (true, true) => said.push_str("; degraded: a fallback answered"),
        (true, false) => {
            let agent = attempt.agent();
            said.push_str(&format!(
                "; degraded: the fallback {agent} answered after {before}"
            ));
        }
        (false, false) => {
            let number = attempt.number;
            said.push_str(&format!("; attempt {number} answered after {before}"));
        }
        (false, true) => {}
    }
    if attempt.is_undelivered() {
        said.push_str("; the reply found nobody, its caller had hung up");
    }
    let failed: Vec<String> = steps
        .iter()
        .filter(|step| !std::ptr::eq(*step, leading) && step.has_failed() && step.call.by_sidecar)
        .map(ended)
        .collect();
    if !failed.is_empty() {
        said.push_str(&format!("; failed on the way: {}", list(&failed)));
    }
    said
}

/// Names a step that failed, and how it ended.
fn ended(step: &Step<'_>) -> String {
    let end = match step.is_late() {
        true => "late",
        false => step.call.state.as_str(),
    };
    format!("{} ({end})", step.name())
}

fn failed(steps: &[Step<'_>], leading: &Step<'_>, now: Timestamp) -> String {
    let culprit = culprit(steps, leading);
    let Some(attempt) = newest(&culprit.attempts) else {
        return String::new();
    };
    let mut said = match attempt.state.is_end() {
        true => fault::told(steps, culprit, attempt, now),
        // Those above it have given up, and nobody has told its end.
        false => open(culprit, attempt, now),
    };
    let before = earlier(culprit);
    if !before.is_empty() {
        said.push_str(&format!("; before that {before}"));
    }
    if let Some(left) = undecided(attempt, now) {
        said.push_str(&format!(
            "; its caller has not ended the call: a retry or a fallback may follow within {}",
            text(left)
        ));
    }
    said
}

/// Returns how long an attempt's caller may still go on after its callee has failed.
fn undecided(attempt: &Attempt<'_>, now: Timestamp) -> Option<Duration> {
    let caller = attempt.by(Reporter::Caller)?;
    let left = now.age(caller.deadline_at);
    let is_open = attempt.state.is_end() && !caller.state.is_end();
    (is_open && !left.is_zero()).then_some(left)
}

fn open(step: &Step<'_>, attempt: &Attempt<'_>, now: Timestamp) -> String {
    let name = step.name();
    let since = text(attempt.started_at().age(now));
    if !step.call.by_sidecar && now < step.call.deadline_at {
        return format!("{name} for {since}, as the application itself says; it named no deadline");
    }
    let overdue = step.call.deadline_at.age(now);
    if !overdue.is_zero() {
        return format!(
            "{name} is {} past its deadline and nobody has reported its end",
            text(overdue)
        );
    }
    let left = text(now.age(step.call.deadline_at));
    let mut said = format!("{name} for {since}, {left} left");
    match attempt.state {
        State::Pending => said.push_str("; it waits for an instance"),
        State::FallbackInvoked => said.push_str("; this fallback takes over"),
        _ => {}
    }
    if let Some(caller) = attempt.by(Reporter::Caller) {
        said.push_str(&format!("; {} waits for it", caller.application));
    }
    let before = earlier(step);
    if !before.is_empty() {
        said.push_str(&format!("; attempt {}, after {before}", attempt.number));
    }
    said
}

/// Tells of the attempts before the newest: who tried and how it ended.
fn earlier(step: &Step<'_>) -> String {
    let newest = newest(&step.attempts).map_or(0, |attempt| attempt.number);
    let before = step.attempts.iter().filter(|one| one.number < newest);
    let told: Vec<String> = before
        .map(|one| {
            let place = match one.instance() {
                "" => one.agent(),
                instance => instance,
            };
            format!("{} on {place}", one.state)
        })
        .collect();
    list(&told)
}

/// Names what no state shows: ends that contradict each other, and bodies that differ.
fn marks(steps: &[Step<'_>]) -> String {
    let mut marks = String::new();
    let attempts = || {
        let of = |step| {
            let step: &Step<'_> = step;
            step.attempts.iter().map(move |attempt| (step, attempt))
        };
        steps.iter().flat_map(of)
    };
    let torn = attempts().find_map(|(step, one)| Some((step, *one.conflicts().first()?)));
    if let Some((step, (at, reporter))) = torn {
        marks.push_str(&format!(
            "; of step {} the {} has also told {}, which is not applied",
            step.call.step_id,
            reporter.as_str(),
            at.state
        ));
    }
    let broken = attempts().find_map(|(step, one)| Some((step, *one.breaks().first()?)));
    if let Some((step, found)) = broken {
        marks.push_str(&format!(
            "; the two sides of step {} saw different bytes as its {}",
            step.call.step_id, found.body
        ));
    }
    marks
}

fn list(names: &[String]) -> String {
    let more = names.len().saturating_sub(MOST_NAMED);
    let mut told = names[..names.len() - more].join(", ");
    if more > 0 {
        told.push_str(&format!(" and {more} more"));
    }
    told
}

fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
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
