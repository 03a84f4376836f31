//! From a name to the contract that is called: a range becomes the highest minor that can serve.

use super::Outbound;
use super::route::Whom;
use crate::context::{AgentName, Fields};
use crate::contract::Range;
use crate::contract::watch::{Agent, Refused};
use crate::proxy::respond::Trouble;
use crate::task::Problem;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the first use of a range waits for Consul in all.
const FIRST_USE: Duration = Duration::from_secs(2);
/// What a last known good view takes to be there, also after a wait in vain.
const RECALL: Duration = Duration::from_millis(100);

impl Outbound {
    /// Finds the contract that `whom` stands for now.
    pub(super) async fn whom(
        &self,
        whom: Whom,
        fields: &Fields,
        until: Instant,
    ) -> Result<(Arc<Agent>, AgentName), Trouble> {
        match whom {
            Whom::Contract(agent) => Ok((self.find(&agent, until).await?, agent)),
            Whom::Range(range) => self.highest(&range, fields, until).await,
        }
    }

    /// Finds the highest minor of a range with an instance that fits the call.
    async fn highest(
        &self,
        range: &Range,
        fields: &Fields,
        until: Instant,
    ) -> Result<(Arc<Agent>, AgentName), Trouble> {
        let until = until.min(Instant::now() + FIRST_USE);
        let family = self.directory.family(range).map_err(refused)?;
        family.settled(until).await;
        let until = until.max(Instant::now() + RECALL);
        let wishes = self.wishes(fields);
        let mut misfit = None;
        for id in family.ids().iter() {
            let (id, version) = (id.to_string(), None);
            let agent = AgentName { id, version };
            let found = match self.directory.agent(&agent.id) {
                Ok(found) => found,
                // A lower one may be in use already.
                Err(full) => {
                    misfit.get_or_insert(refused(full));
                    continue;
                }
            };
            // A minor that has only just been published is waited for like any first use.
            self.wait_for(&found, until).await;
            let view = found.view();
            let Some(why) = self.unfit(&view, &agent, &wishes)? else {
                drop(view);
                return Ok((found, agent));
            };
            // That a minor has no instance at all says little; that those there do not fit does.
            if !view.offers.is_empty() || view.untrusted.is_some() {
                misfit.get_or_insert(why);
            }
        }
        Err(misfit.unwrap_or_else(|| nobody(range, &family)))
    }
}

/// Says why no minor of a range has an instance at all.
fn nobody(range: &Range, family: &crate::contract::watch::Family) -> Trouble {
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
