//! The sums of calls and tasks, kept in step with the reports.

use super::{millis, state};
use crate::collector::attempt::{CallSummary, Told};
use crate::collector::book::broken;
use crate::task::State;
use rusqlite::{Connection, OptionalExtension, Row, params};

/// Writes the sum of a call; returns the applications of attempts whose chain broke just now.
pub(super) fn put_call(
    connection: &Connection,
    call: &CallSummary,
    told: &[Told],
) -> rusqlite::Result<Vec<String>> {
    let broken = broken(told);
    let mut statement = connection.prepare_cached("SELECT breaks FROM calls WHERE call_id = ?1")?;
    let id = call.call_id.as_str();
    let before: Option<usize> = statement
        .query_row([id], |row| row.get::<_, i64>(0))
        .optional()?
        .and_then(|count| usize::try_from(count).ok());
    let mut statement = connection.prepare_cached(
        "INSERT INTO calls (call_id, task_id, state, started_at, ended_at, deadline_at, is_root,
             agent, application, sla_level, breaks, by_sidecar, marked)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
         ON CONFLICT (call_id) DO UPDATE SET
             state = ?3, started_at = ?4, ended_at = ?5, deadline_at = ?6, is_root = ?7,
             agent = ?8, application = ?9, sla_level = ?10, breaks = ?11,
             by_sidecar = ?12, marked = ?13",
    )?;
    statement.execute(params![
        id,
        call.task_id.as_str(),
        call.state.as_str(),
        millis(call.started_at),
        call.ended_at.map(millis),
        millis(call.deadline_at),
        call.is_root(),
        call.agent,
        call.application,
        call.sla_level.as_str(),
        broken.len() as i64,
        call.by_sidecar,
        call.is_marked,
    ])?;
    Ok(broken.into_iter().skip(before.unwrap_or(0)).collect())
}

/// Brings the sum of a task up to date with one of its calls.
///
/// Each question is the first entry of an index, however many calls the task has.
pub(super) fn put_task(connection: &Connection, call: &CallSummary) -> rusqlite::Result<()> {
    let task = call.task_id.as_str();
    let open = |by_sidecar: u8| {
        let sql = format!(
            "SELECT state FROM calls INDEXED BY calls_open
             WHERE task_id = ?1 AND by_sidecar = {by_sidecar} AND ended_at IS NULL
             ORDER BY started_at DESC, call_id DESC LIMIT 1"
        );
        state_at(connection, &sql, task)
    };
    let last = |which| {
        let sql = format!("SELECT state {which} ORDER BY started_at DESC, call_id DESC LIMIT 1");
        state_at(connection, &sql, task)
    };
    let root = last(ROOTS)?;
    let open = match (open(1)?, root) {
        // An application's own open step holds nothing open that a sidecar has seen end.
        (None, None) => open(0)?,
        (open, _) => open,
    };
    let is_open = open.is_some();
    let state = match open.or(root) {
        Some(state) => Some(state),
        // Without a root so far, the calls that are known stand in.
        None => last(CALLS)?,
    };
    let ended_at = match is_open {
        true => None,
        false => last_end(connection, task)?,
    };
    let first = |which| {
        let sql = format!(
            "SELECT agent, application, sla_level {which} ORDER BY started_at, call_id LIMIT 1"
        );
        let mut statement = connection.prepare_cached(&sql)?;
        let name = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        statement.query_row([task], name).optional()
    };
    let named: Option<(String, String, String)> =
        first(ROOTS)?.map_or_else(|| first(CALLS), |named| Ok(Some(named)))?;
    let (agent, application, sla_level) = named.unwrap_or_default();
    let mut statement = connection.prepare_cached(
        "INSERT INTO tasks
             (task_id, state, agent, application, sla_level, degraded, started_at, ended_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6,
             (SELECT min(started_at) FROM calls WHERE task_id = ?1), ?7)
         ON CONFLICT (task_id) DO UPDATE SET
             state = ?2, agent = ?3, application = ?4, sla_level = ?5,
             degraded = degraded OR ?6, started_at = excluded.started_at, ended_at = ?7",
    )?;
    statement.execute(params![
        task,
        state.unwrap_or(call.state).as_str(),
        agent,
        application,
        sla_level,
        call.degraded,
        ended_at,
    ])?;
    Ok(())
}

/// Reads when the last call of a task ended, as its calls say now; an application's own word may
/// come any time after that.
fn last_end(connection: &Connection, task_id: &str) -> rusqlite::Result<Option<i64>> {
    let last = |by_sidecar: u8| -> rusqlite::Result<Option<i64>> {
        let sql = format!(
            "SELECT max(ended_at) FROM calls INDEXED BY calls_ended
             WHERE task_id = ?1 AND by_sidecar = {by_sidecar} AND ended_at IS NOT NULL"
        );
        let mut statement = connection.prepare_cached(&sql)?;
        statement.query_row([task_id], |row| row.get(0))
    };
    last(1)?.map_or_else(|| last(0), |end| Ok(Some(end)))
}

const ROOTS: &str = "FROM calls INDEXED BY calls_roots WHERE task_id = ?1 AND is_root";
const CALLS: &str = "FROM calls INDEXED BY calls_of_task WHERE task_id = ?1";

fn state_at(connection: &Connection, sql: &str, task_id: &str) -> rusqlite::Result<Option<State>> {
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row([task_id], |row| state(row, 0));
    found.optional()
}
