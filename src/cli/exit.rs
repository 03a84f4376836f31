//! What the shell is told.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::config;

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
    #[error("{what} at {url} cannot be reached: {}", chain(source))]
    Unreachable {
        what: &'static str,
        url: String,
        source: reqwest::Error,
    },
    #[error("{what} at {url} did not answer in time")]
    Timeout { what: &'static str, url: String },
    /// Something answered, but not what we asked for.
    #[error("{0}")]
    Answer(String),
    /// A process could not be started, or ended early.
    #[error("{text}")]
    Start { text: String, exit: Exit },
}

impl Failure {
    /// Something that cannot happen to a command that is set up right.
    pub fn bug(error: &dyn std::error::Error) -> Self {
        Failure::Start {
            text: chain(error),
            exit: Exit::Bug,
        }
    }

    pub fn exit(&self) -> Exit {
        match self {
            Failure::Settings(_) | Failure::Usage(_) | Failure::Read { .. } => Exit::Usage,
            Failure::Unreachable { .. } => Exit::Unreachable,
            Failure::Timeout { .. } => Exit::Timeout,
            Failure::Answer(_) => Exit::Negative,
            Failure::Start { exit, .. } => *exit,
        }
    }
}

/// Writes an error with all its reasons, the deepest last.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(reason) = next {
        let reason_text = reason.to_string();
        if !text.contains(&reason_text) {
            text = format!("{text}: {reason_text}");
        }
        next = reason.source();
    }
    text
}
