//! Which instance gets a call, or why none does.

use super::Outbound;
use super::fleet::Standings;
use super::place::Place;
use super::whom::{self, Callee};
use crate::context::{AgentName, Fields};
use crate::contract::watch::{Agent, Offer, Standing, View};
use crate::proxy::respond::Trouble;
use crate::route::{Candidate, Cohort, Key, Misfit, Query};
use crate::task::Problem;
use crate::telemetry::metrics::{self, Phase};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What decides whom a call goes to, whichever agent it names.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    pub fields: &'a Fields,
    pub key: Key,
    /// Instances of earlier attempts, left out unless nobody else is left.
    pub tried: &'a [Arc<str>],
    /// The one instance that may be asked, where it alone knows the call from before.
    pub only: Option<&'a str>,
}

/// The instance that an attempt goes to.
pub struct Chosen {
    pub offer: Offer,
    pub place: Place,
}

impl<'a> Asking<'a> {
    /// Asks for the first attempt of a call.
    pub fn first(fields: &'a Fields, key: Key) -> Self {
        Self {
            fields,
            key,
            tried: &[],
            only: None,
        }
    }

    /// Returns those of `fitting` that the call may go to: who is left out or was tried gets it
    /// only if there is nobody else.
    ///
    /// A call whose contract allows another attempt goes back to an instance that failed it rather
    /// than give up: a single instance that restarts is there again after a pause.
    pub(super) fn left<'o>(
        &self,
        fitting: &[&'o Offer],
        standings: &Standings<'_>,
    ) -> Vec<&'o Offer> {
        let those = |is_meant: &dyn Fn(&Offer) -> bool| -> Vec<&'o Offer> {
            fitting
                .iter()
                .copied()
                .filter(|offer| is_meant(offer))
                .collect()
        };
        if let Some(only) = self.only {
            return those(&|offer| *offer.instance.id == *only);
        }
        let is_new = |offer: &Offer| !self.tried.contains(&offer.instance.id);
        let is_in = |offer: &Offer| !standings.is_out(offer);
        // A call that has failed once goes to nobody who is doubted if it can be helped.
        let is_sound = |offer: &Offer| self.tried.is_empty() || !standings.is_doubted(offer);
        let ways: [&dyn Fn(&Offer) -> bool; 4] = [
            &|offer| is_in(offer) && is_new(offer) && is_sound(offer),
            &|offer| is_in(offer) && is_new(offer),
            &is_in,
            &is_new,
        ];
        let found = ways.iter().map(|way| those(*way));
        let mut found = found.filter(|offers| !offers.is_empty());
        found.next().unwrap_or_else(|| fitting.to_vec())
    }

    /// Says why nobody is left to take the call.
    fn nobody(&self, view: &View, agent: &AgentName, query: &Query<'_>) -> Trouble {
        let gone = self.only.filter(|_| unfit(view, agent, query).is_none());
        match gone {
            None => nobody(view, agent, query),
            Some(only) => {
                let detail = format!("the instance {only}, which alone knows the call, has gone");
                Trouble::new(Problem::NoInstance, detail).executed(false)
            }
        }
    }
}

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
        self.directory.ratios().settled(until).await;
    }

    /// Chooses among the instances that fit; the key pins equal calls to one of them.
    pub(super) fn choose(
        &self,
        view: &Arc<View>,
        callee: &Callee,
        asking: &Asking<'_>,
    ) -> Result<Chosen, Trouble> {
        let started = Instant::now();
        let standings = callee.fleet.look(view, started);
        let query = self.query_now(view, callee, asking, &standings)?;
        let fitting = fitting(&view.offers, &callee.agent, &query);
        let left = asking.left(&fitting, &standings);
        callee.found.meters().candidates(left.len());
        let picked = standings.pick(asking.key, &left);
        let metrics = &self.recorder.metrics;
        metrics.phase(Phase::Route, started.elapsed());
        let Some((at, is_spilt)) = picked else {
            return Err(asking.nobody(view, &callee.agent, &query));
        };
        metrics.selected(match candidate(left[at]).cohort() {
            _ if is_spilt => metrics::Cohort::Spill,
            Cohort::Stable => metrics::Cohort::Stable,
            Cohort::Canary => metrics::Cohort::Canary,
        });
        Ok(Chosen {
            offer: left[at].clone(),
            place: standings.take(left[at]),
        })
    }

    /// Says whether somebody can be asked who was not tried yet.
    pub(super) fn has_others(
        &self,
        view: &Arc<View>,
        callee: &Callee,
        asking: &Asking<'_>,
    ) -> bool {
        let standings = callee.fleet.look(view, Instant::now());
        let query = self.query_now(view, callee, asking, &standings);
        query.is_ok_and(|query| {
            let fitting = fitting(&view.offers, &callee.agent, &query);
            let left = asking.left(&fitting, &standings);
            left.iter()
                .any(|one| !asking.tried.contains(&one.instance.id))
        })
    }

    /// Puts what a call asks for of these offers; another team's instances are not for the
    /// asking. A call that was picked for canaries goes to the others where none of them fits.
    pub(super) fn query<'a>(
        &'a self,
        offers: &[Offer],
        callee: &Callee,
        fields: &'a Fields,
    ) -> Result<Query<'a>, Trouble> {
        self.query_among(callee, fields, |query| {
            let fits = |offer| misfit(query, offer, &callee.agent).is_none();
            offers.iter().any(fits)
        })
    }

    /// The same for a call that is being made: canaries that are out or were tried count as not
    /// there, as long as there are others.
    pub(super) fn query_now<'a>(
        &'a self,
        view: &View,
        callee: &Callee,
        asking: &Asking<'a>,
        standings: &Standings<'_>,
    ) -> Result<Query<'a>, Trouble> {
        let offers = &view.offers;
        if let Some(only) = asking.only {
            // Who alone may be asked is asked wherever it belongs by now.
            let is_canary = |offer: &Offer| candidate(offer).cohort() == Cohort::Canary;
            let found = offers.iter().find(|offer| *offer.instance.id == *only);
            return self.query_among(callee, asking.fields, |_| found.is_some_and(is_canary));
        }
        let others = self.permitted(asking.fields)?;
        self.query_among(callee, asking.fields, |for_canaries| {
            let fits = |query, offer| misfit(query, offer, &callee.agent).is_none();
            let is_tried = |offer: &Offer| asking.tried.contains(&offer.instance.id);
            let mut canaries = offers
                .iter()
                .filter(|offer| fits(for_canaries, offer) && !standings.is_out(offer))
                .peekable();
            let has_others = || offers.iter().any(|offer| fits(&others, offer));
            canaries.peek().is_some() && (canaries.any(|offer| !is_tried(offer)) || !has_others())
        })
    }

    /// Puts what a call asks for: of canaries, where it was picked for them and `may_serve` says
    /// so of that query.
    fn query_among<'a>(
        &'a self,
        callee: &Callee,
        fields: &'a Fields,
        may_serve: impl FnOnce(&Query<'_>) -> bool,
    ) -> Result<Query<'a>, Trouble> {
        let query = self.permitted(fields)?;
        let for_canaries = Query {
            cohort: Cohort::Canary,
            ..query
        };
        match callee.cohort == Cohort::Canary && may_serve(&for_canaries) {
            true => Ok(for_canaries),
            false => Ok(query),
        }
    }

    /// Puts what a call asks for that was picked for nothing.
    pub(super) fn permitted<'a>(&'a self, fields: &'a Fields) -> Result<Query<'a>, Trouble> {
        let query = Query {
            region: fields.region.as_deref().unwrap_or(&self.config.region),
            utc_offset: fields.utc_offset.as_deref().unwrap_or_default(),
            required_tags: fields.required_tags.as_deref().unwrap_or_default(),
            team: &self.config.team,
            deadline: fields.deadline,
            cohort: Cohort::Stable,
        };
        query
            .check_team()
            .map_err(|foreign| Trouble::new(Problem::Forbidden, foreign.to_string()))?;
        Ok(query)
    }
}

/// Returns the offers that fit, in their order.
pub fn fitting<'o>(offers: &'o [Offer], agent: &AgentName, query: &Query<'_>) -> Vec<&'o Offer> {
    let fits = |offer: &&Offer| misfit(query, offer, agent).is_none();
    offers.iter().filter(fits).collect()
}

/// Returns what an offer is ranked by.
pub fn weighed(offer: &Offer) -> (&str, u32) {
    (&offer.instance.id, offer.instance.weight)
}

/// Says why nobody who serves a contract fits, if nobody does.
pub fn unfit(view: &View, agent: &AgentName, query: &Query<'_>) -> Option<Trouble> {
    let fits = |offer| misfit(query, offer, agent).is_none();
    (!view.offers.iter().any(fits)).then(|| nobody(view, agent, query))
}

/// Says whether method and path are the contract's own route, as its instances name it.
pub fn is_contract_route(found: &Agent, method: &http::Method, path: &str) -> bool {
    let view = found.view();
    let is_route = |offer: &Offer| offer.instance.route() == Some((method.as_str(), path));
    view.offers.iter().any(is_route)
}

/// Why an offer may not serve the call: another version, or a misfit.
pub fn misfit(query: &Query<'_>, offer: &Offer, agent: &AgentName) -> Option<Reason> {
    let asked = agent.version.as_deref();
    if asked.is_some_and(|asked| offer.contract.contract.version.to_string() != asked) {
        return Some(Reason::Version);
    }
    query.misfit(&candidate(offer)).map(Reason::Misfit)
}

/// What an offer is held against a call by.
pub fn candidate(offer: &Offer) -> Candidate<'_> {
    let constraints = &offer.contract.contract.constraints;
    Candidate {
        tags: &offer.instance.tags,
        regions: &constraints.region_support,
        utc_offsets: &constraints.utc_offsets,
        timeout: constraints.timeout,
    }
}

/// Why an offer may not serve a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("another version is served")]
    Version,
    #[error("{0}")]
    Misfit(Misfit),
}

/// Says why nobody is left to take the call.
pub fn nobody(view: &View, agent: &AgentName, query: &Query<'_>) -> Trouble {
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
        let Some(reason) = misfit(query, offer, agent) else {
            continue;
        };
        let text = reason.to_string();
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
