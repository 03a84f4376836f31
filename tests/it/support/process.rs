//! A child process with its log, ended with its owner.

use super::wait::{wait_for, wait_until};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tokio::time::Instant;

/// How often a server is started on fresh ports when others took the ones it was told.
pub const STARTS: usize = 5;

/// How much of a log a failed test shows.
const SHOWN_LINES: usize = 60;
/// A killed process is gone in milliseconds; one that is not is stuck in the kernel.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// A running (or ended) child. Dropping it kills the child and waits for its end.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// It has a process group of its own, which ends with it.
    leads: bool,
}

impl Process {
    /// Starts a command that may have children of its own; they are killed with it.
    pub fn spawn_group(name: &str, mut command: Command, log: &Path) -> Self {
        command.process_group(0);
        let mut process = Self::spawn(name, command, log);
        process.leads = true;
        process
    }

    /// Starts `command`; its stdout and stderr are appended to `log`.
    ///
    /// The machine's own `HERMES_*` and `CONSUL_*` settings and proxies are kept from it.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Self {
        for (key, _) in std::env::vars_os() {
            let text = key.to_string_lossy().to_ascii_uppercase();
            let foreign = text.starts_with("CONSUL_")
                || text.starts_with("HERMES_") && !text.starts_with("HERMES_TEST_")
                || text.ends_with("_PROXY");
            if foreign {
                command.env_remove(&key);
            }
        }
        let output = File::options().create(true).append(true).open(log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap_or_else(|error| {
                let program = command.get_program().display();
                panic!("cannot start {name} ({program}): {error}; `tests/run` provides it")
            });
        Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
            leads: false,
        }
    }

    /// Waits until it serves; says no when it ended because another process has its port.
    pub async fn serves(
        &mut self,
        within: Duration,
        mut answers: impl AsyncFnMut() -> bool,
    ) -> bool {
        let what = format!("answer of {}", self.name);
        let mut exit = None;
        wait_until(within, &what, async || {
            exit = self.exit();
            exit.is_some() || answers().await
        })
        .await;
        let Some(exit) = exit else { return true };
        let log = self.log();
        assert!(
            log.contains("in use"),
            "{} ended while starting ({exit}):\n{log}",
            self.name
        );
        false
    }

    /// Returns the name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns how it ended, or nothing while it runs.
    pub fn exit(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Sends `signal` to a running child; an ended one is left alone (its pid may be another's).
    pub fn signal(&mut self, signal: Signal) {
        if self.exit().is_none() {
            let pid = Pid::from_child(&self.child);
            kill_process(pid, signal).unwrap();
        }
    }

    /// Waits for its own end.
    pub async fn ended(&mut self, within: Duration) -> ExitStatus {
        let what = format!("end of {}", self.name);
        wait_for(within, &what, async || self.exit()).await
    }

    /// Ends it as a crash would: SIGKILL, nothing flushed, nothing said.
    pub fn kill9(&mut self) {
        self.kill();
        let deadline = Instant::now() + GONE_WITHIN;
        while self.exit().is_none() {
            assert!(
                Instant::now() < deadline,
                "{} (pid {}) does not end",
                self.name,
                self.id()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn kill(&mut self) {
        if self.leads && self.exit().is_none() {
            kill_process_group(Pid::from_child(&self.child), Signal::KILL).unwrap();
        } else {
            self.signal(Signal::KILL);
        }
    }

    /// Returns the most memory that it has ever had resident, in bytes.
    pub fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        let kib = line.unwrap().split_whitespace().nth(1).unwrap();
        kib.parse::<u64>().unwrap() << 10
    }

    /// Returns everything it has written so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
            eprintln!(
                "--- {} (pid {}), end of its log:\n{}\n---",
                self.name,
                self.id(),
                shown.join("\n")
            );
            // A second panic would abort the whole run; `tests/run` finds what is left.
            if self.leads && matches!(self.child.try_wait(), Ok(None)) {
                kill_process_group(Pid::from_child(&self.child), Signal::KILL).ok();
            }
            self.child.kill().ok();
            self.child.wait().ok();
        } else {
            self.kill9();
        }
    }
}
