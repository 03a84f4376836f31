//! Keys that the settings list, and the contracts they may sign.

use crate::identity::key::PublicKey;

/// A key and the ids it is for.
#[derive(Debug, Clone)]
pub struct Listed {
    pub key: PublicKey,
    /// The name that signatures call it by.
    pub kid: String,
    pub ids: Vec<Ids>,
    thumbprint: String,
}

/// A pattern of contract ids, in which `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids(String);

/// A text that can match no contract id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} matches no contract id: write an id such as fraud-detection-v1.0, with * for any text"
)]
pub struct BadIds(String);

impl Listed {
    /// Lists a key; without a name of its own it is called by its thumbprint.
    pub fn new(key: PublicKey, kid: Option<String>, ids: Vec<Ids>) -> Self {
        let thumbprint = key.thumbprint();
        Self {
            kid: kid.unwrap_or_else(|| thumbprint.clone()),
            thumbprint,
            key,
            ids,
        }
    }

    /// Says whether the key may sign the contract of that id.
    pub fn is_for(&self, id: &str) -> bool {
        self.ids.iter().any(|ids| ids.matches(id))
    }

    /// Says whether a signature of that kid means this key: its name here, or its thumbprint,
    /// which is what signing calls a key that was given no name.
    pub(super) fn is_named(&self, kid: &str) -> bool {
        self.kid == kid || self.thumbprint == kid
    }
}

impl Ids {
    pub fn parse(text: &str) -> Result<Self, BadIds> {
        let fits = |letter: u8| {
            letter.is_ascii_lowercase() || letter.is_ascii_digit() || b"-.*".contains(&letter)
        };
        if (1..=63).contains(&text.len()) && text.bytes().all(fits) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadIds(text.chars().take(80).collect()))
        }
    }

    fn matches(&self, id: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else {
            return self.0 == id;
        };
        let Some(mut left) = id.strip_prefix(first) else {
            return false;
        };
        let mut parts = rest.split('*').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return left.ends_with(part);
            }
            // The first place leaves the most for what follows.
            match left.find(part) {
                Some(at) => left = &left[at + part.len()..],
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, id, expected) in [
            ("*", "fraud-v1.0", true),
            ("fraud-*", "fraud-detection-v1.0", true),
            ("fraud-*", "fraud-v1.0", true),
            ("fraud-*", "antifraud-v1.0", false),
            ("fraud-v1.0", "fraud-v1.0", true),
            ("fraud-v1.0", "fraud-v1.00", false),
            ("*-v1.*", "fraud-v1.7", true),
            ("*-v1.*", "fraud-v2.1", false),
            ("f*d*-v1.0", "fraud-rules-v1.0", true),
            ("a*a", "a", false),
            ("**", "fraud-v1.0", true),
            ("*fraud", "fraud-v1.0", false),
        ] {
            let ids = Ids::parse(pattern).unwrap();
            assert_eq!(ids.matches(id), expected, "{pattern} {id}");
        }
    }

    #[test]
    fn what_can_match_nothing_is_refused() {
        for text in ["", "Fraud-*", "fraud?", "fraud_v1.0", &"a".repeat(64)] {
            assert!(Ids::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn an_id_matches_with_any_part_of_it_replaced(
            id in "[a-z]{1,9}(-[a-z]{1,9}){0,2}-v[0-9]\\.[0-9]", from: prop::sample::Index, to: prop::sample::Index,
        ) {
            let (from, to) = (from.index(id.len()), to.index(id.len()));
            let (from, to) = (from.min(to), from.max(to));
            let pattern = format!("{}*{}", &id[..from], &id[to..]);
            prop_assert!(Ids::parse(&pattern).unwrap().matches(&id));
        }
    }
}
