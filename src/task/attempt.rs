//! The walk of one attempt through the table.

use super::{State, StateAt, Timestamp};

/// The states one attempt has been through, oldest first; never empty, never off the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trail(Vec<StateAt>);

/// A move that the table does not allow; the trail is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a {from} attempt cannot become {to}")]
pub struct Refused {
    pub from: State,
    pub to: State,
}

impl Trail {
    /// Begins at `Pending` (or `FallbackInvoked` for a standby's own attempt).
    pub fn begin(first: State, at: Timestamp) -> Self {
        // Four states are the longest path of an attempt.
        let mut states = Vec::with_capacity(4);
        states.push(StateAt { state: first, at });
        Self(states)
    }

    /// Returns the present state.
    pub fn state(&self) -> State {
        self.0.last().map_or(State::Pending, |last| last.state)
    }

    /// Moves to `next`, or refuses and stays: an ended attempt never moves again.
    pub fn advance(&mut self, next: State, at: Timestamp) -> Result<(), Refused> {
        let from = self.state();
        if from.is_end() || !from.may_become(next) {
            return Err(Refused { from, to: next });
        }
        self.0.push(StateAt { state: next, at });
        Ok(())
    }

    /// Returns the states so far.
    pub fn states(&self) -> &[StateAt] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::TRANSITIONS;
    use State::*;
    use proptest::prelude::*;

    #[test]
    fn the_plain_path_and_its_refusals() {
        let mut trail = Trail::begin(Pending, Timestamp::from_millis(1));
        for next in [Dispatched, Executing, Completed] {
            trail.advance(next, Timestamp::from_millis(2)).unwrap();
        }
        let refused = trail.advance(Timeout, Timestamp::from_millis(3));
        assert_eq!(
            refused,
            Err(Refused {
                from: Completed,
                to: Timeout
            })
        );
        assert_eq!(trail.states().len(), 4);
    }

    fn any_state() -> impl Strategy<Value = State> {
        proptest::sample::select(&State::ALL[..])
    }

    proptest! {
        #[test]
        fn random_histories_never_leave_the_table(
            first in proptest::sample::select(&[Pending, FallbackInvoked][..]),
            wishes in proptest::collection::vec(any_state(), 0..32),
        ) {
            let mut trail = Trail::begin(first, Timestamp::from_millis(0));
            for wish in wishes {
                let before = trail.clone();
                if trail.advance(wish, Timestamp::from_millis(0)).is_err() {
                    prop_assert_eq!(&before, &trail);
                }
            }
            let states: Vec<State> = trail.states().iter().map(|s| s.state).collect();
            for pair in states.windows(2) {
                prop_assert!(TRANSITIONS.contains(&(pair[0], pair[1])));
            }
            let ends = states.iter().filter(|state| state.is_end()).count();
            prop_assert!(ends <= 1, "more than one end: {states:?}");
            prop_assert!(states.len() <= 4);
        }

        #[test]
        fn an_end_is_always_within_reach(wishes in proptest::collection::vec(any_state(), 0..32)) {
            let mut trail = Trail::begin(Pending, Timestamp::from_millis(0));
            for wish in wishes {
                trail.advance(wish, Timestamp::from_millis(0)).ok();
            }
            prop_assert!(trail.state().is_end() || trail.state().may_become(Timeout));
        }
    }
}
