//! The sums of calls and tasks, kept in step with the reports.

use super::{millis, state};
use crate::collector::attempt::{Attempt, CallSummary, Told, attempts};
use crate::task::{Reporter, State};
use rusqlite::{Connection, OptionalExtension, Row, params};

/// Writes the sum of a call; returns the applications of attempts whose chain broke just now.
pub(super) fn put_call(
    connection: &Connection,
    call: &CallSummary,
    told: &[Told],
) -> rusqlite::Result<Vec<String>> {
    let broken: Vec<String> = attempts(told)
        .iter()
        .filter(|attempt| !attempt.breaks().is_empty())
        .map(|attempt| callee_application(attempt).to_owned())
        .collect();
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

fn callee_application<'a>(attempt: &Attempt<'a>) -> &'a str {
    let callee = attempt.by(Reporter::Callee);
    &callee.unwrap_or(attempt.decisive).application
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
    // An application's own word may come any time after its task has ended.
    let counts = call.by_sidecar || root.is_none();
    let ended_at = call.ended_at.filter(|_| counts);
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
             (task_id, state, agent, application, sla_level, degraded, started_at, latest_end, ended_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6,
             (SELECT min(started_at) FROM calls WHERE task_id = ?1),
             iif(?9, 0, ?7), iif(?8, NULL, ?7))
         ON CONFLICT (task_id) DO UPDATE SET
             state = ?2, agent = ?3, application = ?4, sla_level = ?5,
             degraded = degraded OR ?6, started_at = excluded.started_at,
             latest_end = iif(?9, latest_end, max(latest_end, ?7)),
             ended_at = iif(?8, NULL, max(latest_end, ?7))",
    )?;
    statement.execute(params![
        task,
        state.unwrap_or(call.state).as_str(),
        agent,
        application,
        sla_level,
        call.degraded,
        ended_at.map_or(0, millis),
        is_open,
        // A mark gives way, and so must its time.
        call.is_marked,
    ])?;
    Ok(())
}

const ROOTS: &str = "FROM calls INDEXED BY calls_roots WHERE task_id = ?1 AND is_root";
const CALLS: &str = "FROM calls INDEXED BY calls_of_task WHERE task_id = ?1";

fn state_at(connection: &Connection, sql: &str, task_id: &str) -> rusqlite::Result<Option<State>> {
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row([task_id], |row| state(row, 0));
    found.optional()
}
