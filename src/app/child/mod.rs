//! The command of `run -- CMD`: started once calls can be made, told what we are told, waited for.
//!
//! - its standard streams are ours; its environment is ours and `HERMES_OUTBOUND`, `HERMES_ADMIN`
//! - it never outlives us: a dropped `Child` is killed, and the kernel tells it should we die
//! - a signal that comes before its start is not passed on; one that ends us keeps it from starting
//! - elsewhere: when it is told to stop, and how long it may take (`sidecar`)

mod launch;
mod passed;

pub use launch::{BECOME, Launch};

use super::Error;
use super::signals::code_of;
use super::sockets::Addresses;
use passed::Passed;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::process::{self, Command};
use tokio::time::Instant;

/// A command that is to run is started after this time, whether calls can be made or not.
const START_WITHIN: Duration = Duration::from_secs(10);
/// How often readiness is looked at before the start.
const PACE: Duration = Duration::from_millis(20);
/// As a shell says that a command was found but could not be started.
const CANNOT_START: u8 = 126;

/// What is to be run.
#[derive(Debug)]
pub struct Program {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// The limit on open files that it shall find; none: the one in force.
    pub open_files: Option<u64>,
}

/// Says whether the command's calls would find their way.
pub type Ready = Box<dyn Fn() -> bool + Send + Sync>;

/// The command, from before its start until it has gone.
pub struct Child {
    stage: Stage,
    ready: Ready,
    signals: Passed,
}

enum Stage {
    Waiting { command: Command, until: Instant },
    Running(process::Child),
    Gone(u8),
}

impl Child {
    /// Prepares the command; `gone` starts it.
    pub fn new(program: Program, addresses: &Addresses, ready: Ready) -> Result<Self, Error> {
        let mut command = launch::command(&program);
        command
            .env("HERMES_OUTBOUND", addresses.outbound.to_url())
            .env("HERMES_ADMIN", addresses.admin.to_url())
            .kill_on_drop(true);
        Ok(Self {
            stage: Stage::Waiting {
                command,
                until: Instant::now() + START_WITHIN,
            },
            ready,
            signals: Passed::listen()?,
        })
    }

    /// Starts the command when it is time, passes signals on, and returns the exit code once it
    /// has gone. Safe to cancel and to call again.
    pub async fn gone(&mut self) -> u8 {
        loop {
            match &mut self.stage {
                Stage::Waiting { command, until } => {
                    let is_ready = (self.ready)();
                    if is_ready || Instant::now() >= *until {
                        let started = start(command, is_ready);
                        self.stage = started.map_or(Stage::Gone(CANNOT_START), Stage::Running);
                        continue;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(PACE) => {}
                        signal = self.signals.next() => {
                            tracing::warn!(?signal, "not passed on: the command has not started");
                        }
                    }
                }
                Stage::Running(child) => tokio::select! {
                    ended = child.wait() => self.stage = Stage::Gone(ended_with(ended)),
                    signal = self.signals.next() => send(child, signal),
                },
                Stage::Gone(code) => return *code,
            }
        }
    }

    /// Keeps a command that has not started from starting, as if `signal` had ended it.
    pub fn call_off(&mut self, signal: Signal) {
        if matches!(self.stage, Stage::Waiting { .. }) {
            tracing::warn!("stopping before the command was started");
            self.stage = Stage::Gone(code_of(signal));
        }
    }

    /// Sends `signal` to a running command, unless the terminal did already.
    pub fn tell(&mut self, signal: Signal) {
        if let Stage::Running(child) = &self.stage {
            send(child, signal);
        }
    }

    /// Ends a command that would not end, and returns its exit code.
    pub async fn kill(&mut self) -> u8 {
        if let Stage::Running(child) = &mut self.stage
            && let Err(error) = child.start_kill()
        {
            tracing::debug!(%error, "the command had gone before it was killed");
        }
        self.gone().await
    }
}

fn start(command: &mut Command, is_ready: bool) -> Option<process::Child> {
    if !is_ready {
        tracing::warn!(
            waited = ?START_WITHIN,
            "starting the command, although calls cannot be made yet; see /ready/outbound"
        );
    }
    // The kernel ties the child to the thread that starts it: the one that carries the process.
    match command.spawn() {
        Ok(child) => {
            tracing::info!(pid = child.id(), "command started");
            Some(child)
        }
        Err(error) => {
            tracing::error!(%error, "the command cannot be started");
            None
        }
    }
}

fn send(child: &process::Child, signal: Signal) {
    if passed::came_from_the_keyboard(signal) {
        return;
    }
    // Without an id it has been waited for, and the number may be another's.
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw)
        && let Err(error) = kill_process(pid, signal)
    {
        tracing::warn!(?signal, %error, "a signal could not be passed on to the command");
    }
}

fn ended_with(ended: std::io::Result<ExitStatus>) -> u8 {
    match ended {
        Ok(status) => {
            tracing::info!(%status, "command ended");
            code(status)
        }
        Err(error) => {
            tracing::error!(%error, "the command's end could not be learned");
            CANNOT_START
        }
    }
}

/// Returns what a shell would: the command's own code, or 128 and the signal that ended it.
fn code(status: ExitStatus) -> u8 {
    // A code has eight bits, a signal seven.
    match (status.code(), status.signal()) {
        (Some(code), _) => (code & 0xff) as u8,
        (None, signal) => 128 | (signal.unwrap_or_default() & 0x7f) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_become_codes_as_in_a_shell() {
        for (raw, expected) in [(0, 0), (3 << 8, 3), (255 << 8, 255), (15, 143), (9, 137)] {
            assert_eq!(code(ExitStatus::from_raw(raw)), expected, "{raw}");
        }
    }
}
