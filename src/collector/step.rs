//! How the steps of one task hang together.

use super::attempt::{Attempt, CallSummary, Told, attempts, newest, summarise};
use crate::task::{State, Timestamp};
use std::collections::HashSet;

/// One call with its reports merged.
pub(super) struct Step<'a> {
    pub(super) call: CallSummary,
    pub(super) attempts: Vec<Attempt<'a>>,
}

/// Merges all reports of one task, grouped by call; the first step is the oldest.
pub(super) fn steps<'a>(calls: &'a [Vec<Told>]) -> Vec<Step<'a>> {
    let step = |told: &'a Vec<Told>| {
        Some(Step {
            call: summarise(told)?,
            attempts: attempts(told),
        })
    };
    let mut steps: Vec<_> = calls.iter().filter_map(step).collect();
    steps.sort_by(|a, b| {
        let (a, b) = (&a.call, &b.call);
        (a.started_at, &a.call_id).cmp(&(b.started_at, &b.call_id))
    });
    steps
}

impl<'a> Step<'a> {
    pub(super) fn is_open(&self) -> bool {
        self.call.ended_at.is_none()
    }

    /// Says whether whoever waited for it got no result in time.
    pub(super) fn has_failed(&self) -> bool {
        self.call.state != State::Completed || self.is_late()
    }

    /// Says whether it did its work in time and its caller had given up all the same.
    pub(super) fn is_late(&self) -> bool {
        newest(&self.attempts).is_some_and(|attempt| attempt.late)
    }

    /// Names the step, what ran it and where, as far as that is known.
    pub(super) fn name(&self) -> String {
        let attempt = newest(&self.attempts);
        let agent = attempt.map_or("", |attempt| attempt.agent());
        match attempt.map(|attempt| attempt.instance()) {
            Some(instance) if !instance.is_empty() => {
                format!("step {} ({agent} on {instance})", self.call.step_id)
            }
            _ => format!("step {} ({agent})", self.call.step_id),
        }
    }
}

/// Returns the newest open step. An application's own holds nothing open that a sidecar has seen
/// end.
pub(super) fn open<'s, 'a>(steps: &'s [Step<'a>]) -> Option<&'s Step<'a>> {
    let mut open = steps.iter().rev().filter(|step| step.is_open());
    let of_a_sidecar = open.clone().find(|step| step.call.by_sidecar);
    let own = || open.next().filter(|_| root(steps).is_none());
    of_a_sidecar.or_else(own)
}

/// Returns the step whose state is the task's: the newest open one, else the last root.
pub(super) fn leading<'s, 'a>(steps: &'s [Step<'a>]) -> Option<&'s Step<'a>> {
    open(steps).or_else(|| root(steps)).or(steps.last())
}

fn root<'s, 'a>(steps: &'s [Step<'a>]) -> Option<&'s Step<'a>> {
    steps.iter().rev().find(|step| step.call.is_root())
}

/// Returns when the last step ended; an application's own word may come any time later.
pub(super) fn ended_at(steps: &[Step<'_>]) -> Option<Timestamp> {
    let of_sidecars = steps.iter().filter(|step| step.call.by_sidecar);
    let last = of_sidecars.filter_map(|step| step.call.ended_at).max();
    last.or_else(|| steps.iter().filter_map(|step| step.call.ended_at).max())
}

/// Follows the failure from a step down to the step where it began.
pub(super) fn culprit<'s, 'a>(steps: &'s [Step<'a>], from: &'s Step<'a>) -> &'s Step<'a> {
    let mut culprit = from;
    let mut visited = HashSet::from([&from.call.step_id]);
    // A body that breaks a contract is the fault of whoever wrote it, whatever was called before.
    while culprit.call.state != State::FailedValidation {
        let newest_first = steps.iter().rev();
        let below = newest_first
            .filter(|step| step.call.parent_step.as_ref() == Some(&culprit.call.step_id))
            .find(|step| step.has_failed() && !was_survived(steps, step));
        match below {
            // Ids come from outside; a circle ends the search.
            Some(step) if visited.insert(&step.call.step_id) => culprit = step,
            _ => break,
        }
    }
    culprit
}

/// Says whether the step above went on after this one had failed, and with success.
fn was_survived(steps: &[Step<'_>], failed: &Step<'_>) -> bool {
    let Some(ended_at) = failed.call.ended_at else {
        return false;
    };
    steps.iter().any(|step| {
        let is_beside = step.call.parent_step == failed.call.parent_step;
        is_beside && !step.has_failed() && step.call.started_at >= ended_at
    })
}
