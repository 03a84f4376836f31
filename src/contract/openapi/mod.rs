//! Contracts as OpenAPI documents: read from those of others, written for those who ask.
//!
//! A document of OpenAPI 3.1 or 3.0 becomes native contracts, which are then read and judged as
//! if they had been written so. Schemas end up in draft 2020-12 and hold all they refer to.
//!
//! - what changes or loses meaning is a warning, what cannot be carried a fault; both name the
//!   place in the document
//! - nothing but the document is read, and reading it is bounded in size, depth and work
//! - a contract that was written by `Description` and is read back has the same digest
//! - elsewhere: how a contract says the same natively (`read`), who serves the document (`proxy`)

mod budget;
mod convert;
mod describe;
mod document;
mod draft;
mod embed;
mod gather;
mod operation;
mod origin;
mod parts;

use http::Method;
use serde::Deserialize;
use serde::de::IgnoredAny;

pub use describe::Description;
pub use draft::Draft;
pub use origin::Origins;
pub use parts::{parameters, problem_response, responses};

use super::{Compiled, Contract, Problem, Problems};
use budget::Budget;
use document::Document;
use operation::Operation;

/// A contract from a document, with the route that the document gives it.
#[derive(Debug)]
pub struct Imported {
    pub contract: Contract,
    pub method: Method,
    pub path: String,
    pub warnings: Problems,
}

impl Imported {
    /// Reads a draft and compiles its schemas, so that all faults are told where they are.
    fn of(draft: Draft) -> Result<Self, Problems> {
        let contract = draft.contract()?;
        let compiled = Compiled::new(contract.clone());
        compiled.map_err(|problems| draft.origins.all_placed(problems))?;
        Ok(Self {
            contract,
            method: draft.method,
            path: draft.path,
            warnings: draft.warnings,
        })
    }
}

/// Which of a document's contracts is meant.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// By its id, if that is known.
    pub agent: Option<&'a str>,
    /// Else by the route it is served at.
    pub method: &'a str,
    pub path: &'a str,
}

/// Answers whether the bytes mean to be an OpenAPI document: JSON with `openapi` at its root.
pub fn is_document(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Root {
        openapi: Option<IgnoredAny>,
        swagger: Option<IgnoredAny>,
    }
    serde_json::from_slice::<Root>(body)
        .is_ok_and(|root| root.openapi.is_some() || root.swagger.is_some())
}

/// Reads every contract of a document; the faults of all are told together.
pub fn read(body: &[u8]) -> Result<Vec<Imported>, Problems> {
    let mut problems = Problems::default();
    let mut imported = Vec::new();
    for draft in drafts(body)? {
        match Imported::of(draft) {
            Ok(one) => imported.push(one),
            Err(faults) => problems.extend(faults),
        }
    }
    problems.or(imported)
}

/// Reads the one contract that is wanted; others may have faults.
pub fn read_one(body: &[u8], wanted: &Wanted<'_>) -> Result<Imported, Problems> {
    let document = Document::read(body)?;
    let operations = operation::list(&document)?;
    let (operation, strange) = pick(&document, &operations, wanted)?;
    let mut draft = Draft::of(&document, operation, &mut Budget::default());
    draft.warnings.extend(strange);
    Imported::of(draft)
}

/// Carries over every contract of a document, without reading the result.
pub fn drafts(body: &[u8]) -> Result<Vec<Draft>, Problems> {
    let document = Document::read(body)?;
    let operations = operation::list(&document)?;
    let mut budget = Budget::default();
    let drafts = operations.iter();
    Ok(drafts
        .map(|operation| Draft::of(&document, operation, &mut budget))
        .collect())
}

/// Picks by id, else by route, else the only one, which is then told.
fn pick<'o, 'd>(
    document: &'d Document,
    operations: &'o [Operation<'d>],
    wanted: &Wanted<'_>,
) -> Result<(&'o Operation<'d>, Option<Problem>), Problem> {
    let routes = || {
        let routes = operations.iter().map(|operation| {
            let id = operation.id().unwrap_or("without id");
            format!("{} {} ({id})", operation.method, operation.path)
        });
        routes.collect::<Vec<_>>().join(", ")
    };
    if let Some(agent) = wanted.agent {
        let found = operations
            .iter()
            .find(|operation| operation.id() == Some(agent));
        return found.map(|operation| (operation, None)).ok_or_else(|| {
            let what = format!("no operation is the contract {agent}");
            Problem::new(
                "no-contract",
                "/paths",
                what,
                format!("there are {}", routes()),
            )
        });
    }
    let is_there = |operation: &&Operation<'_>| {
        let mut bases = operation.bases(document);
        let fits = |base: &str| wanted.path.strip_prefix(base) == Some(operation.path);
        operation.method == wanted.method && (fits("") || bases.any(fits))
    };
    if let Some(operation) = operations.iter().find(is_there) {
        return Ok((operation, None));
    }
    let what = format!("no contract is at {} {}", wanted.method, wanted.path);
    match operations {
        [only] => {
            let remedy = format!("the document's only one is taken, {}", routes());
            let strange = Problem::new("route", only.at.as_str(), what, remedy);
            Ok((only, Some(strange)))
        }
        _ => {
            let remedy = format!("configure one of {}", routes());
            Err(Problem::new("no-contract", "/paths", what, remedy))
        }
    }
}

#[cfg(test)]
mod tests;
