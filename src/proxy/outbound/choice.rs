//! Which instance gets a call, or why none does.

use super::{Outbound, whom};
use crate::context::{AgentName, Fields};
use crate::contract::watch::{Agent, Offer, Standing, View};
use crate::proxy::respond::Trouble;
use crate::route::{self, Candidate, Misfit, Query};
use crate::task::Problem;
use crate::telemetry::metrics::{Cohort, Phase};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

impl Outbound {
    /// Finds the contract and waits, if this is its first use, until something is known of it.
    pub(super) async fn find(
        &self,
        agent: &AgentName,
        until: Instant,
    ) -> Result<Arc<Agent>, Trouble> {
        let found = self.directory.agent(&agent.id).map_err(whom::refused)?;
        self.wait_for(&found, until).await;
        if found.view().standing == Standing::Absent {
            let detail = format!("Consul knows neither a contract nor a service {}", agent.id);
            return Err(Trouble::new(Problem::UnknownAgent, detail).executed(false));
        }
        Ok(found)
    }

    /// Waits, if it is the contract's first use, until something is known of it.
    pub(super) async fn wait_for(&self, found: &Agent, until: Instant) {
        let metrics = &self.recorder.metrics;
        if !found.is_settled() {
            metrics.cache_miss();
            found.settled(until).await;
        } else if found.view().stale {
            metrics.cache_stale();
        } else {
            metrics.cache_hit();
        }
    }

    /// Says why nobody who serves a contract fits, if nobody does.
    pub(super) fn unfit(
        &self,
        view: &View,
        agent: &AgentName,
        fields: &Fields,
    ) -> Result<Option<Trouble>, Trouble> {
        let query = self.permitted(fields)?;
        let fits = |offer: &Offer| misfit(&query, offer, agent).is_none();
        let anybody = view.offers.iter().any(fits);
        Ok((!anybody).then(|| nobody(view, agent, &query)))
    }

    /// Chooses among the instances that fit; `key` pins equal calls to one of them.
    pub(super) fn choose(
        &self,
        found: &Agent,
        view: &View,
        agent: &AgentName,
        fields: &Fields,
        key: u64,
    ) -> Result<Offer, Trouble> {
        let started = Instant::now();
        let chosen = self.pick(found, view, agent, fields, key);
        let metrics = &self.recorder.metrics;
        metrics.phase(Phase::Route, started.elapsed());
        if chosen.is_ok() {
            metrics.selected(Cohort::Stable);
        }
        chosen
    }

    fn pick(
        &self,
        found: &Agent,
        view: &View,
        agent: &AgentName,
        fields: &Fields,
        key: u64,
    ) -> Result<Offer, Trouble> {
        let query = self.permitted(fields)?;
        let fits = |offer: &&Offer| misfit(&query, offer, agent).is_none();
        let fitting = || view.offers.iter().filter(fits);
        found.meters().candidates(fitting().count());
        let ranked = fitting().map(|offer| (&*offer.instance.id, offer.instance.weight));
        match route::best(key, ranked).and_then(|at| fitting().nth(at)) {
            Some(offer) => Ok(offer.clone()),
            None => Err(nobody(view, agent, &query)),
        }
    }

    /// Puts what a call asks for; another team's instances are not for the asking.
    fn permitted<'a>(&'a self, fields: &'a Fields) -> Result<Query<'a>, Trouble> {
        let query = Query {
            region: fields.region.as_deref().unwrap_or(&self.config.region),
            utc_offset: fields.utc_offset.as_deref().unwrap_or_default(),
            required_tags: fields.required_tags.as_deref().unwrap_or_default(),
            team: &self.config.team,
            deadline: fields.deadline,
        };
        query
            .check_team()
            .map_err(|foreign| Trouble::new(Problem::Forbidden, foreign.to_string()))?;
        Ok(query)
    }
}

/// Says whether method and path are the contract's own route, as its instances name it.
pub fn is_contract_route(found: &Agent, method: &http::Method, path: &str) -> bool {
    let view = found.view();
    let is_route = |offer: &Offer| offer.instance.route() == Some((method.as_str(), path));
    view.offers.iter().any(is_route)
}

/// Why an offer may not serve the call: another version, or a misfit.
fn misfit(query: &Query<'_>, offer: &Offer, agent: &AgentName) -> Option<Reason> {
    let contract = &offer.contract.contract;
    let asked = agent.version.as_deref();
    if asked.is_some_and(|asked| contract.version.to_string() != asked) {
        return Some(Reason::Version);
    }
    let candidate = Candidate {
        tags: &offer.instance.tags,
        regions: &contract.constraints.region_support,
        utc_offsets: &contract.constraints.utc_offsets,
        timeout: contract.constraints.timeout,
    };
    query.misfit(&candidate).map(Reason::Misfit)
}

enum Reason {
    Version,
    Misfit(Misfit),
}

/// Says why nobody is left to take the call.
fn nobody(view: &View, agent: &AgentName, query: &Query<'_>) -> Trouble {
    let id = &agent.id;
    let (problem, detail) = match (view.offers.as_slice(), &view.untrusted, view.standing) {
        ([], Some(reason), _) => (Problem::UntrustedContract, reason.clone()),
        ([], None, Standing::Unasked) => (
            Problem::NoInstance,
            format!("Consul has not answered yet, so no instance of {id} is known"),
        ),
        ([], None, _) => (
            Problem::NoInstance,
            match &view.wanting {
                Some(reason) => format!("the contract of {id} cannot be had: {reason}"),
                None => format!("no instance of {id} is passing in Consul"),
            },
        ),
        (offers, _, _) => (Problem::NoInstance, reasons(offers, agent, query)),
    };
    let trouble = Trouble::new(problem, detail).executed(false);
    trouble.retry_after(Duration::from_secs(1))
}

/// Counts the instances by what keeps them from the call.
fn reasons(offers: &[Offer], agent: &AgentName, query: &Query<'_>) -> String {
    let mut counted: Vec<(String, usize)> = Vec::new();
    for offer in offers {
        let text = match misfit(query, offer, agent) {
            Some(Reason::Version) => "another version is served".to_owned(),
            Some(Reason::Misfit(misfit)) => misfit.to_string(),
            None => continue,
        };
        match counted.iter_mut().find(|(known, _)| *known == text) {
            Some((_, count)) => *count += 1,
            None => counted.push((text, 1)),
        }
    }
    let parts: Vec<String> = counted
        .into_iter()
        .map(|(reason, count)| format!("{count} of {}: {reason}", offers.len()))
        .collect();
    format!("no instance of {} fits: {}", agent.id, parts.join("; "))
}
