//! One application and the sidecar beside it.
//!
//! Ports: 74N1 inbound, 74N2 outbound, 74N3 admin, 74N4 the application itself, where N is 0 for
//! checkout, 2 for payment, 3 for fraud, 4 for credit; any free port where one of these is taken.

use super::Error;
use super::applications::{self, Surroundings};
use super::folder::Folder;
use super::signer::Signer;
use super::tier::Tier;
use crate::app::{self, Sidecar};
use crate::config::{Role, Settings, Source};
use crate::consul::{Client, Poll};
use crate::socket::Address;
use axum::Router;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

/// Everything is on this machine; what takes longer does not come.
pub const READY_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Calls that fail at their application are part of the show; what else is wrong is told.
pub const LOG: &str = "warn,hermes_sidecar::proxy::forward=error";

/// What one of the applications is.
pub struct Plan {
    pub name: &'static str,
    /// The contract's id.
    pub agent: &'static str,
    contract: &'static str,
    pub path: &'static str,
    /// The first of its four ports, less one.
    ports: u16,
    service: fn(Surroundings) -> Router,
}

pub static PLANS: [Plan; 4] = [
    Plan {
        name: "checkout",
        agent: "checkout-order-v1.0",
        contract: include_str!("../../examples/demo/checkout-order.json"),
        path: "/api/v1/orders",
        ports: 7400,
        service: applications::checkout,
    },
    Plan {
        name: "payment",
        agent: "payment-authorize-v1.0",
        contract: include_str!("../../examples/demo/payment-authorize.json"),
        path: "/api/v1/payments",
        ports: 7420,
        service: applications::payment,
    },
    Plan {
        name: "fraud",
        agent: "fraud-detection-v1.0",
        contract: include_str!("../../examples/demo/fraud-detection.json"),
        path: "/api/v1/risk",
        ports: 7430,
        service: applications::fraud,
    },
    Plan {
        name: "credit",
        agent: "credit-score-v1.0",
        contract: include_str!("../../examples/demo/credit-score.json"),
        path: "/api/v1/scores",
        ports: 7440,
        service: applications::credit,
    },
];

/// Where all sidecars and the collector of the demo belong.
pub struct Site<'a> {
    pub folder: &'a Folder,
    pub source: &'a Source,
    /// Nobody, where contracts go unsigned.
    pub signer: Option<&'a Signer>,
    /// Base URL of the collector.
    pub collector: &'a str,
    pub client: &'a reqwest::Client,
}

/// A running application with its sidecar.
#[derive(Clone)]
pub struct Stand {
    pub plan: &'static Plan,
    pub inbound: Address,
    pub outbound: Address,
    pub admin: Address,
    pub application: SocketAddr,
    pub served: Arc<AtomicU64>,
}

/// The ports a sidecar is to listen on; 0 for any.
#[derive(Clone, Copy)]
struct Ports {
    inbound: u16,
    outbound: u16,
    admin: u16,
}

impl Stand {
    /// Starts sidecar and application, each in its tier.
    pub async fn start(
        plan: &'static Plan,
        site: &Site<'_>,
        services: &mut Tier,
        sidecars: &mut Tier,
    ) -> Result<Self, Error> {
        // Bound before the sidecar starts, served once the sidecar's outbound address is known:
        // a question asked in between waits in the listener's queue.
        let listener = listen(plan.name, plan.ports + 4).await?;
        let application = address(&listener, plan.name)?;
        let file = format!("{}.json", plan.agent);
        match site.signer {
            Some(signer) => site.folder.write(&file, &signer.sign(plan.contract)?)?,
            None => site.folder.write(&file, plan.contract)?,
        };
        let sidecar = plan.sidecar(site, application).await?;
        let addresses = sidecar.addresses();
        let served = Arc::default();
        let router = (plan.service)(Surroundings {
            outbound: format!("http://{}", addresses.outbound),
            client: site.client.clone(),
            served: Arc::clone(&served),
        });
        sidecars.start(|stop| sidecar.run_until(stop));
        services.start(|stop| async {
            let serving = axum::serve(listener, router).with_graceful_shutdown(stop);
            serving.await.map_err(Error::Serve)
        });
        Ok(Self {
            plan,
            // Always there: every plan has an upstream.
            inbound: addresses.inbound.unwrap_or(addresses.outbound.clone()),
            outbound: addresses.outbound,
            admin: addresses.admin,
            application,
            served,
        })
    }

    /// Waits until the sidecar says that it is ready and the registry shows its contract.
    pub async fn ready(
        &self,
        client: &reqwest::Client,
        consul: &Client,
        deadline: Instant,
    ) -> Result<(), Error> {
        loop {
            let Err(why) = self.is_ready(client, consul).await else {
                return Ok(());
            };
            if Instant::now() > deadline {
                return Err(Error::NotReady {
                    what: format!("the sidecar of {}", self.plan.name),
                    within: READY_WITHIN,
                    why,
                });
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn is_ready(&self, client: &reqwest::Client, consul: &Client) -> Result<(), String> {
        let asked = client.get(format!("http://{}/ready", self.admin)).send();
        let reply = asked.await.map_err(|error| error.to_string())?;
        if !reply.status().is_success() {
            return Err(reply.text().await.unwrap_or_default());
        }
        let service = consul.layout().service(self.plan.agent);
        let found = consul.health(&service, Poll::NOW).await;
        let found = found.map_err(|error| error.to_string())?.value;
        let own = self.inbound.to_string();
        match found
            .iter()
            .any(|one| one.passing && one.authority() == own)
        {
            true => Ok(()),
            false => Err(format!("the registry does not show {service} at {own}")),
        }
    }
}

impl Plan {
    /// Starts the sidecar, on free ports where its own are taken.
    async fn sidecar(&self, site: &Site<'_>, upstream: SocketAddr) -> Result<Sidecar, Error> {
        let mut ports = Ports {
            inbound: self.ports + 1,
            outbound: self.ports + 2,
            admin: self.ports + 3,
        };
        loop {
            let text = self.settings(site, upstream, ports);
            let file = site.folder.write(&format!("{}.toml", self.name), &text)?;
            let settings = load(site.source, &file, Role::Sidecar)?;
            match Sidecar::start(settings).await {
                Err(app::Error::Bind { key, address, .. }) if address.port() != Some(0) => {
                    match key {
                        "inbound.listen" => ports.inbound = 0,
                        "outbound.listen" => ports.outbound = 0,
                        _ => ports.admin = 0,
                    }
                }
                started => return Ok(started?),
            }
        }
    }

    fn settings(&self, site: &Site<'_>, upstream: SocketAddr, ports: Ports) -> String {
        let Ports {
            inbound,
            outbound,
            admin,
        } = ports;
        let file = |kind: &str| {
            let path = site.folder.path().join(format!("{}.{kind}", self.name));
            quoted(&path.to_string_lossy())
        };
        let (spool, state) = (file("spool.db"), file("state.db"));
        let Self {
            name, agent, path, ..
        } = self;
        let collector = site.collector;
        let trust = site.signer.map(Signer::settings).unwrap_or_default();
        format!(
            r#"
[application]
name = "{name}"
upstream = "http://{upstream}"
health = "/health"
region = "cn-east-1"

[[application.contract]]
file = "{agent}.json"
path = "{path}"

[inbound]
listen = "127.0.0.1:{inbound}"
advertise = "127.0.0.1"

[outbound]
listen = "127.0.0.1:{outbound}"

[admin]
listen = "127.0.0.1:{admin}"

[limits]
drain_delay = "200ms"
drain_timeout = "5s"

[spool]
path = {spool}
state_path = {state}
collector = "{collector}"

[log]
filter = "{LOG}"
{trust}"#
        )
    }
}

/// Writes a text as TOML does.
pub fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Reads settings from a file of ours and what `source` puts over it.
pub fn load(source: &Source, file: &Path, role: Role) -> Result<Settings, Error> {
    let source = Source {
        file: Some(file.to_owned()),
        ..source.clone()
    };
    Ok(Settings::load(&source, role)?)
}

/// Listens on this loopback port, or on a free one where it is taken.
pub async fn listen(what: &'static str, port: u16) -> Result<TcpListener, Error> {
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    if let Ok(listener) = TcpListener::bind(at(port)).await {
        return Ok(listener);
    }
    let address = at(0);
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| Error::Bind {
        what,
        address,
        source,
    })
}

/// Returns where a listener is.
pub fn address(listener: &TcpListener, what: &'static str) -> Result<SocketAddr, Error> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let bound = listener.local_addr();
    bound.map_err(|source| Error::Bind {
        what,
        address,
        source,
    })
}
