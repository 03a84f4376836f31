//! The index: which version of each contract is current.

use super::listing::version;
use crate::consul::{Answer, Client, Error, KvEntry, Poll};
use crate::contract::ContractId;
use crate::identity::Digest;
use semver::Version;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Entries that are looked at; there is one a contract.
const MOST_ENTRIES: usize = 2_000;
const MOST_TEXT: usize = 256;

/// Every entry, or why it cannot be read.
pub(super) type Index = BTreeMap<ContractId, Result<Entry, String>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) version: Version,
    pub(super) digest: Digest,
    pub(super) team: String,
    pub(super) updated_at: String,
}

#[derive(Deserialize)]
struct Raw {
    version: String,
    digest: Digest,
    #[serde(default)]
    team: String,
    #[serde(default)]
    updated_at: String,
}

pub(super) async fn read(client: &Client, poll: Poll) -> Result<Answer<Index>, Error> {
    let prefix = client.layout().indexes();
    let answer = client.kv_list(&prefix, poll).await?;
    let entries = answer.value.iter().filter_map(|entry| of(&prefix, entry));
    let index = entries.take(MOST_ENTRIES).collect();
    Ok(answer.with(index))
}

/// Reads one entry; nothing where its key is no contract's, as that which keeps the prefix.
fn of(prefix: &str, entry: &KvEntry) -> Option<(ContractId, Result<Entry, String>)> {
    let id: ContractId = entry.key.strip_prefix(prefix)?.parse().ok()?;
    let read = serde_json::from_slice::<Raw>(&entry.value).map_err(|error| error.to_string());
    let read = read.and_then(|raw| {
        let version =
            version(&id, &raw.version).ok_or_else(|| format!("its version is none of {id}"))?;
        Ok(Entry {
            version,
            digest: raw.digest,
            team: raw.team.chars().take(MOST_TEXT).collect(),
            updated_at: raw.updated_at.chars().take(MOST_TEXT).collect(),
        })
    });
    Some((id, read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(key: &str, value: &str) -> Option<(ContractId, Result<Entry, String>)> {
        let entry = KvEntry {
            key: format!("hermes/index/{key}"),
            value: value.to_owned().into(),
            modify_index: 1,
        };
        of("hermes/index/", &entry)
    }

    #[test]
    fn entries_are_read_and_garbage_is_told() {
        let digest = Digest::of(b"x");
        let good = json!({"version": "1.0.2", "digest": digest, "team": "finance",
                          "updated_at": "2026-12-01T00:00:00.000Z", "more": 1});
        let (id, entry) = read("a-v1.0", &good.to_string()).unwrap();
        let entry = entry.unwrap();
        assert_eq!((id.as_str(), entry.team.as_str()), ("a-v1.0", "finance"));
        assert_eq!((entry.version.patch, entry.digest), (2, digest));
        let foreign = json!({"version": "2.0.0", "digest": digest});
        for (garbage, text) in [
            ("", "EOF"),
            ("7", "invalid type"),
            (r#"{"version":"1.0.0"}"#, "missing field `digest`"),
            (&foreign.to_string(), "none of a-v1.0"),
        ] {
            let (_, entry) = read("a-v1.0", garbage).unwrap();
            assert!(entry.unwrap_err().contains(text), "{garbage}");
        }
        assert!(read("_keep", "").is_none() && read("a-v1.0/x", "{}").is_none());
    }
}
