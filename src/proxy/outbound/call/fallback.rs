//! Other agents, where the one asked for failed and its contract names them.
//!
//! Naming a fallback says that it is safe whatever became of the work. It gets one attempt. Its
//! answer is held against its own contract and against the one that the application relies on.

use super::again::Tries;
use super::attempt::{Plan, Tried};
use super::{Call, Order};
use crate::context::AgentName;
use crate::contract::{Compiled, Contract, ContractId};
use crate::proxy::outbound::choice::Asking;
use crate::proxy::outbound::whom::FIRST_USE;
use crate::proxy::respond::Trouble;
use crate::task::{Next, Problem, State};
use crate::telemetry::metrics::AttemptKind;
use std::sync::Arc;
use tokio::time::Instant;

impl Call {
    /// Adds the time that fallbacks may take, as far as they are known, and begins to follow the
    /// others.
    pub(super) fn foresee(&mut self, contract: &Contract) {
        for id in &contract.fallback {
            let Ok(agent) = self.outbound.directory.agent(id.as_str()) else {
                continue;
            };
            let view = agent.view();
            let contracts = view.offers.iter().map(|offer| &offer.contract.contract);
            if let Some(longest) = contracts.max_by_key(|one| one.constraints.timeout) {
                self.clock.add(longest);
            }
        }
    }

    /// Tries the fallbacks in turn; if all fail, the outcome is that of the agent asked for.
    pub(super) async fn fall_back(
        &mut self,
        tries: &Tries,
        mut own: Tried,
        order: &Order,
    ) -> Tried {
        let Some(original) = self.original(tries).await else {
            return own;
        };
        let mut ended = own.outcome.end;
        for id in &original.contract.fallback {
            let plan = match self.stand_in(id, &original, order).await {
                Ok(plan) => plan,
                Err(trouble) => {
                    let call_id = self.ids.call_id.as_str();
                    let reason = trouble.failure().detail;
                    tracing::warn!(call_id, fallback = %id, reason, "a fallback cannot be asked");
                    continue;
                }
            };
            let mut attempt = self.follow(&plan, order, ended, State::FallbackInvoked);
            attempt.advance(State::Dispatched);
            let tried = self.send(attempt, plan, order, AttemptKind::Fallback).await;
            ended = tried.outcome.end;
            if ended == State::Completed {
                return tried;
            }
            // Reports are stored in their order.
            own.record = tried.record;
            if tried.outcome.ended().next(false) == Next::Nothing {
                break;
            }
        }
        own
    }

    /// Returns the contract that the application relies on, also where nobody serves it.
    async fn original(&mut self, tries: &Tries) -> Option<Arc<Compiled>> {
        if tries.original.is_some() {
            return tries.original.clone();
        }
        let found = &self.callee.found;
        let directory = &self.outbound.directory;
        // Without a deadline the call has a day, which a silent Consul must not take.
        let until = self.clock.ends().instant().min(Instant::now() + FIRST_USE);
        let original = directory.published(found, until).await?;
        self.clock.grant(Instant::now(), &original.contract);
        self.foresee(&original.contract);
        Some(original)
    }

    /// Finds an instance of a fallback that takes the input and that there is time for.
    async fn stand_in(
        &mut self,
        id: &ContractId,
        original: &Arc<Compiled>,
        order: &Order,
    ) -> Result<Plan, Trouble> {
        let name = AgentName {
            id: id.to_string(),
            version: None,
        };
        let ends = self.clock.ends();
        let found = self.outbound.find(&name, ends.instant()).await?;
        let asking = Asking::first(&self.fields, self.key);
        let callee = self.outbound.callee(found, name, &asking);
        let chosen = {
            let view = callee.found.view();
            self.outbound.choose(&view, &callee, &asking)?
        };
        self.clock.add(&chosen.offer.contract.contract);
        let mut plan = self.plan(&callee, chosen);
        plan.relied_on = Some(original.clone());
        let timeout = plan.contract().constraints.timeout;
        // One that is answered later may have time for its work, and none to be acknowledged.
        let ends = plan.deadline.earliest(self.clock.ends());
        if !ends.leaves_time(Instant::now(), timeout) {
            let detail = "the deadline left no time for it";
            return Err(Trouble::new(Problem::BudgetExhausted, detail));
        }
        self.check_input(&plan, &order.input).await?;
        Ok(plan)
    }
}
