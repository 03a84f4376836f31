//! One contract in use: its view, kept in step with its watch.
//!
//! - a view is built anew from all instances, and shown as a whole
//! - each body is fetched and judged once a round, however many instances name it
//! - elsewhere: how instances come and go (`members`), reading one body (`bodies`)

use super::bodies::Named;
use super::known::{self, Known};
use super::members::{Members, Reading};
use super::unserved::Unserved;
use super::usage::Usage;
use super::{
    Agent, Directory, LeftOut, MOST_AGENTS, NOT_PASSING, Offer, Refusal, Standing, UNUSED,
    UNUSED_ABSENT, View, bodies,
};
use crate::backoff::Backoff;
use crate::consul::watch::{Options, Seen};
use crate::consul::{Instance, Poll};
use crate::contract::{Compiled, ContractId};
use crate::identity::Digest;
use crate::task::Timestamp;
use crate::telemetry::log::Chain;
use crate::telemetry::metrics::{self, Direction};
use arc_swap::ArcSwap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The shortest and the longest wait before a body that was not there or cannot be used is asked
/// for again.
const BODY_RETRY: Duration = Duration::from_secs(1);
const BODY_RETRY_MOST: Duration = Duration::from_secs(10);
/// How many versions' contracts are held for instances whose published body went bad.
const MOST_HELD: usize = 16;

impl Directory {
    /// Begins to follow a contract, with what was known of it before.
    pub(super) fn follow(self: &Arc<Self>, id: ContractId) -> Arc<Agent> {
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
            unserved: Unserved::default(),
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
            trusts: self.trust.changed(),
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
                () = follower.run(seed.bodies) => {}
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
                bodies: Vec::new(),
            };
            known.insert(agent.name.clone(), remembered);
        }
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
    /// Tells when contracts are to be judged anew.
    trusts: watch::Receiver<u64>,
    look: watch::Sender<u64>,
    retry: Backoff,
    /// What is wrong with instances, each told when it begins.
    said: Vec<Fault>,
    /// The contract that the metrics show.
    taken: Option<Digest>,
}

impl Follower {
    /// Follows until nobody uses the contract, from the bodies on that an earlier process knew.
    async fn run(mut self, bodies: Vec<String>) {
        let (cache, trust) = (&self.directory.cache, &self.directory.trust);
        for body in bodies.iter().take(MOST_HELD) {
            self.held.extend(known::usable(body, cache, trust).await);
        }
        drop(bodies);
        // They may have been taken in under other settings of trust.
        self.trusts.mark_changed();
        loop {
            let asked = *self.asks.borrow_and_update();
            if self.trusts.has_changed().unwrap_or(false) {
                self.trusts.mark_unchanged();
                self.judge_anew().await;
            }
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

    /// Lets go of bodies that are trusted no more; the next round says so of their instances.
    async fn judge_anew(&mut self) {
        let (cache, trust) = (&self.directory.cache, &self.directory.trust);
        for contract in cache.of(&self.agent.id) {
            if trust.judge(&contract.contract).await.is_err() {
                cache.forget(&contract);
            }
        }
        let mut held = Vec::with_capacity(self.held.len());
        for contract in self.held.drain(..) {
            if trust.judge(&contract.contract).await.is_ok() {
                held.push(contract);
            }
        }
        self.held = held;
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
                Ok(()) = self.trusts.changed() => {
                    self.trusts.mark_changed();
                    return Some(());
                }
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
