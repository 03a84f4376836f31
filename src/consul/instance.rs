//! One registered copy of a service, read from a health answer.
//!
//! Decoding is tolerant: other versions add fields and leave others `null`. What cannot be
//! called at all (no id, no address, no port) is left out.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::service::{CheckStatus, RawWeights};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub id: Arc<str>,
    pub node: String,
    /// Where the node's own agent is reached; empty where Consul does not say.
    #[serde(default)]
    pub node_address: String,
    pub service: String,
    /// The service's own address, else its node's.
    pub address: Arc<str>,
    pub port: u16,
    pub tags: Vec<String>,
    pub weight: u32,
    pub meta: BTreeMap<String, String>,
    /// Every check of the service and its node passes.
    pub passing: bool,
}

/// What an instance says about itself, in service meta.
impl Instance {
    /// The contract's version.
    pub fn version(&self) -> Option<&str> {
        self.text("hermes_version")
    }

    /// The contract's digest; the truth about this instance, whatever the key/value store says.
    pub fn digest(&self) -> Option<&str> {
        self.text("hermes_digest")
    }

    /// Method and path, from `POST /api/v1/risk`; nothing where they could not be a contract's.
    ///
    /// Whoever may register decides what we send, so nothing but such a route is sent.
    pub fn route(&self) -> Option<(&str, &str)> {
        let (method, path) = self.text("hermes_route")?.split_once(' ')?;
        let is_method = matches!(method, "POST" | "PUT" | "PATCH");
        (is_method && is_plain(path)).then_some((method, path))
    }

    /// Says whether it names a route, sound or not.
    pub fn has_route(&self) -> bool {
        self.text("hermes_route").is_some()
    }

    /// The application's name, which its certificate must carry.
    pub fn app(&self) -> Option<&str> {
        self.text("hermes_app")
    }

    pub fn region(&self) -> Option<&str> {
        self.text("hermes_region")
    }

    pub fn team(&self) -> Option<&str> {
        self.text("hermes_team")
    }

    pub fn max_concurrent(&self) -> Option<u32> {
        self.text("hermes_max_concurrent")?.parse().ok()
    }

    /// `http`, or `https` for mTLS.
    pub fn proto(&self) -> &str {
        self.text("hermes_proto").unwrap_or("http")
    }

    /// Random per start of the sidecar.
    pub fn boot(&self) -> Option<&str> {
        self.text("hermes_boot")
    }

    /// Where its metrics can be read.
    pub fn admin(&self) -> Option<&str> {
        self.text("hermes_admin")
    }

    pub fn kid(&self) -> Option<&str> {
        self.text("hermes_kid")
    }

    /// `host:port` as it stands in a URL.
    pub fn authority(&self) -> String {
        if self.address.contains(':') && !self.address.starts_with('[') {
            format!("[{}]:{}", self.address, self.port)
        } else {
            format!("{}:{}", self.address, self.port)
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.meta
            .get(key)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }
}

/// One entry of a health answer.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct RawEntry {
    node: RawNode,
    service: RawService,
    #[serde(default)]
    checks: Option<Vec<RawCheck>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawNode {
    #[serde(default)]
    node: String,
    #[serde(default)]
    address: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawService {
    #[serde(rename = "ID")]
    id: String,
    #[serde(default)]
    service: String,
    #[serde(default)]
    address: String,
    #[serde(default)]
    port: i64,
    /// Several named ports (1.22 and later), exclusive with `port`.
    #[serde(default)]
    ports: Option<Vec<RawPort>>,
    #[serde(default)]
    tags: Option<Vec<String>>,
    #[serde(default)]
    meta: Option<BTreeMap<String, String>>,
    #[serde(default)]
    weights: RawWeights,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawPort {
    #[serde(default)]
    port: i64,
    #[serde(default)]
    default: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawCheck {
    #[serde(default)]
    status: String,
}

/// Says whether a path means the same to everybody: no query, no fragment, no dots to climb by.
fn is_plain(path: &str) -> bool {
    let is_odd = |byte: u8| !byte.is_ascii_graphic() || b"?#\\\"<>".contains(&byte);
    let climbs = |segment: &str| {
        let decoded = segment.to_ascii_lowercase().replace("%2e", ".");
        decoded == "." || decoded == ".."
    };
    path.starts_with('/') && !path.bytes().any(is_odd) && !path.split('/').any(climbs)
}

impl RawEntry {
    pub(super) fn decode(self) -> Option<Instance> {
        let RawEntry {
            node,
            service,
            checks,
        } = self;
        let address = if service.address.is_empty() {
            node.address.clone()
        } else {
            service.address
        };
        let named = service
            .ports
            .into_iter()
            .flatten()
            .find(|port| port.default);
        let port = if service.port == 0 {
            named.map_or(0, |port| port.port)
        } else {
            service.port
        };
        let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
        if service.id.is_empty() || address.is_empty() {
            return None;
        }
        let passing = checks
            .unwrap_or_default()
            .iter()
            .all(|check| check.status == PASSING);
        Some(Instance {
            id: service.id.into(),
            node: node.node,
            node_address: node.address,
            service: service.service,
            address: address.into(),
            port,
            tags: service.tags.unwrap_or_default(),
            weight: service.weights.weight(),
            meta: service.meta.unwrap_or_default(),
            passing,
        })
    }
}

const PASSING: &str = CheckStatus::Passing.as_str();

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decode(entry: serde_json::Value) -> Option<Instance> {
        serde_json::from_value::<RawEntry>(entry)
            .expect("an entry")
            .decode()
    }

    #[test]
    fn a_full_entry_is_read() {
        let instance = decode(json!({
            "Node": {"ID": "x", "Node": "n1", "Address": "10.0.0.1", "Meta": null},
            "Service": {
                "ID": "fraud-v1.0-a", "Service": "fraud-v1.0", "Address": "10.0.0.9", "Port": 7401,
                "Tags": ["hermes"], "Weights": {"Passing": 100, "Warning": 1}, "Kind": "", "New": {},
                "Meta": {"hermes_route": "POST /api/v1/risk", "hermes_max_concurrent": "10",
                         "hermes_version": "1.0.0", "hermes_region": ""}
            },
            "Checks": [{"CheckID": "serfHealth", "Status": "passing"}, {"Status": "passing"}]
        }))
        .expect("an instance");
        assert_eq!(instance.authority(), "10.0.0.9:7401");
        assert_eq!(instance.route(), Some(("POST", "/api/v1/risk")));
        assert_eq!(instance.max_concurrent(), Some(10));
        assert_eq!(
            (instance.version(), instance.region()),
            (Some("1.0.0"), None)
        );
        assert_eq!(
            (instance.weight, instance.passing, instance.proto()),
            (100, true, "http")
        );
    }

    #[test]
    fn a_sparse_entry_is_read() {
        let instance = decode(json!({
            "Node": {"Address": "fd00::1"},
            "Service": {"ID": "a", "Port": 0, "Tags": null, "Meta": null,
                        "Ports": [{"Port": 1}, {"Port": 2, "Default": true}]},
            "Checks": null
        }))
        .expect("an instance");
        assert_eq!(instance.authority(), "[fd00::1]:2");
        assert_eq!((instance.weight, instance.passing), (1, true));
    }

    #[test]
    fn one_check_that_does_not_pass_is_enough() {
        for (status, passing) in [
            ("passing", true),
            ("warning", false),
            ("critical", false),
            ("new", false),
        ] {
            let instance = decode(json!({
                "Node": {"Address": "a"}, "Service": {"ID": "a", "Port": 1},
                "Checks": [{"Status": "passing"}, {"Status": status}]
            }));
            assert_eq!(instance.map(|i| i.passing), Some(passing), "{status}");
        }
    }

    #[test]
    fn what_cannot_be_called_is_left_out() {
        for service in [
            json!({"ID": "a", "Port": 0}),
            json!({"ID": "a", "Port": 70000}),
            json!({"ID": "", "Port": 1}),
        ] {
            assert_eq!(
                decode(json!({"Node": {"Address": "a"}, "Service": service.clone()})),
                None,
                "{service}"
            );
        }
        assert_eq!(
            decode(json!({"Node": {}, "Service": {"ID": "a", "Port": 1}})),
            None
        );
    }

    #[test]
    fn a_malformed_route_is_none() {
        for (route, expected) in [
            ("POST /a", Some(("POST", "/a"))),
            ("post /a", None),
            ("POST a", None),
            ("POST", None),
            (" /a", None),
            ("DELETE /a", None),
            ("GET http://a/", None),
            ("POST /a/../b", None),
            ("POST /a/%2E%2e/b", None),
            ("POST /a?b", None),
            ("POST /a\r\nX: y", None),
            ("PATCH /a.b/%20", Some(("PATCH", "/a.b/%20"))),
        ] {
            let mut instance =
                decode(json!({"Node": {"Address": "a"}, "Service": {"ID": "a", "Port": 1}}))
                    .expect("an instance");
            instance
                .meta
                .insert("hermes_route".to_owned(), route.to_owned());
            assert_eq!(instance.route(), expected, "{route:?}");
        }
    }
}
