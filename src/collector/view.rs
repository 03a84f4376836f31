//! What one look at a task shows: its state, its verdict, every step and attempt.
//!
//! A pure function of the reports and the present time.

use super::attempt::{Attempt, Told};
use super::chain::astray;
use super::step::{Step, ended_at, leading, open, steps};
use super::verdict::verdict;
use crate::task::{Failure, Id, Reporter, State, StateAt, Timestamp};
use serde::Serialize;
use std::borrow::Cow;

#[derive(Debug, Serialize)]
pub(super) struct TaskView<'a> {
    task_id: &'a Id,
    state: State,
    verdict: String,
    started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Timestamp>,
    steps: Vec<StepView<'a>>,
    chain: Chain<'a>,
    /// Only where not all is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<Truncated>,
}

/// How many calls the view was made of, and how many the task has.
#[derive(Debug, Serialize)]
struct Truncated {
    shown: usize,
    calls: usize,
}

#[derive(Debug, Serialize)]
struct StepView<'a> {
    step_id: Id,
    call_id: Id,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_step: Option<Id>,
    agent: String,
    state: State,
    degraded: bool,
    attempts: Vec<AttemptView<'a>>,
}

#[derive(Debug, Serialize)]
struct AttemptView<'a> {
    attempt: u32,
    agent: &'a str,
    instance: &'a str,
    state: State,
    states: Vec<Seen>,
    deadline_at: Timestamp,
    duration_ms: u64,
    input_digest: Option<&'a str>,
    output_digest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    late: bool,
    /// Somebody had hung up before this attempt's reply.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    undelivered: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conflict: Vec<Seen>,
}

#[derive(Debug, Serialize)]
struct Seen {
    #[serde(flatten)]
    state: StateAt,
    reporter: Reporter,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Chain<'a> {
    Whole(&'static str),
    Broken(Vec<BreakView<'a>>),
}

#[derive(Debug, Serialize)]
struct BreakView<'a> {
    step_id: Id,
    call_id: Id,
    attempt: u32,
    body: &'static str,
    caller: Cow<'a, str>,
    callee: Cow<'a, str>,
}

/// Assembles the view from all reports of one task, grouped by call; `None` without any.
pub(super) fn task<'a>(calls: &'a [Vec<Told>], now: Timestamp) -> Option<TaskView<'a>> {
    let steps = steps(calls);
    let task_id = &calls.first()?.first()?.report.task_id;
    let leading = leading(&steps)?;
    let is_open = open(&steps).is_some();
    let ended_at = ended_at(&steps);
    let started_at = steps.iter().map(|step| step.call.started_at).min()?;
    let breaks = breaks(&steps);
    Some(TaskView {
        task_id,
        state: leading.call.state,
        verdict: verdict(&steps, leading, started_at, now),
        started_at,
        ended_at: ended_at.filter(|_| !is_open),
        chain: if breaks.is_empty() {
            Chain::Whole("ok")
        } else {
            Chain::Broken(breaks)
        },
        steps: steps.iter().map(StepView::of).collect(),
        truncated: None,
    })
}

impl TaskView<'_> {
    /// Says that it was made of the newest `shown` of the task's `calls`, where those are fewer.
    pub(super) fn of_newest(mut self, shown: usize, calls: usize) -> Self {
        if shown < calls {
            self.truncated = Some(Truncated { shown, calls });
            let said = format!("; only the newest {shown} of its {calls} calls are looked at");
            self.verdict.push_str(&said);
        }
        self
    }
}

impl<'a> StepView<'a> {
    fn of(step: &Step<'a>) -> Self {
        let call = step.call.clone();
        Self {
            step_id: call.step_id,
            call_id: call.call_id,
            parent_step: call.parent_step,
            agent: call.agent,
            state: call.state,
            degraded: call.degraded,
            attempts: step.attempts.iter().map(AttemptView::of).collect(),
        }
    }
}

impl<'a> AttemptView<'a> {
    fn of(attempt: &Attempt<'a>) -> Self {
        let seen = |(state, reporter)| Seen { state, reporter };
        Self {
            attempt: attempt.number,
            agent: attempt.agent(),
            instance: attempt.instance(),
            state: attempt.state,
            states: attempt.states().into_iter().map(seen).collect(),
            deadline_at: attempt.decisive.deadline_at,
            duration_ms: attempt.decisive.duration_ms,
            input_digest: attempt.input_digest(),
            output_digest: attempt.output_digest(),
            error: attempt.error(),
            detail: attempt.detail(),
            late: attempt.late,
            undelivered: attempt.is_undelivered(),
            conflict: attempt.conflicts().into_iter().map(seen).collect(),
        }
    }
}

fn breaks<'a>(steps: &[Step<'a>]) -> Vec<BreakView<'a>> {
    let mut breaks = Vec::new();
    for step in steps {
        for attempt in &step.attempts {
            breaks.extend(attempt.breaks().into_iter().map(|found| BreakView {
                step_id: step.call.step_id.clone(),
                call_id: step.call.call_id.clone(),
                attempt: attempt.number,
                body: found.body,
                caller: found.caller.into(),
                callee: found.callee.into(),
            }));
        }
    }
    breaks.extend(astray(steps).into_iter().map(|found| BreakView {
        step_id: found.step_id.clone(),
        call_id: found.call_id.clone(),
        attempt: found.attempt,
        body: "path",
        caller: found.leads.to_string().into(),
        callee: found.came.to_string().into(),
    }));
    breaks
}

#[cfg(test)]
mod tests {
    use super::super::attempt::tests::told;
    use super::*;
    use State::*;
    use serde_json::{Value, json};

    fn view(calls: &[Vec<Told>], now: u64) -> Value {
        let view = task(calls, Timestamp::from_millis(now)).unwrap();
        serde_json::to_value(view).unwrap()
    }

    fn failed(state: State, at: (u64, u64), step: &str, parent: Option<&str>, title: &str) -> Told {
        let mut told = told(Reporter::Caller, &[(Pending, at.0), (state, at.1)]).step(step, parent);
        told.report.error = Some(Failure {
            kind: "x".into(),
            title: title.into(),
            detail: String::new(),
        });
        told
    }

    #[test]
    fn a_completed_task_in_full() {
        let caller = told(
            Reporter::Caller,
            &[(Pending, 0), (Dispatched, 5), (Completed, 90)],
        )
        .with(|report| {
            report.input_digest = Some("sha-256:aa".into());
            report.output_digest = Some("sha-256:bb".into());
        });
        let callee = told(
            Reporter::Callee,
            &[(Dispatched, 6), (Executing, 8), (Completed, 80)],
        )
        .with(|report| report.input_digest = Some("sha-256:cc".into()));
        let got = view(&[vec![callee, caller]], 1000);
        let at = |millis| Timestamp::from_millis(millis).to_string();
        assert_eq!(
            got,
            json!({
                "task_id": "task-1",
                "state": "completed",
                "verdict": "completed in 90 ms over 1 step; the two sides of step step-1 saw \
                            different bytes as its input",
                "started_at": at(0),
                "ended_at": at(90),
                "steps": [{
                    "step_id": "step-1",
                    "call_id": "call-1",
                    "agent": "fraud-detection-v1.0",
                    "state": "completed",
                    "degraded": false,
                    "attempts": [{
                        "attempt": 1,
                        "agent": "fraud-detection-v1.0",
                        "instance": "fraud-7401",
                        "state": "completed",
                        "states": [
                            {"state": "pending", "at": at(0), "reporter": "caller"},
                            {"state": "dispatched", "at": at(5), "reporter": "caller"},
                            {"state": "executing", "at": at(8), "reporter": "callee"},
                            {"state": "completed", "at": at(90), "reporter": "caller"},
                        ],
                        "deadline_at": at(500),
                        "duration_ms": 90,
                        "input_digest": "sha-256:aa",
                        "output_digest": "sha-256:bb",
                    }],
                }],
                "chain": [{
                    "step_id": "step-1", "call_id": "call-1", "attempt": 1,
                    "body": "input", "caller": "sha-256:aa", "callee": "sha-256:cc",
                }],
            })
        );
    }

    #[test]
    fn an_applications_own_step_is_shown_and_decides_nothing() {
        let caller = told(Reporter::Caller, &[(Pending, 0), (Completed, 90)]);
        let own = told(Reporter::Application, &[(FailedExecution, 9_000)]);
        let calls = [vec![caller.plain()], vec![own.step("own", None)]];
        let got = view(&calls, 10_000);
        assert_eq!(got["steps"].as_array().unwrap().len(), 2);
        assert_eq!(got["state"], "completed");
        assert_eq!(got["verdict"], "completed in 90 ms over 2 steps");
        assert_eq!(got["ended_at"], Timestamp::from_millis(90).to_string());
        let alone = view(&calls[1..], 10_000);
        assert_eq!(alone["state"], "failed_execution");

        let caller = told(Reporter::Caller, &[(Pending, 0), (Completed, 90)]);
        let own = told(Reporter::Application, &[(Executing, 50)]);
        let calls = [vec![caller.plain()], vec![own.step("own", None)]];
        let got = view(&calls, 10_000);
        assert_eq!(got["state"], "completed", "{got}");
        assert_eq!(got["verdict"], "completed in 90 ms over 2 steps");
        assert_eq!(got["ended_at"], Timestamp::from_millis(90).to_string());
        assert_eq!(view(&calls[1..], 10_000)["state"], "executing");
    }

    #[test]
    fn conflicts_and_details_are_shown() {
        let mut odd = told(Reporter::Application, &[(Completed, 5)]).plain();
        odd.detail = Some("output_hash d41d8cd9".into());
        odd.conflicts = vec![StateAt {
            state: FailedExecution,
            at: Timestamp::from_millis(9),
        }];
        let got = view(&[vec![odd]], 10);
        let attempt = &got["steps"][0]["attempts"][0];
        assert_eq!(attempt["detail"], "output_hash d41d8cd9");
        assert_eq!(attempt["conflict"][0]["state"], "failed_execution");
        assert_eq!(attempt["state"], "completed");
        assert_eq!(got["chain"], "ok");
    }

    #[test]
    fn steps_that_name_each_other_as_parent_do_not_hang() {
        let calls = [
            vec![failed(Timeout, (0, 5), "a", Some("b"), "")],
            vec![failed(Timeout, (1, 4), "b", Some("a"), "")],
        ];
        assert_eq!(view(&calls, 10)["state"], "timeout");
    }

    #[test]
    fn what_is_left_out_is_said() {
        let calls = [vec![
            told(Reporter::Caller, &[(Pending, 0), (Completed, 90)]).plain(),
        ]];
        let cut = |shown, of| {
            let view = task(&calls, Timestamp::from_millis(100)).unwrap();
            serde_json::to_value(view.of_newest(shown, of)).unwrap()
        };
        let got = cut(1, 2500);
        assert_eq!(got["truncated"], json!({"shown": 1, "calls": 2500}));
        assert_eq!(
            got["verdict"],
            "completed in 90 ms over 1 step; only the newest 1 of its 2500 calls are looked at"
        );
        let got = cut(1, 1);
        assert_eq!(got["verdict"], "completed in 90 ms over 1 step");
        assert_eq!(got.get("truncated"), None);
    }

    #[test]
    fn nothing_is_no_task() {
        assert!(task(&[], Timestamp::now()).is_none());
    }
}
