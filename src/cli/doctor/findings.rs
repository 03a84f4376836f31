//! What is wrong, and what to do about it.

use serde::Serialize;

use crate::cli::exit::Exit;

/// What is examined, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Step {
    Registry,
    Validation,
    Network,
}

impl Step {
    pub fn as_str(self) -> &'static str {
        match self {
            Step::Registry => "registry",
            Step::Validation => "validation",
            Step::Network => "network",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// Worth knowing: what could not be examined, and why.
    Note,
    Finding,
}

#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub step: Step,
    pub level: Level,
    pub message: String,
    pub remedy: String,
}

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub all: Vec<Finding>,
    consul_is_away: bool,
    is_cut: bool,
}

impl Findings {
    pub fn add(&mut self, step: Step, message: impl Into<String>, remedy: impl Into<String>) {
        self.push(step, Level::Finding, message.into(), remedy.into());
    }

    pub fn note(&mut self, step: Step, message: impl Into<String>, remedy: impl Into<String>) {
        self.push(step, Level::Note, message.into(), remedy.into());
    }

    fn push(&mut self, step: Step, level: Level, message: String, remedy: String) {
        self.all.push(Finding {
            step,
            level,
            message,
            remedy,
        });
    }

    /// Notes that Consul cannot be reached, which has an exit code of its own.
    pub fn consul_is_away(&mut self, message: String) {
        self.consul_is_away = true;
        let remedy = "start Consul's agent on this machine, or correct consul.address; sidecars go \
                      on with the instances they know, but see no change";
        self.add(Step::Registry, message, remedy);
    }

    /// Notes, once, that time was over before everything was examined.
    pub fn cut(&mut self, step: Step) {
        if !std::mem::replace(&mut self.is_cut, true) {
            let message = "time was over before everything was examined";
            self.note(step, message, "give more with --timeout");
        }
    }

    pub fn count(&self) -> usize {
        let findings = self.all.iter();
        findings.filter(|one| one.level == Level::Finding).count()
    }

    pub fn exit(&self) -> Exit {
        match (self.consul_is_away, self.is_cut, self.count()) {
            (true, ..) => Exit::Unreachable,
            (_, true, _) => Exit::Timeout,
            (_, _, 0) => Exit::Fine,
            _ => Exit::Negative,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_the_worst() {
        let mut found = Findings::default();
        found.note(Step::Registry, "x", "y");
        assert_eq!(found.exit(), Exit::Fine);
        found.add(Step::Validation, "x", "y");
        assert_eq!(found.exit(), Exit::Negative);
        found.cut(Step::Network);
        found.cut(Step::Network);
        assert_eq!((found.exit(), found.all.len()), (Exit::Timeout, 3));
        found.consul_is_away("x".to_owned());
        assert_eq!(found.exit(), Exit::Unreachable);
    }
}
