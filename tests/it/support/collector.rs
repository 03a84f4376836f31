//! A collector process of one's own.

use super::client::{client, succeeds};
use super::port::free_port;
use super::process::{Process, STARTS};
use super::program;
use super::sidecar::put;
use super::wait::wait_for;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;
use tempfile::TempDir;
use toml::{Table, Value as Setting};

const READY_WITHIN: Duration = Duration::from_secs(20);
const END_WITHIN: Duration = Duration::from_secs(40);

/// A running collector with its store in a directory of its own.
pub struct Collector {
    process: Process,
    port: u16,
    directory: TempDir,
    client: reqwest::Client,
}

impl Collector {
    /// Starts a collector that knows no Consul, and waits for readiness.
    pub async fn start() -> Self {
        Self::start_with(&[("collector.consul", Setting::Boolean(false))]).await
    }

    /// Starts a collector with these keys set in its config file, and waits for readiness.
    pub async fn start_with(settings: &[(&str, Setting)]) -> Self {
        for _ in 0..STARTS {
            let (port, directory) = (
                free_port(),
                TempDir::with_prefix("hermes-collector-").unwrap(),
            );
            let mut config = Table::new();
            put(&mut config, "log.format", "json".into());
            put(&mut config, "consul.address", "http://127.0.0.1:1".into());
            put(
                &mut config,
                "collector.listen",
                format!("127.0.0.1:{port}").into(),
            );
            for (key, value) in settings {
                put(&mut config, key, value.clone());
            }
            std::fs::write(directory.path().join("collector.toml"), config.to_string()).unwrap();
            std::fs::create_dir(directory.path().join("state")).unwrap();
            let process = spawn(directory.path());
            let mut collector = Self {
                process,
                port,
                directory,
                client: client(),
            };
            if collector.serves().await {
                return collector;
            }
        }
        panic!("the collector found its port taken {STARTS} times");
    }

    /// Returns its address as `spool.collector` takes it.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the process, for its id, log, signals and end.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Returns a task as the collector shows it, or nothing while it knows none of that id.
    pub async fn task(&self, id: &str) -> Option<Value> {
        let reply = self
            .client
            .get(format!("{}/tasks/{id}", self.url()))
            .send()
            .await
            .unwrap();
        if reply.status() == reqwest::StatusCode::NOT_FOUND {
            return None;
        }
        Some(reply.error_for_status().unwrap().json().await.unwrap())
    }

    /// Waits until a task is in `state`, and returns it.
    pub async fn wait_task(&self, id: &str, state: &str, within: Duration) -> Value {
        wait_for(within, &format!("task {id} in state {state}"), async || {
            self.task(id).await.filter(|task| task["state"] == state)
        })
        .await
    }

    /// Ends it as a crash would.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Asks it to stop (SIGTERM) and waits for its end.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.process.signal(Signal::TERM);
        self.process.ended(END_WITHIN).await
    }

    /// Starts it again on the same store and port, and waits for readiness.
    pub async fn start_again(&mut self) {
        self.process.kill9();
        self.process = spawn(self.directory.path());
        assert!(
            self.serves().await,
            "another process took the port of a stopped collector"
        );
    }

    /// Waits for readiness; says no when the port was taken.
    async fn serves(&mut self) -> bool {
        let ready = format!("{}/ready", self.url());
        let client = &self.client;
        self.process
            .serves(READY_WITHIN, async || succeeds(client, &ready).await)
            .await
    }
}

fn spawn(directory: &Path) -> Process {
    let mut command = Command::new(program::hermes());
    command
        .args(["collector", "-c", "collector.toml"])
        .env("STATE_DIRECTORY", directory.join("state"))
        .current_dir(directory);
    Process::spawn("collector", command, &directory.join("collector.log"))
}
