//! One published body, held against everything that is known of it.
//!
//! The digest is worked out anew; the one noted beside the body, its key, its signatures and who
//! is trusted must all agree with it.

use crate::contract::trust::{Trust, Trusted, first_kid, integrity};
use crate::contract::watch::Published;
use crate::contract::{Contract, ContractId};
use crate::identity::Digest;
use crate::task::Timestamp;
use crate::telemetry::metrics::Audit;
use bytes::Bytes;
use semver::Version;

const MOST_DETAIL: usize = 600;
const MOST_NOTE: usize = 256;

/// What one body was found to be.
#[derive(Debug, Clone)]
pub(super) struct Judged {
    pub(super) state: Audit,
    /// What is wrong; empty where nothing is.
    pub(super) detail: String,
    /// The key of its signature, whether that is good or not.
    pub(super) kid: Option<String>,
    /// Worked out from the body; nothing where that is no contract.
    pub(super) digest: Option<Digest>,
    pub(super) noted: Note,
    pub(super) checked_at: Timestamp,
    /// The contract as published, of bodies that may be used.
    pub(super) contract: Option<Bytes>,
}

/// What stands beside a body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) digest: Option<Digest>,
    pub(super) published_at: String,
    pub(super) published_by: String,
}

impl Judged {
    fn nothing(now: Timestamp) -> Self {
        Self {
            state: Audit::Ok,
            detail: String::new(),
            kid: None,
            digest: None,
            noted: Note::default(),
            checked_at: now,
            contract: None,
        }
    }

    /// Finds it to be worse than it seemed.
    pub(super) fn worse(mut self, state: Audit, detail: impl Into<String>) -> Self {
        self.state = state;
        self.detail = shortened(detail.into(), MOST_DETAIL);
        self.contract = None;
        self
    }

    /// Says whether consumers may use it.
    pub(super) fn is_usable(&self) -> bool {
        self.contract.is_some()
    }
}

/// Judges what stands at the key of `id` and `version`.
pub(super) async fn judge(
    trust: &Trust,
    id: &ContractId,
    version: &Version,
    value: Bytes,
    now: Timestamp,
) -> Judged {
    let (of, at) = (id.clone(), version.clone());
    // Reading may take milliseconds; the threads that answer others do not wait for it.
    let read = tokio::task::spawn_blocking(move || read(&of, &at, &value, now)).await;
    let Ok((judged, contract)) = read else {
        return Judged::nothing(now).worse(Audit::Unreadable, "it could not be read");
    };
    let Some(contract) = contract else {
        return judged;
    };
    // Says that nothing was changed since it was signed, whoever did.
    let is_whole = integrity(&contract);
    match (trust.judge(&contract).await, is_whole) {
        // One good signature suffices, whatever stands beside it.
        (Ok(Trusted::Signed { kid }), _) => Judged {
            kid: Some(kid),
            ..judged
        },
        (Ok(Trusted::Unjudged), Err(broken)) => judged.worse(Audit::Mismatch, broken.to_string()),
        (Ok(Trusted::Unjudged), Ok(_)) if !contract.signatures.is_empty() => judged,
        (Ok(Trusted::Unsigned | Trusted::Unjudged), _) => Judged {
            state: Audit::Unsigned,
            ..judged
        },
        (Err(untrusted), Err(_)) => judged.worse(Audit::Mismatch, untrusted.to_string()),
        (Err(untrusted), Ok(_)) => judged.worse(Audit::Untrusted, untrusted.to_string()),
    }
}

/// Reads a body; with the contract where only trust is left to be asked for.
fn read(
    id: &ContractId,
    version: &Version,
    value: &[u8],
    now: Timestamp,
) -> (Judged, Option<Contract>) {
    let mut judged = Judged::nothing(now);
    let published: Published<'_> = match serde_json::from_slice(value) {
        Ok(published) => published,
        Err(error) => {
            let detail = format!("it holds no published contract: {error}");
            return (judged.worse(Audit::Unreadable, detail), None);
        }
    };
    judged.noted = Note {
        digest: Some(published.digest),
        published_at: shortened(published.published_at, MOST_NOTE),
        published_by: shortened(published.published_by, MOST_NOTE),
    };
    let contract = match Contract::from_slice(published.contract.get().as_bytes()) {
        Ok(contract) => contract,
        Err(problems) => {
            let detail = format!("its contract has faults: {problems}");
            return (judged.worse(Audit::Unreadable, detail), None);
        }
    };
    let found = contract.digest();
    judged.digest = Some(found);
    judged.kid = first_kid(&contract);
    if (&contract.id, &contract.version) != (id, version) {
        let detail = format!(
            "it holds {} {}, which belongs under another key",
            contract.id, contract.version
        );
        return (judged.worse(Audit::Mismatch, detail), None);
    }
    if found != published.digest {
        let detail = format!(
            "its digest is {found}, but {} was noted when it was published: it was changed since",
            published.digest
        );
        return (judged.worse(Audit::Mismatch, detail), None);
    }
    judged.contract = Some(Bytes::copy_from_slice(contract.body()));
    (judged, Some(contract))
}

/// Cuts a text, at a whole character.
fn shortened(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn contract() -> Value {
        json!({
            "id": "a-v1.0", "version": "1.0.0",
            "input_schema": {"type": "object", "required": []},
            "output_schema": {"type": "object", "properties": {"level": {"enum": ["low", "high"]}}},
            "constraints": {"timeout_ms": 500},
        })
    }

    fn published(contract: &Value) -> Value {
        let digest = Contract::from_slice(contract.to_string().as_bytes()).unwrap();
        json!({
            "contract": contract, "digest": digest.digest(),
            "published_at": "2026-12-01T00:00:00.000Z", "published_by": "a-1",
        })
    }

    async fn judged(version: &str, value: &str) -> Judged {
        let (id, version) = ("a-v1.0".parse().unwrap(), version.parse().unwrap());
        let value = Bytes::from(value.to_owned());
        judge(&Trust::off(), &id, &version, value, Timestamp::now()).await
    }

    #[tokio::test]
    async fn a_sound_body_is_what_it_says() {
        let body = published(&contract());
        let judged = judged("1.0.0", &body.to_string()).await;
        assert_eq!(
            (judged.state, judged.detail.as_str()),
            (Audit::Unsigned, "")
        );
        assert_eq!(json!(judged.digest), body["digest"]);
        assert_eq!(judged.noted.published_by, "a-1");
        let text: Value = serde_json::from_slice(&judged.contract.unwrap()).unwrap();
        assert_eq!(text, contract());
    }

    #[tokio::test]
    async fn a_body_that_was_changed_is_found() {
        let good = published(&contract());
        let with = |pointer: &str, value: Value| {
            let mut body = good.clone();
            *body.pointer_mut(pointer).unwrap() = value;
            body.to_string()
        };
        let levels = "/contract/output_schema/properties/level/enum";
        let mut other_id = contract();
        other_id["id"] = "b-v1.0".into();
        for (version, value, state, detail) in [
            (
                "1.0.0",
                with(levels, json!(["safe", "risky"])),
                Audit::Mismatch,
                "changed since",
            ),
            (
                "1.0.1",
                good.to_string(),
                Audit::Mismatch,
                "holds a-v1.0 1.0.0",
            ),
            (
                "1.0.0",
                published(&other_id).to_string(),
                Audit::Mismatch,
                "holds b-v1.0 1.0.0",
            ),
            (
                "1.0.0",
                with("/digest", json!("md5:1")),
                Audit::Unreadable,
                "no published contract",
            ),
            (
                "1.0.0",
                with("/contract", json!(7)),
                Audit::Unreadable,
                "has faults",
            ),
            (
                "1.0.0",
                "{".to_owned(),
                Audit::Unreadable,
                "no published contract",
            ),
            (
                "1.0.0",
                String::new(),
                Audit::Unreadable,
                "no published contract",
            ),
            (
                "1.0.0",
                "[".repeat(10_000),
                Audit::Unreadable,
                "no published contract",
            ),
        ] {
            let judged = judged(version, &value).await;
            assert_eq!(judged.state, state, "{}", judged.detail);
            assert!(judged.detail.contains(detail), "{}", judged.detail);
            assert!(!judged.is_usable() && judged.detail.len() <= MOST_DETAIL + 3);
        }
    }
}
