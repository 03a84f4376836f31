//! Whether the sidecar does its work, condition by condition.

use crate::admin::{Check, Step};
use crate::admission::{self, Health, Reader, Record};
use crate::contract::watch::Directory;
use crate::lifecycle::{Observer, Phase};
use crate::spool::Spool;
use crate::telemetry::metrics::{Admission, AdmissionStep};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// What readiness is read from.
pub struct Readiness {
    pub lifecycle: Observer,
    pub spool: Spool,
    pub directory: Arc<Directory>,
    /// Consul has answered at least once.
    pub consul_answered: Arc<AtomicBool>,
    /// Nothing where the application only calls others.
    pub health: Option<watch::Receiver<Health>>,
    /// One per contract, in the order of the configuration.
    pub contracts: watch::Receiver<Vec<Entry>>,
}

/// How one contract of the configuration stands.
#[derive(Debug, Clone)]
pub enum Entry {
    /// The application has not handed it out, for this reason.
    Awaited(Arc<str>),
    Taken {
        id: String,
        standing: Reader,
        /// Consul's record of it.
        record: watch::Receiver<Record>,
        /// The version that is judged to take over.
        next: Option<Next>,
    },
}

/// A version of a contract that may follow the one served.
#[derive(Debug, Clone)]
pub struct Next {
    pub version: String,
    pub standing: Reader,
}

impl Readiness {
    /// Lists every condition; all must hold.
    pub fn checks(&self) -> Vec<Check> {
        vec![
            holds("config"),
            self.consul(),
            self.contract(),
            self.admission(),
            self.upstream(),
            self.store(),
        ]
    }

    /// Says whether outbound calls can be made: known targets stay callable without Consul.
    pub fn outbound(&self) -> Check {
        let up = self.lifecycle.phase() >= Phase::Serving;
        let answered = self.consul_answered.load(Ordering::Relaxed);
        if up && (answered || self.directory.knows_anything()) {
            return holds("outbound");
        }
        fails(
            "outbound",
            "Consul has not answered yet and nothing is known from before",
        )
    }

    /// Lists the states of our contracts, in the order of the configuration.
    pub fn states(&self) -> Vec<Admission> {
        let state = |entry: &Entry| match entry {
            Entry::Awaited(_) => Admission::Starting,
            Entry::Taken { standing, .. } => standing.borrow().state,
        };
        self.contracts.borrow().iter().map(state).collect()
    }

    /// Shows each contract of ours and how it stands.
    pub fn contracts(&self) -> Value {
        self.contracts.borrow().iter().map(shown).collect()
    }

    fn consul(&self) -> Check {
        for entry in &*self.contracts.borrow() {
            let Entry::Taken { id, record, .. } = entry else {
                continue;
            };
            let record = record.borrow();
            if !record.registered {
                let trouble = record.trouble.as_deref().unwrap_or("not registered yet");
                return fails("consul", format!("{id}: {trouble}"));
            }
        }
        if !self.consul_answered.load(Ordering::Relaxed) {
            return fails("consul", "Consul has not answered yet");
        }
        holds("consul")
    }

    fn contract(&self) -> Check {
        // Those of files were read and compiled before anything was served.
        for entry in &*self.contracts.borrow() {
            if let Entry::Awaited(reason) = entry {
                let detail = format!("the application has not handed out its contract: {reason}");
                return fails("contract", detail);
            }
        }
        holds("contract")
    }

    fn admission(&self) -> Check {
        let entries = self.contracts.borrow();
        let reasons: Vec<String> = match self.lifecycle.phase() >= Phase::Leaving {
            true => vec!["the sidecar is leaving".to_owned()],
            false => entries.iter().filter_map(not_admitted).collect(),
        };
        Check {
            check: "admission",
            ok: reasons.is_empty(),
            detail: reasons.join("; "),
            steps: entries.iter().flat_map(steps).collect(),
        }
    }

    fn upstream(&self) -> Check {
        match self.health.as_ref().map(|health| health.borrow().clone()) {
            Some(Health::Ill { reason }) => fails("upstream", reason),
            Some(Health::Unknown) => fails("upstream", "the application has not been asked yet"),
            Some(Health::Well { .. }) | None => holds("upstream"),
        }
    }

    fn store(&self) -> Check {
        if self.spool.is_healthy() {
            return holds("store");
        }
        fails(
            "store",
            "the spool is full, its file is gone or its last write failed; calls go on all the same",
        )
    }
}

/// Says why a contract is not admitted, if it is not.
fn not_admitted(entry: &Entry) -> Option<String> {
    let Entry::Taken { id, standing, .. } = entry else {
        return Some("a contract is awaited".to_owned());
    };
    let standing = standing.borrow();
    let state = standing.state.as_str();
    let reason = &standing.reason;
    (standing.state != Admission::Admitted).then(|| format!("{id} is {state}: {reason}"))
}

fn steps(entry: &Entry) -> Vec<Step> {
    let Entry::Taken { id, standing, .. } = entry else {
        return Vec::new();
    };
    let standing = standing.borrow();
    let step = |(step, stands): (AdmissionStep, &admission::Step)| Step {
        contract: id.clone(),
        step: step.as_str(),
        result: stands.result.as_str(),
        detail: stands.detail.clone(),
    };
    standing.steps().map(step).collect()
}

fn shown(entry: &Entry) -> Value {
    match entry {
        Entry::Awaited(reason) => json!({
            "agent": null,
            "state": Admission::Starting.as_str(),
            "reason": reason,
            "registered": false,
        }),
        Entry::Taken {
            id,
            standing,
            record,
            next,
        } => {
            let steps = steps(entry);
            let (standing, record) = (standing.borrow(), record.borrow());
            let mut shown = json!({
                "agent": id,
                "state": standing.state.as_str(),
                "reason": standing.reason,
                "steps": steps,
                "registered": record.registered,
                "trouble": record.trouble,
                "confirmed_at": record.confirmed_at,
            });
            if let Some(Next { version, standing }) = next {
                let standing = standing.borrow();
                shown["next"] = json!({
                    "version": version,
                    "state": standing.state.as_str(),
                    "reason": standing.reason,
                });
            }
            shown
        }
    }
}

fn holds(check: &'static str) -> Check {
    Check {
        check,
        ok: true,
        detail: String::new(),
        steps: Vec::new(),
    }
}

fn fails(check: &'static str, detail: impl Into<String>) -> Check {
    Check {
        check,
        ok: false,
        detail: detail.into(),
        steps: Vec::new(),
    }
}
