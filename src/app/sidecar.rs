//! One sidecar: started, running, stopped.

use super::ready::Readiness;
use super::signals::Stoppable;
use super::workers::Workers;
use super::{Error, compose, contracts};
use crate::admin::{self, Command};
use crate::admission::{HealthConfig, Ours, Prober, Registrar};
use crate::config::{CollectorTarget, Settings, Upstream as Application};
use crate::consul::{Client, Poll};
use crate::contract::watch::Directory;
use crate::lifecycle::{Lifecycle, Phase};
use crate::proxy::inbound::{Inbound, Served};
use crate::proxy::listen::listen;
use crate::proxy::outbound::Outbound;
use crate::proxy::{Active, Recorder, Upstream, Upstreams};
use crate::reporter::{Shipper, Target, Url};
use crate::spool::Spool;
use crate::store::Store;
use crate::task::Timestamp;
use crate::telemetry::metrics::{Direction, Sidecar as Metrics};
use http::Method;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// Idle connections to the application are kept below the five seconds after which widespread
/// servers (Node, uvicorn) close theirs, so that a call seldom meets a closing one.
const KEEP_APPLICATION: Duration = Duration::from_secs(4);
/// Other sidecars close after `idle_timeout`; we let go a little earlier.
const KEEP_PEERS: f64 = 0.9;
/// Nothing in flight for this long counts as idle while draining: an application that is still
/// finishing its work pauses between its calls.
const QUIET: Duration = Duration::from_secs(1);
/// For the last reports of a stopping process.
const FLUSH: Duration = Duration::from_secs(5);
/// For connections that are still open when everything else has ended.
const CLOSE: Duration = Duration::from_secs(1);

/// Where a sidecar's listeners are bound.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    pub inbound: Option<SocketAddr>,
    pub outbound: SocketAddr,
    pub admin: SocketAddr,
    pub public: Option<SocketAddr>,
}

/// A sidecar that serves.
pub struct Sidecar {
    addresses: Addresses,
    settings: Settings,
    lifecycle: Lifecycle,
    workers: Workers,
    commands: mpsc::Receiver<Command>,
    metrics: Arc<Metrics>,
    spool: Spool,
    state: Store,
    shipper: Option<Delivery>,
    calls: TaskTracker,
    connections: TaskTracker,
}

/// The reporter, which must come back to us for its last round.
struct Delivery {
    worker: tokio::task::JoinHandle<Shipper>,
    stop: oneshot::Sender<()>,
}

/// The bound sockets of a sidecar.
struct Sockets {
    inbound: Option<TcpListener>,
    outbound: TcpListener,
    admin: TcpListener,
    public: Option<TcpListener>,
}

impl Sidecar {
    /// Starts everything; what cannot work is refused here, before a request is taken.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let ours = contracts::load(&settings.application.contracts)?;
        let sockets = Sockets::bind(&settings).await?;
        let addresses = sockets.addresses()?;
        let metrics = Arc::new(Metrics::new(&settings.application.name));
        let spool = compose::spool(&settings.spool, metrics.clone()).await?;
        let state = compose::state(&settings.spool)?;
        let builder = Builder::new(settings, addresses, metrics, spool, state)?;
        builder.build(ours, sockets).await
    }

    /// Returns where the listeners are.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Carries the sidecar on until it is asked to stop or told to quit, then stops it.
    pub fn run(self) -> Stoppable<impl Future<Output = Result<(), Error>>> {
        let (ask, asked) = oneshot::channel();
        Stoppable {
            ask,
            ended: self.run_until(async { drop(asked.await) }),
        }
    }

    /// Carries the sidecar on until `stop`, then stops it in order.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let incident = {
            let mut stop = std::pin::pin!(stop);
            loop {
                tokio::select! {
                    () = stop.as_mut() => break None,
                    incident = self.workers.watch() => break Some(incident),
                    Some(command) = self.commands.recv() => match command {
                        Command::Quit => break None,
                        Command::Drain => self.lifecycle.advance(Phase::Leaving),
                    },
                }
            }
        };
        if let Some(incident) = &incident {
            tracing::error!(%incident, "stopping after an incident");
        }
        self.stop().await;
        incident.map_or(Ok(()), Err)
    }

    async fn stop(self) {
        let limits = &self.settings.limits;
        let serves = self.addresses.inbound.is_some();
        self.lifecycle.advance(Phase::Leaving);
        if serves {
            tokio::time::sleep(limits.drain_delay).await;
        }
        self.lifecycle.advance(Phase::Draining);
        let drained = tokio::time::timeout(limits.drain_timeout, self.idle()).await;
        if drained.is_err() {
            tracing::warn!("calls were still running at drain_timeout; they end as interrupted");
        }
        self.lifecycle.advance(Phase::Stopping);
        self.connections.close();
        // Connections that do not close by themselves end with the process.
        tokio::time::timeout(CLOSE, self.connections.wait())
            .await
            .ok();
        self.workers.end().await;
        if let Some(delivery) = self.shipper {
            delivery.finish().await;
        }
        for (file, closed) in [
            ("spool", self.spool.close().await),
            ("state", self.state.close().await),
        ] {
            if let Err(error) = closed {
                tracing::warn!(file, %error, "not closed cleanly; nothing committed is lost");
            }
        }
        tracing::info!("stopped");
    }

    /// Waits until nothing has been in flight for a while.
    async fn idle(&self) {
        let mut quiet_since: Option<Instant> = None;
        loop {
            let inflight = [Direction::Inbound, Direction::Outbound]
                .map(|way| self.metrics.inflight(way).get());
            let busy = inflight.iter().any(|count| *count > 0) || !self.calls.is_empty();
            quiet_since = match (busy, quiet_since) {
                (true, _) => None,
                (false, since) => Some(since.unwrap_or_else(Instant::now)),
            };
            if quiet_since.is_some_and(|since| since.elapsed() >= QUIET) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Delivery {
    fn start(mut shipper: Shipper) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        #[expect(
            clippy::disallowed_methods,
            reason = "its handle is awaited in `finish`"
        )]
        let worker = tokio::spawn(async move {
            shipper.run(async { drop(stopped.await) }).await;
            shipper
        });
        Self { worker, stop }
    }

    /// Delivers what is owed once more, within bounds; the rest waits for the next start.
    async fn finish(self) {
        self.stop.send(()).ok();
        match self.worker.await {
            Ok(mut shipper) => {
                let owed = shipper.flush(Instant::now() + FLUSH).await;
                tracing::info!(owed, "last delivery done");
            }
            Err(error) => tracing::error!(%error, "the reporter had failed"),
        }
    }
}

impl Sockets {
    async fn bind(settings: &Settings) -> Result<Self, Error> {
        let serves = settings.application.upstream.is_some();
        let inbound = match serves {
            true => Some(bind("inbound.listen", settings.inbound.listen).await?),
            false => None,
        };
        let public = match settings.admin.public_listen {
            Some(address) => Some(bind("admin.public_listen", address).await?),
            None => None,
        };
        Ok(Self {
            inbound,
            outbound: bind("outbound.listen", settings.outbound.listen).await?,
            admin: bind("admin.listen", settings.admin.listen).await?,
            public,
        })
    }

    fn addresses(&self) -> Result<Addresses, Error> {
        Ok(Addresses {
            inbound: self.inbound.as_ref().map(address).transpose()?,
            outbound: address(&self.outbound)?,
            admin: address(&self.admin)?,
            public: self.public.as_ref().map(address).transpose()?,
        })
    }
}

/// Binds a listener; the error names the key to change.
pub(super) async fn bind(key: &'static str, address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Bind {
            key,
            address,
            source,
        })
}

fn address(listener: &TcpListener) -> Result<SocketAddr, Error> {
    let unbound = SocketAddr::from(([0, 0, 0, 0], 0));
    listener.local_addr().map_err(|source| Error::Bind {
        key: "listen",
        address: unbound,
        source,
    })
}

/// The parts of a sidecar while it is put together.
struct Builder {
    settings: Settings,
    addresses: Addresses,
    metrics: Arc<Metrics>,
    spool: Spool,
    state: Store,
    client: Client,
    consul_answered: Arc<AtomicBool>,
    instance: String,
    boot: String,
    lifecycle: Lifecycle,
    phase: crate::lifecycle::Observer,
    workers: Workers,
    calls: TaskTracker,
    connections: TaskTracker,
    active: Arc<Active>,
}

impl Builder {
    fn new(
        settings: Settings,
        addresses: Addresses,
        metrics: Arc<Metrics>,
        spool: Spool,
        state: Store,
    ) -> Result<Self, Error> {
        let consul_answered = Arc::new(AtomicBool::new(false));
        let counted = compose::observe(metrics.clone());
        let answered = consul_answered.clone();
        let observe = Arc::new(move |operation, outcome, took| {
            if outcome == crate::consul::Outcome::Ok {
                answered.store(true, Ordering::Relaxed);
            }
            counted(operation, outcome, took);
        });
        let client = Client::new(compose::consul(&settings.consul), observe)?;
        let port = addresses.inbound.map_or(0, |address| address.port());
        let (lifecycle, phase) = Lifecycle::new();
        Ok(Self {
            instance: settings.application.instance(port),
            boot: format!("{:016x}", fastrand::u64(..)),
            settings,
            addresses,
            metrics,
            spool,
            state,
            client,
            consul_answered,
            lifecycle,
            phase,
            workers: Workers::default(),
            calls: TaskTracker::new(),
            connections: TaskTracker::new(),
            active: Arc::default(),
        })
    }

    async fn build(mut self, ours: Vec<Ours>, sockets: Sockets) -> Result<Sidecar, Error> {
        let directory = Directory::open(
            self.client.clone(),
            self.metrics.clone(),
            Some(self.state.clone()),
            self.calls_apart(),
        )
        .await;
        let recorder = Arc::new(Recorder {
            spool: self.spool.clone(),
            metrics: self.metrics.clone(),
        });
        let mut readiness = Readiness {
            lifecycle: self.phase.clone(),
            spool: self.spool.clone(),
            directory: directory.clone(),
            consul_answered: self.consul_answered.clone(),
            health: None,
            contracts: Vec::new(),
        };
        if let (Some(socket), Some(application)) =
            (sockets.inbound, self.settings.application.upstream.clone())
        {
            self.serve(socket, &application, ours, &recorder, &mut readiness)?;
        }
        self.call_others(sockets.outbound, &recorder, &directory);
        if self.addresses.inbound.is_none() {
            self.ask_consul();
        }
        let commands = self.administer(sockets.admin, sockets.public, directory, readiness);
        let shipper = self.deliver()?;
        self.lifecycle.advance(Phase::Serving);
        let addresses = self.addresses;
        let name = self.settings.application.name.as_str();
        tracing::info!(
            application = name,
            instance = self.instance,
            inbound = addresses.inbound.map(|a| a.to_string()),
            outbound = %addresses.outbound,
            admin = %addresses.admin,
            "serving"
        );
        Ok(Sidecar {
            addresses,
            settings: self.settings,
            lifecycle: self.lifecycle,
            workers: self.workers,
            commands,
            metrics: self.metrics,
            spool: self.spool,
            state: self.state,
            shipper,
            calls: self.calls,
            connections: self.connections,
        })
    }

    /// Watches must not count as calls when draining asks whether anything runs.
    fn calls_apart(&self) -> TaskTracker {
        TaskTracker::new()
    }

    /// Starts everything that concerns the application's own contracts.
    fn serve(
        &mut self,
        socket: TcpListener,
        application: &Application,
        ours: Vec<Ours>,
        recorder: &Arc<Recorder>,
        readiness: &mut Readiness,
    ) -> Result<(), Error> {
        let health = self.probe(application)?;
        readiness.health = Some(health.clone());
        let bound = self.addresses.inbound.unwrap_or(self.addresses.outbound);
        let admission = Arc::new(compose::admission(
            &self.settings,
            &self.instance,
            &self.boot,
            bound,
            self.addresses.public,
        ));
        let versions: Vec<_> = ours
            .iter()
            .map(|ours| ours.contract.contract.version.clone())
            .collect();
        let mut served = Vec::with_capacity(ours.len());
        for (at, ours) in ours.into_iter().enumerate() {
            let (registrar, standing, record) = Registrar::new(
                admission.clone(),
                ours.clone(),
                versions.clone(),
                self.client.clone(),
                self.metrics.clone(),
                health.clone(),
                self.phase.clone(),
            );
            let id = ours.contract.contract.id.to_string();
            readiness.contracts.push((id, standing.clone(), record));
            self.workers_until_leaving("registrar", registrar.run());
            served.push(self.served(at, &ours, standing));
        }
        let config = compose::inbound(&self.settings, &self.boot, served);
        let upstream = Upstream::new(authority(application), KEEP_APPLICATION, self.calls_apart());
        let inbound = Arc::new(Inbound::new(
            config,
            recorder.clone(),
            upstream,
            self.active.clone(),
            self.phase.clone(),
            self.calls.clone(),
        ));
        let limits = compose::listener(&self.settings.limits);
        let listening = listen(
            socket,
            inbound,
            limits,
            self.phase.clone(),
            self.connections.clone(),
        );
        self.workers_until_stopping("inbound listener", listening);
        Ok(())
    }

    fn probe(
        &mut self,
        application: &Application,
    ) -> Result<watch::Receiver<crate::admission::Health>, Error> {
        let settings = &self.settings.application;
        let upstream = format!("http://{}", authority(application));
        let upstream = upstream.parse().map_err(|e| Error::Client(Box::new(e)))?;
        let config = HealthConfig {
            upstream,
            path: settings.health.clone(),
            interval: settings.health_interval,
            timeout: settings.health_timeout,
            failures: settings.health_failures,
        };
        let (prober, health) = Prober::new(config).map_err(|e| Error::Client(Box::new(e)))?;
        self.workers_without_end("health prober", prober.run());
        Ok(health)
    }

    fn served(&self, at: usize, ours: &Ours, standing: crate::admission::Reader) -> Served {
        let source = &self.settings.application.contracts[at];
        let contract = &ours.contract.contract;
        let id = contract.id.as_str();
        let digest = ours.contract.digest.to_string();
        let digest = digest.trim_start_matches("sha-256:");
        let team = &self.settings.application.team;
        self.metrics
            .serves(team, id, &contract.version.to_string(), digest);
        let timeout = contract.constraints.timeout;
        self.metrics.contract_taken(id, timeout, Timestamp::now());
        let method = source.method.as_str().as_bytes();
        let method = Method::from_bytes(method).unwrap_or(Method::POST);
        Served::new(
            ours.contract.clone(),
            (method, source.path.clone()),
            (compose::mode(source.input), compose::mode(source.output)),
            format!("{}-{}", self.client.layout().service(id), self.instance),
            standing,
            self.metrics.contract(Direction::Inbound, id),
        )
    }

    fn call_others(
        &mut self,
        socket: TcpListener,
        recorder: &Arc<Recorder>,
        directory: &Arc<Directory>,
    ) {
        let config = compose::outbound(&self.settings, self.addresses.outbound, &self.boot);
        let keep = self.settings.limits.idle_timeout.mul_f64(KEEP_PEERS);
        let outbound = Arc::new(Outbound::new(
            config,
            recorder.clone(),
            directory.clone(),
            Upstreams::new(keep, self.calls_apart()),
            self.active.clone(),
            self.calls.clone(),
        ));
        let limits = compose::listener(&self.settings.limits);
        let listening = listen(
            socket,
            outbound,
            limits,
            self.phase.clone(),
            self.connections.clone(),
        );
        self.workers_until_stopping("outbound listener", listening);
    }

    /// Without contracts nothing else asks Consul, and readiness wants to know that it is there.
    fn ask_consul(&mut self) {
        let client = self.client.clone();
        let answered = self.consul_answered.clone();
        self.workers_without_end("consul greeting", async move {
            while !answered.load(Ordering::Relaxed) && client.leader().await.is_err() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            std::future::pending::<()>().await;
        });
    }

    fn administer(
        &mut self,
        socket: TcpListener,
        public: Option<TcpListener>,
        directory: Arc<Directory>,
        readiness: Readiness,
    ) -> mpsc::Receiver<Command> {
        let (commands, received) = mpsc::channel(4);
        let readiness = Arc::new(readiness);
        let (ready, outbound_ready, contracts) = (readiness.clone(), readiness.clone(), readiness);
        let active = self.active.clone();
        let house = Arc::new(admin::House {
            own_address: self.addresses.admin,
            metrics: self.metrics.clone(),
            spool: self.spool.clone(),
            directory,
            ready: Box::new(move || ready.checks()),
            outbound_ready: Box::new(move || outbound_ready.outbound()),
            contracts: Box::new(move || contracts.contracts()),
            active: Box::new(move || active.list().iter().map(|step| step.shown()).collect()),
            config: self.settings.to_json(),
            commands,
        });
        if let Some(public) = public {
            let router = admin::public(house.clone());
            self.workers_without_end("public admin listener", serve_http(public, router));
        }
        let router = admin::router(house);
        self.workers_without_end("admin listener", serve_http(socket, router));
        received
    }

    fn deliver(&self) -> Result<Option<Delivery>, Error> {
        let target = match &self.settings.spool.collector {
            None => return Ok(None),
            Some(CollectorTarget::Url(url)) => {
                Target::Fixed(url.parse().map_err(|e| Error::Client(Box::new(e)))?)
            }
            Some(CollectorTarget::Consul(service)) => self.looked_up(service),
        };
        let config = compose::reporter(&self.settings.spool);
        let shipper = Shipper::new(config, target, self.spool.clone(), self.metrics.clone());
        let shipper = shipper.map_err(|e| Error::Client(Box::new(e)))?;
        Ok(Some(Delivery::start(shipper)))
    }

    /// Finds the collector in Consul anew for every round; any passing one will do.
    fn looked_up(&self, service: &str) -> Target {
        let (client, service) = (self.client.clone(), service.to_owned());
        Target::Lookup(Box::new(move || {
            let (client, service) = (client.clone(), service.clone());
            Box::pin(async move {
                let name = client.layout().service(&service);
                let found = client.health(&name, Poll::NOW).await.ok()?.value;
                let passing: Vec<_> = found.iter().filter(|i| i.passing).collect();
                let one = passing.get(fastrand::usize(..passing.len().max(1)))?;
                Url::parse(&format!("http://{}", one.authority())).ok()
            })
        }))
    }

    /// Starts a worker that may end once the process leaves.
    fn workers_until_leaving(
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
    fn workers_without_end(
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

    /// Starts a worker that may end once the process stops.
    fn workers_until_stopping(
        &mut self,
        name: &'static str,
        worker: impl Future<Output = ()> + Send + 'static,
    ) {
        self.workers.start(name, worker);
    }
}

/// `host:port`, an IPv6 address in brackets.
fn authority(application: &Application) -> String {
    let Application { host, port } = application;
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

async fn serve_http(listener: TcpListener, router: axum::Router) {
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "an admin listener failed");
    }
}

impl Readiness {
    fn contracts(&self) -> serde_json::Value {
        let shown = self.contracts.iter().map(|(id, standing, record)| {
            let (standing, record) = (standing.borrow(), record.borrow());
            json!({
                "agent": id,
                "state": standing.state.as_str(),
                "reason": standing.reason,
                "registered": record.registered,
                "trouble": record.trouble,
                "confirmed_at": record.confirmed_at,
            })
        });
        shown.collect()
    }
}
