//! For whom the sender of reports may speak.

use super::board::unavailable;
use super::{Desk, Refusal, refused};
use crate::collector::attempt::Told;
use crate::collector::ingest::Parsed;
use crate::task::{Problem, Reporter};
use crate::telemetry::metrics::Received;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::timeout;

/// For all that one body makes us ask of Consul.
const SERVES_WITHIN: Duration = Duration::from_secs(5);

/// Takes out the reports that speak for another application than the one that sends them: in its
/// name, or as the callee of a contract that it does not serve.
pub(super) async fn hold_to(desk: &Desk, caller: &str, parsed: &mut Parsed) -> Result<(), Refusal> {
    let all = parsed.taken.len() + parsed.rejected.len();
    let asked = timeout(SERVES_WITHIN, unserved(desk, caller, parsed)).await;
    let unserved = asked.unwrap_or_else(|_elapsed| {
        Err(unavailable(format!(
            "which contracts {caller} serves cannot be said now; send again"
        )))
    })?;
    let is_foreign = |told: &Told| {
        let report = &told.report;
        report.application != caller
            || report.reporter == Reporter::Callee && unserved.contains(&report.agent)
    };
    let foreign: Vec<_> = parsed
        .taken
        .extract_if(.., |(_, told)| is_foreign(told))
        .collect();
    let Some((_, first)) = foreign.first() else {
        return Ok(());
    };
    tracing::warn!(
        audit = true,
        caller,
        application = first.report.application,
        agent = first.report.agent,
        task.id = first.report.task_id.as_str(),
        reports = foreign.len(),
        "reports for another application were refused"
    );
    if foreign.len() == all {
        desk.metrics.received(Received::Rejected, all as u64);
        let detail = format!(
            "the certificate is for {caller}; it may report for no other, nor as the callee of a \
             contract that another serves"
        );
        return Err(Refusal::of(Problem::Forbidden, detail));
    }
    let reason = format!("the report is not of {caller}, whose certificate was shown");
    let rejected = foreign.iter().map(|(index, _)| refused(*index, &reason));
    parsed.rejected.extend(rejected);
    Ok(())
}

/// Names the contracts of which the callee is told of and which the caller does not serve.
async fn unserved(desk: &Desk, caller: &str, parsed: &Parsed) -> Result<BTreeSet<String>, Refusal> {
    let Some(board) = desk.board.get() else {
        return Ok(BTreeSet::new());
    };
    let reports = parsed.taken.iter().map(|(_, told)| &told.report);
    let as_callee = reports.filter(|report| report.reporter == Reporter::Callee);
    let agents: BTreeSet<&str> = as_callee.map(|report| report.agent.as_str()).collect();
    let mut unserved = BTreeSet::new();
    for agent in agents {
        match board.serves(agent, caller).await {
            Ok(true) => {}
            Ok(false) => drop(unserved.insert(agent.to_owned())),
            Err(reason) => {
                return Err(unavailable(format!(
                    "whether {caller} serves {agent} cannot be said now: {reason}; send again"
                )));
            }
        }
    }
    Ok(unserved)
}
