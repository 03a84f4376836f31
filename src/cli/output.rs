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
        && !HAS_FAILED.swap(true, Ordering::Relaxed)
    {
        talk(&format!("cannot write to standard output: {error}"));
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

/// A terminal on which a text is drawn anew in its own place.
#[derive(Debug)]
pub(super) struct Screen {
    /// Rows that the last text takes.
    drawn: usize,
    last: String,
}

impl Screen {
    /// Returns the terminal that standard output is, if it is one with room to draw: that of a
    /// recorder or of a build machine may have no size.
    pub fn of_stdout() -> Option<Self> {
        let is_terminal = std::io::stdout().is_terminal();
        let has_room = window().is_none_or(|(rows, columns)| rows > 0 && columns > 0);
        (is_terminal && has_room).then(Self::new)
    }

    fn new() -> Self {
        Self {
            drawn: 0,
            last: String::new(),
        }
    }

    /// Draws a text in the place of the last one, as much of its beginning as the window shows.
    pub fn draw(&mut self, text: &str) {
        if self.last == text {
            return;
        }
        let (rows, columns) = window().unwrap_or((24, 80));
        let (shown, taken) = fitting(text, rows, columns);
        data(format!("{}{shown}", self.back()).as_bytes());
        self.drawn = taken;
        self.last = text.to_owned();
    }

    /// Leaves the last text there in full, also where the window had no room for any of it.
    pub fn leave(&mut self) {
        data(self.whole().as_bytes());
    }

    fn whole(&mut self) -> String {
        let last = std::mem::take(&mut self.last);
        let back = self.back();
        self.drawn = 0;
        format!("{back}{last}")
    }

    /// Returns what takes the cursor back to where the last text begins, and clears it.
    fn back(&self) -> String {
        match self.drawn {
            0 => String::new(),
            rows => format!("\x1b[{rows}A\r\x1b[J"),
        }
    }
}

/// Returns the rows and columns of the window, where they can be had.
fn window() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some((usize::from(size.ws_row), usize::from(size.ws_col)))
}

/// Cuts a text to the lines that fit a window and leave a row free; says how many rows these take.
fn fitting(text: &str, rows: usize, columns: usize) -> (String, usize) {
    let most = rows.saturating_sub(1).max(1);
    let columns = columns.max(1);
    let (mut shown, mut taken) = (String::new(), 0);
    for line in text.lines() {
        let height = width(line).div_ceil(columns).max(1);
        if taken + height > most {
            break;
        }
        taken += height;
        shown.push_str(line);
        shown.push('\n');
    }
    (shown, taken)
}

/// Counts the characters that a line shows: colours are none.
fn width(line: &str) -> usize {
    let mut shown = 0;
    let mut is_colour = false;
    for character in line.chars() {
        match (is_colour, character) {
            (false, '\x1b') => is_colour = true,
            (true, 'm') => is_colour = false,
            (true, _) => {}
            (false, _) => shown += 1,
        }
    }
    shown
}

/// Replaces characters that could steer a terminal or show a line otherwise than it stands.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    if text.contains(is_steering) {
        Cow::Owned(text.replace(is_steering, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// Says whether a character moves the cursor, turns the direction of what follows, or is not seen
/// at all: two ids that look alike must be alike.
fn is_steering(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_a_terminal_or_hides() {
        for (told, shown) in [
            ("naïve 日本 🎉 عربي", "naïve 日本 🎉 عربي"),
            (
                "\u{1b}[2J\u{9b}1m\r\u{7f}",
                "\u{fffd}[2J\u{fffd}1m\u{fffd}\u{fffd}",
            ),
            ("a\u{202e}b\u{2066}c\u{2069}", "a\u{fffd}b\u{fffd}c\u{fffd}"),
            (
                "a\u{200b}\u{2028}\u{feff}\u{61c}",
                "a\u{fffd}\u{fffd}\u{fffd}\u{fffd}",
            ),
            ("\u{e0041}", "\u{fffd}"),
        ] {
            assert_eq!(plain(told), shown);
        }
    }

    #[test]
    fn the_last_text_is_left_in_full_whatever_was_drawn() {
        for (drawn, whole) in [(0, "a\nb\n"), (1, "\x1b[1A\r\x1b[Ja\nb\n")] {
            let mut screen = Screen::new();
            (screen.drawn, screen.last) = (drawn, "a\nb\n".to_owned());
            assert_eq!(screen.whole(), whole);
            assert_eq!(screen.whole(), "", "only once");
        }
    }

    #[test]
    fn a_text_is_cut_to_its_window() {
        let coloured = "\x1b[32mgood\x1b[0m";
        for (text, rows, columns, shown, taken) in [
            ("a\nb\nc\n", 3, 80, "a\nb\n", 2),
            ("a\nb\n", 24, 80, "a\nb\n", 2),
            ("abcdef\ng\n", 4, 3, "abcdef\ng\n", 3),
            ("abcdef\ng\n", 3, 3, "abcdef\n", 2),
            ("", 24, 80, "", 0),
            ("a\n", 0, 0, "a\n", 1),
        ] {
            assert_eq!(
                fitting(text, rows, columns),
                (shown.to_owned(), taken),
                "{text:?}"
            );
        }
        assert_eq!(fitting(coloured, 24, 4).1, 1);
    }
}
