//! The questions that are asked of the book.

use super::{millis, sla_level, state, timestamp};
use crate::collector::attempt::Told;
use crate::collector::book::{Due, MOST_CALLS, OpenCounts, Overdue, STALLED};
use crate::collector::list::{Filter, Page, TaskLine};
use crate::task::{Id, Report, StateAt, Timestamp};
use rusqlite::{Connection, params};

/// Rows that one query of a list looks at.
const WINDOW: usize = 20_000;

pub(super) fn load_call(connection: &Connection, call_id: &str) -> rusqlite::Result<Vec<Told>> {
    let mut statement = connection
        .prepare_cached("SELECT id, conflicts, detail, body FROM reports WHERE call_id = ?1")?;
    let mut rows = statement.query([call_id])?;
    let mut told = Vec::new();
    while let Some(row) = rows.next()? {
        let Ok(report) = serde_json::from_slice::<Report>(row.get_ref(3)?.as_bytes()?) else {
            // A damaged row must not hide its neighbours.
            tracing::error!(call = call_id, "a stored report cannot be read");
            continue;
        };
        let conflicts = match row.get(1)? {
            0 => Vec::new(),
            _ => load_conflicts(connection, row.get(0)?)?,
        };
        told.push(Told {
            report,
            detail: row.get(2)?,
            conflicts,
        });
    }
    Ok(told)
}

fn load_conflicts(connection: &Connection, report: i64) -> rusqlite::Result<Vec<StateAt>> {
    let mut statement = connection
        .prepare_cached("SELECT state, at FROM conflicts WHERE report = ?1 ORDER BY at")?;
    let rows = statement.query_map([report], |row| {
        Ok(StateAt {
            state: state(row, 0)?,
            at: timestamp(row.get(1)?),
        })
    })?;
    rows.collect()
}

pub(super) fn load_task(connection: &Connection, task_id: &Id) -> rusqlite::Result<Vec<Vec<Told>>> {
    let mut statement = connection.prepare_cached(
        "SELECT call_id FROM calls WHERE task_id = ?1 ORDER BY started_at DESC LIMIT ?2",
    )?;
    let rows = statement.query_map(params![task_id.as_str(), MOST_CALLS as i64], |row| {
        row.get::<_, String>(0)
    })?;
    let mut calls = Vec::new();
    for call_id in rows {
        let told = load_call(connection, &call_id?)?;
        if !told.is_empty() {
            calls.push(told);
        }
    }
    calls.reverse();
    Ok(calls)
}

pub(super) fn count_calls(connection: &Connection, task_id: &Id) -> rusqlite::Result<usize> {
    let mut statement =
        connection.prepare_cached("SELECT count(*) FROM calls WHERE task_id = ?1")?;
    let count: i64 = statement.query_row([task_id.as_str()], |row| row.get(0))?;
    Ok(count.max(0) as usize)
}

pub(super) fn load_overdue(
    connection: &Connection,
    after: &Due,
    cutoff: Timestamp,
    most: usize,
) -> rusqlite::Result<Overdue<Vec<Told>>> {
    let mut statement = connection.prepare_cached(
        "SELECT deadline_at, call_id FROM calls INDEXED BY calls_due
         WHERE ended_at IS NULL AND deadline_at < ?1 AND (deadline_at, call_id) > (?2, ?3)
         ORDER BY deadline_at, call_id LIMIT ?4",
    )?;
    let limit = i64::try_from(most).unwrap_or(i64::MAX);
    let from = millis(after.deadline_at);
    let range = params![millis(cutoff), from, after.call_id, limit];
    let rows = statement.query_map(range, |row| {
        Ok(Due {
            deadline_at: timestamp(row.get(0)?),
            call_id: row.get(1)?,
        })
    })?;
    let due = rows.collect::<rusqlite::Result<Vec<Due>>>()?;
    let calls = due.iter().map(|due| load_call(connection, &due.call_id));
    Ok(Overdue {
        calls: calls.collect::<rusqlite::Result<_>>()?,
        next: due.into_iter().nth(most.saturating_sub(1)),
    })
}

pub(super) fn load_page(
    connection: &Connection,
    filter: Filter,
    now: Timestamp,
) -> rusqlite::Result<Page> {
    let mut statement = connection.prepare_cached(
        "SELECT task_id, state, agent, application, sla_level, degraded, started_at, ended_at
         FROM tasks WHERE (started_at, task_id) < (?1, ?2)
         ORDER BY started_at DESC, task_id DESC LIMIT ?3",
    )?;
    let (before, id) = filter.cursor();
    let mut rows = statement.query(params![millis(before), id, WINDOW as i64])?;
    let mut page = Page::new(filter);
    while let Some(row) = rows.next()? {
        let line = TaskLine {
            task_id: row.get(0)?,
            state: state(row, 1)?,
            agent: row.get(2)?,
            application: row.get(3)?,
            sla_level: sla_level(row, 4)?,
            degraded: row.get(5)?,
            started_at: timestamp(row.get(6)?),
            ended_at: row.get::<_, Option<i64>>(7)?.map(timestamp),
        };
        if !page.look(line, now) {
            return Ok(page);
        }
        if page.looked() == WINDOW {
            return Ok(page);
        }
    }
    page.exhaust();
    Ok(page)
}

pub(super) fn count_open(connection: &Connection, now: Timestamp) -> rusqlite::Result<OpenCounts> {
    let mut statement = connection.prepare_cached(
        "SELECT state, count(*), total(deadline_at < ?1) FROM calls INDEXED BY calls_open
         WHERE ended_at IS NULL GROUP BY state",
    )?;
    let mut rows = statement.query([millis(now)])?;
    let mut counts = OpenCounts::default();
    while let Some(row) = rows.next()? {
        let count: i64 = row.get(1)?;
        let stalled: f64 = row.get(2)?;
        counts.by_state.push((state(row, 0)?, count.max(0) as u64));
        counts.stalled += stalled as u64;
    }
    // A mark is the collector's own: nobody has told of the end of these either.
    let mut statement = connection.prepare_cached(
        "SELECT count(*) FROM calls INDEXED BY calls_marked_at WHERE marked AND ended_at > ?1",
    )?;
    let since = millis(now.minus(STALLED));
    let marked: i64 = statement.query_row([since], |row| row.get(0))?;
    counts.stalled += marked.max(0) as u64;
    Ok(counts)
}
