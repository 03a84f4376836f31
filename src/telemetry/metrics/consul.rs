//! Requests to Consul.

use super::family::{Declare, REQUEST, set_time};
use super::sidecar::Sidecar;
use crate::task::Timestamp;
use prometheus::{Gauge, HistogramVec, IntCounter, IntCounterVec};
use std::time::Duration;

/// The families of the registry.
#[derive(Debug)]
pub(super) struct Consul {
    consul_requests: IntCounterVec,
    consul_duration: HistogramVec,
    consul_contact: Gauge,
    reregistrations: IntCounter,
}

impl Consul {
    pub(super) fn declare(to: &Declare<'_>) -> Self {
        Self {
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
        }
    }
}

impl Sidecar {
    /// Begins the series of one kind of request at 0; both labels come from the client's enums.
    pub fn consul_kind(&self, operation: &str, result: &str) {
        let requests = &self.consul.consul_requests;
        requests.with_label_values(&[operation, result]);
    }

    /// Counts one request to Consul; both labels come from the client's enums.
    pub fn consul_request(&self, operation: &str, result: &str, took: Duration, answered: bool) {
        self.consul
            .consul_requests
            .with_label_values(&[operation, result])
            .inc();
        self.consul
            .consul_duration
            .with_label_values(&[operation])
            .observe(took.as_secs_f64());
        if answered {
            set_time(&self.consul.consul_contact, Some(Timestamp::now()));
        }
    }

    pub fn reregistered(&self) {
        self.consul.reregistrations.inc();
    }
}
