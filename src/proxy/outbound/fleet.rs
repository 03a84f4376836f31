//! What the calls themselves have told of a contract's instances: who fails, who has much to do.
//!
//! - one fleet per contract, shared by all calls; a lock is held for a choice, never for a wait
//! - instances that have left Consul are forgotten with the next choice
//! - elsewhere: the rules (`route`), what an attempt says of its instance (`place`)

use super::in_flight::InFlight;
use super::place::Place;
use crate::contract::watch::{Agent, Directory, Offer, View};
use crate::route::{self, Call, Ejection, EjectionConfig, Ejector, Key, Load, Reason, Standing};
use crate::task::Timestamp;
use crate::telemetry::metrics::{self, Sidecar};
use serde::{Serialize, Serializer};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::time::Instant;

/// The fleets of the contracts in use.
pub struct Fleets {
    config: Mutex<EjectionConfig>,
    metrics: Arc<Sidecar>,
    fleets: Mutex<HashMap<Arc<str>, Arc<Fleet>>>,
}

/// The instances of one contract.
pub struct Fleet {
    pub(super) contract: Arc<str>,
    pub(super) metrics: Arc<Sidecar>,
    state: Mutex<State>,
}

struct State {
    ejector: Ejector,
    /// Those that were chosen since they came.
    in_flight: HashMap<Arc<str>, Arc<InFlight>>,
    /// The view that both were last cleared up by.
    view: Weak<View>,
}

/// The instances at one moment; nobody else chooses meanwhile.
pub struct Standings<'f> {
    fleet: &'f Arc<Fleet>,
    state: MutexGuard<'f, State>,
    now: Instant,
    /// Nobody is out, or so many that it counts for nothing.
    is_free: bool,
}

/// An ejection, for people.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ejected {
    /// From then on a trial may let the instance in.
    pub until: Timestamp,
    #[serde(serialize_with = "label")]
    pub reason: Reason,
    /// Too many are ejected, so that it keeps no call away.
    pub ignored: bool,
}

/// What calls have told of one instance, for people.
#[derive(Debug, Clone, Serialize)]
pub struct Seen {
    #[serde(skip)]
    pub instance: Arc<str>,
    pub in_flight: usize,
    pub ejected: Option<Ejected>,
}

impl fmt::Display for Ejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ejected until {}: {}", self.until, self.reason)
    }
}

fn label<S: Serializer>(reason: &Reason, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(reason.as_str())
}

impl Fleets {
    pub fn new(config: EjectionConfig, metrics: Arc<Sidecar>) -> Self {
        Self {
            config: Mutex::new(config),
            metrics,
            fleets: Mutex::default(),
        }
    }

    /// Returns a contract's fleet; with the first call of another contract those are let go that
    /// nobody follows any more.
    pub fn of(&self, found: &Agent, directory: &Directory) -> Arc<Fleet> {
        let name = found.id.as_str();
        let known = self.lock().get(name).cloned();
        if let Some(known) = known {
            return known;
        }
        let followed = directory.agents();
        let mut fleets = self.lock();
        fleets.retain(|name, _| followed.iter().any(|agent| agent.id.as_str() == &**name));
        let contract: Arc<str> = Arc::from(name);
        let config = self.config().clone();
        let fresh = || Fleet {
            contract: contract.clone(),
            metrics: self.metrics.clone(),
            state: Mutex::new(State {
                ejector: Ejector::new(config),
                in_flight: HashMap::new(),
                view: Weak::new(),
            }),
        };
        let fleet = fleets.entry(contract.clone());
        fleet.or_insert_with(|| Arc::new(fresh())).clone()
    }

    /// Ejects by another configuration from now on; who is out stays out for its time.
    pub fn follow(&self, config: &EjectionConfig) {
        *self.config() = config.clone();
        for fleet in self.lock().values() {
            fleet.lock().ejector.follow(config.clone());
        }
    }

    /// Finds a contract's fleet, for those who look on.
    pub fn find(&self, contract: &str) -> Option<Arc<Fleet>> {
        self.lock().get(contract).cloned()
    }

    fn config(&self) -> MutexGuard<'_, EjectionConfig> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Fleet>>> {
        self.fleets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fleet {
    /// Looks at the instances of `view`.
    pub fn look(self: &Arc<Self>, view: &Arc<View>, now: Instant) -> Standings<'_> {
        let mut state = self.lock();
        state.clear_up(view);
        let ejector = &state.ejector;
        let is_free = ejector.is_idle() || ejector.is_overruled(view.offers.len(), now);
        Standings {
            fleet: self,
            state,
            now,
            is_free,
        }
    }

    /// Counts a call that the instance served.
    pub(super) fn served(&self, instance: &str, call: Call) {
        let is_back = self
            .lock()
            .ejector
            .succeeded(instance, call, Instant::now());
        if is_back {
            let contract = &*self.contract;
            tracing::info!(contract, instance, "an ejected instance serves again");
        }
    }

    /// Counts a call that speaks against the instance.
    pub(super) fn failed(&self, instance: &Arc<str>, call: Call) {
        let now = Instant::now();
        let mut state = self.lock();
        let Some(ejection) = state.ejector.failed(instance, call, now) else {
            return;
        };
        let out = state.ejector.out(now);
        let all = state.view.upgrade().map_or(0, |view| view.offers.len());
        let is_overruled = state.ejector.is_overruled(all, now);
        drop(state);
        self.metrics.ejected(match ejection.reason {
            Reason::Consecutive => metrics::Ejected::Consecutive,
            Reason::SuccessRate => metrics::Ejected::SuccessRate,
            Reason::Trial => metrics::Ejected::Trial,
        });
        let for_s = (ejection.until - ejection.since).as_secs_f64();
        let (contract, instance, reason) = (&*self.contract, &**instance, ejection.reason);
        tracing::warn!(contract, instance, %reason, for_s, out, all, "an instance is ejected");
        if is_overruled {
            tracing::warn!(
                contract,
                out,
                all,
                "nobody is left out: more instances fail than ejection.max_percent allows"
            );
        }
    }

    /// Takes back a trial that said nothing.
    pub(super) fn untried(&self, instance: &str) {
        self.lock().ejector.untried(instance);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Forgets who is not in the view.
    fn clear_up(&mut self, view: &Arc<View>) {
        // A view that was replaced keeps its place in memory while it is remembered here, so the
        // same address means the same view.
        if std::ptr::eq(self.view.as_ptr(), Arc::as_ptr(view)) {
            return;
        }
        self.view = Arc::downgrade(view);
        let is_there = |id: &str| view.offers.iter().any(|offer| *offer.instance.id == *id);
        self.ejector.retain(is_there);
        self.in_flight.retain(|id, _| is_there(id));
    }
}

impl Standings<'_> {
    /// Says whether an instance is left out of the choice.
    pub fn is_out(&self, offer: &Offer) -> bool {
        !self.is_free && self.standing(offer) == Standing::Out
    }

    /// Says whether an instance is out or on trial, also where that keeps it from nothing.
    pub fn is_doubted(&self, offer: &Offer) -> bool {
        self.standing(offer) != Standing::In
    }

    /// Tells of an instance's ejection, for those who look on.
    pub fn ejected(&self, offer: &Offer) -> Option<Ejected> {
        let Ejection { until, reason, .. } =
            self.state.ejector.ejection(&offer.instance.id, self.now)?;
        let left = until.saturating_duration_since(self.now);
        Some(Ejected {
            until: Timestamp::now().plus(left),
            reason,
            ignored: self.is_free,
        })
    }

    /// Tells what is known of an instance, for those who look on.
    pub fn seen(&self, offer: &Offer) -> Seen {
        Seen {
            instance: offer.instance.id.clone(),
            in_flight: self.load(offer).in_flight,
            ejected: self.ejected(offer),
        }
    }

    /// Returns what an instance has to do.
    pub fn load(&self, offer: &Offer) -> Load {
        let in_flight = self.state.in_flight.get(&*offer.instance.id);
        let most = offer.contract.contract.constraints.max_concurrent;
        Load {
            in_flight: in_flight.map_or(0, |calls| calls.at(self.now)),
            max_concurrent: most.get() as usize,
        }
    }

    /// Picks the first in rank that is not burdened; says whether the first was passed over.
    pub fn pick(&self, key: Key, among: &[&Offer]) -> Option<(usize, bool)> {
        let weighed = || among.iter().map(|offer| super::choice::weighed(offer));
        let best = route::best(key, weighed())?;
        // The usual case, without a look at the others.
        if self.load(among[best]).is_light() {
            return Some((best, false));
        }
        let loads: Vec<Load> = among.iter().map(|offer| self.load(offer)).collect();
        let picked = route::first_free(&route::ranking(key, weighed()), &loads)?;
        Some((picked, picked != best))
    }

    /// Takes a place for a call, and with it the trial where one is due.
    pub fn take(mut self, offer: &Offer) -> Place {
        let id = &offer.instance.id;
        let is_trial = !self.is_free && self.state.ejector.take_trial(id, self.now);
        let in_flight = match self.state.in_flight.get(id) {
            Some(calls) => calls.clone(),
            None => {
                let calls = Arc::<InFlight>::default();
                self.state.in_flight.insert(id.clone(), calls.clone());
                calls
            }
        };
        let call = Call {
            began: self.now,
            is_trial,
        };
        Place::take(self.fleet.clone(), id.clone(), in_flight, call)
    }

    fn standing(&self, offer: &Offer) -> Standing {
        self.state.ejector.standing(&offer.instance.id, self.now)
    }
}
