//! The series of one contract in one direction, resolved once so that a call pays no look-up.

use super::family::{Declare, RATIO, REQUEST};
use crate::task::State;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many contracts have series of their own, per direction; the rest share `_other`.
const MOST_CONTRACTS: usize = 64;
const OTHER: &str = "_other";
/// The label of what belongs to no contract that is known.
pub const UNKNOWN: &str = "_unknown";
const CODES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "none"];
const ENDS: [State; 4] = [
    State::Completed,
    State::FailedValidation,
    State::FailedExecution,
    State::Timeout,
];

/// Which way a call goes, seen from the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    Inbound,
    Outbound,
}

impl Direction {
    pub const ALL: [Direction; 2] = [Direction::Inbound, Direction::Outbound];

    /// Returns the label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Direction::Inbound => "inbound",
            Direction::Outbound => "outbound",
        }
    }
}

/// Which body was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Input,
    Output,
}

impl Side {
    pub const ALL: [Side; 2] = [Side::Input, Side::Output];

    /// Returns the label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Side::Input => "input",
            Side::Output => "output",
        }
    }
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validation {
    Valid,
    Invalid,
    Skipped,
    /// There was no place for it while there was time.
    Crowded,
}

impl Validation {
    const ALL: [&'static str; 4] = ["valid", "invalid", "skipped", "crowded"];
}

/// Why an attempt was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptKind {
    First,
    Retry,
    Fallback,
}

impl AttemptKind {
    const ALL: [&'static str; 3] = ["first", "retry", "fallback"];
}

/// The resolved series of one contract in one direction.
#[derive(Debug)]
pub struct Contract {
    requests: [IntCounter; 5],
    duration: Histogram,
    validations: [[IntCounter; 4]; 2],
    finished: [[IntCounter; 2]; 4],
    outbound: Option<Outbound>,
}

#[derive(Debug)]
struct Outbound {
    attempts: [IntCounter; 3],
    timeout_used: Histogram,
    candidates: IntGauge,
}

impl Contract {
    /// Counts an attempt received that ended with a reply of this status.
    pub fn ended(&self, end: State, status: u16, took: Duration) {
        self.call_ended(end, false, status, took);
    }

    /// Counts a call made, which a fallback may have answered.
    pub fn call_ended(&self, end: State, degraded: bool, status: u16, took: Duration) {
        self.request_ended(Some(status), took);
        self.finished(end, degraded);
    }

    /// Counts an ended request by its status class; `None` means that no status was sent.
    pub fn request_ended(&self, status: Option<u16>, took: Duration) {
        let class = match status {
            Some(200..=299) => 0,
            Some(300..=399) => 1,
            Some(400..=499) => 2,
            Some(_) => 3,
            None => 4,
        };
        self.requests[class].inc();
        self.duration.observe(took.as_secs_f64());
    }

    /// Counts one check of a body.
    pub fn validated(&self, side: Side, result: Validation) {
        self.validations[side as usize][result as usize].inc();
    }

    /// Counts a call (outbound) or an attempt (inbound) that has ended, whatever was replied.
    pub fn finished(&self, end: State, degraded: bool) {
        if let Some(index) = ENDS.iter().position(|state| *state == end) {
            self.finished[index][usize::from(degraded)].inc();
        }
    }

    /// Counts an attempt that is sent out; inbound has none.
    pub fn attempted(&self, kind: AttemptKind) {
        if let Some(outbound) = &self.outbound {
            outbound.attempts[kind as usize].inc();
        }
    }

    /// Records how much of the contract's timeout an attempt used.
    pub fn timeout_used(&self, took: Duration, timeout: Duration) {
        if let Some(outbound) = &self.outbound {
            let ratio = took.as_secs_f64() / timeout.as_secs_f64().max(0.001);
            outbound.timeout_used.observe(ratio);
        }
    }

    /// Shows how many instances a call could choose among.
    pub fn candidates(&self, count: usize) {
        if let Some(outbound) = &self.outbound {
            outbound.candidates.set(count as i64);
        }
    }
}

/// The families that carry a `contract` label.
#[derive(Debug)]
pub(super) struct Contracts {
    requests: IntCounterVec,
    duration: HistogramVec,
    validations: IntCounterVec,
    finished: IntCounterVec,
    attempts: IntCounterVec,
    timeout_used: HistogramVec,
    candidates: IntGaugeVec,
    dropped: IntCounter,
    resolved: Mutex<HashMap<(Direction, String), Arc<Contract>>>,
}

impl Contracts {
    pub(super) fn declare(to: &Declare<'_>, dropped: IntCounter) -> Self {
        Self {
            requests: to.counters(
                "proxy_requests_total",
                "Requests that ended, by status class; inbound once per attempt received, outbound once per call made.",
                &["direction", "contract", "code"],
            ),
            duration: to.histograms(
                "proxy_request_duration_seconds",
                "Time from the request's head to the end of the reply as the downstream sees it.",
                REQUEST,
                &["direction", "contract"],
            ),
            validations: to.counters(
                "contract_validations_total",
                "Bodies held against a contract's schemas; crowded: its turn did not come in time.",
                &["contract", "side", "result"],
            ),
            finished: to.counters(
                "tasks_finished_total",
                "End states reached: inbound per attempt received, outbound per call made.",
                &["direction", "contract", "state", "degraded"],
            ),
            attempts: to.counters(
                "task_attempts_total",
                "Attempts sent out, by why they were made.",
                &["contract", "kind"],
            ),
            timeout_used: to.histograms(
                "task_timeout_used_ratio",
                "Duration of an attempt over the contract's timeout, seen by the caller.",
                RATIO,
                &["contract"],
            ),
            candidates: to.gauges(
                "route_candidates",
                "Instances that fitted the latest call of a contract.",
                &["contract"],
            ),
            dropped,
            resolved: Mutex::default(),
        }
    }

    /// Returns the series of `contract`, resolving them at the first call.
    pub(super) fn of(&self, direction: Direction, contract: &str) -> Arc<Contract> {
        let mut resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = resolved.get(&(direction, contract.to_owned())) {
            return known.clone();
        }
        let taken = resolved.keys().filter(|key| key.0 == direction).count();
        let name = if taken < MOST_CONTRACTS {
            contract
        } else {
            self.dropped.inc();
            OTHER
        };
        let key = (direction, name.to_owned());
        let series = resolved
            .entry(key)
            .or_insert_with(|| Arc::new(self.resolve(direction, name)));
        series.clone()
    }

    fn resolve(&self, direction: Direction, contract: &str) -> Contract {
        let way = direction.as_str();
        let outbound = (direction == Direction::Outbound).then(|| Outbound {
            attempts: AttemptKind::ALL
                .map(|kind| self.attempts.with_label_values(&[contract, kind])),
            timeout_used: self.timeout_used.with_label_values(&[contract]),
            candidates: self.candidates.with_label_values(&[contract]),
        });
        Contract {
            requests: CODES.map(|code| self.requests.with_label_values(&[way, contract, code])),
            duration: self.duration.with_label_values(&[way, contract]),
            validations: Side::ALL.map(|side| {
                Validation::ALL.map(|result| {
                    self.validations
                        .with_label_values(&[contract, side.as_str(), result])
                })
            }),
            finished: ENDS.map(|end| {
                ["false", "true"].map(|degraded| {
                    self.finished
                        .with_label_values(&[way, contract, end.as_str(), degraded])
                })
            }),
            outbound,
        }
    }
}
