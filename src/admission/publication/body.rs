//! The body: written once, then only signed by more.

use super::neighbours::{self, Neighbours};
use super::{Error, TRIES, signatures, step_back};
use crate::consul::{Client, KvEntry, Poll};
use crate::contract::Contract;
use crate::contract::watch::Published;
use crate::identity::Digest;
use crate::task::Timestamp;
use serde_json::value::RawValue;

/// What publishing came to.
#[derive(Debug)]
pub struct Publication {
    pub change: Change,
    /// Signatures of ours that found no room.
    pub left_out: usize,
    /// What a new body was held against; nothing where the body was there.
    pub neighbours: Neighbours,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Created,
    /// So many signatures were added to the body that was there.
    Signed(usize),
    None,
}

/// Writes the body if it is not there, else adds what signatures it lacks.
///
/// A new body that breaks its neighbours' promises is written only if `allow_breaking`.
pub async fn publish(
    client: &Client,
    contract: &Contract,
    by: &str,
    allow_breaking: bool,
) -> Result<Publication, Error> {
    let key = key(client, contract);
    let mut neighbours = None;
    for _ in 0..TRIES {
        let entry = client.kv_get(&key, Poll::CONSISTENT).await?.value;
        let (value, index, publication) = match entry {
            Some(entry) => {
                let merged = merged(&key, &entry, contract)?;
                let publication = Publication {
                    change: match merged.added {
                        0 => Change::None,
                        added => Change::Signed(added),
                    },
                    left_out: merged.left_out,
                    neighbours: Neighbours::default(),
                };
                match merged.entry {
                    None => return Ok(publication),
                    Some(value) => (value, entry.modify_index, publication),
                }
            }
            None => {
                let compared = match neighbours.take() {
                    Some(compared) => compared,
                    None => neighbours::compared(client, contract).await?,
                };
                if !allow_breaking && !compared.conflicts.is_empty() {
                    return Err(Error::Breaking(compared.conflicts));
                }
                let publication = Publication {
                    change: Change::Created,
                    left_out: 0,
                    neighbours: compared,
                };
                (written(contract, by)?, 0, publication)
            }
        };
        if client.kv_put(&key, value, Some(index)).await? {
            told(contract, &publication);
            return Ok(publication);
        }
        neighbours = Some(publication.neighbours).filter(|_| index == 0);
        step_back().await;
    }
    Err(Error::Contended { key })
}

/// Refuses a contract that could not be registered: its version is published with another body, or
/// it breaks what others of its major promise.
///
/// What Consul does not say is no reason to refuse.
pub async fn check_version(client: &Client, contract: &Contract) -> Result<(), Error> {
    let key = key(client, contract);
    match client.kv_get(&key, Poll::CONSISTENT).await {
        Ok(answer) => match answer.value {
            Some(entry) => merged(&key, &entry, contract).map(|_| ()),
            None => match neighbours::compared(client, contract).await {
                Ok(compared) if !compared.conflicts.is_empty() => {
                    Err(Error::Breaking(compared.conflicts))
                }
                _ => Ok(()),
            },
        },
        Err(_silent) => Ok(()),
    }
}

fn key(client: &Client, contract: &Contract) -> String {
    let version = contract.version.to_string();
    client.layout().body(contract.id.as_str(), &version)
}

/// Joins the signatures of a body that is there with ours; another body is an error.
fn merged(key: &str, entry: &KvEntry, contract: &Contract) -> Result<signatures::Merged, Error> {
    let ours = contract.digest();
    let key = key.to_owned();
    let Ok(there) = serde_json::from_slice::<Published<'_>>(&entry.value) else {
        return Err(Error::Foreign { key });
    };
    // The digest beside the body is a note; the body itself is what consumers hold against it.
    let found = Contract::from_slice(there.contract.get().as_bytes()).map(|there| there.digest());
    match found {
        Ok(found) if found == ours => Ok(signatures::merge(
            &entry.value,
            &there,
            &contract.signatures,
        )),
        _ if there.digest == ours => Err(Error::Altered { key, ours }),
        found => Err(Error::VersionTaken {
            key,
            published: found.unwrap_or(there.digest),
            ours,
        }),
    }
}

fn written(contract: &Contract, by: &str) -> Result<Vec<u8>, Error> {
    let text = String::from_utf8_lossy(contract.body()).into_owned();
    let raw = RawValue::from_string(text)?;
    let published = Published {
        contract: &raw,
        digest: contract.digest(),
        published_at: Timestamp::now().to_string(),
        published_by: by.to_owned(),
    };
    Ok(serde_json::to_vec(&published)?)
}

fn told(contract: &Contract, publication: &Publication) {
    let (id, version) = (contract.id.as_str(), &contract.version);
    let digest: Digest = contract.digest();
    match publication.change {
        Change::Created => tracing::info!(contract = id, %version, %digest, "contract published"),
        Change::Signed(added) => tracing::info!(
            contract = id, %version, %digest, added,
            "signatures added to the published contract"
        ),
        Change::None => {}
    }
    for passed_over in &publication.neighbours.passed_over {
        tracing::warn!(
            contract = id,
            %version,
            passed_over,
            "a published contract could not be compared with"
        );
    }
}
