//! JSON Pointers (RFC 6901) to places we show.
//!
//! Member names come from bodies, so they are cut: a pointer to a dictionary with secret or huge
//! names must not become the way they leave.

use std::fmt;

/// The longest member name shown, in characters.
pub const SHOWN_NAME: usize = 64;

/// A place in a document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pointer(String);

impl Pointer {
    /// Steps into a member or element.
    pub fn push(&mut self, name: &str) {
        self.0.push('/');
        for letter in shorten(name).chars() {
            match letter {
                '~' => self.0.push_str("~0"),
                '/' => self.0.push_str("~1"),
                letter => self.0.push(letter),
            }
        }
    }

    /// Runs `inside` one step deeper.
    pub fn within<T>(&mut self, name: &str, inside: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.0.len();
        self.push(name);
        let result = inside(self);
        self.0.truncate(length);
        result
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Cuts a member name to what may be shown.
pub fn shorten(name: &str) -> std::borrow::Cow<'_, str> {
    match name.char_indices().nth(SHOWN_NAME) {
        None => name.into(),
        Some((end, _)) => format!("{}…", &name[..end]).into(),
    }
}
