//! From a name to the contract that is called: a range becomes the highest minor that can serve.

use super::Outbound;
use super::choice::{self, Asking};
use super::fleet::Fleet;
use super::route::Whom;
use crate::context::AgentName;
use crate::contract::Range;
use crate::contract::watch::{Agent, Family, Refused};
use crate::proxy::respond::Trouble;
use crate::route::Cohort;
use crate::task::Problem;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the first use of a range, or of a contract that nobody serves, waits for Consul in all.
pub(super) const FIRST_USE: Duration = Duration::from_secs(2);
/// What a last known good view takes to be there, also after a wait in vain.
const RECALL: Duration = Duration::from_millis(100);

/// The contract that a name stands for now, and whom of its instances a call may use.
pub struct Callee {
    pub found: Arc<Agent>,
    /// The contract asked for; its version is filled in once one is chosen.
    pub agent: AgentName,
    /// Decided once per call and contract, so that another attempt of the call stays in it.
    pub cohort: Cohort,
    /// What calls have told of its instances.
    pub fleet: Arc<Fleet>,
}

/// A minor of a range that cannot serve, and why.
pub struct PassedOver {
    pub id: String,
    pub why: Trouble,
    /// It has instances, though none that fits.
    pub is_served: bool,
}

impl Outbound {
    /// Finds the contract that `whom` stands for now.
    pub(super) async fn whom(
        &self,
        whom: Whom,
        asking: &Asking<'_>,
        until: Instant,
    ) -> Result<Callee, Trouble> {
        match whom {
            Whom::Contract(agent) => {
                let found = self.find(&agent, until).await?;
                Ok(self.callee(found, agent, asking))
            }
            Whom::Range(range) => {
                let (found, passed_over) = self.highest(&range, asking, until).await?;
                found.ok_or_else(|| self.nobody_in(&range, passed_over))
            }
        }
    }

    pub(super) fn callee(
        &self,
        found: Arc<Agent>,
        agent: AgentName,
        asking: &Asking<'_>,
    ) -> Callee {
        let ratio = self.directory.ratios().of(&found.id);
        let cohort = asking.key.lot.cohort(ratio.of_ten_thousand());
        Callee {
            fleet: self.fleets.of(&found, &self.directory),
            found,
            agent,
            cohort,
        }
    }

    /// Finds the highest minor of a range with an instance that fits the call, and says what
    /// kept it from the higher ones.
    pub(super) async fn highest(
        &self,
        range: &Range,
        asking: &Asking<'_>,
        until: Instant,
    ) -> Result<(Option<Callee>, Vec<PassedOver>), Trouble> {
        let until = until.min(Instant::now() + FIRST_USE);
        let family = self.directory.family(range).map_err(refused)?;
        family.settled(until).await;
        let until = until.max(Instant::now() + RECALL);
        let mut passed_over = Vec::new();
        for id in family.ids().iter() {
            let (why, is_served) = match self.directory.agent(id.as_str()) {
                // A lower one may be in use already.
                Err(full) => (refused(full), true),
                Ok(found) => {
                    // A minor that has only just been published is waited for like any first use.
                    self.wait_for(&found, until).await;
                    let (id, version) = (id.to_string(), None);
                    let callee = self.callee(found, AgentName { id, version }, asking);
                    let view = callee.found.view();
                    let query = self.query(&view.offers, &callee, asking.fields)?;
                    match choice::unfit(&view, &callee.agent, &query) {
                        None => {
                            drop(view);
                            return Ok((Some(callee), passed_over));
                        }
                        Some(why) => (why, !view.offers.is_empty() || view.untrusted.is_some()),
                    }
                }
            };
            passed_over.push(PassedOver {
                id: id.to_string(),
                why,
                is_served,
            });
        }
        Ok((None, passed_over))
    }

    /// Says why no minor of a range can serve: that those there do not fit says more than that
    /// others have no instance at all.
    pub(super) fn nobody_in(&self, range: &Range, passed_over: Vec<PassedOver>) -> Trouble {
        let telling = passed_over.into_iter().find(|passed| passed.is_served);
        match (telling, self.directory.family(range)) {
            (Some(passed), _) => passed.why,
            (None, Ok(family)) => nobody(range, &family),
            (None, Err(full)) => refused(full),
        }
    }
}

/// Says why no minor of a range has an instance at all.
fn nobody(range: &Range, family: &Family) -> Trouble {
    let (problem, detail) = match (family.ids().is_empty(), family.is_answered()) {
        (true, true) => (
            Problem::UnknownAgent,
            format!("Consul's index names no contract of {range}"),
        ),
        (true, false) => (
            Problem::NoInstance,
            format!("Consul has not answered yet, so no contract of {range} is known"),
        ),
        (false, _) => (
            Problem::NoInstance,
            format!("no instance of any contract of {range} is passing in Consul"),
        ),
    };
    let trouble = Trouble::new(problem, detail).executed(false);
    match problem {
        Problem::NoInstance => trouble.retry_after(Duration::from_secs(1)),
        _ => trouble,
    }
}

/// Says why a name cannot be followed.
pub(super) fn refused(refused: Refused) -> Trouble {
    let problem = match refused {
        Refused::NotAnId { .. } => Problem::UnknownAgent,
        Refused::Full | Refused::FullOfRanges => Problem::NoInstance,
    };
    Trouble::new(problem, refused.to_string()).executed(false)
}
