//! How busy the registry is, as it tells itself.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::{Client, Operation, Poll, from_json};
use crate::consul::Error;

/// What an agent tells of the last ten seconds or so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests over HTTP, one entry per method and path.
    pub requests: Vec<RequestTimes>,
    /// How often this server stood for election; always none on a client agent.
    pub elections: u64,
}

/// How long the agent took over requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestTimes {
    /// Method and path, for example `GET v1.status.leader`.
    pub what: String,
    pub count: u64,
    pub mean: Duration,
    pub max: Duration,
}

impl RequestTimes {
    /// Says whether the time is the agent's own: other reads may have waited for news on purpose.
    pub fn is_work(&self) -> bool {
        let (method, path) = self.what.split_once(' ').unwrap_or_default();
        // One service by its id may be a poll by hash.
        let is_poll = path.starts_with("v1.agent.service.") || path == "v1.agent.service";
        method != "GET"
            || path.starts_with("v1.status.")
            || (path.starts_with("v1.agent.") && !is_poll)
    }
}

impl Client {
    /// Reads the servers that take part in elections. Needs no token.
    pub async fn peers(&self) -> Result<Vec<String>, Error> {
        let doing = "ask for the servers";
        let url = self.url(["status", "peers"]);
        let reply = self
            .read(Operation::Status, doing, url, Poll::CONSISTENT)
            .await?;
        let mut peers: Vec<String> = from_json(doing, &reply.body)?;
        peers.sort_unstable();
        Ok(peers)
    }

    /// Reads the agent's own measurements (`agent:read`).
    pub async fn load(&self) -> Result<Load, Error> {
        let doing = "read the agent's metrics";
        let url = self.url(["agent", "metrics"]);
        let reply = self
            .read(Operation::Agent, doing, url, Poll::CONSISTENT)
            .await?;
        let raw: RawMetrics = from_json(doing, &reply.body)?;
        Ok(raw.into())
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RawMetrics {
    counters: Option<Vec<RawSample>>,
    samples: Option<Vec<RawSample>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RawSample {
    name: String,
    count: u64,
    mean: f64,
    max: f64,
    labels: Option<BTreeMap<String, String>>,
}

impl From<RawMetrics> for Load {
    fn from(raw: RawMetrics) -> Self {
        let elections = raw.counters.iter().flatten();
        let elections = elections.filter(|one| one.name.ends_with("raft.state.candidate"));
        Load {
            elections: elections.map(|one| one.count).sum(),
            requests: raw.samples.iter().flatten().filter_map(request).collect(),
        }
    }
}

/// Reads a sample of request times under any of its names: `consul.http.GET.v1.status.leader` up to
/// 1.8, `consul.api.http` with labels after it; operators may put another word before (or a host name).
fn request(sample: &RawSample) -> Option<RequestTimes> {
    const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];
    let label = |name: &str| sample.labels.as_ref()?.get(name).map(String::as_str);
    let is_labelled = sample.name.ends_with(".api.http") || sample.name.ends_with(".http");
    let what = match (is_labelled, label("method"), label("path")) {
        (true, Some(method), Some(path)) => {
            let path = path.trim_matches(['/', '_', '.']).replace(['/', '_'], ".");
            format!("{method} {path}")
        }
        (true, ..) => return None,
        (false, ..) => {
            let (_, rest) = sample.name.split_once(".http.")?;
            let (method, path) = rest.split_once('.')?;
            METHODS
                .contains(&method)
                .then(|| format!("{method} {path}"))?
        }
    };
    Some(RequestTimes {
        what,
        count: sample.count,
        mean: milliseconds(sample.mean)?,
        max: milliseconds(sample.max)?,
    })
}

fn milliseconds(value: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(value / 1000.0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn load(metrics: serde_json::Value) -> Load {
        let raw: RawMetrics = serde_json::from_value(metrics).unwrap();
        raw.into()
    }

    #[test]
    fn request_times_are_found_under_the_names_of_many_versions() {
        let labelled = |name: &str, path: &str| {
            json!({"Name": name, "Count": 3, "Mean": 2.5, "Max": 4.0,
                   "Labels": {"method": "GET", "path": path}})
        };
        let plain =
            |name: &str| json!({"Name": name, "Count": 3, "Mean": 2.5, "Max": 4.0, "Labels": {}});
        for (sample, expected) in [
            (
                plain("consul.http.GET.v1.status.leader"),
                Some("GET v1.status.leader"),
            ),
            (
                plain("registry.host-1.http.PUT.v1.agent.check.update._"),
                Some("PUT v1.agent.check.update._"),
            ),
            (
                labelled("consul.api.http", "v1_status_leader"),
                Some("GET v1.status.leader"),
            ),
            (labelled("consul.api.http", "/v1/kv/"), Some("GET v1.kv")),
            (
                labelled("consul.http", "v1_agent_self"),
                Some("GET v1.agent.self"),
            ),
            (plain("consul.api.http"), None),
            (plain("consul.rpc.request"), None),
            (plain("consul.http.something.else"), None),
        ] {
            let found = load(json!({"Samples": [sample.clone()]})).requests;
            let names: Vec<_> = found.iter().map(|one| one.what.as_str()).collect();
            assert_eq!(names, Vec::from_iter(expected), "{sample}");
            for one in found {
                assert_eq!((one.count, one.mean), (3, Duration::from_micros(2500)));
            }
        }
    }

    #[test]
    fn reads_that_may_wait_on_purpose_are_no_work() {
        for (what, is_work) in [
            ("GET v1.status.leader", true),
            ("GET v1.agent.self", true),
            ("PUT v1.agent.service.register", true),
            ("PUT v1.kv", true),
            ("GET v1.agent.service._", false),
            ("GET v1.health.service._", false),
            ("GET v1.kv", false),
            ("GET v1.catalog.services", false),
        ] {
            let times = RequestTimes {
                what: what.to_owned(),
                count: 1,
                mean: Duration::ZERO,
                max: Duration::ZERO,
            };
            assert_eq!(times.is_work(), is_work, "{what}");
        }
    }

    #[test]
    fn elections_are_counted_and_nothing_is_not_amiss() {
        let counted = load(json!({"Counters": [
            {"Name": "consul.raft.state.candidate", "Count": 2},
            {"Name": "consul.raft.state.leader", "Count": 1},
        ], "Samples": null}));
        assert_eq!(counted.elections, 2);
        assert_eq!(load(json!({})), Load::default());
    }
}
