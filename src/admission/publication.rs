//! Publishing a contract in Consul: body, version, index.
//!
//! A body is written once and never changed; the version pointer is only raised. Every write is a
//! compare-and-set, so that replicas that start together do not undo each other.

use super::Ours;
use crate::consul::{self, Client, ErrorKind, Poll};
use crate::contract::Contract;
use crate::contract::watch::Published;
use crate::identity::Digest;
use crate::task::Timestamp;
use semver::Version;
use serde::Serialize;
use serde_json::value::RawValue;

/// How often a compare-and-set is tried when others write too.
const TRIES: usize = 5;

/// Why a contract could not be published.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("publish the contract")]
    Consul(#[from] consul::Error),
    #[error(
        "{key} already holds another contract under this version (digest {published}, ours is \
         {ours}); raise the version"
    )]
    VersionTaken {
        key: String,
        published: Digest,
        ours: Digest,
    },
    #[error("{key} holds something that is no published contract; remove it")]
    Foreign { key: String },
    #[error("{key} is being changed by others all the time")]
    Contended { key: String },
    #[error("the contract cannot be written as JSON")]
    Unwritable(#[from] serde_json::Error),
}

impl Error {
    /// Says whether trying again soon cannot help.
    pub fn is_permanent(&self) -> bool {
        match self {
            Error::VersionTaken { .. } | Error::Foreign { .. } | Error::Unwritable(_) => true,
            Error::Consul(error) => error.kind() == ErrorKind::Denied,
            Error::Contended { .. } => false,
        }
    }
}

#[derive(Serialize)]
struct Index<'a> {
    version: String,
    digest: Digest,
    team: &'a str,
    updated_at: String,
}

/// Writes the body, then the version pointer; what is there already stays.
pub async fn body_and_version(client: &Client, ours: &Ours, by: &str) -> Result<(), Error> {
    publish_body(client, &ours.contract.contract, by).await?;
    raise_version(client, &ours.contract.contract).await
}

async fn publish_body(client: &Client, contract: &Contract, by: &str) -> Result<(), Error> {
    let (id, version) = (contract.id.as_str(), contract.version.to_string());
    let key = client.layout().body(id, &version);
    if is_published(client, &key, contract.digest()).await? {
        return Ok(());
    }
    let text = String::from_utf8_lossy(contract.body()).into_owned();
    let raw = RawValue::from_string(text)?;
    let published = serde_json::to_vec(&Published {
        contract: &raw,
        digest: contract.digest(),
        published_at: Timestamp::now().to_string(),
        published_by: by.to_owned(),
    })?;
    if client.kv_put(&key, published, Some(0)).await? {
        tracing::info!(contract = id, version, digest = %contract.digest(), "contract published");
        return Ok(());
    }
    // Somebody was faster; what stands there now decides.
    match is_published(client, &key, contract.digest()).await? {
        true => Ok(()),
        false => Err(Error::Contended { key }),
    }
}

/// Refuses a contract whose version is published with another body: it could not be registered.
///
/// What Consul does not say is no reason to refuse.
pub async fn check_version(client: &Client, contract: &Contract) -> Result<(), Error> {
    let key = client
        .layout()
        .body(contract.id.as_str(), &contract.version.to_string());
    match is_published(client, &key, contract.digest()).await {
        Err(taken @ Error::VersionTaken { .. }) => Err(taken),
        _ => Ok(()),
    }
}

/// Says whether this very contract is published; another one under its version is an error.
async fn is_published(client: &Client, key: &str, ours: Digest) -> Result<bool, Error> {
    let answer = client.kv_get(key, Poll::CONSISTENT).await?;
    let Some(entry) = answer.value else {
        return Ok(false);
    };
    let key = key.to_owned();
    let Ok(there) = serde_json::from_slice::<Published<'_>>(&entry.value) else {
        return Err(Error::Foreign { key });
    };
    // The digest beside the body is a note; the body itself is what consumers hold against it.
    let contract = Contract::from_slice(there.contract.get().as_bytes());
    let published = contract.map_or(there.digest, |contract| contract.digest());
    match published == ours {
        true => Ok(true),
        false => Err(Error::VersionTaken {
            key,
            published,
            ours,
        }),
    }
}

async fn raise_version(client: &Client, contract: &Contract) -> Result<(), Error> {
    let key = client.layout().version(contract.id.as_str());
    for _ in 0..TRIES {
        let entry = client.kv_get(&key, Poll::CONSISTENT).await?.value;
        let present = entry.as_ref().and_then(|entry| {
            let text = std::str::from_utf8(&entry.value).ok()?;
            Version::parse(text.trim()).ok()
        });
        if present.is_some_and(|present| present >= contract.version) {
            return Ok(());
        }
        let index = entry.map_or(0, |entry| entry.modify_index);
        let version = contract.version.to_string();
        if client.kv_put(&key, version, Some(index)).await? {
            return Ok(());
        }
    }
    Err(Error::Contended { key })
}

/// Writes the index entry if our version is the current one.
pub async fn index(client: &Client, ours: &Ours, team: &str) -> Result<(), Error> {
    let contract = &ours.contract.contract;
    let id = contract.id.as_str();
    let current = client
        .kv_get(&client.layout().version(id), Poll::CONSISTENT)
        .await?;
    let version = contract.version.to_string();
    let is_ours = current
        .value
        .is_some_and(|entry| entry.value == version.as_bytes());
    if !is_ours {
        return Ok(());
    }
    let key = client.layout().index(id);
    for _ in 0..TRIES {
        let entry = client.kv_get(&key, Poll::CONSISTENT).await?.value;
        let names_us = entry.as_ref().is_some_and(|entry| {
            let there: serde_json::Value = serde_json::from_slice(&entry.value).unwrap_or_default();
            there["digest"] == contract.digest().to_string()
        });
        if names_us {
            return Ok(());
        }
        let value = serde_json::to_vec(&Index {
            version: version.clone(),
            digest: contract.digest(),
            team,
            updated_at: Timestamp::now().to_string(),
        })?;
        let index = entry.map_or(0, |entry| entry.modify_index);
        if client.kv_put(&key, value, Some(index)).await? {
            return Ok(());
        }
    }
    Err(Error::Contended { key })
}
