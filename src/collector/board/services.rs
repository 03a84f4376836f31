//! Who runs which contract, read service by service in turns.
//!
//! A watch per contract would hold a connection of the agent for each; there are 200 for a whole
//! host. So one poll on the list of services tells which there are, and their instances are read
//! one after the other: at most one read every `PACE`, and the pauses are as long as the rounds.

use super::Board;
use crate::consul::{Answer, Client, Error, Instance, Poll};
use crate::contract::ContractId;
use crate::telemetry::log::Chain;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Between two reads.
const PACE: Duration = Duration::from_millis(20);
/// Between two rounds, and after one at least its own length.
const REST: Duration = Duration::from_secs(3);
/// A round shows what it has so far this often.
const SHOW_EVERY: Duration = Duration::from_secs(1);
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Reads that fail one after the other before a round gives up.
const MOST_FAILURES: usize = 3;
const MOST_SERVICES: usize = 2_000;
/// Contracts whose servers are remembered, and servers of each.
const MOST_REMEMBERED: usize = 4_000;
const MOST_SERVERS: usize = 64;
/// For a read that a report waits for.
const ASKED_WITHIN: Duration = Duration::from_secs(2);
/// Instances of one contract that are kept.
const MOST_INSTANCES: usize = 1_000;
/// What every service of ours is tagged with.
const TAG: &str = "hermes";

/// The contracts that are registered as services.
pub(super) type Names = BTreeSet<ContractId>;

/// What the rounds so far have found.
#[derive(Debug, Default, Clone)]
pub(super) struct Services {
    pub(super) instances: HashMap<ContractId, Arc<Vec<Instance>>>,
    /// Who has served each contract since the start: what they tell may come after they have left.
    served_by: HashMap<ContractId, BTreeSet<String>>,
    /// When the last good read was, while reads fail.
    pub(super) failing_since: Option<Instant>,
}

pub(super) async fn names(client: &Client, poll: Poll) -> Result<Answer<Names>, Error> {
    let answer = client.services(poll).await?;
    let ours = answer
        .value
        .iter()
        .filter(|(_, tags)| tags.iter().any(|tag| tag == TAG));
    let ids = ours.filter_map(|(name, _)| client.layout().of_service(name)?.parse().ok());
    let names = ids.take(MOST_SERVICES).collect();
    Ok(answer.with(names))
}

/// Reads the instances of every service again and again, until it is dropped.
pub(super) async fn take_turns(board: Arc<Board>) {
    let mut seen = board.names.clone();
    let mut turns = Turns {
        good_at: Instant::now(),
        said: String::new(),
        board,
    };
    loop {
        let names = seen.borrow_and_update().value.clone();
        let began = Instant::now();
        if let Some(names) = &names {
            turns.round(names).await;
        }
        let rest = REST.max(began.elapsed());
        // A service that came or went is read soon, but a burst of them in one round.
        let until = Instant::now() + rest;
        sleep(REST / 3).await;
        timeout_at(until, seen.changed()).await.ok();
    }
}

/// Reads the instances of one contract.
async fn instances(
    client: &Client,
    id: &ContractId,
    within: Duration,
) -> Result<Vec<Instance>, String> {
    let service = client.layout().service(id.as_str());
    match timeout(within, client.health(&service, Poll::NOW)).await {
        Ok(answer) => Ok(answer.map_err(|error| Chain(&error).to_string())?.value),
        Err(_elapsed) => Err(format!("no answer from Consul within {within:?}")),
    }
}

impl Services {
    fn remember(&mut self, id: &ContractId, instances: &[Instance]) {
        let applications = instances
            .iter()
            .filter_map(Instance::app)
            .map(str::to_owned);
        let is_full = self.served_by.len() >= MOST_REMEMBERED;
        if !is_full || self.served_by.contains_key(id) {
            let known = self.served_by.entry(id.clone()).or_default();
            known.extend(applications);
            while known.len() > MOST_SERVERS {
                known.pop_last();
            }
        }
    }
}

impl Board {
    /// Says whether an application serves a contract or did since the start; true where Consul
    /// names nobody who does. An error tells why it cannot be said now.
    pub(in crate::collector) async fn serves(
        &self,
        agent: &str,
        application: &str,
    ) -> Result<bool, String> {
        let Ok(id) = agent.parse::<ContractId>() else {
            return Ok(true);
        };
        let known = self.services.load();
        match known.served_by.get(&id) {
            None => return Ok(true),
            Some(servers) if servers.is_empty() || servers.contains(application) => {
                return Ok(true);
            }
            Some(_) => {}
        }
        // Somebody new may have come since the last round.
        // The semaphore is never closed.
        let _permit = self.reads.acquire().await.ok();
        let now = instances(&self.client, &id, ASKED_WITHIN).await?;
        Ok(now
            .iter()
            .any(|instance| instance.app() == Some(application)))
    }
}

struct Turns {
    board: Arc<Board>,
    /// When a read last succeeded.
    good_at: Instant,
    said: String,
}

impl Turns {
    async fn round(&mut self, names: &Names) {
        let (mut services, mut shown_at) =
            ((*self.board.services.load_full()).clone(), Instant::now());
        services.instances.retain(|id, _| names.contains(id));
        // Those that are new come first: nothing is known of them yet.
        let (known, new): (Vec<_>, Vec<_>) = names
            .iter()
            .partition(|id| services.instances.contains_key(*id));
        let mut failures = 0;
        for id in new.into_iter().chain(known) {
            // Another prefix's services may look like ours; only what is published here is.
            if !self.is_published(id) {
                services.instances.remove(id);
                continue;
            }
            match self.read(id).await {
                Ok(instances) => {
                    services.remember(id, &instances);
                    services.instances.insert(id.clone(), Arc::new(instances));
                    (self.good_at, failures) = (Instant::now(), 0);
                }
                Err(error) => {
                    self.say(id, error);
                    failures += 1;
                }
            }
            if failures >= MOST_FAILURES {
                break;
            }
            if shown_at.elapsed() >= SHOW_EVERY {
                self.board.services.store(Arc::new(services.clone()));
                shown_at = Instant::now();
            }
            sleep(PACE).await;
        }
        services.failing_since = (failures > 0).then_some(self.good_at);
        if failures == 0 {
            self.said.clear();
        }
        self.board.services.store(Arc::new(services));
    }

    fn is_published(&self, id: &ContractId) -> bool {
        let seen = self.board.listing.borrow();
        let listing = seen.value.as_ref();
        listing.is_none_or(|listing| listing.contracts.contains_key(id))
    }

    async fn read(&self, id: &ContractId) -> Result<Vec<Instance>, String> {
        let mut instances = instances(&self.board.client, id, READ_TIMEOUT).await?;
        if instances.len() > MOST_INSTANCES {
            tracing::warn!(
                contract = %id,
                instances = instances.len(),
                "more instances are registered than are shown"
            );
            instances.truncate(MOST_INSTANCES);
        }
        Ok(instances)
    }

    /// Logs a failure once.
    fn say(&mut self, id: &ContractId, error: String) {
        if error != self.said {
            tracing::warn!(contract = %id, error, "the instances could not be read");
            self.said = error;
        }
    }
}
