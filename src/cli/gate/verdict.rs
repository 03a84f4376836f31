//! The three limits, and what was measured against them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::calls::{Made, Outcome, Plan};
use super::promise::Promise;
use crate::cli::quantile::Times;
use crate::task::State;

/// Of a thousand calls, so many must complete.
const COMPLETED_OF_THOUSAND: usize = 999;
/// The 99th percentile may take so many tenths of the contract's timeout.
const TENTHS_OF_TIMEOUT: u32 = 12;

pub(super) struct Verdict {
    /// Calls that have ended; those planned beyond it were not made.
    pub made: usize,
    pub completed: usize,
    pub degraded: usize,
    pub failed_validation: usize,
    /// How many ended in each state; `None`: the sidecar named none.
    pub states: BTreeMap<Option<State>, usize>,
    pub times: Times,
    pub longest: Duration,
    is_whole: bool,
}

impl Verdict {
    pub fn of(made: &Made, plan: &Plan, promise: &Promise) -> Self {
        Self::judge(&made.outcomes, plan.calls, promise.timeout())
    }

    fn judge(outcomes: &[Outcome], planned: usize, timeout: Duration) -> Self {
        let mut states = BTreeMap::new();
        for outcome in outcomes {
            *states.entry(outcome.state).or_insert(0) += 1;
        }
        let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|one| is(one)).count();
        Self {
            made: outcomes.len(),
            completed: count(Outcome::is_completed),
            degraded: count(|outcome| outcome.degraded),
            failed_validation: count(|one| one.state == Some(State::FailedValidation)),
            states,
            times: Times::of(outcomes.iter().map(|outcome| outcome.took)),
            longest: timeout * TENTHS_OF_TIMEOUT / 10,
            is_whole: outcomes.len() >= planned,
        }
    }

    /// Says whether all calls were made, and every limit was kept.
    pub fn is_met(&self) -> bool {
        self.is_whole && self.completes() && self.is_fast() && self.is_valid()
    }

    pub fn completes(&self) -> bool {
        self.made > 0 && self.completed * 1000 >= self.made * COMPLETED_OF_THOUSAND
    }

    pub fn is_fast(&self) -> bool {
        self.p99().is_some_and(|p99| p99 <= self.longest)
    }

    pub fn is_valid(&self) -> bool {
        self.failed_validation == 0
    }

    pub fn p99(&self) -> Option<Duration> {
        self.times.percentile(99)
    }

    /// Returns which part of the calls completed, from 0 to 1.
    pub fn share(&self) -> f64 {
        match self.made {
            0 => 0.0,
            made => self.completed as f64 / made as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(500);

    fn outcomes(count: usize, state: State, ms: u64) -> Vec<Outcome> {
        let outcome = Outcome {
            took: Duration::from_millis(ms),
            status: Some(if state == State::Completed { 200 } else { 502 }),
            state: Some(state),
            ..Outcome::default()
        };
        vec![outcome; count]
    }

    #[test]
    fn each_limit_is_kept_to_the_call() {
        use State::{Completed, FailedExecution, FailedValidation, Timeout};
        let good = |count| outcomes(count, Completed, 10);
        for (what, outcomes, planned, gates) in [
            ("good", good(1000), 1000, [true, true, true]),
            (
                "one of a thousand",
                [good(999), outcomes(1, FailedExecution, 10)].concat(),
                1000,
                [true, true, true],
            ),
            (
                "two of a thousand",
                [good(998), outcomes(2, Timeout, 10)].concat(),
                1000,
                [false, true, true],
            ),
            (
                "ten slow of a thousand",
                [good(990), outcomes(10, Completed, 601)].concat(),
                1000,
                [true, true, true],
            ),
            (
                "eleven slow of a thousand",
                [good(989), outcomes(11, Completed, 601)].concat(),
                1000,
                [true, false, true],
            ),
            (
                "just at the limit",
                outcomes(1000, Completed, 600),
                1000,
                [true, true, true],
            ),
            (
                "one invalid",
                [good(999), outcomes(1, FailedValidation, 10)].concat(),
                1000,
                [true, true, false],
            ),
            ("none at all", good(0), 1000, [false, false, true]),
        ] {
            let verdict = Verdict::judge(&outcomes, planned, TIMEOUT);
            let found = [verdict.completes(), verdict.is_fast(), verdict.is_valid()];
            assert_eq!(found, gates, "{what}");
            assert_eq!(verdict.is_met(), gates == [true; 3], "{what}");
        }
    }

    #[test]
    fn calls_that_were_not_made_are_not_met() {
        let verdict = Verdict::judge(&outcomes(10, State::Completed, 1), 11, TIMEOUT);
        assert!(verdict.completes() && !verdict.is_met());
    }

    #[test]
    fn a_refusal_that_a_status_hides_is_not_completed() {
        let mut hidden = outcomes(1, State::Completed, 1);
        hidden[0].status = Some(500);
        assert_eq!(Verdict::judge(&hidden, 1, TIMEOUT).completed, 0);
    }

    #[test]
    fn what_a_fallback_answers_is_not_completed() {
        let mut outcomes = outcomes(1000, State::Completed, 1);
        for outcome in &mut outcomes[..2] {
            outcome.degraded = true;
        }
        let verdict = Verdict::judge(&outcomes, 1000, TIMEOUT);
        assert_eq!((verdict.completed, verdict.degraded), (998, 2));
        assert!(!verdict.is_met());
    }
}
