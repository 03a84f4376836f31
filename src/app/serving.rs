//! What the contracts of this sidecar have in common, and putting one to work.

use super::compose;
use super::ready::Entry;
use crate::admission::{self, Health, Judge, Ours, OwnRoute, Registrar, Standing, Trials};
use crate::config::{self, ContractSource};
use crate::consul::Client;
use crate::contract::Compiled;
use crate::contract::trust::Trust;
use crate::lifecycle::Observer;
use crate::proxy::inbound::{Place, Roster, Rosters, Served, Style};
use crate::task::Timestamp;
use crate::telemetry::metrics::{Admission, Direction, Sidecar as Metrics};
use http::Method;
use semver::Version;
use std::sync::Arc;
use tokio::sync::watch;

/// What every contract needs, whichever it is.
pub struct Parts {
    pub admission: Arc<admission::Config>,
    pub client: Client,
    pub metrics: Arc<Metrics>,
    pub trust: Arc<Trust>,
    pub trials: Arc<Trials>,
    pub health: watch::Receiver<Health>,
    pub instance: String,
    pub sources: Vec<ContractSource>,
}

/// Puts contracts to work, place by place of the configuration.
pub struct Serving {
    pub parts: Parts,
    /// What requests are routed by.
    rosters: Rosters,
    /// What readiness is read from.
    entries: watch::Sender<Vec<Entry>>,
    /// A bare version in a health reply must be one of these.
    versions: watch::Sender<Vec<Version>>,
}

/// The two workers of one contract.
pub struct Workers {
    pub judge: Judge,
    pub registrar: Registrar,
}

impl Serving {
    /// Begins with every contract awaited.
    pub fn new(parts: Parts) -> Self {
        let reason: Arc<str> = "it has not been asked yet".into();
        let awaited = |source: &ContractSource| Place::Awaited {
            style: style(source),
            reason: reason.clone(),
        };
        let entry = |_: &ContractSource| Entry::Awaited(reason.clone());
        let sources = &parts.sources;
        Self {
            rosters: watch::Sender::new(Roster::new(sources.iter().map(awaited).collect())),
            entries: watch::Sender::new(sources.iter().map(entry).collect()),
            versions: watch::Sender::new(Vec::new()),
            parts,
        }
    }

    pub fn roster(&self) -> watch::Receiver<Roster> {
        self.rosters.subscribe()
    }

    pub fn entries(&self) -> watch::Receiver<Vec<Entry>> {
        self.entries.subscribe()
    }

    /// Serves `contract` at one place, instead of what is there; its workers end with `phase`.
    pub fn take(&self, at: usize, contract: Arc<Compiled>, phase: &Observer) -> Workers {
        let source = &self.parts.sources[at];
        let style = style(source);
        let route = style.route(contract.contract.id.as_str());
        let ours = Ours {
            contract,
            route,
            own_route: own_route(&style),
            derive_probe: source.derive_probe,
        };
        let (standing, reader) = watch::channel(Standing::starting());
        let (registrar, record) = Registrar::new(
            self.parts.admission.clone(),
            ours.clone(),
            self.parts.client.clone(),
            self.parts.metrics.clone(),
            reader.clone(),
            phase.clone(),
        );
        self.announce(&ours.contract);
        let id = ours.contract.contract.id.to_string();
        let served = Served::new(
            ours.contract.clone(),
            style,
            (compose::mode(source.input), compose::mode(source.output)),
            source.allow.clone(),
            format!(
                "{}-{}",
                self.parts.client.layout().service(&id),
                self.parts.instance
            ),
            reader.clone(),
            self.parts.metrics.contract(Direction::Inbound, &id),
        );
        self.put(at, Place::Served(Arc::new(served)));
        self.entries.send_modify(|entries| {
            entries[at] = Entry::Taken {
                id,
                standing: reader,
                record,
            };
        });
        let judge = Judge {
            config: self.parts.admission.clone(),
            trust: self.parts.trust.clone(),
            trial: self.parts.trials.of(&ours),
            ours,
            versions: self.versions.subscribe(),
            metrics: self.parts.metrics.clone(),
            health: self.parts.health.clone(),
            lifecycle: phase.clone(),
            standing,
        };
        Workers { judge, registrar }
    }

    /// Shows why the contract of a place is not there.
    pub fn wait(&self, at: usize, reason: &str) {
        let reason: Arc<str> = reason.into();
        let style = style(&self.parts.sources[at]);
        self.entries
            .send_modify(|entries| entries[at] = Entry::Awaited(reason.clone()));
        self.put(at, Place::Awaited { style, reason });
    }

    /// Says whether another place serves a contract with this id.
    pub fn is_taken(&self, id: &str, at: usize) -> bool {
        let entries = self.entries.borrow();
        let mut others = entries.iter().enumerate().filter(|(place, _)| *place != at);
        others.any(|(_, entry)| matches!(entry, Entry::Taken { id: taken, .. } if taken == id))
    }

    /// Says whether callers are led to the contract of a place.
    pub fn is_admitted(&self, at: usize) -> bool {
        match &self.entries.borrow()[at] {
            Entry::Awaited(_) => false,
            Entry::Taken { standing, .. } => standing.borrow().state == Admission::Admitted,
        }
    }

    fn put(&self, at: usize, place: Place) {
        self.rosters
            .send_modify(|roster| *roster = roster.with(at, place));
        self.versions.send_if_modified(|versions| {
            let now = self.rosters.borrow().versions();
            let changed = *versions != now;
            *versions = now;
            changed
        });
    }

    /// Takes back the announcement of a contract that another has replaced.
    pub fn withdrawn(&self, compiled: &Compiled) {
        let (version, digest) = announced(compiled);
        let id = compiled.contract.id.as_str();
        self.parts
            .metrics
            .serves_no_more(&self.parts.admission.team, id, &version, &digest);
    }

    fn announce(&self, compiled: &Compiled) {
        let contract = &compiled.contract;
        let (version, digest) = announced(compiled);
        let id = contract.id.as_str();
        self.parts
            .metrics
            .serves(&self.parts.admission.team, id, &version, &digest);
        let timeout = contract.constraints.timeout;
        self.parts
            .metrics
            .contract_taken(id, timeout, Timestamp::now());
    }
}

/// The version and the digest's digits, as metrics show them.
fn announced(compiled: &Compiled) -> (String, String) {
    let version = compiled.contract.version.to_string();
    (version, compiled.digest.digits())
}

/// Where the application itself takes calls, and in which form.
fn own_route(style: &Style) -> OwnRoute {
    OwnRoute {
        method: match style {
            Style::Native { method, .. } => method.clone(),
            Style::Envelope { .. } => Method::POST,
        },
        path: style.path().to_owned(),
        is_wrapped: matches!(style, Style::Envelope { .. }),
    }
}

fn style(source: &ContractSource) -> Style {
    let path = source.path.clone();
    match source.style {
        config::Style::Envelope => Style::Envelope { path },
        config::Style::Native => {
            let method = Method::from_bytes(source.method.as_str().as_bytes());
            Style::Native {
                method: method.unwrap_or(Method::POST),
                path,
            }
        }
    }
}
