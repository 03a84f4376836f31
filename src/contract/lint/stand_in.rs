//! Whether fallbacks that are judged together with a contract can stand in for it.

use super::Report;
use crate::contract::compatibility::{self, Finding, Side, Verdict};
use crate::contract::{Contract, Problem};

/// How many differences of one fallback are told.
const MOST_TOLD: usize = 5;

/// Finds, for each report, what keeps its fallbacks from standing in.
pub fn stand_ins(reports: &[Report<'_>]) -> Vec<Vec<Problem>> {
    let contracts = || reports.iter().filter_map(|report| report.contract.as_ref());
    let of = |first: &Contract| -> Vec<Problem> {
        let places = first.fallback.iter().enumerate();
        let found = places.flat_map(|(at, id)| {
            // Of several versions the highest is the one that will be called.
            let versions = contracts().filter(|other| other.id == *id);
            let fallback = versions.max_by(|a, b| a.version.cmp(&b.version));
            fallback.map_or_else(Vec::new, |fallback| differences(first, fallback, at))
        });
        found.collect()
    };
    let each = reports.iter().map(|report| report.contract.as_ref());
    each.map(|first| first.map_or_else(Vec::new, of)).collect()
}

fn differences(first: &Contract, fallback: &Contract, at: usize) -> Vec<Problem> {
    let compared = compatibility::stand_in(first, fallback);
    let findings = compared.findings.into_iter().take(MOST_TOLD);
    let problem = |finding: Finding| {
        let verb = match finding.verdict {
            Verdict::Breaking => "cannot",
            _ => "may not be able to",
        };
        // Inputs are drawn by the fallback's schema, outputs by that of the first.
        let whose = match finding.side {
            Side::Input | Side::Constraints => "its",
            Side::Output => "this contract's",
        };
        let message = format!(
            "the fallback {} {verb} stand in: {whose} {}: {}",
            fallback.id, finding.pointer, finding.message
        );
        let remedy = "let it take every input of this contract and give no other outputs";
        Problem::new(
            "fallback-schema",
            format!("/fallback/{at}"),
            message,
            remedy,
        )
    };
    findings.map(problem).collect()
}
