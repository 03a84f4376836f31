//! The sums of calls and tasks, kept in step with the reports.
//!
//! The same questions as in SQLite (`sqlite/sums.rs`), asked for all tasks of a batch at once; each
//! is the first entry of an index, however many calls a task has.

use super::fault::Error;
use super::pool::Lease;
use super::write::{millis, storable};
use crate::collector::attempt::CallSummary;
use crate::task::Timestamp;
use std::collections::BTreeMap;

const PUT_CALLS: &str = "
    INSERT INTO hermes.calls (call_id, task_id, state, started_at, ended_at, deadline_at, is_root,
        by_sidecar, agent, application, sla_level, breaks, marked)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[],
        $6::bigint[], $7::boolean[], $8::boolean[], $9::text[], $10::text[], $11::text[],
        $12::bigint[], $13::boolean[])
    ON CONFLICT (call_id) DO UPDATE SET
        state = excluded.state, started_at = excluded.started_at, ended_at = excluded.ended_at,
        deadline_at = excluded.deadline_at, is_root = excluded.is_root,
        by_sidecar = excluded.by_sidecar, agent = excluded.agent,
        application = excluded.application, sla_level = excluded.sla_level,
        breaks = excluded.breaks, marked = excluded.marked
    WHERE calls.task_id = excluded.task_id";

const PUT_TASKS: &str = "
    UPDATE hermes.tasks SET
        state = sum.state, agent = sum.agent, application = sum.application,
        sla_level = sum.sla_level, degraded = tasks.degraded OR sum.degraded,
        started_at = sum.started_at,
        ended_at = CASE WHEN sum.is_open THEN NULL ELSE sum.last_end END
    FROM (
        SELECT of.task_id, of.degraded,
            -- An application's own open step holds nothing open that a sidecar has seen end.
            coalesce(open.state, root.state, own_open.state, last.state) AS state,
            open.state IS NOT NULL OR root.state IS NULL AND own_open.state IS NOT NULL AS is_open,
            coalesce(first_root.agent, first.agent) AS agent,
            coalesce(first_root.application, first.application) AS application,
            coalesce(first_root.sla_level, first.sla_level) AS sla_level,
            first.started_at,
            -- An application's own word may come any time after its task has ended.
            coalesce(ended.at, own_ended.at) AS last_end
        FROM unnest($1::text[], $2::boolean[]) AS of (task_id, degraded)
        JOIN LATERAL (
            SELECT agent, application, sla_level, started_at FROM hermes.calls
            WHERE calls.task_id = of.task_id ORDER BY started_at, call_id LIMIT 1
        ) AS first ON true
        JOIN LATERAL (
            SELECT state FROM hermes.calls
            WHERE calls.task_id = of.task_id ORDER BY started_at DESC, call_id DESC LIMIT 1
        ) AS last ON true
        LEFT JOIN LATERAL (
            SELECT agent, application, sla_level FROM hermes.calls
            WHERE calls.task_id = of.task_id AND is_root ORDER BY started_at, call_id LIMIT 1
        ) AS first_root ON true
        LEFT JOIN LATERAL (
            SELECT state FROM hermes.calls WHERE calls.task_id = of.task_id AND is_root
            ORDER BY started_at DESC, call_id DESC LIMIT 1
        ) AS root ON true
        LEFT JOIN LATERAL (
            SELECT state FROM hermes.calls
            WHERE calls.task_id = of.task_id AND by_sidecar AND ended_at IS NULL
            ORDER BY started_at DESC, call_id DESC LIMIT 1
        ) AS open ON true
        LEFT JOIN LATERAL (
            SELECT state FROM hermes.calls
            WHERE calls.task_id = of.task_id AND NOT by_sidecar AND ended_at IS NULL
            ORDER BY started_at DESC, call_id DESC LIMIT 1
        ) AS own_open ON true
        LEFT JOIN LATERAL (
            SELECT ended_at AS at FROM hermes.calls
            WHERE calls.task_id = of.task_id AND by_sidecar AND ended_at IS NOT NULL
            ORDER BY ended_at DESC LIMIT 1
        ) AS ended ON true
        LEFT JOIN LATERAL (
            SELECT ended_at AS at FROM hermes.calls
            WHERE calls.task_id = of.task_id AND NOT by_sidecar AND ended_at IS NOT NULL
            ORDER BY ended_at DESC LIMIT 1
        ) AS own_ended ON true
    ) AS sum
    WHERE tasks.task_id = sum.task_id";

/// Writes the sums of calls, each with the number of its chain breaks.
pub(super) async fn put_calls(
    lease: &mut Lease,
    calls: &[(CallSummary, usize)],
) -> Result<(), Error> {
    if calls.is_empty() {
        return Ok(());
    }
    let all = || calls.iter().map(|(call, _)| call);
    let texts = |of: fn(&CallSummary) -> &str| all().map(of).collect::<Vec<&str>>();
    let times = |of: fn(&CallSummary) -> Timestamp| all().map(of).map(millis).collect::<Vec<i64>>();
    let free = |of: fn(&CallSummary) -> &str| all().map(of).map(storable).collect::<Vec<_>>();
    let flags = |of: fn(&CallSummary) -> bool| all().map(of).collect::<Vec<bool>>();
    let ends: Vec<Option<i64>> = all().map(|call| call.ended_at.map(millis)).collect();
    let breaks: Vec<i64> = calls.iter().map(|(_, breaks)| *breaks as i64).collect();
    let statement = lease.prepared(PUT_CALLS).await?;
    let written = lease
        .client()
        .execute(
            &statement,
            &[
                &texts(|call| call.call_id.as_str()),
                &texts(|call| call.task_id.as_str()),
                &texts(|call| call.state.as_str()),
                &times(|call| call.started_at),
                &ends,
                &times(|call| call.deadline_at),
                &flags(CallSummary::is_root),
                &flags(|call| call.by_sidecar),
                &free(|call| &call.agent),
                &free(|call| &call.application),
                &texts(|call| call.sla_level.as_str()),
                &breaks,
                &flags(|call| call.is_marked),
            ],
        )
        .await?;
    // One that another task has taken meanwhile stays as it is: to be looked at again.
    match written as usize == calls.len() {
        true => Ok(()),
        false => Err(Error::Contended),
    }
}

/// Brings the sums of the tasks up to date with these calls.
pub(super) async fn put_tasks(
    lease: &mut Lease,
    calls: &[(CallSummary, usize)],
) -> Result<(), Error> {
    // Whether any of the batch's calls is degraded, by task.
    let mut tasks: BTreeMap<&str, bool> = BTreeMap::new();
    for (call, _) in calls {
        *tasks.entry(call.task_id.as_str()).or_default() |= call.degraded;
    }
    if tasks.is_empty() {
        return Ok(());
    }
    let statement = lease.prepared(PUT_TASKS).await?;
    let ids: Vec<&str> = tasks.keys().copied().collect();
    let degraded: Vec<bool> = tasks.values().copied().collect();
    lease
        .client()
        .execute(&statement, &[&ids, &degraded])
        .await?;
    Ok(())
}
