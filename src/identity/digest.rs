//! SHA-256 of a body or a contract.
//!
//! One value, two spellings: `sha-256:<64 hex>` in our JSON and metadata, and
//! `sha-256=:<base64>:` in the `Content-Digest` header (RFC 9530).

use std::{fmt, str::FromStr};

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use sfv::{BareItem, Dictionary, ItemSerializer, ListEntry, Parser};

const PREFIX: &str = "sha-256:";
const ALGORITHM: &str = "sha-256";

/// SHA-256 of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Digests the bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut sum = [0; 32];
        sum.copy_from_slice(digest(&SHA256, bytes).as_ref());
        Self(sum)
    }

    pub const fn from_bytes(sum: [u8; 32]) -> Self {
        Self(sum)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the 64 hex digits alone.
    pub fn digits(&self) -> String {
        let mut text = self.to_string();
        text.split_off(PREFIX.len())
    }

    /// Writes the digest as the value of a `Content-Digest` header.
    pub fn to_content_digest(&self) -> String {
        let item = ItemSerializer::new().bare_item(self.0.as_slice()).finish();
        format!("{ALGORITHM}={item}")
    }

    /// Reads the SHA-256 out of a `Content-Digest` value; other algorithms are passed over.
    pub fn from_content_digest(value: &[u8]) -> Result<Option<Self>, ContentDigestError> {
        let members: Dictionary = Parser::new(value)
            .parse()
            .map_err(ContentDigestError::Malformed)?;
        for (algorithm, entry) in &members {
            let ListEntry::Item(item) = entry else {
                return Err(ContentDigestError::NotBytes);
            };
            let BareItem::ByteSequence(bytes) = &item.bare_item else {
                return Err(ContentDigestError::NotBytes);
            };
            if algorithm.as_str() == ALGORITHM {
                let sum = <[u8; 32]>::try_from(bytes.as_slice())
                    .or(Err(ContentDigestError::Length(bytes.len())))?;
                return Ok(Some(Self(sum)));
            }
        }
        Ok(None)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let hex = text.strip_prefix(PREFIX).ok_or(DigestError)?.as_bytes();
        let mut sum = [0; 32];
        if hex.len() != sum.len() * 2 {
            return Err(DigestError);
        }
        for (byte, pair) in sum.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = (nibble(pair[0])? << 4) | nibble(pair[1])?;
        }
        Ok(Self(sum))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// The text is not `sha-256:` and 64 lower-case hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest is \"sha-256:\" followed by 64 lower-case hex digits")]
pub struct DigestError;

/// A `Content-Digest` header that cannot be believed or compared.
#[derive(Debug, thiserror::Error)]
pub enum ContentDigestError {
    #[error("Content-Digest is not a structured field dictionary")]
    Malformed(#[source] sfv::Error),
    #[error("Content-Digest holds a member that is not a byte sequence")]
    NotBytes,
    #[error("Content-Digest holds a sha-256 of {0} bytes instead of 32")]
    Length(usize),
}

fn nibble(digit: u8) -> Result<u8, DigestError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(DigestError),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ABC: &str = "sha-256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn known_digests() {
        assert_eq!(Digest::of(b"abc").to_string(), ABC);
        assert_eq!(Digest::of(b"abc").digits(), &ABC[8..]);
        // The example of RFC 9530, appendix B.1.
        assert_eq!(
            Digest::of(b"{\"hello\": \"world\"}\n").to_content_digest(),
            "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"
        );
    }

    #[test]
    fn other_spellings_are_refused() {
        for text in [
            "",
            "sha-256:",
            &ABC[8..],
            &ABC[..71],
            &format!("{ABC}0"),
            &ABC.to_uppercase(),
            &ABC.replace("sha-256", "sha-512"),
            &ABC.replace('b', "ä"),
        ] {
            assert_eq!(text.parse::<Digest>(), Err(DigestError), "{text:?}");
        }
    }

    #[test]
    fn content_digest_headers() {
        let abc = Digest::of(b"abc");
        let sum = abc.to_content_digest();
        let md5 = "md5=:kAFQmDzST7DWlj99KOF/cg==:";
        for (header, expected) in [
            (sum.clone(), Some(abc)),
            (format!("{md5}, {sum}"), Some(abc)),
            (md5.to_owned(), None),
        ] {
            let read = Digest::from_content_digest(header.as_bytes()).unwrap();
            assert_eq!(read, expected, "{header}");
        }
        for broken in [
            "sha-256",
            "sha-256=abc",
            "sha-256=(:YWJj:)",
            "sha-256=:YWJj:",
            "sha-256=:YW*j:",
            "sha-256=:YWJj",
            "=",
        ] {
            assert!(
                Digest::from_content_digest(broken.as_bytes()).is_err(),
                "{broken:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn both_spellings_read_back(sum: [u8; 32]) {
            let digest = Digest::from_bytes(sum);
            prop_assert_eq!(digest.to_string().parse(), Ok(digest));
            let header = digest.to_content_digest();
            prop_assert_eq!(
                Digest::from_content_digest(header.as_bytes()).unwrap(),
                Some(digest)
            );
            let json = serde_json::to_string(&digest).unwrap();
            prop_assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
        }
    }
}
