//! Names of contracts: `<family>-v<major>.<minor>`.

use std::{fmt, str::FromStr};

use semver::Version;
use serde::{Serialize, Serializer};

/// Consul service names and DNS labels end here.
const MAX_LENGTH: usize = 63;

/// How strictly ids are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Lower-case words and digits joined by hyphens.
    #[default]
    Default,
    /// Exactly two words of letters, as the original linter asked.
    Strict,
}

impl Profile {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Strict => "strict",
        }
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, UnknownProfile> {
        match text {
            "default" => Ok(Self::Default),
            "strict" => Ok(Self::Strict),
            _ => Err(UnknownProfile),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the profile is \"default\" or \"strict\"")]
pub struct UnknownProfile;

/// The id of a contract, known to follow the default profile.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContractId {
    text: String,
    family_length: usize,
    major: u32,
    minor: u32,
}

impl ContractId {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The id without `-v<major>.<minor>`.
    pub fn family(&self) -> &str {
        &self.text[..self.family_length]
    }

    pub fn major(&self) -> u32 {
        self.major
    }

    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// Answers whether `version` may be one of this contract: its major and minor, no suffix.
    pub fn has(&self, version: &Version) -> bool {
        let is_plain = version.pre.is_empty() && version.build.is_empty();
        let line = (u64::from(self.major), u64::from(self.minor));
        is_plain && (version.major, version.minor) == line
    }

    /// Answers whether the id also follows `profile`.
    pub fn fits(&self, profile: Profile) -> bool {
        match profile {
            Profile::Default => true,
            Profile::Strict => {
                let words: Vec<_> = self.family().split('-').collect();
                let is_word = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase());
                words.len() == 2 && words.iter().all(is_word)
            }
        }
    }
}

impl FromStr for ContractId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        if text.len() > MAX_LENGTH {
            return Err(BadId);
        }
        let (family, version) = text.rsplit_once("-v").ok_or(BadId)?;
        let (major, minor) = version.split_once('.').ok_or(BadId)?;
        let is_word = |word: &str| {
            let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            !word.is_empty() && word.bytes().all(is_letter)
        };
        if !family.split('-').all(is_word) {
            return Err(BadId);
        }
        Ok(Self {
            text: text.to_owned(),
            family_length: family.len(),
            major: number(major)?,
            minor: number(minor)?,
        })
    }
}

/// Reads a number the way semver writes it: digits only, no leading zero.
fn number(text: &str) -> Result<u32, BadId> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_plain || (text.len() > 1 && text.starts_with('0')) {
        return Err(BadId);
    }
    text.parse().or(Err(BadId))
}

impl fmt::Display for ContractId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ContractId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for ContractId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a contract id is lower-case words joined by hyphens, then -v<major>.<minor>, at most 63 characters"
)]
pub struct BadId;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms() {
        for (text, fits_default, fits_strict) in [
            ("fraud-detection-v1.0", true, true),
            ("kyc-doc-ocr-v1.0", true, false),
            ("fraud-v1.0", true, false),
            ("fraud2-rules-v10.20", true, false),
            ("a-v1-v2.3", true, false),
            ("fraud-detection", false, false),
            ("fraud-detection-v1", false, false),
            ("fraud-detection-v1.0.0", false, false),
            ("fraud-detection-v01.0", false, false),
            ("fraud-detection-v1.+1", false, false),
            ("Fraud-detection-v1.0", false, false),
            ("fraud--detection-v1.0", false, false),
            ("-v1.0", false, false),
            ("fraud_detection-v1.0", false, false),
            ("fraud-v99999999999.0", false, false),
            (&format!("{}-v1.0", "a".repeat(58)), true, false),
            (&format!("{}-v1.0", "a".repeat(59)), false, false),
        ] {
            let id = text.parse::<ContractId>();
            assert_eq!(id.is_ok(), fits_default, "{text}");
            let strict = id.is_ok_and(|id| id.fits(Profile::Strict));
            assert_eq!(strict, fits_strict, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parts_make_the_whole(family in "[a-z0-9]{1,9}(-[a-z0-9]{1,9}){0,3}", major: u16, minor: u16) {
            let text = format!("{family}-v{major}.{minor}");
            let id: ContractId = text.parse().unwrap();
            prop_assert_eq!(id.to_string(), text);
            prop_assert_eq!(id.family(), family);
            prop_assert_eq!((id.major(), id.minor()), (major.into(), minor.into()));
        }
    }
}
