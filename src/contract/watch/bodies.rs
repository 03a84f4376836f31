//! Fetching published contract bodies and holding them against the digest an instance names.

use crate::consul::{Client, Instance, Poll};
use crate::contract::{Cache, Compiled, Contract, ContractId, Problems};
use crate::identity::Digest;
use semver::Version;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;

/// A published body as it stands in Consul.
#[derive(Debug, Serialize, Deserialize)]
pub struct Published<'a> {
    #[serde(borrow)]
    pub contract: &'a RawValue,
    pub digest: Digest,
    pub published_at: String,
    pub published_by: String,
}

/// Why an instance's contract cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the instance names no version or digest that can be read")]
    Unnamed,
    #[error("read {key}")]
    Read {
        key: String,
        #[source]
        source: crate::consul::Error,
    },
    #[error("nothing is published at {key}")]
    Missing { key: String },
    #[error("{key} holds no published contract")]
    Shape {
        key: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{key} holds a contract with faults: {problems}")]
    Faulty {
        key: String,
        problems: Arc<Problems>,
    },
    #[error("{key} has digest {found}, the instance names {named}")]
    Mismatch {
        key: String,
        found: Digest,
        named: Digest,
    },
}

impl Error {
    /// Says whether the body is there and must not be used, as opposed to not being there yet.
    pub fn is_untrusted(&self) -> bool {
        matches!(
            self,
            Error::Mismatch { .. } | Error::Faulty { .. } | Error::Shape { .. }
        )
    }
}

/// What an instance says it serves.
pub fn named(id: &ContractId, instance: &Instance) -> Result<(Version, Digest), Error> {
    let version = instance
        .version()
        .and_then(|text| Version::parse(text).ok());
    let digest = instance.digest().and_then(|text| text.parse().ok());
    match (version, digest) {
        (Some(version), Some(digest)) if is_of(id, &version) => Ok((version, digest)),
        _ => Err(Error::Unnamed),
    }
}

/// A version belongs to an id of the same major and minor.
fn is_of(id: &ContractId, version: &Version) -> bool {
    version.major == u64::from(id.major()) && version.minor == u64::from(id.minor())
}

/// Returns the compiled contract that `digest` names, fetching it where it is not known.
pub async fn compiled(
    client: &Client,
    cache: &Cache,
    id: &ContractId,
    version: &Version,
    digest: Digest,
) -> Result<Arc<Compiled>, Error> {
    if let Some(known) = cache.get(id, version, digest) {
        return Ok(known);
    }
    let key = client.layout().body(id.as_str(), &version.to_string());
    let answer = client.kv_get(&key, Poll::NOW).await;
    let entry = match answer {
        Err(source) => return Err(Error::Read { key, source }),
        Ok(answer) => answer.value,
    };
    let Some(entry) = entry else {
        return Err(Error::Missing { key });
    };
    let published: Published<'_> = match serde_json::from_slice(&entry.value) {
        Ok(published) => published,
        Err(source) => return Err(Error::Shape { key, source }),
    };
    let faulty = |problems| Error::Faulty {
        key: key.clone(),
        problems,
    };
    let contract = Contract::from_slice(published.contract.get().as_bytes())
        .map_err(|problems| faulty(Arc::new(problems)))?;
    let found = contract.digest();
    if found != digest {
        let named = digest;
        return Err(Error::Mismatch { key, found, named });
    }
    cache.compiled_apart(contract).await.map_err(faulty)
}
