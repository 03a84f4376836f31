//! The one place that writes to standard output and standard error.
//!
//! Text that came over the network goes through `plain` first, so that it cannot steer a terminal.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;
use serde_json::Value;

use crate::config;

use super::exit::Exit;

/// Whether data could not be written: a script must not take half a file for a whole one.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Writes data. A reader that has gone away (`| head`) is no error of ours.
pub(super) fn data(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(bytes).and_then(|()| out.flush())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        talk(&format!("cannot write to standard output: {error}"));
        HAS_FAILED.store(true, Ordering::Relaxed);
    }
}

/// Turns a good end into a bad one if data was lost on the way.
pub(super) fn settle(exit: Exit) -> Exit {
    match exit {
        Exit::Fine if HAS_FAILED.load(Ordering::Relaxed) => Exit::Usage,
        exit => exit,
    }
}

pub(super) fn line(text: &str) {
    data(format!("{text}\n").as_bytes());
}

pub(super) fn json(value: &Value) {
    line(&format!("{value:#}"));
}

/// Says something to the person at the terminal.
pub(super) fn talk(text: &str) {
    eprintln!("{text}");
}

/// Colours of words, where a terminal shows them and nobody asked for none.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tone {
    Good,
    Bad,
    Doubtful,
    Faint,
}

/// Decides once whether words are coloured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Palette(bool);

impl Palette {
    pub fn of_stdout() -> Self {
        Self(!config::refuses_colour() && std::io::stdout().is_terminal())
    }

    #[cfg(test)]
    pub fn none() -> Self {
        Self(false)
    }

    pub fn paint<'a>(self, tone: Tone, text: &'a str) -> Cow<'a, str> {
        if !self.0 {
            return Cow::Borrowed(text);
        }
        let code = match tone {
            Tone::Good => 32,
            Tone::Bad => 31,
            Tone::Doubtful => 33,
            Tone::Faint => 2,
        };
        Cow::Owned(format!("\x1b[{code}m{text}\x1b[0m"))
    }
}

/// Replaces control characters, which could move the cursor or rename the window.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) {
        Cow::Owned(text.replace(char::is_control, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// Says what a refusal says: the detail of a problem body, or whatever else came.
pub(super) fn detail(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Told {
        detail: String,
    }
    let told = match serde_json::from_slice::<Told>(body) {
        Ok(told) => told.detail,
        Err(_no_problem) => String::from_utf8_lossy(body).trim().to_owned(),
    };
    let lines: Vec<_> = told.lines().map(plain).collect();
    lines.join("\n")
}

/// Turns yes and no into exit codes.
pub(super) fn verdict(fine: bool) -> Exit {
    if fine { Exit::Fine } else { Exit::Negative }
}
