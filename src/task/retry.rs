//! What may follow a failed attempt.
//!
//! Work that may have been done is done again only where its contract allows that; what is known
//! to be undone may always be tried elsewhere. RFC 9110 section 9.2.2 draws the same line.
//!
//! - elsewhere: how many attempts there may be and how long (the caller of a call), which
//!   instance is next (`route`)

use super::State;

/// What is known of the application after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Execution {
    /// Nothing reached it: its sidecar says so, or the connection was refused.
    Not,
    /// Its sidecar says that the request went out to it.
    Done,
    /// Nobody answered.
    Unknown,
}

/// How an attempt ended, as far as it decides what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ended {
    pub state: State,
    /// The application itself refused the request: another copy would do the same.
    pub is_refusal: bool,
    pub execution: Execution,
}

/// What may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    /// Nothing, nor a fallback: the outcome is the caller's.
    Nothing,
    /// No further attempt on this agent; a fallback may run.
    Fallback,
    /// Another instance of the agent.
    Elsewhere,
    /// The instance that may have begun, under the same idempotency key: it answers from its
    /// record instead of doing the work again.
    SameInstance,
}

impl Ended {
    /// Says what may follow, given whether the contract calls the work idempotent.
    pub fn next(self, idempotent: bool) -> Next {
        let may_be_mended = matches!(self.state, State::FailedExecution | State::Timeout);
        if !may_be_mended || self.is_refusal {
            return Next::Nothing;
        }
        match (self.execution, idempotent) {
            (Execution::Not, _) | (_, true) => Next::Elsewhere,
            (Execution::Done, false) => Next::Fallback,
            (Execution::Unknown, false) => Next::SameInstance,
        }
    }

    /// Says what may follow an attempt that could not be sent to anybody.
    pub fn unsent(self) -> Next {
        match self.next(true) {
            Next::Nothing => Next::Nothing,
            Next::Fallback | Next::Elsewhere | Next::SameInstance => Next::Fallback,
        }
    }
}

/// What has been tried of one agent, and what may still be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Course {
    retries_left: u32,
    /// Every contract met so far calls its work idempotent.
    idempotent: bool,
    /// Work may have been begun.
    begun: bool,
    /// Work that must not be done twice may have been begun, and only the one instance knows.
    in_doubt: bool,
}

impl Course {
    /// Begins with the first attempt, made under a contract that allows so many retries.
    pub fn new(idempotent: bool, max_retries: u32) -> Self {
        Self {
            retries_left: max_retries,
            idempotent,
            begun: false,
            in_doubt: false,
        }
    }

    /// Takes in that an attempt ended, and says what may follow.
    ///
    /// Once nobody can say whether the work was begun, an instance that is gone does not settle
    /// it: it may have died of the work.
    pub fn after(&mut self, mut ended: Ended) -> Next {
        if self.in_doubt && ended.execution == Execution::Not {
            ended.execution = Execution::Unknown;
        }
        self.begun |= ended.execution != Execution::Not;
        self.in_doubt |= ended.execution == Execution::Unknown && !self.idempotent;
        match ended.next(self.idempotent) {
            Next::Elsewhere | Next::SameInstance if self.retries_left == 0 => Next::Fallback,
            next => next,
        }
    }

    /// Takes in that a retry is made under a contract, or says no: another version may not call
    /// its work idempotent, and it may have been done.
    pub fn retry(&mut self, idempotent: bool) -> bool {
        let may = self.retries_left > 0 && (idempotent || !self.begun || self.in_doubt);
        if may {
            self.retries_left -= 1;
            self.idempotent &= idempotent;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::Execution::{Done, Not, Unknown};
    use super::Next::{Elsewhere, Fallback, Nothing, SameInstance};
    use super::*;
    use proptest::prelude::*;

    const EXECUTIONS: [Execution; 3] = [Not, Done, Unknown];

    fn after(state: State, execution: Execution, idempotent: bool) -> Next {
        let is_refusal = false;
        let ended = Ended {
            state,
            is_refusal,
            execution,
        };
        ended.next(idempotent)
    }

    #[test]
    fn failures_are_a_table() {
        for state in [State::FailedExecution, State::Timeout] {
            for (execution, once, idempotent) in [
                (Not, Elsewhere, Elsewhere),
                (Done, Fallback, Elsewhere),
                (Unknown, SameInstance, Elsewhere),
            ] {
                assert_eq!(
                    after(state, execution, false),
                    once,
                    "{state} {execution:?}"
                );
                assert_eq!(after(state, execution, true), idempotent);
            }
        }
    }

    #[test]
    fn what_another_copy_would_answer_too_ends_the_call() {
        for execution in EXECUTIONS {
            for idempotent in [true, false] {
                for state in [State::Completed, State::FailedValidation, State::Executing] {
                    assert_eq!(after(state, execution, idempotent), Nothing);
                }
                let refused = Ended {
                    state: State::FailedExecution,
                    is_refusal: true,
                    execution,
                };
                assert_eq!(refused.next(idempotent), Nothing);
            }
        }
    }

    #[test]
    fn attempts_end_with_the_retries_the_contract_allows() {
        for max in 0..=2 {
            let mut course = Course::new(true, max);
            let mut attempts = 1;
            while course.after(failed(Done)) == Elsewhere {
                assert!(course.retry(true));
                attempts += 1;
            }
            assert_eq!(attempts, max + 1);
            assert!(!course.retry(true));
            assert_eq!(course.after(failed(Done)), Fallback);
        }
    }

    #[test]
    fn an_instance_that_died_of_the_work_does_not_send_it_elsewhere() {
        let mut course = Course::new(false, 2);
        assert_eq!(course.after(failed(Unknown)), SameInstance);
        assert!(course.in_doubt && course.retry(false));
        // Its port is closed now.
        assert_eq!(course.after(failed(Not)), SameInstance);
        assert!(course.retry(false));
        assert_eq!(course.after(failed(Not)), Fallback);
    }

    #[test]
    fn another_version_that_is_not_idempotent_gets_no_work_that_may_be_done() {
        let mut course = Course::new(true, 2);
        assert_eq!(course.after(failed(Done)), Elsewhere);
        assert!(!course.retry(false));
        assert!(course.retry(true));
        let mut untouched = Course::new(true, 2);
        assert_eq!(untouched.after(failed(Not)), Elsewhere);
        assert!(untouched.retry(false));
        assert_eq!(
            untouched.after(failed(Done)),
            Fallback,
            "it counts from now on"
        );
    }

    #[test]
    fn who_could_be_sent_to_nobody_is_not_tried_again() {
        assert_eq!(failed(Not).unsent(), Fallback);
        let refused = Ended {
            is_refusal: true,
            ..failed(Not)
        };
        assert_eq!(refused.unsent(), Nothing);
    }

    fn failed(execution: Execution) -> Ended {
        Ended {
            state: State::FailedExecution,
            is_refusal: false,
            execution,
        }
    }

    proptest! {
        /// Whatever instances do, work that must not be done twice is done by one of them at most.
        #[test]
        fn work_is_never_done_twice_unless_it_may(
            max in 0u32..=2,
            idempotent in any::<bool>(),
            fates in proptest::collection::vec(
                (proptest::sample::select(&EXECUTIONS[..]), any::<bool>()), 8),
        ) {
            let mut course = Course::new(idempotent, max);
            let (mut instance, mut reached, mut attempts) = (0, Vec::new(), 0);
            for (execution, timed_out) in fates {
                attempts += 1;
                if execution != Not && !reached.contains(&instance) {
                    reached.push(instance);
                }
                let state = match timed_out {
                    true => State::Timeout,
                    false => State::FailedExecution,
                };
                match course.after(Ended { state, ..failed(execution) }) {
                    Elsewhere => instance += 1,
                    SameInstance => {}
                    Nothing | Fallback => break,
                }
                prop_assert!(course.retry(idempotent));
            }
            prop_assert!(attempts <= 1 + max);
            prop_assert!(idempotent || reached.len() <= 1, "{:?}", reached);
        }
    }
}
