//! What is wrong with a contract, where, and what to do about it.

use std::fmt;

use serde::Serialize;

/// The most faults told of one contract; a document made of faults alone must not fill a log.
const MOST: usize = 256;

/// One fault of a contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Stable name of the rule, in kebab case.
    pub rule: &'static str,
    /// JSON Pointer into the contract.
    pub pointer: String,
    pub message: String,
    /// What to change.
    pub remedy: String,
}

impl Problem {
    pub fn new(
        rule: &'static str,
        pointer: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            rule,
            pointer: pointer.into(),
            message: message.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pointer = match self.pointer.as_str() {
            "" => "(document)",
            pointer => pointer,
        };
        write!(f, "{pointer}: {} [{}]", self.message, self.rule)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// Every fault found in one contract; never empty as an error. As warnings it may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
pub struct Problems(Vec<Problem>);

impl Problems {
    pub(super) fn push(&mut self, problem: Problem) {
        self.extend([problem]);
    }

    pub(super) fn extend(&mut self, others: impl IntoIterator<Item = Problem>) {
        let room = MOST.saturating_sub(self.0.len());
        self.0.extend(others.into_iter().take(room));
    }

    /// Succeeds with `value` if nothing was found.
    pub(super) fn or<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() {
            Ok(value)
        } else {
            Err(self)
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn as_slice(&self) -> &[Problem] {
        &self.0
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}
