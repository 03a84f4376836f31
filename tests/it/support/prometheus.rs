//! A real Prometheus server that scrapes what a test names.

use super::client::{client, succeeds};
use super::port::free_port;
use super::process::{Process, STARTS};
use super::program;
use super::wait::wait_for;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const READY_WITHIN: Duration = Duration::from_secs(30);

/// A server scraping its targets once a second; ends with its value.
pub struct Prometheus {
    process: Process,
    port: u16,
    client: reqwest::Client,
    _directory: TempDir,
}

impl Prometheus {
    /// Starts a server that scrapes these `host:port` addresses, all under the job `hermes`.
    pub async fn scraping(targets: &[String]) -> Self {
        Self::start(&format!("static_configs: [{{targets: {targets:?}}}]")).await
    }

    /// Starts a server that asks at `url` whom to scrape, under the job `hermes`; the team that it
    /// is told becomes a label.
    pub async fn discovering(url: &str) -> Self {
        Self::start(&format!(
            "http_sd_configs: [{{url: {url:?}, refresh_interval: 1s}}], \
             relabel_configs: [{{source_labels: [__meta_hermes_team], target_label: team}}]"
        ))
        .await
    }

    async fn start(job: &str) -> Self {
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
             scrape_configs: [{{job_name: hermes, {job}}}]\n"
        );
        for _ in 0..STARTS {
            let (port, directory) = (
                free_port(),
                TempDir::with_prefix("hermes-prometheus-").unwrap(),
            );
            std::fs::write(directory.path().join("prometheus.yml"), &config).unwrap();
            let process = spawn(port, &directory);
            let mut server = Self {
                process,
                port,
                client: client(),
                _directory: directory,
            };
            if server.serves().await {
                return server;
            }
        }
        panic!("Prometheus found its port taken {STARTS} times");
    }

    /// Evaluates an expression now and returns the resulting series; fails on one it refuses.
    pub async fn query(&self, expression: &str) -> Vec<Value> {
        let api = format!("http://127.0.0.1:{}/api/v1/query", self.port);
        let url = reqwest::Url::parse_with_params(&api, [("query", expression)]).unwrap();
        let body: Value = self
            .client
            .get(url)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        assert_eq!(
            body["status"], "success",
            "Prometheus refuses {expression}: {body}"
        );
        body["data"]["result"].as_array().unwrap().clone()
    }

    /// Waits until every target has been scraped `times` times with success.
    pub async fn wait_scraped(&self, targets: usize, times: usize, within: Duration) {
        let expression = format!("count(sum_over_time(up[10m]) >= {times})");
        wait_for(
            within,
            &format!("{targets} targets scraped {times} times"),
            async || {
                let series = self.query(&expression).await;
                (value(series.first()?) >= targets as f64).then_some(())
            },
        )
        .await;
    }

    /// Waits until it serves; says no when the port was taken.
    async fn serves(&mut self) -> bool {
        let ready = format!("http://127.0.0.1:{}/-/ready", self.port);
        let client = &self.client;
        self.process
            .serves(READY_WITHIN, async || succeeds(client, &ready).await)
            .await
    }
}

/// Returns the value of one series of a query's result.
pub fn value(series: &Value) -> f64 {
    series["value"][1].as_str().unwrap().parse().unwrap()
}

fn spawn(port: u16, directory: &TempDir) -> Process {
    let mut command = Command::new(program::prometheus());
    command
        .args([
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            "--log.level=warn",
        ])
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .current_dir(directory);
    Process::spawn(
        "prometheus",
        command,
        &directory.path().join("prometheus.log"),
    )
}
