//! What stands at the keys of one contract.

use super::listing::version;
use crate::consul::{Client, ErrorKind, KvEntry, Poll};
use crate::contract::ContractId;
use crate::telemetry::log::Chain;
use bytes::Bytes;
use semver::Version;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::timeout;

const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Versions of a contract that one read may bring along; more are read one by one.
const MOST_AT_ONCE: usize = 32;

/// What one contract's keys hold.
pub(super) struct Found {
    pub(super) pointer: Option<Version>,
    pub(super) bodies: HashMap<Version, Bytes>,
}

/// Reads the bodies of these versions, out of `all` that are known, and the pointer to the current
/// one.
pub(super) async fn read(
    client: &Client,
    id: &ContractId,
    versions: &[&Version],
    all: usize,
) -> Result<Found, String> {
    let at_once = match all <= MOST_AT_ONCE {
        true => at_once(client, id).await?,
        false => None,
    };
    let entries = match at_once {
        Some(entries) => entries,
        None => one_by_one(client, id, versions).await?,
    };
    let mut found = Found {
        pointer: None,
        bodies: HashMap::new(),
    };
    for entry in entries {
        match entry.key.rsplit('/').next() {
            Some("version") => found.pointer = pointed(id, &entry.value),
            Some(name) => {
                if let Some(version) = version(id, name) {
                    found.bodies.insert(version, entry.value);
                }
            }
            None => {}
        }
    }
    Ok(found)
}

/// Reads all below the contract's prefix; nothing where that is too much for one answer, since
/// anybody may put more there than belongs there.
async fn at_once(client: &Client, id: &ContractId) -> Result<Option<Vec<KvEntry>>, String> {
    let prefix = client.layout().bodies(id.as_str());
    let listed = timeout(READ_TIMEOUT, client.kv_list(&prefix, Poll::NOW)).await;
    match listed {
        Ok(Ok(answer)) => Ok(Some(answer.value)),
        Ok(Err(error)) if error.kind() == ErrorKind::BadAnswer => Ok(None),
        Ok(Err(error)) => Err(Chain(&error).to_string()),
        Err(_elapsed) => Err(silence()),
    }
}

async fn one_by_one(
    client: &Client,
    id: &ContractId,
    versions: &[&Version],
) -> Result<Vec<KvEntry>, String> {
    let layout = client.layout();
    let bodies = versions
        .iter()
        .map(|version| layout.body(id.as_str(), &version.to_string()));
    let mut entries = Vec::new();
    for key in bodies.chain([layout.version(id.as_str())]) {
        match timeout(READ_TIMEOUT, client.kv_get(&key, Poll::NOW)).await {
            Ok(answer) => {
                let answer = answer.map_err(|error| Chain(&error).to_string())?;
                entries.extend(answer.value);
            }
            Err(_elapsed) => return Err(silence()),
        }
    }
    Ok(entries)
}

fn silence() -> String {
    format!("no answer from Consul within {READ_TIMEOUT:?}")
}

/// Reads the pointer to the current version.
pub(super) fn pointed(id: &ContractId, value: &[u8]) -> Option<Version> {
    let text = std::str::from_utf8(value).ok()?;
    version(id, text.trim())
}
