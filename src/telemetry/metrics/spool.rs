//! Reports on their way to the collector.

use super::family::{BATCH, Declare, PROCESSING, set_time};
use super::sidecar::Sidecar;
use crate::task::Timestamp;
use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use std::time::Duration;

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

/// The families of the spool and its store.
#[derive(Debug)]
pub(super) struct Spool {
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

impl Spool {
    pub(super) fn declare(to: &Declare<'_>) -> Self {
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
        let series = Self {
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
        };
        for reason in ["expired", "rejected"] {
            series.dead_letters.with_label_values(&[reason]);
        }
        for state in ["waiting", "open", "dead"] {
            series.spool_reports.with_label_values(&[state]);
        }
        series
    }
}

impl Sidecar {
    /// Shows the spool as it is now: waiting for delivery, still open, and set aside.
    pub fn spool(&self, waiting: u64, open: u64, dead: u64, oldest: Option<Timestamp>, bytes: u64) {
        for (state, count) in [("waiting", waiting), ("open", open), ("dead", dead)] {
            self.spool
                .spool_reports
                .with_label_values(&[state])
                .set(count as i64);
        }
        set_time(&self.spool.spool_oldest, oldest);
        self.spool.spool_bytes.set(bytes as i64);
    }

    pub fn spool_appended(&self) {
        self.spool.spool_appended.inc();
    }

    pub fn spool_accepted(&self, count: u64) {
        self.spool.spool_delivered[0].inc_by(count);
    }

    pub fn spool_duplicate(&self, count: u64) {
        self.spool.spool_delivered[1].inc_by(count);
    }

    pub fn spool_failed(&self, reason: SpoolLoss) {
        self.spool.spool_failures[reason as usize].inc();
    }

    /// Counts a report that outlived its retention before the collector took it.
    pub fn dead_letter_expired(&self, count: u64) {
        self.spool
            .dead_letters
            .with_label_values(&["expired"])
            .inc_by(count);
    }

    /// Counts a report that the collector refused for good.
    pub fn dead_letter_rejected(&self, count: u64) {
        self.spool
            .dead_letters
            .with_label_values(&["rejected"])
            .inc_by(count);
    }

    pub fn batch(&self, reports: usize) {
        self.spool.batch.observe(reports as f64);
    }

    pub fn store_write(&self, took: Duration) {
        self.spool.store_write.observe(took.as_secs_f64());
    }

    pub fn durability_degraded(&self) {
        self.spool.durability_degraded.inc();
    }
}
