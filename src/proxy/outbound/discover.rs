//! `POST /hermes/discover`: who could serve a call, and why each other one could not.
//!
//! The question is one agent, or an input alone: then every contract in the index is tried. What
//! answers is Consul's leader at this moment and the filters of real calls, in a fixed order, so
//! that every sidecar gives the same answer; only its own team and region differ.
//!
//! - nothing begins to be followed; bodies come through the cache that calls use
//! - bounds: one body, `MOST_CONTRACTS`, `AT_ONCE` at Consul, `WITHIN` in all; `note` tells of a cut
//! - a canary counts where the question asks for one or every task is for canaries
//! - elsewhere: whom one task's calls go to (`explain`)

mod answer;
mod question;

use super::Outbound;
use super::choice;
use super::explain::Excluded;
use super::route::Whom;
use crate::consul;
use crate::context::{AgentName, Fields};
use crate::contract::watch::{Offer, Ratio, Survey};
use crate::contract::{Compiled, ContractId, guard};
use crate::identity::Digest;
use crate::proxy::body::Body;
use crate::proxy::received::Received;
use crate::proxy::respond::Trouble;
use crate::route::{Cohort, Query};
use crate::task::Problem;
use crate::telemetry::log::Chain;
use answer::{Answer, Verdict};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Response};
use question::Question;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// For a whole question.
const WITHIN: Duration = Duration::from_secs(5);
/// How many contracts are looked at for one question, the first by name.
const MOST_CONTRACTS: usize = 512;
/// How many contracts are looked at at a time.
const AT_ONCE: usize = 8;
/// How many questions are worked on at a time; the next wait, and are refused at `WITHIN`.
pub const MOST_QUESTIONS: usize = 2;

/// The contracts that were looked at.
struct Found {
    surveys: Vec<Survey>,
    ratios: HashMap<String, Ratio>,
    /// What was left out, if anything.
    note: Option<String>,
}

impl Outbound {
    pub(super) async fn discover(
        &self,
        head: Parts,
        body: Received,
        names: &Fields,
    ) -> Response<Body> {
        if let Err(trouble) = self.config.limits.check(&head) {
            return self.refusals.turn_away(&trouble, names, &head, body).await;
        }
        match self.discovered(body).await {
            Ok(answer) => {
                let mut response = Response::new(Body::whole(answer.to_json()));
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(CONTENT_TYPE, json);
                response
            }
            Err(trouble) => self.refusals.refuse(&trouble, names),
        }
    }

    async fn discovered(&self, body: Received) -> Result<Answer, Trouble> {
        let body = self.config.limits.read(body).await?;
        let question = Question::read(&body, &self.config.limits.body)?;
        let whom = question.agent.as_deref().map(Whom::parse).transpose()?;
        let query = self.permitted(&question.fields)?;
        let until = Instant::now() + WITHIN;
        let turn = timeout_at(until, self.questions.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            let detail = "other questions are being worked on; ask again later";
            let overloaded = Trouble::new(Problem::Overloaded, detail).executed(false);
            return Err(overloaded.retry_after(Duration::from_secs(1)));
        };
        let found = self.look(whom.as_ref(), until).await?;
        let verdicts = match question.input {
            Some(input) => self.tried(input, &found.surveys, until).await?,
            None => BTreeMap::new(),
        };
        Ok(answered(found, whom.as_ref(), query, &verdicts))
    }

    /// Looks at the contracts that the question is about.
    async fn look(&self, whom: Option<&Whom>, until: Instant) -> Result<Found, Trouble> {
        let known = async {
            let ratios = async { self.directory.written_ratios().await.map_err(unanswered) };
            tokio::try_join!(self.ids(whom), ratios)
        };
        let (ids, ratios) = match timeout_at(until, known).await {
            Ok(known) => known?,
            Err(_elapsed) => return Err(silent()),
        };
        let surveys = self.surveys(&ids, until).await?;
        if let ([survey], Some(Whom::Contract(_))) = (surveys.as_slice(), whom)
            && !survey.has_instances()
        {
            self.check_published(&survey.id, until).await?;
        }
        let note = (surveys.len() < ids.len()).then(|| {
            format!(
                "only {} of {} contracts were looked at: at most {MOST_CONTRACTS}, and for at \
                 most {} s; name an agent to ask for one",
                surveys.len(),
                ids.len(),
                WITHIN.as_secs()
            )
        });
        Ok(Found {
            surveys,
            ratios,
            note,
        })
    }

    /// Looks at as many contracts as there is time for, the first in order first.
    async fn surveys(&self, ids: &[ContractId], until: Instant) -> Result<Vec<Survey>, Trouble> {
        let mut left = ids.iter().take(MOST_CONTRACTS);
        let mut looking = JoinSet::new();
        let mut surveys = Vec::new();
        loop {
            while looking.len() < AT_ONCE
                && let Some(id) = left.next()
            {
                let (directory, id) = (self.directory.clone(), id.clone());
                looking.spawn(async move { directory.survey(&id).await });
            }
            match timeout_at(until, looking.join_next()).await {
                Ok(Some(Ok(survey))) => surveys.push(survey.map_err(unanswered)?),
                // A look that panicked is a bug, which its own log line tells of.
                Ok(Some(Err(_panicked))) => return Err(silent()),
                Ok(None) => return Ok(surveys),
                Err(_elapsed) if surveys.is_empty() => return Err(silent()),
                Err(_elapsed) => return Ok(surveys),
            }
        }
    }

    /// A contract without instances is known only if somebody published it.
    async fn check_published(&self, id: &ContractId, until: Instant) -> Result<(), Trouble> {
        match timeout_at(until, self.directory.is_published(id)).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(unknown(id.as_str())),
            Ok(Err(error)) => Err(unanswered(error)),
            Err(_elapsed) => Err(silent()),
        }
    }

    async fn ids(&self, whom: Option<&Whom>) -> Result<Vec<ContractId>, Trouble> {
        let directory = &self.directory;
        match whom {
            None => directory.indexed().await.map_err(unanswered),
            Some(Whom::Contract(agent)) => match agent.id.parse() {
                Ok(id) => Ok(vec![id]),
                Err(_not_an_id) => Err(unknown(&agent.id)),
            },
            Some(Whom::Range(range)) => {
                let ids = directory.indexed_in(range).await.map_err(unanswered)?;
                match ids.is_empty() {
                    true => Err(unknown(&range.to_string())),
                    false => Ok(ids),
                }
            }
        }
    }

    /// Tries the input on every contract that is served, off the threads that move traffic.
    async fn tried(
        &self,
        input: Bytes,
        surveys: &[Survey],
        until: Instant,
    ) -> Result<BTreeMap<Digest, Verdict>, Trouble> {
        let offers = surveys.iter().flat_map(|survey| &survey.offers);
        let contracts: BTreeMap<Digest, Arc<Compiled>> = offers
            .map(|offer| (offer.contract.digest, offer.contract.clone()))
            .collect();
        let limits = self.config.limits.body;
        let trying = tokio::task::spawn_blocking(move || tried(&input, contracts, &limits, until));
        trying.await.map_err(|_panicked| {
            let detail = "the input could not be tried; the log tells why";
            Trouble::new(Problem::Internal, detail)
        })
    }
}

fn tried(
    input: &Bytes,
    contracts: BTreeMap<Digest, Arc<Compiled>>,
    limits: &guard::Limits,
    until: Instant,
) -> BTreeMap<Digest, Verdict> {
    // The body that it stands in has passed by the same rules.
    let document = guard::parse(input, limits).ok();
    let judged = contracts.into_iter().map(|(digest, contract)| {
        let verdict = match &document {
            Some(document) if Instant::now() < until => match contract.input.check(document) {
                Ok(()) => Verdict::Accepted,
                Err(violations) => Verdict::refused(&violations),
            },
            _ => Verdict::Untried,
        };
        (digest, verdict)
    });
    judged.collect()
}

/// Sorts what was found into who could serve and who could not.
fn answered(
    found: Found,
    whom: Option<&Whom>,
    query: Query<'_>,
    verdicts: &BTreeMap<Digest, Verdict>,
) -> Answer {
    let mut answer = Answer::default();
    answer.note = found.note;
    for survey in found.surveys {
        let agent = AgentName {
            id: survey.id.to_string(),
            version: match whom {
                Some(Whom::Contract(agent)) => agent.version.clone(),
                _ => None,
            },
        };
        let query = Query {
            cohort: cohort(&survey.offers, &agent, &query, found.ratios.get(&agent.id)),
            ..query
        };
        let excluded = |instance: Option<&str>, reason: String| Excluded {
            agent: agent.id.clone(),
            instance: instance.map(str::to_owned),
            reason,
        };
        if !survey.has_instances() {
            let reason = "no instance is registered in Consul".to_owned();
            answer.excluded.push(excluded(None, reason));
        }
        for left_out in survey.left_out {
            let reason = left_out.reason;
            answer
                .excluded
                .push(excluded(Some(&left_out.instance), reason));
        }
        for offer in &survey.offers {
            let misfit = choice::misfit(&query, offer, &agent).map(|reason| reason.to_string());
            let verdict = verdicts.get(&offer.contract.digest);
            match misfit.or_else(|| verdict?.reason()) {
                Some(reason) => {
                    let instance = Some(&*offer.instance.id);
                    answer.excluded.push(excluded(instance, reason));
                }
                None => answer.add(&survey.id, offer),
            }
        }
    }
    answer.settle();
    answer
}

/// Decides without a task: canaries serve where every task is for them and one of them fits.
fn cohort(offers: &[Offer], agent: &AgentName, query: &Query<'_>, ratio: Option<&Ratio>) -> Cohort {
    let for_canaries = Query {
        cohort: Cohort::Canary,
        ..*query
    };
    let fits = |offer: &Offer| choice::misfit(&for_canaries, offer, agent).is_none();
    match ratio.is_some_and(|ratio| ratio.is_all()) && offers.iter().any(fits) {
        true => Cohort::Canary,
        false => Cohort::Stable,
    }
}

fn unknown(name: &str) -> Trouble {
    let shown: String = name.chars().take(80).collect();
    let detail = format!("Consul knows neither a contract nor a service {shown}");
    Trouble::new(Problem::UnknownAgent, detail)
}

fn unanswered(error: consul::Error) -> Trouble {
    tracing::warn!(error = %Chain(&error), "a question could not be put to Consul");
    silent()
}

fn silent() -> Trouble {
    let detail = "Consul has not answered, so nobody can be discovered; calls go on with what is \
                  known";
    let trouble = Trouble::new(Problem::NoInstance, detail).executed(false);
    trouble.retry_after(Duration::from_secs(1))
}
