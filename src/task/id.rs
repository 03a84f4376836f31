//! Ids of tasks, steps and calls: 1 to 128 characters of `[A-Za-z0-9._:~-]`.

use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::sync::Arc;

/// An id inside the grammar; cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Id(Arc<str>);

/// A text that is no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id is 1 to 128 characters of A-Z a-z 0-9 . _ : ~ -")]
pub struct InvalidId;

impl Id {
    /// The longest id, in bytes: it must fit a header, a key and a table column everywhere.
    pub const MAX: usize = 128;

    /// Mints an id that sorts by time (UUID version 7).
    pub fn mint() -> Self {
        let mut buffer = uuid::Uuid::encode_buffer();
        let text = uuid::Uuid::now_v7().hyphenated().encode_lower(&mut buffer);
        Self(Arc::from(&*text))
    }

    /// Takes a text that follows the grammar.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let fits = (1..=Self::MAX).contains(&text.len());
        if fits && text.bytes().all(is_id_byte) {
            Ok(Self(Arc::from(text)))
        } else {
            Err(InvalidId)
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_id_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'~' | b'-')
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammar() {
        let long = "a".repeat(128);
        let longer = "a".repeat(129);
        for (text, fits) in [
            ("test-20240615-001", true),
            ("a.b_c:d~e-f", true),
            (long.as_str(), true),
            (longer.as_str(), false),
            ("", false),
            ("a b", false),
            ("a,b", false),
            ("ä", false),
            ("a\r\nb", false),
        ] {
            assert_eq!(Id::parse(text).is_ok(), fits, "{text:?}");
        }
    }

    #[test]
    fn minted_ids_are_ids_and_differ() {
        let (one, two) = (Id::mint(), Id::mint());
        assert_ne!(one, two);
        assert_eq!(Id::parse(one.as_str()), Ok(one));
    }
}
