//! Where a task's calls to an agent go, and why not elsewhere: asked by people, not by calls.
//!
//! What answers is the code that chooses for calls, on the same view; no selection is counted.

use super::Outbound;
use super::choice::{self, Asking};
use super::fleet::{Seen, Standings};
use super::route::Whom;
use super::whom::{Callee, PassedOver};
use crate::context::{AgentName, Fields};
use crate::contract::watch::{Agent, Offer, View};
use crate::proxy::respond::Trouble;
use crate::route::{self, Cohort, Key, Query};
use crate::task::Problem;
use serde::Serialize;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// How long an explanation waits for a contract that was not in use.
const PATIENCE: Duration = Duration::from_secs(3);

/// A question about a call that is not made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Question {
    /// An id, `id@version`, or a range.
    pub agent: String,
    pub task_id: String,
    pub required_tags: Vec<String>,
    pub region: Option<String>,
    pub utc_offset: Option<String>,
    pub deadline_ms: Option<u64>,
}

/// Why there is no explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unexplained {
    pub problem: Problem,
    pub detail: String,
}

/// Whom a task's calls go to now.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// The contract that is called; of a range, the one that it stands for now.
    agent: String,
    task_id: String,
    /// The one that the calls go to; nobody fits without it.
    instance: Option<String>,
    canary: Canary,
    /// Consul does not confirm at present what this is based on.
    stale: bool,
    /// Those that fit and are not left out, in the order in which the task prefers them.
    ranking: Vec<Ranked>,
    excluded: Vec<Excluded>,
    /// What a call would be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Told>,
}

/// How canaries enter into it.
#[derive(Debug, Serialize)]
struct Canary {
    /// Whose instances the task is for.
    cohort: &'static str,
    /// How many of 10 000 tasks are for canaries.
    ratio: u16,
    /// The task's own place among 10 000; below the ratio it is for canaries.
    lot: u16,
    /// What is wrong with the ratio that is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

#[derive(Debug, Serialize)]
struct Ranked {
    instance: String,
    address: String,
    version: String,
    weight: u32,
    cohort: &'static str,
    /// Calls that it has in flight, as far as this sidecar can tell.
    in_flight: usize,
}

/// Who does not get the calls, and why.
#[derive(Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
pub struct Excluded {
    pub agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    pub reason: String,
}

#[derive(Debug, Serialize)]
struct Told {
    kind: &'static str,
    detail: String,
}

impl Outbound {
    /// Explains a choice as it would be made now.
    pub async fn explain(&self, question: Question) -> Result<Explanation, Unexplained> {
        self.explained(question)
            .await
            .map_err(|trouble| Unexplained {
                problem: trouble.problem,
                detail: trouble.detail,
            })
    }

    /// Tells what calls have told of the instances of a contract in use.
    pub fn seen(&self, found: &Agent) -> Vec<Seen> {
        let view = found.view();
        let Some(fleet) = self.fleets.find(found.id.as_str()) else {
            return Vec::new();
        };
        let standings = fleet.look(&view, Instant::now());
        view.offers
            .iter()
            .map(|offer| standings.seen(offer))
            .collect()
    }

    async fn explained(&self, question: Question) -> Result<Explanation, Trouble> {
        let whom = Whom::parse(&question.agent)?;
        let fields = self.wishes(&question.fields()?);
        let asking = Asking::first(&fields, Key::of(&question.task_id));
        let until = Instant::now() + PATIENCE;
        let (callee, passed_over) = match whom {
            Whom::Contract(agent) => {
                let found = self.find(&agent, until).await?;
                (self.callee(found, agent, &asking), Vec::new())
            }
            Whom::Range(range) => {
                let (callee, passed_over) = self.highest(&range, &asking, until).await?;
                let excluded = passed_over.iter().map(PassedOver::shown).collect();
                let Some(callee) = callee else {
                    let trouble = self.nobody_in(&range, passed_over);
                    return Ok(unserved(question, &asking, excluded, &trouble));
                };
                (callee, excluded)
            }
        };
        let mut explanation = self.chosen(&callee, &asking)?;
        explanation.task_id = question.task_id;
        explanation.excluded.extend(passed_over);
        explanation.excluded.sort();
        Ok(explanation)
    }

    /// Explains the choice among the instances of one contract.
    fn chosen(&self, callee: &Callee, asking: &Asking<'_>) -> Result<Explanation, Trouble> {
        let view = callee.found.view();
        let (offers, agent) = (&view.offers, &callee.agent);
        let standings = callee.fleet.look(&view, Instant::now());
        let query = self.query_now(&view, callee, asking, &standings)?;
        let fitting = choice::fitting(offers, agent, &query);
        let left = asking.left(&fitting, &standings);
        let weighed = || left.iter().map(|offer| choice::weighed(offer));
        let ranking: Vec<Ranked> = route::ranking(asking.key, weighed())
            .into_iter()
            .map(|at| Ranked::of(left[at], &standings))
            .collect();
        let picked = standings.pick(asking.key, &left);
        let problem = ranking
            .is_empty()
            .then(|| choice::nobody(&view, agent, &query));
        let mut excluded = excluded(&view, agent, &query);
        let left_out = |offer: &&Offer| !left.iter().any(|one| std::ptr::eq(*one, *offer));
        let ejected = fitting.iter().copied().filter(left_out);
        excluded.extend(ejected.filter_map(|offer| {
            Some(Excluded {
                agent: agent.id.clone(),
                instance: Some(offer.instance.id.to_string()),
                reason: standings.ejected(offer)?.to_string(),
            })
        }));
        let share = self.directory.ratios().share(&callee.found.id);
        Ok(Explanation {
            agent: agent.id.clone(),
            task_id: String::new(),
            instance: picked.map(|(at, _)| left[at].instance.id.to_string()),
            canary: Canary {
                cohort: callee.cohort.as_str(),
                ratio: share.ratio.of_ten_thousand(),
                lot: asking.key.lot.number(),
                fault: share.fault,
            },
            stale: view.stale,
            ranking,
            excluded,
            problem: problem.as_ref().map(Told::of),
        })
    }
}

/// Explains that no contract of a range can serve.
fn unserved(
    question: Question,
    asking: &Asking<'_>,
    mut excluded: Vec<Excluded>,
    trouble: &Trouble,
) -> Explanation {
    excluded.sort();
    Explanation {
        agent: question.agent,
        task_id: question.task_id,
        instance: None,
        canary: Canary {
            cohort: Cohort::Stable.as_str(),
            ratio: 0,
            lot: asking.key.lot.number(),
            fault: None,
        },
        stale: false,
        ranking: Vec::new(),
        excluded,
        problem: Some(Told::of(trouble)),
    }
}

/// Lists who does not get the call.
fn excluded(view: &View, agent: &AgentName, query: &Query<'_>) -> Vec<Excluded> {
    let misfits = view.offers.iter().filter_map(|offer| {
        let reason = choice::misfit(query, offer, agent)?;
        Some((&offer.instance.id, reason.to_string()))
    });
    let left_out = view.left_out.iter();
    let left_out = left_out.map(|left_out| (&left_out.instance, left_out.reason.clone()));
    let all = misfits.chain(left_out).map(|(instance, reason)| Excluded {
        agent: agent.id.clone(),
        instance: Some(instance.to_string()),
        reason,
    });
    all.collect()
}

impl PassedOver {
    fn shown(&self) -> Excluded {
        Excluded {
            agent: self.id.clone(),
            instance: None,
            reason: self.why.detail.clone(),
        }
    }
}

impl Ranked {
    fn of(offer: &Offer, standings: &Standings<'_>) -> Self {
        let instance = &offer.instance;
        Self {
            instance: instance.id.to_string(),
            address: instance.authority(),
            version: offer.contract.contract.version.to_string(),
            weight: instance.weight,
            cohort: choice::candidate(offer).cohort().as_str(),
            in_flight: standings.load(offer).in_flight,
        }
    }
}

impl Told {
    fn of(trouble: &Trouble) -> Self {
        Self {
            kind: trouble.problem.as_str(),
            detail: trouble.detail.clone(),
        }
    }
}

impl Question {
    /// Reads the question as the context of a call, within the bounds of one.
    fn fields(&self) -> Result<Fields, Trouble> {
        let context = json!({
            "task_id": self.task_id,
            "required_tags": self.required_tags,
            "region": self.region,
            "utc_offset": self.utc_offset,
            "deadline_ms": self.deadline_ms,
        });
        Fields::from_body(&context.to_string())
            .map_err(|bad| Trouble::new(Problem::BadContext, bad.to_string()))
    }
}
