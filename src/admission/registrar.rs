//! Keeping one contract registered in Consul, with a check that tells the truth.
//!
//! - registered under a stable id; lost registrations come back within two beats
//! - the beat goes on whatever Consul answers; nothing ends this worker but the process
//! - another process under our id (its boot differs after we registered) ends our writing
//! - on leaving, only what is still ours is deregistered

use super::health::{Health, Versions};
use super::publication;
use super::standing::{BEAT, DEREGISTER_AFTER, Standing, TTL};
use super::{Config, Ours};
use crate::backoff::Backoff;
use crate::consul::{Check, CheckKind, CheckStatus, Client, Poll, Registered, Registration};
use crate::lifecycle::{Observer, Phase};
use crate::task::Timestamp;
use crate::telemetry::log::Chain;
use crate::telemetry::metrics::{Admission, AdmissionStep, Sidecar};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

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
    ours: Ours,
    /// All versions this sidecar serves: a bare health version must be one of them.
    versions: Vec<semver::Version>,
    client: Client,
    metrics: Arc<Sidecar>,
    health: watch::Receiver<Health>,
    lifecycle: Observer,
    standing: watch::Sender<Standing>,
    record: watch::Sender<Record>,
    state: State,
}

/// What the worker remembers between events.
#[derive(Default)]
struct State {
    registered: bool,
    /// It was registered at least once: a further time is a repair.
    was_registered: bool,
    /// The check's last known status.
    passing: bool,
    collided: bool,
    address: Option<String>,
    hash: Option<String>,
}

/// What woke the worker.
enum Event {
    Beat,
    Health,
    Watched(Option<Registered>),
    WatchFailed,
    Catalogue,
    Leaving,
}

impl Registrar {
    /// Makes the worker and the values it keeps up to date.
    pub fn new(
        config: Arc<Config>,
        ours: Ours,
        versions: Vec<semver::Version>,
        client: Client,
        metrics: Arc<Sidecar>,
        health: watch::Receiver<Health>,
        lifecycle: Observer,
    ) -> (Self, super::Reader, watch::Receiver<Record>) {
        let (standing, reader) = watch::channel(Standing::starting());
        let (record, records) = watch::channel(Record::default());
        metrics.admission(Admission::Starting);
        let registrar = Self {
            config,
            ours,
            versions,
            client,
            metrics,
            health,
            lifecycle,
            standing,
            record,
            state: State::default(),
        };
        (registrar, reader, records)
    }

    /// Runs until the process leaves, then deregisters.
    pub async fn run(mut self) {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut catalogue = tokio::time::interval_at(Instant::now() + CATALOGUE, CATALOGUE);
        let mut retry = Backoff::new(Duration::from_millis(500), BEAT);
        let mut again = Instant::now();
        // A poll given up keeps its slot in the agent until its wait ends, so one poll runs out
        // before the next is sent, whatever else happens meanwhile.
        let _slot = self.client.budget().take();
        let mut watching = Box::pin(self.watch());
        self.judge();
        loop {
            let adrift = !self.state.registered && !self.state.collided;
            if adrift && Instant::now() >= again {
                match self.establish().await {
                    Ok(()) => retry.reset(),
                    Err(permanent) => {
                        let wait = retry.next_wait().max(Duration::from_millis(200));
                        // What only a person can change is asked for slowly.
                        again = Instant::now() + if permanent { CATALOGUE / 2 } else { wait };
                    }
                }
            }
            let adrift = !self.state.registered && !self.state.collided;
            let event = tokio::select! {
                () = Self::leaving(self.lifecycle.clone()) => Event::Leaving,
                changed = self.health.changed() => match changed {
                    Ok(()) => Event::Health,
                    Err(_prober_is_gone) => Event::Leaving,
                },
                () = tokio::time::sleep_until(again), if adrift => continue,
                _ = beat.tick() => Event::Beat,
                _ = catalogue.tick() => Event::Catalogue,
                watched = watching.as_mut(), if self.state.registered => watched,
            };
            if matches!(event, Event::Leaving) {
                self.leave().await;
                return;
            }
            let watched = matches!(event, Event::Watched(_) | Event::WatchFailed);
            self.react(event).await;
            if watched {
                watching.set(self.watch());
            }
        }
    }

    async fn leaving(mut lifecycle: Observer) {
        lifecycle.reached(Phase::Leaving).await;
    }

    /// Watches our registration at the local agent; needs no leader and wakes at once.
    fn watch(&self) -> impl Future<Output = Event> + use<> {
        let client = self.client.clone();
        let (id, hash) = (self.id(), self.state.hash.clone());
        async move {
            // A poll that does not block (no hash yet) must not become a tight loop.
            match client.service_by_id(&id, hash.as_deref(), HASH_WAIT).await {
                Ok(watched) => Event::Watched(watched),
                Err(_logged_by_the_beat) => {
                    tokio::time::sleep(WATCH_PAUSE).await;
                    Event::WatchFailed
                }
            }
        }
    }

    async fn react(&mut self, event: Event) {
        match event {
            Event::Beat => self.beat().await,
            Event::Health => {
                self.judge();
                self.beat().await;
            }
            Event::Watched(None) => self.lost("the agent no longer knows the service"),
            Event::Watched(Some(there)) => self.compare(&there),
            Event::Catalogue => self.look_into_catalogue().await,
            Event::WatchFailed | Event::Leaving => {}
        }
    }

    fn id(&self) -> String {
        let name = self
            .client
            .layout()
            .service(self.ours.contract.contract.id.as_str());
        format!("{name}-{}", self.config.instance)
    }

    fn check_id(&self) -> String {
        format!("{}:ttl", self.id())
    }

    /// Judges the application's health into this contract's standing.
    fn judge(&mut self) {
        let health = self.health.borrow_and_update().clone();
        let before = self.standing.borrow().state;
        let standing = match &health {
            Health::Unknown => Standing::starting(),
            Health::Ill { reason } => self.not_well(before, reason.clone()),
            Health::Well(versions) => match self.version_trouble(versions) {
                None => Standing {
                    state: Admission::Admitted,
                    reason: String::new(),
                },
                Some(reason) => self.not_well(before, reason),
            },
        };
        if !matches!(health, Health::Unknown) {
            let passed = standing.state == Admission::Admitted;
            self.metrics.admission_step(AdmissionStep::Health, passed);
        }
        self.show_standing(standing);
    }

    fn not_well(&self, before: Admission, reason: String) -> Standing {
        let was_admitted = matches!(before, Admission::Admitted | Admission::Unhealthy);
        Standing {
            state: if was_admitted {
                Admission::Unhealthy
            } else {
                Admission::Admitting
            },
            reason,
        }
    }

    fn version_trouble(&self, versions: &Versions) -> Option<String> {
        let contract = &self.ours.contract.contract;
        let id = contract.id.as_str();
        if self.config.require_version && !versions.speaks_of(id) {
            return Some(
                "the health reply names no version, which require_version asks for".to_owned(),
            );
        }
        let said = versions.conflict(id, &contract.version, &self.versions)?;
        let version = &contract.version;
        Some(format!(
            "the application says it runs {said}, the contract is {version}"
        ))
    }

    fn show_standing(&self, standing: Standing) {
        self.metrics.admission(standing.state);
        let contract = self.ours.contract.contract.id.as_str();
        self.standing.send_if_modified(|present| {
            let changed = *present != standing;
            if present.state != standing.state {
                let (state, reason) = (standing.state.as_str(), standing.reason.as_str());
                tracing::info!(contract, state, reason, "admission");
            }
            *present = standing;
            changed
        });
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
        let by = format!("{}/{}", self.config.application, self.config.instance);
        if let Err(error) = publication::body_and_version(&self.client, &self.ours, &by).await {
            return Err(self.troubled(&error, error.is_permanent()));
        }
        if let Err(error) = self.register().await {
            let denied = error.kind() == crate::consul::ErrorKind::Denied;
            return Err(self.troubled(&error, denied));
        }
        let indexed = publication::index(&self.client, &self.ours, &self.config.team).await;
        if let Err(error) = indexed {
            return Err(self.troubled(&error, error.is_permanent()));
        }
        Ok(())
    }

    async fn register(&mut self) -> Result<(), crate::consul::Error> {
        let address = self.address().await;
        let registration = self.registration(address);
        self.client.register(&registration).await?;
        let again = std::mem::replace(&mut self.state.was_registered, true);
        if again {
            self.metrics.reregistered();
        }
        let id = registration.id;
        tracing::info!(id, again, "registered in Consul");
        self.state.registered = true;
        self.state.hash = None;
        self.confirmed();
        self.beat().await;
        Ok(())
    }

    fn registration(&self, address: String) -> Registration {
        let contract = &self.ours.contract.contract;
        let mut tags = vec!["hermes".to_owned()];
        if !self.config.team.is_empty() {
            tags.push(format!("team-{}", self.config.team));
        }
        for tag in contract.tags.iter().chain(&self.config.tags) {
            if !tags.contains(tag) {
                tags.push(tag.clone());
            }
        }
        let status = if self.state.was_registered && self.state.passing {
            CheckStatus::Passing
        } else {
            CheckStatus::Critical
        };
        let checks = self.checks(status, &address);
        Registration {
            id: self.id(),
            name: self.client.layout().service(contract.id.as_str()),
            address,
            port: self.config.advertise_port,
            tags,
            weight: self.config.weight,
            meta: self.meta(),
            checks,
        }
    }

    fn meta(&self) -> BTreeMap<String, String> {
        let contract = &self.ours.contract.contract;
        let config = &self.config;
        let limit = contract.constraints.max_concurrent.to_string();
        [
            ("hermes_version", contract.version.to_string()),
            ("hermes_digest", self.ours.contract.digest.to_string()),
            ("hermes_route", self.ours.route.clone()),
            ("hermes_app", config.application.clone()),
            ("hermes_region", config.region.clone()),
            ("hermes_team", config.team.clone()),
            ("hermes_max_concurrent", limit),
            ("hermes_proto", "http".to_owned()),
            ("hermes_boot", config.boot.clone()),
            ("hermes_admin", config.admin.clone()),
            ("hermes_kid", String::new()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }

    fn checks(&self, status: CheckStatus, host: &str) -> Vec<Check> {
        let contract = self.ours.contract.contract.id.as_str();
        let mut checks = vec![Check {
            id: self.check_id(),
            name: format!("{contract} admitted and well"),
            kind: CheckKind::Ttl(TTL),
            status,
            deregister_after: Some(DEREGISTER_AFTER),
        }];
        if self.config.http_check {
            let host = match host.contains(':') {
                true => format!("[{host}]"),
                false => host.to_owned(),
            };
            let port = self.config.advertise_port;
            checks.push(Check {
                id: format!("{}:http", self.id()),
                name: format!("{contract} heartbeat"),
                kind: CheckKind::Http {
                    url: format!("http://{host}:{port}/hermes/heartbeat?agent={contract}"),
                    interval: Duration::from_secs(10),
                    timeout: Duration::from_secs(5),
                },
                status,
                deregister_after: Some(DEREGISTER_AFTER),
            });
        }
        checks
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
            None => "127.0.0.1".to_owned(),
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
            self.state.collided = true;
            let id = self.id();
            tracing::error!(
                id,
                "another process has registered under this id; give one of the two another \
                 application.instance. This one registers no more"
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
        let wanted = self.registration(address);
        let same = there.port == wanted.port
            && there.meta == wanted.meta
            && there.tags == wanted.tags
            && there.weight == wanted.weight;
        if same {
            self.state.hash = Some(there.hash.clone());
        } else {
            self.lost("somebody has changed the registration");
        }
    }

    /// Looks for our entry where callers look: a token or a sync gone wrong shows only there.
    async fn look_into_catalogue(&mut self) {
        if !self.state.registered || self.state.collided {
            return;
        }
        let contract = self.ours.contract.contract.id.as_str();
        let service = self.client.layout().service(contract);
        let Ok(answer) = self.client.health(&service, Poll::NOW).await else {
            return;
        };
        let id = self.id();
        if !answer.value.iter().any(|instance| *instance.id == *id) {
            self.lost("the catalogue does not list the service");
        }
    }

    fn confirmed(&self) {
        self.record.send_modify(|record| {
            record.registered = true;
            record.trouble = None;
            record.confirmed_at = Some(Timestamp::now());
        });
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
        // What was never admitted took no calls and shall take none now.
        if self.standing.borrow().takes_calls() {
            self.show_standing(Standing {
                state: Admission::Draining,
                reason: "the sidecar is leaving".to_owned(),
            });
        }
        if self.state.collided || !self.state.was_registered {
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
