//! Collectors that share a PostgreSQL: nothing lost, nothing doubled, the same answers as SQLite.

mod faults;
mod refusals;
mod sameness;
mod sharing;
mod tale;

use super::support::client::client;
use super::support::collector::Collector;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use toml::Value as Setting;

/// For a batch to be taken by one collector or another, whatever happens meanwhile.
const SENT_WITHIN: Duration = Duration::from_secs(60);
/// How soon a sender tries again.
const AGAIN: Duration = Duration::from_millis(50);

/// Starts a collector on a database, without a Consul.
async fn collector(url: &str) -> Collector {
    Collector::start_with(&[
        ("collector.consul", Setting::Boolean(false)),
        ("collector.store", url.into()),
    ])
    .await
}

/// Sends reports once and returns the receipt.
async fn post(url: &str, reports: &[Value]) -> Value {
    let request = client().post(format!("{url}/report-status")).json(reports);
    let reply = request.send().await.unwrap();
    reply.error_for_status().unwrap().json().await.unwrap()
}

/// Sends reports as a sidecar does: again until a collector says that it has them, the next one
/// where one does not. Returns the receipt.
async fn send(targets: &[String], reports: &[Value]) -> Value {
    let deadline = Instant::now() + SENT_WITHIN;
    let client = client();
    for target in targets.iter().cycle() {
        let request = client.post(format!("{target}/report-status")).json(reports);
        let reply = request
            .send()
            .await
            .and_then(|reply| reply.error_for_status());
        if let Ok(reply) = reply
            && let Ok(receipt) = reply.json().await
        {
            return receipt;
        }
        assert!(
            Instant::now() < deadline,
            "nobody took the reports within {SENT_WITHIN:?}"
        );
        sleep(AGAIN).await;
    }
    unreachable!("the targets go round for ever")
}
