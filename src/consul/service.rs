//! A service as we register it with the local agent, and as the agent gives it back.
//!
//! `Registration` serialises to exactly the fields that Consul 1.8.7 knows (an agent refuses a
//! body with one field it does not know) and is held against every limit before it is sent, so
//! that an operator reads which field is wrong instead of a 400.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use super::error::Error;

/// Consul's own limits on meta.
const MAX_META_PAIRS: usize = 64;
const MAX_META_KEY_BYTES: usize = 128;
const MAX_META_VALUE_BYTES: usize = 512;
const MAX_WEIGHT: u32 = 65_535;
/// Ours; Consul checks neither names nor tags.
const MAX_NAME_BYTES: usize = 255;
const MAX_TAGS: usize = 64;
const MAX_TAG_BYTES: usize = 255;
const MAX_CHECKS: usize = 8;
/// Consul raises anything lower to this without a word.
const MIN_DEREGISTER_AFTER: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Unique on its agent only; stable over restarts.
    pub id: String,
    pub name: String,
    pub address: String,
    pub port: u16,
    pub tags: Vec<String>,
    pub weight: u32,
    pub meta: BTreeMap<String, String>,
    pub checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Check ids are shared by the whole agent, so ours begin with the service's id and a colon.
    pub id: String,
    pub name: String,
    pub kind: CheckKind,
    /// The state to be born with; a check that exists already keeps its own.
    pub status: CheckStatus,
    pub deregister_after: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckKind {
    Ttl(Duration),
    Http {
        url: String,
        interval: Duration,
        timeout: Duration,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    Passing,
    Warning,
    Critical,
}

impl CheckStatus {
    pub const fn as_str(self) -> &'static str {
        match self {
            CheckStatus::Passing => "passing",
            CheckStatus::Warning => "warning",
            CheckStatus::Critical => "critical",
        }
    }
}

/// Our service as the local agent has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    pub id: String,
    pub name: String,
    pub address: String,
    pub port: u16,
    pub tags: Vec<String>,
    pub weight: u32,
    pub meta: BTreeMap<String, String>,
    /// Changes with the definition; what a hash watch waits on.
    pub hash: String,
}

impl Registration {
    /// Holds every field against Consul's limits and ours; the error names all that do not fit.
    pub fn validate(&self) -> Result<(), Error> {
        let mut problems = Vec::new();
        check_word("ID", &self.id, MAX_NAME_BYTES, is_id_char, &mut problems);
        check_word(
            "Name",
            &self.name,
            MAX_NAME_BYTES,
            is_name_char,
            &mut problems,
        );
        match self.address.as_str() {
            "" => problems.push("Address is empty".to_owned()),
            "0.0.0.0" | "::" | "[::]" => {
                problems.push(format!("Address {:?} is nobody's address", self.address));
            }
            _ => {}
        }
        if self.port == 0 {
            problems.push("Port is 0".to_owned());
        }
        if !(1..=MAX_WEIGHT).contains(&self.weight) {
            problems.push(format!(
                "Weights.Passing is {}, allowed are 1 to {MAX_WEIGHT}",
                self.weight
            ));
        }
        self.check_tags(&mut problems);
        self.check_meta(&mut problems);
        self.check_checks(&mut problems);
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid {
            what: format!("registration {:?}", self.id),
            problems,
        })
    }

    fn check_tags(&self, problems: &mut Vec<String>) {
        if self.tags.len() > MAX_TAGS {
            problems.push(format!(
                "Tags has {} entries, at most {MAX_TAGS}",
                self.tags.len()
            ));
        }
        for tag in &self.tags {
            if tag.is_empty() || tag.len() > MAX_TAG_BYTES || tag.contains(char::is_control) {
                problems.push(format!(
                    "Tags: {tag:.40?} is not 1 to {MAX_TAG_BYTES} printable bytes"
                ));
            }
        }
    }

    fn check_meta(&self, problems: &mut Vec<String>) {
        if self.meta.len() > MAX_META_PAIRS {
            problems.push(format!(
                "Meta has {} pairs, at most {MAX_META_PAIRS}",
                self.meta.len()
            ));
        }
        for (key, value) in &self.meta {
            let field = format!("Meta key {key:.40?}");
            check_word(&field, key, MAX_META_KEY_BYTES, is_meta_char, problems);
            if key.starts_with("consul-") {
                problems.push(format!(
                    "{field} begins with \"consul-\", which is reserved"
                ));
            }
            if value.len() > MAX_META_VALUE_BYTES {
                let length = value.len();
                problems.push(format!(
                    "Meta[{key}] has {length} bytes, at most {MAX_META_VALUE_BYTES}"
                ));
            }
        }
    }

    fn check_checks(&self, problems: &mut Vec<String>) {
        if self.checks.len() > MAX_CHECKS {
            problems.push(format!(
                "Checks has {} entries, at most {MAX_CHECKS}",
                self.checks.len()
            ));
        }
        for check in &self.checks {
            let field = format!("Checks[{}]", check.id);
            let own = check
                .id
                .strip_prefix(&self.id)
                .and_then(|rest| rest.strip_prefix(':'));
            if own.is_none_or(str::is_empty) {
                problems.push(format!(
                    "{field}: CheckID does not begin with \"{}:\"",
                    self.id
                ));
            }
            let (shortest, what) = match &check.kind {
                CheckKind::Ttl(ttl) => (*ttl, "TTL"),
                CheckKind::Http {
                    interval, timeout, ..
                } => (*interval.min(timeout), "Interval or Timeout"),
            };
            if shortest < Duration::from_millis(1) {
                problems.push(format!("{field}: {what} is below 1 ms"));
            }
            if check
                .deregister_after
                .is_some_and(|after| after < MIN_DEREGISTER_AFTER)
            {
                problems.push(format!(
                    "{field}: DeregisterCriticalServiceAfter is below 1 min"
                ));
            }
        }
    }
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

fn is_id_char(c: char) -> bool {
    is_name_char(c) || matches!(c, ':' | '~')
}

fn is_meta_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

fn check_word(
    field: &str,
    word: &str,
    max: usize,
    allowed: fn(char) -> bool,
    problems: &mut Vec<String>,
) {
    if word.is_empty() {
        problems.push(format!("{field} is empty"));
    }
    if word.len() > max {
        problems.push(format!("{field} has {} bytes, at most {max}", word.len()));
    }
    if let Some(c) = word.chars().find(|c| !allowed(*c)) {
        problems.push(format!("{field} holds {c:?}, which is not allowed"));
    }
}

impl Serialize for Registration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Wire {
            id: &self.id,
            name: &self.name,
            tags: &self.tags,
            address: &self.address,
            port: self.port,
            weights: Weights {
                passing: self.weight,
                warning: 1,
            },
            meta: &self.meta,
            enable_tag_override: false,
            checks: self.checks.iter().map(WireCheck::from).collect(),
        }
        .serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Wire<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    name: &'a str,
    tags: &'a [String],
    address: &'a str,
    port: u16,
    weights: Weights,
    meta: &'a BTreeMap<String, String>,
    enable_tag_override: bool,
    checks: Vec<WireCheck<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Weights {
    passing: u32,
    warning: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct WireCheck<'a> {
    #[serde(rename = "CheckID")]
    id: &'a str,
    name: &'a str,
    status: CheckStatus,
    #[serde(rename = "TTL", skip_serializing_if = "Option::is_none")]
    ttl: Option<String>,
    #[serde(rename = "HTTP", skip_serializing_if = "Option::is_none")]
    http: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deregister_critical_service_after: Option<String>,
}

impl<'a> From<&'a Check> for WireCheck<'a> {
    fn from(check: &'a Check) -> WireCheck<'a> {
        let (ttl, http, interval, timeout) = match &check.kind {
            CheckKind::Ttl(ttl) => (Some(go_duration(*ttl)), None, None, None),
            CheckKind::Http {
                url,
                interval,
                timeout,
            } => (
                None,
                Some(url.as_str()),
                Some(go_duration(*interval)),
                Some(go_duration(*timeout)),
            ),
        };
        WireCheck {
            id: &check.id,
            name: &check.name,
            status: check.status,
            ttl,
            http,
            interval,
            timeout,
            deregister_critical_service_after: check.deregister_after.map(go_duration),
        }
    }
}

/// Writes a length the way Go reads it; a bare number would be nanoseconds.
pub(super) fn go_duration(length: Duration) -> String {
    format!("{}ms", length.as_millis())
}

/// The agent's answer for one service; absent and `null` mean empty.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct RawService {
    #[serde(rename = "ID")]
    id: String,
    service: String,
    address: String,
    port: i64,
    tags: Option<Vec<String>>,
    meta: Option<BTreeMap<String, String>>,
    weights: RawWeights,
    content_hash: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct RawWeights {
    pub(super) passing: i64,
}

impl Default for RawWeights {
    /// What Consul itself assumes.
    fn default() -> Self {
        RawWeights { passing: 1 }
    }
}

impl RawWeights {
    pub(super) fn weight(&self) -> u32 {
        u32::try_from(self.passing.clamp(1, i64::from(MAX_WEIGHT))).unwrap_or(1)
    }
}

impl From<RawService> for Registered {
    fn from(raw: RawService) -> Registered {
        Registered {
            weight: raw.weights.weight(),
            id: raw.id,
            name: raw.service,
            address: raw.address,
            port: u16::try_from(raw.port).unwrap_or(0),
            tags: raw.tags.unwrap_or_default(),
            meta: raw.meta.unwrap_or_default(),
            hash: raw.content_hash,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn registration() -> Registration {
        Registration {
            id: "fraud-v1.0-host-7401".to_owned(),
            name: "fraud-v1.0".to_owned(),
            address: "10.0.0.1".to_owned(),
            port: 7401,
            tags: vec!["hermes".to_owned()],
            weight: 100,
            meta: BTreeMap::from([("hermes_version".to_owned(), "1.0.0".to_owned())]),
            checks: vec![Check {
                id: "fraud-v1.0-host-7401:ttl".to_owned(),
                name: "sidecar".to_owned(),
                kind: CheckKind::Ttl(Duration::from_secs(15)),
                status: CheckStatus::Critical,
                deregister_after: Some(Duration::from_secs(600)),
            }],
        }
    }

    #[test]
    fn only_fields_that_old_agents_know_are_sent() {
        let mut registration = registration();
        registration.checks.push(Check {
            id: "fraud-v1.0-host-7401:http".to_owned(),
            name: "heartbeat".to_owned(),
            kind: CheckKind::Http {
                url: "http://10.0.0.1:7401/hermes/heartbeat".to_owned(),
                interval: Duration::from_secs(10),
                timeout: Duration::from_secs(5),
            },
            status: CheckStatus::Passing,
            deregister_after: None,
        });
        assert!(registration.validate().is_ok());
        assert_eq!(
            serde_json::to_value(&registration).expect("json"),
            json!({
                "ID": "fraud-v1.0-host-7401", "Name": "fraud-v1.0", "Tags": ["hermes"],
                "Address": "10.0.0.1", "Port": 7401, "Weights": {"Passing": 100, "Warning": 1},
                "Meta": {"hermes_version": "1.0.0"}, "EnableTagOverride": false,
                "Checks": [
                    {"CheckID": "fraud-v1.0-host-7401:ttl", "Name": "sidecar", "Status": "critical",
                     "TTL": "15000ms", "DeregisterCriticalServiceAfter": "600000ms"},
                    {"CheckID": "fraud-v1.0-host-7401:http", "Name": "heartbeat", "Status": "passing",
                     "HTTP": "http://10.0.0.1:7401/hermes/heartbeat", "Interval": "10000ms",
                     "Timeout": "5000ms"}
                ]
            })
        );
    }

    #[test]
    fn a_field_that_does_not_fit_is_named() {
        type Break = fn(&mut Registration);
        let cases: [(&str, Break); 18] = [
            ("ID is empty", |r| r.id.clear()),
            ("ID holds '/'", |r| r.id = "a/b".to_owned()),
            ("Name holds ' '", |r| r.name = "a b".to_owned()),
            ("Name has 256 bytes", |r| r.name = "a".repeat(256)),
            ("Address is empty", |r| r.address.clear()),
            ("Address \"0.0.0.0\"", |r| r.address = "0.0.0.0".to_owned()),
            ("Port is 0", |r| r.port = 0),
            ("Weights.Passing is 0", |r| r.weight = 0),
            ("Weights.Passing is 70000", |r| r.weight = 70_000),
            ("Tags has 65", |r| r.tags = vec!["t".to_owned(); 65]),
            ("Tags: \"\"", |r| r.tags.push(String::new())),
            ("Meta has 65 pairs", |r| {
                r.meta = (0..65).map(|n| (format!("k{n}"), String::new())).collect();
            }),
            ("Meta key \"hermes.version\"", |r| {
                r.meta.insert("hermes.version".to_owned(), String::new());
            }),
            ("reserved", |r| {
                r.meta.insert("consul-x".to_owned(), String::new());
            }),
            ("Meta[route] has 514 bytes", |r| {
                r.meta.insert("route".to_owned(), "é".repeat(257));
            }),
            ("CheckID does not begin", |r| {
                r.checks[0].id = "ttl".to_owned()
            }),
            ("TTL is below", |r| {
                r.checks[0].kind = CheckKind::Ttl(Duration::ZERO)
            }),
            ("below 1 min", |r| {
                r.checks[0].deregister_after = Some(Duration::from_secs(10))
            }),
        ];
        for (expected, spoil) in cases {
            let mut registration = registration();
            spoil(&mut registration);
            let error = registration.validate().expect_err(expected).to_string();
            assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        }
    }

    #[test]
    fn an_answer_with_nulls_is_read() {
        let raw: RawService = serde_json::from_value(
            json!({"ID": "a", "Service": "b", "Tags": null, "Meta": null, "New": 1}),
        )
        .expect("json");
        let registered = Registered::from(raw);
        assert_eq!(
            (registered.id.as_str(), registered.weight, registered.port),
            ("a", 1, 0)
        );
    }
}
