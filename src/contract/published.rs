//! What is published in Consul: bodies of contracts, the keys they stand at, entries of the index.
//!
//! Whoever reads something published reads it here, so that all rooms say the same of it.
//!
//! - a body is a contract of the id and version that its key names
//! - the digest beside it is a note: callers go by what instances name, those who look after
//!   bodies hold the note against the content too
//! - elsewhere: writing them (`admission`), whose signatures count (`trust`)

mod index;
mod key;

pub use index::{BadEntry, Entry};
pub use key::{Key, indexed, pointed, version};

use super::{Contract, ContractId, Problems};
use crate::apart::{self, Panicked};
use crate::identity::Digest;
use bytes::Bytes;
use semver::Version;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;

/// How many versions a sentence names.
const MOST_NAMED: usize = 20;

/// A published body as it stands in Consul.
#[derive(Debug, Serialize, Deserialize)]
pub struct Published<'a> {
    #[serde(borrow)]
    pub contract: &'a RawValue,
    pub digest: Digest,
    pub published_at: String,
    pub published_by: String,
}

/// Why a body is no contract that one could rely on; a sentence about what its key holds.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("it holds no published contract: {0}; remove it, and publish the contract again")]
    Foreign(serde_json::Error),
    #[error("its contract has faults: {0}; publish a new version without them")]
    Faulty(Arc<Problems>),
    #[error(
        "it holds {} {}, which belongs under another key; restore the body or publish a new version",
        .0.id, .0.version
    )]
    Misplaced(Box<Contract>),
    #[error(
        "its content has digest {found}, but it was published with {noted}: it was changed since; \
         restore the body or publish a new version"
    )]
    Altered { noted: Digest, found: Digest },
    #[error("it could not be read: {0}")]
    Unread(Panicked),
}

impl<'a> Published<'a> {
    /// Reads what stands at the key of a body.
    pub fn read(value: &'a [u8]) -> Result<Self, Unusable> {
        serde_json::from_slice(value).map_err(Unusable::Foreign)
    }

    /// Reads the contract, which must be of this id and version.
    pub fn contract(&self, id: &ContractId, version: &Version) -> Result<Contract, Unusable> {
        let contract = Contract::from_slice(self.contract.get().as_bytes());
        let contract = contract.map_err(|problems| Unusable::Faulty(Arc::new(problems)))?;
        match (&contract.id, &contract.version) == (id, version) {
            true => Ok(contract),
            false => Err(Unusable::Misplaced(Box::new(contract))),
        }
    }

    /// Holds the contract that was read from it against the note beside it.
    pub fn check(&self, contract: &Contract) -> Result<(), Unusable> {
        let (noted, found) = (self.digest, contract.digest());
        match noted == found {
            true => Ok(()),
            false => Err(Unusable::Altered { noted, found }),
        }
    }
}

/// Reads what stands at the key of this id and version: its contract, unchanged since it was
/// published.
pub fn contract(value: &[u8], id: &ContractId, version: &Version) -> Result<Contract, Unusable> {
    let published = Published::read(value)?;
    let contract = published.contract(id, version)?;
    published.check(&contract)?;
    Ok(contract)
}

/// Does the same apart from the threads that move traffic: a body has up to 512 KiB, from anybody.
pub async fn contract_apart(
    value: Bytes,
    id: ContractId,
    version: Version,
) -> Result<Contract, Unusable> {
    let read = apart::caught(move || contract(&value, &id, &version)).await;
    read.map_err(Unusable::Unread)?
}

/// Says which versions there are, as the end of a sentence.
pub fn told(versions: &[Version]) -> String {
    let mut newest: Vec<_> = versions.iter().collect();
    newest.sort_unstable_by(|a, b| b.cmp(a));
    let named = newest.iter().take(MOST_NAMED);
    let named: Vec<_> = named.map(|version| version.to_string()).collect();
    let named = named.join(", ");
    match versions.len() {
        0 => "no version of it is published".to_owned(),
        count if count > MOST_NAMED => format!("there are {count}, the newest {named}"),
        _ => format!("there are {named}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn body(contract: &Value) -> Value {
        let digest = Contract::from_slice(contract.to_string().as_bytes());
        json!({
            "contract": contract, "digest": digest.unwrap().digest(),
            "published_at": "2026-12-01T00:00:00.000Z", "published_by": "a-1",
        })
    }

    #[test]
    fn each_fault_of_a_body_names_itself_and_a_remedy() {
        let good = body(&json!({
            "id": "a-v1.0", "version": "1.0.0", "input_schema": true, "output_schema": true,
            "constraints": {"timeout_ms": 500},
        }));
        let id: ContractId = "a-v1.0".parse().unwrap();
        let at = |patch, value: &Value| {
            let version = Version::new(1, 0, patch);
            contract(value.to_string().as_bytes(), &id, &version)
        };
        assert_eq!(at(0, &good).unwrap().version, Version::new(1, 0, 0));
        let with = |pointer: &str, value: Value| {
            let mut body = good.clone();
            *body.pointer_mut(pointer).unwrap() = value;
            body
        };
        let altered = with("/contract/constraints/timeout_ms", json!(501));
        for (patch, value, told, remedy) in [
            (0, json!("x"), "no published contract", "remove it"),
            (
                0,
                with("/digest", json!("md5:1")),
                "no published contract",
                "remove it",
            ),
            (
                0,
                with("/contract", json!(7)),
                "has faults",
                "publish a new version",
            ),
            (1, good.clone(), "holds a-v1.0 1.0.0", "restore"),
            (0, altered, "changed since", "restore"),
        ] {
            let error = at(patch, &value).unwrap_err().to_string();
            assert!(error.contains(told) && error.contains(remedy), "{error}");
        }
    }

    #[test]
    fn versions_are_told_newest_first_and_not_without_end() {
        let versions = |count| (0..count).map(|patch| Version::new(1, 0, patch));
        let told = |count| super::told(&versions(count).collect::<Vec<_>>());
        assert_eq!(told(0), "no version of it is published");
        assert_eq!(told(2), "there are 1.0.1, 1.0.0");
        let many = told(1000);
        assert!(many.starts_with("there are 1000, the newest 1.0.999, 1.0.998"));
        assert!(many.ends_with("1.0.980"), "{many}");
    }
}
