//! Our own certificates.

use super::collector::Collector;
use super::family::{Declare, set_time};
use super::sidecar::Sidecar;
use crate::task::Timestamp;
use prometheus::{GaugeVec, IntCounterVec};

const CERTIFICATES: [&str; 2] = ["own", "ca"];
const RESULTS: [&str; 2] = ["taken", "refused"];

/// The families about certificates; a sidecar and a collector have the same.
#[derive(Debug, Clone)]
pub struct TlsSeries {
    expiry: GaugeVec,
    reloads: IntCounterVec,
}

impl TlsSeries {
    pub(super) fn declare(to: &Declare<'_>) -> Self {
        Self {
            expiry: to.seconds_gauges(
                "tls_certificate_expiry_timestamp_seconds",
                "When our certificate (own) and the first of the trusted roots (ca) expires, in seconds since the epoch; absent without TLS.",
                &["certificate"],
            ),
            reloads: to.counters(
                "tls_reloads_total",
                "Changed TLS files: taken into use, or refused and the last good ones kept.",
                &["certificate", "result"],
            ),
        }
    }

    /// Begins the counters at 0; without TLS there is nothing to count.
    pub fn begin(&self) {
        for certificate in CERTIFICATES {
            for result in RESULTS {
                self.reloads.with_label_values(&[certificate, result]);
            }
        }
    }

    /// Shows when the certificates in use expire.
    pub fn expire(&self, own: Timestamp, ca: Timestamp) {
        for (certificate, at) in CERTIFICATES.into_iter().zip([own, ca]) {
            set_time(&self.expiry.with_label_values(&[certificate]), Some(at));
        }
    }

    /// Counts a change of files; `certificate` comes from the enum of those who read them.
    pub fn reloaded(&self, certificate: &str, is_taken: bool) {
        let result = if is_taken { "taken" } else { "refused" };
        self.reloads.with_label_values(&[certificate, result]).inc();
    }
}

impl Sidecar {
    /// Returns the families about certificates.
    pub fn tls(&self) -> &TlsSeries {
        &self.tls
    }
}

impl Collector {
    /// Returns the families about certificates.
    pub fn tls(&self) -> &TlsSeries {
        &self.tls
    }
}
