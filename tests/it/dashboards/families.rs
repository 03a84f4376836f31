//! The metric families that dashboards may use, with values their labels can take.

use std::fmt::Write as _;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}
use Kind::{Counter, Gauge, Histogram};

/// A family: name, kind, and each label with values it can take.
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [(&'static str, &'static [&'static str])],
}

const fn family(
    name: &'static str,
    kind: Kind,
    labels: &'static [(&'static str, &'static [&'static str])],
) -> Family {
    Family { name, kind, labels }
}

type Label = (&'static str, &'static [&'static str]);
const DIRECTION: Label = ("direction", &["inbound", "outbound"]);
const CONTRACT: Label = ("contract", &["fraud-detection-v1.0"]);
const SIDE: Label = ("side", &["input", "output"]);
const OPEN: Label = ("state", &["pending", "dispatched", "executing"]);
const ENDS: Label = (
    "state",
    &[
        "completed",
        "failed_validation",
        "failed_execution",
        "timeout",
    ],
);

/// A sidecar's families; each series also has the label `application`.
pub const SIDECAR: &[Family] = &[
    family(
        "hermes_build_info",
        Gauge,
        &[("version", &["0.1.0"]), ("revision", &["unknown"])],
    ),
    family(
        "hermes_sidecar_info",
        Gauge,
        &[
            ("team", &["finance"]),
            CONTRACT,
            ("contract_version", &["1.0.0"]),
            ("digest", &["0a1b2c3d"]),
        ],
    ),
    family("hermes_ready", Gauge, &[("check", &["consul", "upstream"])]),
    family(
        "hermes_proxy_requests_total",
        Counter,
        &[DIRECTION, CONTRACT, ("code", &["2xx", "4xx", "5xx"])],
    ),
    family(
        "hermes_proxy_request_duration_seconds",
        Histogram,
        &[DIRECTION, CONTRACT],
    ),
    family("hermes_proxy_overhead_seconds", Histogram, &[DIRECTION]),
    family(
        "hermes_proxy_phase_duration_seconds",
        Histogram,
        &[("phase", &["route", "record"])],
    ),
    family("hermes_proxy_inflight_requests", Gauge, &[DIRECTION]),
    family(
        "hermes_proxy_rejections_total",
        Counter,
        &[DIRECTION, ("reason", &["bad_context", "input_invalid"])],
    ),
    family(
        "hermes_contract_validations_total",
        Counter,
        &[CONTRACT, SIDE, ("result", &["valid", "invalid", "skipped"])],
    ),
    family(
        "hermes_contract_violations_total",
        Counter,
        &[SIDE, ("keyword", &["type", "required"])],
    ),
    family(
        "hermes_contract_cache_requests_total",
        Counter,
        &[("result", &["hit", "miss"])],
    ),
    family(
        "hermes_contract_last_updated_timestamp_seconds",
        Gauge,
        &[CONTRACT],
    ),
    family("hermes_contract_timeout_seconds", Gauge, &[CONTRACT]),
    family(
        "hermes_admission_steps_total",
        Counter,
        &[
            ("step", &["signature", "health", "trial"]),
            ("result", &["ok", "failed", "skipped"]),
        ],
    ),
    family("hermes_admission_state", Gauge, &[("state", &["admitted"])]),
    family("hermes_tasks_active", Gauge, &[OPEN]),
    family(
        "hermes_task_transitions_total",
        Counter,
        &[("from", &["pending"]), ("to", &["dispatched"])],
    ),
    family("hermes_task_transitions_refused_total", Counter, &[]),
    family(
        "hermes_tasks_finished_total",
        Counter,
        &[DIRECTION, CONTRACT, ENDS, ("degraded", &["false"])],
    ),
    family(
        "hermes_task_attempts_total",
        Counter,
        &[CONTRACT, ("kind", &["first", "retry", "fallback"])],
    ),
    family("hermes_task_timeout_used_ratio", Histogram, &[CONTRACT]),
    family("hermes_context_unmatched_total", Counter, &[]),
    family("hermes_route_candidates", Gauge, &[CONTRACT]),
    family(
        "hermes_route_selections_total",
        Counter,
        &[("cohort", &["stable"])],
    ),
    family(
        "hermes_consul_requests_total",
        Counter,
        &[("operation", &["health"]), ("result", &["ok", "failed"])],
    ),
    family(
        "hermes_consul_request_duration_seconds",
        Histogram,
        &[("operation", &["health"])],
    ),
    family("hermes_consul_last_contact_timestamp_seconds", Gauge, &[]),
    family("hermes_consul_reregistrations_total", Counter, &[]),
    family(
        "hermes_spool_reports",
        Gauge,
        &[("state", &["waiting", "open", "dead"])],
    ),
    family("hermes_spool_oldest_report_timestamp_seconds", Gauge, &[]),
    family("hermes_spool_bytes", Gauge, &[]),
    family("hermes_spool_appended_total", Counter, &[]),
    family(
        "hermes_spool_delivered_total",
        Counter,
        &[("result", &["accepted", "duplicate"])],
    ),
    family(
        "hermes_spool_failures_total",
        Counter,
        &[("reason", &["unreachable"])],
    ),
    family(
        "hermes_spool_dead_letters_total",
        Counter,
        &[("reason", &["expired", "rejected"])],
    ),
    family("hermes_spool_batch_reports", Histogram, &[]),
    family("hermes_store_write_duration_seconds", Histogram, &[]),
    family("hermes_durability_degraded_total", Counter, &[]),
];

/// A collector's families.
pub const COLLECTOR: &[Family] = &[
    family(
        "hermes_collector_reports_total",
        Counter,
        &[("result", &["accepted", "duplicate", "conflict", "rejected"])],
    ),
    family("hermes_collector_tasks_open", Gauge, &[OPEN]),
    family("hermes_collector_tasks_stalled", Gauge, &[]),
    family(
        "hermes_collector_tasks_finished_total",
        Counter,
        &[("application", &["fraud"]), ENDS],
    ),
    family(
        "hermes_collector_chain_breaks_total",
        Counter,
        &[("application", &["fraud"])],
    ),
    family(
        "hermes_collector_contract_audits",
        Gauge,
        &[("state", &["ok", "unsigned", "mismatch"])],
    ),
    family(
        "hermes_collector_consul_requests_total",
        Counter,
        &[
            ("operation", &["kv_read", "health", "watch"]),
            ("result", &["ok", "unreachable"]),
        ],
    ),
    family("hermes_collector_report_lag_seconds", Histogram, &[]),
    family(
        "hermes_collector_store_write_duration_seconds",
        Histogram,
        &[],
    ),
];

/// Finds the family a series belongs to, whichever of a histogram's three series it is.
pub fn of_series(series: &str) -> Option<&'static Family> {
    let families = || SIDECAR.iter().chain(COLLECTOR);
    families()
        .find(|family| family.name == series && family.kind != Histogram)
        .or_else(|| {
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|part| series.strip_suffix(part))?;
            families().find(|family| family.name == base && family.kind == Histogram)
        })
}

/// Writes a page with every series of `families`; its counters have moved `times` times.
pub fn page(families: &[Family], constant: &[(&str, &str)], times: u64) -> String {
    let mut page = String::new();
    for family in families {
        let kind = format!("{:?}", family.kind).to_lowercase();
        writeln!(page, "# HELP {} Stand-in.\n# TYPE {0} {kind}", family.name).unwrap();
        for labels in combinations(family.labels) {
            let labels = [constant, labels.as_slice()].concat();
            let mut series = |part: &str, extra: &[(&str, &str)], value: u64| {
                let all: Vec<String> = labels
                    .iter()
                    .chain(extra)
                    .map(|(key, value)| format!("{key}={value:?}"))
                    .collect();
                writeln!(page, "{}{part}{{{}}} {value}", family.name, all.join(",")).unwrap();
            };
            match family.kind {
                Counter => series("", &[], times),
                Gauge => series("", &[], 1),
                Histogram => {
                    series("_bucket", &[("le", "0.5")], times);
                    series("_bucket", &[("le", "+Inf")], 2 * times);
                    series("_sum", &[], times);
                    series("_count", &[], 2 * times);
                }
            }
        }
    }
    page
}

/// Returns every choice of one value per label.
fn combinations(labels: &[Label]) -> Vec<Vec<(&'static str, &'static str)>> {
    labels
        .iter()
        .fold(vec![Vec::new()], |chosen, (key, values)| {
            let with = |before: &Vec<_>, value| [before.as_slice(), &[(*key, value)]].concat();
            chosen
                .iter()
                .flat_map(|before| values.iter().map(move |value| with(before, *value)))
                .collect()
        })
}
