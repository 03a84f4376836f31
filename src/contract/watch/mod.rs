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
pub mod known;
mod members;
mod minors;
mod survey;
mod usage;

pub use bodies::{Published, Refusal};
pub use canary::{Ratio, Ratios, Share};
pub use family::Family;
pub use survey::Survey;

use super::trust::Trust;
use super::{Cache, Compiled, ContractId, Range};
use crate::backoff::Backoff;
use crate::consul::watch::{Options, Seen};
use crate::consul::{Client, Instance, Poll};
use crate::identity::Digest;
use crate::store::Store;
use crate::task::Timestamp;
use crate::telemetry::log::Chain;
use crate::telemetry::metrics::{self, Direction, Sidecar};
use arc_swap::ArcSwap;
use bodies::Named;
use family::MOST_FAMILIES;
use known::Known;
use members::{Members, Reading};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
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
/// The shortest and the longest wait before a body that was not there or cannot be used is asked
/// for again.
const BODY_RETRY: Duration = Duration::from_secs(1);
const BODY_RETRY_MOST: Duration = Duration::from_secs(10);
/// How many versions' contracts are held for instances whose published body went bad.
const MOST_HELD: usize = 16;

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
            Some(store) => known::load(store, &cache, &trust)
                .await
                .unwrap_or_else(|error| {
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
        let current = pointer.and_then(|entry| {
            let text = String::from_utf8_lossy(&entry.value);
            text.trim().parse::<semver::Version>().ok()
        });
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

    fn follow(self: &Arc<Self>, id: ContractId) -> Arc<Agent> {
        let name: Arc<str> = Arc::from(id.as_str());
        let seed = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.remove(&name).unwrap_or_default()
        };
        let service = self.client.layout().service(&name);
        let (seen, watching) = self.client.watch_health(&service, Options::URGENT);
        let (settle, settled) = watch::channel(false);
        let (look, looked) = watch::channel(0);
        let (asked, asks) = watch::channel(0);
        let agent = Arc::new(Agent {
            meters: OnceLock::new(),
            unknown: self.metrics.contract(Direction::Outbound, metrics::UNKNOWN),
            view: ArcSwap::default(),
            settled,
            usage: Usage::begin(),
            asked,
            looked,
            doubt: Mutex::default(),
            name,
            id,
        });
        let follower = Follower {
            directory: self.clone(),
            agent: agent.clone(),
            members: Members::seeded(seed.instances),
            held: seed.contracts,
            seen,
            settle,
            asks,
            look,
            retry: Backoff::new(BODY_RETRY, BODY_RETRY_MOST),
            said: Vec::new(),
            taken: None,
        };
        self.workers.spawn(async move {
            // The watch ends only when its last receiver goes, which the follower holds.
            let closing = follower.directory.closing.clone();
            tokio::select! {
                () = watching => {}
                () = follower.run() => {}
                () = closing.cancelled() => {}
            }
        });
        agent
    }

    fn let_go(&self, agent: &Agent) {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        agents.remove(&agent.name);
        drop(agents);
        // Should Consul be away at the next use, what was known now is still worth something.
        let offers = &agent.view().offers;
        let instances: Vec<_> = offers.iter().map(|offer| offer.instance.clone()).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !instances.is_empty() && known.len() < MOST_AGENTS {
            let contracts = offers.iter().map(|offer| offer.contract.clone()).collect();
            let remembered = Known {
                instances,
                contracts,
            };
            known.insert(agent.name.clone(), remembered);
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

/// What keeps an instance, or a body for whoever names it, from being used.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    Instance(String),
    Body(Refusal),
}

/// One joining of instances with their contracts.
#[derive(Default)]
struct Round {
    view: View,
    faults: Vec<Fault>,
    /// Bodies that went wrong, so that each is fetched and judged once however many instances
    /// name it, with what is used instead.
    bad: Vec<(Named, Result<Arc<Compiled>, String>)>,
}

impl Round {
    fn wants(&mut self, instance: &Instance, error: &bodies::Error) -> String {
        self.view.wanting = Some(error.to_string());
        let reason = Chain(error).to_string();
        let fault = format!("{}: {reason}", instance.id);
        self.faults.push(Fault::Instance(fault));
        reason
    }

    fn refuses(&mut self, refused: Refusal) {
        self.view.untrusted = Some(refused.reason.clone());
        if !self.view.refused.contains(&refused) {
            self.view.refused.push(refused.clone());
            self.faults.push(Fault::Body(refused));
        }
    }
}

/// Keeps one agent's view in step with its watch.
struct Follower {
    directory: Arc<Directory>,
    agent: Arc<Agent>,
    members: Members,
    /// Contracts that were good to use, for instances whose published body is no more.
    held: Vec<Arc<Compiled>>,
    seen: watch::Receiver<Seen<Vec<Instance>>>,
    settle: watch::Sender<bool>,
    asks: watch::Receiver<u64>,
    look: watch::Sender<u64>,
    retry: Backoff,
    /// What is wrong with instances, each told when it begins.
    said: Vec<Fault>,
    /// The contract that the metrics show.
    taken: Option<Digest>,
}

impl Follower {
    async fn run(mut self) {
        loop {
            let asked = *self.asks.borrow_and_update();
            let seen = self.seen.borrow_and_update().clone();
            let reading = self.members.read(&seen, Instant::now());
            let answered = seen.value.is_some();
            let (view, faults) = self.build(&reading, answered).await;
            let retry = self.tell(faults);
            self.show(view, answered);
            self.look.send_replace(asked);
            let again = [reading.again, retry].into_iter().flatten().min();
            if self.wait(again).await.is_none() {
                self.directory.let_go(&self.agent);
                return;
            }
        }
    }

    /// Waits for news or for `again`; `None` when nobody has used the contract for long.
    async fn wait(&mut self, again: Option<Instant>) -> Option<()> {
        let absent = self.agent.view().standing == Standing::Absent;
        let patience = if absent { UNUSED_ABSENT } else { UNUSED };
        loop {
            let left = patience.checked_sub(self.agent.usage.unused_for())?;
            let doubtful = Instant::now() + left + Duration::from_secs(1);
            let until = again.map_or(doubtful, |again| again.min(doubtful));
            tokio::select! {
                changed = self.seen.changed() => return changed.ok(),
                asked = self.asks.changed() => return asked.ok(),
                () = tokio::time::sleep_until(until) => {
                    if again.is_some_and(|again| again <= Instant::now()) {
                        return Some(());
                    }
                }
            }
        }
    }

    /// Logs what has come to be wrong; returns when to look again, if anything is.
    fn tell(&mut self, faults: Vec<Fault>) -> Option<Instant> {
        for fault in faults.iter().filter(|fault| !self.said.contains(fault)) {
            match fault {
                Fault::Instance(fault) => tracing::warn!(fault, "an instance cannot be used"),
                Fault::Body(refused) => tracing::warn!(
                    contract = self.agent.id.as_str(),
                    digest = %refused.digest,
                    kid = refused.kids.join(", "),
                    reason = refused.reason,
                    "a published contract is not used"
                ),
            }
        }
        self.said = faults;
        if self.said.is_empty() {
            self.retry.reset();
            return None;
        }
        Some(Instant::now() + self.retry.next_wait().max(BODY_RETRY))
    }

    /// Joins the instances with their contracts; also says what is wrong with those left out.
    async fn build(&mut self, reading: &Reading, answered: bool) -> (View, Vec<Fault>) {
        let mut round = Round::default();
        round.view.stale = reading.stale;
        for instance in &reading.instances {
            match self.contract_of(instance, &mut round).await {
                Ok(contract) => round.view.offers.push(Offer {
                    instance: instance.clone(),
                    contract,
                }),
                Err(reason) => round.view.left_out.push(LeftOut {
                    instance: instance.id.clone(),
                    reason,
                }),
            }
        }
        let Round {
            mut view, faults, ..
        } = round;
        self.hold(&view);
        let registered = self.seen.borrow().value.clone().unwrap_or_default();
        view.left_out
            .extend(not_passing(&registered, &reading.instances));
        view.standing = match (reading.instances.is_empty(), answered) {
            (false, _) => Standing::Present,
            (true, false) => Standing::Unasked,
            (true, true) => self.standing_without_instances().await,
        };
        (view, faults)
    }

    /// Finds the contract that an instance may be called with; what is wrong is noted and told.
    async fn contract_of(
        &self,
        instance: &Instance,
        round: &mut Round,
    ) -> Result<Arc<Compiled>, String> {
        let id = &self.agent.id;
        let named = match bodies::named(id, instance) {
            Ok(named) => named,
            Err(error) => return Err(round.wants(instance, &error)),
        };
        if let Some((_, instead)) = round.bad.iter().find(|(bad, _)| *bad == named) {
            return instead.clone();
        }
        let error = match bodies::compiled(&self.directory, id, &named).await {
            Ok(contract) => return Ok(contract),
            Err(error) => error,
        };
        let Some(refused) = error.refusal(&named) else {
            return Err(round.wants(instance, &error));
        };
        self.directory.metrics.cache_untrusted();
        let instead = match error.is_of_body() {
            true => self.held_for(&named.version),
            false => None,
        };
        let instead = instead.ok_or_else(|| refused.reason.clone());
        round.refuses(refused);
        round.bad.push((named, instead.clone()));
        instead
    }

    /// A version has one body for ever, so one that was good is still what was promised.
    fn held_for(&self, version: &semver::Version) -> Option<Arc<Compiled>> {
        let mut held = self.held.iter();
        held.find(|held| held.contract.version == *version).cloned()
    }

    fn hold(&mut self, view: &View) {
        for Offer { contract, .. } in &view.offers {
            let version = &contract.contract.version;
            self.held.retain(|held| held.contract.version != *version);
            self.held.push(contract.clone());
        }
        let excess = self.held.len().saturating_sub(MOST_HELD);
        self.held.drain(..excess);
    }

    async fn standing_without_instances(&self) -> Standing {
        let value = self.seen.borrow().value.clone();
        if value.is_some_and(|instances| !instances.is_empty()) {
            return Standing::Present;
        }
        let prefix = self.directory.client.layout().bodies(&self.agent.name);
        match self.directory.client.kv_keys(&prefix, Poll::NOW).await {
            Ok(answer) if answer.value.is_empty() => Standing::Absent,
            // An error is not an empty answer.
            Ok(_) | Err(_) => Standing::Present,
        }
    }

    fn show(&mut self, view: View, answered: bool) {
        let contract = view.offers.first().map(|offer| &offer.contract);
        if let Some(contract) = contract.filter(|contract| self.taken != Some(contract.digest)) {
            let timeout = contract.contract.constraints.timeout;
            let metrics = &self.directory.metrics;
            metrics.contract_taken(&self.agent.name, timeout, Timestamp::now());
            self.taken = Some(contract.digest);
        }
        if let Some(state) = &self.directory.state
            && !view.stale
            && !view.offers.is_empty()
        {
            known::keep(state, &self.agent.name, &view);
        }
        // What an earlier process knew counts only once Consul has failed to answer: since then an
        // instance may have moved.
        let is_silent = self.seen.borrow().error.is_some();
        let settled = answered || (is_silent && !view.offers.is_empty());
        if !view.offers.is_empty() {
            let metrics = &self.directory.metrics;
            let resolve = || metrics.contract(Direction::Outbound, &self.agent.name);
            self.agent.meters.get_or_init(resolve);
        }
        self.agent.view.store(Arc::new(view));
        if settled {
            self.settle.send_replace(true);
        }
    }
}

/// Says of registered instances that are not in use that they do not pass.
fn not_passing<'r>(
    registered: &'r [Instance],
    used: &'r [Arc<Instance>],
) -> impl Iterator<Item = LeftOut> + 'r {
    let is_used = |instance: &Instance| used.iter().any(|used| used.id == instance.id);
    let others = registered.iter().filter(move |i| !is_used(i));
    others.map(|instance| LeftOut {
        instance: instance.id.clone(),
        reason: NOT_PASSING.to_owned(),
    })
}
