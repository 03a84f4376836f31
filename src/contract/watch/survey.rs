//! Contracts looked at once, as Consul has them now, without beginning to follow them.
//!
//! - who asks twice asks Consul twice: there is no memory but that of compiled bodies
//! - the leader is asked, so that every sidecar gets the same answer
//! - a body is used only if it may be used for calls: the same function reads it

use super::canary::{self, Ratio};
use super::{Directory, LeftOut, NOT_PASSING, Offer, bodies};
use crate::consul::{Error, Instance, Poll};
use crate::contract::{Compiled, ContractId, Range};
use crate::telemetry::log::Chain;
use std::collections::HashMap;
use std::sync::Arc;

/// One contract and its instances at one moment.
#[derive(Debug)]
pub struct Survey {
    pub id: ContractId,
    pub offers: Vec<Offer>,
    /// The instances that are registered and cannot be called.
    pub left_out: Vec<LeftOut>,
}

impl Survey {
    /// Says whether Consul lists any instance.
    pub fn has_instances(&self) -> bool {
        !self.offers.is_empty() || !self.left_out.is_empty()
    }
}

impl Directory {
    /// Looks at one contract.
    pub async fn survey(&self, id: &ContractId) -> Result<Survey, Error> {
        let service = self.client.layout().service(id.as_str());
        let instances = self.client.health(&service, Poll::CONSISTENT).await?;
        let mut survey = Survey {
            id: id.clone(),
            offers: Vec::new(),
            left_out: Vec::new(),
        };
        for instance in instances.value.into_iter().map(Arc::new) {
            let reason = match instance.passing {
                false => NOT_PASSING.to_owned(),
                true => match self.contract_of(id, &instance).await {
                    Ok(contract) => {
                        survey.offers.push(Offer { instance, contract });
                        continue;
                    }
                    // A refusal says all by itself; only what could not be read has a cause.
                    Err(error) if error.is_untrusted() => error.to_string(),
                    Err(error) => Chain(&error).to_string(),
                },
            };
            let instance = instance.id.clone();
            survey.left_out.push(LeftOut { instance, reason });
        }
        Ok(survey)
    }

    /// Reads the canary ratios as they are written now, by contract.
    pub async fn written_ratios(&self) -> Result<HashMap<String, Ratio>, Error> {
        let prefix = self.client.layout().canaries();
        let entries = self.client.kv_list(&prefix, Poll::CONSISTENT).await?.value;
        Ok(canary::written(&entries, &prefix))
    }

    /// Says whether a body of the contract is published.
    pub async fn is_published(&self, id: &ContractId) -> Result<bool, Error> {
        let prefix = self.client.layout().bodies(id.as_str());
        let keys = self.client.kv_keys(&prefix, Poll::CONSISTENT).await?;
        Ok(!keys.value.is_empty())
    }

    /// Lists the contracts that the index names, in order.
    pub async fn indexed(&self) -> Result<Vec<ContractId>, Error> {
        self.named_below(&self.client.layout().indexes()).await
    }

    /// Lists the minors of a range that the index names, in order.
    pub async fn indexed_in(&self, range: &Range) -> Result<Vec<ContractId>, Error> {
        let prefix = self.client.layout().minors(range.family(), range.major());
        self.named_below(&prefix).await
    }

    async fn named_below(&self, prefix: &str) -> Result<Vec<ContractId>, Error> {
        let keys = self.client.kv_keys(prefix, Poll::CONSISTENT).await?.value;
        let names = keys.iter().filter_map(|key| key.rsplit('/').next());
        // What is no id, as the key that keeps the prefix from being empty, is nobody's contract.
        let mut ids: Vec<ContractId> = names.filter_map(|name| name.parse().ok()).collect();
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Returns the contract that an instance serves, as far as it may be used.
    async fn contract_of(
        &self,
        id: &ContractId,
        instance: &Instance,
    ) -> Result<Arc<Compiled>, bodies::Error> {
        bodies::compiled(self, id, &bodies::named(id, instance)?).await
    }
}
