//! Fetching published contract bodies, holding them against what an instance names, and judging
//! who signed them.

use super::Directory;
use crate::consul::{Instance, Poll};
use crate::contract::trust::{self, Untrusted};
use crate::contract::{Compiled, Contract, ContractId, Problems};
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
    #[error(
        "{key} holds {found}, which belongs elsewhere; restore the body or publish a new version"
    )]
    Misplaced { key: String, found: String },
    #[error(
        "{key} has digest {found}, the instance names {named} (kid {}): the body or the \
         registration was changed; restore it or publish a new version",
        kids_or_none(kids)
    )]
    Mismatch {
        key: String,
        found: Digest,
        named: Digest,
        kids: Vec<String>,
    },
    #[error("{key}: {source}")]
    Untrusted { key: String, source: Box<Untrusted> },
}

fn kids_or_none(kids: &[String]) -> String {
    match kids {
        [] => "none".to_owned(),
        kids => kids.join(", "),
    }
}

/// A published body that is not used, for those who look on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub digest: Digest,
    /// The keys that the body names, else the one that the instance names.
    pub kids: Vec<String>,
    pub reason: String,
}

/// What an instance says of the contract it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub version: Version,
    pub digest: Digest,
    pub kid: Option<String>,
}

impl Error {
    /// Says whether the body is there and must not be used, as opposed to not being there yet.
    pub fn is_untrusted(&self) -> bool {
        !matches!(
            self,
            Error::Unnamed | Error::Read { .. } | Error::Missing { .. }
        )
    }

    /// Says whether the published body is bad in itself, whoever names it.
    pub fn is_of_body(&self) -> bool {
        self.is_untrusted() && !matches!(self, Error::Mismatch { .. })
    }

    /// Describes the body that an instance of `named` cannot be used with, if there is one.
    pub fn refusal(&self, named: &Named) -> Option<Refusal> {
        let (digest, kids) = match self {
            Error::Unnamed | Error::Read { .. } | Error::Missing { .. } => return None,
            Error::Shape { .. } | Error::Faulty { .. } | Error::Misplaced { .. } => {
                (named.digest, Vec::new())
            }
            Error::Mismatch { found, kids, .. } => (*found, kids.clone()),
            Error::Untrusted { source, .. } => (source.digest, source.kids.to_vec()),
        };
        Some(Refusal {
            digest,
            kids: match kids.is_empty() {
                true => named.kid.iter().cloned().collect(),
                false => kids,
            },
            reason: self.to_string(),
        })
    }
}

/// What an instance says it serves.
pub fn named(id: &ContractId, instance: &Instance) -> Result<Named, Error> {
    let version = instance
        .version()
        .and_then(|text| Version::parse(text).ok());
    let digest = instance.digest().and_then(|text| text.parse().ok());
    match (version, digest) {
        (Some(version), Some(digest)) if is_of(id, &version) => Ok(Named {
            version,
            digest,
            kid: instance.kid().map(str::to_owned),
        }),
        _ => Err(Error::Unnamed),
    }
}

/// A version belongs to an id of the same major and minor.
fn is_of(id: &ContractId, version: &Version) -> bool {
    version.major == u64::from(id.major()) && version.minor == u64::from(id.minor())
}

/// Returns the compiled contract that an instance names; one that is not known yet is fetched and
/// judged.
pub async fn compiled(
    directory: &Directory,
    id: &ContractId,
    named: &Named,
) -> Result<Arc<Compiled>, Error> {
    match directory.cache.get(id, &named.version, named.digest) {
        Some(known) => Ok(known),
        None => renewed(directory, id, named).await,
    }
}

/// Fetches and judges the body in any case; one that cannot be used leaves the cache as it is.
pub async fn renewed(
    directory: &Directory,
    id: &ContractId,
    named: &Named,
) -> Result<Arc<Compiled>, Error> {
    let key = directory
        .client
        .layout()
        .body(id.as_str(), &named.version.to_string());
    let contract = fetched(directory, &key).await?;
    check(&contract, &key, id, named)?;
    if let Err(untrusted) = directory.trust.judge(&contract).await {
        let source = Box::new(untrusted);
        return Err(Error::Untrusted { key, source });
    }
    let compiled = directory.cache.compiled_apart(contract).await;
    compiled.map_err(|problems| Error::Faulty { key, problems })
}

async fn fetched(directory: &Directory, key: &str) -> Result<Contract, Error> {
    let key = || key.to_owned();
    let answer = directory.client.kv_get(&key(), Poll::NOW).await;
    let entry = match answer {
        Err(source) => return Err(Error::Read { key: key(), source }),
        Ok(answer) => answer.value,
    };
    let entry = entry.ok_or_else(|| Error::Missing { key: key() })?;
    let published: Published<'_> = match serde_json::from_slice(&entry.value) {
        Ok(published) => published,
        Err(source) => return Err(Error::Shape { key: key(), source }),
    };
    let contract = Contract::from_slice(published.contract.get().as_bytes());
    contract.map_err(|problems| Error::Faulty {
        key: key(),
        problems: Arc::new(problems),
    })
}

/// A good signature proves who promised something, not that it was promised here.
fn check(contract: &Contract, key: &str, id: &ContractId, named: &Named) -> Result<(), Error> {
    let key = || key.to_owned();
    if contract.id != *id || contract.version != named.version {
        let found = format!("{}@{}", contract.id, contract.version);
        return Err(Error::Misplaced { key: key(), found });
    }
    if contract.digest() == named.digest {
        return Ok(());
    }
    let kids = trust::first_kid(contract).or_else(|| named.kid.clone());
    Err(Error::Mismatch {
        key: key(),
        found: contract.digest(),
        named: named.digest,
        kids: kids.into_iter().collect(),
    })
}
