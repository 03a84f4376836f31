//! The sidecar's families.

use super::contract::{Contract, Contracts, Direction, Side};
use super::family::{BATCH, Declare, PROCESSING, REQUEST, set_time};
use crate::task::{Problem, State, TRANSITIONS, Timestamp};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Registry, TextEncoder,
};
use std::collections::HashMap;
use std::sync::Arc;
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
    const ALL: [&'static str; 3] = ["signature", "health", "trial"];
}

/// Why an instance was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cohort {
    Stable,
    Canary,
    Fallback,
    Spill,
}

impl Cohort {
    const ALL: [&'static str; 4] = ["stable", "canary", "fallback", "spill"];
}

/// Why a report could not be stored or delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpoolLoss {
    QueueFull,
    Quota,
    Busy,
    DiskFull,
    ReadOnly,
    Io,
    Corrupt,
    Unreachable,
    Refused,
    Denied,
}

impl SpoolLoss {
    const ALL: [&'static str; 10] = [
        "queue_full",
        "quota",
        "busy",
        "disk_full",
        "read_only",
        "io",
        "corrupt",
        "unreachable",
        "refused",
        "denied",
    ];
}

/// All families of one sidecar; shared by `Arc`.
#[derive(Debug)]
pub struct Sidecar {
    registry: Registry,
    contracts: Contracts,
    info: IntGaugeVec,
    ready: [IntGauge; 6],
    overhead: [Histogram; 2],
    phases: [Histogram; 5],
    inflight: [IntGauge; 2],
    rejections: HashMap<(Direction, Problem), IntCounter>,
    violations: IntCounterVec,
    cache: [IntCounter; 3],
    contract_updated: GaugeVec,
    contract_timeout: GaugeVec,
    admission_steps: [[IntCounter; 2]; 3],
    admission_state: [IntGauge; 5],
    active: [IntGauge; 8],
    transitions: HashMap<(State, State), IntCounter>,
    transitions_refused: IntCounter,
    unmatched: IntCounter,
    selections: [IntCounter; 4],
    consul_requests: IntCounterVec,
    consul_duration: HistogramVec,
    consul_contact: Gauge,
    reregistrations: IntCounter,
    spool_reports: IntGaugeVec,
    spool_oldest: Gauge,
    spool_bytes: IntGauge,
    spool_appended: IntCounter,
    spool_delivered: [IntCounter; 2],
    spool_failures: [IntCounter; 10],
    dead_letters: IntCounterVec,
    batch: Histogram,
    store_write: Histogram,
    durability_degraded: IntCounter,
}

/// Keywords of draft 2020-12 that a violation can name; anything else counts as `other`.
const KEYWORDS: [&str; 26] = [
    "type",
    "enum",
    "const",
    "required",
    "properties",
    "additionalProperties",
    "unevaluatedProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "dependentRequired",
    "items",
    "prefixItems",
    "contains",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minimum",
    "maximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "other",
];

impl Sidecar {
    /// Declares every family with the constant label `application`.
    pub fn new(application: &str) -> Self {
        let constant = HashMap::from([("application".to_owned(), application.to_owned())]);
        let registry = Registry::new_custom(Some("hermes".to_owned()), Some(constant))
            .expect("the prefix is not empty");
        let to = Declare(&registry);
        let dropped = to.counters(
            "metric_labels_dropped_total",
            "Label values folded into `_other` because the cap of a family was reached.",
            &["family"],
        );
        to.gauges(
            "build_info",
            "1, with the build as labels.",
            &["version", "revision"],
        )
        .with_label_values(&[
            env!("CARGO_PKG_VERSION"),
            option_env!("HERMES_REVISION").unwrap_or("unknown"),
        ])
        .set(1);
        let ready = to.gauges(
            "ready",
            "1 while a condition of readiness holds.",
            &["check"],
        );
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
        let cache = to.counters(
            "contract_cache_requests_total",
            "Look-ups of a contract: known, fetched first, or served from the last known good.",
            &["result"],
        );
        let steps = to.counters(
            "admission_steps_total",
            "Steps of admission tried.",
            &["step", "result"],
        );
        let admission = to.gauges("admission_state", "1 for the present state.", &["state"]);
        let active = to.gauges(
            "tasks_active",
            "Attempts being carried out, by state.",
            &["state"],
        );
        let transitions = to.counters(
            "task_transitions_total",
            "Moves of attempts between states.",
            &["from", "to"],
        );
        let selections = to.counters(
            "route_selections_total",
            "Instances chosen, by why they were.",
            &["cohort"],
        );
        let delivered = to.counters(
            "spool_delivered_total",
            "Reports that the collector took, new or already known.",
            &["result"],
        );
        let failures = to.counters(
            "spool_failures_total",
            "Reports that could not be stored, and deliveries that failed and are tried again.",
            &["reason"],
        );
        let sidecar = Self {
            contracts: Contracts::declare(&to, dropped.with_label_values(&["contract"])),
            info: to.gauges(
                "sidecar_info",
                "1 per served contract.",
                &["team", "contract", "contract_version", "digest"],
            ),
            ready: Ready::ALL.map(|(_, check)| ready.with_label_values(&[check])),
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
            cache: ["hit", "miss", "stale"].map(|result| cache.with_label_values(&[result])),
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
            admission_steps: AdmissionStep::ALL
                .map(|step| ["ok", "failed"].map(|result| steps.with_label_values(&[step, result]))),
            admission_state: Admission::ALL.map(|state| admission.with_label_values(&[state])),
            active: State::ALL.map(|state| active.with_label_values(&[state.as_str()])),
            transitions: TRANSITIONS
                .into_iter()
                .map(|(from, into)| {
                    let labels = [from.as_str(), into.as_str()];
                    ((from, into), transitions.with_label_values(&labels))
                })
                .collect(),
            transitions_refused: to.counter(
                "task_transitions_refused_total",
                "Moves that the table of states does not allow; each is a bug.",
            ),
            unmatched: to.counter(
                "context_unmatched_total",
                "Outbound calls that could not be joined to the task they serve.",
            ),
            selections: Cohort::ALL.map(|cohort| selections.with_label_values(&[cohort])),
            consul_requests: to.counters(
                "consul_requests_total",
                "Requests to Consul.",
                &["operation", "result"],
            ),
            consul_duration: to.histograms(
                "consul_request_duration_seconds",
                "Time of requests to Consul; blocking queries count until they return.",
                REQUEST,
                &["operation"],
            ),
            consul_contact: to.seconds_gauge(
                "consul_last_contact_timestamp_seconds",
                "When Consul last answered, in seconds since the epoch; 0 for never.",
            ),
            reregistrations: to.counter(
                "consul_reregistrations_total",
                "Registrations restored after Consul had lost them.",
            ),
            spool_reports: to.gauges(
                "spool_reports",
                "Reports in the spool, by state.",
                &["state"],
            ),
            spool_oldest: to.seconds_gauge(
                "spool_oldest_report_timestamp_seconds",
                "When the oldest waiting report was made, in seconds since the epoch; 0 when none waits.",
            ),
            spool_bytes: to.gauge("spool_bytes", "Size of the spool's files."),
            spool_appended: to.counter("spool_appended_total", "Reports taken into the spool."),
            spool_delivered: ["accepted", "duplicate"]
                .map(|result| delivered.with_label_values(&[result])),
            spool_failures: SpoolLoss::ALL.map(|reason| failures.with_label_values(&[reason])),
            dead_letters: to.counters(
                "spool_dead_letters_total",
                "Reports set aside for good.",
                &["reason"],
            ),
            batch: to.histogram("spool_batch_reports", "Reports sent in one batch.", BATCH),
            store_write: to.histogram(
                "store_write_duration_seconds",
                "Time of one commit, whatever it holds.",
                PROCESSING,
            ),
            durability_degraded: to.counter(
                "durability_degraded_total",
                "Replies sent before their end state was known to be stored.",
            ),
            registry,
        };
        sidecar.start_closed_labels_at_zero();
        sidecar
    }

    fn start_closed_labels_at_zero(&self) {
        for side in Side::ALL {
            for keyword in KEYWORDS {
                self.violations.with_label_values(&[side.as_str(), keyword]);
            }
        }
        for reason in ["expired", "rejected"] {
            self.dead_letters.with_label_values(&[reason]);
        }
        for state in ["waiting", "open", "dead"] {
            self.spool_reports.with_label_values(&[state]);
        }
    }

    /// Writes all families in the Prometheus text format.
    pub fn render(&self) -> String {
        // A family that cannot be written would be a bug of the crate; the rest still goes out.
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .unwrap_or_default()
    }

    /// Returns the series of one contract; the caller keeps them.
    pub fn contract(&self, direction: Direction, contract: &str) -> Arc<Contract> {
        self.contracts.of(direction, contract)
    }

    /// Announces a contract that this sidecar serves.
    pub fn serves(&self, team: &str, contract: &str, version: &str, digest: &str) {
        let digest = digest.get(..8).unwrap_or(digest);
        self.info
            .with_label_values(&[team, contract, version, digest])
            .set(1);
    }

    /// Shows the promise and the age of a contract that this sidecar serves or calls.
    pub fn contract_taken(&self, contract: &str, timeout: Duration, at: Timestamp) {
        self.contract_timeout
            .with_label_values(&[contract])
            .set(timeout.as_secs_f64());
        set_time(
            &self.contract_updated.with_label_values(&[contract]),
            Some(at),
        );
    }

    /// Shows whether a condition of readiness holds, by its label.
    pub fn ready_named(&self, check: &str, holds: bool) {
        let found = Ready::ALL.into_iter().find(|(_, name)| *name == check);
        if let Some((check, _)) = found {
            self.ready[check as usize].set(i64::from(holds));
        }
    }

    /// Records our own share of a call.
    pub fn overhead(&self, direction: Direction, took: Duration) {
        self.overhead[direction as usize].observe(took.as_secs_f64());
    }

    pub fn phase(&self, phase: Phase, took: Duration) {
        self.phases[phase as usize].observe(took.as_secs_f64());
    }

    /// Returns the gauge of requests being served; the caller keeps it.
    pub fn inflight(&self, direction: Direction) -> &IntGauge {
        &self.inflight[direction as usize]
    }

    pub fn rejected(&self, direction: Direction, problem: Problem) {
        if let Some(counter) = self.rejections.get(&(direction, problem)) {
            counter.inc();
        }
    }

    /// Counts one violation; a keyword outside the vocabulary counts as `other`.
    pub fn violated(&self, side: Side, keyword: &str) {
        let keyword = KEYWORDS.into_iter().find(|known| *known == keyword);
        self.violations
            .with_label_values(&[side.as_str(), keyword.unwrap_or("other")])
            .inc();
    }

    pub fn cache_hit(&self) {
        self.cache[0].inc();
    }

    pub fn cache_miss(&self) {
        self.cache[1].inc();
    }

    /// Counts a look-up answered from a view that Consul no longer confirms.
    pub fn cache_stale(&self) {
        self.cache[2].inc();
    }

    pub fn admission_step(&self, step: AdmissionStep, passed: bool) {
        self.admission_steps[step as usize][usize::from(!passed)].inc();
    }

    pub fn admission(&self, state: Admission) {
        for (index, gauge) in self.admission_state.iter().enumerate() {
            gauge.set(i64::from(index == state as usize));
        }
    }

    /// Counts an attempt that begins in `state`.
    pub fn attempt_began(&self, state: State) {
        self.active[state as usize].inc();
    }

    /// Counts a move; an ended attempt is active no longer.
    pub fn attempt_moved(&self, from: State, to: State) {
        self.active[from as usize].dec();
        if !to.is_end() {
            self.active[to as usize].inc();
        }
        if let Some(counter) = self.transitions.get(&(from, to)) {
            counter.inc();
        }
    }

    pub fn transition_refused(&self) {
        self.transitions_refused.inc();
    }

    pub fn context_unmatched(&self) {
        self.unmatched.inc();
    }

    pub fn selected(&self, cohort: Cohort) {
        self.selections[cohort as usize].inc();
    }

    /// Counts one request to Consul; both labels come from the client's enums.
    pub fn consul_request(&self, operation: &str, result: &str, took: Duration, answered: bool) {
        self.consul_requests
            .with_label_values(&[operation, result])
            .inc();
        self.consul_duration
            .with_label_values(&[operation])
            .observe(took.as_secs_f64());
        if answered {
            set_time(&self.consul_contact, Some(Timestamp::now()));
        }
    }

    pub fn reregistered(&self) {
        self.reregistrations.inc();
    }

    /// Shows the spool as it is now: waiting for delivery, still open, and set aside.
    pub fn spool(&self, waiting: u64, open: u64, dead: u64, oldest: Option<Timestamp>, bytes: u64) {
        for (state, count) in [("waiting", waiting), ("open", open), ("dead", dead)] {
            self.spool_reports
                .with_label_values(&[state])
                .set(count as i64);
        }
        set_time(&self.spool_oldest, oldest);
        self.spool_bytes.set(bytes as i64);
    }

    pub fn spool_appended(&self) {
        self.spool_appended.inc();
    }

    pub fn spool_accepted(&self, count: u64) {
        self.spool_delivered[0].inc_by(count);
    }

    pub fn spool_duplicate(&self, count: u64) {
        self.spool_delivered[1].inc_by(count);
    }

    pub fn spool_failed(&self, reason: SpoolLoss) {
        self.spool_failures[reason as usize].inc();
    }

    /// Counts a report that outlived its retention before the collector took it.
    pub fn dead_letter_expired(&self, count: u64) {
        self.dead_letters
            .with_label_values(&["expired"])
            .inc_by(count);
    }

    /// Counts a report that the collector refused for good.
    pub fn dead_letter_rejected(&self, count: u64) {
        self.dead_letters
            .with_label_values(&["rejected"])
            .inc_by(count);
    }

    pub fn batch(&self, reports: usize) {
        self.batch.observe(reports as f64);
    }

    pub fn store_write(&self, took: Duration) {
        self.store_write.observe(took.as_secs_f64());
    }

    pub fn durability_degraded(&self) {
        self.durability_degraded.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds the value of the one series of `family` that carries all `labels`.
    fn value(text: &str, family: &str, labels: &[&str]) -> Option<String> {
        let series = text.lines().find(|line| {
            line.starts_with(&format!("{family}{{")) && labels.iter().all(|l| line.contains(l))
        })?;
        series.rsplit(' ').next().map(str::to_owned)
    }

    #[test]
    fn closed_labels_start_at_zero() {
        let text = Sidecar::new("fraud").render();
        for (family, labels) in [
            (
                "hermes_proxy_rejections_total",
                [r#"direction="inbound""#, r#"reason="too_large""#],
            ),
            (
                "hermes_task_transitions_total",
                [r#"from="pending""#, r#"to="dispatched""#],
            ),
            (
                "hermes_spool_dead_letters_total",
                [r#"reason="expired""#, r#"application="fraud""#],
            ),
            (
                "hermes_contract_violations_total",
                [r#"keyword="minimum""#, r#"side="input""#],
            ),
        ] {
            let value = value(&text, family, &labels);
            assert_eq!(value.as_deref(), Some("0"), "{family} {labels:?}");
        }
    }

    #[test]
    fn contracts_past_the_cap_share_one_series() {
        let metrics = Sidecar::new("fraud");
        for n in 0..100 {
            let series = metrics.contract(Direction::Outbound, &format!("agent-{n}-v1.0"));
            series.request_ended(Some(200), Duration::from_millis(5));
        }
        let text = metrics.render();
        let others = value(
            &text,
            "hermes_proxy_requests_total",
            &[r#"code="2xx""#, r#"contract="_other""#],
        );
        assert_eq!(others.as_deref(), Some("36"));
        let series = text.lines().filter(|line| {
            line.starts_with("hermes_proxy_requests_total{") && line.contains("2xx")
        });
        assert_eq!(series.count(), 65);
    }
}
