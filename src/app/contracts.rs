//! Reading the contracts this sidecar serves.

use super::Error;
use crate::admission::Ours;
use crate::config::ContractSource;
use crate::contract::{Cache, Contract};
use std::sync::Arc;

/// Reads and compiles every contract file; the first with faults ends the start.
pub fn load(sources: &[ContractSource]) -> Result<Vec<Ours>, Error> {
    let cache = Cache::new();
    sources.iter().map(|source| read(source, &cache)).collect()
}

fn read(source: &ContractSource, cache: &Cache) -> Result<Ours, Error> {
    let path = || source.file.clone();
    let bytes = std::fs::read(&source.file).map_err(|source| Error::ReadContract {
        path: path(),
        source,
    })?;
    let contract = Contract::from_slice(&bytes).map_err(|problems| Error::Contract {
        path: path(),
        problems: Arc::new(problems),
    })?;
    let contract = cache
        .compiled(&contract)
        .map_err(|problems| Error::Contract {
            path: path(),
            problems,
        })?;
    Ok(Ours {
        contract,
        route: format!("{} {}", source.method.as_str(), source.path),
    })
}
