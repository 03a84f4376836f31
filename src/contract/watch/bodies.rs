//! Fetching published contract bodies, holding them against what an instance names, and judging
//! who signed them.

use super::Directory;
use crate::apart;
use crate::consul::{Instance, Poll};
use crate::contract::published::{Published, Unusable};
use crate::contract::trust::{self, Untrusted};
use crate::contract::{Compiled, Contract, ContractId};
use crate::identity::Digest;
use semver::Version;
use std::sync::Arc;

/// Why an instance's contract cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "the instance names no version or digest that can be read; its sidecar writes them as \
         hermes_version and hermes_digest when it registers"
    )]
    Unnamed,
    #[error("read {key}")]
    Read {
        key: String,
        #[source]
        source: crate::consul::Error,
    },
    #[error(
        "nothing is published at {key}; the instance's sidecar puts it there within a minute, \
         `contract publish` at once"
    )]
    Missing { key: String },
    #[error("{key}: {source}")]
    Unusable { key: String, source: Unusable },
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
            Error::Unusable { .. } => (named.digest, Vec::new()),
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
        (Some(version), Some(digest)) if id.has(&version) => Ok(Named {
            version,
            digest,
            kid: instance.kid().map(str::to_owned),
        }),
        _ => Err(Error::Unnamed),
    }
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
    let contract = fetched(directory, &key, id, named).await?;
    check(&contract, &key, named)?;
    if let Err(untrusted) = directory.trust.judge(&contract).await {
        let source = Box::new(untrusted);
        return Err(Error::Untrusted { key, source });
    }
    let compiled = directory.cache.compiled_apart(contract).await;
    let source = compiled.map_err(Unusable::Faulty);
    source.map_err(|source| Error::Unusable { key, source })
}

/// A good signature proves who promised something, not that it was promised here: the contract is
/// of this id and the named version.
async fn fetched(
    directory: &Directory,
    key: &str,
    id: &ContractId,
    named: &Named,
) -> Result<Contract, Error> {
    let key = || key.to_owned();
    let answer = directory.client.kv_get(&key(), Poll::NOW).await;
    let entry = match answer {
        Err(source) => return Err(Error::Read { key: key(), source }),
        Ok(answer) => answer.value,
    };
    let value = entry.ok_or_else(|| Error::Missing { key: key() })?.value;
    let (id, version) = (id.clone(), named.version.clone());
    let read = apart::caught(move || Published::read(&value)?.contract(&id, &version)).await;
    let read = read.map_err(Unusable::Unread).flatten();
    let key = key();
    read.map_err(|source| Error::Unusable { key, source })
}

fn check(contract: &Contract, key: &str, named: &Named) -> Result<(), Error> {
    if contract.digest() == named.digest {
        return Ok(());
    }
    let kids = trust::first_kid(contract).or_else(|| named.kid.clone());
    Err(Error::Mismatch {
        key: key.to_owned(),
        found: contract.digest(),
        named: named.digest,
        kids: kids.into_iter().collect(),
    })
}
