//! What is published: one body, the versions of an id, and an overview of all ids.

use super::{Error, pointer};
use crate::consul::{Client, Layout, Poll};
use crate::contract::published::{self, Entry, Key, Published, Unusable};
use crate::contract::{Contract, ContractId};
use crate::identity::Digest;
use bytes::Bytes;
use semver::Version;
use std::collections::{BTreeMap, HashMap};

/// For how many ids without an index entry the pointer is read.
const MOST_POINTERS: usize = 64;

/// One published body as it stands.
#[derive(Debug)]
pub struct Book {
    pub key: String,
    id: ContractId,
    version: Version,
    value: Bytes,
}

impl Book {
    /// Returns the entry: the contract's text, and who published it when.
    pub fn published(&self) -> Result<Published<'_>, Unusable> {
        Published::read(&self.value)
    }

    /// Reads the contract and holds it against what was noted beside it.
    pub fn contract(&self) -> Result<Contract, Unusable> {
        published::contract(&self.value, &self.id, &self.version)
    }

    /// Does the same apart from the threads that move traffic.
    pub async fn contract_apart(&self) -> Result<Contract, Unusable> {
        let (id, version) = (self.id.clone(), self.version.clone());
        let value = self.value.clone();
        published::contract_apart(value, id, version).await
    }
}

/// Reads a published body; nothing if there is none.
pub async fn read(
    client: &Client,
    id: &ContractId,
    version: &Version,
) -> Result<Option<Book>, Error> {
    let key = client.layout().body(id.as_str(), &version.to_string());
    let entry = client.kv_get(&key, Poll::CONSISTENT).await?.value;
    Ok(entry.map(|entry| Book {
        key,
        id: id.clone(),
        version: version.clone(),
        value: entry.value,
    }))
}

/// Lists the published versions of an id, the lowest first.
pub async fn versions(client: &Client, id: &ContractId) -> Result<Vec<Version>, Error> {
    let layout = client.layout();
    let prefix = layout.bodies(id.as_str());
    let keys = client.kv_keys(&prefix, Poll::CONSISTENT).await?.value;
    let bodies = keys.iter().filter_map(|key| body(layout, key));
    let mut versions: Vec<_> = bodies.map(|(_, version)| version).collect();
    versions.sort_unstable();
    Ok(versions)
}

/// What there is of one id.
#[derive(Debug)]
pub struct Shelf {
    pub id: ContractId,
    /// As pointer or index say; nothing where neither names one.
    pub current: Option<Version>,
    pub digest: Option<Digest>,
    pub team: String,
    pub updated_at: String,
    /// The lowest first.
    pub versions: Vec<Version>,
}

/// Lists every id that has a body or an index entry, in order.
///
/// Two reads, and one for each of at most `MOST_POINTERS` ids that the index does not know.
pub async fn list(client: &Client) -> Result<Vec<Shelf>, Error> {
    let layout = client.layout();
    let keys = client
        .kv_keys(&layout.contracts(), Poll::CONSISTENT)
        .await?;
    let entries = client.kv_list(&layout.indexes(), Poll::CONSISTENT).await?;
    let indexed = entries.value.iter().filter_map(|entry| {
        let id = published::indexed(layout, &entry.key)?;
        let read = Entry::read(&id, &entry.value).ok()?;
        Some((id, read))
    });
    let mut indexed: HashMap<ContractId, Entry> = indexed.collect();
    let mut shelves: BTreeMap<ContractId, Vec<Version>> =
        indexed.keys().map(|id| (id.clone(), Vec::new())).collect();
    for (id, version) in keys.value.iter().filter_map(|key| body(layout, key)) {
        shelves.entry(id).or_default().push(version);
    }
    let mut listed = Vec::new();
    let mut pointers = MOST_POINTERS;
    for (id, mut versions) in shelves {
        versions.sort_unstable();
        let mut shelf = Shelf {
            current: None,
            digest: None,
            team: String::new(),
            updated_at: String::new(),
            versions,
            id,
        };
        match indexed.remove(&shelf.id) {
            Some(index) => {
                shelf.current = Some(index.version);
                shelf.digest = Some(index.digest);
                shelf.team = index.team;
                shelf.updated_at = index.updated_at;
            }
            None if pointers > 0 => {
                pointers -= 1;
                shelf.current = pointer::named(client, &shelf.id).await?;
            }
            None => {}
        }
        listed.push(shelf);
    }
    Ok(listed)
}

/// Reads which body a key names; nothing if it is no key of a body.
pub(super) fn body(layout: &Layout, key: &str) -> Option<(ContractId, Version)> {
    match Key::read(layout, key)? {
        (id, Key::Body(version)) => Some((id, version)),
        (_, Key::Pointer) => None,
    }
}
