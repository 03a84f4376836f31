//! Reports of one attempt and what they come to.

use super::*;
use State::*;

/// Builds reports for tables of cases.
pub(in crate::collector) struct Sketch(Told);

pub(in crate::collector) fn told(reporter: Reporter, states: &[(State, u64)]) -> Sketch {
    let at = |(state, at): &(State, u64)| StateAt {
        state: *state,
        at: Timestamp::from_millis(*at),
    };
    let (first, last) = (states[0], states[states.len() - 1]);
    Sketch(Told {
        report: Report {
            state: last.0,
            states: states.iter().map(at).collect(),
            reporter,
            deadline_at: Timestamp::from_millis(first.1 + 500),
            duration_ms: last.1 - first.1,
            application: "shop".into(),
            ..Report::sample("call-1")
        },
        detail: None,
        conflicts: Vec::new(),
    })
}

impl Sketch {
    pub(in crate::collector) fn with(mut self, change: impl FnOnce(&mut Report)) -> Told {
        change(&mut self.0.report);
        self.0
    }

    pub(in crate::collector) fn plain(self) -> Told {
        self.0
    }

    /// Moves to another step: `call`, `step`, `parent`.
    pub(in crate::collector) fn step(self, step: &str, parent: Option<&str>) -> Told {
        self.with(|report| {
            report.call_id = Id::parse(&format!("call-{step}")).unwrap();
            report.step_id = Id::parse(step).unwrap();
            report.parent_step = parent.map(|parent| Id::parse(parent).unwrap());
            report.agent = format!("{step}-v1.0");
        })
    }
}

#[test]
fn reporters_are_weighed() {
    use Reporter::*;
    let rows: [(&str, Vec<Told>, State, Reporter, bool); 8] = [
        (
            "both agree",
            vec![
                told(Caller, &[(Pending, 0), (Dispatched, 1), (Completed, 90)]).plain(),
                told(Callee, &[(Dispatched, 2), (Executing, 3), (Completed, 80)]).plain(),
            ],
            Completed,
            Caller,
            false,
        ),
        (
            "completed in time, but the caller had given up",
            vec![
                told(Caller, &[(Pending, 0), (Timeout, 700)]).plain(),
                told(Callee, &[(Executing, 400), (Completed, 800)]).plain(),
            ],
            Completed,
            Callee,
            true,
        ),
        (
            "completed too late by the callee's own clock",
            vec![
                told(Caller, &[(Pending, 0), (Timeout, 700)]).plain(),
                told(Callee, &[(Executing, 10), (Completed, 811)]).plain(),
            ],
            Timeout,
            Caller,
            false,
        ),
        (
            "the caller refused what the callee held good",
            vec![
                told(Caller, &[(Pending, 0), (FailedValidation, 50)]).plain(),
                told(Callee, &[(Executing, 10), (Completed, 40)]).plain(),
            ],
            FailedValidation,
            Caller,
            false,
        ),
        (
            "the caller has not ended",
            vec![
                told(Caller, &[(Pending, 0), (Dispatched, 1)]).plain(),
                told(Callee, &[(Executing, 10), (FailedExecution, 40)]).plain(),
            ],
            FailedExecution,
            Callee,
            false,
        ),
        (
            "nobody has ended",
            vec![
                told(Caller, &[(Pending, 0), (Dispatched, 1)]).plain(),
                told(Callee, &[(Dispatched, 2), (Executing, 3)]).plain(),
            ],
            Executing,
            Callee,
            false,
        ),
        (
            "a watchdog's mark gives way",
            vec![
                told(Watchdog, &[(Timeout, 900)]).plain(),
                told(Application, &[(Completed, 950)]).plain(),
            ],
            Completed,
            Application,
            false,
        ),
        (
            "a watchdog's mark beats silence",
            vec![
                told(Watchdog, &[(Timeout, 900)]).plain(),
                told(Callee, &[(Executing, 950)]).plain(),
            ],
            Timeout,
            Watchdog,
            false,
        ),
    ];
    for (what, mut reports, state, by, late) in rows {
        for _ in 0..2 {
            let attempts = attempts(&reports);
            let attempt = &attempts[0];
            let got = (attempt.state, attempt.decisive.reporter, attempt.late);
            assert_eq!(got, (state, by, late), "{what}");
            // The order of arrival does not matter.
            reports.reverse();
        }
    }
}

#[test]
fn states_are_merged_in_order_of_time() {
    use Reporter::{Callee, Caller};
    type Row = (&'static str, Vec<Told>, Vec<(State, u64, Reporter)>);
    let rows: [Row; 4] = [
        (
            "each by who saw it best",
            vec![
                told(Callee, &[(Dispatched, 2), (Executing, 8), (Completed, 80)]).plain(),
                told(
                    Caller,
                    &[
                        (Pending, 0),
                        (Dispatched, 5),
                        (Executing, 9),
                        (Completed, 90),
                    ],
                )
                .plain(),
            ],
            vec![
                (Pending, 0, Caller),
                (Dispatched, 5, Caller),
                (Executing, 8, Callee),
                (Completed, 90, Caller),
            ],
        ),
        (
            "a retry that only its callee calls pending",
            vec![
                told(Caller, &[(Dispatched, 198), (Completed, 290)]).plain(),
                told(
                    Callee,
                    &[(Pending, 199), (Executing, 199), (Completed, 280)],
                )
                .plain(),
            ],
            vec![
                (Dispatched, 198, Caller),
                (Pending, 199, Callee),
                (Executing, 199, Callee),
                (Completed, 290, Caller),
            ],
        ),
        (
            "a fallback whose callee's clock is behind",
            vec![
                told(Callee, &[(Pending, 50), (Executing, 52)]).plain(),
                told(Caller, &[(FallbackInvoked, 100), (Dispatched, 101)]).plain(),
            ],
            vec![
                (FallbackInvoked, 100, Caller),
                (Pending, 50, Callee),
                (Executing, 52, Callee),
                (Dispatched, 101, Caller),
            ],
        ),
        (
            "an end by a clock that is behind",
            vec![
                told(Caller, &[(Pending, 0), (Completed, 90)]).plain(),
                told(Callee, &[(Executing, 500), (Completed, 580)]).plain(),
            ],
            vec![
                (Pending, 0, Caller),
                (Executing, 500, Callee),
                (Completed, 90, Caller),
            ],
        ),
    ];
    for (what, mut reports, expected) in rows {
        for _ in 0..2 {
            let attempts = attempts(&reports);
            let states = attempts[0].states().into_iter();
            let states: Vec<(State, u64, Reporter)> = states
                .map(|(at, reporter)| (at.state, at.at.millis(), reporter))
                .collect();
            assert_eq!(states, expected, "{what}");
            reports.reverse();
        }
    }
}

#[test]
fn a_call_is_summed_up_by_its_newest_attempt() {
    let reports = [
        told(Reporter::Caller, &[(Pending, 100), (FailedExecution, 200)]).plain(),
        told(
            Reporter::Caller,
            &[(FallbackInvoked, 210), (Dispatched, 220)],
        )
        .with(|report| {
            report.attempt = 2;
            report.agent = "fraud-rules-v1.0".into();
            report.degraded = true;
        }),
    ];
    let call = summarise(&reports).unwrap();
    assert_eq!(call.state, Dispatched);
    assert_eq!(call.agent, "fraud-detection-v1.0");
    assert_eq!(call.started_at.millis(), 100);
    assert_eq!(call.ended_at, None);
    assert!(call.degraded);
    assert_eq!(summarise(&[]), None);
}

#[test]
fn only_those_who_are_heard_name_the_parent() {
    let shop = told(Reporter::Caller, &[(Completed, 90)]).with(|report| {
        report.peer = Some("fraud".into());
    });
    for (reporter, application) in [
        (Reporter::Callee, "evil"),
        (Reporter::Caller, "evil"),
        (Reporter::Application, "shop"),
    ] {
        let other = told(reporter, &[(Executing, 10)]).with(|report| {
            report.application = application.into();
            report.peer = Some("other".into());
            report.parent_step = Some(Id::parse("forged").unwrap());
        });
        let fraud = told(Reporter::Callee, &[(Completed, 80)]).with(|report| {
            report.application = "fraud".into();
            report.peer = Some("shop".into());
        });
        let call = summarise(&[other, fraud, shop.clone()]).unwrap();
        assert!(call.is_root(), "{reporter:?} {application}");
    }
}

#[test]
fn an_attempt_that_only_the_application_tells_of_decides_nothing() {
    let ended = told(Reporter::Caller, &[(Pending, 100), (Completed, 200)]).plain();
    for state in [FailedExecution, Executing] {
        let own = told(Reporter::Application, &[(state, 150)]);
        let own = own.with(|report| report.attempt = 2);
        let alone = summarise(std::slice::from_ref(&own)).unwrap();
        assert_eq!(alone.state, state);
        let call = summarise(&[ended.clone(), own]).unwrap();
        assert_eq!(call.state, Completed, "{state}");
        assert_eq!(call.ended_at.map(Timestamp::millis), Some(200));
    }
}

#[test]
fn a_stranger_makes_no_attempt() {
    let claim = |reporter, application: &str, peer: &str, state| {
        told(reporter, &[(Pending, 100), (state, 200)]).with(|report| {
            report.application = application.into();
            report.peer = Some(peer.into());
        })
    };
    let second = |mut told: Told| {
        told.report.attempt = 2;
        told
    };
    let shop = || claim(Reporter::Caller, "shop", "fraud", Timeout);
    let fraud = || claim(Reporter::Callee, "fraud", "shop", FailedExecution);
    let rows = [
        (
            "a callee that claims to have called, too",
            vec![
                shop(),
                fraud(),
                second(claim(Reporter::Caller, "fraud", "fraud", Completed)),
            ],
            Timeout,
        ),
        (
            "whose callee names another caller elsewhere",
            vec![
                fraud(),
                second(claim(Reporter::Caller, "evil", "fraud", Completed)),
            ],
            FailedExecution,
        ),
        (
            "that a mark was made of while nobody else was heard",
            vec![
                shop(),
                fraud(),
                second(claim(Reporter::Caller, "evil", "fraud", Completed)),
                second(told(Reporter::Watchdog, &[(Timeout, 900)]).plain()),
            ],
            Timeout,
        ),
    ];
    for (what, mut reports, state) in rows {
        for _ in 0..2 {
            let attempts = attempts(&reports);
            assert_eq!(attempts.len(), 1, "{what}");
            assert_eq!(summarise(&reports).unwrap().state, state, "{what}");
            // It is kept and shown.
            let shown = attempts[0].conflicts();
            assert_eq!(shown.len(), 1, "{what}");
            assert_eq!(
                (shown[0].0.state, shown[0].1),
                (Completed, Reporter::Caller)
            );
            reports.reverse();
        }
    }
}

#[test]
fn different_digests_break_the_chain() {
    let digests = |input: &str, output: Option<&str>| {
        let (input, output) = (Some(input.to_owned()), output.map(str::to_owned));
        move |report: &mut Report| {
            report.input_digest = input;
            report.output_digest = output;
        }
    };
    for (callee, breaks) in [
        (digests("a", Some("b")), vec![]),
        (digests("x", Some("b")), vec!["input"]),
        (digests("x", Some("y")), vec!["input", "output"]),
        (digests("a", None), vec![]),
    ] {
        let reports = [
            told(Reporter::Caller, &[(Completed, 1)]).with(digests("a", Some("b"))),
            told(Reporter::Callee, &[(Completed, 1)]).with(callee),
        ];
        let attempts = attempts(&reports);
        let found: Vec<&str> = attempts[0].breaks().iter().map(|b| b.body).collect();
        assert_eq!(found, breaks);
    }
}
