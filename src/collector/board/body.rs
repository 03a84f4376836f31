//! One published body, read when somebody asks for it.

use super::Board;
use super::judge::{Judged, judge};
use super::stored::pointed;
use crate::consul::Poll;
use crate::contract::ContractId;
use crate::identity::Digest;
use crate::task::Timestamp;
use crate::telemetry::log::Chain;
use bytes::Bytes;
use semver::Version;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// For all that one question asks of Consul.
const WITHIN: Duration = Duration::from_secs(2);
/// Versions that a refusal names.
const MOST_NAMED: usize = 20;

/// Which of the versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::collector) enum Wanted {
    Current,
    Exactly(Version),
}

/// A contract as it was published.
#[derive(Debug)]
pub(in crate::collector) struct Text {
    pub(in crate::collector) contract: Bytes,
    pub(in crate::collector) version: Version,
    pub(in crate::collector) digest: Digest,
    /// Consul could not be asked; this is what the audit read.
    pub(in crate::collector) audited_at: Option<Timestamp>,
}

/// Why there is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::collector) enum Missing {
    #[error("{id} is not published")]
    Unknown { id: ContractId },
    #[error("{id} has no published version {version}; there are {}", named(known))]
    Version {
        id: ContractId,
        version: String,
        known: Vec<Version>,
    },
    #[error("the published body of {id} {version} must not be used: {detail}")]
    Bad {
        id: ContractId,
        version: Version,
        detail: String,
    },
    #[error("Consul cannot be asked for {id}, and no copy of it was kept: {reason}")]
    Away { id: ContractId, reason: String },
}

fn named(versions: &[Version]) -> String {
    let shown: Vec<String> = versions
        .iter()
        .take(MOST_NAMED)
        .map(Version::to_string)
        .collect();
    match versions.len() {
        0 => "none".to_owned(),
        count if count > MOST_NAMED => format!("{count}, the newest {}", shown.join(", ")),
        _ => shown.join(", "),
    }
}

impl Board {
    /// Reads a published contract from Consul, or from what the audit kept while Consul is away.
    pub(in crate::collector) async fn contract(
        &self,
        id: &ContractId,
        wanted: &Wanted,
    ) -> Result<Text, Missing> {
        match timeout(WITHIN, self.ask(id, wanted)).await {
            Ok(Ok(found)) => found,
            Ok(Err(reason)) => self.kept(id, wanted, reason),
            Err(_elapsed) => self.kept(id, wanted, format!("no answer within {WITHIN:?}")),
        }
    }

    /// Asks Consul; the outer error says why it could not be asked.
    async fn ask(&self, id: &ContractId, wanted: &Wanted) -> Result<Result<Text, Missing>, String> {
        // The semaphore is never closed.
        let _permit = self.reads.acquire().await.ok();
        let layout = self.client.layout();
        let value = async |key: &str| {
            let answer = self.client.kv_get(key, Poll::NOW).await;
            let entry = answer.map_err(|error| Chain(&error).to_string())?.value;
            Ok::<_, String>(entry.map(|entry| entry.value))
        };
        let version = match wanted {
            Wanted::Exactly(version) => version.clone(),
            Wanted::Current => {
                let pointer = value(&layout.version(id.as_str())).await?;
                match pointer.and_then(|value| pointed(id, &value)) {
                    Some(version) => version,
                    None => return Ok(Err(self.unknown(id, "current"))),
                }
            }
        };
        let key = layout.body(id.as_str(), &version.to_string());
        let Some(body) = value(&key).await? else {
            return Ok(Err(self.unknown(id, &version.to_string())));
        };
        let judged = judge(&self.trust, id, &version, body, Timestamp::now()).await;
        // What the audit holds against this very body, such as another digest in the index,
        // a look at the body alone does not show.
        let audits = self.audits.load();
        let audited = audits.bodies.get(&(id.clone(), version.clone()));
        let audited = audited.filter(|audited| audited.digest == judged.digest);
        let worse = audited.filter(|audited| audited.state > judged.state);
        let judged = worse.map_or(&judged, |audited| audited);
        Ok(text(id, version, judged, None))
    }

    /// Answers from what the audit kept.
    fn kept(&self, id: &ContractId, wanted: &Wanted, reason: String) -> Result<Text, Missing> {
        let audits = self.audits.load();
        let version = match wanted {
            Wanted::Exactly(version) => Some(version.clone()),
            Wanted::Current => audits.pointers.get(id).cloned(),
        };
        let away = || Missing::Away {
            id: id.clone(),
            reason,
        };
        let Some(version) = version else {
            return Err(away());
        };
        let judged = audits.bodies.get(&(id.clone(), version.clone()));
        match judged.map(Arc::as_ref) {
            Some(judged) if judged.is_usable() || judged.state.is_wrong() => {
                text(id, version, judged, Some(judged.checked_at))
            }
            _ => Err(away()),
        }
    }

    fn unknown(&self, id: &ContractId, version: &str) -> Missing {
        let listing = self.listing.borrow().value.clone().unwrap_or_default();
        match listing.contracts.get(id) {
            None => Missing::Unknown { id: id.clone() },
            Some(known) => Missing::Version {
                id: id.clone(),
                version: version.to_owned(),
                known: known.clone(),
            },
        }
    }

    /// Refuses a version that can be none of the contract's.
    pub(in crate::collector) fn version(
        &self,
        id: &ContractId,
        text: &str,
    ) -> Result<Wanted, Missing> {
        if text == "current" {
            return Ok(Wanted::Current);
        }
        let version = super::listing::version(id, text);
        version
            .map(Wanted::Exactly)
            .ok_or_else(|| self.unknown(id, text))
    }
}

fn text(
    id: &ContractId,
    version: Version,
    judged: &Judged,
    audited_at: Option<Timestamp>,
) -> Result<Text, Missing> {
    let (Some(contract), Some(digest)) = (&judged.contract, judged.digest) else {
        return Err(Missing::Bad {
            id: id.clone(),
            version,
            detail: judged.detail.clone(),
        });
    };
    Ok(Text {
        contract: contract.clone(),
        version,
        digest,
        audited_at,
    })
}
