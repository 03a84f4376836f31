//! The contracts of this sidecar in the order they were configured, also those still awaited.
//!
//! An application may hand out its contract later than its sidecar starts, or another one after
//! it was renewed. A request reads one roster from start to end.

use super::described;
use super::served::{AGENTS, Served, Style};
use crate::context::AgentName;
use crate::proxy::respond::Trouble;
use crate::proxy::target;
use crate::task::Problem;
use bytes::Bytes;
use semver::Version;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// One contract of the configuration.
#[derive(Debug, Clone)]
pub enum Place {
    Served(Arc<Served>),
    /// Served to those who have not heard that it is served no more.
    Leaving(Arc<Served>),
    /// The application has not handed it out yet.
    Awaited {
        style: Style,
        reason: Arc<str>,
    },
}

/// All contracts, as one request sees them, and the OpenAPI document of them once it was asked for.
#[derive(Debug, Clone, Default)]
pub struct Roster(Arc<[Place]>, Arc<OnceLock<Bytes>>);

/// Changes the roster, place by place.
pub type Rosters = watch::Sender<Roster>;

impl Roster {
    /// Begins with these.
    pub fn new(places: Vec<Place>) -> Self {
        Self(places.into(), Arc::default())
    }

    /// Lists the contracts that are there and stay, with their versions.
    pub fn versions(&self) -> Vec<(String, Version)> {
        let version = |place: &Place| match place {
            Place::Served(served) => {
                let contract = &served.contract.contract;
                Some((contract.id.to_string(), contract.version.clone()))
            }
            Place::Leaving(_) | Place::Awaited { .. } => None,
        };
        self.0.iter().filter_map(version).collect()
    }

    /// Lists the contracts that are there.
    pub(super) fn served(&self) -> impl Iterator<Item = &Arc<Served>> + Clone {
        self.0.iter().filter_map(|place| match place {
            Place::Served(served) | Place::Leaving(served) => Some(served),
            Place::Awaited { .. } => None,
        })
    }

    /// Lists the places that stay.
    fn staying(&self) -> impl Iterator<Item = &Place> {
        let stays = |place: &&Place| !matches!(place, Place::Leaving(_));
        self.0.iter().filter(stays)
    }

    /// Describes the contracts that are there; written on first use.
    pub(super) fn document(&self, application: &str) -> Bytes {
        let written = || described::describe(application, self.served().map(|served| &**served));
        self.1.get_or_init(written).clone()
    }

    pub(super) fn find(&self, id: &str) -> Option<&Arc<Served>> {
        self.served().find(|served| served.id() == id)
    }

    /// Finds the contract that is meant where none need be named: there is only one.
    pub(super) fn only(&self) -> Option<&Arc<Served>> {
        let mut staying = self.staying();
        match (staying.next(), staying.next()) {
            (Some(Place::Served(served)), None) => Some(served),
            _ => None,
        }
    }

    /// Finds the contract a wrapper is for: the one it names, else the only one.
    pub(super) fn meant(&self, named: Option<&AgentName>) -> Result<&Arc<Served>, Trouble> {
        match named {
            Some(agent) => self.find(&agent.id).ok_or_else(|| self.unknown()),
            None => self.only().ok_or_else(|| {
                let mut staying = self.staying();
                if let (Some(Place::Awaited { .. }), None) = (staying.next(), staying.next()) {
                    return self.unknown();
                }
                let detail = format!("name the agent, one of: {}", self.ids());
                Trouble::new(Problem::BadRequest, detail)
            }),
        }
    }

    pub(super) fn ids(&self) -> String {
        let staying = self.staying().filter_map(|place| match place {
            Place::Served(served) => Some(served.id()),
            Place::Leaving(_) | Place::Awaited { .. } => None,
        });
        let ids: Vec<&str> = staying.collect();
        ids.join(", ")
    }

    /// Refuses an agent that is not here; while a contract is awaited it may be that one.
    pub(super) fn unknown(&self) -> Trouble {
        self.not_yet().unwrap_or_else(|| {
            let detail = format!("served here: {}", self.ids());
            Trouble::new(Problem::UnknownAgent, detail).executed(false)
        })
    }

    /// Says why a contract is not here yet, if one is awaited.
    pub(super) fn awaits(&self) -> Option<&str> {
        self.0.iter().find_map(|place| match place {
            Place::Awaited { reason, .. } => Some(&**reason),
            Place::Served(_) | Place::Leaving(_) => None,
        })
    }

    /// Refuses a call for the time being, if a contract is awaited.
    pub(super) fn not_yet(&self) -> Option<Trouble> {
        self.awaits().map(not_yet)
    }

    /// Says whether nothing can be called so far.
    pub(super) fn is_waiting(&self) -> bool {
        self.served().next().is_none() && self.awaits().is_some()
    }

    /// Refuses a path where an awaited contract will be called.
    pub(super) fn not_yet_at(&self, path: &str) -> Option<Trouble> {
        self.0.iter().find_map(|place| match place {
            Place::Awaited { style, reason } => {
                let here = match style {
                    Style::Native { path: native, .. } => native == path,
                    Style::Envelope { .. } => path.starts_with(AGENTS),
                };
                here.then(|| not_yet(reason))
            }
            Place::Served(_) | Place::Leaving(_) => None,
        })
    }

    /// Says whether a path might be read as one where the application takes contract calls.
    pub(super) fn claims(&self, reduced: &str) -> bool {
        self.0.iter().any(|place| match place {
            Place::Served(served) | Place::Leaving(served) => served.is_meant_by(reduced),
            Place::Awaited { style, .. } => target::reduced(style.path()) == reduced,
        })
    }
}

fn not_yet(reason: &str) -> Trouble {
    let detail = format!("the application has not handed out its contract: {reason}");
    let trouble = Trouble::new(Problem::NotReady, detail).executed(false);
    trouble.retry_after(Duration::from_secs(1))
}
