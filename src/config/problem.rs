//! What is wrong with the settings: each problem with its place and key, all of them at once.

use std::fmt;

use super::origin::Origin;

/// One fault: where it stands, which key it is about, what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub origin: Option<Origin>,
    /// Empty where the fault concerns a file as a whole.
    pub key: String,
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// The settings cannot be used; holds every reason, in the order of the file.
#[derive(Debug, thiserror::Error)]
#[error("{}", lines(.problems))]
pub struct Error {
    problems: Vec<Problem>,
}

impl Error {
    /// Lists every problem, never none.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Collects problems while reading goes on.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    /// Notes a problem, once: a value may be read in more than one way.
    pub fn add(&mut self, origin: Option<Origin>, key: &str, message: impl Into<String>) {
        let problem = Problem {
            origin,
            key: key.to_owned(),
            message: message.into(),
        };
        if !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }

    pub fn extend(&mut self, others: impl IntoIterator<Item = Problem>) {
        self.0.extend(others);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Turns what was collected into an error: places in the file first, by line.
    pub fn into_error(self) -> Error {
        let mut problems = self.0;
        problems.sort_by_key(|problem| {
            problem
                .origin
                .as_ref()
                .and_then(Origin::line)
                .unwrap_or(usize::MAX)
        });
        Error { problems }
    }
}
