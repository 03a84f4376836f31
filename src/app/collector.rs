//! One collector process: started, running, stopped.

use super::signals::Stoppable;
use super::sockets::{self, bind};
use super::workers::Workers;
use super::{Error, compose};
use crate::admission::{Beacon, shine};
use crate::collector;
use crate::config::Settings;
use crate::lifecycle::{Lifecycle, Observer, Phase};
use crate::socket::Address;
use crate::telemetry::metrics;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Reporters that look it up in Consul do so for each batch; this is for those that just have.
const HEARD: Duration = Duration::from_secs(1);
/// For leaving Consul, with the time to be heard; Consul may be away.
const LEAVE: Duration = Duration::from_secs(4);
/// For running requests: longer than the listener itself has patience with them.
const DRAIN: Duration = Duration::from_secs(6);

/// A collector that serves.
pub struct Collector {
    address: Address,
    lifecycle: Lifecycle,
    workers: Workers,
    collector: Arc<collector::Collector>,
    /// Told when Consul lists it no more; nothing where Consul never did.
    left: Option<oneshot::Receiver<()>>,
}

impl Collector {
    /// Opens the store, binds the listener and begins to serve.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let own = &settings.collector;
        let listener = bind("collector.listen", &own.listen).await?;
        let address = sockets::address(&listener)?;
        let config = collector::Config {
            path: own.store.clone(),
            token: compose::token("collector.token_file", own.token_file.as_deref())?,
            retention: own.retention,
        };
        let metrics = Arc::new(metrics::Collector::new());
        let (collector, opened) = collector::Collector::open(config, metrics)
            .map_err(|source| compose::failed("collector.store", &own.store, source))?;
        compose::alarm(&own.store, &opened);
        let collector = Arc::new(collector);
        let (lifecycle, phase) = Lifecycle::new();
        let mut workers = Workers::default();
        let (serving, stop) = (collector.clone(), phase.clone());
        workers.start("collector listener", async move {
            serving.serve(listener, None, stop).await;
        });
        let left = match own.consul {
            true => register(&settings, &address, phase, &mut workers)?,
            false => None,
        };
        lifecycle.advance(Phase::Serving);
        tracing::info!(%address, store = %settings.collector.store.display(), "collecting");
        Ok(Self {
            address,
            lifecycle,
            workers,
            collector,
            left,
        })
    }

    /// Returns where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Carries the collector on until it is asked to stop, then stops it.
    pub fn run(self) -> Stoppable<impl Future<Output = Result<(), Error>>> {
        Stoppable::new(|stop| {
            self.run_until(async {
                stop.await;
            })
        })
    }

    /// Carries the collector on until `stop`, then stops it in order.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let incident = tokio::select! {
            () = stop => None,
            incident = self.workers.watch() => Some(incident),
        };
        self.lifecycle.advance(Phase::Leaving);
        if let Some(left) = self.left.take() {
            // Its end means that the beacon has failed; nobody is to be waited for then.
            let heard = async {
                if left.await.is_ok() {
                    tokio::time::sleep(HEARD).await;
                }
            };
            tokio::time::timeout(LEAVE, heard).await.ok();
        }
        self.lifecycle.advance(Phase::Stopping);
        self.workers.end(DRAIN).await;
        if let Err(error) = self.collector.close().await {
            tracing::warn!(%error, "not closed cleanly; nothing confirmed is lost");
        }
        tracing::info!("stopped");
        incident.map_or(Ok(()), Err)
    }
}

/// Keeps the collector in Consul, where sidecars may look it up; what it returns tells when it
/// has left.
fn register(
    settings: &Settings,
    address: &Address,
    phase: Observer,
    workers: &mut Workers,
) -> Result<Option<oneshot::Receiver<()>>, Error> {
    let client = super::consul(settings)?;
    let (Some(ip), Some(port)) = (address.ip(), address.port()) else {
        tracing::warn!("a unix socket is not registered in Consul: others could not reach it");
        return Ok(None);
    };
    let host = match ip {
        ip if ip.is_unspecified() => String::new(),
        ip => ip.to_string(),
    };
    let beacon = Beacon {
        service: "hermes-collector".to_owned(),
        instance: settings.application.instance(Some(port)),
        host,
        port,
        keep: client.layout().keep(),
    };
    let mut stopping = phase.clone();
    let (tell, left) = oneshot::channel();
    workers.start("beacon", async move {
        shine(client, beacon, phase).await;
        // Out of time, nobody waits to be told.
        tell.send(()).ok();
        stopping.reached(Phase::Stopping).await;
    });
    Ok(Some(left))
}
