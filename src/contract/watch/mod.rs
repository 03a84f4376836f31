//! The contracts in use and who serves them, followed in Consul.
//!
//! Asking for a contract begins a health watch; a contract nobody asks for is let go after
//! `UNUSED`. A view is a snapshot: who reads it keeps it for the whole call.
//!
//! - an instance is offered only with a body whose digest is the one the instance names and whose
//!   signatures are believed; who holds such a body of that version goes on with it
//! - a view is replaced as a whole; trouble keeps the last good one
//! - at most `MOST_AGENTS` are followed; a further name is refused, not watched
//! - elsewhere: the watch loop (`consul`), who of the offered gets a call (`route`)

mod bodies;
mod canary;
mod family;
mod follower;
pub mod known;
mod members;
mod minors;
mod survey;
mod unserved;
mod usage;

pub use bodies::Refusal;
pub use canary::{Ratio, Ratios, Share};
pub use family::Family;
pub use survey::Survey;

use super::published;
use super::trust::Trust;
use super::{Cache, Compiled, ContractId, Range};
use crate::consul::{Client, Instance, Poll};
use crate::store::Store;
use crate::telemetry::log::Chain;
use crate::telemetry::metrics::{self, Sidecar};
use arc_swap::ArcSwap;
use bodies::Named;
use family::MOST_FAMILIES;
use known::Known;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use unserved::Unserved;
use usage::Usage;

/// After this long without a call a watch is let go.
const UNUSED: Duration = Duration::from_secs(600);
/// A name that Consul does not know is let go sooner: it is likely a misspelling.
const UNUSED_ABSENT: Duration = Duration::from_secs(30);
/// How many contracts one sidecar follows.
const MOST_AGENTS: usize = 1024;
/// How long the first calls of a contract wait for Consul's answer.
const FIRST_USE: Duration = Duration::from_secs(2);
/// How many bodies are read anew for a call that asks for it.
const MOST_REFRESHED: usize = 4;
/// Why an instance is left out that Consul does not list as passing.
const NOT_PASSING: &str = "it is not passing in Consul";

/// All contracts in use; one value per sidecar, shared by `Arc`.
pub struct Directory {
    client: Client,
    cache: Cache,
    trust: Arc<Trust>,
    metrics: Arc<Sidecar>,
    state: Option<Store>,
    known: Mutex<HashMap<Arc<str>, Known>>,
    agents: Mutex<HashMap<Arc<str>, Arc<Agent>>>,
    families: Mutex<HashMap<Range, Arc<Family>>>,
    ratios: Ratios,
    workers: TaskTracker,
    closing: CancellationToken,
}

/// One contract in use.
pub struct Agent {
    pub id: ContractId,
    name: Arc<str>,
    meters: OnceLock<Arc<metrics::Contract>>,
    unknown: Arc<metrics::Contract>,
    view: ArcSwap<View>,
    /// True once Consul has answered, or a last known good set is there.
    settled: watch::Receiver<bool>,
    usage: Usage,
    /// How often the follower was asked to look again, and which of these the view has seen.
    asked: watch::Sender<u64>,
    looked: watch::Receiver<u64>,
    /// What was wrong when the body was read anew; told once.
    doubt: Mutex<String>,
    unserved: Unserved,
}

/// What is known of one contract at one moment.
#[derive(Debug, Default)]
pub struct View {
    pub offers: Vec<Offer>,
    pub standing: Standing,
    /// Consul does not confirm this view at present.
    pub stale: bool,
    /// Why instances are there that cannot be used; at most one reason is kept.
    pub untrusted: Option<String>,
    /// The bodies that are published and not used, each once.
    pub refused: Vec<Refusal>,
    /// Why an instance is there whose contract cannot be had at present.
    pub wanting: Option<String>,
    /// The instances that are registered and not offered.
    pub left_out: Vec<LeftOut>,
}

/// An instance that is registered and cannot be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    pub instance: Arc<str>,
    pub reason: String,
}

/// An instance that may be called, with the contract it serves.
#[derive(Debug, Clone)]
pub struct Offer {
    pub instance: Arc<Instance>,
    pub contract: Arc<Compiled>,
}

/// Whether Consul knows a contract.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Standing {
    /// Consul has never answered.
    #[default]
    Unasked,
    /// Neither an instance nor a body.
    Absent,
    /// An instance or a body.
    Present,
}

/// A contract that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("{name:?} is not a contract id such as fraud-detection-v1.0")]
    NotAnId { name: String },
    #[error(
        "{MOST_AGENTS} contracts are in use already; one is let go 10 minutes after its last call"
    )]
    Full,
    #[error(
        "{MOST_FAMILIES} version ranges are in use already; one is let go 10 minutes after its \
         last call"
    )]
    FullOfRanges,
}

impl Directory {
    /// Begins with what an earlier process knew, if a state file is given.
    pub async fn open(
        client: Client,
        metrics: Arc<Sidecar>,
        state: Option<Store>,
        workers: TaskTracker,
        trust: Arc<Trust>,
    ) -> Arc<Self> {
        let cache = Cache::new();
        let known = match &state {
            None => HashMap::new(),
            Some(store) => known::load(store).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "the last known good instances could not be read");
                HashMap::new()
            }),
        };
        Arc::new(Self {
            client,
            cache,
            trust,
            metrics,
            state,
            known: Mutex::new(known),
            agents: Mutex::default(),
            families: Mutex::default(),
            ratios: Ratios::default(),
            workers,
            closing: CancellationToken::new(),
        })
    }

    /// Returns the contract, beginning to follow it at the first call.
    pub fn agent(self: &Arc<Self>, name: &str) -> Result<Arc<Agent>, Refused> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = agents.get(name) {
            agent.usage.touch();
            return Ok(agent.clone());
        }
        let id: ContractId = name.parse().map_err(|_not_an_id| Refused::NotAnId {
            name: name.chars().take(80).collect(),
        })?;
        if agents.len() >= MOST_AGENTS {
            return Err(Refused::Full);
        }
        let agent = self.follow(id);
        self.follow_ratios();
        agents.insert(agent.name.clone(), agent.clone());
        Ok(agent)
    }

    /// Returns every contract in use, for those who look on.
    pub fn agents(&self) -> Vec<Arc<Agent>> {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        agents.values().cloned().collect()
    }

    /// Ends all watches; views stay as they are.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Says whether calls can be routed without asking Consul.
    pub fn knows_anything(&self) -> bool {
        // One lock after the other: `agent` takes the second while it holds the first.
        let mut agents = self.agents().into_iter();
        let remembered = || {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            !known.is_empty()
        };
        agents.any(|agent| !agent.view().offers.is_empty()) || remembered()
    }

    /// Reads the current version and the bodies in use from Consul, for calls that ask for it: at
    /// most until `until`, and no longer than a first use waits.
    pub async fn refresh(&self, agent: &Agent, until: Instant) {
        let until = until.min(Instant::now() + FIRST_USE);
        // Late or not, the call goes on with what is known.
        drop(tokio::time::timeout_at(until, self.read_anew(agent)).await);
    }

    async fn read_anew(&self, agent: &Agent) {
        let key = self.client.layout().version(agent.id.as_str());
        let pointer = self.client.kv_get(&key, Poll::NOW).await;
        let pointer = pointer.ok().and_then(|answer| answer.value);
        let current = pointer.and_then(|entry| published::pointed(&agent.id, &entry.value));
        let view = agent.view.load_full();
        let mut told = None;
        // What instances name decides; the pointer only says which body matters most.
        for named in view.served(current.as_ref()) {
            let read = bodies::renewed(self, &agent.id, &named).await;
            told = told.or(read.err());
        }
        agent.refreshed(told);
        if view.offers.is_empty() || view.untrusted.is_some() || view.wanting.is_some() {
            // What could not be used when it was seen may be in order by now.
            agent.look_again().await;
        }
    }
}

impl Agent {
    /// Returns its series; a name that nobody serves has none of its own, or misspelt names would
    /// use up the places of real contracts.
    pub fn meters(&self) -> &Arc<metrics::Contract> {
        self.meters.get().unwrap_or(&self.unknown)
    }

    /// Returns the present snapshot.
    pub fn view(&self) -> arc_swap::Guard<Arc<View>> {
        self.view.load()
    }

    /// Says whether Consul has answered, or has failed to and an earlier answer is in use.
    pub fn is_settled(&self) -> bool {
        *self.settled.borrow()
    }

    /// Waits until something is known: at most until `until`, and only while the contract is new.
    ///
    /// Later calls do not wait again for a Consul that stays silent.
    pub async fn settled(&self, until: Instant) {
        let mut settled = self.settled.clone();
        if *settled.borrow() {
            return;
        }
        let until = until.min(self.usage.first() + FIRST_USE);
        // Late or given up: the caller looks at the view either way.
        drop(tokio::time::timeout_at(until, settled.wait_for(|is| *is)).await);
    }

    /// Waits until the view was made anew.
    async fn look_again(&self) {
        let mut mine = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            mine = *asked;
        });
        let mut looked = self.looked.clone();
        // An error means that nobody follows any more.
        drop(looked.wait_for(|looked| *looked >= mine).await);
    }

    /// Takes note of how reading the body anew went; the copy in use stays in use.
    fn refreshed(&self, error: Option<bodies::Error>) {
        let told = error.map(|error| Chain(&error).to_string());
        let told = told.unwrap_or_default();
        let mut doubt = self.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.is_empty() && *doubt != told {
            tracing::warn!(
                contract = &*self.name,
                error = told,
                "a contract read anew cannot be used; the copy in use stays"
            );
        }
        *doubt = told;
    }
}

impl View {
    /// Lists what the offered instances serve, each once, those of the current version first.
    fn served(&self, current: Option<&semver::Version>) -> Vec<Named> {
        let mut served: Vec<Named> = Vec::new();
        for Offer { contract, .. } in &self.offers {
            let (version, digest) = (&contract.contract.version, contract.digest);
            if !served.iter().any(|named| named.digest == digest) {
                served.push(Named {
                    version: version.clone(),
                    digest,
                    kid: None,
                });
            }
        }
        served.sort_by_key(|named| Some(&named.version) != current);
        served.truncate(MOST_REFRESHED);
        served
    }
}
