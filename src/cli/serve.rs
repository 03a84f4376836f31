//! The long-running commands: settings in, a process until its end.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use crate::config::{Role, Settings};

use super::ConfigArgs;
use super::exit::{Exit, Failure};

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Use this Consul instead of a registry of our own.
    #[arg(long, value_name = "URL")]
    consul: Option<String>,
    /// Stop this many seconds after everything is ready.
    #[arg(long = "for", value_name = "SECS", conflicts_with = "once")]
    seconds: Option<u64>,
    /// Run the scripted scenario, print each task's timeline; exit 0 if all ended as scripted.
    #[arg(long)]
    once: bool,
}

#[derive(Debug, Args)]
pub(super) struct DevRegistryArgs {
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8500")]
    listen: SocketAddr,
}

/// What a process is asked to be.
#[derive(Debug)]
#[expect(
    dead_code,
    reason = "read once `app`, `demo` and `devregistry` are there"
)]
enum Work {
    Sidecar(Box<Settings>),
    Collector(Box<Settings>),
    Demo {
        consul: Option<String>,
        run_for: Option<Duration>,
        once: bool,
    },
    DevRegistry(SocketAddr),
}

pub(super) fn sidecar(config: ConfigArgs) -> Result<Exit, Failure> {
    let settings = Settings::load(&config.source(), Role::Sidecar)?;
    work(Work::Sidecar(Box::new(settings)))
}

pub(super) fn collector(config: ConfigArgs) -> Result<Exit, Failure> {
    let settings = Settings::load(&config.source(), Role::Collector)?;
    work(Work::Collector(Box::new(settings)))
}

pub(super) fn demo(args: DemoArgs) -> Result<Exit, Failure> {
    work(Work::Demo {
        consul: args.consul,
        run_for: args.seconds.map(Duration::from_secs),
        once: args.once,
    })
}

pub(super) fn dev_registry(args: DevRegistryArgs) -> Result<Exit, Failure> {
    work(Work::DevRegistry(args.listen))
}

/// Does the work until it ends.
fn work(work: Work) -> Result<Exit, Failure> {
    let name = match work {
        Work::Sidecar(_) => "run",
        Work::Collector(_) => "collector",
        Work::Demo { .. } => "demo",
        Work::DevRegistry(_) => "dev-registry",
    };
    Err(Failure::Start(format!(
        "`{name}` is not part of this build"
    )))
}
