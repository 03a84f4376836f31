//! Which contracts and instances are looked at: those of the config, those that the local sidecar
//! uses, and those that were named.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use semver::Version;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use super::Question;
use super::findings::{Findings, Step};
use crate::cli::client;
use crate::cli::quantile::shown;
use crate::config::ContractSource;
use crate::consul::{Client, Instance, Poll};
use crate::contract::openapi::Wanted;
use crate::contract::published;
use crate::contract::{self, Contract, ContractId};
use crate::telemetry::log::Chain;

/// Contracts looked at; more would only make the first harder to find.
const MOST_CONTRACTS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(5);
const LOCAL_PATIENCE: Duration = Duration::from_secs(2);

/// What there is to look at.
#[derive(Default)]
pub(super) struct Known {
    /// One for each contract and version.
    pub contracts: Vec<Subject>,
    pub targets: Vec<Target>,
}

/// A contract, and where it was read.
pub(super) struct Subject {
    pub origin: String,
    pub contract: Contract,
}

/// An instance of a contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// The contract's id; `consul` for the registry itself.
    pub agent: String,
    pub host: String,
    pub port: u16,
    pub speaks: Speaks,
    /// What is asked for there: answered at once, and by nobody behind it.
    pub path: String,
    /// Whether Consul's checks pass; `None`: Consul was not asked.
    pub passing: Option<bool>,
}

/// How a target is to be spoken to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Speaks {
    Http,
    /// Mutual TLS, for this application.
    Https(Option<String>),
    /// Only Consul could tell.
    Unknown,
}

impl Target {
    fn of(agent: &str, instance: &Instance) -> Self {
        Self {
            agent: agent.to_owned(),
            host: instance.address.to_string(),
            port: instance.port,
            speaks: match instance.proto() {
                "https" => Speaks::Https(instance.app().map(str::to_owned)),
                _ => Speaks::Http,
            },
            path: health(agent),
            passing: Some(instance.passing),
        }
    }

    /// Makes a target of the registry's address; a unix socket has no way worth looking at.
    fn of_registry(address: &str) -> Option<Self> {
        let url = reqwest::Url::parse(address).ok()?;
        Some(Self {
            agent: "consul".to_owned(),
            host: url.host_str()?.trim_matches(['[', ']']).to_owned(),
            port: url.port_or_known_default()?,
            speaks: match url.scheme() {
                "http" => Speaks::Http,
                // Its certificates are not those of sidecars.
                _ => Speaks::Unknown,
            },
            path: "/v1/status/leader".to_owned(),
            passing: None,
        })
    }
}

fn health(agent: &str) -> String {
    format!("/hermes/health?agent={agent}")
}

/// One entry of the sidecar's `/contracts`.
#[derive(Deserialize)]
struct Served {
    agent: Option<String>,
}

/// One entry of the sidecar's `/instances`.
#[derive(Deserialize)]
struct Used {
    agent: String,
    instances: Vec<UsedInstance>,
}

#[derive(Deserialize)]
struct UsedInstance {
    address: String,
}

/// Why a contract is looked at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    Own,
    InUse,
    Named,
}

impl Known {
    pub async fn gather(asked: &Question, consul: Option<&Client>, found: &mut Findings) -> Self {
        let mut known = Self::default();
        let mut ids: BTreeMap<ContractId, Why> = BTreeMap::new();
        if consul.is_some() {
            let registry = Target::of_registry(&asked.settings.consul.address);
            known.targets.extend(registry);
        }
        for source in &asked.settings.application.contracts {
            known.take_file(source, found);
        }
        let own = known.contracts.iter();
        ids.extend(own.map(|subject| (subject.contract.id.clone(), Why::Own)));
        let used = known.ask_sidecar(asked, &mut ids, found).await;
        ids.extend(asked.agents.iter().map(|id| (id.clone(), Why::Named)));
        if ids.len() > MOST_CONTRACTS {
            let left = ids.len() - MOST_CONTRACTS;
            let message = format!("{left} of {} contracts were not looked at", ids.len());
            found.note(Step::Validation, message, "name one with --agent");
        }
        // Those that were named come first.
        let mut order: Vec<(ContractId, Why)> = ids.into_iter().collect();
        order.sort_by_key(|(_, why)| std::cmp::Reverse(*why));
        for (id, why) in order.into_iter().take(MOST_CONTRACTS) {
            match consul {
                Some(client) => known.ask_consul(client, &id, why, asked.until, found).await,
                None => known.take_used(&id, &used),
            }
        }
        known
    }

    fn take_file(&mut self, source: &ContractSource, found: &mut Findings) {
        let Some(file) = source.file() else { return };
        let wanted = Wanted {
            agent: None,
            method: source.method.as_str(),
            path: &source.path,
        };
        let read = std::fs::read(file).map_err(|error| error.to_string());
        let read = read.and_then(|body| {
            let read = contract::from_file(&body, &wanted);
            read.map_err(|problems| problems.to_string())
        });
        let origin = file.display().to_string();
        match read {
            Ok((contract, _)) => self.contracts.push(Subject { origin, contract }),
            Err(told) => found.add(
                Step::Validation,
                format!("{origin} cannot be used: {told}"),
                "see hermes-sidecar contract lint",
            ),
        }
    }

    /// Asks the local sidecar what it serves and uses; without one, only the others are looked at.
    async fn ask_sidecar(
        &self,
        asked: &Question,
        ids: &mut BTreeMap<ContractId, Why>,
        found: &mut Findings,
    ) -> Vec<Used> {
        let base = &asked.admin;
        let until = asked.until.min(Instant::now() + PATIENCE);
        let asking = async {
            let served: Vec<Served> = get(base, "/contracts").await?;
            let used: Vec<Used> = get(base, "/instances").await?;
            Ok::<_, String>((served, used))
        };
        let (served, used) = match timeout_at(until, asking).await {
            Ok(Ok(told)) => told,
            Ok(Err(told)) => return without_sidecar(&told, found),
            Err(_elapsed) => return without_sidecar("no answer in time", found),
        };
        let mut add = |name: &str, why| {
            if let Ok(id) = name.parse() {
                let known = ids.entry(id).or_insert(why);
                *known = why.max(*known);
            }
        };
        served
            .iter()
            .filter_map(|one| one.agent.as_deref())
            .for_each(|name| add(name, Why::Own));
        used.iter().for_each(|one| add(&one.agent, Why::InUse));
        used
    }

    /// Reads who serves a contract, and each version that they serve.
    async fn ask_consul(
        &mut self,
        client: &Client,
        id: &ContractId,
        why: Why,
        until: Instant,
        found: &mut Findings,
    ) {
        let service = client.layout().service(id.as_str());
        let bound = until.min(Instant::now() + PATIENCE);
        let answer = match timeout_at(bound, client.health(&service, Poll::NOW)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                let told = format!("the instances of {id} cannot be read: {}", Chain(&error));
                return found.add(Step::Network, told, "see what was found of the registry");
            }
            Err(_elapsed) => return late(Step::Network, id, until, found),
        };
        if answer.value.is_empty() {
            no_instance(id, why, answer.filtered_by_acls, found);
        }
        let instances = answer.value.iter();
        self.targets
            .extend(instances.map(|one| Target::of(id.as_str(), one)));
        let versions: BTreeSet<&str> = answer.value.iter().filter_map(Instance::version).collect();
        for version in versions {
            let is_here = |subject: &Subject| {
                subject.contract.id == *id && subject.contract.version.to_string() == version
            };
            if self.contracts.iter().any(is_here) {
                continue;
            }
            let bound = until.min(Instant::now() + PATIENCE);
            match timeout_at(bound, body(client, id, version)).await {
                Ok(Ok(subject)) => self.contracts.push(subject),
                Ok(Err(told)) => found.add(
                    Step::Validation,
                    format!("the contract {id} {version} that is served cannot be read: {told}"),
                    "its sidecar publishes it again when it is started again",
                ),
                Err(_elapsed) => return late(Step::Validation, id, until, found),
            }
        }
    }

    /// Takes the instances that the sidecar uses while Consul cannot be asked.
    fn take_used(&mut self, id: &ContractId, used: &[Used]) {
        let used = used.iter().filter(|one| one.agent == id.as_str());
        for instance in used.flat_map(|one| &one.instances) {
            let Some((host, port)) = instance.address.rsplit_once(':') else {
                continue;
            };
            let Ok(port) = port.parse() else { continue };
            self.targets.push(Target {
                agent: id.to_string(),
                host: host.trim_matches(['[', ']']).to_owned(),
                port,
                speaks: Speaks::Unknown,
                path: health(id.as_str()),
                passing: None,
            });
        }
    }
}

/// Tells that Consul took too long over one contract, or that the time for everything is over.
fn late(step: Step, id: &ContractId, until: Instant, found: &mut Findings) {
    if Instant::now() >= until {
        return found.cut(step);
    }
    let message = format!("Consul did not tell of {id} within {}", shown(PATIENCE));
    found.add(step, message, "see what was found of the registry");
}

fn without_sidecar(told: &str, found: &mut Findings) -> Vec<Used> {
    found.note(
        Step::Validation,
        format!("no sidecar tells which contracts are in use: {told}"),
        "start it, give --admin URL, or name contracts with --agent",
    );
    Vec::new()
}

fn no_instance(id: &ContractId, why: Why, is_filtered: bool, found: &mut Findings) {
    let called = match why {
        Why::InUse => ", which is called from here",
        Why::Own | Why::Named => "",
    };
    let message = format!("Consul shows no instance of {id}{called}");
    let remedy = match is_filtered {
        true => "the token hides some: it needs service_prefix and node_prefix read",
        false => {
            "see that a sidecar with this contract runs and is admitted; a token without \
                  service_prefix and node_prefix read sees none either"
        }
    };
    match why {
        Why::Own if !is_filtered => found.note(Step::Network, message, remedy),
        _ => found.add(Step::Network, message, remedy),
    }
}

async fn body(client: &Client, id: &ContractId, version: &str) -> Result<Subject, String> {
    let key = client.layout().body(id.as_str(), version);
    let answer = client.kv_get(&key, Poll::NOW).await;
    let entry = answer.map_err(|error| Chain(&error).to_string())?.value;
    let entry = entry.ok_or_else(|| format!("nothing is published at {key}"))?;
    let version: Version = version
        .parse()
        .map_err(|error| format!("{version} of {id} is no version: {error}"))?;
    let contract = published::contract(&entry.value, id, &version)
        .map_err(|fault| format!("{key}: {fault}"))?;
    let origin = key;
    Ok(Subject { origin, contract })
}

async fn get<T: DeserializeOwned>(base: &str, path: &str) -> Result<T, String> {
    let told = |failure: crate::cli::exit::Failure| failure.to_string();
    let request = client::http(base, LOCAL_PATIENCE).map_err(told)?;
    let request = request.get(client::url(base, path));
    let answer = client::send("the sidecar", base, request)
        .await
        .map_err(told)?;
    serde_json::from_slice(&answer.body)
        .map_err(|_no_list| format!("what answers at {base} is no sidecar"))
}
