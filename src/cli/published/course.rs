//! How publishing the contracts of one file went, and how that is told.

use serde_json::{Value, json};

use crate::admission::publication::{Change, Conflict, Doubt, Pointed, Publication};
use crate::cli::exit::{Exit, Failure};
use crate::cli::{OutputArgs, output};
use crate::contract::Contract;
use crate::contract::trust::MOST_SIGNATURES;

/// What was done for one contract.
pub(super) struct Done<'c> {
    pub(super) contract: &'c Contract,
    pub(super) publication: Publication,
    pub(super) pointed: Pointed,
    /// Fallbacks that may not be able to stand in.
    pub(super) doubts: Vec<Doubt>,
}

/// How the contracts of one file fared, up to the first that could not be published.
pub(super) struct Course<'c> {
    pub(super) done: Vec<Done<'c>>,
    pub(super) stopped: Option<Stop<'c>>,
}

/// What was met at one contract; those after it were not tried.
pub(super) struct Stop<'c> {
    pub(super) at: &'c Contract,
    pub(super) later: &'c [Contract],
    pub(super) why: Why,
}

pub(super) enum Why {
    Breaking(Vec<Conflict>),
    /// Its body is not there.
    Unpublished(Failure),
    /// Its body is there, and version or index do not say so.
    Unfinished(Failure),
}

/// Tells what was done, then what could not be.
pub(super) fn tell(course: Course<'_>, format: OutputArgs) -> Result<Exit, Failure> {
    let Course { done, stopped } = course;
    done.iter().for_each(warn);
    let published: Vec<_> = done.iter().map(as_json).collect();
    if !format.is_json() {
        done.iter().for_each(|done| output::line(&line(done)));
    } else if let Some(Why::Breaking(conflicts)) = stopped.as_ref().map(|stop| &stop.why) {
        let refused: Vec<_> = conflicts.iter().map(told).collect();
        output::json(&json!({ "published": published, "refused": refused }));
    } else if stopped.is_none() || !published.is_empty() {
        output::json(&published.into());
    }
    let Some(Stop { at, later, why }) = stopped else {
        let is_whole = done.iter().all(|done| done.publication.left_out == 0);
        return Ok(output::verdict(is_whole));
    };
    let ended = match why {
        Why::Breaking(conflicts) => {
            if !format.is_json() {
                refuse(&conflicts);
            }
            let remedy = "raise the major, or publish with --allow-breaking";
            output::talk(&format!("{} was not published; {remedy}", name(at)));
            Ok(Exit::Negative)
        }
        Why::Unpublished(failure) => {
            output::talk(&format!("{} was not published", name(at)));
            Err(failure)
        }
        Why::Unfinished(failure) => {
            let remedy = "publish it again to make it the current version";
            output::talk(&format!("{} is published, no more; {remedy}", name(at)));
            Err(failure)
        }
    };
    if !later.is_empty() {
        let names: Vec<_> = later.iter().map(name).collect();
        output::talk(&format!("not tried: {}", names.join(", ")));
    }
    ended
}

fn name(contract: &Contract) -> String {
    format!("{} {}", contract.id, contract.version)
}

fn as_json(done: &Done<'_>) -> Value {
    let (body, signatures_added) = match done.publication.change {
        Change::Created => ("published", 0),
        Change::Signed(added) => ("signed", added),
        Change::None => ("unchanged", 0),
    };
    let neighbours = &done.publication.neighbours;
    json!({
        "agent": done.contract.id.as_str(),
        "version": done.contract.version.to_string(),
        "digest": done.contract.digest().to_string(),
        "body": body,
        "signatures_added": signatures_added,
        "signatures_left_out": done.publication.left_out,
        "current": done.pointed.current.to_string(),
        // What it breaks all the same.
        "allowed": neighbours.conflicts.iter().map(told).collect::<Vec<_>>(),
        "passed_over": neighbours.passed_over,
        "pointer_replaced": done.pointed.replaced,
        "fallbacks_in_doubt": done.doubts.iter().map(doubted).collect::<Vec<_>>(),
    })
}

fn doubted(doubt: &Doubt) -> Value {
    json!({"fallback": doubt.fallback.as_str(), "why": doubt.why})
}

fn told(conflict: &Conflict) -> Value {
    json!({
        "older": conflict.older,
        "newer": conflict.newer,
        "verdict": conflict.comparison.verdict(),
        "findings": conflict.comparison.findings,
        "left_out": conflict.comparison.left_out,
    })
}

fn line(done: &Done<'_>) -> String {
    let body = match done.publication.change {
        Change::Created => "published".to_owned(),
        Change::Signed(added) => format!("{added} signatures added"),
        Change::None => "is published already".to_owned(),
    };
    let (name, digest) = (name(done.contract), done.contract.digest());
    format!(
        "{name}: {body}; current is {}; {digest}",
        done.pointed.current
    )
}

fn warn(done: &Done<'_>) {
    let Publication {
        neighbours,
        left_out,
        ..
    } = &done.publication;
    for passed_over in &neighbours.passed_over {
        let passed_over = output::plain(passed_over);
        output::talk(&format!(
            "warning: could not be compared with {passed_over}"
        ));
    }
    if !neighbours.conflicts.is_empty() {
        let name = name(done.contract);
        output::talk(&format!(
            "warning: {name} is not compatible with its neighbours, as allowed"
        ));
    }
    for Doubt { fallback, why } in &done.doubts {
        let told = format!("warning: the fallback {fallback} may be of no use: {why}");
        output::talk(&output::plain(&told));
    }
    if let Some(found) = &done.pointed.replaced {
        let id = &done.contract.id;
        let told = format!(
            "warning: the version pointer of {id} held {found:?}, which is none of its versions; \
             it was replaced"
        );
        output::talk(&output::plain(&told));
    }
    if *left_out > 0 {
        output::talk(&format!(
            "signatures left out: {left_out}; a contract bears {MOST_SIGNATURES} at the most, and \
             none that is published is dropped"
        ));
    }
}

fn refuse(conflicts: &[Conflict]) {
    for conflict in conflicts {
        let (older, newer) = (&conflict.older, &conflict.newer);
        let verdict = conflict.comparison.verdict().as_str();
        output::line(&format!("from {older} to {newer}: {verdict}"));
        for difference in conflict.differences() {
            output::line(&format!("  {}", output::plain(&difference)));
        }
        if conflict.comparison.left_out > 0 {
            output::line(&format!("  and {} more", conflict.comparison.left_out));
        }
    }
}
