//! Reading the contracts this sidecar serves.

use super::Error;
use crate::admission::Ours;
use crate::config::ContractSource;
use crate::contract::openapi::Wanted;
use crate::contract::{self, Cache};
use std::sync::Arc;

/// Reads and compiles every contract file; the first with faults ends the start.
pub fn load(sources: &[ContractSource]) -> Result<Vec<Ours>, Error> {
    let cache = Cache::new();
    let mut loaded: Vec<Ours> = Vec::with_capacity(sources.len());
    for source in sources {
        let ours = read(source, &cache)?;
        let id = &ours.contract.contract.id;
        // Both would register under one id and undo each other.
        if loaded.iter().any(|other| other.contract.contract.id == *id) {
            return Err(Error::ContractTwice {
                path: source.file.clone(),
                id: id.to_string(),
            });
        }
        loaded.push(ours);
    }
    Ok(loaded)
}

fn read(source: &ContractSource, cache: &Cache) -> Result<Ours, Error> {
    let path = || source.file.clone();
    let bytes = std::fs::read(&source.file).map_err(|source| Error::ReadContract {
        path: path(),
        source,
    })?;
    let wanted = Wanted {
        agent: None,
        method: source.method.as_str(),
        path: &source.path,
    };
    let read = contract::from_file(&bytes, &wanted);
    let (contract, warnings) = read.map_err(|problems| Error::Contract {
        path: path(),
        problems: Arc::new(problems),
    })?;
    for warning in warnings {
        tracing::warn!(file = %path().display(), "from the OpenAPI document: {warning}");
    }
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
