//! The index entry of an id, which moves with its version pointer.

use super::{Error, TRIES, pointer, shelf, step_back};
use crate::consul::{Client, KvEntry, Poll};
use crate::contract::Contract;
use crate::identity::Digest;
use crate::task::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};

/// What stands in the entry.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Index {
    pub version: String,
    pub digest: Digest,
    #[serde(default)]
    pub team: String,
    #[serde(default)]
    pub updated_at: String,
}

/// Whose contract it is.
#[derive(Debug, Clone, Copy)]
pub struct Team<'a> {
    /// Without `team-`; empty for none.
    pub name: &'a str,
    /// Writes it although nothing else has changed.
    pub insists: bool,
}

/// Lets the entry say what the pointer says; where the pointer names no version, nothing is done.
pub async fn follow(client: &Client, contract: &Contract, team: Team<'_>) -> Result<(), Error> {
    let id = &contract.id;
    let key = client.layout().index(id.as_str());
    for _ in 0..TRIES {
        // The entry before the pointer: whoever moves the pointer after we have read it writes the
        // entry later still, and so makes our write fail or comes after it.
        let entry = client.kv_get(&key, Poll::CONSISTENT).await?.value;
        let Some(current) = pointer::current(client, id).await? else {
            return Ok(());
        };
        let Some(digest) = digest_of(client, contract, &current).await? else {
            return Ok(());
        };
        let there = entry.as_ref().and_then(read);
        let is_new = there
            .as_ref()
            .is_none_or(|there| there.version != current.to_string() || there.digest != digest);
        let kept = there.as_ref().map_or("", |there| there.team.as_str());
        let is_ours = current == contract.version && (team.insists || is_new);
        let name = match kept {
            "" => team.name,
            _ if is_ours && !team.name.is_empty() => team.name,
            kept => kept,
        };
        if !is_new && name == kept {
            return Ok(());
        }
        let value = serde_json::to_vec(&Index {
            version: current.to_string(),
            digest,
            team: name.to_owned(),
            updated_at: Timestamp::now().to_string(),
        })?;
        let index = entry.map_or(0, |entry| entry.modify_index);
        if client.kv_put(&key, value, Some(index)).await? {
            return Ok(());
        }
        step_back().await;
    }
    Err(Error::Contended { key })
}

pub(super) fn read(entry: &KvEntry) -> Option<Index> {
    serde_json::from_slice(&entry.value).ok()
}

/// Finds the digest of a version: ours is known, another's is what its body gives.
async fn digest_of(
    client: &Client,
    contract: &Contract,
    version: &Version,
) -> Result<Option<Digest>, Error> {
    if *version == contract.version {
        return Ok(Some(contract.digest()));
    }
    let book = shelf::read(client, &contract.id, version).await?;
    let other = book.and_then(|book| book.contract().ok());
    Ok(other.map(|other| other.digest()))
}
