//! Reading the contracts this sidecar serves from files.

use super::Error;
use crate::config::ContractSource;
use crate::contract::openapi::Wanted;
use crate::contract::{self, Cache, Compiled};
use std::path::Path;
use std::sync::Arc;

/// Reads and compiles every contract file, in the order of `sources`; the first with faults ends
/// the start. A contract that the application hands out is nothing yet.
pub fn load(sources: &[ContractSource]) -> Result<Vec<Option<Arc<Compiled>>>, Error> {
    let (loaded, faults) = look(sources);
    match faults.into_iter().next() {
        Some((_, fault)) => Err(fault),
        None => Ok(loaded),
    }
}

/// What was loaded, and the faults with the numbers of their entries.
pub type Looked = (Vec<Option<Arc<Compiled>>>, Vec<(usize, Error)>);

/// Reads and compiles every contract file, and names all faults.
pub fn look(sources: &[ContractSource]) -> Looked {
    let cache = Cache::new();
    let mut loaded: Vec<Option<Arc<Compiled>>> = Vec::with_capacity(sources.len());
    let mut faults = Vec::new();
    for (at, source) in sources.iter().enumerate() {
        let read = source.file().map(|file| (file, read(file, source, &cache)));
        let contract = match read {
            None => None,
            Some((_, Err(fault))) => {
                faults.push((at, fault));
                None
            }
            Some((file, Ok(contract))) => {
                let id = &contract.contract.id;
                // Both would register under one id and undo each other.
                let mut others = loaded.iter().flatten();
                if others.any(|other| other.contract.id == *id) {
                    let (path, id) = (file.to_owned(), id.to_string());
                    faults.push((at, Error::ContractTwice { path, id }));
                }
                Some(contract)
            }
        };
        loaded.push(contract);
    }
    (loaded, faults)
}

fn read(file: &Path, source: &ContractSource, cache: &Cache) -> Result<Arc<Compiled>, Error> {
    let path = || file.to_owned();
    let bytes = std::fs::read(file).map_err(|source| Error::ReadContract {
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
    cache
        .compiled(&contract)
        .map_err(|problems| Error::Contract {
            path: path(),
            problems,
        })
}
