//! Holding a new contract against the published ones of its family and major.
//!
//! The nearest lower version and the nearest higher one decide: what is compatible with them fits
//! into the line, for compatibility carries from each version to the next. Two that are written at
//! the very same moment do not see each other.

use super::Error;
use super::shelf::{self, Unusable};
use crate::consul::{Client, Layout, Poll};
use crate::contract::compatibility::{self, Comparison, Verdict};
use crate::contract::{Contract, ContractId};
use semver::Version;

/// How many neighbours on one side are tried before the comparison goes without.
const MOST_TRIED: usize = 4;
/// How many differences an error tells.
const MOST_TOLD: usize = 10;

/// What a contract was compared with.
#[derive(Debug, Default)]
pub struct Neighbours {
    pub conflicts: Vec<Conflict>,
    /// Published contracts that cannot be read, each with the reason.
    pub passed_over: Vec<String>,
}

/// Two versions of which the newer breaks, or may break, what the older promises.
#[derive(Debug)]
pub struct Conflict {
    pub older: String,
    pub newer: String,
    pub comparison: Comparison,
}

/// A version of some minor of a family.
type Place = (ContractId, Version);

/// Compares with the nearest published versions, lower and higher.
pub async fn compared(client: &Client, contract: &Contract) -> Result<Neighbours, Error> {
    let layout = client.layout();
    let (family, major) = (contract.id.family(), contract.id.major());
    let prefix = layout.majors(family, major);
    let keys = client.kv_keys(&prefix, Poll::CONSISTENT).await?.value;
    let (lower, higher) = around(layout, &contract.version, &keys);
    let mut neighbours = Neighbours::default();
    if let Some(older) = nearest(client, lower, &mut neighbours.passed_over).await? {
        neighbours
            .conflicts
            .extend(conflict(older, contract.clone()).await);
    }
    if let Some(newer) = nearest(client, higher, &mut neighbours.passed_over).await? {
        neighbours
            .conflicts
            .extend(conflict(contract.clone(), newer).await);
    }
    Ok(neighbours)
}

/// Sorts what keys name into the versions below and above, the nearest first.
fn around(layout: &Layout, version: &Version, keys: &[String]) -> (Vec<Place>, Vec<Place>) {
    let places = keys.iter().filter_map(|key| shelf::place(layout, key));
    let others = places.filter(|(_, other)| other != version);
    let (mut lower, mut higher): (Vec<Place>, Vec<Place>) =
        others.partition(|(_, other)| other < version);
    lower.sort_unstable_by(|(_, a), (_, b)| b.cmp(a));
    higher.sort_unstable_by(|(_, a), (_, b)| a.cmp(b));
    (lower, higher)
}

/// Reads the first of these that can be read; names the others.
async fn nearest(
    client: &Client,
    places: Vec<Place>,
    passed_over: &mut Vec<String>,
) -> Result<Option<Contract>, Error> {
    for (id, version) in places.into_iter().take(MOST_TRIED) {
        let Some(book) = shelf::read(client, &id, &version).await? else {
            // Deleted since it was listed.
            continue;
        };
        match book.contract() {
            Ok(contract) => return Ok(Some(contract)),
            Err(reason) => passed_over.push(said(&book.key, &reason)),
        }
    }
    Ok(None)
}

fn said(key: &str, reason: &Unusable) -> String {
    format!("{key}: {reason}")
}

async fn conflict(older: Contract, newer: Contract) -> Option<Conflict> {
    let names = [&older, &newer].map(|contract| format!("{} {}", contract.id, contract.version));
    // Two schemas of the largest size keep a thread busy for a while.
    let compared = tokio::task::spawn_blocking(move || compatibility::compare(&older, &newer));
    let comparison = match compared.await {
        Ok(comparison) => comparison,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    };
    let [older, newer] = names;
    (comparison.verdict() != Verdict::Compatible).then_some(Conflict {
        older,
        newer,
        comparison,
    })
}

impl Conflict {
    /// Says what is incompatible, one line each, the gravest first.
    pub fn differences(&self) -> Vec<String> {
        let mut findings: Vec<_> = self
            .comparison
            .findings
            .iter()
            .filter(|finding| finding.verdict != Verdict::Compatible)
            .collect();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
        findings.iter().map(|finding| finding.to_string()).collect()
    }
}

/// Writes conflicts as one sentence of bounded length.
pub(super) fn told(conflicts: &[Conflict]) -> String {
    let mut room = MOST_TOLD;
    let told = conflicts.iter().map(|conflict| {
        let verb = match conflict.comparison.verdict() {
            Verdict::Breaking => "breaks",
            _ => "may break",
        };
        let all = conflict.differences();
        let (listed, more) = all.split_at(all.len().min(room));
        room -= listed.len();
        let more = match more.len() + conflict.comparison.left_out {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let (older, newer) = (&conflict.older, &conflict.newer);
        format!(
            "{newer} {verb} what {older} promises: {}{more}",
            listed.join("; ")
        )
    });
    told.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_come_first_whatever_else_lies_there() {
        let keys = [
            "hermes/contracts/a-v1.0/1.0.0",
            "hermes/contracts/a-v1.0/1.0.2",
            "hermes/contracts/a-v1.0/1.0.10",
            "hermes/contracts/a-v1.0/1.1.0",
            "hermes/contracts/a-v1.0/1.0.3-rc.1",
            "hermes/contracts/a-v1.0/version",
            "hermes/contracts/a-v1.0/notes/1.0.4",
            "hermes/contracts/a-v1.10/1.10.0",
            "hermes/contracts/a-v1.2/1.2.0",
            "hermes/contracts/a-v1.x/1.0.0",
        ]
        .map(str::to_owned);
        let layout = Layout::new("hermes");
        let (lower, higher) = around(&layout, &Version::new(1, 0, 3), &keys);
        let names = |places: &[Place]| -> Vec<_> {
            places
                .iter()
                .map(|(id, version)| format!("{id} {version}"))
                .collect()
        };
        assert_eq!(names(&lower), ["a-v1.0 1.0.2", "a-v1.0 1.0.0"]);
        assert_eq!(
            names(&higher),
            ["a-v1.0 1.0.10", "a-v1.2 1.2.0", "a-v1.10 1.10.0"]
        );
    }
    #[tokio::test]
    async fn an_error_tells_the_gravest_differences_and_how_many_more() {
        let contract = |patch: u64, required: &[String]| {
            let text = serde_json::json!({
                "id": "a-v1.0", "version": format!("1.0.{patch}"),
                "input_schema": {"type": "object", "required": required},
                "output_schema": true, "constraints": {"timeout_ms": 500 + patch}
            });
            Contract::from_slice(text.to_string().as_bytes()).unwrap()
        };
        let names: Vec<_> = (0..15).map(|n| format!("n{n}")).collect();
        let none = conflict(contract(0, &names), contract(0, &names[..2])).await;
        assert!(none.is_none(), "asking for less hurts nobody");
        let found = conflict(contract(0, &[]), contract(1, &names))
            .await
            .unwrap();
        let all = found.differences();
        assert!(all.len() > MOST_TOLD, "{all:?}");
        let told = told(&[found]);
        assert!(told.starts_with("a-v1.0 1.0.1 breaks what a-v1.0 1.0.0 promises: breaking /"));
        let more = format!(", and {} more", all.len() - MOST_TOLD);
        assert!(told.ends_with(&more), "{told}");
        assert_eq!(told.matches("breaking /").count(), MOST_TOLD, "{told}");
    }
}
