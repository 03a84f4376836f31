//! Who is heard as a side of an attempt, of all that claim to be it.
//!
//! A certificate proves an application, not that it had a part in a call. So reports of different
//! applications are kept apart, and the two sides vouch for each other: a caller names the
//! application of the instance it chose, a callee the application that called.
//!
//! - a call has one caller, whatever the number of an attempt: who claims to be another is a
//!   stranger in each
//! - whoever the caller did not mean is not heard as its callee
//! - whoever the callee that it means did not hear from is not heard as its caller
//! - of several that nothing speaks against, those who name each other come first; the order of
//!   arrival counts for nothing
//! - of applications that tell of their own work nobody can vouch: the one that is a side comes
//!   first, then the first by name
//! - the others are strangers: kept and shown, never applied

use super::attempt::Told;
use crate::task::{Report, Reporter};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Applications that may claim to be the same side of an attempt; each report is weighed against
/// all of them.
pub(super) const MOST_CLAIMS: usize = 8;

/// Why a report of one more is refused.
pub(super) const TOO_MANY: &str =
    "8 other applications have already reported as this side of the attempt";

/// Names who speaks in a report: what the same voice says again is a repeat or a conflict.
pub(super) fn voice(report: &Report) -> String {
    let reporter = report.reporter.as_str();
    match report.reporter {
        // The collector's own.
        Reporter::Watchdog => reporter.to_owned(),
        _ => format!("{reporter}:{}", report.application),
    }
}

/// Bounds the voices that claim to be the same side as this report's.
pub(super) fn rivals(report: &Report) -> Range<String> {
    // The sign after the colon.
    let reporter = report.reporter.as_str();
    format!("{reporter}:")..format!("{reporter};")
}

/// Who counts in one call.
pub(super) struct Hearing<'a> {
    /// The application that made the call; nothing where none claims to that may be heard.
    caller: Option<&'a str>,
    /// By callee, whom it names as its caller in any attempt.
    named: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Hearing<'a> {
    pub(super) fn of(told: &'a [Told]) -> Self {
        let mut named: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut callees: BTreeMap<u32, Vec<&Report>> = BTreeMap::new();
        for report in by(told.iter(), Reporter::Callee) {
            callees.entry(report.attempt).or_default().push(report);
            if let Some(peer) = &report.peer {
                named.entry(&report.application).or_default().insert(peer);
            }
        }
        let mut hearing = Self {
            caller: None,
            named,
        };
        let caller = best(by(told.iter(), Reporter::Caller), |claim| {
            let callees = callees.get(&claim.attempt).map_or(&[][..], Vec::as_slice);
            hearing.as_caller(claim, callees)
        });
        hearing.caller = caller.map(|claim| claim.application.as_str());
        hearing
    }

    /// Splits the reports of one attempt into those that are heard and those of strangers.
    pub(super) fn split(&self, told: Vec<&'a Told>) -> (Vec<&'a Told>, Vec<&'a Told>) {
        let callees: Vec<&Report> = by(told.iter().copied(), Reporter::Callee).collect();
        let claims = by(told.iter().copied(), Reporter::Caller);
        let claims = claims.filter(|claim| self.caller == Some(&claim.application));
        let caller = best(claims, |claim| self.as_caller(claim, &callees));
        let callee = best(callees.iter().copied(), |claim| match caller {
            Some(caller) => as_callee(claim, caller),
            None => Some(0),
        });
        let own = best(by(told.iter().copied(), Reporter::Application), |claim| {
            let is = |side: Option<&Report>| {
                side.is_some_and(|side| side.application == claim.application)
            };
            Some(u8::from(is(callee) || is(caller)))
        });
        let is_heard = |told: &&Told| {
            let is = |chosen: Option<&Report>| {
                chosen.is_some_and(|one| one.application == told.report.application)
            };
            match told.report.reporter {
                Reporter::Caller => is(caller),
                Reporter::Callee => is(callee),
                Reporter::Application => is(own),
                Reporter::Watchdog => true,
            }
        };
        told.into_iter().partition(is_heard)
    }

    /// Ranks who claims to be the caller by what those it means say of it.
    fn as_caller(&self, claim: &Report, callees: &[&Report]) -> Option<u8> {
        let meant = claim.peer.as_deref().and_then(|peer| self.named.get(peer));
        if meant.is_some_and(|named| !named.contains(claim.application.as_str())) {
            return None;
        }
        let rank = callees.iter().filter_map(|callee| as_callee(callee, claim));
        Some(rank.max().unwrap_or(0))
    }
}

/// Returns what is told as one side.
fn by<'a>(
    told: impl Iterator<Item = &'a Told>,
    reporter: Reporter,
) -> impl Iterator<Item = &'a Report> {
    let reports = told.map(|told| &told.report);
    reports.filter(move |report| report.reporter == reporter)
}

/// Returns the claim that ranks highest; of equals the first by name.
fn best<'a>(
    claims: impl Iterator<Item = &'a Report>,
    rank: impl Fn(&Report) -> Option<u8>,
) -> Option<&'a Report> {
    let ranked = claims.filter_map(|claim| Some((rank(claim)?, claim)));
    let best = ranked.max_by_key(|(rank, claim)| (*rank, Reverse(&claim.application)));
    best.map(|(_, claim)| claim)
}

/// Says whether a report names the one that made another; nothing where it names nobody.
fn names(report: &Report, other: &Report) -> Option<bool> {
    let peer = report.peer.as_ref()?;
    Some(*peer == other.application)
}

/// Ranks who claims to be the callee of this caller.
fn as_callee(claim: &Report, caller: &Report) -> Option<u8> {
    let (meant, heard) = (names(caller, claim), names(claim, caller));
    if meant == Some(false) {
        return None;
    }
    let marks = [
        meant == Some(true),
        heard == Some(true),
        claim.instance == caller.instance,
        // One certificate can claim to be both sides, but not two applications.
        claim.application != caller.application,
    ];
    Some(marks.into_iter().map(u8::from).sum())
}

#[cfg(test)]
mod tests {
    use super::super::attempt::attempts;
    use super::super::attempt::tests::told;
    use super::*;
    use crate::task::Reporter::{Application, Callee, Caller};
    use crate::task::State;
    use crate::task::State::{Completed, FailedExecution, Pending, Timeout};

    fn claim(reporter: Reporter, application: &str, peer: Option<&str>, end: State) -> Told {
        told(reporter, &[(Pending, 0), (end, 90)]).with(|report| {
            report.application = application.into();
            report.peer = peer.map(str::to_owned);
        })
    }

    #[test]
    fn sides_vouch_for_each_other() {
        let shop = || claim(Caller, "shop", Some("fraud"), Completed);
        let fraud = || claim(Callee, "fraud", Some("shop"), Completed);
        type Heard = Option<&'static str>;
        let rows: [(&str, Vec<Told>, Heard, Heard); 9] = [
            ("a pair", vec![shop(), fraud()], Some("shop"), Some("fraud")),
            (
                "another claims to be the callee",
                vec![
                    shop(),
                    claim(Callee, "evil", Some("shop"), FailedExecution),
                    fraud(),
                ],
                Some("shop"),
                Some("fraud"),
            ),
            (
                "only another claims to be it",
                vec![shop(), claim(Callee, "evil", Some("shop"), FailedExecution)],
                Some("shop"),
                None,
            ),
            (
                "another claims to be the caller",
                vec![
                    claim(Caller, "evil", Some("fraud"), Timeout),
                    shop(),
                    fraud(),
                ],
                Some("shop"),
                Some("fraud"),
            ),
            (
                "another is the only one that claims to be the caller",
                vec![claim(Caller, "evil", Some("fraud"), Timeout), fraud()],
                None,
                Some("fraud"),
            ),
            (
                "a callee's lie does not silence the caller",
                vec![shop(), claim(Callee, "evil", Some("other"), Timeout)],
                Some("shop"),
                None,
            ),
            (
                "one that claims to be both sides",
                vec![
                    claim(Caller, "evil", Some("evil"), Timeout),
                    claim(Callee, "evil", Some("evil"), Timeout),
                    shop(),
                    fraud(),
                ],
                Some("shop"),
                Some("fraud"),
            ),
            (
                "an application that calls itself",
                vec![
                    claim(Caller, "shop", Some("shop"), Completed),
                    claim(Callee, "shop", Some("shop"), Completed),
                ],
                Some("shop"),
                Some("shop"),
            ),
            (
                "nobody names anybody",
                vec![
                    claim(Caller, "shop", None, Completed),
                    claim(Callee, "fraud", None, Completed),
                ],
                Some("shop"),
                Some("fraud"),
            ),
        ];
        for (what, mut claims, caller, callee) in rows {
            for _ in 0..2 {
                let (heard, strangers) = Hearing::of(&claims).split(claims.iter().collect());
                assert_eq!(heard.len() + strangers.len(), claims.len(), "{what}");
                let of = |reporter| {
                    let mut of = heard.iter().filter(|told| told.report.reporter == reporter);
                    of.next().map(|told| told.report.application.as_str())
                };
                assert_eq!((of(Caller), of(Callee)), (caller, callee), "{what}");
                claims.reverse();
            }
        }
    }

    #[test]
    fn a_strangers_end_is_shown_and_not_applied() {
        let claims = [
            claim(Callee, "evil", Some("shop"), FailedExecution),
            claim(Caller, "shop", Some("fraud"), Timeout).report_only_open(),
            claim(Callee, "fraud", Some("shop"), Completed),
        ];
        let attempts = attempts(&claims);
        assert_eq!(attempts[0].state, Completed);
        let conflicts = attempts[0].conflicts();
        assert_eq!(conflicts.len(), 1);
        assert_eq!(conflicts[0].0.state, FailedExecution);
    }

    impl Told {
        /// Takes its end back.
        fn report_only_open(mut self) -> Self {
            self.report.states.truncate(1);
            self.report.state = Pending;
            self
        }
    }

    #[test]
    fn of_applications_own_words_that_of_a_side_counts() {
        let own = |application, end| claim(Application, application, None, end);
        let sides = [
            claim(Caller, "shop", Some("fraud"), Pending),
            claim(Callee, "fraud", Some("shop"), Pending),
        ];
        let words = [own("evil", FailedExecution), own("fraud", Completed)];
        for (told, heard) in [
            (words.to_vec(), "evil"),
            ([sides.to_vec(), words.to_vec()].concat(), "fraud"),
        ] {
            for reversed in [false, true] {
                let mut told = told.clone();
                if reversed {
                    told.reverse();
                }
                let attempts = attempts(&told);
                assert_eq!(attempts.len(), 1);
                assert_eq!(attempts[0].by(Application).unwrap().application, heard);
                // What the other says is shown.
                assert_eq!(attempts[0].conflicts().len(), 1);
            }
        }
    }
}
