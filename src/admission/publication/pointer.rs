//! The version pointer: which version of an id is the current one.
//!
//! A pointer that names no version of its id is replaced as if there were none, and told: it came
//! from a person's hand, and nobody could use it.

use super::{Error, TRIES, shelf, step_back};
use crate::consul::{Client, KvEntry, Poll};
use crate::contract::published::pointed;
use crate::contract::{Contract, ContractId};
use semver::Version;

/// How much of a foreign pointer is told.
const MOST_TOLD: usize = 80;

/// When a sidecar writes the pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raise {
    /// Where it names a lower version.
    Lower,
    /// Only where it names none: what an operator has lowered stays so.
    Missing,
}

/// What the pointer names after it was raised or set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointed {
    pub current: Version,
    /// What stood there and was no version of the id.
    pub replaced: Option<String>,
}

/// Raises the pointer to the contract's version; one that is as high stays.
pub async fn raise(client: &Client, contract: &Contract, raise: Raise) -> Result<Pointed, Error> {
    let version = &contract.version;
    set(client, &contract.id, version, |present| {
        raise == Raise::Missing || present >= version
    })
    .await
}

/// Sets the pointer to a published version, be it lower than the present one.
pub async fn point(client: &Client, id: &ContractId, version: &Version) -> Result<Pointed, Error> {
    let is_there = match shelf::read(client, id, version).await? {
        Some(book) => book.contract_apart().await.is_ok(),
        None => false,
    };
    if !is_there {
        return Err(Error::Unpublished {
            id: id.to_string(),
            version: version.clone(),
            known: shelf::versions(client, id).await?,
        });
    }
    set(client, id, version, |present| present == version).await
}

/// Writes the pointer unless the version it names may stay.
async fn set(
    client: &Client,
    id: &ContractId,
    version: &Version,
    stays: impl Fn(&Version) -> bool,
) -> Result<Pointed, Error> {
    let key = client.layout().version(id.as_str());
    for _ in 0..TRIES {
        let entry = client.kv_get(&key, Poll::CONSISTENT).await?.value;
        let present = entry.as_ref().and_then(|entry| pointed(id, &entry.value));
        if let Some(current) = present.clone().filter(&stays) {
            let replaced = None;
            return Ok(Pointed { current, replaced });
        }
        let index = entry.as_ref().map_or(0, |entry| entry.modify_index);
        if client
            .kv_put(&key, version.to_string(), Some(index))
            .await?
        {
            let replaced = entry.filter(|_| present.is_none());
            let replaced = replaced.map(|entry| shown(&entry));
            if let Some(found) = &replaced {
                tracing::warn!(key, found, current = %version, "the version pointer named no version of its contract and was replaced");
            }
            let current = version.clone();
            return Ok(Pointed { current, replaced });
        }
        step_back().await;
    }
    Err(Error::Contended { key })
}

/// Reads which version is current; nothing where there is no pointer.
pub async fn current(client: &Client, id: &ContractId) -> Result<Option<Version>, Error> {
    let Some(entry) = read(client, id).await? else {
        return Ok(None);
    };
    match pointed(id, &entry.value) {
        Some(version) => Ok(Some(version)),
        None => Err(Error::Pointer {
            found: shown(&entry),
            key: entry.key,
            id: id.to_string(),
        }),
    }
}

/// Reads which version is current, for a list: nothing where the pointer names none.
pub(super) async fn named(client: &Client, id: &ContractId) -> Result<Option<Version>, Error> {
    let entry = read(client, id).await?;
    Ok(entry.and_then(|entry| pointed(id, &entry.value)))
}

async fn read(client: &Client, id: &ContractId) -> Result<Option<KvEntry>, Error> {
    let key = client.layout().version(id.as_str());
    Ok(client.kv_get(&key, Poll::CONSISTENT).await?.value)
}

fn shown(entry: &KvEntry) -> String {
    let text = String::from_utf8_lossy(&entry.value);
    text.chars().take(MOST_TOLD).collect()
}
