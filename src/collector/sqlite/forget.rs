//! Forgetting what is past its retention, in small transactions.

use super::millis;
use crate::task::Timestamp;
use rusqlite::{Connection, params};

/// Tasks and calls that one transaction forgets.
const FORGOTTEN_TASKS: i64 = 100;
const FORGOTTEN_CALLS: i64 = 500;

/// Forgets calls that began before `cutoff`; returns whether there may be more.
pub(super) fn forget(connection: &Connection, cutoff: Timestamp) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached(
        "SELECT task_id FROM tasks WHERE started_at < ?1 ORDER BY started_at LIMIT ?2",
    )?;
    let found = statement.query_map(params![millis(cutoff), FORGOTTEN_TASKS], |row| row.get(0))?;
    let tasks = found.collect::<rusqlite::Result<Vec<String>>>()?;
    let mut left = FORGOTTEN_CALLS;
    for task_id in &tasks {
        let mut statement = connection.prepare_cached(
            "SELECT call_id FROM calls WHERE task_id = ?1 AND started_at < ?2
             ORDER BY started_at LIMIT ?3",
        )?;
        let calls =
            statement.query_map(params![task_id, millis(cutoff), left], |row| row.get(0))?;
        let calls = calls.collect::<rusqlite::Result<Vec<String>>>()?;
        for call_id in &calls {
            forget_call(connection, call_id)?;
        }
        left -= calls.len() as i64;
        if left == 0 {
            return Ok(true);
        }
        // A task that goes on keeps what is young enough.
        connection
            .prepare_cached(
                "UPDATE tasks SET started_at = (SELECT min(started_at) FROM calls WHERE task_id = ?1)
                 WHERE task_id = ?1 AND EXISTS (SELECT 1 FROM calls WHERE task_id = ?1)",
            )?
            .execute([task_id])?;
        connection
            .prepare_cached("DELETE FROM tasks WHERE task_id = ?1 AND started_at < ?2")?
            .execute(params![task_id, millis(cutoff)])?;
    }
    Ok(tasks.len() as i64 == FORGOTTEN_TASKS)
}

fn forget_call(connection: &Connection, call_id: &str) -> rusqlite::Result<()> {
    for sql in [
        "DELETE FROM conflicts WHERE report IN (SELECT id FROM reports WHERE call_id = ?1)",
        "DELETE FROM reports WHERE call_id = ?1",
        "DELETE FROM calls WHERE call_id = ?1",
    ] {
        connection.prepare_cached(sql)?.execute([call_id])?;
    }
    Ok(())
}
