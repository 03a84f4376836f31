//! Short ways to declare a family in a registry.

use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

/// Request times, seconds: the contract timeouts met in practice, up to minutes.
pub const REQUEST: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
];
/// Our own share of a call and single writes, seconds.
pub const PROCESSING: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 1.0,
];
/// Duration over the contract's timeout; 1 and 1.2 are the promises.
pub const RATIO: &[f64] = &[0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.2, 1.4, 2.0, 5.0];
/// Delays of queues and deliveries, seconds.
pub const DELAY: &[f64] = &[
    0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
];
/// Reports in one batch.
pub const BATCH: &[f64] = &[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0];

/// Declares families; every name gets the registry's prefix.
pub struct Declare<'a>(pub &'a Registry);

/// Names and buckets are constants of this module's neighbours and the `metrics` test builds
/// every family, so a refusal can only be met by whoever changes them.
const DECLARED_ONCE: &str = "metric families are constants, declared once and valid";

impl Declare<'_> {
    fn register<C: prometheus::core::Collector + Clone + 'static>(&self, family: C) -> C {
        self.0
            .register(Box::new(family.clone()))
            .expect(DECLARED_ONCE);
        family
    }

    /// Declares the one gauge that tells which build this is.
    pub fn build_info(&self) {
        let version = env!("CARGO_PKG_VERSION");
        let revision = option_env!("HERMES_REVISION").unwrap_or("unknown");
        self.gauges(
            "build_info",
            "1, with the build as labels.",
            &["version", "revision"],
        )
        .with_label_values(&[version, revision])
        .set(1);
    }

    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.register(IntCounter::new(name, help).expect(DECLARED_ONCE))
    }

    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.register(IntCounterVec::new(Opts::new(name, help), labels).expect(DECLARED_ONCE))
    }

    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.register(IntGauge::new(name, help).expect(DECLARED_ONCE))
    }

    pub fn seconds_gauge(&self, name: &str, help: &str) -> Gauge {
        self.register(Gauge::new(name, help).expect(DECLARED_ONCE))
    }

    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels).expect(DECLARED_ONCE))
    }

    pub fn seconds_gauges(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.register(GaugeVec::new(Opts::new(name, help), labels).expect(DECLARED_ONCE))
    }

    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register(Histogram::with_opts(options).expect(DECLARED_ONCE))
    }

    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
        labels: &[&str],
    ) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register(HistogramVec::new(options, labels).expect(DECLARED_ONCE))
    }
}

/// Sets a gauge to a duration in seconds since the epoch, or 0 for "never".
pub fn set_time(gauge: &Gauge, at: Option<crate::task::Timestamp>) {
    gauge.set(at.map_or(0.0, |at| at.millis() as f64 / 1000.0));
}
