//! What hangs or has failed in an open task, beside the step that its state is taken from.
//!
//! Whoever only waits for a step that is named is not named.

use super::{ended, list, text};
use crate::collector::attempt::newest;
use crate::collector::step::Step;
use crate::task::{Id, State, Timestamp};
use std::collections::HashSet;
use std::time::Duration;

/// Tells of the steps whose end is overdue, and of those that failed; nothing where there are none.
pub(super) fn elsewhere(steps: &[Step<'_>], leading: &Step<'_>, now: Timestamp) -> String {
    let others = |step: &&Step<'_>| !std::ptr::eq(*step, leading) && step.call.by_sidecar;
    let above = parents(
        steps
            .iter()
            .filter(|step| step.is_open() || is_marked(step)),
    );
    let hanging = steps.iter().filter(others).filter_map(|step| {
        let overdue = overdue(step, now)?;
        let waits = above.contains(&step.call.step_id);
        (!waits).then(|| format!("{} (due {} ago)", step.name(), text(overdue)))
    });
    let hanging: Vec<String> = hanging.collect();

    let has_failed = |step: &&Step<'_>| {
        step.call.by_sidecar && !step.is_open() && !is_marked(step) && step.has_failed()
    };
    let above = parents(steps.iter().filter(has_failed));
    let failed = steps.iter().filter(others).filter(has_failed);
    let began = failed.filter(|step| {
        // A body that breaks a contract is its writer's fault, whatever was called before.
        step.call.state == State::FailedValidation || !above.contains(&step.call.step_id)
    });
    let failed: Vec<String> = began.map(ended).collect();

    let mut said = String::new();
    if !hanging.is_empty() {
        let hanging = list(&hanging);
        said.push_str(&format!("; nobody has reported the end of {hanging}"));
    }
    if !failed.is_empty() {
        said.push_str(&format!("; failed on the way: {}", list(&failed)));
    }
    said
}

/// Returns the steps that those given were called by. One that names itself is above nobody.
fn parents<'s, 'a: 's>(steps: impl Iterator<Item = &'s Step<'a>>) -> HashSet<&'s Id> {
    let parent = |step: &'s Step<'a>| {
        let parent = step.call.parent_step.as_ref();
        parent.filter(|parent| **parent != step.call.step_id)
    };
    steps.filter_map(parent).collect()
}

fn is_marked(step: &Step<'_>) -> bool {
    newest(&step.attempts).is_some_and(|attempt| attempt.is_marked())
}

/// Returns how long ago a step's end should have been told that nobody has told.
fn overdue(step: &Step<'_>, now: Timestamp) -> Option<Duration> {
    let untold = step.is_open() || is_marked(step);
    let overdue = step.call.deadline_at.age(now);
    (untold && !overdue.is_zero()).then_some(overdue)
}
