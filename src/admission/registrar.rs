//! Keeping one contract registered in Consul, with a check that tells the truth.
//!
//! - registered under a stable id; lost registrations come back within two beats
//! - the beat goes on whatever Consul answers; nothing ends this worker but the process
//! - another version of the contract, and other settings, are registered over what is there
//! - another process under our id (its boot differs after we registered) ends our writing
//! - on leaving, only what is still ours is deregistered

use super::publication::{self, Change, Raise, Team};
use super::standing::BEAT;
use super::{Config, Ours};
use crate::backoff::Backoff;
use crate::consul::{CheckStatus, Client, Poll, Registered, Registration};
use crate::contract::Compiled;
use crate::identity::Digest;
use crate::lifecycle::{Observer, Phase};
use crate::task::Timestamp;
use crate::telemetry::log::Chain;
use crate::telemetry::metrics::{Admission, AdmissionStep, Sidecar};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// How often our entry is looked for in the catalogue, where others see it.
const CATALOGUE: Duration = Duration::from_secs(60);
/// Between a watch that failed and the next: an agent that restarts is back in seconds.
const WATCH_PAUSE: Duration = Duration::from_secs(1);
const HASH_WAIT: Duration = Duration::from_secs(55);

/// How Consul's record of one contract stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    pub registered: bool,
    /// Why not, or why not anew.
    pub trouble: Option<String>,
    /// When the record was last confirmed.
    pub confirmed_at: Option<Timestamp>,
}

/// Keeps one contract's record; a worker.
pub struct Registrar {
    config: Arc<Config>,
    configs: watch::Receiver<Arc<Config>>,
    ours: Ours,
    charges: watch::Receiver<Charge>,
    client: Client,
    metrics: Arc<Sidecar>,
    lifecycle: Observer,
    standing: super::Reader,
    record: watch::Sender<Record>,
    state: State,
}

/// The version of the contract that is to stand in Consul, and how it stands with us.
#[derive(Debug, Clone)]
pub struct Charge {
    pub ours: Ours,
    pub standing: super::Reader,
}

/// What the worker remembers between events.
#[derive(Default)]
struct State {
    registered: bool,
    /// What is registered is not what should be.
    is_outdated: bool,
    /// What we serve was accepted by Consul before.
    is_published: bool,
    /// Asked for at least once, so that there may be something to take back.
    was_asked_for: bool,
    /// It was registered at least once: a further time is a repair.
    was_registered: bool,
    /// The check's last known status.
    passing: bool,
    collided: bool,
    address: Option<String>,
    /// The address in Consul is a guess; our own entry will tell the node's.
    is_guessed: bool,
    hash: Option<String>,
    /// How often it was registered: what was asked before the last time may tell of the one before.
    round: u64,
    /// The contract whose fallbacks were looked at last.
    examined: Option<Digest>,
    /// What is wrong with the published contract, which a beat does not mend.
    doubt: Option<String>,
}

/// What woke the worker.
enum Event {
    Beat,
    Standing,
    Charged,
    Watched {
        /// The round it was asked in.
        round: u64,
        there: Option<Registered>,
    },
    WatchFailed,
    Catalogue,
}

/// When to do what.
struct Clock {
    beat: Interval,
    catalogue: Interval,
    retry: Backoff,
    /// No try to register before this.
    again: Instant,
    /// One poll of our registration. A poll given up keeps its slot in the agent until its wait
    /// ends, so one runs out before the next is sent, whatever else happens meanwhile.
    watching: Awaited<Event>,
    /// A look at the fallbacks of what is registered; Consul may take its time.
    examining: Awaited<()>,
}

/// What goes on beside the worker, if anything does.
type Awaited<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

impl Registrar {
    /// Makes the worker and the value it keeps up to date.
    pub fn new(
        mut configs: watch::Receiver<Arc<Config>>,
        mut charges: watch::Receiver<Charge>,
        client: Client,
        metrics: Arc<Sidecar>,
        lifecycle: Observer,
    ) -> (Self, watch::Receiver<Record>) {
        let (record, records) = watch::channel(Record::default());
        let Charge { ours, standing } = charges.borrow_and_update().clone();
        let config = configs.borrow_and_update().clone();
        let registrar = Self {
            config,
            configs,
            ours,
            charges,
            client,
            metrics,
            lifecycle,
            standing,
            record,
            state: State::default(),
        };
        (registrar, records)
    }

    /// Runs until the process leaves, then deregisters.
    pub async fn run(mut self) {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let _slot = self.client.budget().take();
        let mut clock = Clock {
            beat,
            catalogue: tokio::time::interval_at(Instant::now() + CATALOGUE, CATALOGUE),
            retry: Backoff::new(Duration::from_millis(500), BEAT),
            again: Instant::now(),
            watching: None,
            examining: None,
        };
        let mut leaving = self.lifecycle.clone();
        // Whatever Consul keeps us waiting for is let go when the process leaves.
        tokio::select! {
            () = leaving.reached(Phase::Leaving) => {}
            () = self.keep(&mut clock) => {}
        }
        self.leave().await;
    }

    async fn keep(&mut self, clock: &mut Clock) {
        loop {
            if self.is_adrift() && Instant::now() >= clock.again {
                match self.establish().await {
                    Ok(()) => {
                        clock.retry.reset();
                        // Two who undo each other's registration do not do it in a tight loop.
                        clock.again = Instant::now() + WATCH_PAUSE;
                    }
                    Err(permanent) => {
                        let wait = clock.retry.next_wait().max(Duration::from_millis(200));
                        // What only a person can change is asked for slowly.
                        let wait = if permanent { CATALOGUE / 2 } else { wait };
                        clock.again = Instant::now() + wait;
                    }
                }
            }
            let is_in_place = self.state.registered && !self.state.is_outdated;
            if is_in_place && self.is_unexamined() {
                let contract = self.ours.contract.clone();
                clock.examining = Some(Box::pin(tell_doubts(self.client.clone(), contract)));
            }
            let is_watched = self.state.registered || self.state.collided;
            if is_watched && clock.watching.is_none() {
                clock.watching = Some(Box::pin(self.watch()));
            }
            let event = tokio::select! {
                // The next version's judge is known before that of the last one goes.
                biased;
                Ok(()) = self.charges.changed() => Event::Charged,
                Ok(()) = self.configs.changed() => Event::Charged,
                changed = self.standing.changed() => match changed {
                    Ok(()) => Event::Standing,
                    Err(_judge_is_gone) => return,
                },
                () = tokio::time::sleep_until(clock.again), if self.is_adrift() => continue,
                _ = clock.beat.tick() => Event::Beat,
                _ = clock.catalogue.tick() => Event::Catalogue,
                Some(watched) = end_of(&mut clock.watching), if is_watched => watched,
                Some(()) = end_of(&mut clock.examining) => continue,
            };
            self.react(event).await;
        }
    }

    /// Says whether there is something to register. What nobody may sign for is not even published:
    /// it would take a version for good.
    fn is_adrift(&self) -> bool {
        let signature = AdmissionStep::Signature as usize;
        let is_signed = self.standing.borrow().steps[signature].result.holds();
        let is_wanted = !self.state.registered || self.state.is_outdated;
        is_wanted && !self.state.collided && is_signed
    }

    /// Takes over what is to stand in Consul from now on.
    fn take_over(&mut self) {
        let before = self.registration(String::new(), CheckStatus::Critical);
        let Charge { ours, standing } = self.charges.borrow_and_update().clone();
        let is_same = ours.contract.digest == self.ours.contract.digest
            && ours.contract.contract.signatures == self.ours.contract.contract.signatures;
        self.state.is_published &= is_same;
        (self.ours, self.standing) = (ours, standing);
        self.config = self.configs.borrow_and_update().clone();
        let after = self.registration(String::new(), CheckStatus::Critical);
        if before != after || !is_same {
            self.state.is_outdated = true;
            self.state.address = None;
        }
    }

    /// Watches our registration at the local agent; needs no leader and wakes at once.
    fn watch(&self) -> impl Future<Output = Event> + use<> {
        let client = self.client.clone();
        let (id, hash, round) = (self.id(), self.state.hash.clone(), self.state.round);
        async move {
            let asked = Instant::now();
            match client.service_by_id(&id, hash.as_deref(), HASH_WAIT).await {
                Ok(there) => {
                    // A poll that did not block must not become a tight loop.
                    if asked.elapsed() < WATCH_PAUSE {
                        tokio::time::sleep(WATCH_PAUSE).await;
                    }
                    Event::Watched { round, there }
                }
                Err(_logged_by_the_beat) => {
                    tokio::time::sleep(WATCH_PAUSE).await;
                    Event::WatchFailed
                }
            }
        }
    }

    async fn react(&mut self, event: Event) {
        match event {
            Event::Beat => {
                self.beat().await;
                self.look_up_address().await;
            }
            Event::Standing => self.beat().await,
            // What it is about is registered, with its status, before anything is said of that.
            Event::Charged => self.take_over(),
            // The next poll asks without a hash and is answered at once.
            Event::Watched { round, .. } if round != self.state.round => {}
            Event::Watched { there: None, .. } => {
                if std::mem::take(&mut self.state.collided) {
                    tracing::info!(id = self.id(), "the other process under this id has gone");
                }
                self.lost("the agent no longer knows the service");
            }
            Event::Watched {
                there: Some(there), ..
            } => self.compare(&there),
            Event::Catalogue => self.look_into_catalogue().await,
            Event::WatchFailed => {}
        }
    }

    fn id(&self) -> String {
        self.config.id(&self.ours, self.client.layout())
    }

    fn check_id(&self) -> String {
        format!("{}:ttl", self.id())
    }

    fn status(&self) -> CheckStatus {
        match self.standing.borrow().state {
            Admission::Admitted => CheckStatus::Passing,
            _ => CheckStatus::Critical,
        }
    }

    /// Publishes and registers, in the order that readers rely on: body, version, service, index.
    ///
    /// The error says whether only a person can help.
    async fn establish(&mut self) -> Result<(), bool> {
        // What was registered before counts as accepted, and an operator may have lowered the
        // version since.
        let again = self.state.is_published;
        match self.publish(again).await {
            // We know what we serve; those who know it too go on calling us.
            Err(error @ publication::Error::Altered { .. }) if again => self.doubt(&error),
            Err(error) => return Err(self.troubled(&error, error.is_permanent())),
            Ok(()) => {}
        }
        if let Err(error) = self.register().await {
            let denied = error.kind() == crate::consul::ErrorKind::Denied;
            return Err(self.troubled(&error, denied));
        }
        if let Err(error) = self.index(true).await {
            return Err(self.troubled(&error, error.is_permanent()));
        }
        Ok(())
    }

    /// Publishes body and version; `again`: what is there is kept up, and nothing judged anew.
    async fn publish(&mut self, again: bool) -> Result<(), publication::Error> {
        let contract = &self.ours.contract.contract;
        let by = format!("{}/{}", self.config.application, self.config.instance);
        let published = publication::publish(&self.client, contract, &by, again).await?;
        let raise = match published.change {
            // Consul may have lost everything, and what is published anew comes in any order.
            Change::Created => Raise::Lower,
            _ if again => Raise::Missing,
            _ => Raise::Lower,
        };
        publication::raise(&self.client, contract, raise).await?;
        self.state.doubt = None;
        if published.left_out > 0 {
            let left_out = published.left_out;
            self.doubt(&publication::Crowded { left_out });
        }
        Ok(())
    }

    /// Says, once for each contract, that nobody has looked at its fallbacks.
    fn is_unexamined(&mut self) -> bool {
        let digest = Some(self.ours.contract.digest);
        std::mem::replace(&mut self.state.examined, digest) != digest
    }

    async fn index(&self, insists: bool) -> Result<(), publication::Error> {
        let name = self.config.team.as_str();
        let contract = &self.ours.contract.contract;
        publication::follow(&self.client, contract, Team { name, insists }).await
    }

    async fn register(&mut self) -> Result<(), crate::consul::Error> {
        let address = self.address().await;
        let registration = self.registration(address, self.first_status());
        self.state.was_asked_for = true;
        self.client.register(&registration).await?;
        let again = std::mem::replace(&mut self.state.was_registered, true);
        let renews = std::mem::take(&mut self.state.is_outdated);
        self.state.is_published = true;
        if again && !renews {
            self.metrics.reregistered();
        }
        let id = registration.id;
        tracing::info!(id, again, "registered in Consul");
        self.state.registered = true;
        self.state.hash = None;
        self.state.round += 1;
        self.confirmed();
        self.beat().await;
        Ok(())
    }

    /// How what is registered now begins; it may have fallen while Consul was away.
    fn first_status(&self) -> CheckStatus {
        if self.state.was_registered && self.state.passing {
            self.status()
        } else {
            CheckStatus::Critical
        }
    }

    fn registration(&self, address: String, status: CheckStatus) -> Registration {
        let layout = self.client.layout();
        self.config
            .registration(&self.ours, layout, address, status)
    }

    /// The address others reach us at: configured, bound, or the node's own; never empty.
    async fn address(&mut self) -> String {
        if let Some(known) = &self.state.address {
            return known.clone();
        }
        let configured = &self.config.advertise_host;
        if !configured.is_empty() {
            return configured.clone();
        }
        if !self.config.bound.is_unspecified() {
            return self.config.bound.to_string();
        }
        let asked = match self.client.node_address().await {
            Ok(Some(address)) => Some(address),
            // Without the right to ask the agent, our own entry tells the node's address.
            _ => self.address_of_own_entry().await,
        };
        match asked {
            Some(address) => {
                self.state.address = Some(address.clone());
                address
            }
            None => {
                self.state.is_guessed = true;
                "127.0.0.1".to_owned()
            }
        }
    }

    /// Replaces a guessed address once our own entry shows the node's.
    async fn look_up_address(&mut self) {
        if !self.state.is_guessed || !self.state.registered {
            return;
        }
        if let Some(address) = self.address_of_own_entry().await {
            self.state.is_guessed = false;
            if address != "127.0.0.1" {
                self.state.address = Some(address);
                self.lost("the node's address is known now");
            }
        }
    }

    async fn address_of_own_entry(&self) -> Option<String> {
        let contract = self.ours.contract.contract.id.as_str();
        let service = self.client.layout().service(contract);
        let instances = self.client.health(&service, Poll::NOW).await.ok()?.value;
        let id = self.id();
        let own = instances.into_iter().find(|instance| *instance.id == *id)?;
        Some(own.node_address).filter(|address| !address.is_empty())
    }

    /// Tells Consul how the contract stands.
    async fn beat(&mut self) {
        if !self.state.registered || self.state.collided {
            return;
        }
        let status = self.status();
        let note = match status {
            CheckStatus::Passing => "admitted, application well".to_owned(),
            _ => self.standing.borrow().reason.clone(),
        };
        match self
            .client
            .update_check(&self.check_id(), status, &note)
            .await
        {
            Ok(()) => {
                self.state.passing = status == CheckStatus::Passing;
                self.confirmed();
            }
            Err(error) if error.is_unknown_check() => {
                self.lost("the agent no longer knows the check")
            }
            Err(error) => {
                self.troubled(&error, false);
            }
        }
    }

    /// Takes note that Consul has forgotten us; the loop registers again at once.
    fn lost(&mut self, how: &str) {
        if self.state.collided {
            return;
        }
        tracing::warn!(
            id = self.id(),
            how,
            "the registration is gone; registering again"
        );
        self.state.registered = false;
        self.state.hash = None;
        let trouble = Some(how.to_owned());
        self.record.send_modify(|record| {
            record.registered = false;
            record.trouble = trouble;
        });
    }

    /// Holds what the agent has against what we wrote.
    fn compare(&mut self, there: &Registered) {
        let boot = there.meta.get("hermes_boot");
        if boot.is_some_and(|boot| *boot != self.config.boot) {
            let id = self.id();
            // The other's registration is what is watched now, until it goes.
            self.state.hash = Some(there.hash.clone());
            if std::mem::replace(&mut self.state.collided, true) {
                return;
            }
            tracing::error!(
                id,
                "another process has registered under this id; give one of the two another \
                 application.instance. This one registers no more while the other is there"
            );
            let trouble = Some(format!("another process has taken the id {id}"));
            self.record.send_modify(|record| {
                record.registered = false;
                record.trouble = trouble;
            });
            return;
        }
        let address = self
            .state
            .address
            .clone()
            .unwrap_or_else(|| there.address.clone());
        let wanted = self.registration(address, CheckStatus::Critical);
        let same = there.port == wanted.port
            && there.meta == wanted.meta
            && there.tags == wanted.tags
            && there.weight == wanted.weight;
        let same = same || self.state.is_outdated;
        if same {
            self.state.hash = Some(there.hash.clone());
        } else {
            self.lost("somebody has changed the registration");
        }
    }

    /// Looks for our entry where callers look: a token or a sync gone wrong shows only there.
    async fn look_into_catalogue(&mut self) {
        let is_in_flux = !self.state.registered || self.state.is_outdated;
        if is_in_flux || self.state.collided {
            return;
        }
        let contract = self.ours.contract.contract.id.as_str();
        let service = self.client.layout().service(contract);
        let Ok(answer) = self.client.health(&service, Poll::NOW).await else {
            return;
        };
        // A body that somebody has deleted would leave new callers without a contract.
        let kept = match self.publish(true).await {
            Ok(()) => self.index(false).await,
            Err(error) => Err(error),
        };
        match kept {
            Ok(()) => {}
            Err(error) if error.is_permanent() => self.doubt(&error),
            Err(error) => {
                self.troubled(&error, false);
            }
        }
        let id = self.id();
        if !answer.value.iter().any(|instance| *instance.id == *id) {
            self.lost("the catalogue does not list the service");
        }
    }

    fn confirmed(&self) {
        self.record.send_modify(|record| {
            record.registered = true;
            record.trouble.clone_from(&self.state.doubt);
            record.confirmed_at = Some(Timestamp::now());
        });
    }

    /// Notes what is wrong with what is published while the registration stands.
    fn doubt(&mut self, error: &dyn std::error::Error) {
        self.troubled(error, false);
        self.state.doubt = Some(Chain(error).to_string());
    }

    /// Notes an error once per change; hands `permanent` on.
    fn troubled(&self, error: &dyn std::error::Error, permanent: bool) -> bool {
        let text = Chain(error).to_string();
        let registered = self.state.registered;
        self.record.send_if_modified(|record| {
            let changed = record.trouble.as_ref() != Some(&text);
            if changed {
                tracing::warn!(error = text, "Consul's record could not be kept");
            }
            record.registered = registered;
            record.trouble = Some(text);
            changed
        });
        permanent
    }

    /// Takes ourselves out of Consul; callers hear of it while we still serve.
    async fn leave(&mut self) {
        if self.state.collided || !self.state.was_asked_for {
            return;
        }
        let id = self.id();
        match self.client.deregister(&id).await {
            Ok(()) => tracing::info!(id, "deregistered from Consul"),
            Err(error) => tracing::warn!(
                id,
                error = %Chain(&error),
                "not deregistered; Consul drops the service 10 minutes after its check turns"
            ),
        }
        self.record.send_modify(|record| {
            record.registered = false;
            record.trouble = Some("deregistered: the sidecar is leaving".to_owned());
        });
    }
}

/// Completes with what is awaited, and lets it go; at once where there is nothing.
async fn end_of<T>(awaited: &mut Awaited<T>) -> Option<T> {
    let ended = awaited.as_mut()?.await;
    *awaited = None;
    Some(ended)
}

/// Warns of fallbacks that cannot stand in for a contract of ours.
async fn tell_doubts(client: Client, ours: Arc<Compiled>) {
    let contract = &ours.contract;
    for doubt in publication::doubts(&client, contract).await {
        let (contract, fallback) = (contract.id.as_str(), doubt.fallback.as_str());
        tracing::warn!(
            contract,
            fallback,
            why = doubt.why,
            "a fallback may be of no use"
        );
    }
}
