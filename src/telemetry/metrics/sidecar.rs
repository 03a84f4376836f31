//! The sidecar's registry; its families stand in the neighbouring files, by what they are about.

use super::consul::Consul;
use super::contract::{Contract, Contracts, Direction};
use super::family::Declare;
use super::proxy::Proxy;
use super::spool::Spool;
use super::standing::StandingSeries;
use super::tasks::Tasks;
use super::tls::TlsSeries;
use prometheus::{Registry, TextEncoder};
use std::collections::HashMap;
use std::sync::Arc;

/// All families of one sidecar; shared by `Arc`.
#[derive(Debug)]
pub struct Sidecar {
    registry: Registry,
    contracts: Contracts,
    pub(super) proxy: Proxy,
    pub(super) tasks: Tasks,
    pub(super) standing: StandingSeries,
    pub(super) consul: Consul,
    pub(super) spool: Spool,
    pub(super) tls: TlsSeries,
}

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
        to.build_info();
        Self {
            contracts: Contracts::declare(&to, dropped.with_label_values(&["contract"])),
            proxy: Proxy::declare(&to),
            tasks: Tasks::declare(&to),
            standing: StandingSeries::declare(&to),
            consul: Consul::declare(&to),
            spool: Spool::declare(&to),
            tls: TlsSeries::declare(&to),
            registry,
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
