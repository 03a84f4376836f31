//! What the called contract promises, as the instances that answer hand it out.
//!
//! Asked for through the same listener as the calls, so that it is the contract of an instance that
//! the sidecar would choose. Patch versions may differ from instance to instance: the strictest
//! timeout of those that answered counts.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::Instant;

use super::calls::Outcome;
use crate::cli::client;
use crate::cli::exit::Failure;
use crate::cli::output;
use crate::contract::{Contract, ContractId};

/// For the sidecar's first use of a contract, which waits 2 s for Consul, and the way there and back.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Promise {
    first: Contract,
    /// By version; `None` where it could not be read.
    timeouts: BTreeMap<String, Option<Duration>>,
}

impl Promise {
    /// Asks for the contract of `agent`.
    pub async fn ask(base: &str, agent: &str, within: Duration) -> Result<Self, Failure> {
        let first = contract(base, agent, within.min(PATIENCE)).await?;
        let timeouts = [(first.version.to_string(), Some(first.constraints.timeout))];
        Ok(Self {
            timeouts: timeouts.into(),
            first,
        })
    }

    pub fn contract(&self) -> &Contract {
        &self.first
    }

    /// Returns the input that the contract itself gives for trial calls.
    pub fn probe_input(&self) -> Result<Box<RawValue>, Failure> {
        let Some(probe) = &self.first.probe else {
            let (id, version) = (&self.first.id, &self.first.version);
            return Err(Failure::Usage(format!(
                "the contract {id} {version} has no probe: give --input FILE, or publish the \
                 contract with \"probe\": {{\"input\": …}}"
            )));
        };
        to_raw_value(&probe.input).map_err(|error| Failure::bug(&error))
    }

    /// Returns the shortest timeout of the versions that are known to have answered.
    pub fn timeout(&self) -> Duration {
        let known = self.timeouts.values().flatten().min();
        known.copied().unwrap_or(self.first.constraints.timeout)
    }

    /// Names the versions that answered, and those of them whose timeout is not known.
    pub fn versions(&self) -> impl Iterator<Item = (&str, Option<Duration>)> {
        self.timeouts
            .iter()
            .map(|(version, timeout)| (version.as_str(), *timeout))
    }

    /// Asks for the contracts of further versions that answered.
    pub async fn add(&mut self, base: &str, outcomes: &[Outcome], until: Instant) {
        let id = self.first.id.to_string();
        for version in outcomes
            .iter()
            .filter_map(|outcome| outcome.version_of(&id))
        {
            if !self.timeouts.contains_key(version) {
                let agent = format!("{id}@{version}");
                let left = until.saturating_duration_since(Instant::now());
                let found = contract(base, &agent, left.min(PATIENCE)).await.ok();
                let timeout = found.map(|contract| contract.constraints.timeout);
                self.timeouts.insert(version.to_owned(), timeout);
            }
        }
    }
}

async fn contract(base: &str, agent: &str, within: Duration) -> Result<Contract, Failure> {
    let http = client::http(base, within)?;
    let named = match agent.contains('^') {
        true => named(&http, base, agent).await?,
        false => Some(agent.to_owned()),
    };
    // An instance that serves one contract needs none named.
    let (agent, query) = match &named {
        Some(named) => {
            let id = named.split_once('@').map_or(&**named, |(id, _version)| id);
            (&**named, format!("?agent={id}"))
        }
        None => (agent, String::new()),
    };
    let path = format!("/agents/{agent}/hermes/handshake{query}");
    let request = http.get(client::url(base, &path));
    let answer = client::send("the sidecar", base, request).await?;
    if answer.status != StatusCode::OK {
        let told = output::detail(&answer.body);
        let status = answer.status.as_u16();
        return Err(Failure::Answer(format!(
            "the contract of {agent} cannot be read ({status}): {told}"
        )));
    }
    Contract::from_slice(&answer.body).map_err(|problems| {
        Failure::Answer(format!("the contract of {agent} has faults: {problems}"))
    })
}

/// Asks the sidecar which contract calls to a range go to: the highest that can serve. Nothing
/// where it cannot tell now, e.g. without Consul; calls go on with what is known.
async fn named(http: &reqwest::Client, base: &str, range: &str) -> Result<Option<String>, Failure> {
    let question = serde_json::json!({"agent": range}).to_string();
    let request = http
        .post(client::url(base, "/hermes/discover"))
        .header("content-type", "application/json")
        .body(question);
    let answer = client::send("the sidecar", base, request).await?;
    Ok(match answer.status.is_success() {
        true => highest(&answer.body),
        false => None,
    })
}

/// Returns the last contract of the candidates, which come in the order of their versions.
fn highest(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Found {
        candidates: Vec<Candidate>,
    }
    #[derive(Deserialize)]
    struct Candidate {
        agent: String,
    }
    let found: Found = serde_json::from_slice(body).ok()?;
    let id: ContractId = found.candidates.last()?.agent.parse().ok()?;
    Some(id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_the_highest_contract_that_can_serve() {
        let two = br#"{"candidates": [{"agent": "work-v1.2", "version": "1.2.0"},
            {"agent": "work-v1.10", "version": "1.10.0"}], "excluded": []}"#;
        for (body, named) in [
            (&two[..], Some("work-v1.10")),
            (br#"{"candidates": [], "excluded": []}"#, None),
            (br#"{"candidates": [{"agent": "../x"}]}"#, None),
            (b"<h1>who?</h1>", None),
        ] {
            assert_eq!(highest(body).as_deref(), named);
        }
    }
}
