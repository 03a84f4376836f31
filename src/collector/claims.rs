//! Who is heard as a side of an attempt, of all that claim to be it.
//!
//! A certificate proves an application, not that it had a part in a call. So reports of different
//! applications are kept apart, and the two sides vouch for each other: a caller names the
//! application of the instance it chose, a callee the application that called.
//!
//! - whoever the caller did not mean is not heard as its callee
//! - whoever the callee that it means did not hear from is not heard as its caller
//! - of several that nothing speaks against, those who name each other come first; the order of
//!   arrival counts for nothing
//! - the others are strangers: kept and shown, never applied

use super::attempt::Told;
use crate::task::{Report, Reporter};
use std::cmp::Reverse;

/// Names who speaks in a report: what the same voice says again is a repeat or a conflict.
pub(super) fn voice(report: &Report) -> String {
    let reporter = report.reporter.as_str();
    match report.reporter {
        Reporter::Caller | Reporter::Callee => format!("{reporter}:{}", report.application),
        Reporter::Application | Reporter::Watchdog => reporter.to_owned(),
    }
}

/// Splits the reports of one attempt into those that are heard and those of strangers.
pub(super) fn heard(told: Vec<&Told>) -> (Vec<&Told>, Vec<&Told>) {
    let claims = |reporter| -> Vec<&Report> {
        let all = told.iter().map(|told| &told.report);
        all.filter(|report| report.reporter == reporter).collect()
    };
    let callees = claims(Reporter::Callee);
    let caller = best(&claims(Reporter::Caller), |claim| {
        as_caller(claim, &callees)
    });
    let callee = best(&callees, |claim| match caller {
        Some(caller) => as_callee(claim, caller),
        None => Some(0),
    });
    let is_heard = |told: &&Told| {
        let is =
            |chosen: Option<&Report>| chosen.is_some_and(|one| std::ptr::eq(one, &told.report));
        match told.report.reporter {
            Reporter::Caller => is(caller),
            Reporter::Callee => is(callee),
            Reporter::Application | Reporter::Watchdog => true,
        }
    };
    told.into_iter().partition(is_heard)
}

/// Returns the claim that ranks highest; of equals the first by name.
fn best<'a>(claims: &[&'a Report], rank: impl Fn(&Report) -> Option<u8>) -> Option<&'a Report> {
    let ranked = claims
        .iter()
        .filter_map(|claim| Some((rank(claim)?, *claim)));
    let best = ranked.max_by_key(|(rank, claim)| (*rank, Reverse(&claim.application)));
    best.map(|(_, claim)| claim)
}

/// Says whether a report names the one that made another; nothing where it names nobody.
fn names(report: &Report, other: &Report) -> Option<bool> {
    let peer = report.peer.as_ref()?;
    Some(*peer == other.application)
}

/// Ranks who claims to be the caller by what those it means say of it.
fn as_caller(claim: &Report, callees: &[&Report]) -> Option<u8> {
    let meant = || {
        let callees = callees.iter();
        callees.filter(|callee| names(claim, callee) != Some(false))
    };
    let is_denied = |callee: &&&Report| {
        names(claim, callee) == Some(true) && names(callee, claim) == Some(false)
    };
    if meant().any(|callee| is_denied(&callee)) {
        return None;
    }
    let rank = meant().map(|callee| as_callee(callee, claim).unwrap_or(0));
    Some(rank.max().unwrap_or(0))
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
    use crate::task::Reporter::{Callee, Caller};
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
                let (heard, strangers) = heard(claims.iter().collect());
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
}
