//! How the sidecar and its contracts stand.

use super::family::{Declare, set_time};
use super::sidecar::Sidecar;
use crate::task::Timestamp;
use prometheus::{GaugeVec, IntCounter, IntGauge, IntGaugeVec};
use std::time::Duration;

/// A condition of readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    Config,
    Consul,
    Contract,
    Admission,
    Upstream,
    Store,
}

impl Ready {
    /// All conditions, with their label values.
    pub const ALL: [(Ready, &'static str); 6] = [
        (Ready::Config, "config"),
        (Ready::Consul, "consul"),
        (Ready::Contract, "contract"),
        (Ready::Admission, "admission"),
        (Ready::Upstream, "upstream"),
        (Ready::Store, "store"),
    ];
}

/// Where our own contracts stand on their way into Consul, in life order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Admission {
    Starting,
    Admitting,
    Admitted,
    Unhealthy,
    Draining,
}

impl Admission {
    const ALL: [&'static str; 5] = ["starting", "admitting", "admitted", "unhealthy", "draining"];

    /// Returns the label value.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize]
    }
}

/// One of the three steps of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionStep {
    Signature,
    Health,
    Trial,
}

impl AdmissionStep {
    /// All steps in their order.
    pub const ALL: [AdmissionStep; 3] = [
        AdmissionStep::Signature,
        AdmissionStep::Health,
        AdmissionStep::Trial,
    ];

    /// Returns the label value.
    pub fn as_str(self) -> &'static str {
        ["signature", "health", "trial"][self as usize]
    }
}

/// What came of a step of admission that was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepEnd {
    Ok,
    Failed,
    /// There was nothing to judge: no signature, no probe.
    Skipped,
}

impl StepEnd {
    const ALL: [&'static str; 3] = ["ok", "failed", "skipped"];
}

/// The families of readiness, admission and contracts in use.
#[derive(Debug)]
pub(super) struct StandingSeries {
    info: IntGaugeVec,
    ready: [IntGauge; 6],
    cache: [IntCounter; 4],
    contract_updated: GaugeVec,
    contract_timeout: GaugeVec,
    admission_steps: [[IntCounter; 3]; 3],
    admission_state: [IntGauge; 5],
}

impl StandingSeries {
    pub(super) fn declare(to: &Declare<'_>) -> Self {
        let ready = to.gauges(
            "ready",
            "1 while a condition of readiness holds.",
            &["check"],
        );
        let cache = to.counters(
            "contract_cache_requests_total",
            "Look-ups of a contract: known, fetched first, served from the last known good, or fetched and not believed.",
            &["result"],
        );
        let steps = to.counters(
            "admission_steps_total",
            "Steps of admission tried; skipped where a contract has nothing to judge.",
            &["step", "result"],
        );
        let admission = to.gauges(
            "admission_state",
            "Contracts of this sidecar in each state of admission.",
            &["state"],
        );
        Self {
            info: to.gauges(
                "sidecar_info",
                "1 per served contract.",
                &["team", "contract", "contract_version", "digest"],
            ),
            ready: Ready::ALL.map(|(_, check)| ready.with_label_values(&[check])),
            cache: ["hit", "miss", "stale", "untrusted"]
                .map(|result| cache.with_label_values(&[result])),
            contract_updated: to.seconds_gauges(
                "contract_last_updated_timestamp_seconds",
                "When a contract in use was last taken over, in seconds since the epoch.",
                &["contract"],
            ),
            contract_timeout: to.seconds_gauges(
                "contract_timeout_seconds",
                "The timeout a contract promises.",
                &["contract"],
            ),
            admission_steps: AdmissionStep::ALL.map(|step| {
                StepEnd::ALL.map(|result| steps.with_label_values(&[step.as_str(), result]))
            }),
            admission_state: Admission::ALL.map(|state| admission.with_label_values(&[state])),
        }
    }
}

impl Sidecar {
    /// Announces a contract that this sidecar serves.
    pub fn serves(&self, team: &str, contract: &str, version: &str, digest: &str) {
        let digest = digest.get(..8).unwrap_or(digest);
        self.standing
            .info
            .with_label_values(&[team, contract, version, digest])
            .set(1);
    }

    /// Takes back what `serves` announced.
    pub fn serves_no_more(&self, team: &str, contract: &str, version: &str, digest: &str) {
        let digest = digest.get(..8).unwrap_or(digest);
        let labels = [team, contract, version, digest];
        // It fails only where there is no such series.
        self.standing.info.remove_label_values(&labels).ok();
    }

    /// Shows the promise and the age of a contract that this sidecar serves or calls.
    pub fn contract_taken(&self, contract: &str, timeout: Duration, at: Timestamp) {
        self.standing
            .contract_timeout
            .with_label_values(&[contract])
            .set(timeout.as_secs_f64());
        set_time(
            &self
                .standing
                .contract_updated
                .with_label_values(&[contract]),
            Some(at),
        );
    }

    /// Shows whether a condition of readiness holds, by its label.
    pub fn ready_named(&self, check: &str, holds: bool) {
        let found = Ready::ALL.into_iter().find(|(_, name)| *name == check);
        if let Some((check, _)) = found {
            self.standing.ready[check as usize].set(i64::from(holds));
        }
    }

    pub fn cache_hit(&self) {
        self.standing.cache[0].inc();
    }

    pub fn cache_miss(&self) {
        self.standing.cache[1].inc();
    }

    /// Counts a look-up answered from a view that Consul no longer confirms.
    pub fn cache_stale(&self) {
        self.standing.cache[2].inc();
    }

    /// Counts a published body that was fetched and must not be used.
    pub fn cache_untrusted(&self) {
        self.standing.cache[3].inc();
    }

    pub fn admission_step(&self, step: AdmissionStep, end: StepEnd) {
        self.standing.admission_steps[step as usize][end as usize].inc();
    }

    /// Shows in which states our contracts are, one entry per contract.
    pub fn admission_states(&self, states: &[Admission]) {
        for (index, gauge) in self.standing.admission_state.iter().enumerate() {
            let there = states.iter().filter(|state| **state as usize == index);
            gauge.set(there.count() as i64);
        }
    }
}
