//! An agent and a client that were written without a sidecar in mind, as Python processes.

use super::client::{client, succeeds};
use super::port::free_port;
use super::process::{Process, STARTS};
use super::program::root;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const SERVES_WITHIN: Duration = Duration::from_secs(20);

/// The running agent; ends with its value.
pub struct Agent {
    process: Process,
    port: u16,
    _directory: TempDir,
}

impl Agent {
    /// Starts it; it posts what became of its tasks to `reports`, if that is given.
    pub async fn start(reports: Option<&str>) -> Self {
        for _ in 0..STARTS {
            if let Some(agent) = Self::start_at(free_port(), reports).await {
                return agent;
            }
        }
        panic!("the agent found its port taken {STARTS} times");
    }

    /// Starts it at a port, unless that is taken.
    pub async fn start_at(port: u16, reports: Option<&str>) -> Option<Self> {
        let directory = TempDir::with_prefix("hermes-article-").unwrap();
        let mut command = python();
        command.args(["serve", &port.to_string()]).args(reports);
        let mut agent = Self {
            process: Process::spawn("agent", command, &directory.path().join("agent.log")),
            port,
            _directory: directory,
        };
        let (client, beat) = (client(), format!("{}/hermes/heartbeat", agent.url()));
        let serves = agent
            .process
            .serves(SERVES_WITHIN, async || succeeds(&client, &beat).await);
        serves.await.then_some(agent)
    }

    /// Returns its address as `application.upstream` takes it.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns everything it has printed so far.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// Makes one call as the article's client does, and returns status and body.
pub async fn call(consul: &str, input: &Value, context: &Value) -> (u16, Value) {
    let mut command = python();
    command
        .args(["call", consul])
        .arg(input.to_string())
        .arg(context.to_string());
    let ran = tokio::task::spawn_blocking(move || command.output()).await;
    let ran = ran.unwrap().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "the client failed: {errors}");
    let printed: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let status = u16::try_from(printed["status"].as_u64().unwrap()).unwrap();
    let body = printed["body"].as_str().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

fn python() -> Command {
    let mut command = Command::new("python3");
    command.arg(root().join("tests/it/support/article.py"));
    command
}
