//! How what several reporters say of one attempt, and of one call, becomes one answer.
//!
//! - an end state beats an open one; among ends the caller's counts, since its application lives
//!   with it, with one exception: work that the callee completed in time beats the caller's
//!   timeout, and is shown as late
//! - what an application says counts where no sidecar speaks; a watchdog's mark gives way to all

use super::claims::Hearing;
use crate::task::{Failure, Id, Report, Reporter, SlaLevel, State, StateAt, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an application's own word holds a step open that no sidecar speaks of, and that has no
/// deadline therefore.
const OWN_WORD: Duration = Duration::from_secs(3600);

/// One report as it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) report: Report,
    /// What a report said beyond its fields: an application's own word, or a callee's of the path.
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
    /// Reports of those who had no part in it.
    strangers: Vec<&'a Told>,
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
    /// Whether nobody but the watchdog has told of its end.
    pub(super) is_marked: bool,
}

impl CallSummary {
    /// Says whether no step made this call, as far as that counts.
    pub(super) fn is_root(&self) -> bool {
        self.parent_step.is_none() && self.by_sidecar
    }
}

/// Groups the reports of one call by attempt, oldest attempt first.
pub(super) fn attempts(told: &[Told]) -> Vec<Attempt<'_>> {
    let hearing = Hearing::of(told);
    let mut by_number: BTreeMap<u32, Vec<&Told>> = BTreeMap::new();
    for told in told {
        by_number.entry(told.report.attempt).or_default().push(told);
    }
    let groups = by_number.into_iter().map(|(number, mut of)| {
        let key = |told: &Told| (told.report.reporter, !told.report.state.is_end());
        of.sort_by(|one, two| {
            let names = one.report.application.cmp(&two.report.application);
            key(one).cmp(&key(two)).then(names)
        });
        let (heard, strangers) = hearing.split(of);
        Group {
            number,
            heard,
            strangers,
        }
    });
    let groups = settled(groups.collect()).into_iter();
    let decided = groups.map(|group| Attempt::decide(group.number, group.heard, group.strangers));
    decided.flatten().collect()
}

/// What is told of one attempt.
struct Group<'a> {
    number: u32,
    heard: Vec<&'a Told>,
    strangers: Vec<&'a Told>,
}

impl Group<'_> {
    fn is_made(&self) -> bool {
        let mut heard = self.heard.iter();
        heard.any(|told| told.report.reporter != Reporter::Watchdog)
    }
}

/// Leaves the attempts that were made. What only strangers tell of was not: that is shown beside
/// the newest that was.
fn settled(mut groups: Vec<Group<'_>>) -> Vec<Group<'_>> {
    if !groups.iter().any(Group::is_made) {
        // Somebody has to be heard for the call to be shown at all.
        for group in groups.iter_mut().filter(|group| group.heard.is_empty()) {
            std::mem::swap(&mut group.heard, &mut group.strangers);
        }
        return groups;
    }
    let (mut made, foreign): (Vec<_>, Vec<_>) = groups.into_iter().partition(Group::is_made);
    if let Some(newest) = made.last_mut() {
        let strangers = foreign.into_iter().flat_map(|group| group.strangers);
        newest.strangers.extend(strangers);
    }
    made
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
        parent_step: parent(&attempts),
        // The contract asked for; a fallback's attempts come later.
        agent: asked.agent.clone(),
        application: asked.application.clone(),
        sla_level: asked.sla_level,
        state: newest.state,
        degraded: newest.is_degraded(),
        started_at: attempts.iter().map(Attempt::started_at).min()?,
        ended_at: newest.ended_at(),
        deadline_at: newest.due_at(),
        is_marked: newest.is_marked(),
    })
}

/// Returns the attempt that a call stands by: the newest that a sidecar speaks of, since an
/// application may tell of attempts that nobody made.
pub(super) fn newest<'s, 'a>(attempts: &'s [Attempt<'a>]) -> Option<&'s Attempt<'a>> {
    let mut newest_first = attempts.iter().rev();
    let of_a_sidecar = newest_first.find(|attempt| attempt.is_of_a_sidecar());
    of_a_sidecar.or(attempts.last())
}

/// Returns the step that made this call, as the first who is heard and knows it says; an application
/// only where no sidecar speaks.
fn parent(attempts: &[Attempt<'_>]) -> Option<Id> {
    let of_sidecars = attempts.iter().any(Attempt::is_of_a_sidecar);
    let counts = |report: &&Report| {
        !of_sidecars || matches!(report.reporter, Reporter::Caller | Reporter::Callee)
    };
    let parent = attempts.iter().find_map(|attempt| {
        attempt.first(|report| Some(report).filter(counts)?.parent_step.as_ref())
    });
    parent.cloned()
}

impl<'a> Attempt<'a> {
    fn decide(number: u32, mut told: Vec<&'a Told>, strangers: Vec<&'a Told>) -> Option<Self> {
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
        let real = end.or(ended(Reporter::Application));
        let end = real.or(ended(Reporter::Watchdog));
        if real.is_some() {
            told.retain(|told| told.report.reporter != Reporter::Watchdog);
        }
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
            strangers,
        })
    }

    fn is_of_a_sidecar(&self) -> bool {
        self.by(Reporter::Caller).is_some() || self.by(Reporter::Callee).is_some()
    }

    /// Says whether nobody but the watchdog has told of its end.
    pub(super) fn is_marked(&self) -> bool {
        self.decisive.reporter == Reporter::Watchdog
    }

    /// Returns when its end should have been told: by the latest deadline of a sidecar, since the
    /// caller waits on after its callee's.
    pub(super) fn due_at(&self) -> Timestamp {
        let sidecars = [Reporter::Caller, Reporter::Callee].map(|reporter| self.by(reporter));
        let deadlines = sidecars.into_iter().flatten();
        if let Some(latest) = deadlines.map(|report| report.deadline_at).max() {
            return latest;
        }
        match self.is_marked() {
            true => self.decisive.deadline_at,
            // The time of its word stands where a deadline would.
            false => self.decisive.deadline_at.plus(OWN_WORD),
        }
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

    /// Returns the contract that was called.
    pub(super) fn agent(&self) -> &'a str {
        &self.anyone().agent
    }

    /// Returns where it ran, as the first reporter that knows it says.
    pub(super) fn instance(&self) -> &'a str {
        let known = |report: &'a Report| {
            Some(report.instance.as_str()).filter(|instance| !instance.is_empty())
        };
        self.first(known).unwrap_or_default()
    }

    /// Returns the first value that any reporter gives, the most trusted one first.
    pub(super) fn first<T>(&self, of: impl Fn(&'a Report) -> Option<T>) -> Option<T> {
        self.told.iter().find_map(|told| of(&told.report))
    }

    pub(super) fn input_digest(&self) -> Option<&'a str> {
        self.first(|report| report.input_digest.as_deref())
    }

    pub(super) fn output_digest(&self) -> Option<&'a str> {
        self.first(|report| report.output_digest.as_deref())
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

    /// Returns what the application said beyond the fields of a report.
    pub(super) fn detail(&self) -> Option<&'a str> {
        let mut told = self.told.iter();
        let own = told.find(|told| told.report.reporter == Reporter::Application)?;
        own.detail.as_deref()
    }

    pub(super) fn told(&self) -> &[&'a Told] {
        &self.told
    }

    /// Returns ends that contradict what counts, and those that strangers told.
    pub(super) fn conflicts(&self) -> Vec<(StateAt, Reporter)> {
        let of = |told: &&'a Told| {
            let reporter = told.report.reporter;
            let conflicts = told.conflicts.iter();
            conflicts
                .map(move |state| (*state, reporter))
                .collect::<Vec<_>>()
        };
        let foreign = self.strangers.iter().filter_map(|told| {
            let end = told.report.states.last();
            let end = end.filter(|end| end.state.is_end())?;
            Some((*end, told.report.reporter))
        });
        self.told.iter().flat_map(of).chain(foreign).collect()
    }

    /// Returns each state once, in order of time, with who saw it best: the caller knows when a call
    /// was sent, the callee when it was executed, and who decided knows the end.
    ///
    /// Clocks differ, but a fallback's own attempt begins by its caller's choice, and nothing
    /// follows an end.
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
        let chosen = self
            .by(Reporter::Caller)
            .and_then(|report| report.states.first());
        let is_chosen = |state| {
            state == State::FallbackInvoked && chosen.is_some_and(|first| first.state == state)
        };
        // Of the same moment, life order stays.
        states.sort_by_key(|(at, _)| (!is_chosen(at.state), at.at));
        if let Some(at) = self.ended_at() {
            let state = self.state;
            states.push((StateAt { state, at }, self.decisive.reporter));
        }
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
pub(super) mod tests;
