//! What is published, by its keys.

use crate::consul::{Answer, Client, Error, Poll};
use crate::contract::ContractId;
use semver::Version;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Contracts on the board, and bodies of all of them together; further ones are counted only.
const MOST_CONTRACTS: usize = 2_000;
const MOST_VERSIONS: usize = 10_000;
/// Bodies that are audited: the newest of every contract before the second newest of any.
pub(super) const MOST_AUDITED: usize = 2_000;
/// Keys that name no contract are shown up to here.
const MOST_SHOWN: usize = 5;

/// Every published body by its key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// Moves with each write below the prefix, so that a body changed in place, which changes no
    /// key, makes another listing all the same.
    pub(super) index: u64,
    /// Newest first.
    pub(super) contracts: BTreeMap<ContractId, Vec<Version>>,
    /// Some of the keys that name nothing of ours.
    pub(super) foreign: Vec<String>,
    /// Keys beyond the bounds.
    pub(super) left_out: usize,
}

pub(super) async fn read(client: &Client, poll: Poll) -> Result<Answer<Listing>, Error> {
    let prefix = client.layout().contracts();
    let answer = client.kv_keys(&prefix, poll).await?;
    let listing = Listing::of(&prefix, answer.index, &answer.value);
    Ok(answer.with(listing))
}

impl Listing {
    fn of(prefix: &str, index: u64, keys: &[String]) -> Self {
        let mut listing = Self {
            index,
            ..Self::default()
        };
        let mut versions = 0;
        for key in keys {
            let Some((id, rest)) = parts(prefix, key) else {
                if listing.foreign.len() < MOST_SHOWN && !key.ends_with("/_keep") {
                    listing.foreign.push(key.chars().take(200).collect());
                }
                continue;
            };
            let is_full = listing.contracts.len() >= MOST_CONTRACTS || versions >= MOST_VERSIONS;
            if is_full && !listing.contracts.contains_key(&id) || versions >= MOST_VERSIONS {
                listing.left_out += 1;
                continue;
            }
            let known = listing.contracts.entry(id).or_default();
            if let Part::Body(version) = rest {
                known.push(version);
                versions += 1;
            }
        }
        for versions in listing.contracts.values_mut() {
            versions.sort_unstable_by(|a, b| b.cmp(a));
        }
        listing
    }

    /// Chooses the bodies to audit, by contract; what else there is comes as a count.
    pub(super) fn audited(&self) -> (BTreeMap<&ContractId, Vec<&Version>>, usize) {
        let mut all: Vec<_> = self
            .contracts
            .iter()
            .flat_map(|(id, versions)| {
                let ranked = versions.iter().enumerate();
                ranked.map(move |(rank, version)| (rank, id, version))
            })
            .collect();
        all.sort_unstable_by_key(|(rank, id, version)| (*rank, *id, Reverse(*version)));
        let beyond = all.len().saturating_sub(MOST_AUDITED);
        all.truncate(MOST_AUDITED);
        // Also those without a body: their pointer is worth knowing.
        let ids = self.contracts.keys().map(|id| (id, Vec::new()));
        let mut chosen: BTreeMap<&ContractId, Vec<&Version>> = ids.collect();
        for (_, id, version) in all {
            chosen.entry(id).or_default().push(version);
        }
        (chosen, beyond + self.left_out)
    }
}

enum Part {
    /// The pointer to the current version.
    Pointer,
    Body(Version),
}

/// Takes a key apart; nothing for one that is not of a contract.
fn parts(prefix: &str, key: &str) -> Option<(ContractId, Part)> {
    let (id, rest) = key.strip_prefix(prefix)?.split_once('/')?;
    let id: ContractId = id.parse().ok()?;
    if rest == "version" {
        return Some((id, Part::Pointer));
    }
    let version = version(&id, rest)?;
    Some((id, Part::Body(version)))
}

/// Reads a version as it stands in keys: plain, in its one spelling, and of this id.
pub(super) fn version(id: &ContractId, text: &str) -> Option<Version> {
    let version = Version::parse(text).ok()?;
    let is_plain = version.pre.is_empty() && version.build.is_empty();
    let is_of = version.major == u64::from(id.major()) && version.minor == u64::from(id.minor());
    (is_plain && is_of).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(keys: &[&str]) -> Listing {
        let keys: Vec<String> = keys
            .iter()
            .map(|key| format!("hermes/contracts/{key}"))
            .collect();
        Listing::of("hermes/contracts/", 7, &keys)
    }

    #[test]
    fn keys_are_sorted_into_contracts() {
        let listing = of(&[
            "_keep",
            "a-v1.0/1.0.0",
            "a-v1.0/1.0.10",
            "a-v1.0/1.0.2",
            "a-v1.0/version",
            "b-v2.1/version",
        ]);
        let shown: Vec<_> = listing
            .contracts
            .iter()
            .map(|(id, versions)| {
                let versions: Vec<_> = versions.iter().map(Version::to_string).collect();
                (id.to_string(), versions.join(" "))
            })
            .collect();
        let expected = [("a-v1.0", "1.0.10 1.0.2 1.0.0"), ("b-v2.1", "")];
        let expected = expected.map(|(id, versions)| (id.to_owned(), versions.to_owned()));
        assert_eq!(shown, expected);
        assert_eq!((listing.index, listing.foreign.len()), (7, 0));
    }

    #[test]
    fn keys_of_nobody_are_named() {
        for key in [
            "x",
            "Bad_Id/1.0.0",
            "a-v1.0",
            "a-v1.0/",
            "a-v1.0/2.0.0",
            "a-v1.0/1.0",
            "a-v1.0/1.0.0-rc1",
            "a-v1.0/1.0.0+b",
            "a-v1.0/01.0.0",
            "a-v1.0/1.0.0/x",
            "a-v1.0/_keep2",
        ] {
            let listing = of(&[key]);
            assert_eq!(
                listing.foreign,
                [format!("hermes/contracts/{key}")],
                "{key}"
            );
            assert!(listing.contracts.is_empty(), "{key}");
        }
        let many: Vec<String> = (0..50).map(|n| format!("hermes/contracts/{n}")).collect();
        assert_eq!(
            Listing::of("hermes/contracts/", 1, &many).foreign.len(),
            MOST_SHOWN
        );
    }

    #[test]
    fn the_newest_of_all_are_audited_first_and_the_rest_is_counted() {
        let keys: Vec<String> = (0..1_500)
            .flat_map(|n| {
                (0..3).map(move |patch| format!("hermes/contracts/a{n}-v1.0/1.0.{patch}"))
            })
            .collect();
        let listing = Listing::of("hermes/contracts/", 1, &keys);
        let (chosen, beyond) = listing.audited();
        assert_eq!((chosen.len(), beyond), (1_500, 2_500));
        let newest = chosen.values().all(|versions| versions[0].patch == 2);
        let count: usize = chosen.values().map(Vec::len).sum();
        assert!(newest && count == MOST_AUDITED);
        let many: Vec<String> = (0..MOST_CONTRACTS + 9)
            .map(|n| format!("hermes/contracts/a{n:05}-v1.0/1.0.0"))
            .collect();
        let listing = Listing::of("hermes/contracts/", 1, &many);
        assert_eq!(
            (listing.contracts.len(), listing.left_out),
            (MOST_CONTRACTS, 9)
        );
    }
}
