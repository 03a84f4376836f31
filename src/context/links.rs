//! What the callee's sidecar tells of the path that led to a step.
//!
//! Two digests, chained over ancestors as in `Hermes-Path`: over those the step came with, and over
//! the same with the step itself, which is what its own calls come with. So each step's path can be
//! held against its caller's, whatever part of it was carried.

use super::path::{Member, Path};
use sfv::{BareItem, DictSerializer, Dictionary, KeyRef, ListEntry, Parser, key_ref};
use std::fmt;

const CAME: &KeyRef = key_ref("came");
const LEADS: &KeyRef = key_ref("leads");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Links {
    /// `None` for a step that came with no ancestors.
    pub came: Option<[u8; 32]>,
    pub leads: [u8; 32],
}

impl Links {
    /// Describes `step`, which came by `path`.
    pub fn of(path: &Path, step: &Member) -> Self {
        Self {
            came: path.chain(),
            leads: path.chain_through(step),
        }
    }

    /// Reads them, as `Display` writes them.
    pub fn parse(text: &str) -> Option<Self> {
        let members: Dictionary = Parser::new(text).parse().ok()?;
        let digest = |entry: &ListEntry| match entry {
            ListEntry::Item(item) => match &item.bare_item {
                BareItem::ByteSequence(bytes) => <[u8; 32]>::try_from(bytes.as_slice()).ok(),
                _ => None,
            },
            ListEntry::InnerList(_) => None,
        };
        Some(Self {
            came: match members.get(CAME) {
                Some(came) => Some(digest(came)?),
                None => None,
            },
            leads: digest(members.get(LEADS)?)?,
        })
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut members = DictSerializer::new();
        if let Some(came) = &self.came {
            members.bare_item(CAME, &came[..]);
        }
        members.bare_item(LEADS, &self.leads[..]);
        f.write_str(&members.finish().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Id, Timestamp};

    fn step(name: &str) -> Member {
        let id = Id::parse(name).unwrap();
        Member::new(
            id,
            "a-v1.0@1.0.0".to_owned(),
            Timestamp::from_millis(1),
            [7; 32],
        )
    }

    #[test]
    fn a_call_comes_by_what_its_caller_leads_on_by() {
        let first = Links::of(&Path::default(), &step("s-1"));
        assert_eq!(first.came, None);
        let path = Path::default().of_call(step("s-1"), &[]);
        let second = Links::of(&path, &step("s-2"));
        assert_eq!(second.came, Some(first.leads));
        for links in [first, second] {
            assert_eq!(Links::parse(&links.to_string()), Some(links));
        }
    }

    #[test]
    fn other_texts_are_none() {
        for text in [
            "",
            "output_hash d41d8cd9",
            "leads=1",
            "came=:AAAA:, leads=:AAAA:",
            "leads=()",
        ] {
            assert_eq!(Links::parse(text), None, "{text}");
        }
    }
}
