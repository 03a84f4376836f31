//! Services and their checks, as agent and catalogue in one.
//!
//! - a check that is registered again keeps its state, whatever the registration says
//! - the maintenance check survives registrations, unless they replace all checks
//! - an index moves only where an observer could see a difference

mod due;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use axum::http::StatusCode;
use tokio::time::Instant;

use super::decode::{CheckDefinition, Kind, Service, Status};
use super::state::Refusal;
use due::first_due;

pub(super) use due::Probe;

pub(super) const NODE: &str = "dev-registry";
pub(super) const VERSION: &str = "1.8.7";
/// Ours; Consul has no bounds here.
const MAX_SERVICES: usize = 4096;
const MAX_NAMES: usize = 8192;
/// Consul's: a check's output is cut here.
const MAX_OUTPUT_BYTES: usize = 4096;
const MAINTENANCE_REASON: &str = "Maintenance mode is enabled for this service, but no reason was provided. This is a default message.";

pub(super) struct Catalog {
    started: Instant,
    services: BTreeMap<String, Registered>,
    checks: BTreeMap<String, Check>,
    /// Lower-case service name, also of those gone, to the index of its last change.
    touched: BTreeMap<String, u64>,
    /// The last change that a list of services shows.
    listed: u64,
}

pub(super) struct Registered {
    pub(super) service: Service,
    /// Consul's own entry: in the catalogue, not in the agent's list.
    pub(super) is_server: bool,
    pub(super) created: u64,
    pub(super) modified: u64,
}

pub(super) struct Check {
    pub(super) definition: CheckDefinition,
    pub(super) service_id: String,
    /// The service's tags when the check was last registered.
    pub(super) tags: Vec<String>,
    pub(super) status: Status,
    /// What the agent shows.
    pub(super) output: String,
    /// What the catalogue shows: the output as of the last change of status.
    pub(super) synced_output: String,
    pub(super) created: u64,
    pub(super) modified: u64,
    critical_since: Option<Instant>,
    /// When a TTL runs out, or when to probe next.
    due: Option<Instant>,
}

impl Catalog {
    pub(super) fn new(address: SocketAddr, index: u64) -> Catalog {
        let server = Service {
            id: "consul".to_owned(),
            name: "consul".to_owned(),
            tags: Vec::new(),
            meta: Some(BTreeMap::from([("version".to_owned(), VERSION.to_owned())])),
            address: address.ip().to_string(),
            port: address.port().into(),
            weights: (1, 1),
            enable_tag_override: false,
        };
        let server = Registered {
            service: server,
            is_server: true,
            created: index,
            modified: index,
        };
        Catalog {
            started: Instant::now(),
            services: BTreeMap::from([("consul".to_owned(), server)]),
            checks: BTreeMap::new(),
            touched: BTreeMap::from([("consul".to_owned(), index)]),
            listed: index,
        }
    }

    /// Registers under the next index, if anything differs.
    pub(super) fn register(
        &mut self,
        index: &mut u64,
        service: Service,
        checks: Vec<CheckDefinition>,
        replace_checks: bool,
    ) -> Result<(), Refusal> {
        if !self.services.contains_key(&service.id) && self.services.len() >= MAX_SERVICES {
            return Err(Refusal::full("services", MAX_SERVICES));
        }
        let next = *index + 1;
        let id = service.id.clone();
        if replace_checks {
            // All of them: with this flag Consul drops maintenance too.
            let is_left_out =
                |check: &Check| !checks.iter().any(|given| given.id == check.definition.id);
            let gone = self.checks_of(&id).filter(|check| is_left_out(check));
            let gone: Vec<String> = gone.map(|check| check.definition.id.clone()).collect();
            for check_id in gone {
                self.checks.remove(&check_id);
                *index = next;
            }
        }
        self.put_service(index, next, service);
        for check in checks {
            self.put_check(index, next, &id, check);
        }
        if *index == next {
            self.touch(&id, next);
        }
        Ok(())
    }

    fn put_service(&mut self, index: &mut u64, next: u64, service: Service) {
        let before = self.services.get(&service.id);
        if before.is_some_and(|before| before.service == service) {
            return;
        }
        let created = before.map_or(next, |before| before.created);
        let renamed = before.is_some_and(|before| before.service.name != service.name);
        *index = next;
        self.listed = next;
        if renamed {
            self.touch(&service.id, next);
        }
        let id = service.id.clone();
        let registered = Registered {
            service,
            is_server: false,
            created,
            modified: next,
        };
        self.services.insert(id, registered);
    }

    fn put_check(
        &mut self,
        index: &mut u64,
        next: u64,
        service_id: &str,
        definition: CheckDefinition,
    ) {
        let due = first_due(&definition.kind);
        let id = definition.id.clone();
        let status = definition.status;
        let service = self.services.get(service_id);
        let tags = service.map_or_else(Vec::new, |registered| registered.service.tags.clone());
        if let Some(check) = self.checks.get_mut(&id) {
            if check.service_id == service_id {
                check.due = due;
                let definition = CheckDefinition {
                    status: check.definition.status,
                    ..definition
                };
                if check.definition != definition || check.tags != tags {
                    check.definition = definition;
                    check.tags = tags;
                    check.synced_output = check.output.clone();
                    check.modified = next;
                    *index = next;
                }
                return;
            }
            // Check ids are the agent's: the other service silently loses its check.
            let other = check.service_id.clone();
            self.touch(&other, next);
        }
        let check = Check {
            definition,
            service_id: service_id.to_owned(),
            tags,
            status,
            output: String::new(),
            synced_output: String::new(),
            created: next,
            modified: next,
            critical_since: (status == Status::Critical).then(Instant::now),
            due,
        };
        self.checks.insert(id, check);
        *index = next;
    }

    /// Removes a service and its checks; one that is not there is fine.
    pub(super) fn deregister(&mut self, index: &mut u64, id: &str) {
        if self
            .services
            .get(id)
            .is_none_or(|registered| registered.is_server)
        {
            return;
        }
        *index += 1;
        self.touch(id, *index);
        self.listed = *index;
        self.services.remove(id);
        self.checks.retain(|_, check| check.service_id != id);
    }

    /// Turns maintenance on, with a reason, or off.
    pub(super) fn maintain(
        &mut self,
        index: &mut u64,
        id: &str,
        reason: Option<&str>,
    ) -> Result<(), Refusal> {
        if self
            .services
            .get(id)
            .is_none_or(|registered| registered.is_server)
        {
            return Err(Refusal(
                StatusCode::NOT_FOUND,
                format!("No service registered with ID \"{id}\""),
            ));
        }
        let check_id = format!("_service_maintenance:{id}");
        let next = *index + 1;
        match reason {
            Some(reason) if !self.checks.contains_key(&check_id) => {
                let notes = if reason.is_empty() {
                    MAINTENANCE_REASON
                } else {
                    reason
                };
                let definition = CheckDefinition {
                    id: check_id,
                    name: "Service Maintenance Mode".to_owned(),
                    status: Status::Critical,
                    notes: notes.to_owned(),
                    kind: Kind::Maintenance,
                    deregister_after: None,
                };
                self.put_check(index, next, id, definition);
                self.touch(id, next);
            }
            None if self.checks.remove(&check_id).is_some() => {
                *index = next;
                self.touch(id, next);
            }
            _ => {}
        }
        Ok(())
    }

    /// Sets a TTL check and starts its time anew.
    pub(super) fn report(
        &mut self,
        index: &mut u64,
        check_id: &str,
        status: Status,
        output: &str,
    ) -> Result<(), Refusal> {
        let ttl = match self.checks.get_mut(check_id) {
            Some(Check {
                definition:
                    CheckDefinition {
                        kind: Kind::Ttl(ttl),
                        ..
                    },
                due,
                ..
            }) => {
                *due = Some(Instant::now() + *ttl);
                true
            }
            _ => false,
        };
        if !ttl {
            return Err(Refusal::failed(format!(
                "CheckID \"{check_id}\" does not have associated TTL"
            )));
        }
        self.set(index, check_id, status, output);
        Ok(())
    }

    /// Takes in the result of a probe; the check may have gone meanwhile.
    pub(super) fn probed(&mut self, index: &mut u64, check_id: &str, status: Status, output: &str) {
        let is_http = |check: &Check| matches!(check.definition.kind, Kind::Http { .. });
        if self.checks.get(check_id).is_some_and(is_http) {
            self.set(index, check_id, status, output);
        }
    }

    fn set(&mut self, index: &mut u64, check_id: &str, status: Status, output: &str) {
        let Some(check) = self.checks.get_mut(check_id) else {
            return;
        };
        check.output = output[..output.floor_char_boundary(MAX_OUTPUT_BYTES)].to_owned();
        if check.status == status {
            return;
        }
        *index += 1;
        check.synced_output = check.output.clone();
        check.status = status;
        check.modified = *index;
        check.critical_since = (status == Status::Critical).then(Instant::now);
        let service_id = check.service_id.clone();
        self.touch(&service_id, *index);
    }

    pub(super) fn services(&self) -> impl Iterator<Item = &Registered> {
        self.services.values()
    }

    pub(super) fn service(&self, id: &str) -> Option<&Registered> {
        self.services.get(id)
    }

    pub(super) fn named<'c>(&'c self, name: &'c str) -> impl Iterator<Item = &'c Registered> {
        self.services
            .values()
            .filter(|registered| registered.service.name.eq_ignore_ascii_case(name))
    }

    pub(super) fn checks(&self) -> impl Iterator<Item = &Check> {
        self.checks.values()
    }

    pub(super) fn checks_of<'c>(&'c self, id: &'c str) -> impl Iterator<Item = &'c Check> {
        self.checks
            .values()
            .filter(move |check| check.service_id == id)
    }

    /// The index of a list of services.
    pub(super) fn listed(&self) -> u64 {
        self.listed
    }

    /// The index of a name's last change, which a poll on it waits for to move.
    pub(super) fn touched(&self, name: &str) -> u64 {
        self.touched
            .get(&name.to_ascii_lowercase())
            .copied()
            .unwrap_or(0)
    }

    fn touch(&mut self, id: &str, index: u64) {
        let Some(registered) = self.services.get(id) else {
            return;
        };
        let name = registered.service.name.to_ascii_lowercase();
        if self.touched.len() >= MAX_NAMES {
            // Names long gone: a poll on one of them waits until its time is over.
            let living: Vec<String> = self
                .services
                .values()
                .map(|r| r.service.name.to_ascii_lowercase())
                .collect();
            self.touched.retain(|name, _| living.contains(name));
        }
        self.touched.insert(name, index);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep_until;

    use super::*;

    fn registration(deregister_after: u64) -> (Service, Vec<CheckDefinition>) {
        let body = format!(
            r#"{{"Name":"a","Checks":[{{"TTL":"5s","Status":"passing",
                "DeregisterCriticalServiceAfter":"{deregister_after}s"}}]}}"#
        );
        super::super::decode::registration(body.as_bytes()).expect("a registration")
    }

    /// Lets time pass as the timers do; gives the seconds after which the TTL ran out and after
    /// which the service was gone.
    async fn life(deregister_after: u64) -> (u64, u64) {
        let (began, mut index) = (Instant::now(), 1);
        let mut catalog = Catalog::new(([127, 0, 0, 1], 1).into(), index);
        let (service, checks) = registration(deregister_after);
        catalog
            .register(&mut index, service, checks, false)
            .expect("room");
        let mut expired = None;
        while catalog.service("a").is_some() {
            sleep_until(catalog.next_due().expect("something is due")).await;
            let before = index;
            catalog.expire(&mut index);
            assert!(index > before, "it was due, and nothing happened");
            expired = expired.or(Some(began.elapsed().as_secs()));
        }
        assert_eq!(catalog.touched("A"), index, "a poll on the name wakes");
        (
            expired.expect("a TTL that ran out"),
            began.elapsed().as_secs(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_critical_for_too_long_goes_at_the_next_round() {
        for (after, gone) in [(1, 90), (60, 90), (85, 90), (86, 120), (600, 630)] {
            assert_eq!(life(after).await, (5, gone), "{after}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_more_service_than_there_is_room_for_is_refused() {
        let mut index = 1;
        let mut catalog = Catalog::new(([127, 0, 0, 1], 1).into(), index);
        let (service, _) = registration(60);
        let mut register = |nth: usize| {
            let service = Service {
                id: format!("s{nth}"),
                ..service.clone()
            };
            catalog.register(&mut index, service, Vec::new(), false)
        };
        for nth in 1..MAX_SERVICES {
            assert_eq!(register(nth), Ok(()));
        }
        assert!(register(MAX_SERVICES).is_err());
        assert_eq!(register(1), Ok(()), "what is there may be registered again");
    }
}
