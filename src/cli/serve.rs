//! The long-running commands: settings in, a process until its end.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, Parser};

use crate::app;
use crate::config::{Role, Settings};
use crate::demo;
use crate::telemetry::log::Chain;

use super::exit::{Exit, Failure};
use super::{ConfigArgs, OutputArgs, output};

#[derive(Debug, Args)]
#[command(after_help = "\
The command starts once calls can be made, after 10 seconds in any case. It finds the listeners in
HERMES_OUTBOUND and HERMES_ADMIN, gets the signals that the sidecar gets, and can call until it has
gone or limits.drain_timeout has passed. With contracts of its own it is told to stop only after
limits.drain_delay, once callers have heard.

Examples:
  hermes-sidecar run -c examples/quickstart/hermes.toml
  hermes-sidecar run --set application.name=import -- ./nightly-import --full
  hermes-sidecar run -- sh -c 'http_proxy=$HERMES_OUTBOUND exec ./unchanged-client'")]
pub(super) struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Command to run beside the sidecar, which ends with it and with its exit code.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The word by which `run -- CMD` starts its command.
pub(super) use crate::app::BECOME;

#[derive(Debug, Parser)]
#[command(name = BECOME)]
pub(super) struct Become {
    #[arg(long)]
    parent: i32,
    #[arg(long)]
    open_files: Option<u64>,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Use this Consul instead of a registry of our own; published contracts stay in it.
    #[arg(long, value_name = "URL")]
    consul: Option<String>,
    /// Stop this many seconds after everything is ready.
    #[arg(long = "for", value_name = "SECS", conflicts_with = "once")]
    seconds: Option<u64>,
    /// Run the scripted scenario, print each task's timeline; exit 0 if all ended as scripted.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(super) struct DevRegistryArgs {
    /// Where it listens, as a Consul agent would.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8500")]
    listen: SocketAddr,
}

pub(super) fn sidecar(args: RunArgs) -> Result<Exit, Failure> {
    let settings = Settings::load(&args.config.source(), Role::Sidecar)?;
    if args.command.is_empty() {
        return carry(async { ended(app::run(settings).await) });
    }
    carry(async {
        match app::run_beside(settings, args.command).await {
            Ok(code) => Ok(Exit::Other(code)),
            Err(error) => ended(Err(error)),
        }
    })
}

pub(super) fn become_command(args: Become) -> Result<Exit, Failure> {
    let launch = app::Launch {
        parent: args.parent,
        open_files: args.open_files,
        command: args.command,
    };
    let (code, error) = launch.become_command();
    let name = launch.command[0].display();
    Err(Failure::Start {
        text: format!("the command {name} cannot be started: {error}"),
        exit: Exit::Other(code),
    })
}

pub(super) fn collector(config: ConfigArgs) -> Result<Exit, Failure> {
    let settings = Settings::load(&config.source(), Role::Collector)?;
    carry(async { ended(app::collect(settings).await) })
}

pub(super) fn dev_registry(args: DevRegistryArgs) -> Result<Exit, Failure> {
    let said = |address| {
        output::talk(&format!(
            "an in-memory stand-in for Consul, for laptops and tests, at http://{address}; \
             nothing in it survives"
        ));
    };
    carry(async { ended(app::dev_registry(args.listen, said).await) })
}

pub(super) fn demo(args: DemoArgs) -> Result<Exit, Failure> {
    let options = demo::Options {
        consul: args.consul,
        run_for: args.seconds.map(Duration::from_secs),
        once: args.once,
        json: args.output.is_json(),
        draw: super::task::draw,
        say: output::line,
    };
    carry(async {
        match demo::run(options).await {
            Ok(as_scripted) => Ok(output::verdict(as_scripted)),
            Err(demo::Error::App(error)) => ended(Err(error)),
            Err(demo::Error::Settings(error)) => Err(error.into()),
            Err(error) => Err(Failure::Start {
                text: Chain(&error).to_string(),
                exit: match error {
                    demo::Error::Consul { .. } => Exit::Unreachable,
                    demo::Error::NotReady { .. } => Exit::Timeout,
                    demo::Error::Ended(_) => Exit::Bug,
                    _ => Exit::Usage,
                },
            }),
        }
    })
}

/// Carries a process to its end on a runtime of its own.
fn carry(process: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::bug(&error))?;
    let ended = runtime.block_on(process);
    // Blocking threads (a name look-up) must not hold up a process that has ended.
    runtime.shutdown_background();
    ended
}

/// Says how a process of `app` ended.
fn ended(result: Result<(), app::Error>) -> Result<Exit, Failure> {
    match result {
        Ok(()) => Ok(Exit::Fine),
        Err(app::Error::Killed { code }) => Ok(Exit::Other(code)),
        Err(error) => Err(Failure::Start {
            text: Chain(&error).to_string(),
            exit: match error {
                app::Error::Worker(_) => Exit::Bug,
                _ => Exit::Usage,
            },
        }),
    }
}
