//! What is published: one body, the versions of an id, and an overview of all ids.

use super::{Error, index, pointer};
use crate::consul::{Client, Layout, Poll};
use crate::contract::watch::Published;
use crate::contract::{Contract, ContractId, Problems};
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

/// Why a body is no contract that one could rely on.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("it is no published contract: {0}")]
    Foreign(#[from] serde_json::Error),
    #[error("the contract has faults: {0}")]
    Faulty(#[from] Problems),
    #[error("its content has digest {found}, but it was published with {noted}")]
    Altered { noted: Digest, found: Digest },
    #[error("it holds {id} {version}")]
    Misplaced { id: ContractId, version: Version },
}

impl Book {
    /// Returns the entry: the contract's text, and who published it when.
    pub fn published(&self) -> Result<Published<'_>, Unusable> {
        Ok(serde_json::from_slice(&self.value)?)
    }

    /// Reads the contract and holds it against what was noted beside it.
    pub fn contract(&self) -> Result<Contract, Unusable> {
        let published = self.published()?;
        let contract = Contract::from_slice(published.contract.get().as_bytes())?;
        let (noted, found) = (published.digest, contract.digest());
        if noted != found {
            return Err(Unusable::Altered { noted, found });
        }
        if contract.id != self.id || contract.version != self.version {
            let (id, version) = (contract.id, contract.version);
            return Err(Unusable::Misplaced { id, version });
        }
        Ok(contract)
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
    let places = keys.iter().filter_map(|key| place(layout, key));
    let mut versions: Vec<_> = places.map(|(_, version)| version).collect();
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
    let mut indexed = HashMap::new();
    for entry in &entries.value {
        let name = entry.key.rsplit('/').next().unwrap_or_default();
        if let (Ok(id), Some(read)) = (name.parse::<ContractId>(), index::read(entry)) {
            indexed.insert(id, read);
        }
    }
    let mut shelves: BTreeMap<ContractId, Vec<Version>> =
        indexed.keys().map(|id| (id.clone(), Vec::new())).collect();
    for (id, version) in keys.value.iter().filter_map(|key| place(layout, key)) {
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
                shelf.current = Version::parse(&index.version).ok();
                shelf.digest = Some(index.digest);
                shelf.team = index.team;
                shelf.updated_at = index.updated_at;
            }
            None if pointers > 0 => {
                pointers -= 1;
                shelf.current = pointer::current(client, &shelf.id).await?;
            }
            None => {}
        }
        listed.push(shelf);
    }
    Ok(listed)
}

/// Reads which body a key names; nothing if it is no key of a body.
pub(super) fn place(layout: &Layout, key: &str) -> Option<(ContractId, Version)> {
    let (id, version) = key.strip_prefix(&layout.contracts())?.split_once('/')?;
    let id: ContractId = id.parse().ok()?;
    let version = Version::parse(version).ok()?;
    let agrees = (version.major, version.minor) == (id.major().into(), id.minor().into());
    (agrees && version.pre.is_empty() && version.build.is_empty()).then_some((id, version))
}

/// Says which versions there are.
pub fn told(versions: &[Version]) -> String {
    match versions {
        [] => "no version of it is".to_owned(),
        versions => {
            let texts: Vec<_> = versions.iter().map(Version::to_string).collect();
            format!("there are {}", texts.join(", "))
        }
    }
}
