//! Whether a new contract may take the place of an old one.
//!
//! Nobody who keeps to the old contract may be hurt: every input the old schema accepts is
//! accepted by the new one, every output the new one allows was allowed by the old one, no named
//! member goes, and no limit gets tighter. Fallbacks, retries, probes, tags and prose are free.
//!
//! - only *declared* members count, of the side whose values are judged: at each place those its
//!   schemas list, require, imply or match by a pattern, in whatever branch. Where nothing is
//!   listed, or members not listed have a schema of their own, any name counts
//! - compatible is said only where it is certain; what is not modelled is undecided
//! - work is bounded; what takes more is undecided
//! - elsewhere: what one contract has wrong by itself (`lint`), who may publish (`admission`)

mod array;
mod branch;
mod combination;
mod constraints;
mod instance;
mod names;
mod node;
mod number;
mod object;
mod piece;
mod quantity;
mod removal;
mod report;
mod same;
mod subset;
mod text;
mod wording;
mod work;

use serde_json::Value;

pub use report::{Comparison, Finding, Side, Verdict};

use super::Contract;
use node::Source;
use subset::{Subset, doubt};

/// Finds what the new contract takes from those who rely on the old one.
pub fn compare(old: &Contract, new: &Contract) -> Comparison {
    let mut findings = constraints::findings(old, new);
    findings.extend(schemas(old, new, Names::Stay));
    Comparison::of(findings)
}

/// Finds what keeps a fallback from answering calls of the first: inputs that it does not take,
/// and outputs that the first's callers do not expect.
///
/// Members that it does not name are no loss: it gets the input as it is, and may leave out what
/// the first may leave out.
pub fn stand_in(first: &Contract, fallback: &Contract) -> Comparison {
    Comparison::of(schemas(first, fallback, Names::MayGo))
}

/// Whether a member that the old contract names has to be named by the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Stay,
    MayGo,
}

fn schemas(old: &Contract, new: &Contract, names: Names) -> Vec<Finding> {
    let (inputs, outputs) = (
        (&old.input_schema, &new.input_schema),
        (&old.output_schema, &new.output_schema),
    );
    let mut findings = of_side(Side::Input, inputs, names);
    findings.extend(of_side(Side::Output, outputs, names));
    findings
}

fn of_side(side: Side, (old, new): (&Value, &Value), names: Names) -> Vec<Finding> {
    if old == new {
        return Vec::new();
    }
    let root = match side {
        Side::Output => "/output_schema",
        Side::Input | Side::Constraints => "/input_schema",
    };
    let finding = |verdict, pointer: String, message| Finding {
        verdict,
        side,
        pointer: format!("{root}{pointer}"),
        message,
    };
    let (old, new) = (Source::of(old), Source::of(new));
    let (old, new) = (old.root(), new.root());
    let mut subset = Subset::new(side);
    let (sub, sup) = match side {
        Side::Output => (new, old),
        Side::Input | Side::Constraints => (old, new),
    };
    let mut issues = subset.subset(&[sub], sup);
    if subset.work.is_spent() {
        // What was left out may have been the reason against.
        issues.iter_mut().for_each(doubt);
    }
    let removed = match names {
        Names::Stay => removal::removed(&subset.work, side, old, new),
        Names::MayGo => Vec::new(),
    };
    let at = issues.iter().map(|issue| issue.at);
    let at: Vec<_> = at.chain(removed.iter().map(|(part, _)| *part)).collect();
    let places = node::places(&at);
    let mut findings: Vec<Finding> = issues
        .into_iter()
        .map(|issue| {
            let pointer = issue.at.pointer(&places, &issue.steps);
            finding(issue.verdict, pointer, issue.message)
        })
        .collect();
    findings.extend(
        removed
            .into_iter()
            .map(|(part, message)| finding(Verdict::Breaking, part.pointer(&places, &[]), message)),
    );
    if subset.work.is_spent() {
        let message = "cannot be decided: the schemas are too large to compare";
        findings.push(finding(
            Verdict::Undecided,
            String::new(),
            message.to_owned(),
        ));
    }
    findings
}

#[cfg(test)]
mod tests;
