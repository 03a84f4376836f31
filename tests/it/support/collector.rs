//! A collector process of one's own.

use super::authority::TlsFiles;
use super::client::{client, succeeds};
use super::port::free_port;
use super::process::{Process, STARTS};
use super::program;
use super::sidecar::put;
use super::wait::wait_for;
use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;
use toml::{Table, Value as Setting};

const READY_WITHIN: Duration = Duration::from_secs(20);
/// The states in which an attempt has ended.
const ENDS: [&str; 4] = [
    "completed",
    "failed_validation",
    "failed_execution",
    "timeout",
];
/// Questions about many tasks go out side by side.
const ASKED_AT_ONCE: usize = 8;
const END_WITHIN: Duration = Duration::from_secs(40);

/// A running collector with its store in a directory of its own.
pub struct Collector {
    process: Process,
    scheme: &'static str,
    port: u16,
    directory: TempDir,
    client: reqwest::Client,
}

/// How many attempts' ends each reporter has told, by task.
pub struct Ends(HashMap<(String, String), usize>);

impl Ends {
    /// Counts the attempts of a task whose end `reporter` has told.
    pub fn of(&self, task: &str, reporter: &str) -> usize {
        let key = (task.to_owned(), reporter.to_owned());
        self.0.get(&key).copied().unwrap_or(0)
    }
}

impl Collector {
    /// Starts a collector that knows no Consul, and waits for readiness.
    pub async fn start() -> Self {
        Self::start_with(&[("collector.consul", Setting::Boolean(false))]).await
    }

    /// Starts a collector with these keys set in its config file, and waits for readiness.
    pub async fn start_with(settings: &[(&str, Setting)]) -> Self {
        Self::start_for(settings, "http", client()).await
    }

    /// Starts a collector with these certificates; `client` is one that it lets in.
    pub async fn start_secured(
        settings: &[(&str, Setting)],
        files: &TlsFiles,
        client: reqwest::Client,
    ) -> Self {
        let settings: Vec<_> = settings.iter().cloned().chain(files.settings()).collect();
        Self::start_for(&settings, "https", client).await
    }

    async fn start_for(
        settings: &[(&str, Setting)],
        scheme: &'static str,
        client: reqwest::Client,
    ) -> Self {
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
                scheme,
                port,
                directory,
                client: client.clone(),
            };
            if collector.serves().await {
                return collector;
            }
        }
        panic!("the collector found its port taken {STARTS} times");
    }

    /// Returns its address as `spool.collector` takes it.
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// Returns the process, for its id, log, signals and end.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Returns everything it has logged so far.
    pub fn log(&self) -> String {
        self.process.log()
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

    /// Returns those of the tasks that the collector knows, by their ids.
    pub async fn tasks(&self, ids: &[String]) -> HashMap<String, Value> {
        let mut asking = JoinSet::new();
        for part in ids.chunks(ids.len().div_ceil(ASKED_AT_ONCE).max(1)) {
            let (client, url, part) = (self.client.clone(), self.url(), part.to_vec());
            asking.spawn(async move {
                let mut known = Vec::with_capacity(part.len());
                for id in part {
                    let reply = client
                        .get(format!("{url}/tasks/{id}"))
                        .send()
                        .await
                        .unwrap();
                    if reply.status() != reqwest::StatusCode::NOT_FOUND {
                        known.push((id, reply.error_for_status().unwrap().json().await.unwrap()));
                    }
                }
                known
            });
        }
        asking.join_all().await.into_iter().flatten().collect()
    }

    /// Returns who told the end of what, as the store has it: a task's page merges both sides.
    /// An attempt with two ends by one reporter fails the test.
    pub fn ends(&self) -> Ends {
        let file = self.directory.path().join("state/collector.db");
        #[expect(clippy::disallowed_methods, reason = "a look from outside")]
        let connection = Connection::open(file).unwrap();
        let mut statement = connection.prepare("SELECT body FROM reports").unwrap();
        let bodies = statement.query_map([], |row| row.get::<_, String>(0));
        let (mut told, mut ended) = (HashMap::new(), HashSet::new());
        for body in bodies.unwrap() {
            let report: Value = serde_json::from_str(&body.unwrap()).unwrap();
            let text = |field: &str| report[field].as_str().unwrap().to_owned();
            if ENDS.contains(&text("state").as_str()) {
                let attempt = report["attempt"].as_u64();
                let attempt = (text("call_id"), attempt, text("reporter"));
                assert!(ended.insert(attempt), "two ends: {report}");
                *told.entry((text("task_id"), text("reporter"))).or_default() += 1;
            }
        }
        Ends(told)
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
