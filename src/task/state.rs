//! The states of an attempt and the one table of allowed moves between them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Where an attempt stands, in life order; the names are the wire's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Pending,
    Dispatched,
    Executing,
    Completed,
    FailedValidation,
    FailedExecution,
    Timeout,
    FallbackInvoked,
}

use State::*;

/// Every allowed move of a call; anything else is refused and counted.
///
/// The moves out of `FailedExecution`, `Timeout` and `FallbackInvoked` begin another attempt.
pub const TRANSITIONS: [(State, State); 18] = [
    (Pending, Dispatched),
    (Pending, FailedValidation),
    (Pending, FailedExecution),
    (Pending, Timeout),
    (Dispatched, Executing),
    (Dispatched, Completed),
    (Dispatched, FailedValidation),
    (Dispatched, FailedExecution),
    (Dispatched, Timeout),
    (Executing, Completed),
    (Executing, FailedValidation),
    (Executing, FailedExecution),
    (Executing, Timeout),
    (FailedExecution, Dispatched),
    (FailedExecution, FallbackInvoked),
    (Timeout, Dispatched),
    (Timeout, FallbackInvoked),
    (FallbackInvoked, Dispatched),
];

impl State {
    /// All states, in life order.
    pub const ALL: [State; 8] = [
        Pending,
        Dispatched,
        Executing,
        Completed,
        FailedValidation,
        FailedExecution,
        Timeout,
        FallbackInvoked,
    ];

    /// Says whether `next` may follow within a call.
    pub fn may_become(self, next: State) -> bool {
        TRANSITIONS.contains(&(self, next))
    }

    /// Says whether an attempt in this state is over.
    pub fn is_end(self) -> bool {
        matches!(
            self,
            Completed | FailedValidation | FailedExecution | Timeout
        )
    }

    /// Returns the wire name.
    pub fn as_str(self) -> &'static str {
        match self {
            Pending => "pending",
            Dispatched => "dispatched",
            Executing => "executing",
            Completed => "completed",
            FailedValidation => "failed_validation",
            FailedExecution => "failed_execution",
            Timeout => "timeout",
            FallbackInvoked => "fallback_invoked",
        }
    }

    /// Reads a wire name; `success` and `failed` are taken as the aliases they once were.
    pub fn from_wire(name: &str) -> Option<State> {
        match name {
            "success" => Some(Completed),
            "failed" => Some(FailedExecution),
            _ => State::ALL.into_iter().find(|state| state.as_str() == name),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
