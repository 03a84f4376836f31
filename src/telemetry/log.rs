//! Log set-up: JSON lines for machines, plain lines for a terminal, a filter that can be changed.
//!
//! `error` needs a person, `warn` was survived, `info` marks life events and calls. Bodies, tokens
//! and secrets never stand in a log.

use std::io::IsTerminal;
use std::sync::OnceLock;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// How lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// Plain on a terminal, JSON elsewhere.
    #[default]
    Auto,
    Json,
    Text,
}

/// What is logged and how.
#[derive(Debug, Clone)]
pub struct Config {
    pub format: Format,
    pub filter: String,
}

/// A filter that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the log filter is not understood: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    #[error("logging was not started by this process")]
    NotStarted,
    #[error("the log filter could not be replaced")]
    Replace(#[from] reload::Error),
}

/// The filter in force and the way to replace it; one per process, as the subscriber is.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Displays an error with all its causes, as one sentence; a cause that the error above it quotes
/// is not said twice.
pub struct Chain<'a>(pub &'a (dyn std::error::Error + 'a));

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let reason = error.to_string();
            if !said.contains(&reason) {
                write!(f, ": {reason}")?;
                said = reason;
            }
            cause = error.source();
        }
        Ok(())
    }
}

/// Starts logging to standard error; a second start changes nothing.
pub fn start(config: &Config) -> Result<(), Error> {
    let (filter, handle) = reload::Layer::new(EnvFilter::try_new(&config.filter)?);
    let terminal = std::io::stderr().is_terminal();
    let json = match config.format {
        Format::Auto => !terminal,
        Format::Json => true,
        Format::Text => false,
    };
    let lines = fmt::layer().with_writer(std::io::stderr);
    let started = if json {
        let lines = lines.json().flatten_event(true).with_current_span(true);
        let lines = lines.with_span_list(false);
        tracing_subscriber::registry()
            .with(filter)
            .with(lines)
            .try_init()
    } else {
        let lines = lines.with_ansi(terminal);
        tracing_subscriber::registry()
            .with(filter)
            .with(lines)
            .try_init()
    };
    if started.is_ok() {
        FILTER.get_or_init(|| handle);
    }
    Ok(())
}

/// Returns the filter in force.
pub fn filter() -> Result<String, Error> {
    let handle = FILTER.get().ok_or(Error::NotStarted)?;
    Ok(handle.with_current(ToString::to_string)?)
}

/// Replaces the filter, or refuses a bad one and keeps the old.
pub fn set_filter(text: &str) -> Result<(), Error> {
    let filter = EnvFilter::try_new(text)?;
    let handle = FILTER.get().ok_or(Error::NotStarted)?;
    Ok(handle.reload(filter)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{says}")]
    struct Link {
        says: &'static str,
        #[source]
        cause: Option<Box<Link>>,
    }

    #[test]
    fn a_chain_says_each_reason_once() {
        let chain = |words: &[&'static str]| {
            let link = words
                .iter()
                .rev()
                .fold(None, |cause, says| Some(Box::new(Link { says, cause })));
            Chain(&*link.unwrap()).to_string()
        };
        for (words, expected) in [
            (&["open"][..], "open"),
            (&["open", "lock", "denied"], "open: lock: denied"),
            (&["open: denied", "denied"], "open: denied"),
            (&["open", "lock: denied", "denied"], "open: lock: denied"),
        ] {
            assert_eq!(chain(words), expected);
        }
    }
}
