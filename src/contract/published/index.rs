//! An entry of the index: the current version of one contract, whose it is and since when.

use super::version;
use crate::contract::ContractId;
use crate::identity::Digest;
use semver::Version;
use serde::{Deserialize, Serialize};

/// What stands in the index for one contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub version: Version,
    pub digest: Digest,
    /// Without `team-`; empty for none.
    pub team: String,
    pub updated_at: String,
}

/// Why an entry cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BadEntry {
    #[error("{0}")]
    Foreign(#[from] serde_json::Error),
    #[error("its version {found:?} is none of {id}")]
    Version { id: ContractId, found: String },
}

/// An entry as it is written.
#[derive(Serialize, Deserialize)]
struct Raw {
    version: String,
    digest: Digest,
    #[serde(default)]
    team: String,
    #[serde(default)]
    updated_at: String,
}

impl Entry {
    /// Reads the entry of this contract.
    pub fn read(id: &ContractId, value: &[u8]) -> Result<Self, BadEntry> {
        let raw: Raw = serde_json::from_slice(value)?;
        let Some(version) = version(id, &raw.version) else {
            return Err(BadEntry::Version {
                id: id.clone(),
                found: raw.version.chars().take(80).collect(),
            });
        };
        Ok(Self {
            version,
            digest: raw.digest,
            team: raw.team,
            updated_at: raw.updated_at,
        })
    }

    /// Writes the entry as it is to stand in Consul.
    pub fn written(self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&Raw {
            version: self.version.to_string(),
            digest: self.digest,
            team: self.team,
            updated_at: self.updated_at,
        })
    }
}
