//! Key/value entries and the keys we allow ourselves.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;

use super::error::Error;

/// Consul's limit on one value; one byte more is 413.
pub const MAX_VALUE_BYTES: usize = 512 * 1024;
/// Our limit on a key; Consul has none worth the name.
const MAX_KEY_BYTES: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEntry {
    pub key: String,
    pub value: Bytes,
    /// What a compare-and-set must name.
    pub modify_index: u64,
}

#[derive(Deserialize)]
pub(super) struct RawEntry {
    #[serde(rename = "Key")]
    key: String,
    /// `null` for an empty value.
    #[serde(rename = "Value", default)]
    value: Option<String>,
    #[serde(rename = "ModifyIndex", default)]
    modify_index: u64,
}

impl RawEntry {
    pub(super) fn decode(self) -> Result<KvEntry, String> {
        let text = self.value.unwrap_or_default();
        let value = STANDARD
            .decode(text)
            .map_err(|error| format!("value of {:?}: {error}", self.key))?;
        Ok(KvEntry {
            key: self.key,
            value: value.into(),
            modify_index: self.modify_index,
        })
    }
}

/// Checks a key or prefix: the characters that every version takes, and no form that Consul
/// would answer with a redirect.
pub(super) fn check_key(key: &str) -> Result<(), Error> {
    let mut problems = Vec::new();
    if key.len() > MAX_KEY_BYTES {
        problems.push(format!("{} bytes, at most {MAX_KEY_BYTES}", key.len()));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-');
    if let Some(c) = key.chars().find(|c| !allowed(*c)) {
        problems.push(format!("character {c:?} is outside A-Z a-z 0-9 . _ / -"));
    }
    if key.starts_with('/') || key.contains("//") {
        problems.push("an empty path segment".to_owned());
    }
    if key
        .split('/')
        .any(|segment| segment == "." || segment == "..")
    {
        problems.push("a path segment of dots".to_owned());
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::Invalid {
        what: format!("key {key:?}"),
        problems,
    })
}

pub(super) fn check_value(key: &str, value: &[u8]) -> Result<(), Error> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(());
    }
    Err(Error::Invalid {
        what: format!("value of key {key:?}"),
        problems: vec![format!("{} bytes, at most {MAX_VALUE_BYTES}", value.len())],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked_before_the_call() {
        for good in [
            "",
            "hermes/canary/",
            "hermes/contracts/fraud-v1.0/1.0.0",
            "a_B.9",
        ] {
            assert!(check_key(good).is_ok(), "{good:?}");
        }
        let long = "k".repeat(MAX_KEY_BYTES + 1);
        for bad in [
            "/a", "a//b", "a/../b", "./a", "a b", "ü", "a?b", "a%2f", &long,
        ] {
            assert!(check_key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn values_are_bounded() {
        assert!(check_value("k", &vec![0; MAX_VALUE_BYTES]).is_ok());
        let error = check_value("k", &vec![0; MAX_VALUE_BYTES + 1]).expect_err("too large");
        assert!(error.to_string().contains("524289 bytes"), "{error}");
    }

    #[test]
    fn null_is_the_empty_value() {
        let raw: RawEntry = serde_json::from_str(r#"{"Key":"a","Value":null}"#).expect("json");
        assert_eq!(raw.decode().expect("entry").value, Bytes::new());
        let raw: RawEntry = serde_json::from_str(r#"{"Key":"a","Value":"*"}"#).expect("json");
        assert!(raw.decode().is_err());
    }
}
