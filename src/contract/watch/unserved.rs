//! The contract of an agent that nobody serves at present: what it names instead of itself is
//! wanted just then.
//!
//! - the index says which version is current; its body is judged like that of an instance
//! - Consul is asked at most once in `REST`, whatever came of it

use super::bodies::{self, Named};
use super::{Agent, Directory};
use crate::consul::Poll;
use crate::contract::Compiled;
use crate::contract::published::Entry;
use crate::telemetry::log::Chain;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long what was read, or could not be, is good for.
const REST: Duration = Duration::from_secs(5);

/// What was read last, and when.
#[derive(Debug, Default)]
pub struct Unserved(tokio::sync::Mutex<Option<(Instant, Option<Arc<Compiled>>)>>);

impl Directory {
    /// Returns the current contract as it is published, if that can be had by `until`.
    pub async fn published(&self, agent: &Agent, until: Instant) -> Option<Arc<Compiled>> {
        let reading = async {
            let mut read = agent.unserved.0.lock().await;
            if let Some((at, contract)) = &*read
                && at.elapsed() < REST
            {
                return contract.clone();
            }
            let contract = self.read_published(agent).await;
            *read = Some((Instant::now(), contract.clone()));
            contract
        };
        tokio::time::timeout_at(until, reading).await.ok().flatten()
    }

    async fn read_published(&self, agent: &Agent) -> Option<Arc<Compiled>> {
        let key = self.client.layout().index(agent.id.as_str());
        let value = self.client.kv_get(&key, Poll::NOW).await.ok()?.value?.value;
        let entry = Entry::read(&agent.id, &value).ok()?;
        let named = Named {
            version: entry.version,
            digest: entry.digest,
            kid: None,
        };
        let compiled = bodies::compiled(self, &agent.id, &named).await;
        let told = |error: &bodies::Error| {
            tracing::warn!(
                contract = agent.id.as_str(),
                error = %Chain(error),
                "the contract of an agent that nobody serves cannot be used"
            );
        };
        compiled.inspect_err(told).ok()
    }
}
