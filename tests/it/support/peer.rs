//! A program in Python from `tests/it/peers`: a protocol's other side that is not of our own kind.

use super::process::Process;
use super::program;
use super::wait::wait_for;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const SERVES_WITHIN: Duration = Duration::from_secs(20);
const ENDED_WITHIN: Duration = Duration::from_secs(90);

/// A running server; ends with its value.
pub struct Peer {
    process: Process,
    port: u16,
    _directory: TempDir,
}

impl Peer {
    /// Starts a script that prints `port N` once it serves there.
    pub async fn serve(script: &str) -> Self {
        let (mut process, directory) = start(script, &[]);
        let port = wait_for(SERVES_WITHIN, &format!("port of {script}"), async || {
            let (log, exit) = (process.log(), process.exit());
            assert!(exit.is_none(), "{script} ended ({exit:?}):\n{log}");
            let line = log.lines().find_map(|line| line.strip_prefix("port "))?;
            line.parse().ok()
        })
        .await;
        Self {
            process,
            port,
            _directory: directory,
        }
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

/// Runs a script to its successful end and returns the JSON that it printed last.
pub async fn run(script: &str, arguments: &[&str]) -> Value {
    let (mut process, _directory) = start(script, arguments);
    let ended = process.ended(ENDED_WITHIN).await;
    let log = process.log();
    assert!(ended.success(), "{script} failed ({ended}):\n{log}");
    serde_json::from_str(log.lines().last().unwrap()).unwrap()
}

fn start(script: &str, arguments: &[&str]) -> (Process, TempDir) {
    let directory = TempDir::with_prefix("hermes-peer-").unwrap();
    let path = program::root().join("tests/it/peers").join(script);
    let mut command = Command::new("python3");
    command
        .arg(path)
        .args(arguments)
        // The sources stay as they are: no compiled copies beside them.
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(program::packages())
        .current_dir(directory.path());
    let log = directory.path().join("log");
    (Process::spawn(script, command, &log), directory)
}
