//! Everything on one machine: registry, collector, four applications with a sidecar each, traffic.
//!
//! Nothing else is needed, and nothing stays: files lie in a folder of their own that goes at
//! the end, ports close, services are deregistered (only contracts published to a Consul of
//! yours stay in it, as published contracts do).
//!
//! - the sidecars and the collector are the real ones, started as `run` and `collector` do
//! - applications know nothing of Hermes; they pass three headers on
//! - sample traffic is bounded in rate and in calls under way

mod applications;
mod folder;
mod house;
mod scenario;
mod script;
mod signer;
mod stand;
mod tier;
mod traffic;

use crate::contract::trust::SignError;
use crate::identity::key::CreateError;
use crate::{app, config, consul, devregistry};
use house::{Addresses, House};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What the demo is asked for.
pub struct Options {
    /// Use this Consul instead of a registry of our own.
    pub consul: Option<String>,
    /// Stop this long after everything is ready.
    pub run_for: Option<Duration>,
    /// Run the scripted scenario instead of sample traffic.
    pub once: bool,
    /// Say things as JSON lines.
    pub json: bool,
    /// Draws the body of `GET /tasks/{id}` for people.
    pub draw: fn(&[u8]) -> Result<String, serde_json::Error>,
    /// Writes a line of data.
    pub say: fn(&str),
}

/// Why the demo could not be given, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    App(#[from] app::Error),
    #[error(transparent)]
    Settings(#[from] config::Error),
    #[error("make a folder for the demo's files")]
    Folder(#[source] io::Error),
    #[error("write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{what} cannot listen on {address}")]
    Bind {
        what: &'static str,
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("make a key that signs the contracts")]
    Key(#[from] CreateError),
    #[error("sign a contract")]
    Sign(#[from] SignError),
    #[error("set up an HTTP client")]
    Client(#[from] reqwest::Error),
    #[error("Consul at {address} cannot be used")]
    Consul {
        address: String,
        #[source]
        source: consul::Error,
    },
    #[error("run the registry")]
    Registry(#[from] devregistry::Error),
    #[error("serve an application")]
    Serve(#[source] io::Error),
    #[error("{what} was not ready within {within:?}: {why}")]
    NotReady {
        what: String,
        within: Duration,
        why: String,
    },
    #[error("{0} ended unasked")]
    Ended(&'static str),
}

/// Gives the demo until it is told to stop; says whether the scenario ended as scripted.
pub async fn run(options: Options) -> Result<bool, Error> {
    let mut signals = app::Signals::listen()?;
    let process = app::Stoppable::new(|stop| {
        give(&options, async {
            stop.await;
        })
    });
    signals.until_stopped(process).await
}

/// Opens the house, shows what is asked, and closes the house whatever came of it.
async fn give(options: &Options, stop: impl Future<Output = ()>) -> Result<bool, Error> {
    let mut house = House::new(options.consul.clone())?;
    let shown = tokio::select! {
        shown = show(&mut house, options) => shown,
        // A scenario that was cut short did not end as scripted.
        () = stop => Ok(!options.once),
    };
    let closed = house.close().await;
    let as_scripted = shown?;
    closed.map(|()| as_scripted)
}

async fn show(house: &mut House, options: &Options) -> Result<bool, Error> {
    let addresses = house.open().await?;
    tell(&addresses, options);
    let client = client()?;
    let performance = async {
        if options.once {
            return scenario::play(&addresses, &client, options).await;
        }
        let enough = async {
            match options.run_for {
                Some(length) => tokio::time::sleep(length).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = traffic::flow(&addresses, &client) => {}
            () = enough => {}
        }
        Ok(true)
    };
    tokio::select! {
        ended = performance => ended,
        incident = house.watch() => Err(incident),
    }
}

/// Prints where everything is, once it is there.
fn tell(addresses: &Addresses, options: &Options) {
    if options.json {
        (options.say)(&addresses.to_json().to_string());
        return;
    }
    for line in addresses.lines() {
        (options.say)(&line);
    }
    if !options.once {
        let collector = &addresses.collector;
        (options.say)(&format!("try: curl '{collector}/tasks?limit=5'"));
    }
}

/// The client of everybody who plays a part here; nobody waits for ever.
fn client() -> Result<reqwest::Client, Error> {
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(Duration::from_secs(10))
        // Sidecars close idle connections after a minute; ours end well before.
        .pool_idle_timeout(Duration::from_secs(20))
        .build()?;
    Ok(client)
}
