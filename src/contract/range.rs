//! A family and a major version: whichever of its minors can serve.

use super::id::{BadId, ContractId};
use std::fmt;
use std::str::FromStr;

/// `fraud-detection@^1`: every minor of major 1 of the family.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    family: String,
    major: u32,
}

/// A text that is no range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a range is the family, then @^ and the major version, such as fraud-detection@^1")]
pub struct BadRange;

impl Range {
    /// Reads the form that fits into a host name, `fraud-detection-v1`.
    pub fn of_label(label: &str) -> Result<Self, BadRange> {
        // What an id with some minor would be: the same rules hold for its family and major.
        let id: ContractId = format!("{label}.0").parse().map_err(|BadId| BadRange)?;
        Ok(Self {
            family: id.family().to_owned(),
            major: id.major(),
        })
    }

    pub fn family(&self) -> &str {
        &self.family
    }

    pub fn major(&self) -> u32 {
        self.major
    }

    /// Says whether a contract is one of its minors.
    pub fn holds(&self, id: &ContractId) -> bool {
        id.family() == self.family && id.major() == self.major
    }
}

impl FromStr for Range {
    type Err = BadRange;

    fn from_str(text: &str) -> Result<Self, BadRange> {
        let (family, major) = text.split_once("@^").ok_or(BadRange)?;
        Self::of_label(&format!("{family}-v{major}"))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@^{}", self.family, self.major)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        for (text, parts) in [
            ("fraud-detection@^1", Some(("fraud-detection", 1))),
            ("a@^0", Some(("a", 0))),
            ("a-v1@^2", Some(("a-v1", 2))),
            ("fraud-detection@^1.0", None),
            ("fraud-detection@1", None),
            ("fraud-detection@^", None),
            ("fraud-detection@^01", None),
            ("Fraud@^1", None),
            ("@^1", None),
            ("fraud-detection-v1.0", None),
        ] {
            let range = text.parse::<Range>().ok();
            let found = range.as_ref().map(|range| (range.family(), range.major()));
            assert_eq!(found, parts, "{text}");
            if let Some(range) = &range {
                assert_eq!(range.to_string(), text);
                let label = format!("{}-v{}", range.family(), range.major());
                assert_eq!(Range::of_label(&label).as_ref(), Ok(range));
            }
        }
        for label in [
            "fraud-detection-v1.0",
            "fraud-detection",
            "-v1",
            "a-v",
            "a-v1.",
        ] {
            assert_eq!(Range::of_label(label), Err(BadRange), "{label}");
        }
    }

    #[test]
    fn minors_of_one_major_belong_to_it() {
        let range: Range = "fraud-detection@^1".parse().unwrap();
        for (id, holds) in [
            ("fraud-detection-v1.0", true),
            ("fraud-detection-v1.12", true),
            ("fraud-detection-v2.0", false),
            ("fraud-detection-v10.0", false),
            ("fraud-v1.0", false),
            ("x-fraud-detection-v1.0", false),
        ] {
            assert_eq!(range.holds(&id.parse().unwrap()), holds, "{id}");
        }
    }
}
