//! The applications that run, and where the metrics of their sidecars are.

use super::Board;
use crate::consul::Instance;
use crate::contract::ContractId;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One application with everything that runs of it.
#[derive(Debug, Serialize)]
struct Application {
    application: String,
    team: String,
    contracts: Vec<Offered>,
    instances: Vec<Running>,
}

/// A contract in one version, and how many passing instances offer it.
#[derive(Debug, Serialize)]
struct Offered {
    id: ContractId,
    version: String,
    digest: String,
    instances: usize,
}

/// One sidecar.
#[derive(Debug, Serialize)]
struct Running {
    instance: String,
    node: String,
    address: String,
    region: String,
    /// Passing only if each of its contracts is.
    state: &'static str,
    /// Where its metrics are, if they can be reached.
    metrics: Option<String>,
    contracts: Vec<Served>,
}

#[derive(Debug, Serialize)]
struct Served {
    id: ContractId,
    version: String,
    digest: String,
    state: &'static str,
}

/// One group of targets as Prometheus reads it.
#[derive(Debug, Serialize)]
struct Targets {
    targets: [String; 1],
    labels: BTreeMap<&'static str, String>,
}

/// What tells one sidecar from another.
type Place = (String, String);

impl Board {
    /// Returns every application of which something is registered, in order.
    pub(in crate::collector) fn applications(&self) -> Vec<impl Serialize + use<>> {
        let mut applications: BTreeMap<String, Vec<Registered>> = BTreeMap::new();
        for registered in self.registered() {
            let name = registered.instance().app().unwrap_or_default().to_owned();
            applications.entry(name).or_default().push(registered);
        }
        applications
            .into_iter()
            .map(application)
            .collect::<Vec<_>>()
    }

    /// Returns every sidecar whose metrics can be reached, each address once.
    pub(in crate::collector) fn targets(&self) -> Vec<impl Serialize + use<>> {
        let mut found: BTreeMap<String, Vec<Registered>> = BTreeMap::new();
        for registered in self.registered() {
            if let Some(admin) = registered.instance().admin() {
                found.entry(admin.to_owned()).or_default().push(registered);
            }
        }
        found.into_iter().map(targets).collect::<Vec<_>>()
    }

    fn registered(&self) -> Vec<Registered> {
        let services = self.services.load_full();
        let mut all: Vec<Registered> = services
            .instances
            .iter()
            .flat_map(|(id, instances)| {
                let registered = |nth| Registered {
                    id: id.clone(),
                    instances: instances.clone(),
                    nth,
                };
                (0..instances.len()).map(registered).collect::<Vec<_>>()
            })
            .collect();
        all.sort_unstable_by(|a, b| (&a.id, a.nth).cmp(&(&b.id, b.nth)));
        all
    }
}

/// One instance of one contract.
struct Registered {
    id: ContractId,
    instances: Arc<Vec<Instance>>,
    nth: usize,
}

impl Registered {
    fn instance(&self) -> &Instance {
        &self.instances[self.nth]
    }

    fn place(&self) -> Place {
        let instance = self.instance();
        (instance.node.clone(), instance.authority())
    }

    fn version(&self) -> String {
        self.instance().version().unwrap_or_default().to_owned()
    }

    fn digest(&self) -> String {
        self.instance().digest().unwrap_or_default().to_owned()
    }

    /// The instance's own name, which its id ends with.
    fn name(&self) -> &str {
        let instance = self.instance();
        let rest = instance.id.strip_prefix(instance.service.as_str());
        let rest = rest.and_then(|rest| rest.strip_prefix('-'));
        rest.unwrap_or(&instance.id)
    }
}

fn state(passing: bool) -> &'static str {
    if passing { "passing" } else { "critical" }
}

fn application((application, registered): (String, Vec<Registered>)) -> Application {
    let team = registered.iter().find_map(|one| one.instance().team());
    let mut offered: BTreeMap<(ContractId, String, String), usize> = BTreeMap::new();
    let mut places: BTreeMap<Place, Vec<&Registered>> = BTreeMap::new();
    for one in &registered {
        let key = (one.id.clone(), one.version(), one.digest());
        *offered.entry(key).or_default() += usize::from(one.instance().passing);
        places.entry(one.place()).or_default().push(one);
    }
    let offered = offered
        .into_iter()
        .map(|((id, version, digest), instances)| Offered {
            id,
            version,
            digest,
            instances,
        });
    Application {
        team: team.unwrap_or_default().to_owned(),
        contracts: offered.collect(),
        instances: places.into_values().map(|all| running(&all)).collect(),
        application,
    }
}

/// Describes the sidecar that all of these are of; there is at least one.
fn running(all: &[&Registered]) -> Running {
    let first = all[0];
    let instance = first.instance();
    let served = all.iter().map(|one| Served {
        id: one.id.clone(),
        version: one.version(),
        digest: one.digest(),
        state: state(one.instance().passing),
    });
    Running {
        instance: first.name().to_owned(),
        node: instance.node.clone(),
        address: instance.authority(),
        region: instance.region().unwrap_or_default().to_owned(),
        state: state(all.iter().all(|one| one.instance().passing)),
        metrics: instance.admin().map(str::to_owned),
        contracts: served.collect(),
    }
}

fn targets((target, registered): (String, Vec<Registered>)) -> Targets {
    let first = &registered[0];
    let instance = first.instance();
    let contracts: BTreeSet<String> = registered
        .iter()
        .map(|one| format!("{}@{}", one.id, one.version()))
        .collect();
    let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
    // Begun and ended with the separator, so that a pattern can name one of the list.
    let list = contracts
        .iter()
        .fold(",".to_owned(), |list, one| list + one + ",");
    let labels = BTreeMap::from([
        ("__meta_hermes_application", text(instance.app())),
        ("__meta_hermes_team", text(instance.team())),
        ("__meta_hermes_region", text(instance.region())),
        ("__meta_hermes_instance", first.name().to_owned()),
        ("__meta_hermes_node", instance.node.clone()),
        ("__meta_hermes_contracts", list),
    ]);
    Targets {
        targets: [target],
        labels,
    }
}
