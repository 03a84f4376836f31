//! What the called contract promises, as the instances that answer hand it out.
//!
//! Asked for through the same listener as the calls, so that it is the contract of an instance that
//! the sidecar would choose. Patch versions may differ from instance to instance: the strictest
//! timeout of those that answered counts.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::Instant;

use super::calls::Outcome;
use crate::cli::client;
use crate::cli::exit::Failure;
use crate::cli::output;
use crate::contract::Contract;

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
    // A range's id is not known yet; an instance that serves one contract needs none named.
    let id = agent.split_once('@').map_or(agent, |(id, _version)| id);
    let query = match agent.contains('^') {
        true => String::new(),
        false => format!("?agent={id}"),
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
