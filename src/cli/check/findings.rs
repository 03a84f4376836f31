//! What a check has to say.

use serde::Serialize;

use crate::cli::exit::Exit;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    Warning,
    Problem,
}

#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) level: Level,
    pub(super) message: String,
    #[serde(skip)]
    exit: Exit,
}

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn add(
        &mut self,
        check: &'static str,
        level: Level,
        exit: Exit,
        message: impl Into<String>,
    ) {
        self.0.push(Finding {
            check,
            level,
            message: message.into(),
            exit,
        });
    }

    pub(super) fn ok(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, Level::Ok, Exit::Fine, message);
    }

    pub(super) fn warning(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, Level::Warning, Exit::Fine, message);
    }

    pub(super) fn problem(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, Level::Problem, Exit::Negative, message);
    }

    pub(super) fn worst(&self) -> Exit {
        self.0
            .iter()
            .map(|finding| finding.exit)
            .max()
            .unwrap_or(Exit::Fine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides() {
        let mut found = Findings::default();
        assert_eq!(found.worst(), Exit::Fine);
        found.warning("disk", "x");
        assert_eq!(found.worst(), Exit::Fine);
        found.problem("disk", "x");
        assert_eq!(found.worst(), Exit::Negative);
        found.add("config", Level::Problem, Exit::Usage, "x");
        assert_eq!(found.worst(), Exit::Usage);
    }
}
