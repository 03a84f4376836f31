//! The collector's families.

use super::family::{DELAY, Declare, PROCESSING};
use super::tls::TlsSeries;
use crate::task::State;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry, TextEncoder};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How many applications have series of their own; the rest share `_other`.
const MOST_APPLICATIONS: usize = 512;
const ENDS: [State; 4] = [
    State::Completed,
    State::FailedValidation,
    State::FailedExecution,
    State::Timeout,
];
const OPEN: [State; 4] = [
    State::Pending,
    State::Dispatched,
    State::Executing,
    State::FallbackInvoked,
];

/// What became of one report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    Accepted,
    Duplicate,
    Conflict,
    Rejected,
}

impl Received {
    const ALL: [&'static str; 4] = ["accepted", "duplicate", "conflict", "rejected"];
}

/// What a published contract was found to be, the worse the later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Audit {
    Ok,
    /// Sound, and nobody's word stands behind it.
    Unsigned,
    /// Not looked at yet, or beyond the bounds of the audit.
    Unaudited,
    /// No contract can be read there.
    Unreadable,
    /// Nobody who is believed has signed it.
    Untrusted,
    /// It is not what was published.
    Mismatch,
}

impl Audit {
    pub const ALL: [Audit; 6] = [
        Audit::Ok,
        Audit::Unsigned,
        Audit::Unaudited,
        Audit::Unreadable,
        Audit::Untrusted,
        Audit::Mismatch,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Audit::Ok => "ok",
            Audit::Unsigned => "unsigned",
            Audit::Unaudited => "unaudited",
            Audit::Unreadable => "unreadable",
            Audit::Untrusted => "untrusted",
            Audit::Mismatch => "mismatch",
        }
    }

    /// Says whether a person must look at it.
    pub fn is_wrong(self) -> bool {
        self >= Audit::Unreadable
    }
}

/// All families of one collector; shared by `Arc`.
#[derive(Debug)]
pub struct Collector {
    registry: Registry,
    reports: [IntCounter; 4],
    open: [IntGauge; 4],
    stalled: IntGauge,
    finished: IntCounterVec,
    applications: Mutex<HashSet<String>>,
    breaks: IntCounterVec,
    lag: Histogram,
    store_write: Histogram,
    audits: [IntGauge; Audit::ALL.len()],
    consul_requests: IntCounterVec,
    pub(super) tls: TlsSeries,
}

impl Collector {
    /// Declares every family.
    pub fn new() -> Self {
        let registry = Registry::new_custom(Some("hermes_collector".to_owned()), None)
            .expect("the prefix is not empty");
        let to = Declare(&registry);
        to.build_info();
        let reports = to.counters("reports_total", "Reports received.", &["result"]);
        let open = to.gauges(
            "tasks_open",
            "Tasks whose newest attempt has not ended, by its state.",
            &["state"],
        );
        let audits = to.gauges(
            "contract_audits",
            "Published contract bodies by what the last audit found; all 0 before the first.",
            &["state"],
        );
        Self {
            reports: Received::ALL.map(|result| reports.with_label_values(&[result])),
            open: OPEN.map(|state| open.with_label_values(&[state.as_str()])),
            stalled: to.gauge(
                "tasks_stalled",
                "Calls past the deadline of their newest attempt without a word of their end, marked ones for an hour.",
            ),
            finished: to.counters(
                "tasks_finished_total",
                "Attempts that reached an end state, by reporting application.",
                &["application", "state"],
            ),
            applications: Mutex::default(),
            breaks: to.counters(
                "chain_breaks_total",
                "Attempts whose two sides saw different bytes.",
                &["application"],
            ),
            lag: to.histogram(
                "report_lag_seconds",
                "Time between the last state of a report and its arrival.",
                DELAY,
            ),
            store_write: to.histogram(
                "store_write_duration_seconds",
                "Time of one commit, whatever it holds.",
                PROCESSING,
            ),
            audits: Audit::ALL.map(|state| audits.with_label_values(&[state.as_str()])),
            consul_requests: to.counters(
                "consul_requests_total",
                "Requests to Consul.",
                &["operation", "result"],
            ),
            tls: TlsSeries::declare(&to),
            registry,
        }
    }

    /// Writes all families in the Prometheus text format.
    pub fn render(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .unwrap_or_default()
    }

    pub fn received(&self, result: Received, count: u64) {
        self.reports[result as usize].inc_by(count);
    }

    /// Shows how many tasks are open per state; states that are no open ones are ignored.
    pub fn open(&self, counts: &[(State, u64)], stalled: u64) {
        for (gauge, state) in self.open.iter().zip(OPEN) {
            let count = counts.iter().find(|(of, _)| *of == state);
            gauge.set(count.map_or(0, |(_, count)| *count as i64));
        }
        self.stalled.set(stalled as i64);
    }

    pub fn finished(&self, application: &str, end: State) {
        let application = self.bounded(application);
        self.breaks.with_label_values(&[application.as_str()]);
        for state in ENDS {
            // Touching all ends makes each series start at 0 with its neighbours.
            let series = self
                .finished
                .with_label_values(&[application.as_str(), state.as_str()]);
            if state == end {
                series.inc();
            }
        }
    }

    pub fn chain_break(&self, application: &str) {
        let application = self.bounded(application);
        self.breaks.with_label_values(&[application.as_str()]).inc();
    }

    pub fn lag(&self, lag: Duration) {
        self.lag.observe(lag.as_secs_f64());
    }

    /// Shows how many published contracts are in each state, in the order of `Audit::ALL`.
    pub fn audited(&self, counts: [usize; Audit::ALL.len()]) {
        for (gauge, count) in self.audits.iter().zip(counts) {
            gauge.set(count as i64);
        }
    }

    /// Begins the series of one kind of request to Consul at 0.
    pub fn consul_kind(&self, operation: &str, result: &str) {
        self.consul_requests.with_label_values(&[operation, result]);
    }

    /// Counts one request to Consul; both labels come from the client's enums.
    pub fn consul_request(&self, operation: &str, result: &str) {
        self.consul_requests
            .with_label_values(&[operation, result])
            .inc();
    }

    pub fn store_write(&self, took: Duration) {
        self.store_write.observe(took.as_secs_f64());
    }

    fn bounded(&self, application: &str) -> String {
        let mut known = self
            .applications
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if known.contains(application) || known.len() < MOST_APPLICATIONS {
            known.insert(application.to_owned());
            application.to_owned()
        } else {
            "_other".to_owned()
        }
    }
}

impl Default for Collector {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_starts_with_all_its_ends() {
        let metrics = Collector::new();
        metrics.finished("fraud", State::Completed);
        let text = metrics.render();
        for series in [
            r#"hermes_collector_tasks_finished_total{application="fraud",state="completed"} 1"#,
            r#"hermes_collector_tasks_finished_total{application="fraud",state="timeout"} 0"#,
            r#"hermes_collector_chain_breaks_total{application="fraud"} 0"#,
            r#"hermes_collector_reports_total{result="conflict"} 0"#,
            r#"hermes_collector_contract_audits{state="mismatch"} 0"#,
        ] {
            assert!(text.contains(series), "missing {series}");
        }
    }
}
