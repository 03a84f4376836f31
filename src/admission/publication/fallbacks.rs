//! Whether the fallbacks of a contract can stand in for it.
//!
//! A fallback gets the first contract's input, and its output goes to the first one's callers. One
//! that cannot take the place helps nobody when it is needed; that is told at publication, and
//! refused never: it may be published later, or be good enough for most calls.

use super::{Error, pointer, shelf};
use crate::apart;
use crate::consul::Client;
use crate::contract::compatibility::{self, Comparison, Verdict};
use crate::contract::{Contract, ContractId};
use crate::telemetry::log::Chain;
use std::fmt::Write;

/// How many fallbacks are looked at, in the order in which they would be called.
const MOST_FALLBACKS: usize = 16;
/// How many differences are told of one.
const MOST_TOLD: usize = 5;

/// A fallback that may not be able to stand in, and why.
#[derive(Debug)]
pub struct Doubt {
    pub fallback: ContractId,
    pub why: String,
}

/// Looks at the published fallbacks of a contract, in their current versions.
pub async fn doubts(client: &Client, contract: &Contract) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    for fallback in contract.fallback.iter().take(MOST_FALLBACKS) {
        let why = match current(client, fallback).await {
            Ok(published) => differs(contract.clone(), published).await,
            Err(why) => Some(why),
        };
        doubts.extend(why.map(|why| Doubt {
            fallback: fallback.clone(),
            why,
        }));
    }
    doubts
}

/// Reads the body that the version pointer names.
async fn current(client: &Client, id: &ContractId) -> Result<Contract, String> {
    let told = |error: Error| format!("it cannot be read: {}", Chain(&error));
    let version = pointer::named(client, id).await.map_err(told)?;
    let missing = || "it is not published".to_owned();
    let version = version.ok_or_else(missing)?;
    let book = shelf::read(client, id, &version).await.map_err(told)?;
    let read = book.ok_or_else(missing)?.contract_apart().await;
    read.map_err(|unusable| format!("its version {version} cannot be read: {unusable}"))
}

async fn differs(first: Contract, fallback: Contract) -> Option<String> {
    let version = fallback.version.clone();
    // Two schemas of the largest size keep a thread busy for a while.
    let compared = apart::run(move || compatibility::stand_in(&first, &fallback)).await;
    (compared.verdict() != Verdict::Compatible).then(|| told(&version.to_string(), &compared))
}

fn told(version: &str, compared: &Comparison) -> String {
    let verb = match compared.verdict() {
        Verdict::Breaking => "cannot",
        _ => "may not be able to",
    };
    let mut text = format!("its version {version} {verb} stand in for it: ");
    for (at, finding) in compared.findings.iter().take(MOST_TOLD).enumerate() {
        let comma = if at == 0 { "" } else { "; " };
        // Writing to a string cannot fail.
        write!(text, "{comma}{finding}").ok();
    }
    let more = compared.findings.len().saturating_sub(MOST_TOLD) + compared.left_out;
    if more > 0 {
        write!(text, "; and {more} more").ok();
    }
    text
}
