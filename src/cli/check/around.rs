//! Who is around: listeners, Consul, the application.

use std::io::ErrorKind;
use std::sync::Arc;

use crate::admission::publication;
use crate::app;
use crate::cli::running::Running;
use crate::config::{Application, Examined, Settings};
use crate::consul;
use crate::contract::Contract;
use crate::socket::{Address, BindError, Listener};
use crate::telemetry::log::Chain;

use super::findings::Findings;
use super::here;

pub(super) async fn ports(
    found: &mut Findings,
    examined: &Examined,
    running: &Running,
    is_sidecar: bool,
    is_collector: bool,
) {
    let settings = &examined.settings;
    let mut listeners: Vec<(&str, &Address)> = Vec::new();
    if is_sidecar {
        if settings.application.upstream.is_some() {
            listeners.push(("inbound", &settings.inbound.listen));
        }
        listeners.push(("outbound", &settings.outbound.listen));
        listeners.push(("admin", &settings.admin.listen));
        let public = settings.admin.public_listen.as_ref();
        listeners.extend(public.map(|address| ("public admin", address)));
    }
    if is_collector {
        listeners.push(("collector", &settings.collector.listen));
    }
    for (name, address) in listeners {
        let key = match name {
            "public admin" => "admin.public_listen".to_owned(),
            name => format!("{name}.listen"),
        };
        if examined.is_faulty(&key) {
            continue;
        }
        let error = match Listener::bind(address).await {
            Ok(_) => {
                found.ok("ports", format!("{name} {address} is free"));
                continue;
            }
            Err(error) => error,
        };
        match running.owner(name, address) {
            Some(owner) if is_in_use(&error) => found.ok(
                "ports",
                format!("{name} {address} is in use, by the {owner} that runs with these settings"),
            ),
            _ => found.problem("ports", format!("{name} {address}: {}", Chain(&error))),
        }
    }
}

fn is_in_use(error: &BindError) -> bool {
    match error {
        BindError::Tcp(source) => source.kind() == ErrorKind::AddrInUse,
        BindError::InUse => true,
        BindError::Unix(_) | BindError::NotASocket => false,
    }
}

/// Asks Consul what a sidecar asks it: the leader, an address, a service, keys, and whether our
/// contracts could be published.
pub(super) async fn consul(found: &mut Findings, settings: &Settings) {
    let advertises = settings.inbound.advertise.host.is_some();
    let contracts = contracts(&settings.application);
    let settings = &settings.consul;
    let client = match consul::Client::new(app::consul_config(settings), Arc::new(|_, _, _| {})) {
        Ok(client) => client,
        Err(error) => return found.problem("consul", Chain(&error).to_string()),
    };
    match client.leader().await {
        Ok(Some(_)) => found.ok(
            "consul",
            format!("{} answers and has a leader", settings.address),
        ),
        Ok(None) => found.problem(
            "consul",
            format!(
                "{} answers, but the cluster has no leader",
                settings.address
            ),
        ),
        Err(error) => {
            let told = format!("{}: {}", settings.address, Chain(&error));
            return found.problem("consul", told);
        }
    }
    match client.node_address().await {
        Ok(Some(_)) => {}
        Ok(None) if advertises => {}
        Ok(None) => found.warning(
            "consul",
            "the token may not read the agent (agent:read); inbound.advertise must name the host",
        ),
        Err(error) => found.problem("consul", Chain(&error).to_string()),
    }
    let poll = consul::Poll::NOW;
    // A sidecar reads below its contracts' own keys before it publishes there.
    for contract in &contracts {
        let key = client.layout().version(contract.id.as_str());
        if let Err(error) = client.kv_get(&key, poll).await {
            found.problem("consul", format!("reading KV {key}: {}", Chain(&error)));
        }
        if let Err(refusal) = publication::check_version(&client, contract).await {
            let (id, version) = (&contract.id, &contract.version);
            let told = format!("{id} {version} would not be published: {}", Chain(&refusal));
            found.problem("consul", told);
        }
    }
    if let Err(error) = client
        .health(&client.layout().service("hermes-collector"), poll)
        .await
    {
        found.problem("consul", format!("reading services: {}", Chain(&error)));
    }
}

/// The contracts that can be read; the others have findings of their own.
fn contracts(application: &Application) -> Vec<Contract> {
    application
        .contracts
        .iter()
        .filter_map(here::contract)
        .collect()
}

/// Asks the application as admission will.
pub(super) async fn application(found: &mut Findings, application: &Application) {
    let Some(upstream) = &application.upstream else {
        return;
    };
    if application
        .contracts
        .iter()
        .any(|source| source.file().is_none())
    {
        match app::ask_contract(application, upstream).await {
            Ok((id, version)) => {
                let told = format!("the application hands out {id} {version}");
                found.ok("contracts", told);
            }
            Err(error) => found.problem("contracts", Chain(&*error).to_string()),
        }
    }
    match app::ask_application(application, upstream).await {
        Ok(()) => found.ok("application", "is well"),
        Err(error) => found.problem("application", Chain(&*error).to_string()),
    }
}
