//! What is answered, in an order that depends on nothing but what there is.

use crate::contract::watch::Offer;
use crate::contract::{ContractId, Violations};
use crate::proxy::outbound::explain::Excluded;
use bytes::Bytes;
use semver::Version;
use serde::{Serialize, Serializer};
use std::fmt::Write;

/// How many places of an input that is not accepted are named.
const MOST_PLACES: usize = 5;

/// Who could serve, who could not, and what was not looked at.
#[derive(Debug, Default, Serialize)]
pub struct Answer {
    candidates: Vec<Candidate>,
    pub excluded: Vec<Excluded>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, Serialize)]
struct Candidate {
    agent: ContractId,
    #[serde(serialize_with = "as_text")]
    version: Version,
    digest: String,
    instances: Vec<Place>,
}

#[derive(Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    id: String,
    address: String,
    region: String,
    weight: u32,
}

/// What a contract says of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Accepted,
    /// The places where it breaks the contract, never a value.
    Refused(String),
    /// There was no time to try it.
    Untried,
}

impl Answer {
    /// Adds an instance that could serve; those of one version and digest stand together.
    pub fn add(&mut self, id: &ContractId, offer: &Offer) {
        let instance = &offer.instance;
        let place = Place {
            id: instance.id.to_string(),
            address: instance.authority(),
            region: instance.region().unwrap_or_default().to_owned(),
            weight: instance.weight,
        };
        let version = &offer.contract.contract.version;
        let digest = offer.contract.digest.to_string();
        let same = |known: &&mut Candidate| {
            known.agent == *id && known.version == *version && known.digest == digest
        };
        match self.candidates.iter_mut().find(same) {
            Some(known) => known.instances.push(place),
            None => self.candidates.push(Candidate {
                agent: id.clone(),
                version: version.clone(),
                digest,
                instances: vec![place],
            }),
        }
    }

    /// Brings what was added into its order: by family, version and digest, instances by id.
    pub fn settle(&mut self) {
        self.candidates.sort_unstable_by(|a, b| {
            let versions = a.version.cmp(&b.version);
            let families = a.agent.family().cmp(b.agent.family());
            families
                .then(versions)
                .then_with(|| a.digest.cmp(&b.digest))
        });
        for candidate in &mut self.candidates {
            candidate.instances.sort_unstable();
        }
        self.excluded.sort_unstable();
    }

    pub fn to_json(&self) -> Bytes {
        // Texts and numbers alone: writing them cannot fail.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

impl Verdict {
    pub fn refused(violations: &Violations) -> Self {
        let places = violations.as_slice();
        let mut text = "it does not accept the input: ".to_owned();
        for (at, violation) in places.iter().take(MOST_PLACES).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let place = match violation.instance.as_str() {
                "" => "the whole",
                pointer => pointer,
            };
            // Writing to a string cannot fail.
            write!(text, "{comma}{place} ({})", violation.schema).ok();
        }
        if places.len() > MOST_PLACES {
            text.push_str(" and more");
        }
        Self::Refused(text)
    }

    /// Says why the contract is no candidate, if it is none.
    pub fn reason(&self) -> Option<String> {
        match self {
            Verdict::Accepted => None,
            Verdict::Refused(reason) => Some(reason.clone()),
            Verdict::Untried => Some("there was no time to try the input".to_owned()),
        }
    }
}

fn as_text<S: Serializer>(version: &Version, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Compiled, Contract, guard};
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn compiled(id: &str, version: &str, more: Value) -> Arc<Compiled> {
        let mut body = json!({
            "id": id, "version": version, "constraints": {"timeout_ms": 500},
            "input_schema": {"type": "object", "required": ["n"], "properties": {
                "n": {"type": "number", "maximum": 7},
            }},
            "output_schema": {"type": "object", "required": []},
        });
        body["x-more"] = more;
        let contract = Contract::from_slice(body.to_string().as_bytes()).unwrap();
        Arc::new(Compiled::new(contract).unwrap())
    }

    fn offer(contract: &Arc<Compiled>, instance: &str) -> Offer {
        let shown = json!({
            "id": instance, "node": "n", "service": "s", "address": "127.0.0.1", "port": 1,
            "tags": [], "weight": 100, "meta": {}, "passing": true,
        });
        Offer {
            instance: Arc::new(serde_json::from_value(shown).unwrap()),
            contract: contract.clone(),
        }
    }

    #[test]
    fn the_order_in_which_things_are_found_does_not_show() {
        let contracts = [
            compiled("a-v1.2", "1.2.0", json!(1)),
            compiled("a-v1.10", "1.10.0", json!(1)),
            compiled("a-v1.10", "1.10.2", json!(1)),
            compiled("a-v1.10", "1.10.2", json!(2)),
            compiled("b-v1.0", "1.0.0", json!(1)),
        ];
        let instances = ["one", "two"];
        let all = || {
            contracts
                .iter()
                .flat_map(|c| instances.map(|i| offer(c, i)))
        };
        let told = |offers: Vec<Offer>| {
            let mut answer = Answer::default();
            for offer in &offers {
                answer.add(&offer.contract.contract.id, offer);
            }
            answer.settle();
            answer.to_json()
        };
        let first = told(all().collect());
        assert_eq!(first, told(all().rev().collect()));
        let first: Value = serde_json::from_slice(&first).unwrap();
        let candidates = first["candidates"].as_array().unwrap();
        let versions: Vec<_> = candidates.iter().map(|c| c["version"].clone()).collect();
        assert_eq!(versions, ["1.2.0", "1.10.0", "1.10.2", "1.10.2", "1.0.0"]);
        assert_eq!(candidates[0]["instances"][1]["id"], "two");
    }

    #[test]
    fn a_refusal_names_places_and_no_value() {
        let contract = compiled("a-v1.0", "1.0.0", json!(1));
        let verdict = |body: &[u8]| {
            let document = guard::parse(body, &guard::Limits::default()).unwrap();
            Verdict::refused(&contract.input.check(&document).unwrap_err())
        };
        let reason = verdict(br#"{"n": 4711}"#).reason().unwrap();
        assert_eq!(
            reason,
            "it does not accept the input: /n (/properties/n/maximum)"
        );
        let reason = verdict(b"{}").reason().unwrap();
        assert!(reason.ends_with("the whole (/required)"), "{reason}");
    }
}
