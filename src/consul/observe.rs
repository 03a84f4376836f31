//! What a caller may count about our calls: which operation, how it ended, how long it took.

use std::sync::Arc;
use std::time::Duration;

use super::error::ErrorKind;

/// Receives every finished call; cheap and never blocking.
pub type Observe = Arc<dyn Fn(Operation, Outcome, Duration) + Send + Sync>;

/// The kinds of call we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Register,
    Deregister,
    Check,
    /// One service as the local agent knows it.
    Service,
    /// The agent itself: address and version.
    Agent,
    Health,
    /// The names of all services.
    Catalog,
    KvRead,
    KvWrite,
    Status,
    /// Any read that may block until something changes; its duration is mostly waiting.
    Watch,
}

impl Operation {
    pub const ALL: [Operation; 11] = [
        Operation::Register,
        Operation::Deregister,
        Operation::Check,
        Operation::Service,
        Operation::Agent,
        Operation::Health,
        Operation::Catalog,
        Operation::KvRead,
        Operation::KvWrite,
        Operation::Status,
        Operation::Watch,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Operation::Register => "register",
            Operation::Deregister => "deregister",
            Operation::Check => "check",
            Operation::Service => "service",
            Operation::Agent => "agent",
            Operation::Health => "health",
            Operation::Catalog => "catalog",
            Operation::KvRead => "kv_read",
            Operation::KvWrite => "kv_write",
            Operation::Status => "status",
            Operation::Watch => "watch",
        }
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Ok,
    Failed(ErrorKind),
}

impl Outcome {
    /// Names every outcome, so that a metric can start each at zero.
    pub fn all() -> impl Iterator<Item = Outcome> {
        std::iter::once(Outcome::Ok).chain(ErrorKind::ALL.into_iter().map(Outcome::Failed))
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed(kind) => kind.as_str(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn labels_are_distinct() {
        let operations: HashSet<_> = Operation::ALL.iter().map(|o| o.as_str()).collect();
        assert_eq!(operations.len(), Operation::ALL.len());
        let outcomes: HashSet<_> = Outcome::all().map(Outcome::as_str).collect();
        assert_eq!(outcomes.len(), Outcome::all().count());
    }
}
