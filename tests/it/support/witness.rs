//! Somebody who watches a service in Consul the whole time, as callers do.

use super::client::client;
use super::consul::Consul;
use super::wait::wait_until;
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// What the health endpoint said of one service, change by change.
pub struct Witness {
    service: String,
    seen: Arc<Mutex<Vec<String>>>,
    _worker: JoinSet<()>,
}

impl Witness {
    /// Begins to watch; returns once the first answer is there.
    pub async fn of(consul: &Consul, service: &str) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let url = format!("{}/v1/health/service/{service}", consul.address());
        let mut worker = JoinSet::new();
        worker.spawn(watch(url, seen.clone()));
        let witness = Self {
            service: service.to_owned(),
            seen,
            _worker: worker,
        };
        wait_until(Duration::from_secs(10), "first answer", async || {
            !witness.seen.lock().unwrap().is_empty()
        })
        .await;
        witness
    }

    /// Returns what was seen: `absent`, or the worst check of each instance, `critical` or
    /// `passing`. What did not change is there once.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// Asserts that no caller was ever led here.
    pub fn never_passed(&self) {
        let seen = self.seen();
        let service = &self.service;
        let passed = seen.iter().any(|status| status.contains("passing"));
        assert!(!passed, "{service} was passing: {seen:?}");
    }

    /// Waits until it has seen these one after the other, from its beginning; anything else on the
    /// way fails.
    pub async fn saw(&self, expected: &[&str], within: Duration) {
        let service = &self.service;
        let what = format!("{service} to be {expected:?}");
        wait_until(within, &what, async || {
            let seen = self.seen();
            let fits = expected.iter().zip(&seen).all(|(one, other)| one == other);
            let is_more = seen.len() > expected.len();
            assert!(fits && !is_more, "{service} was {seen:?}, not {expected:?}");
            seen.len() == expected.len()
        })
        .await;
    }
}

/// Asks again as soon as something changed; the shortest look back is what Consul remembers.
async fn watch(url: String, seen: Arc<Mutex<Vec<String>>>) {
    let client = client();
    let mut index = "0".to_owned();
    loop {
        let asked = client.get(format!("{url}?wait=10s&index={index}"));
        // A Consul that is being started anew is asked again; a test that needs it fails itself.
        let Ok(reply) = asked.send().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let now = reply.headers().get("x-consul-index");
        index = now.and_then(|v| v.to_str().ok()).unwrap_or("0").to_owned();
        let Ok(instances) = reply.json::<Value>().await else {
            continue;
        };
        let status = told(&instances);
        let mut seen = seen.lock().unwrap();
        if seen.last() != Some(&status) {
            seen.push(status);
        }
    }
}

fn told(instances: &Value) -> String {
    let worst = |instance: &Value| {
        let checks = instance["Checks"].as_array().unwrap();
        let bad = checks.iter().find(|check| check["Status"] != "passing");
        bad.map_or("passing", |check| check["Status"].as_str().unwrap())
            .to_owned()
    };
    match instances.as_array().map(Vec::as_slice) {
        None | Some([]) => "absent".to_owned(),
        Some(all) => all.iter().map(worst).collect::<Vec<_>>().join(" "),
    }
}
