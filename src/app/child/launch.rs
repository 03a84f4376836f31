//! The moment between our fork and the command: a fresh copy of this program puts things right,
//! then becomes the command. What a fork may do before that is beyond safe code.

use super::Program;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process;

/// This program, also after its file was replaced.
const OURSELVES: &str = "/proc/self/exe";
/// The word that makes this program become a command.
pub const BECOME: &str = "become";
/// As a shell says that there is no such command.
const NOT_FOUND: u8 = 127;

/// What is put right before the command runs.
#[derive(Debug)]
pub struct Launch {
    /// The sidecar's process id.
    pub parent: i32,
    /// The limit on open files that was found at the start, before we raised ours.
    pub open_files: Option<u64>,
    pub command: Vec<OsString>,
}

/// Makes the command line that `Launch::become_command` is reached by.
pub fn command(program: &Program) -> tokio::process::Command {
    let mut launch = tokio::process::Command::new(OURSELVES);
    launch
        .arg0("hermes-sidecar")
        .args([BECOME, "--parent"])
        .arg(process::id().to_string());
    if let Some(limit) = program.open_files {
        launch.arg("--open-files").arg(limit.to_string());
    }
    launch.arg("--").args(&program.words);
    launch
}

impl Launch {
    /// Becomes the command; where that fails, returns why and the exit code a shell would give.
    pub fn become_command(&self) -> (u8, io::Error) {
        let cannot = super::CANNOT_START;
        let [program, arguments @ ..] = self.command.as_slice() else {
            return (cannot, io::ErrorKind::InvalidInput.into());
        };
        if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
            return (cannot, error.into());
        }
        // It may have died before we asked to be told.
        if getppid().map(Pid::as_raw_pid) != Some(self.parent) {
            return (cannot, io::Error::other("the sidecar has gone"));
        }
        self.lower_open_files();
        let error = process::Command::new(program).args(arguments).exec();
        match error.kind() {
            io::ErrorKind::NotFound => (NOT_FOUND, error),
            _ => (cannot, error),
        }
    }

    /// Many programs loop over, or index by, every descriptor they might have.
    fn lower_open_files(&self) {
        let limit = getrlimit(Resource::Nofile);
        if self.open_files.is_some() && self.open_files != limit.current {
            let found = Rlimit {
                current: self.open_files,
                ..limit
            };
            // Lowering a soft limit is always allowed.
            setrlimit(Resource::Nofile, found).ok();
        }
    }
}
