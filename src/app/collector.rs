//! One collector process: started, running, stopped.

use super::reload::{Reload, Takes, problem};
use super::signals::Stoppable;
use super::sockets::{self, bind};
use super::workers::Workers;
use super::{Error, compose, tls};
use crate::admission::{Beacon, shine};
use crate::collector::{self, Place};
use crate::config::Settings;
use crate::consul::{Client, Observe, Operation, Outcome};
use crate::contract::trust::Trust;
use crate::identity::Secret;
use crate::identity::tls::{COLLECTOR, Clients, Tls};
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
    reload: Reload,
    /// Told when Consul lists it no more; nothing where Consul never did.
    left: Option<oneshot::Receiver<()>>,
}

/// What of a collector can change while it runs.
struct Rooms {
    collector: Arc<collector::Collector>,
    /// Nothing where Consul is not asked.
    trust: Option<Arc<Trust>>,
    /// The token as it was read last.
    token: Option<Secret>,
}

impl Collector {
    /// Opens the store, binds the listener and begins to serve.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let own = &settings.collector;
        let metrics = Arc::new(metrics::Collector::new());
        let tls = tls::open(settings.tls.as_ref(), metrics.tls())?;
        let listener = bind("collector.listen", &own.listen).await?;
        let address = sockets::address(&listener)?;
        let (lifecycle, phase) = Lifecycle::new();
        let mut workers = Workers::default();
        let token = token(&settings)?;
        let (collector, place) = open(&settings, token.clone(), &metrics).await?;
        let client = match own.consul {
            true => Some(consul(&settings, &metrics)?),
            false => None,
        };
        let trust = match client.clone() {
            Some(client) => {
                let trust = trust(&settings, &collector).await?;
                if let Some(following) = collector.follow(client, trust.clone()) {
                    until_stopping("contract board", following, phase.clone(), &mut workers);
                }
                Some(trust)
            }
            None => None,
        };
        let clients = match own.token_file {
            Some(_) => Clients::Optional,
            None => Clients::Required,
        };
        let secured = tls.as_ref().map(|tls| tls::listener(tls, clients));
        let (serving, stop) = (collector.clone(), phase.clone());
        workers.start("collector listener", async move {
            serving.serve(listener, secured, stop).await;
        });
        let left = client.and_then(|client| {
            let instance = |port| settings.application.instance(Some(port));
            let beacon = beacon(&client, &address, proto(tls.as_ref()), instance)?;
            Some(register(client, beacon, phase.clone(), &mut workers))
        });
        let rooms = Rooms {
            collector: collector.clone(),
            trust,
            token,
        };
        let (reload, reloader) = Reload::new(settings.clone(), rooms, phase.clone());
        until_stopping("reload", reloader.run(), phase.clone(), &mut workers);
        if let Some(tls) = tls {
            until_stopping(
                "TLS watch",
                async move { tls.watch().await },
                phase,
                &mut workers,
            );
        }
        lifecycle.advance(Phase::Serving);
        tracing::info!(%address, store = place, "collecting");
        Ok(Self {
            address,
            lifecycle,
            workers,
            collector,
            reload,
            left,
        })
    }

    /// Returns where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Carries the collector on until it is asked to stop, then stops it.
    pub fn run(self) -> Stoppable<impl Future<Output = Result<(), Error>>> {
        let reload = self.reload.clone();
        let process = Stoppable::new(|stop| {
            self.run_until(async {
                stop.await;
            })
        });
        process.at_hangup(move || reload.hangup())
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

/// Says what sidecars that look the collector up must speak; they expect it under its usual name.
fn proto(tls: Option<&Arc<Tls>>) -> &'static str {
    let Some(tls) = tls else { return "http" };
    if *tls.name() != *COLLECTOR {
        tracing::warn!(
            name = &*tls.name(),
            "sidecars that look the collector up in Consul want a certificate for \
             {COLLECTOR}; ours is for another, so that only those with its URL will report"
        );
    }
    "https"
}

/// Starts a worker without an end of its own.
fn until_stopping(
    name: &'static str,
    worker: impl Future<Output = ()> + Send + 'static,
    mut phase: Observer,
    workers: &mut Workers,
) {
    workers.start(name, async move {
        tokio::select! {
            () = worker => {}
            () = phase.reached(Phase::Stopping) => {}
        }
    });
}

const TOKEN: &str = "collector.token_file";

fn token(settings: &Settings) -> Result<Option<Secret>, Error> {
    compose::token(TOKEN, settings.collector.token_file.as_deref())
}

impl Takes for Rooms {
    type Prepared = Option<Secret>;

    fn concerns(&self, key: &str) -> bool {
        ["collector.", "log.", "trust."]
            .iter()
            .any(|section| key.starts_with(section))
    }

    async fn prepare(
        &self,
        _: &Settings,
        settings: &Settings,
    ) -> Result<Option<Secret>, Vec<String>> {
        let token = token(settings).map_err(|error| vec![problem(settings, TOKEN, &error)])?;
        // Whether certificates are asked for is settled with the listener.
        if settings.tls.is_some() && token.is_some() != self.token.is_some() {
            let come = "collector.token_file: with TLS a token comes or goes with a restart alone";
            return Err(vec![come.to_owned()]);
        }
        Ok(token)
    }

    async fn settle(&mut self, token: Option<Secret>, settings: &Settings) -> Vec<String> {
        let is_new = self.token != token;
        self.token.clone_from(&token);
        let retention = settings.collector.retention;
        self.collector.follow_terms(token, retention);
        if let Some(trust) = &self.trust {
            trust.follow(settings.trust.clone());
        }
        is_new.then(|| TOKEN.to_owned()).into_iter().collect()
    }
}

/// Opens the book in which reports are kept, and says where that is.
async fn open(
    settings: &Settings,
    token: Option<Secret>,
    metrics: &Arc<metrics::Collector>,
) -> Result<(Arc<collector::Collector>, String), Error> {
    let own = &settings.collector;
    let config = collector::Config {
        store: own.store.clone(),
        token,
        retention: own.retention,
    };
    let opened = collector::Collector::open(config, metrics.clone()).await;
    let (collector, opened) = opened.map_err(|source| Error::Book(Box::new(source)))?;
    let place = match &own.store {
        Place::File(path) => {
            compose::alarm(path, &opened);
            path.display().to_string()
        }
        Place::Postgres(address) => address.to_string(),
    };
    Ok((Arc::new(collector), place))
}

/// Opens what published contracts are judged by; first keys are remembered beside the reports, if
/// those are in a file of ours.
async fn trust(settings: &Settings, collector: &collector::Collector) -> Result<Arc<Trust>, Error> {
    let keys = match collector.store() {
        Some(store) => Some(store.clone()),
        None => compose::keys(&settings.collector.keys_path)?,
    };
    compose::trust(settings, keys).await
}

/// Makes the one client for the settings' Consul; its requests are counted.
fn consul(settings: &Settings, metrics: &Arc<metrics::Collector>) -> Result<Client, Error> {
    for operation in Operation::ALL {
        for outcome in Outcome::all() {
            metrics.consul_kind(operation.as_str(), outcome.as_str());
        }
    }
    let metrics = metrics.clone();
    let observe: Observe = Arc::new(move |operation, outcome, _took| {
        metrics.consul_request(operation.as_str(), outcome.as_str());
    });
    Ok(Client::new(compose::consul(&settings.consul), observe)?)
}

/// Describes the collector for Consul, where sidecars may look it up; nothing where none of them
/// could reach it.
fn beacon(
    client: &Client,
    address: &Address,
    proto: &'static str,
    instance: impl FnOnce(u16) -> String,
) -> Option<Beacon> {
    let (Some(ip), Some(port)) = (address.ip(), address.port()) else {
        tracing::warn!("a unix socket is not registered in Consul: others could not reach it");
        return None;
    };
    let host = match ip {
        ip if ip.is_unspecified() => String::new(),
        ip => ip.to_string(),
    };
    Some(Beacon {
        service: "hermes-collector".to_owned(),
        instance: instance(port),
        host,
        port,
        proto,
        keep: client.layout().keep(),
    })
}

/// Keeps the collector in Consul; what it returns tells when it has left.
fn register(
    client: Client,
    beacon: Beacon,
    phase: Observer,
    workers: &mut Workers,
) -> oneshot::Receiver<()> {
    let mut stopping = phase.clone();
    let (tell, left) = oneshot::channel();
    workers.start("beacon", async move {
        shine(client, beacon, phase).await;
        // Out of time, nobody waits to be told.
        tell.send(()).ok();
        stopping.reached(Phase::Stopping).await;
    });
    left
}
