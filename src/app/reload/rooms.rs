//! What each room is given of the settings, at a start and by a reload.
//!
//! - `prepare` does all that can fail and changes nothing; `settle` cannot fail
//! - a request reads one snapshot from start to end; what runs goes on as it began

use super::{Takes, compose};
use crate::admission::publication::check_version;
use crate::admission::{self, HealthConfig, Trials};
use crate::apart;
use crate::app::delivery::target;
use crate::app::serving::{Posts, Serving, Wanted, Work};
use crate::app::sockets::Addresses;
use crate::app::{Error, application, contracts};
use crate::config::{Problem, Settings};
use crate::consul::Client;
use crate::contract::Compiled;
use crate::contract::trust::Trust;
use crate::identity::local::Local;
use crate::proxy::Keep;
use crate::proxy::inbound::{self, Inbound};
use crate::proxy::outbound::{self, Outbound};
use crate::reporter::{Order, Target};
use crate::socket;
use crate::telemetry::log::Chain;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// For Consul's word on contracts that have changed; what it does not say is no reason to refuse.
const PATIENCE: Duration = Duration::from_secs(5);

/// All that can be given anew.
pub struct Rooms {
    pub addresses: Addresses,
    pub boot: String,
    pub listeners: watch::Sender<socket::Limits>,
    pub administration: watch::Sender<socket::Limits>,
    pub local: Arc<ArcSwap<Local>>,
    pub outbound: Arc<socket::Live<Outbound>>,
    pub peers: Keep,
    pub trust: Arc<Trust>,
    pub client: Client,
    pub reporter: watch::Sender<Order>,
    /// Nothing where the application only calls others.
    pub callee: Option<Callee>,
}

/// What concerns the application's own contracts.
pub struct Callee {
    pub inbound: Arc<socket::Live<Inbound>>,
    pub serving: Arc<Serving>,
    pub posts: Posts,
    /// Takes the workers of contracts that are new.
    pub begin: mpsc::Sender<Work>,
}

/// All that may be wrong with settings has been looked for.
pub struct Prepared {
    target: Target,
    outbound: outbound::Config,
    callee: Option<PreparedCallee>,
}

struct PreparedCallee {
    inbound: inbound::Config,
    asked: HealthConfig,
    trials: Trials,
    wanted: Vec<Wanted>,
    /// The entries whose file has another content.
    moved: Vec<String>,
}

impl Takes for Rooms {
    type Prepared = Prepared;

    fn concerns(&self, key: &str) -> bool {
        !key.starts_with("collector.")
    }

    async fn prepare(
        &self,
        before: &Settings,
        settings: &Settings,
    ) -> Result<Prepared, Vec<String>> {
        let own = self.addresses.outbound.clone();
        let target = target(&self.client, settings.spool.collector.as_ref());
        let target = target.map_err(|error| vec![problem(settings, "spool.collector", &error)]);
        let callee = match &self.callee {
            Some(callee) => callee.prepare(before, settings, &self.boot).await.map(Some),
            None => Ok(None),
        };
        match (target, callee) {
            (Ok(target), Ok(callee)) => Ok(Prepared {
                target,
                outbound: compose::outbound(settings, own, &self.boot),
                callee,
            }),
            (target, callee) => {
                let faults = [target.err(), callee.err()];
                Err(faults.into_iter().flatten().flatten().collect())
            }
        }
    }

    async fn settle(&mut self, prepared: Prepared, settings: &Settings) -> Vec<String> {
        let limits = &settings.limits;
        let silence = limits.stream_idle_timeout;
        self.trust.follow(settings.trust.clone());
        self.listeners.send_replace(compose::listener(limits));
        self.administration
            .send_replace(compose::administration(limits));
        let local = compose::local(settings, &self.addresses.admin);
        self.local.store(Arc::new(local));
        self.peers.set(compose::peers_keep(limits));
        self.outbound
            .exchange(|outbound| outbound.with(prepared.outbound, silence));
        let orders = (compose::reporter(&settings.spool), prepared.target);
        self.reporter.send_replace(orders);
        match (&mut self.callee, prepared.callee) {
            (Some(callee), Some(prepared)) => {
                callee
                    .settle(prepared, settings, &self.boot, &self.addresses)
                    .await
            }
            _ => Vec::new(),
        }
    }
}

impl Callee {
    async fn prepare(
        &self,
        before: &Settings,
        settings: &Settings,
        boot: &str,
    ) -> Result<PreparedCallee, Vec<String>> {
        let mut problems = Vec::new();
        let mut told = |key: &str, error: Error| problems.push(problem(settings, key, &error));
        const HEADERS: &str = "application.upstream_headers_file";
        let roster = self.serving.roster();
        let inbound = compose::inbound(settings, boot, roster).map_err(|e| told(HEADERS, e));
        let upstream = settings.application.upstream.as_ref();
        let asked = upstream.map(|upstream| application::health(&settings.application, upstream));
        // What it fails for was told, or stands as it is since the start.
        let asked = asked.and_then(Result::ok);
        let trials = asked.as_ref().map(|asked| {
            let trials = Trials::new(asked, compose::trial(&settings.limits));
            trials.map_err(|error| told("application.upstream", Error::Client(Box::new(error))))
        });
        let wanted = self.contracts(before, settings).await;
        let (wanted, moved) = match wanted {
            Ok(wanted) => wanted,
            Err(mut faults) => {
                problems.append(&mut faults);
                return Err(problems);
            }
        };
        match (inbound, asked, trials) {
            (Ok(inbound), Some(asked), Some(Ok(trials))) => Ok(PreparedCallee {
                inbound,
                asked,
                trials,
                wanted,
                moved,
            }),
            _ => Err(problems),
        }
    }

    /// Reads the contract files, and holds what has changed against what is served and published.
    async fn contracts(
        &self,
        before: &Settings,
        settings: &Settings,
    ) -> Result<(Vec<Wanted>, Vec<String>), Vec<String>> {
        let sources = settings.application.contracts.clone();
        let (loaded, faults) = apart::run(move || contracts::look(&sources)).await;
        let mut problems = Vec::new();
        for (at, fault) in faults {
            problems.extend(faults_of(settings, at, &fault));
        }
        let mut entries = settings.application.contracts.iter();
        let is_asked = entries.any(|entry| entry.file().is_none());
        let mut moved = Vec::new();
        for (at, contract) in loaded.iter().enumerate() {
            let Some(contract) = contract else { continue };
            let key = file_key(at);
            let known = self.posts.of_file(contract.contract.id.as_str());
            if known.as_ref().is_some_and(|known| is_same(known, contract)) {
                continue;
            }
            if let Err(fault) = self.compare(known.as_deref(), contract, is_asked).await {
                problems.push(problem_of(settings, &key, fault));
            }
            let (file, was) = (
                &settings.application.contracts[at],
                &before.application.contracts,
            );
            if was.iter().any(|was| was.origin == file.origin) {
                moved.push(key);
            }
        }
        match problems.is_empty() {
            true => Ok((
                settings
                    .application
                    .contracts
                    .iter()
                    .cloned()
                    .zip(loaded)
                    .collect(),
                moved,
            )),
            false => Err(problems),
        }
    }

    /// Says what keeps a contract that is new, or has changed, from being served; `is_asked`: the
    /// application is asked for one too.
    async fn compare(
        &self,
        known: Option<&Compiled>,
        contract: &Arc<Compiled>,
        is_asked: bool,
    ) -> Result<(), String> {
        let (id, version) = (&contract.contract.id, &contract.contract.version);
        if is_asked && self.posts.is_handed_out(id.as_str()) {
            return Err(format!(
                "{id} is handed out by the application; give it once"
            ));
        }
        let changed = known.is_some_and(|known| {
            known.contract.version == *version && known.digest != contract.digest
        });
        if changed {
            return Err(format!(
                "holds another contract as {id} {version} than is served; give a changed contract \
                 another version"
            ));
        }
        let client = &self.serving.means.client;
        let checked = check_version(client, &contract.contract);
        match tokio::time::timeout(PATIENCE, checked).await {
            Ok(Err(error)) => Err(Chain(&error).to_string()),
            Ok(Ok(())) | Err(_) => Ok(()),
        }
    }

    async fn settle(
        &mut self,
        prepared: PreparedCallee,
        settings: &Settings,
        boot: &str,
        addresses: &Addresses,
    ) -> Vec<String> {
        let silence = settings.limits.stream_idle_timeout;
        self.inbound
            .exchange(|inbound| inbound.with(prepared.inbound, silence));
        let means = &self.serving.means;
        let grace = settings.limits.drain_delay;
        means.grace.send_replace(grace);
        means.trials.follow(prepared.trials);
        means.asked.send_replace(prepared.asked);
        let config = admission(settings, &means.instance, boot, addresses);
        means.admission.send_if_modified(|present| {
            let changed = **present != config;
            *present = Arc::new(config);
            changed
        });
        for work in self.posts.arrange(prepared.wanted) {
            // Nobody takes it only once the process leaves.
            self.begin.send(work).await.ok();
        }
        prepared.moved
    }
}

/// What Consul is told of this sidecar.
pub fn admission(
    settings: &Settings,
    instance: &str,
    boot: &str,
    addresses: &Addresses,
) -> admission::Config {
    let bound = addresses.inbound.as_ref().unwrap_or(&addresses.outbound);
    compose::admission(settings, instance, boot, bound, addresses.public.as_ref())
}

fn is_same(known: &Compiled, contract: &Compiled) -> bool {
    known.digest == contract.digest && known.contract.signatures == contract.contract.signatures
}

fn file_key(at: usize) -> String {
    format!("application.contract[{at}].file")
}

/// Every fault of one contract's file, each by itself.
fn faults_of(settings: &Settings, at: usize, fault: &Error) -> Vec<String> {
    let key = file_key(at);
    match fault {
        Error::Contract { path, problems } => {
            let all = problems.as_slice().iter();
            let told = all.map(|problem| format!("{}: {problem}", path.display()));
            told.map(|told| problem_of(settings, &key, told)).collect()
        }
        other => vec![problem(settings, &key, other)],
    }
}

/// Says why the value of a key cannot be used, and where it stands.
pub fn problem(
    settings: &Settings,
    key: &str,
    error: &(dyn std::error::Error + 'static),
) -> String {
    problem_of(settings, key, Chain(error).to_string())
}

/// Says what is wrong with the value of a key, and where that stands.
fn problem_of(settings: &Settings, key: &str, message: String) -> String {
    let entry = settings.effective.get(key);
    let problem = Problem {
        origin: entry.map(|entry| entry.origin.clone()),
        key: key.to_owned(),
        message,
    };
    problem.to_string()
}
