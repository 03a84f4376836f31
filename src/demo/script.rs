//! What a task is compared with: its steps, and each step's states by who reported them.
//!
//! Exact: a step, state or attempt too many is as wrong as one too few.

use serde::Deserialize;
use serde_json::{Value, json};

/// Who reported a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    Caller,
    Callee,
    Application,
    Watchdog,
}

/// A step of a task as the collector must show it.
pub struct Step {
    pub agent: &'static str,
    /// The agent whose step made this one.
    pub parent: Option<&'static str>,
    /// Its states in life order, each by the side that is believed; the last is the end state.
    pub states: &'static [(&'static str, Side)],
    /// The kind of its error.
    pub error: Option<&'static str>,
}

/// Lists where a task differs from the script.
pub fn faults(script: &[Step], task: &Task) -> Vec<String> {
    let mut found = Differences::default();
    let root = script.first().map_or("", Step::end);
    found.compare("state of the task", task.state.as_str(), root);
    found.compare("chain", &task.chain, &json!("ok"));
    let mut seen: Vec<_> = task.steps.iter().map(|step| step.agent.as_str()).collect();
    let mut scripted: Vec<_> = script.iter().map(|step| step.agent).collect();
    seen.sort_unstable();
    scripted.sort_unstable();
    found.compare("steps", seen, scripted);
    for step in script {
        if let Some(seen) = task.steps.iter().find(|seen| seen.agent == step.agent) {
            found.step(step, seen, task.parent(seen));
        }
    }
    found.0
}

#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn compare<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, is: T, wanted: T) {
        if is != wanted {
            self.0.push(format!("{what}: {is:?}, not {wanted:?}"));
        }
    }

    fn step(&mut self, script: &Step, seen: &SeenStep, parent: Option<&str>) {
        let what = |part: &str| format!("{part} of {}", script.agent);
        self.compare(&what("parent"), parent, script.parent);
        self.compare(&what("state"), seen.state.as_str(), script.end());
        self.compare(&what("attempts"), seen.attempts.len(), 1);
        for attempt in &seen.attempts {
            let states = attempt.states.iter();
            let states: Vec<_> = states.map(|s| (s.state.as_str(), s.reporter)).collect();
            self.compare(&what("states"), states.as_slice(), script.states);
            let error = attempt.error.as_ref().map(|error| error.kind.as_str());
            self.compare(&what("error"), error, script.error);
            self.compare(&what("lateness"), attempt.late, false);
            self.compare(&what("conflicts"), attempt.conflict.len(), 0);
        }
    }
}

impl Step {
    fn end(&self) -> &'static str {
        self.states.last().map_or("", |(state, _)| state)
    }
}

/// What of the collector's answer the script speaks about.
#[derive(Deserialize)]
pub struct Task {
    state: String,
    steps: Vec<SeenStep>,
    chain: Value,
}

#[derive(Deserialize)]
struct SeenStep {
    step_id: String,
    parent_step: Option<String>,
    agent: String,
    state: String,
    attempts: Vec<SeenAttempt>,
}

#[derive(Deserialize)]
struct SeenAttempt {
    states: Vec<SeenState>,
    error: Option<SeenError>,
    #[serde(default)]
    late: bool,
    #[serde(default)]
    conflict: Vec<Value>,
}

#[derive(Deserialize)]
struct SeenState {
    state: String,
    reporter: Side,
}

#[derive(Deserialize)]
struct SeenError {
    kind: String,
}

impl Task {
    /// Names the agent of the step that made this one; a step nobody knows by its id.
    fn parent<'a>(&'a self, step: &'a SeenStep) -> Option<&'a str> {
        let id = step.parent_step.as_deref()?;
        let known = self.steps.iter().find(|other| other.step_id == id);
        Some(known.map_or(id, |known| known.agent.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: [Step; 2] = [
        Step {
            agent: "a-v1.0",
            parent: None,
            states: &[("pending", Side::Callee), ("completed", Side::Callee)],
            error: None,
        },
        Step {
            agent: "b-v1.0",
            parent: Some("a-v1.0"),
            states: &[("pending", Side::Caller), ("timeout", Side::Caller)],
            error: Some("timeout"),
        },
    ];

    fn task() -> Value {
        let state = |state: &str, by: &str| json!({"state": state, "reporter": by, "at": "x"});
        json!({"state": "completed", "chain": "ok", "steps": [
            {"step_id": "1", "agent": "a-v1.0", "state": "completed", "attempts": [
                {"states": [state("pending", "callee"), state("completed", "callee")]}]},
            {"step_id": "2", "parent_step": "1", "agent": "b-v1.0", "state": "timeout", "attempts": [
                {"states": [state("pending", "caller"), state("timeout", "caller")],
                 "error": {"kind": "timeout", "title": "t"}}]},
        ]})
    }

    #[test]
    fn every_departure_from_the_script_is_found() {
        let judge = |task: Value| faults(&SCRIPT, &serde_json::from_value(task).unwrap());
        assert_eq!(judge(task()), Vec::<String>::new());
        let more = task()["steps"][1].clone();
        let attempt = more["attempts"][0].clone();
        for (place, changed, fault) in [
            ("/state", json!("timeout"), "state of the task"),
            ("/chain", json!([{"step_id": "1"}]), "chain"),
            ("/steps/1/parent_step", json!("9"), "parent of b-v1.0"),
            ("/steps/1/parent_step", json!(null), "parent of b-v1.0"),
            ("/steps/0/state", json!("executing"), "state of a-v1.0"),
            (
                "/steps/1/attempts",
                json!([attempt, attempt]),
                "attempts of b-v1.0",
            ),
            (
                "/steps/1/attempts/0/states/1/reporter",
                json!("watchdog"),
                "states of b-v1.0",
            ),
            (
                "/steps/0/attempts/0/states/1/state",
                json!("executing"),
                "states of a-v1.0",
            ),
            (
                "/steps/1/attempts/0/error/kind",
                json!("draining"),
                "error of b-v1.0",
            ),
            ("/steps", json!([task()["steps"][0]]), "steps"),
            ("/steps", json!([task()["steps"][0], more, more]), "steps"),
        ] {
            let mut task = task();
            *task.pointer_mut(place).unwrap() = changed;
            let found = judge(task);
            assert!(
                found.iter().any(|one| one.starts_with(fault)),
                "{place}: {found:?}"
            );
        }
    }
}
