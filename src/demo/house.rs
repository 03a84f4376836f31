//! The demo's house: opened bottom-up, watched, closed top-down.

use super::Error;
use super::folder::Folder;
use super::signer::Signer;
use super::stand::{self, PLANS, READY_WITHIN, Site, Stand};
use super::tier::Tier;
use crate::app::{self, Collector};
use crate::config::{Role, Settings, Source};
use crate::consul::Client;
use crate::devregistry;
use serde_json::{Value, json};
use tokio::time::Instant;

/// The registry's port where none of yours is used; Consul's own.
const REGISTRY_PORT: u16 = 8500;
const COLLECTOR_PORT: u16 = 7410;

/// All parts of the demo, in tiers; an upper one needs those below it.
pub struct House {
    consul: Option<String>,
    /// Signs the contracts, where the registry is the demo's own: another demo's bodies stay in a
    /// Consul of yours, and were signed by a key that is gone.
    signer: Option<Signer>,
    folder: Folder,
    registry: Tier,
    collector: Tier,
    services: Tier,
    sidecars: Tier,
}

/// Where everything is.
pub struct Addresses {
    pub registry: String,
    pub collector: String,
    pub stands: Vec<Stand>,
}

impl House {
    /// Begins an empty one.
    pub fn new(consul: Option<String>) -> Result<Self, Error> {
        let folder = Folder::make()?;
        let signer = match consul {
            None => Some(Signer::make(&folder)?),
            Some(_) => None,
        };
        Ok(Self {
            consul,
            signer,
            folder,
            registry: Tier::new("the registry"),
            collector: Tier::new("the collector"),
            services: Tier::new("an application"),
            sidecars: Tier::new("a sidecar"),
        })
    }

    /// Starts everything and waits until it serves and the registry shows it.
    pub async fn open(&mut self) -> Result<Addresses, Error> {
        let registry = match &self.consul {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => self.open_registry().await?,
        };
        let source = self.source(&registry);
        let settings = self.collector_settings(&source, COLLECTOR_PORT)?;
        app::start_log(&settings)?;
        let consul = app::consul(&settings)?;
        greet(&consul, &registry).await?;
        let collector = self.open_collector(&source, settings).await?;
        let client = super::client()?;
        let site = Site {
            folder: &self.folder,
            source: &source,
            signer: self.signer.as_ref(),
            collector: &collector,
            client: &client,
        };
        let mut stands = Vec::with_capacity(PLANS.len());
        for plan in &PLANS {
            let started = Stand::start(plan, &site, &mut self.services, &mut self.sidecars);
            stands.push(started.await?);
        }
        self.ready(&stands, &client, &consul).await?;
        Ok(Addresses {
            registry,
            collector,
            stands,
        })
    }

    async fn open_registry(&mut self) -> Result<String, Error> {
        let listener = stand::listen("the registry", REGISTRY_PORT).await?;
        let address = stand::address(&listener, "the registry")?;
        self.registry
            .start(|stop| devregistry::serve(listener, stop));
        Ok(format!("http://{address}"))
    }

    /// What applies to all settings here: this Consul and, of this process's environment, what
    /// says how to log and how to reach a Consul of yours.
    fn source(&self, registry: &str) -> Source {
        let flags = vec![("consul.address".to_owned(), registry.to_owned())];
        let mut source = Source::of_process(None, flags);
        let begins: &[&str] = match self.consul {
            Some(_) => &["HERMES_LOG__", "HERMES_CONSUL__", "CONSUL_"],
            None => &["HERMES_LOG__"],
        };
        source.variables.retain(|(name, _)| {
            let name = name.to_string_lossy();
            begins.iter().any(|begin| name.starts_with(begin))
        });
        source
    }

    fn collector_settings(&self, source: &Source, port: u16) -> Result<Settings, Error> {
        let store = self.folder.path().join("collector.db");
        let store = stand::quoted(&store.to_string_lossy());
        let log = stand::LOG;
        let text = format!(
            "[collector]\nlisten = \"127.0.0.1:{port}\"\nstore = {store}\n\n[log]\nfilter = \"{log}\"\n"
        );
        let file = self.folder.write("collector.toml", &text)?;
        stand::load(source, &file, Role::Collector)
    }

    async fn open_collector(&mut self, source: &Source, own: Settings) -> Result<String, Error> {
        let collector = match Collector::start(own).await {
            Err(app::Error::Bind { .. }) => {
                Collector::start(self.collector_settings(source, 0)?).await?
            }
            started => started?,
        };
        let url = format!("http://{}", collector.address());
        self.collector.start(|stop| collector.run_until(stop));
        Ok(url)
    }

    /// Waits until every sidecar says so and the registry shows it; an incident ends the wait.
    async fn ready(
        &mut self,
        stands: &[Stand],
        client: &reqwest::Client,
        consul: &Client,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + READY_WITHIN;
        let all = async {
            for stand in stands {
                stand.ready(client, consul, deadline).await?;
            }
            Ok(())
        };
        tokio::select! {
            ready = all => ready,
            incident = self.watch() => Err(incident),
        }
    }

    /// Waits for a part that ends unasked.
    pub async fn watch(&mut self) -> Error {
        tokio::select! {
            incident = self.sidecars.watch() => incident,
            incident = self.services.watch() => incident,
            incident = self.collector.watch() => incident,
            incident = self.registry.watch() => incident,
        }
    }

    /// Stops everything, each tier before the one it needs; returns the first error.
    pub async fn close(self) -> Result<(), Error> {
        let mut result = Ok(());
        for tier in [self.sidecars, self.services, self.collector, self.registry] {
            let ended = tier.end().await;
            result = result.and(ended);
        }
        result
    }
}

impl Addresses {
    /// Finds an application by its name in the plans.
    pub fn stand(&self, name: &str) -> &Stand {
        let named = |stand: &&Stand| stand.plan.name == name;
        self.stands.iter().find(named).unwrap_or(&self.stands[0])
    }

    /// Tells where everything is, a line for each.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!("registry   {}", self.registry),
            format!("collector  {}", self.collector),
        ];
        lines.extend(self.stands.iter().map(|stand| {
            format!(
                "{:<9}  inbound http://{}  outbound http://{}  admin http://{}  application http://{}",
                stand.plan.name, stand.inbound, stand.outbound, stand.admin, stand.application,
            )
        }));
        lines
    }

    pub fn to_json(&self) -> Value {
        let url = |address| format!("http://{address}");
        let sidecars = self.stands.iter().map(|stand| {
            json!({
                "application": stand.plan.name,
                "inbound": url(&stand.inbound),
                "outbound": url(&stand.outbound),
                "admin": url(&stand.admin),
            })
        });
        json!({
            "registry": self.registry,
            "collector": self.collector,
            "sidecars": sidecars.collect::<Vec<_>>(),
        })
    }
}

/// Fails at once where Consul cannot be used at all.
async fn greet(consul: &Client, address: &str) -> Result<(), Error> {
    match consul.leader().await {
        Ok(_) => Ok(()),
        Err(source) => Err(Error::Consul {
            address: address.to_owned(),
            source,
        }),
    }
}
