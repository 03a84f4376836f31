//! Judging the application's health into the standing of one contract.
//!
//! Never waits for Consul: what the proxy and readiness see is as fresh as the last health check.

use super::health::{Health, Versions};
use super::standing::Standing;
use super::{Config, Ours};
use crate::lifecycle::{Observer, Phase};
use crate::telemetry::metrics::{Admission, AdmissionStep, Sidecar};
use std::sync::Arc;
use tokio::sync::watch;

/// Keeps one contract's standing up to date.
pub struct Judge {
    pub config: Arc<Config>,
    pub ours: Ours,
    /// All versions this sidecar serves: a bare health version must be one of them.
    pub versions: watch::Receiver<Vec<semver::Version>>,
    pub metrics: Arc<Sidecar>,
    pub health: watch::Receiver<Health>,
    pub lifecycle: Observer,
    pub standing: watch::Sender<Standing>,
}

impl Judge {
    /// Runs until the process leaves.
    pub async fn run(mut self) {
        let mut leaving = self.lifecycle.clone();
        self.judge();
        loop {
            tokio::select! {
                () = leaving.reached(Phase::Leaving) => break,
                // Without its sender it changes no more, and the others go on.
                Ok(()) = self.versions.changed() => self.judge(),
                changed = self.health.changed() => match changed {
                    Ok(()) => self.judge(),
                    // Without a prober nothing new will be known.
                    Err(_prober_is_gone) => leaving.reached(Phase::Leaving).await,
                },
            }
        }
        // What was never admitted took no calls and shall take none now.
        if self.standing.borrow().takes_calls() {
            self.show_standing(Standing {
                state: Admission::Draining,
                reason: "the sidecar is leaving".to_owned(),
            });
        }
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
        let said = versions.conflict(id, &contract.version, &self.versions.borrow())?;
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
}
