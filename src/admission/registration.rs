//! What Consul is told of one contract: service, tags, meta, checks.

use super::standing::{DEREGISTER_AFTER, TTL};
use super::{Config, Ours};
use crate::consul::{Check, CheckKind, CheckStatus, Layout, Registration};
use crate::contract::trust;
use std::collections::BTreeMap;
use std::time::Duration;

impl Config {
    /// Names the service of one contract on this copy.
    pub(super) fn id(&self, ours: &Ours, layout: &Layout) -> String {
        let service = layout.service(ours.contract.contract.id.as_str());
        format!("{service}-{}", self.instance)
    }

    /// Describes the service as it is registered.
    pub(super) fn registration(
        &self,
        ours: &Ours,
        layout: &Layout,
        address: String,
        status: CheckStatus,
    ) -> Registration {
        let contract = &ours.contract.contract;
        let mut tags = vec!["hermes".to_owned()];
        if !self.team.is_empty() {
            tags.push(format!("team-{}", self.team));
        }
        for tag in contract.tags.iter().chain(&self.tags) {
            if !tags.contains(tag) {
                tags.push(tag.clone());
            }
        }
        let checks = self.checks(ours, &self.id(ours, layout), status, &address);
        Registration {
            id: self.id(ours, layout),
            name: layout.service(contract.id.as_str()),
            address,
            port: self.advertise_port,
            tags,
            weight: self.weight,
            meta: self.meta(ours),
            checks,
        }
    }

    fn meta(&self, ours: &Ours) -> BTreeMap<String, String> {
        let contract = &ours.contract.contract;
        let limit = contract.constraints.max_concurrent.to_string();
        [
            ("hermes_version", contract.version.to_string()),
            ("hermes_digest", ours.contract.digest.to_string()),
            ("hermes_route", ours.route.clone()),
            ("hermes_app", self.application.clone()),
            ("hermes_region", self.region.clone()),
            ("hermes_team", self.team.clone()),
            ("hermes_max_concurrent", limit),
            ("hermes_proto", self.proto.to_owned()),
            ("hermes_boot", self.boot.clone()),
            ("hermes_admin", self.admin.clone()),
            ("hermes_kid", trust::first_kid(contract).unwrap_or_default()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }

    fn checks(&self, ours: &Ours, id: &str, status: CheckStatus, host: &str) -> Vec<Check> {
        let contract = ours.contract.contract.id.as_str();
        let mut checks = vec![Check {
            id: format!("{id}:ttl"),
            name: format!("{contract} admitted and well"),
            kind: CheckKind::Ttl(TTL),
            status,
            deregister_after: Some(DEREGISTER_AFTER),
        }];
        if self.http_check {
            let host = match host.contains(':') {
                true => format!("[{host}]"),
                false => host.to_owned(),
            };
            let port = self.advertise_port;
            checks.push(Check {
                id: format!("{id}:http"),
                name: format!("{contract} heartbeat"),
                kind: CheckKind::Http {
                    url: format!("http://{host}:{port}/hermes/heartbeat?agent={contract}"),
                    interval: Duration::from_secs(10),
                    timeout: Duration::from_secs(5),
                },
                status,
                deregister_after: Some(DEREGISTER_AFTER),
            });
        }
        checks
    }
}
