//! Attempts and their states, and the choice of instances.

use super::family::Declare;
use super::sidecar::Sidecar;
use crate::task::{State, TRANSITIONS};
use prometheus::{IntCounter, IntGauge};
use std::collections::HashMap;

/// Why an instance was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cohort {
    Stable,
    Canary,
    Fallback,
    Spill,
}

impl Cohort {
    const ALL: [&'static str; 4] = ["stable", "canary", "fallback", "spill"];
}

/// Why an instance was ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ejected {
    Consecutive,
    SuccessRate,
    Trial,
}

impl Ejected {
    const ALL: [&'static str; 3] = ["consecutive", "success_rate", "trial"];
}

/// The families of task states and routing.
#[derive(Debug)]
pub(super) struct Tasks {
    active: [IntGauge; 8],
    transitions: HashMap<(State, State), IntCounter>,
    transitions_refused: IntCounter,
    unmatched: IntCounter,
    selections: [IntCounter; 4],
    ejections: [IntCounter; 3],
}

impl Tasks {
    pub(super) fn declare(to: &Declare<'_>) -> Self {
        let active = to.gauges(
            "tasks_active",
            "Attempts being carried out, by state.",
            &["state"],
        );
        let transitions = to.counters(
            "task_transitions_total",
            "Moves of attempts between states.",
            &["from", "to"],
        );
        let selections = to.counters(
            "route_selections_total",
            "Instances chosen, by why they were.",
            &["cohort"],
        );
        let ejections = to.counters(
            "route_ejections_total",
            "Instances left out for a while because calls to them failed, by what told it.",
            &["reason"],
        );
        Self {
            active: State::ALL.map(|state| active.with_label_values(&[state.as_str()])),
            transitions: TRANSITIONS
                .into_iter()
                .map(|(from, into)| {
                    let labels = [from.as_str(), into.as_str()];
                    ((from, into), transitions.with_label_values(&labels))
                })
                .collect(),
            transitions_refused: to.counter(
                "task_transitions_refused_total",
                "Moves that the table of states does not allow; each is a bug.",
            ),
            unmatched: to.counter(
                "context_unmatched_total",
                "Outbound calls that could not be joined to the task they serve.",
            ),
            selections: Cohort::ALL.map(|cohort| selections.with_label_values(&[cohort])),
            ejections: Ejected::ALL.map(|reason| ejections.with_label_values(&[reason])),
        }
    }
}

impl Sidecar {
    /// Counts an attempt that begins in `state`.
    pub fn attempt_began(&self, state: State) {
        self.tasks.active[state as usize].inc();
    }

    /// Counts an attempt that begins in `state` because the one before ended as it did.
    pub fn attempt_followed(&self, ended: State, state: State) {
        self.attempt_began(state);
        if let Some(counter) = self.tasks.transitions.get(&(ended, state)) {
            counter.inc();
        }
    }

    /// An attempt that was none is active no longer.
    pub fn attempt_withdrawn(&self, state: State) {
        self.tasks.active[state as usize].dec();
    }

    /// Counts a move; an ended attempt is active no longer.
    pub fn attempt_moved(&self, from: State, to: State) {
        self.tasks.active[from as usize].dec();
        if !to.is_end() {
            self.tasks.active[to as usize].inc();
        }
        if let Some(counter) = self.tasks.transitions.get(&(from, to)) {
            counter.inc();
        }
    }

    pub fn transition_refused(&self) {
        self.tasks.transitions_refused.inc();
    }

    pub fn context_unmatched(&self) {
        self.tasks.unmatched.inc();
    }

    pub fn selected(&self, cohort: Cohort) {
        self.tasks.selections[cohort as usize].inc();
    }

    pub fn ejected(&self, reason: Ejected) {
        self.tasks.ejections[reason as usize].inc();
    }
}
