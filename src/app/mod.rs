//! Building a process from the bottom up, and stopping it from the top down.
//!
//! - every worker is owned here; one that ends unasked is an incident and stops the process
//! - start refuses what cannot work (a taken port, an unwritable spool) before anything is served
//! - stop: unready and deregistered, `drain_delay`, drain, last reports, files closed; each step
//!   is bounded; a second signal ends the process at once

mod application;
mod build;
mod child;
mod collector;
mod compose;
mod contracts;
mod delivery;
mod explain;
mod handshake;
mod ready;
mod reload;
mod serving;
mod sidecar;
mod signals;
mod sockets;
mod tls;
mod workers;

pub use child::{BECOME, Launch};
pub use collector::Collector;
pub use compose::consul as consul_config;
pub use sidecar::Sidecar;
pub use signals::{Signals, Stoppable};
pub use sockets::Addresses;

use crate::config::{self, Settings};
use crate::contract::Problems;
use crate::devregistry;
use crate::socket::{Address, BindError};
use crate::store::{OpenError, StoreError};
use crate::telemetry::log;
use child::Program;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a process could not be started, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("start logging")]
    Log(#[from] log::Error),
    #[error("{key} = {address}: the listener cannot be bound")]
    Bind {
        key: &'static str,
        address: Address,
        #[source]
        source: BindError,
    },
    #[error("ask where a listener is bound")]
    Unbound(#[source] io::Error),
    #[error("{key}: open {}", path.display())]
    Store {
        key: &'static str,
        path: PathBuf,
        #[source]
        source: Box<OpenError>,
    },
    #[error("collector.store")]
    Book(#[source] Box<crate::collector::OpenBookError>),
    #[error("read the remembered keys of contracts")]
    Pins(#[source] StoreError),
    #[error("read the contract {}", path.display())]
    ReadContract {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the contract {} has faults: {problems}", path.display())]
    Contract {
        path: PathBuf,
        problems: Arc<Problems>,
    },
    #[error("{}: the contract {id} is served already; give it once", path.display())]
    ContractTwice { path: PathBuf, id: String },
    #[error("read {key} {}", path.display())]
    ReadToken {
        key: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{key} {} is empty; write the token into it, or leave the key out to ask for none", path.display())]
    EmptyToken { key: &'static str, path: PathBuf },
    #[error("set up TLS")]
    Tls(#[from] crate::identity::tls::Error),
    #[error(
        "tls.cert names {name:?} but application.name is {application:?}: peers dial the \
         application and would not believe the certificate"
    )]
    TlsName { application: String, name: Arc<str> },
    #[error("application.upstream_headers_file: {}", path.display())]
    UpstreamHeaders {
        path: PathBuf,
        #[source]
        source: application::HeadersError,
    },
    #[error("set up the Consul client")]
    Consul(#[from] crate::consul::Error),
    #[error("set up an HTTP client")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("listen for signals")]
    Signals(#[source] io::Error),
    /// The process was told twice; it ends as the signal asks.
    #[error("ended by a second signal")]
    Killed { code: u8 },
    #[error("the worker {0} ended unasked")]
    Worker(&'static str),
}

/// Lets the process have as many open files as the system allows it: the customary soft limit of
/// 1024 is far below `limits.max_connections`. Returns the limit that was there, if it is another.
fn raise_open_files() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if limit.current == limit.maximum {
        return None;
    }
    if setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!(
            limit = limit.current,
            "the limit on open files could not be raised"
        );
        return None;
    }
    limit.current
}

/// Starts logging as the settings say.
pub fn start_log(settings: &Settings) -> Result<(), Error> {
    Ok(log::start(&compose::log(&settings.log))?)
}

/// Makes a client for the settings' Consul; its requests are not counted.
pub fn consul(settings: &Settings) -> Result<crate::consul::Client, Error> {
    let config = compose::consul(&settings.consul);
    Ok(crate::consul::Client::new(config, Arc::new(|_, _, _| {}))?)
}

/// Asks the application once whether it is well, as admission will.
pub async fn ask_application(
    application: &config::Application,
    upstream: &config::Upstream,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let config = application::health(application, upstream)?;
    let (prober, _) = crate::admission::Prober::new(config)?;
    Ok(prober.ask_once().await?)
}

/// Asks the application once for its contract, as a start does; returns its id and version.
pub async fn ask_contract(
    application: &config::Application,
    upstream: &config::Upstream,
) -> Result<(String, String), Box<dyn std::error::Error + Send + Sync>> {
    let config = application::health(application, upstream)?;
    let reply = crate::admission::Handshake::new(&config)?.ask().await?;
    let asked = application.contracts.iter().find(|c| c.file().is_none());
    let (method, path) = asked.map_or(("", ""), |c| (c.method.as_str(), c.path.as_str()));
    let compiled = crate::admission::contract_of(&reply, method, path)?;
    let contract = &compiled.contract;
    Ok((contract.id.to_string(), contract.version.to_string()))
}

/// Runs a sidecar until it is told to stop.
pub async fn run(settings: Settings) -> Result<(), Error> {
    start_log(&settings)?;
    raise_open_files();
    let mut signals = Signals::listen()?;
    let sidecar = Sidecar::start(settings).await?;
    signals.until_stopped(sidecar.run()).await
}

/// Runs a sidecar beside `command` until that has gone, and returns its exit code.
pub async fn run_beside(settings: Settings, command: Vec<OsString>) -> Result<u8, Error> {
    start_log(&settings)?;
    let program = Program {
        words: command,
        open_files: raise_open_files(),
    };
    let mut signals = Signals::listen()?;
    let sidecar = Sidecar::start(settings).await?;
    signals.until_stopped(sidecar.run_beside(program)?).await
}

/// Runs a collector until it is told to stop.
pub async fn collect(settings: Settings) -> Result<(), Error> {
    start_log(&settings)?;
    raise_open_files();
    let mut signals = Signals::listen()?;
    let collector = Collector::start(settings).await?;
    signals.until_stopped(collector.run()).await
}

/// Serves an empty registry until it is told to stop; for laptops and tests. `said` hears where.
pub async fn dev_registry(address: SocketAddr, said: impl FnOnce(SocketAddr)) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.map_err(|source| Error::Bind {
        key: "--listen",
        address: address.into(),
        source: BindError::Tcp(source),
    })?;
    said(listener.local_addr().unwrap_or(address));
    let process = Stoppable::new(|stop| async {
        let stop = async {
            stop.await;
        };
        let served = devregistry::serve(listener, stop).await;
        served.map_err(|error| Error::Client(Box::new(error)))
    });
    signals.until_stopped(process).await
}
