//! What the contracts of this sidecar have in common, and which are served at present.
//!
//! - places stand in the order of the configuration; contracts come, follow each other and go
//!   while calls run, and each call reads one roster from start to end
//! - elsewhere: the workers of one contract (`bearer`), who decides which there are (`posts`)

mod bearer;
mod posts;

pub use bearer::{Bearer, Terms};
pub use posts::{Posts, Wanted, Work, work};

use super::ready::Entry;
use crate::admission::{self, Health, HealthConfig, OwnRoute, Trials};
use crate::config::{self, ContractSource};
use crate::consul::Client;
use crate::contract::Compiled;
use crate::contract::trust::Trust;
use crate::proxy::inbound::{Place, Roster, Rosters, Served, Style};
use crate::task::Timestamp;
use crate::telemetry::metrics::Sidecar as Metrics;
use http::Method;
use semver::Version;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinError;

/// What every contract needs, whichever it is; what can change is watched.
pub struct Means {
    pub admission: watch::Sender<Arc<admission::Config>>,
    /// How the application is asked.
    pub asked: watch::Sender<HealthConfig>,
    /// How long a contract that is served no more is still served to those who have not heard.
    pub grace: watch::Sender<Duration>,
    pub client: Client,
    pub metrics: Arc<Metrics>,
    pub trust: Arc<Trust>,
    pub trials: Arc<Trials>,
    pub health: watch::Receiver<Health>,
    pub instance: String,
}

/// The places of the configuration and what is served at each.
pub struct Serving {
    pub means: Means,
    places: Mutex<Places>,
    /// What requests are routed by.
    rosters: Rosters,
    /// What readiness is read from.
    entries: watch::Sender<Vec<Entry>>,
    /// A bare version in a health reply must be one of these.
    versions: watch::Sender<Vec<(String, Version)>>,
}

/// A place's name for as long as there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number(u64);

#[derive(Default)]
struct Places {
    last: u64,
    all: Vec<Standing>,
}

/// What stands at one place.
struct Standing {
    number: Number,
    /// Its rank in the configuration.
    rank: usize,
    place: Place,
    entry: Entry,
}

impl Serving {
    /// Begins without a place.
    pub fn new(means: Means) -> Self {
        Self {
            means,
            places: Mutex::default(),
            rosters: watch::Sender::new(Roster::default()),
            entries: watch::Sender::new(Vec::new()),
            versions: watch::Sender::new(Vec::new()),
        }
    }

    pub fn roster(&self) -> watch::Receiver<Roster> {
        self.rosters.subscribe()
    }

    pub fn entries(&self) -> watch::Receiver<Vec<Entry>> {
        self.entries.subscribe()
    }

    /// Makes a place whose contract is awaited.
    pub fn open(&self, rank: usize, source: &ContractSource) -> Number {
        let reason: Arc<str> = "it has not been asked yet".into();
        let mut opened = Number(0);
        self.change(|places| {
            places.last += 1;
            opened = Number(places.last);
            places.all.push(Standing {
                number: opened,
                rank,
                place: Place::Awaited {
                    style: style(source),
                    reason: reason.clone(),
                },
                entry: Entry::Awaited(reason),
            });
        });
        opened
    }

    /// Makes a further place beside another, of the same rank.
    pub fn open_beside(&self, number: Number, source: &ContractSource) -> Number {
        let rank = self.look(number, |standing| standing.rank);
        self.open(rank.unwrap_or_default(), source)
    }

    /// Serves a contract at a place, instead of what is there.
    pub fn serve(&self, number: Number, served: Arc<Served>, entry: Entry) {
        self.put(number, Place::Served(served), entry);
    }

    /// Shows why the contract of a place is not there.
    pub fn wait(&self, number: Number, source: &ContractSource, reason: &str) {
        let reason: Arc<str> = reason.into();
        let style = style(source);
        let entry = Entry::Awaited(reason.clone());
        self.put(number, Place::Awaited { style, reason }, entry);
    }

    /// Ranks a place anew.
    pub fn rank(&self, number: Number, rank: usize) {
        self.change(|places| {
            let standing = places.all.iter_mut().find(|s| s.number == number);
            if let Some(standing) = standing {
                standing.rank = rank;
            }
        });
    }

    /// Serves a place's contract only to those who have not heard that it is served no more.
    pub fn leave(&self, number: Number) {
        self.change(|places| {
            let standing = places.all.iter_mut().find(|s| s.number == number);
            if let Some(standing) = standing
                && let Place::Served(served) = &standing.place
            {
                standing.place = Place::Leaving(served.clone());
            }
        });
    }

    /// Serves a place no more.
    pub fn close(&self, number: Number) {
        self.change(|places| places.all.retain(|standing| standing.number != number));
    }

    /// Says whether another place serves a contract with this id.
    pub fn is_taken(&self, id: &str, number: Number) -> bool {
        let places = self.lock();
        let mut others = places.all.iter().filter(|s| s.number != number);
        others.any(|s| matches!(&s.entry, Entry::Taken { id: taken, .. } if taken == id))
    }

    /// Returns the contract that is served at a place.
    pub fn served(&self, number: Number) -> Option<Arc<Served>> {
        let served = self.look(number, |standing| match &standing.place {
            Place::Served(served) | Place::Leaving(served) => Some(served.clone()),
            Place::Awaited { .. } => None,
        });
        served.flatten()
    }

    /// Announces a contract in the metrics, in the name of a team.
    pub fn announce(&self, team: &str, compiled: &Compiled) {
        let contract = &compiled.contract;
        let (version, digest) = announced(compiled);
        let id = contract.id.as_str();
        let metrics = &self.means.metrics;
        metrics.serves(team, id, &version, &digest);
        metrics.contract_taken(id, contract.constraints.timeout, Timestamp::now());
    }

    /// Takes back an announcement.
    pub fn withdraw(&self, team: &str, compiled: &Compiled) {
        let (version, digest) = announced(compiled);
        let id = compiled.contract.id.as_str();
        self.means
            .metrics
            .serves_no_more(team, id, &version, &digest);
    }

    fn put(&self, number: Number, place: Place, entry: Entry) {
        self.change(|places| {
            let standing = places.all.iter_mut().find(|s| s.number == number);
            if let Some(standing) = standing {
                (standing.place, standing.entry) = (place, entry);
            }
        });
    }

    fn look<T>(&self, number: Number, look: impl FnOnce(&Standing) -> T) -> Option<T> {
        let places = self.lock();
        let standing = places.all.iter().find(|s| s.number == number);
        standing.map(look)
    }

    /// Changes the places and shows them to whoever reads them.
    fn change(&self, change: impl FnOnce(&mut Places)) {
        let mut places = self.lock();
        change(&mut places);
        places.all.sort_by_key(|standing| standing.rank);
        let stays = |standing: &&Standing| !matches!(standing.place, Place::Leaving(_));
        let staying = places.all.iter().filter(stays);
        let entries = staying.map(|standing| standing.entry.clone()).collect();
        let roster = Roster::new(places.all.iter().map(|s| s.place.clone()).collect());
        let versions = roster.versions();
        self.rosters.send_replace(roster);
        self.entries.send_replace(entries);
        self.versions.send_if_modified(|present| {
            let changed = *present != versions;
            *present = versions;
            changed
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Places> {
        // Each change is whole in itself.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Takes note of a worker's end; its panic is an incident of its owner's.
pub fn settled(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}
