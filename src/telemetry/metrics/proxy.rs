//! Requests at the two listeners.

use super::contract::{Direction, Side};
use super::family::{Declare, PROCESSING};
use super::sidecar::Sidecar;
use crate::task::Problem;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};
use std::collections::HashMap;
use std::time::Duration;

/// A part of a call whose time is worth seeing alone, in the order a slow call is examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Route,
    Connect,
    ValidateInput,
    ValidateOutput,
    Record,
}

impl Phase {
    const ALL: [&'static str; 5] = [
        "route",
        "connect",
        "validate_input",
        "validate_output",
        "record",
    ];
}

/// The keywords that the validator names in a violation; `falseSchema` and `number` are its and our
/// names for what no keyword stands for. Anything else counts as `other`.
const KEYWORDS: [&str; 29] = [
    "type",
    "enum",
    "const",
    "required",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "unevaluatedItems",
    "contains",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "anyOf",
    "oneOf",
    "not",
    "falseSchema",
    "number",
    "other",
];

/// The families of the data path that carry no contract.
#[derive(Debug)]
pub(super) struct Proxy {
    overhead: [Histogram; 2],
    phases: [Histogram; 5],
    inflight: [IntGauge; 2],
    rejections: HashMap<(Direction, Problem), IntCounter>,
    violations: IntCounterVec,
}

impl Proxy {
    pub(super) fn declare(to: &Declare<'_>) -> Self {
        let overhead = to.histograms(
            "proxy_overhead_seconds",
            "Time of a contract call that was not spent waiting for the upstream.",
            PROCESSING,
            &["direction"],
        );
        let phases = to.histograms(
            "proxy_phase_duration_seconds",
            "Time of one part of a contract call.",
            PROCESSING,
            &["phase"],
        );
        let inflight = to.gauges(
            "proxy_inflight_requests",
            "Requests being served.",
            &["direction"],
        );
        let rejections = to.counters(
            "proxy_rejections_total",
            "Requests refused by the sidecar itself, by problem kind.",
            &["direction", "reason"],
        );
        let violations = to.counters(
            "contract_violations_total",
            "Places where a body broke a schema, by the keyword that was broken.",
            &["side", "keyword"],
        );
        let series = Self {
            overhead: Direction::ALL.map(|way| overhead.with_label_values(&[way.as_str()])),
            phases: Phase::ALL.map(|phase| phases.with_label_values(&[phase])),
            inflight: Direction::ALL.map(|way| inflight.with_label_values(&[way.as_str()])),
            rejections: Direction::ALL
                .into_iter()
                .flat_map(|way| Problem::all().map(move |problem| (way, problem)))
                .map(|(way, problem)| {
                    let labels = [way.as_str(), problem.label()];
                    ((way, problem), rejections.with_label_values(&labels))
                })
                .collect(),
            violations,
        };
        for side in Side::ALL {
            for keyword in KEYWORDS {
                let labels = [side.as_str(), keyword];
                series.violations.with_label_values(&labels);
            }
        }
        series
    }
}

impl Sidecar {
    /// Records our own share of a call.
    pub fn overhead(&self, direction: Direction, took: Duration) {
        self.proxy.overhead[direction as usize].observe(took.as_secs_f64());
    }

    pub fn phase(&self, phase: Phase, took: Duration) {
        self.proxy.phases[phase as usize].observe(took.as_secs_f64());
    }

    /// Returns the gauge of requests being served; the caller keeps it.
    pub fn inflight(&self, direction: Direction) -> &IntGauge {
        &self.proxy.inflight[direction as usize]
    }

    pub fn rejected(&self, direction: Direction, problem: Problem) {
        if let Some(counter) = self.proxy.rejections.get(&(direction, problem)) {
            counter.inc();
        }
    }

    /// Counts one violation; a keyword outside the vocabulary counts as `other`.
    pub fn violated(&self, side: Side, keyword: &str) {
        let keyword = KEYWORDS.into_iter().find(|known| *known == keyword);
        self.proxy
            .violations
            .with_label_values(&[side.as_str(), keyword.unwrap_or("other")])
            .inc();
    }
}
