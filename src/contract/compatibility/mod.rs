//! Whether a new contract may take the place of an old one.
//!
//! Nobody who keeps to the old contract may be hurt: every input the old schema accepts is
//! accepted by the new one, every output the new one allows was allowed by the old one, and no
//! limit got tighter. Fallbacks, retries, probes, tags and prose may change freely.

mod constraints;
mod report;

pub use report::{Comparison, Finding, Side, Verdict};

use super::Contract;

/// Finds what the new contract takes from those who rely on the old one.
pub fn compare(old: &Contract, new: &Contract) -> Comparison {
    let mut findings = constraints::findings(old, new);
    for (side, place, was, is) in [
        (
            Side::Input,
            "/input_schema",
            &old.input_schema,
            &new.input_schema,
        ),
        (
            Side::Output,
            "/output_schema",
            &old.output_schema,
            &new.output_schema,
        ),
    ] {
        if was != is {
            findings.push(Finding {
                verdict: Verdict::Undecided,
                side,
                pointer: place.to_owned(),
                message: "the schemas differ".to_owned(),
            });
        }
    }
    Comparison::of(findings)
}
