//! How what several reporters say of one attempt, and of one call, becomes one answer.
//!
//! - an end state beats an open one; among ends the caller's counts, since its application lives
//!   with it, with one exception: work that the callee completed in time beats the caller's
//!   timeout, and is shown as late
//! - what an application says counts where no sidecar speaks; a watchdog's mark gives way to all

use crate::task::{Failure, Id, Report, Reporter, SlaLevel, State, StateAt, Timestamp};
use std::time::Duration;

/// One report as it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) report: Report,
    /// What a short report said beyond the fields of a report.
    pub(super) detail: Option<String>,
    /// Other end states that the same reporter told later; kept, not applied.
    pub(super) conflicts: Vec<StateAt>,
}

/// One attempt, as all its reporters together tell it.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    pub(super) number: u32,
    pub(super) state: State,
    pub(super) late: bool,
    /// The report that decided.
    pub(super) decisive: &'a Report,
    told: Vec<&'a Told>,
}

/// One call in a line; what lists and totals are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallSummary {
    pub(super) call_id: Id,
    pub(super) task_id: Id,
    pub(super) step_id: Id,
    pub(super) parent_step: Option<Id>,
    /// Whether a sidecar speaks of it: beside such calls, what an application tells of steps of
    /// its own says nothing of how the task stands.
    pub(super) by_sidecar: bool,
    pub(super) agent: String,
    pub(super) application: String,
    pub(super) sla_level: SlaLevel,
    pub(super) state: State,
    pub(super) degraded: bool,
    pub(super) started_at: Timestamp,
    pub(super) ended_at: Option<Timestamp>,
    pub(super) deadline_at: Timestamp,
}

impl CallSummary {
    /// Says whether no step made this call, as far as that counts.
    pub(super) fn is_root(&self) -> bool {
        self.parent_step.is_none() && self.by_sidecar
    }
}

/// Groups the reports of one call by attempt, oldest attempt first.
pub(super) fn attempts(told: &[Told]) -> Vec<Attempt<'_>> {
    let mut numbers: Vec<u32> = told.iter().map(|told| told.report.attempt).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let attempt = |number| {
        let mut of: Vec<&Told> = told
            .iter()
            .filter(|told| told.report.attempt == number)
            .collect();
        of.sort_by_key(|told| told.report.reporter);
        Attempt::decide(number, of)
    };
    numbers.into_iter().filter_map(attempt).collect()
}

/// Sums up the reports of one call; `None` without any.
pub(super) fn summarise(told: &[Told]) -> Option<CallSummary> {
    let attempts = attempts(told);
    let (first, newest) = (attempts.first()?, newest(&attempts)?);
    let asked = first.anyone();
    Some(CallSummary {
        by_sidecar: attempts.iter().any(Attempt::is_of_a_sidecar),
        call_id: asked.call_id.clone(),
        task_id: asked.task_id.clone(),
        step_id: asked.step_id.clone(),
        parent_step: parent(told),
        // The contract asked for; a fallback's attempts come later.
        agent: asked.agent.clone(),
        application: asked.application.clone(),
        sla_level: asked.sla_level,
        state: newest.state,
        degraded: newest.is_degraded(),
        started_at: attempts.iter().map(Attempt::started_at).min()?,
        ended_at: newest.ended_at(),
        deadline_at: newest.decisive.deadline_at,
    })
}

/// Returns the attempt that a call stands by: the newest that a sidecar speaks of, since an
/// application may tell of attempts that nobody made.
pub(super) fn newest<'s, 'a>(attempts: &'s [Attempt<'a>]) -> Option<&'s Attempt<'a>> {
    let mut newest_first = attempts.iter().rev();
    let of_a_sidecar = newest_first.find(|attempt| attempt.is_of_a_sidecar());
    of_a_sidecar.or(attempts.last())
}

/// Returns the step that made this call, as the first reporter that knows it says.
pub(super) fn parent(told: &[Told]) -> Option<Id> {
    told.iter().find_map(|told| told.report.parent_step.clone())
}

impl<'a> Attempt<'a> {
    fn decide(number: u32, told: Vec<&'a Told>) -> Option<Self> {
        let of = |reporter| {
            let found = told.iter().find(|told| told.report.reporter == reporter);
            found.map(|told| &told.report)
        };
        let ended = |reporter| of(reporter).filter(|report| report.state.is_end());
        let (caller, callee) = (ended(Reporter::Caller), ended(Reporter::Callee));
        let late = match (caller, callee) {
            (Some(caller), Some(callee)) => {
                caller.state == State::Timeout
                    && callee.state == State::Completed
                    && is_in_time(callee)
            }
            _ => false,
        };
        let end = if late { callee } else { caller.or(callee) };
        let end = end
            .or(ended(Reporter::Application))
            .or(ended(Reporter::Watchdog));
        let furthest = || {
            let reports = told.iter().map(|told| &told.report);
            reports.max_by_key(|report| rank(report.state))
        };
        let decisive = end.or_else(furthest)?;
        Some(Self {
            number,
            state: decisive.state,
            late,
            decisive,
            told,
        })
    }

    fn is_of_a_sidecar(&self) -> bool {
        self.by(Reporter::Caller).is_some() || self.by(Reporter::Callee).is_some()
    }

    /// Says whether the reply found nobody, as any of the reporters saw it.
    pub(super) fn is_undelivered(&self) -> bool {
        self.told.iter().any(|told| told.report.undelivered)
    }

    /// Returns the report of the most trusted reporter there is.
    pub(super) fn anyone(&self) -> &'a Report {
        self.told.first().map_or(self.decisive, |told| &told.report)
    }

    pub(super) fn by(&self, reporter: Reporter) -> Option<&'a Report> {
        let found = self
            .told
            .iter()
            .find(|told| told.report.reporter == reporter);
        found.map(|told| &told.report)
    }

    /// Returns the first value that any reporter gives, the most trusted one first.
    pub(super) fn first<T>(&self, of: impl Fn(&'a Report) -> Option<T>) -> Option<T> {
        self.told.iter().find_map(|told| of(&told.report))
    }

    pub(super) fn is_degraded(&self) -> bool {
        self.told.iter().any(|told| told.report.degraded)
    }

    pub(super) fn started_at(&self) -> Timestamp {
        let times = self.told.iter().flat_map(|told| &told.report.states);
        let earliest = times.map(|state| state.at).min();
        earliest.unwrap_or(self.decisive.deadline_at)
    }

    pub(super) fn ended_at(&self) -> Option<Timestamp> {
        let end = self.decisive.states.last().map(|last| last.at);
        let end = end.or_else(|| Some(self.started_at()));
        end.filter(|_| self.state.is_end())
    }

    /// Returns the error of the report that decided, else anybody's.
    pub(super) fn error(&self) -> Option<&'a Failure> {
        let decisive = self.decisive.error.as_ref();
        let others = || self.first(|report| report.error.as_ref());
        decisive
            .or_else(others)
            .filter(|_| self.state != State::Completed)
    }

    pub(super) fn detail(&self) -> Option<&'a str> {
        self.told.iter().find_map(|told| told.detail.as_deref())
    }

    pub(super) fn conflicts(&self) -> Vec<(StateAt, Reporter)> {
        let of = |told: &&'a Told| {
            let reporter = told.report.reporter;
            let conflicts = told.conflicts.iter();
            conflicts
                .map(move |state| (*state, reporter))
                .collect::<Vec<_>>()
        };
        self.told.iter().flat_map(of).collect()
    }

    /// Returns each state once, in life order, with who saw it best: the caller knows when a call
    /// was sent, the callee when it was executed, and who decided knows the end.
    pub(super) fn states(&self) -> Vec<(StateAt, Reporter)> {
        let mut states: Vec<(StateAt, Reporter)> = Vec::new();
        for state in State::ALL.into_iter().filter(|state| !state.is_end()) {
            let told = self.told.iter().map(|told| &told.report);
            let mut seen: Vec<(StateAt, Reporter)> = told
                .filter_map(|report| {
                    let at = report.states.iter().find(|at| at.state == state)?;
                    Some((*at, report.reporter))
                })
                .collect();
            if state == State::Executing {
                // Reporters are in order of trust, which puts the caller first.
                seen.sort_by_key(|(_, reporter)| *reporter != Reporter::Callee);
            }
            states.extend(seen.first());
        }
        if let Some(at) = self.ended_at() {
            let state = self.state;
            states.push((StateAt { state, at }, self.decisive.reporter));
        }
        states.sort_by_key(|(at, _)| rank(at.state));
        states
    }

    /// Says which bodies the two sides saw differently.
    pub(super) fn breaks(&self) -> Vec<Break<'a>> {
        let (Some(caller), Some(callee)) = (self.by(Reporter::Caller), self.by(Reporter::Callee))
        else {
            return Vec::new();
        };
        let pairs = [
            ("input", &caller.input_digest, &callee.input_digest),
            ("output", &caller.output_digest, &callee.output_digest),
        ];
        let differ = |(body, caller, callee): (&'static str, &'a Option<String>, _)| {
            let (caller, callee): (_, &'a Option<String>) = (caller.as_deref()?, callee);
            let callee = callee.as_deref()?;
            (caller != callee).then_some(Break {
                body,
                caller,
                callee,
            })
        };
        pairs.into_iter().filter_map(differ).collect()
    }
}

/// A body whose digest differs between the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Break<'a> {
    pub(super) body: &'static str,
    pub(super) caller: &'a str,
    pub(super) callee: &'a str,
}

/// Says whether the callee was done before its own deadline, by its own clock alone.
fn is_in_time(callee: &Report) -> bool {
    let began = callee.states.first();
    let timeout = began.map(|first| first.at.age(callee.deadline_at));
    timeout.is_none_or(|timeout| Duration::from_millis(callee.duration_ms) <= timeout)
}

/// Orders states by how far an attempt has come.
fn rank(state: State) -> u8 {
    match state {
        // A standby's own attempt begins with it.
        State::FallbackInvoked | State::Pending => 0,
        State::Dispatched => 1,
        State::Executing => 2,
        State::Completed | State::FailedValidation | State::FailedExecution | State::Timeout => 3,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use State::*;

    /// Builds reports for tables of cases.
    pub(in crate::collector) struct Sketch(Told);

    pub(in crate::collector) fn told(reporter: Reporter, states: &[(State, u64)]) -> Sketch {
        let id = |text| Id::parse(text).unwrap();
        let at = |(state, at): &(State, u64)| StateAt {
            state: *state,
            at: Timestamp::from_millis(*at),
        };
        let (first, last) = (states[0], states[states.len() - 1]);
        Sketch(Told {
            report: Report {
                call_id: id("call-1"),
                task_id: id("task-1"),
                step_id: id("step-1"),
                parent_step: None,
                attempt: 1,
                state: last.0,
                states: states.iter().map(at).collect(),
                reporter,
                agent: "fraud-detection-v1.0".into(),
                agent_version: "1.0.0".into(),
                instance: "fraud-7401".into(),
                deadline_at: Timestamp::from_millis(first.1 + 500),
                duration_ms: last.1 - first.1,
                input_digest: None,
                output_digest: None,
                degraded: false,
                undelivered: false,
                error: None,
                detail: None,
                sla_level: SlaLevel::P2,
                scenario: None,
                requester: None,
                trace_id: String::new(),
                application: "shop".into(),
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
    fn states_are_merged_in_life_order() {
        let reports = [
            told(
                Reporter::Callee,
                &[(Dispatched, 2), (Executing, 3), (Completed, 80)],
            )
            .plain(),
            told(
                Reporter::Caller,
                &[
                    (Pending, 0),
                    (Dispatched, 5),
                    (Executing, 6),
                    (Completed, 90),
                ],
            )
            .plain(),
        ];
        let attempts = attempts(&reports);
        let states: Vec<(State, u64, Reporter)> = attempts[0]
            .states()
            .into_iter()
            .map(|(at, reporter)| (at.state, at.at.millis(), reporter))
            .collect();
        let expected = [
            (Pending, 0, Reporter::Caller),
            (Dispatched, 5, Reporter::Caller),
            (Executing, 3, Reporter::Callee),
            (Completed, 90, Reporter::Caller),
        ];
        assert_eq!(states, expected);
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
}
