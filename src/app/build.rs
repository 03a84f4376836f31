//! Putting a sidecar together, bottom-up.

use super::delivery::{self, Delivery};
use super::ready::Readiness;
use super::reload::{self, Callee, Refused, Reload, Rooms};
use super::serving::{self, Means, Posts, Serving};
use super::sidecar::Sidecar;
use super::sockets::{Addresses, Sockets};
use super::workers::Workers;
use super::{Error, application, compose, explain};
use crate::admin::{self, Command};
use crate::admission::{self, Prober, Trials};
use crate::config::{Settings, Upstream as Application};
use crate::consul::{Client, Outcome};
use crate::contract::Compiled;
use crate::contract::trust::Trust;
use crate::contract::watch::Directory;
use crate::deferred::{Deferred, Side};
use crate::identity::local::Local;
use crate::identity::tls::{Clients, Tls};
use crate::lifecycle::{Lifecycle, Observer, Phase};
use crate::proxy::inbound::{Inbound, Roster};
use crate::proxy::outbound::Outbound;
use crate::proxy::{Active, Keep, Keeper, Recorder, Tunnels, Upstream, Upstreams};
use crate::reply::Replies;
use crate::reporter::{Order, Shipper};
use crate::socket::{self, Listener, Live, Routes, Serve, ServerTls};
use crate::spool::Spool;
use crate::store::{Bounds, Store};
use crate::telemetry::metrics::{Direction, Sidecar as Metrics};
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;

/// Idle connections to the application are kept below the five seconds after which widespread
/// servers (Node, uvicorn) close theirs, so that a call seldom meets a closing one.
const KEEP_APPLICATION: Duration = Duration::from_secs(4);
/// Contracts that come in at once while the process runs; the reload waits for further ones.
const MOST_BEGUN: usize = 16;

/// The parts of a sidecar while it is put together.
pub struct Builder {
    settings: Settings,
    addresses: Addresses,
    metrics: Arc<Metrics>,
    spool: Spool,
    state: Store,
    tls: Option<Arc<Tls>>,
    client: Client,
    consul_answered: Arc<AtomicBool>,
    instance: String,
    boot: String,
    lifecycle: Lifecycle,
    phase: Observer,
    workers: Workers,
    calls: TaskTracker,
    connections: TaskTracker,
    /// Watches and connections to upstreams: no calls, so draining does not wait for them.
    background: TaskTracker,
    active: Arc<Active>,
    /// What bounds connections, and how long those to peers are kept; a reload may change it.
    listeners: watch::Sender<socket::Limits>,
    administration: watch::Sender<socket::Limits>,
    peers: Keep,
}

impl Builder {
    /// Prepares what every part needs.
    pub fn new(
        settings: Settings,
        addresses: Addresses,
        metrics: Arc<Metrics>,
        (spool, state): (Spool, Store),
        tls: Option<Arc<Tls>>,
    ) -> Result<Self, Error> {
        let consul_answered = Arc::new(AtomicBool::new(false));
        let counted = compose::observe(metrics.clone());
        let answered = consul_answered.clone();
        let observe = Arc::new(move |operation, outcome, took| {
            if outcome == Outcome::Ok {
                answered.store(true, Ordering::Relaxed);
            }
            counted(operation, outcome, took);
        });
        let client = Client::new(compose::consul(&settings.consul), observe)?;
        let port = addresses
            .inbound
            .as_ref()
            .and_then(|address| address.port());
        let (lifecycle, phase) = Lifecycle::new();
        Ok(Self {
            instance: settings.application.instance(port),
            boot: format!("{:016x}", fastrand::u64(..)),
            listeners: watch::Sender::new(compose::listener(&settings.limits)),
            administration: watch::Sender::new(compose::administration(&settings.limits)),
            peers: Keep::new(compose::peers_keep(&settings.limits)),
            settings,
            addresses,
            metrics,
            spool,
            state,
            tls,
            client,
            consul_answered,
            lifecycle,
            phase,
            workers: Workers::default(),
            calls: TaskTracker::new(),
            connections: TaskTracker::new(),
            background: TaskTracker::new(),
            active: Arc::default(),
        })
    }

    /// Starts the parts, each on top of those before.
    pub async fn build(
        mut self,
        contracts: Vec<Option<Arc<Compiled>>>,
        sockets: Sockets,
    ) -> Result<Sidecar, Error> {
        let trust = compose::trust(&self.settings, Some(self.state.clone())).await?;
        let directory = self.remember(&trust).await;
        let recorder = Arc::new(Recorder {
            spool: self.spool.clone(),
            metrics: self.metrics.clone(),
        });
        let mut readiness = self.unready(&directory);
        let mut callee = None;
        if let (Some(socket), Some(application)) =
            (sockets.inbound, self.settings.application.upstream.clone())
        {
            callee = Some(self.serve(
                socket,
                &application,
                contracts,
                &trust,
                &recorder,
                &mut readiness,
            )?);
        }
        let outbound = self.call_others(sockets.outbound, &recorder, &directory);
        let mut sources = self.settings.application.contracts.iter();
        if !sources.any(|source| source.file().is_some()) {
            self.ask_consul();
        }
        if let Some(tls) = self.tls.clone() {
            self.start_without_end("TLS watch", tls.watch());
        }
        let readiness = Arc::new(readiness);
        let (orders, shipper) = self.deliver()?;
        let local = compose::local(&self.settings, &self.addresses.admin);
        let rooms = Rooms {
            addresses: self.addresses.clone(),
            boot: self.boot.clone(),
            listeners: self.listeners.clone(),
            administration: self.administration.clone(),
            local: Arc::new(ArcSwap::from_pointee(local)),
            outbound: outbound.clone(),
            peers: self.peers.clone(),
            trust,
            client: self.client.clone(),
            reporter: orders,
            callee,
        };
        let local = rooms.local.clone();
        let (reload, reloader) = Reload::new(self.settings.clone(), rooms, self.phase.clone());
        let reload = Arc::new(reload);
        self.start_without_end("reload", reloader.run());
        let commands = self.administer(
            (sockets.admin, sockets.public),
            directory.clone(),
            outbound,
            (readiness.clone(), local),
            reload.clone(),
        );
        self.lifecycle.advance(Phase::Serving);
        self.say_serving();
        Ok(Sidecar {
            addresses: self.addresses,
            lifecycle: self.lifecycle,
            workers: self.workers,
            commands,
            readiness,
            reload,
            left: None,
            metrics: self.metrics,
            spool: self.spool,
            state: self.state,
            shipper: Some(shipper),
            directory,
            calls: self.calls,
            connections: self.connections,
        })
    }

    /// Opens the directory with what an earlier process knew.
    async fn remember(&self, trust: &Arc<Trust>) -> Arc<Directory> {
        Directory::open(
            self.client.clone(),
            self.metrics.clone(),
            Some(self.state.clone()),
            self.background.clone(),
            trust.clone(),
        )
        .await
    }

    /// Begins readiness for a sidecar without contracts of its own.
    fn unready(&self, directory: &Arc<Directory>) -> Readiness {
        Readiness {
            lifecycle: self.phase.clone(),
            spool: self.spool.clone(),
            directory: directory.clone(),
            consul_answered: self.consul_answered.clone(),
            health: None,
            contracts: watch::Sender::new(Vec::new()).subscribe(),
        }
    }

    fn say_serving(&self) {
        let addresses = &self.addresses;
        tracing::info!(
            application = self.settings.application.name,
            instance = self.instance,
            inbound = addresses.inbound.as_ref().map(|a| a.to_string()),
            outbound = %addresses.outbound,
            admin = %addresses.admin,
            "serving"
        );
    }

    fn listening<S: Serve>(
        &self,
        listener: Listener,
        tls: Option<ServerTls>,
        service: Arc<S>,
    ) -> impl Future<Output = ()> + use<S> {
        let limits = self.listeners.subscribe();
        let (phase, connections) = (self.phase.clone(), self.connections.clone());
        socket::serve(listener, tls, service, limits, phase, connections)
    }

    fn tunnels(&self, direction: Direction) -> Tunnels {
        Tunnels {
            connections: self.connections.clone(),
            lifecycle: self.phase.clone(),
            inflight: self.metrics.inflight(direction).clone(),
            silence: self.settings.limits.stream_idle_timeout,
        }
    }

    fn keeper(&self) -> Keeper {
        Keeper::new(self.calls.clone(), self.phase.clone())
    }

    /// Starts everything that concerns the application's own contracts.
    fn serve(
        &mut self,
        socket: Listener,
        application: &Application,
        contracts: Vec<Option<Arc<Compiled>>>,
        trust: &Arc<Trust>,
        recorder: &Arc<Recorder>,
        readiness: &mut Readiness,
    ) -> Result<Callee, Error> {
        let asked = application::health(&self.settings.application, application)?;
        let limits = compose::trial(&self.settings.limits);
        let trials = Trials::new(&asked, limits).map_err(|e| Error::Client(Box::new(e)))?;
        let asked = watch::Sender::new(asked);
        let health = self.probe(&asked)?;
        readiness.health = Some(health.clone());
        let admission =
            reload::admission(&self.settings, &self.instance, &self.boot, &self.addresses);
        let serving = Arc::new(Serving::new(Means {
            admission: watch::Sender::new(Arc::new(admission)),
            asked,
            grace: watch::Sender::new(self.settings.limits.drain_delay),
            client: self.client.clone(),
            metrics: self.metrics.clone(),
            trust: trust.clone(),
            trials: Arc::new(trials),
            health,
            instance: self.instance.clone(),
        }));
        readiness.contracts = serving.entries();
        let mut posts = Posts::new(serving.clone(), self.phase.clone());
        let sources = self.settings.application.contracts.iter().cloned();
        let begun = posts.arrange(sources.zip(contracts).collect());
        let (begin, more) = mpsc::channel(MOST_BEGUN);
        let working = serving::work(begun, more, self.phase.clone());
        self.start_until_leaving("contracts", working);
        let inbound = self.listen_to_peers(socket, application, serving.roster(), recorder)?;
        Ok(Callee {
            inbound,
            serving,
            posts,
            begin,
        })
    }

    fn listen_to_peers(
        &mut self,
        socket: Listener,
        application: &Application,
        contracts: watch::Receiver<Roster>,
        recorder: &Arc<Recorder>,
    ) -> Result<Arc<Live<Inbound>>, Error> {
        let config = compose::inbound(&self.settings, &self.boot, contracts)?;
        let endpoint = application::endpoint(&self.settings.application, application)?;
        let upstream = Upstream::new(
            endpoint,
            Keep::new(KEEP_APPLICATION),
            self.background.clone(),
        );
        let inbound = Live::new(Inbound::new(
            config,
            recorder.clone(),
            upstream,
            (
                self.active.clone(),
                self.replies(),
                self.deferred(Side::Callee),
            ),
            self.phase.clone(),
            self.keeper(),
            self.tunnels(Direction::Inbound),
        ));
        let tls = self.tls.as_ref();
        let tls = tls.map(|tls| super::tls::listener(tls, Clients::Required));
        let listening = self.listening(socket, tls, inbound.clone());
        self.workers.start("inbound listener", listening);
        Ok(inbound)
    }

    fn replies(&self) -> Replies {
        Replies::new(self.state.clone(), &self.boot, Bounds::default())
    }

    fn deferred(&self, side: Side) -> Deferred {
        let (metrics, bounds) = (self.metrics.clone(), Bounds::default());
        let degraded = Arc::new(move || metrics.durability_degraded());
        Deferred::new(side, self.state.clone(), &self.boot, bounds, degraded)
    }

    fn probe(
        &mut self,
        asked: &watch::Sender<admission::HealthConfig>,
    ) -> Result<watch::Receiver<admission::Health>, Error> {
        let config = asked.borrow().clone();
        let (prober, health) = Prober::new(config).map_err(|e| Error::Client(Box::new(e)))?;
        let prober = prober.following(asked.subscribe());
        self.start_without_end("health prober", prober.run());
        Ok(health)
    }

    fn call_others(
        &mut self,
        socket: Listener,
        recorder: &Arc<Recorder>,
        directory: &Arc<Directory>,
    ) -> Arc<Live<Outbound>> {
        let config = compose::outbound(&self.settings, self.addresses.outbound.clone(), &self.boot);
        let outbound = Live::new(Outbound::new(
            config,
            recorder.clone(),
            directory.clone(),
            (
                Upstreams::new(self.peers.clone(), self.background.clone()),
                self.tls.clone(),
            ),
            (self.active.clone(), self.deferred(Side::Caller)),
            self.keeper(),
            self.tunnels(Direction::Outbound),
        ));
        let listening = self.listening(socket, None, outbound.clone());
        self.workers.start("outbound listener", listening);
        outbound
    }

    /// Without contracts, or before they are there, nothing else asks Consul, and readiness wants
    /// to know that it is there.
    fn ask_consul(&mut self) {
        let client = self.client.clone();
        let answered = self.consul_answered.clone();
        self.start_without_end("consul greeting", async move {
            while !answered.load(Ordering::Relaxed) && client.leader().await.is_err() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            std::future::pending::<()>().await;
        });
    }

    fn administer(
        &mut self,
        (socket, public): (Listener, Option<Listener>),
        directory: Arc<Directory>,
        outbound: Arc<Live<Outbound>>,
        (readiness, local): (Arc<Readiness>, Arc<ArcSwap<Local>>),
        reload: Arc<Reload>,
    ) -> mpsc::Receiver<Command> {
        let (commands, received) = mpsc::channel(4);
        let (ready, outbound_ready) = (readiness.clone(), readiness.clone());
        let (states, contracts) = (readiness.clone(), readiness);
        let active = self.active.clone();
        let in_force = reload.clone();
        let house = Arc::new(admin::House {
            local: Box::new(move || local.load_full()),
            metrics: self.metrics.clone(),
            spool: self.spool.clone(),
            directory,
            ready: Box::new(move || ready.checks()),
            outbound_ready: Box::new(move || outbound_ready.outbound()),
            states: Box::new(move || states.states()),
            contracts: Box::new(move || contracts.contracts()),
            explain: explain::explain(outbound.clone()),
            seen: explain::seen(outbound),
            active: Box::new(move || active.list().iter().map(|step| step.shown()).collect()),
            config: Box::new(move || in_force.in_force()),
            reload: Box::new(move || {
                let reload = reload.clone();
                Box::pin(async move {
                    let reloaded = reload.reload().await;
                    reloaded
                        .map(|reloaded| reloaded.to_json())
                        .map_err(unchanged)
                })
            }),
            commands,
        });
        if let Some(public) = public {
            let router = admin::public(house.clone());
            let serving = self.administering(public, router);
            self.start_without_end("public admin listener", serving);
        }
        let router = admin::router(house);
        let serving = self.administering(socket, router);
        self.start_without_end("admin listener", serving);
        received
    }

    /// The admin listeners answer until the very end, so their connections are not waited for.
    fn administering(
        &self,
        listener: Listener,
        router: axum::Router,
    ) -> impl Future<Output = ()> + use<> {
        let limits = self.administration.subscribe();
        let (phase, connections) = (self.phase.clone(), self.background.clone());
        let routes = Routes::new(router);
        socket::serve(listener, None, routes, limits, phase, connections)
    }

    fn deliver(&mut self) -> Result<(watch::Sender<Order>, Delivery), Error> {
        let collector = self.settings.spool.collector.as_ref();
        let target = delivery::target(&self.client, collector)?;
        let config = compose::reporter(&self.settings.spool);
        let orders = watch::Sender::new((config.clone(), target.clone()));
        let (spool, metrics, tls) = (self.spool.clone(), self.metrics.clone(), self.tls.clone());
        let shipper = Shipper::new(config, target, spool, metrics, tls);
        let shipper = shipper.map_err(|e| Error::Client(Box::new(e)))?;
        let shipper = shipper.following(orders.subscribe());
        let phase = self.phase.clone();
        Ok((orders, Delivery::start(shipper, phase, &mut self.workers)))
    }

    /// Starts a worker that may end once the process leaves.
    fn start_until_leaving(
        &mut self,
        name: &'static str,
        worker: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut phase = self.phase.clone();
        self.workers.start(name, async move {
            worker.await;
            if phase.phase() >= Phase::Leaving {
                // Its work is done; ending would look like an incident until we stop watching.
                phase.reached(Phase::Stopping).await;
            }
        });
    }

    /// Starts a worker that never ends by itself and has nothing to settle: it is dropped once
    /// the process stops, so that the stop need not wait for it.
    fn start_without_end(
        &mut self,
        name: &'static str,
        worker: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut phase = self.phase.clone();
        self.workers.start(name, async move {
            tokio::select! {
                () = worker => {}
                () = phase.reached(Phase::Stopping) => {}
            }
        });
    }
}

/// How the admin listener tells that a reload changed nothing.
fn unchanged(refused: Refused) -> admin::Unchanged {
    match refused {
        Refused::Problems(problems) => admin::Unchanged::Problems(problems),
        Refused::Leaving | Refused::Crowded => admin::Unchanged::Refused(refused.to_string()),
    }
}
