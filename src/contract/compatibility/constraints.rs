//! Limits under which a capability works: which changes take something from its callers.

use super::report::{Finding, Side, Verdict};
use crate::contract::{Constraints, Contract};

/// The most text of a list that one message shows, in characters.
const MOST_SHOWN: usize = 200;

/// Compares everything but the two schemas.
pub fn findings(old: &Contract, new: &Contract) -> Vec<Finding> {
    let limits = limits(&old.constraints, &new.constraints);
    let repeats = (old.idempotent && !new.idempotent).then(|| {
        let message =
            "was true, is now false: callers that repeat a call may have it carried out twice";
        breaking("/idempotent", message.to_owned())
    });
    limits.into_iter().chain(repeats).collect()
}

fn limits(old: &Constraints, new: &Constraints) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (was, is) = (old.timeout.as_millis(), new.timeout.as_millis());
    if is > was {
        let message = format!("was {was}, is now {is}: callers wait longer for an answer");
        findings.push(breaking("/constraints/timeout_ms", message));
    }
    let (was, is) = (old.max_concurrent, new.max_concurrent);
    if is < was {
        let message = format!("was {was}, is now {is}: fewer calls may run at once");
        findings.push(breaking("/constraints/max_concurrent", message));
    }
    let regions = taken_away(&old.region_support, &new.region_support, "everywhere");
    findings.extend(regions.map(|message| breaking("/constraints/region_support", message)));
    let offsets = taken_away(&old.utc_offsets, &new.utc_offsets, "any");
    findings.extend(offsets.map(|message| breaking("/constraints/utc_offsets", message)));
    findings
}

/// Says what a list no longer holds; an empty list holds everything.
fn taken_away(old: &[String], new: &[String], all: &str) -> Option<String> {
    if new.is_empty() {
        return None;
    }
    if old.is_empty() {
        return Some(format!("was {all}, is now only {}", shown(new)));
    }
    let lost: Vec<String> = old
        .iter()
        .filter(|entry| !new.contains(entry))
        .cloned()
        .collect();
    (!lost.is_empty()).then(|| format!("no longer holds {}", shown(&lost)))
}

fn shown(entries: &[String]) -> String {
    let text = entries.join(", ");
    match text.char_indices().nth(MOST_SHOWN) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn breaking(pointer: &str, message: String) -> Finding {
    Finding {
        verdict: Verdict::Breaking,
        side: Side::Constraints,
        pointer: pointer.to_owned(),
        message,
    }
}
