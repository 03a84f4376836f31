//! The version pointer: which version of an id is the current one.

use super::{Error, TRIES, shelf, step_back};
use crate::consul::{Client, KvEntry, Poll};
use crate::contract::{Contract, ContractId};
use semver::Version;

/// When a sidecar writes the pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raise {
    /// Where it names a lower version.
    Lower,
    /// Only where it names none: what an operator has lowered stays so.
    Missing,
}

/// Raises the pointer to the contract's version; one that is as high stays. Returns what it names.
pub async fn raise(client: &Client, contract: &Contract, raise: Raise) -> Result<Version, Error> {
    let key = client.layout().version(contract.id.as_str());
    for _ in 0..TRIES {
        let entry = client.kv_get(&key, Poll::CONSISTENT).await?.value;
        let version = &contract.version;
        match entry.as_ref().and_then(named) {
            Some(present) if raise == Raise::Missing || present >= *version => return Ok(present),
            _ if written(client, &key, entry, version).await? => return Ok(version.clone()),
            _ => {}
        }
        step_back().await;
    }
    Err(Error::Contended { key })
}

/// Sets the pointer to a published version, be it lower than the present one.
pub async fn point(client: &Client, id: &ContractId, version: &Version) -> Result<(), Error> {
    let book = shelf::read(client, id, version).await?;
    let is_there = book.is_some_and(|book| book.contract().is_ok());
    if !is_there {
        return Err(Error::Unpublished {
            id: id.to_string(),
            version: version.clone(),
            known: shelf::versions(client, id).await?,
        });
    }
    let key = client.layout().version(id.as_str());
    for _ in 0..TRIES {
        let entry = client.kv_get(&key, Poll::CONSISTENT).await?.value;
        let stays = entry.as_ref().and_then(named).as_ref() == Some(version);
        if stays || written(client, &key, entry, version).await? {
            return Ok(());
        }
        step_back().await;
    }
    Err(Error::Contended { key })
}

/// Reads which version is current; nothing where the key names none.
pub async fn current(client: &Client, id: &ContractId) -> Result<Option<Version>, Error> {
    let key = client.layout().version(id.as_str());
    let entry = client.kv_get(&key, Poll::CONSISTENT).await?.value;
    Ok(entry.as_ref().and_then(named))
}

fn named(entry: &KvEntry) -> Option<Version> {
    let text = std::str::from_utf8(&entry.value).ok()?;
    Version::parse(text.trim()).ok()
}

async fn written(
    client: &Client,
    key: &str,
    there: Option<KvEntry>,
    version: &Version,
) -> Result<bool, Error> {
    let index = there.map_or(0, |entry| entry.modify_index);
    Ok(client.kv_put(key, version.to_string(), Some(index)).await?)
}
