//! What the shell is told.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::config;
use crate::telemetry::log::Chain;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Exit {
    Fine,
    /// The question was answered, and the answer is no.
    Negative,
    /// The command line or the settings are at fault.
    Usage,
    Unreachable,
    Timeout,
    Bug,
    /// Ended by a signal, or as the command that was run.
    Other(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(match exit {
            Exit::Fine => 0,
            Exit::Negative => 1,
            Exit::Usage => 2,
            Exit::Unreachable => 3,
            Exit::Timeout => 4,
            Exit::Bug => 70,
            Exit::Other(code) => code,
        })
    }
}

/// Why a command could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Settings(#[from] config::Error),
    #[error("{0}")]
    Usage(String),
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{what} at {url} cannot be reached: {}", Chain(source))]
    Unreachable {
        what: &'static str,
        url: String,
        source: reqwest::Error,
    },
    #[error("{what} at {url} did not answer within {within:?}")]
    Timeout {
        what: &'static str,
        url: String,
        within: Duration,
    },
    /// Whoever is there is not the one we look for.
    #[error("what answers at {url} is not {what}: {told}")]
    Stranger {
        what: &'static str,
        url: String,
        told: String,
    },
    /// Something answered, but not what we asked for.
    #[error("{0}")]
    Answer(String),
    /// The collector did not show what it was asked for.
    #[error("{text}")]
    Collector { text: String, exit: Exit },
    /// Consul did not do what it was asked.
    #[error("{text}")]
    Registry { text: String, exit: Exit },
    /// A process could not be started, or ended early.
    #[error("{text}")]
    Start { text: String, exit: Exit },
}

impl Failure {
    /// Something that cannot happen to a command that is set up right.
    pub fn bug(error: &dyn std::error::Error) -> Self {
        Failure::Start {
            text: Chain(error).to_string(),
            exit: Exit::Bug,
        }
    }

    pub fn exit(&self) -> Exit {
        match self {
            Failure::Settings(_)
            | Failure::Usage(_)
            | Failure::Read { .. }
            | Failure::Write { .. } => Exit::Usage,
            Failure::Unreachable { .. } | Failure::Stranger { .. } => Exit::Unreachable,
            Failure::Timeout { .. } => Exit::Timeout,
            Failure::Answer(_) => Exit::Negative,
            Failure::Start { exit, .. }
            | Failure::Registry { exit, .. }
            | Failure::Collector { exit, .. } => *exit,
        }
    }
}
