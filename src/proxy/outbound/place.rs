//! One attempt's place at an instance, and what the attempt says of the instance.

use http::{HeaderMap, StatusCode};
use std::sync::Arc;

use crate::proxy::respond::Trouble;
use crate::task::{Failure, Problem};

/// What an attempt says of its instance; what it says of the call is another matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// The application there answered in time.
    Served,
    /// It speaks against the instance.
    Failed,
    /// It says nothing about the instance.
    Nothing,
}

impl Told {
    /// Reads an attempt that got no answer, or whose answer could not be used. It had its `whole`
    /// time unless the call's own deadline cut the contract's timeout.
    pub fn of_trouble(trouble: &Trouble, whole: bool) -> Self {
        Self::of_problem(trouble.problem, whole)
    }

    /// Reads an attempt that was answered; `failure` is what was made of the answer.
    pub fn of_answer(status: StatusCode, failure: Option<&Failure>, whole: bool) -> Self {
        let told = failure.and_then(|told| Problem::from_wire(&told.kind, status.as_u16()));
        match (told, status.as_u16()) {
            (Some(problem), _) => Self::of_problem(problem, whole),
            (None, 500..) => Told::Failed,
            // "Not now" is neither a service nor a fault.
            (None, 408 | 425 | 429) => Told::Nothing,
            (None, _) => Told::Served,
        }
    }

    fn of_problem(problem: Problem, whole: bool) -> Self {
        match problem {
            Problem::UpstreamUnreachable | Problem::UpstreamReset => Told::Failed,
            Problem::Timeout if whole => Told::Failed,
            _ => Told::Nothing,
        }
    }
}

/// A place at an instance: the call is in flight there until this is let go of.
#[derive(Debug)]
pub struct Place {
    instance: Arc<str>,
}

impl Place {
    pub(super) fn at(instance: Arc<str>) -> Self {
        Self { instance }
    }

    /// Takes note of the load that an answer tells of.
    pub fn hears(&self, _headers: &HeaderMap) {}

    /// Gives the place back, with what the attempt said of the instance; dropped instead, it said
    /// nothing.
    pub fn ended(self, told: Told) {
        tracing::trace!(instance = &*self.instance, ?told, "an attempt ended");
    }
}
