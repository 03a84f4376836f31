//! The board: one row a contract.

use super::Board;
use super::auditor::Audits;
use super::index::Entry;
use super::judge::Judged;
use crate::consul::Instance;
use crate::contract::ContractId;
use crate::identity::Digest;
use crate::task::Timestamp;
use crate::telemetry::metrics::Audit;
use semver::Version;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the board says of one contract.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    agent: ContractId,
    family: String,
    team: String,
    /// The current one.
    version: Option<String>,
    digest: Option<Digest>,
    /// Those that are passing.
    instances: usize,
    registered: usize,
    last_updated: Option<String>,
    behind: Behind,
    /// Something runs or is published that is not what the current version promises.
    drift: bool,
    /// Passing instances with another contract than the current version.
    drifted: usize,
    /// The worst of all its bodies.
    audit: Finding,
    /// Newest first.
    bodies: Vec<Body>,
}

/// How many of the same family are newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Behind {
    major: usize,
    minor: usize,
}

#[derive(Debug, Clone, Serialize)]
struct Finding {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
    kid: Option<String>,
    checked_at: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
struct Body {
    version: String,
    /// Worked out from the body.
    digest: Option<Digest>,
    published_at: Option<String>,
    published_by: Option<String>,
    audit: Finding,
}

/// What is known of one contract, from all sources.
struct Known<'a> {
    id: &'a ContractId,
    entry: Option<&'a Result<Entry, String>>,
    versions: &'a [Version],
    instances: Arc<Vec<Instance>>,
}

impl Board {
    /// Returns every contract that is published or indexed, in order.
    pub(in crate::collector) fn rows(&self) -> Vec<impl Serialize + use<>> {
        let (audits, services) = (self.audits.load_full(), self.services.load_full());
        let listing = self.listing.borrow().value.clone().unwrap_or_default();
        let index = self.index.borrow().value.clone().unwrap_or_default();
        let ids: BTreeSet<&ContractId> = listing.contracts.keys().chain(index.keys()).collect();
        let families = families(&ids);
        let row = |id: &&ContractId| {
            let known = Known {
                id,
                entry: index.get(*id),
                versions: listing.contracts.get(*id).map_or(&[], Vec::as_slice),
                instances: services.instances.get(*id).cloned().unwrap_or_default(),
            };
            let missing = |version: &Version| {
                let key = self.client.layout().body(id.as_str(), &version.to_string());
                format!("nothing is published at {key}")
            };
            row(&known, &audits, behind(id, &families), missing)
        };
        ids.iter().map(row).collect()
    }
}

/// The majors of each family, each with its minors.
type Families<'a> = BTreeMap<&'a str, BTreeMap<u32, Vec<u32>>>;

fn families<'a>(ids: &BTreeSet<&'a ContractId>) -> Families<'a> {
    let mut families = Families::new();
    for id in ids {
        let majors = families.entry(id.family()).or_default();
        majors.entry(id.major()).or_default().push(id.minor());
    }
    families
}

fn behind(id: &ContractId, families: &Families<'_>) -> Behind {
    let Some(majors) = families.get(id.family()) else {
        return Behind { major: 0, minor: 0 };
    };
    let minors = majors.get(&id.major()).into_iter().flatten();
    Behind {
        major: majors.range(id.major() + 1..).count(),
        minor: minors.filter(|minor| **minor > id.minor()).count(),
    }
}

fn row(
    known: &Known<'_>,
    audits: &Audits,
    behind: Behind,
    missing: impl Fn(&Version) -> String,
) -> Row {
    let judged = |version: &Version| audits.bodies.get(&(known.id.clone(), version.clone()));
    let entry = known.entry.and_then(|entry| entry.as_ref().ok());
    let pointer = audits.pointers.get(known.id);
    let version = entry.map(|entry| &entry.version).or(pointer);
    let current = version.and_then(judged);
    let digest = entry.map(|entry| entry.digest);
    let digest = digest.or(current.and_then(|judged| judged.digest));
    let passing = known.instances.iter().filter(|instance| instance.passing);
    let named = digest.map(|digest| digest.to_string());
    let drifted = |instance: &&Instance| named.is_some() && instance.digest() != named.as_deref();
    let drifted = passing.clone().filter(drifted).count();
    let bodies = known
        .versions
        .iter()
        .map(|version| body(version, judged(version)));
    let bodies: Vec<(Audit, Body)> = bodies.collect();
    let mut worst = bodies
        .iter()
        .max_by_key(|(state, _)| *state)
        .map(|(state, body)| (*state, with(&body.audit, &body.version)));
    let trouble = match (known.entry, version) {
        (Some(Err(error)), _) => Some(format!("its index entry cannot be read: {error}")),
        (_, Some(version)) if !known.versions.contains(version) => Some(missing(version)),
        _ => None,
    };
    if let Some(detail) = trouble
        && worst
            .as_ref()
            .is_none_or(|(state, _)| *state < Audit::Unreadable)
    {
        worst = Some((Audit::Unreadable, told(Audit::Unreadable, detail)));
    }
    let (state, audit) = worst.unwrap_or_else(|| {
        let detail = "no version of it is published";
        (Audit::Unreadable, told(Audit::Unreadable, detail))
    });
    Row {
        family: known.id.family().to_owned(),
        team: team(entry, &known.instances),
        version: version.map(Version::to_string),
        digest,
        instances: passing.count(),
        registered: known.instances.len(),
        last_updated: last_updated(entry, current),
        behind,
        drift: drifted > 0 || state == Audit::Mismatch,
        drifted,
        audit,
        bodies: bodies.into_iter().map(|(_, body)| body).collect(),
        agent: known.id.clone(),
    }
}

fn team(entry: Option<&Entry>, instances: &[Instance]) -> String {
    let indexed = entry.map(|entry| entry.team.as_str());
    let registered = || instances.iter().find_map(Instance::team);
    let team = indexed.filter(|team| !team.is_empty()).or_else(registered);
    team.unwrap_or_default().to_owned()
}

fn last_updated(entry: Option<&Entry>, current: Option<&Arc<Judged>>) -> Option<String> {
    let indexed = entry.map(|entry| entry.updated_at.clone());
    let published = || current.map(|judged| judged.noted.published_at.clone());
    indexed.or_else(published).filter(|text| !text.is_empty())
}

fn body(version: &Version, judged: Option<&Arc<Judged>>) -> (Audit, Body) {
    let state = judged.map_or(Audit::Unaudited, |judged| judged.state);
    let audit = match judged {
        Some(judged) => Finding {
            state: state.as_str(),
            version: None,
            detail: judged.detail.clone(),
            kid: judged.kid.clone(),
            checked_at: Some(judged.checked_at),
        },
        None => told(state, ""),
    };
    let note = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let body = Body {
        version: version.to_string(),
        digest: judged.and_then(|judged| judged.digest),
        published_at: judged.and_then(|judged| note(&judged.noted.published_at)),
        published_by: judged.and_then(|judged| note(&judged.noted.published_by)),
        audit,
    };
    (state, body)
}

fn told(state: Audit, detail: impl Into<String>) -> Finding {
    Finding {
        state: state.as_str(),
        version: None,
        detail: detail.into(),
        kid: None,
        checked_at: None,
    }
}

/// Names the version that a finding is about.
fn with(finding: &Finding, version: &str) -> Finding {
    Finding {
        version: Some(version.to_owned()),
        ..finding.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_ones_of_the_same_family_are_counted() {
        let ids: Vec<ContractId> = ["a-v1.0", "a-v1.1", "a-v1.3", "a-v2.0", "a-v4.7", "b-v9.9"]
            .iter()
            .map(|id| id.parse().unwrap())
            .collect();
        let ids: BTreeSet<&ContractId> = ids.iter().collect();
        let families = families(&ids);
        let shown: Vec<_> = ids
            .iter()
            .map(|id| {
                let Behind { major, minor } = behind(id, &families);
                (id.as_str(), major, minor)
            })
            .collect();
        let expected = [
            ("a-v1.0", 2, 2),
            ("a-v1.1", 2, 1),
            ("a-v1.3", 2, 0),
            ("a-v2.0", 1, 0),
            ("a-v4.7", 0, 0),
            ("b-v9.9", 0, 0),
        ];
        assert_eq!(shown, expected);
    }
}
