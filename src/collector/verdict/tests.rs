//! Tasks, and the sentence that is said of each.

use super::super::attempt::Told;
use super::super::attempt::tests::{Sketch, told};
use super::super::view;
use crate::task::Reporter::{Application, Callee, Caller, Watchdog};
use crate::task::State::*;
use crate::task::{Failure, Problem, Report, State, StateAt, Timestamp};

const NOW: u64 = 1_000;

/// The first attempt of a step, as one reporter tells it.
fn of(step: &str, parent: Option<&str>, sketch: Sketch) -> Told {
    sketch.step(step, parent)
}

impl Told {
    fn changed(mut self, change: impl FnOnce(&mut Report)) -> Self {
        change(&mut self.report);
        self
    }

    fn error(self, problem: Problem, detail: &str) -> Self {
        self.changed(|report| {
            report.error = Some(Failure {
                kind: problem.as_str().into(),
                title: problem.title().into(),
                detail: detail.into(),
            });
        })
    }

    fn attempt(self, number: u32, agent: &str, instance: &str) -> Self {
        self.changed(|report| {
            report.attempt = number;
            report.agent = agent.into();
            report.instance = instance.into();
        })
    }

    fn digests(self, input: &str, output: &str) -> Self {
        self.changed(|report| {
            report.input_digest = Some(input.into());
            report.output_digest = Some(output.into());
        })
    }
}

fn caller(states: &[(State, u64)]) -> Told {
    of("pay", None, told(Caller, states))
}

fn callee(states: &[(State, u64)]) -> Told {
    of("pay", None, told(Callee, states))
}

/// Holds the sentence of each task against what it should be.
fn hold(rows: Vec<(&str, Vec<Vec<Told>>, &str)>) {
    for (what, calls, expected) in rows {
        let view = view::task(&calls, Timestamp::from_millis(NOW)).unwrap();
        let view = serde_json::to_value(view).unwrap();
        assert_eq!(view["verdict"], expected, "{what}");
        let state = view["state"].as_str().unwrap();
        assert!(expected.starts_with(state), "{what}: {state}");
        let is_end = State::from_wire(state).unwrap().is_end();
        assert_eq!(view.get("ended_at").is_some(), is_end, "{what}");
    }
}

#[test]
fn what_is_completed() {
    let first = |state| caller(&[(Pending, 0), (state, 40)]).attempt(1, "pay-v1.0", "pay-1");
    let undelivered = caller(&[(Pending, 0), (Completed, 90)]);
    let mut torn = callee(&[(Pending, 0), (Completed, 80)]);
    torn.conflicts = vec![StateAt {
        state: FailedExecution,
        at: Timestamp::from_millis(85),
    }];
    hold(vec![
        (
            "two steps",
            vec![
                vec![caller(&[(Pending, 0), (Completed, 90)])],
                vec![of(
                    "risk",
                    Some("pay"),
                    told(Caller, &[(Pending, 10), (Completed, 60)]),
                )],
            ],
            "completed in 90 ms over 2 steps",
        ),
        (
            "in time, and too late for its caller",
            vec![vec![
                caller(&[(Pending, 0), (Timeout, 700)]),
                callee(&[(Executing, 500), (Completed, 900)]),
            ]],
            "completed in 900 ms over 1 step; its caller had already given up (late)",
        ),
        (
            "by a second attempt",
            vec![vec![
                first(Timeout),
                caller(&[(Pending, 45), (Completed, 90)]).attempt(2, "pay-v1.0", "pay-2"),
            ]],
            "completed in 90 ms over 1 step; attempt 2 answered after timeout on pay-1",
        ),
        (
            "by a fallback",
            vec![vec![
                first(FailedExecution),
                caller(&[(FallbackInvoked, 45), (Completed, 90)])
                    .attempt(2, "rules-v1.0", "rules-1")
                    .changed(|report| report.degraded = true),
            ]],
            "completed in 90 ms over 1 step; degraded: the fallback rules-v1.0 answered after \
             failed_execution on pay-1",
        ),
        (
            "for nobody",
            vec![vec![
                undelivered.changed(|report| report.undelivered = true),
            ]],
            "completed in 90 ms over 1 step; the reply found nobody, its caller had hung up",
        ),
        (
            "with a step that failed",
            vec![
                vec![caller(&[(Pending, 0), (Completed, 90)])],
                vec![of(
                    "risk",
                    Some("pay"),
                    told(Caller, &[(Pending, 10), (FailedExecution, 60)]),
                )],
            ],
            "completed in 90 ms over 2 steps; failed on the way: step risk (risk-v1.0 on \
             fraud-7401) (failed_execution)",
        ),
        (
            "with a step whose reply was late",
            vec![
                vec![caller(&[(Pending, 0), (Completed, 990)])],
                vec![
                    of(
                        "risk",
                        Some("pay"),
                        told(Caller, &[(Pending, 10), (Timeout, 700)]),
                    ),
                    of(
                        "risk",
                        Some("pay"),
                        told(Callee, &[(Executing, 400), (Completed, 800)]),
                    ),
                ],
            ],
            "completed in 990 ms over 2 steps; failed on the way: step risk (risk-v1.0 on \
             fraud-7401) (late)",
        ),
        (
            "with a contradiction and a chain that broke",
            vec![vec![
                caller(&[(Pending, 0), (Completed, 90)]).digests("a", "b"),
                torn.digests("a", "x"),
            ]],
            "completed in 90 ms over 1 step; of step pay the callee has also told \
             failed_execution, which is not applied; the two sides of step pay saw different \
             bytes as its output",
        ),
    ]);
}

#[test]
fn what_is_open() {
    hold(vec![
        (
            "a step at work",
            vec![
                vec![caller(&[(Pending, 600), (Dispatched, 602)])],
                vec![
                    of(
                        "risk",
                        Some("pay"),
                        told(Caller, &[(Pending, 690), (Dispatched, 695)]),
                    ),
                    of(
                        "risk",
                        Some("pay"),
                        told(Callee, &[(Dispatched, 700), (Executing, 750)]),
                    ),
                ],
            ],
            "executing: step risk (risk-v1.0 on fraud-7401) for 310 ms, 200 ms left; shop waits \
             for it",
        ),
        (
            "a fallback after two attempts",
            vec![vec![
                caller(&[(Pending, 600), (FailedExecution, 610)]).attempt(1, "pay-v1.0", "pay-1"),
                caller(&[(Pending, 620), (Timeout, 650)]).attempt(2, "pay-v1.0", "pay-2"),
                caller(&[(FallbackInvoked, 700)]).attempt(3, "rules-v1.0", ""),
            ]],
            "fallback_invoked: step pay (rules-v1.0) for 300 ms, 200 ms left; this fallback takes \
             over; shop waits for it; attempt 3, after failed_execution on pay-1, timeout on pay-2",
        ),
        (
            "nobody tells its end",
            vec![vec![caller(&[(Pending, 0), (Dispatched, 2)])]],
            "dispatched: step pay (pay-v1.0 on fraud-7401) is 500 ms past its deadline and nobody \
             has reported its end",
        ),
        (
            "an application's own",
            vec![vec![of(
                "own",
                None,
                told(Application, &[(Executing, 100)]),
            )]],
            "executing: step own (own-v1.0 on fraud-7401) for 900 ms, as the application itself \
             says; it named no deadline",
        ),
    ]);
}

#[test]
fn what_hangs_or_failed_beside_the_open_step() {
    let step = |name, parent, from, state| {
        vec![of(
            name,
            parent,
            told(Caller, &[(Pending, from), (state, from + 2)]),
        )]
    };
    let marked = |name, parent, from| {
        let mut told = step(name, parent, from, Dispatched);
        let mark = of(name, parent, self::told(Watchdog, &[(Timeout, from + 500)]));
        told.push(mark.changed(|report| report.deadline_at = Timestamp::from_millis(from + 500)));
        told
    };
    let flat = |names: std::ops::Range<u64>, state| {
        names.map(move |n| {
            let told = told(Caller, &[(Pending, 100 + n), (state, 102 + n)]);
            vec![of(&format!("s{n}"), Some("pay"), told)]
        })
    };
    let of_three = "executing: step n3 (n3-v1.0 on fraud-7401) for 400 ms, 100 ms left; shop \
                    waits for it";
    let pay = "dispatched: step s9 (s9-v1.0 on fraud-7401) for 100 ms, 400 ms left; shop waits \
               for it";
    hold(vec![
        (
            "the end of a chain was marked",
            vec![
                step("n1", None, 550, Executing),
                step("n2", Some("n1"), 580, Executing),
                step("n3", Some("n2"), 600, Executing),
                marked("n4", Some("n3"), 300),
            ],
            &format!(
                "{of_three}; nobody has reported the end of step n4 (n4-v1.0 on fraud-7401) (due \
                 200 ms ago)"
            ),
        ),
        (
            "a step below has failed, and the one above it by that",
            vec![
                step("n3", None, 600, Executing),
                step("n4", Some("n3"), 610, FailedExecution),
                step("n5", Some("n4"), 611, FailedExecution),
                step("m4", Some("n3"), 620, FailedValidation),
            ],
            &format!(
                "{of_three}; failed on the way: step n5 (n5-v1.0 on fraud-7401) \
                 (failed_execution), step m4 (m4-v1.0 on fraud-7401) (failed_validation)"
            ),
        ),
        (
            "a neighbour hangs, and those above only wait",
            vec![
                step("pay", None, 90, Executing),
                step("s4", Some("pay"), 100, Dispatched),
                step("s9", Some("pay"), 900, Dispatched),
            ],
            &format!(
                "{pay}; nobody has reported the end of step s4 (s4-v1.0 on fraud-7401) (due 400 \
                 ms ago)"
            ),
        ),
        (
            "many hang and one has failed",
            [
                step("s7", Some("pay"), 700, Timeout),
                step("s9", Some("pay"), 900, Dispatched),
            ]
            .into_iter()
            .chain(flat(1..6, Dispatched))
            .collect(),
            &format!(
                "{pay}; nobody has reported the end of step s1 (s1-v1.0 on fraud-7401) (due 399 \
                 ms ago), step s2 (s2-v1.0 on fraud-7401) (due 398 ms ago), step s3 (s3-v1.0 on \
                 fraud-7401) (due 397 ms ago) and 2 more; failed on the way: step s7 (s7-v1.0 on \
                 fraud-7401) (timeout)"
            ),
        ),
        (
            "an application's own hangs nowhere",
            vec![
                step("n3", None, 600, Executing),
                vec![of("own", None, told(Application, &[(FailedExecution, 1)]))],
            ],
            of_three,
        ),
    ]);
}

#[test]
fn where_time_ran_out() {
    let above = |step, parent, ended| {
        vec![of(
            step,
            parent,
            told(Caller, &[(Pending, 0), (Timeout, ended)]),
        )]
    };
    hold(vec![
        (
            "the last step of a chain hung",
            vec![
                above("pay", None, 700),
                above("risk", Some("pay"), 600),
                vec![
                    of(
                        "score",
                        Some("risk"),
                        told(Caller, &[(Pending, 20), (Timeout, 520)]),
                    ),
                    of(
                        "score",
                        Some("risk"),
                        told(Callee, &[(Executing, 21), (Timeout, 521)]),
                    ),
                ],
            ],
            "timeout: step score (score-v1.0 on fraud-7401) ran out of time after 500 ms: its \
             application did not answer",
        ),
        (
            "a sidecar that is silent",
            vec![above("pay", None, 700)],
            "timeout: step pay (pay-v1.0 on fraud-7401) ran out of time after 700 ms; the \
             callee's sidecar has said nothing",
        ),
        (
            "a sidecar that has begun",
            vec![vec![
                caller(&[(Pending, 0), (Timeout, 700)]),
                callee(&[(Dispatched, 5), (Executing, 6)]),
            ]],
            "timeout: step pay (pay-v1.0 on fraud-7401) ran out of time after 700 ms; the \
             callee's sidecar has begun it and told no end yet",
        ),
        (
            "an answer past its time",
            vec![vec![
                caller(&[(Pending, 0), (Timeout, 700)]),
                callee(&[(Executing, 0), (Completed, 800)]),
            ]],
            "timeout: step pay (pay-v1.0 on fraud-7401) ran out of time after 700 ms; it \
             completed after 800 ms, too late",
        ),
        (
            "a reply that came too late for the step above",
            vec![
                above("pay", None, 800),
                vec![
                    of(
                        "risk",
                        Some("pay"),
                        told(Caller, &[(Pending, 0), (Timeout, 700)]),
                    ),
                    of(
                        "risk",
                        Some("pay"),
                        told(Callee, &[(Executing, 10), (Completed, 110)]),
                    ),
                ],
            ],
            "timeout: step risk (risk-v1.0 on fraud-7401) completed after 100 ms within its time, \
             but its caller had given up after 700 ms: the reply was late on its way",
        ),
        (
            "no time at all",
            vec![vec![
                caller(&[(Pending, 0), (Timeout, 1)]).error(Problem::BudgetExhausted, ""),
            ]],
            "timeout: no time was left for step pay (pay-v1.0 on fraud-7401) (The deadline left \
             no time for an attempt)",
        ),
        (
            "a mark of the collector",
            vec![vec![
                caller(&[(Pending, 0), (Dispatched, 2)]),
                of("pay", None, told(Watchdog, &[(Timeout, 700)]))
                    .changed(|report| report.deadline_at = Timestamp::from_millis(500)),
            ]],
            "timeout: step pay (pay-v1.0 on fraud-7401) was due 500 ms ago and nobody has \
             reported its end; the collector has marked it for now, until somebody does",
        ),
    ]);
}

#[test]
fn who_is_down_and_who_is_wrong() {
    let root = |state| vec![caller(&[(Pending, 0), (state, 90)])];
    let step = |name, from, state, until| {
        of(
            name,
            Some("pay"),
            told(Caller, &[(Pending, from), (state, until)]),
        )
    };
    let at_callee = |name, from, state, until| {
        of(
            name,
            Some("pay"),
            told(Callee, &[(Pending, from), (state, until)]),
        )
    };
    hold(vec![
        (
            "step 4 is down",
            vec![
                root(FailedExecution),
                vec![step("s3", 10, Completed, 40)],
                vec![
                    step("s4", 50, FailedExecution, 60)
                        .error(Problem::UpstreamUnreachable, "connection refused"),
                ],
            ],
            "failed_execution: step s4 (s4-v1.0 on fraud-7401) is down: its sidecar cannot be \
             reached (The upstream could not be reached: connection refused)",
        ),
        (
            "the application of step 4 is down",
            vec![
                root(FailedExecution),
                vec![
                    step("s4", 50, FailedExecution, 60).error(Problem::UpstreamUnreachable, "no"),
                    at_callee("s4", 50, FailedExecution, 59)
                        .error(Problem::UpstreamUnreachable, "no"),
                ],
            ],
            "failed_execution: step s4 (s4-v1.0 on fraud-7401) is down: its sidecar cannot reach \
             the application (The upstream could not be reached: no)",
        ),
        (
            "step 3 returned bad data",
            vec![
                root(FailedExecution),
                vec![
                    step("s3", 10, FailedValidation, 40)
                        .error(Problem::OutputInvalid, "/score: too large"),
                ],
            ],
            "failed_execution: step s3 (s3-v1.0 on fraud-7401) returned bad data (The output \
             breaks the contract: /score: too large)",
        ),
        (
            "step 4 was sent what step 3 had returned",
            vec![
                root(FailedExecution),
                vec![step("s3", 10, Completed, 40).digests("in", "out")],
                vec![
                    step("s4", 50, FailedValidation, 60)
                        .digests("out", "")
                        .error(Problem::InputInvalid, "/score: missing"),
                ],
            ],
            "failed_execution: step s4 (s4-v1.0 on fraud-7401) was sent bad data by shop; it is \
             what step s3 (s3-v1.0 on fraud-7401) had returned (The input breaks the contract: \
             /score: missing)",
        ),
        (
            "a body changed on its way",
            vec![vec![
                caller(&[(Pending, 0), (FailedValidation, 90)])
                    .error(Problem::ReplyDigestMismatch, ""),
            ]],
            "failed_validation: the reply of step pay (pay-v1.0 on fraud-7401) was changed on its \
             way (The reply does not match its Content-Digest)",
        ),
        (
            "the step above went on after a failure, and failed by itself",
            vec![
                vec![
                    caller(&[(Pending, 0), (FailedExecution, 90)]),
                    callee(&[(Executing, 1), (FailedExecution, 89)]),
                ],
                vec![step("s3", 10, FailedExecution, 20)],
                vec![step("s4", 30, Completed, 60)],
            ],
            "failed_execution: step pay (pay-v1.0 on fraud-7401) failed",
        ),
        (
            "every attempt and the fallback",
            vec![vec![
                caller(&[(Pending, 0), (FailedExecution, 10)]).attempt(1, "pay-v1.0", "pay-1"),
                caller(&[(Pending, 20), (FailedExecution, 30)]).attempt(2, "pay-v1.0", "pay-2"),
                caller(&[(FallbackInvoked, 40), (FailedExecution, 50)])
                    .attempt(3, "rules-v1.0", "rules-1")
                    .error(Problem::Overloaded, ""),
            ]],
            "failed_execution: step pay (rules-v1.0 on rules-1) takes no more calls at a time \
             (The agent is at its concurrency limit); before that failed_execution on pay-1, \
             failed_execution on pay-2",
        ),
        (
            "a retry may follow",
            vec![vec![
                caller(&[(Pending, 700), (Dispatched, 710)]),
                callee(&[(Executing, 720), (FailedExecution, 900)]),
            ]],
            "failed_execution: step pay (pay-v1.0 on fraud-7401) failed; its caller has not ended \
             the call: a retry or a fallback may follow within 200 ms",
        ),
    ]);
}
