//! Forgetting what is past its retention, in small transactions and by one collector at a time.

use super::fault::Error;
use super::pool::Lease;
use super::write::millis;
use crate::task::Timestamp;

/// Held by whoever forgets: "HeCo" and "fgt".
const LOCK: i64 = 0x4865_436F_0066_6774;

/// Tasks and calls that one transaction forgets.
const FORGOTTEN_TASKS: i64 = 100;
const FORGOTTEN_CALLS: i64 = 500;

const TRY_LOCK: &str = "SELECT pg_try_advisory_xact_lock($1)";

/// Tasks of which reports are being taken are left for the next round.
const OLD: &str = "
    SELECT task_id FROM hermes.tasks WHERE started_at < $1
    ORDER BY started_at LIMIT $2 FOR UPDATE SKIP LOCKED";

const FORGET_CALLS: &str = "
    WITH old AS (
        DELETE FROM hermes.calls WHERE call_id IN (
            SELECT call_id FROM hermes.calls
            WHERE task_id = ANY ($1::text[]) AND started_at < $2 LIMIT $3)
        RETURNING call_id
    ), told AS (
        DELETE FROM hermes.reports WHERE call_id IN (SELECT call_id FROM old)
    ), conflicting AS (
        DELETE FROM hermes.conflicts WHERE call_id IN (SELECT call_id FROM old)
    )
    SELECT count(*) FROM old";

/// A task that goes on keeps what is young enough.
const KEEP_YOUNG: &str = "
    UPDATE hermes.tasks SET started_at = young.started_at
    FROM (
        SELECT task_id, min(started_at) AS started_at FROM hermes.calls
        WHERE task_id = ANY ($1::text[]) GROUP BY task_id
    ) AS young
    WHERE tasks.task_id = young.task_id";

const FORGET_TASKS: &str = "
    DELETE FROM hermes.tasks WHERE task_id = ANY ($1::text[])
        AND NOT EXISTS (SELECT FROM hermes.calls WHERE calls.task_id = tasks.task_id)";

/// Forgets calls that began before `cutoff`; returns whether there may be more.
pub(super) async fn forget(lease: &mut Lease, cutoff: Timestamp) -> Result<bool, Error> {
    let transaction = lease.transaction().await?;
    let cutoff = millis(cutoff);
    let is_mine: bool = transaction
        .query_one(TRY_LOCK, &[&LOCK])
        .await?
        .try_get(0)?;
    if !is_mine {
        transaction.rollback().await?;
        return Ok(false);
    }
    let found = transaction.query(OLD, &[&cutoff, &FORGOTTEN_TASKS]).await?;
    let tasks: Result<Vec<String>, _> = found.iter().map(|row| row.try_get(0)).collect();
    let tasks = tasks?;
    let calls = transaction
        .query_one(FORGET_CALLS, &[&tasks, &cutoff, &FORGOTTEN_CALLS])
        .await?;
    let calls: i64 = calls.try_get(0)?;
    transaction.execute(KEEP_YOUNG, &[&tasks]).await?;
    transaction.execute(FORGET_TASKS, &[&tasks]).await?;
    transaction.commit().await?;
    Ok(calls == FORGOTTEN_CALLS || tasks.len() as i64 == FORGOTTEN_TASKS)
}
