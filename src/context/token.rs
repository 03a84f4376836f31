//! The token by which an application's calls are joined to the step it serves.

use std::fmt;

/// What a sidecar names one step by, toward its own application alone: it says nothing of the
/// step, and nobody else can guess it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u128);

/// How long a token is, as written.
pub const LENGTH: usize = 32;

impl Token {
    /// Draws a new one, 122 bits of it at random.
    ///
    /// Not by the TLS provider: that begins with gathering entropy for some 100 ms, at the cost of
    /// a process's first call.
    pub fn draw() -> Self {
        Self(uuid::Uuid::new_v4().as_u128())
    }

    /// Reads one, as `Display` writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let fits = text.len() == LENGTH && text.bytes().all(is_digit);
        u128::from_str_radix(text, 16)
            .ok()
            .filter(|_| fits)
            .map(Self)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What a message says of the step it comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Claim {
    #[default]
    Nothing,
    Step(Token),
    /// There is a token, and it can be none of ours.
    Foreign,
}
