//! Who runs which contract, read service by service in turns.
//!
//! A watch per contract would hold a connection of the agent for each; there are 200 for a whole
//! host. So one poll on the list of services tells which there are, and their instances are read
//! one after the other: at most one read every `PACE`, and the pauses are as long as the rounds.

use super::{Board, Error};
use crate::consul::{self, Answer, Client, Instance, Poll};
use crate::contract::ContractId;
use crate::telemetry::log::Chain;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Between two reads.
const PACE: Duration = Duration::from_millis(20);
/// Between two rounds; never shorter than the round before.
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
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    ids: BTreeSet<ContractId>,
    /// Beyond the bound.
    left_out: usize,
}

/// What the rounds so far have found.
#[derive(Debug, Default, Clone)]
pub(super) struct Services {
    pub(super) instances: HashMap<ContractId, Arc<Vec<Instance>>>,
    /// Who has served each contract since the start: what they tell may come after they have left.
    served_by: HashMap<ContractId, BTreeSet<String>>,
    /// When the last good read was, while reads fail.
    pub(super) failing_since: Option<Instant>,
}

pub(super) async fn names(client: &Client, poll: Poll) -> Result<Answer<Names>, consul::Error> {
    let answer = client.services(poll).await?;
    let ours = answer
        .value
        .iter()
        .filter(|(_, tags)| tags.iter().any(|tag| tag == TAG));
    let mut ids = ours.filter_map(|(name, _)| client.layout().of_service(name)?.parse().ok());
    let names = Names {
        ids: ids.by_ref().take(MOST_SERVICES).collect(),
        left_out: ids.count(),
    };
    Ok(answer.with(names))
}

/// Reads the instances of every service again and again, until it is dropped.
pub(super) async fn take_turns(board: Arc<Board>) {
    let mut seen = board.names.clone();
    let mut turns = Turns {
        good_at: Instant::now(),
        said: String::new(),
        left_out: 0,
        board,
    };
    loop {
        let names = seen.borrow_and_update().value.clone();
        let began = Instant::now();
        if let Some(names) = &names {
            turns.tell(names.left_out);
            turns.round(&names.ids).await;
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
) -> Result<Vec<Instance>, Error> {
    let service = client.layout().service(id.as_str());
    match timeout(within, client.health(&service, Poll::NOW)).await {
        Ok(answer) => Ok(answer?.value),
        Err(_elapsed) => Err(Error::Silent(within)),
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
    /// names nobody who does. What no round has read yet is asked for.
    pub(in crate::collector) async fn serves(
        &self,
        agent: &str,
        application: &str,
    ) -> Result<bool, Error> {
        let Ok(id) = agent.parse::<ContractId>() else {
            return Ok(true);
        };
        let services = self.services.load();
        let known = services.served_by.get(&id);
        let known = known.filter(|servers| !servers.is_empty());
        if known.is_some_and(|servers| servers.contains(application)) {
            return Ok(true);
        }
        // Reports of what was never registered must not make a read each.
        if known.is_none() && self.is_no_service(&id) {
            return Ok(true);
        }
        // Somebody new may have come since the last round.
        // The semaphore is never closed.
        let _permit = self.reads.acquire().await.ok();
        let now = instances(&self.client, &id, ASKED_WITHIN).await?;
        let mut servers = now.iter().filter_map(Instance::app).peekable();
        let is_nobodys = known.is_none() && servers.peek().is_none();
        Ok(is_nobodys || servers.any(|server| server == application))
    }

    /// Says whether Consul's list of services is at hand as it is now, whole, and without this one.
    fn is_no_service(&self, id: &ContractId) -> bool {
        let seen = self.names.borrow();
        let names = seen.value.as_ref().filter(|_| seen.error.is_none());
        names.is_some_and(|names| names.left_out == 0 && !names.ids.contains(id))
    }
}

struct Turns {
    board: Arc<Board>,
    /// When a read last succeeded.
    good_at: Instant,
    said: String,
    left_out: usize,
}

impl Turns {
    async fn round(&mut self, names: &BTreeSet<ContractId>) {
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
                    self.say(id, &error);
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

    async fn read(&self, id: &ContractId) -> Result<Vec<Instance>, Error> {
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
    fn say(&mut self, id: &ContractId, error: &Error) {
        let error = Chain(error).to_string();
        if error != self.said {
            tracing::warn!(contract = %id, error, "the instances could not be read");
            self.said = error;
        }
    }

    /// Logs that there are more contracts than are read, when they become more.
    fn tell(&mut self, left_out: usize) {
        if left_out > self.left_out {
            tracing::warn!(
                services = left_out,
                "more contracts are registered than are read; those beyond are on no list"
            );
        }
        self.left_out = left_out;
    }
}
