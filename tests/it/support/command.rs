//! A command of ours that runs to its end, as a person would run it.

use super::program;
use serde_json::Value;
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Reads its data as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

/// Prepares a command in an environment of its own.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(program::hermes());
    command
        .args(args)
        .current_dir(std::env::temp_dir())
        .env_clear()
        .stdin(Stdio::null());
    command
}

/// Runs our binary with `args`; what the test serves meanwhile goes on.
pub async fn hermes<A: AsRef<OsStr>>(args: &[A]) -> Ran {
    let mut command = command(&[]);
    command.args(args);
    let ran = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = ran.await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran {
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}
