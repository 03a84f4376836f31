//! The collector's book in SQLite.
//!
//! - `reports` holds what was told, one row per (call, attempt, reporter); `calls` and `tasks` are
//!   sums of it, kept in the same transaction, so that lists and totals read no report
//! - the work per report does not grow with the size of its task
//! - a report is confirmed after its commit, which is synced to disk: the sender forgets it then
//! - elsewhere: what sums mean (`attempt`), what is shown (`view`)

use super::attempt::{Attempt, CallSummary, Told, attempts, summarise};
use super::list::{Filter, Page, TaskLine};
use crate::store::{self, OpenError, Opened, Schema, Store, StoreError};
use crate::task::{Id, Report, Reporter, SlaLevel, State, StateAt, Timestamp};
use crate::telemetry::metrics::{Collector as Metrics, Received};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Batches that may wait for the writer; each has at most a thousand reports.
const QUEUE: usize = 256;

/// Calls of one task that are shown at most; the newest.
const MOST_CALLS: i64 = 1_000;

/// Rows that one query of a list looks at.
const WINDOW: usize = 20_000;

/// Tasks and calls that one transaction of the retention forgets.
const FORGOTTEN_TASKS: i64 = 100;
const FORGOTTEN_CALLS: i64 = 500;

const SCHEMA: Schema = Schema {
    name: "collector",
    // "HeCo"
    application_id: 0x4865_436F,
    migrations: &["
        CREATE TABLE reports (
            id        INTEGER PRIMARY KEY,
            call_id   TEXT    NOT NULL,
            attempt   INTEGER NOT NULL,
            reporter  TEXT    NOT NULL,
            state     TEXT    NOT NULL,
            seen      INTEGER NOT NULL, -- a bit per state that this reporter has told
            conflicts INTEGER NOT NULL DEFAULT 0,
            detail    TEXT,
            body      TEXT    NOT NULL
        ) STRICT;
        CREATE UNIQUE INDEX reports_identity ON reports (call_id, attempt, reporter);
        CREATE TABLE conflicts (
            report INTEGER NOT NULL,
            state  TEXT    NOT NULL,
            at     INTEGER NOT NULL,
            body   TEXT    NOT NULL,
            PRIMARY KEY (report, state)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE calls (
            call_id     TEXT    NOT NULL PRIMARY KEY,
            task_id     TEXT    NOT NULL,
            state       TEXT    NOT NULL,
            started_at  INTEGER NOT NULL,
            ended_at    INTEGER,
            deadline_at INTEGER NOT NULL,
            is_root     INTEGER NOT NULL, -- whether no step made this call
            agent       TEXT    NOT NULL,
            application TEXT    NOT NULL,
            sla_level   TEXT    NOT NULL,
            breaks      INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX calls_of_task ON calls (task_id, started_at);
        CREATE INDEX calls_open ON calls (task_id, started_at) WHERE ended_at IS NULL;
        CREATE INDEX calls_roots ON calls (task_id, started_at) WHERE is_root;
        CREATE TABLE tasks (
            task_id      TEXT    NOT NULL PRIMARY KEY,
            state        TEXT    NOT NULL,
            agent        TEXT    NOT NULL,
            application  TEXT    NOT NULL,
            sla_level    TEXT    NOT NULL,
            degraded     INTEGER NOT NULL,
            started_at   INTEGER NOT NULL,
            ended_at     INTEGER,          -- null while a call is open
            latest_end   INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX tasks_by_start ON tasks (started_at, task_id);
    "],
};

/// What became of a batch.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// One entry per report, in order.
    pub(super) results: Vec<Result<Received, &'static str>>,
    /// Attempts that ended, with the application that reported it.
    pub(super) finished: Vec<(String, State)>,
    /// Applications on whose side bodies differ, once per attempt.
    pub(super) breaks: Vec<String>,
}

/// Open calls by state, and how many of them are past their deadline.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OpenCounts {
    pub(super) by_state: Vec<(State, u64)>,
    pub(super) stalled: u64,
}

/// A handle to the book; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Book {
    store: Store,
}

impl Book {
    pub(super) fn open(path: &Path, metrics: Arc<Metrics>) -> Result<(Self, Opened), OpenError> {
        let options = store::Options {
            durability: store::Durability::Disk,
            queue: QUEUE,
            observe: Box::new(move |took| metrics.store_write(took)),
        };
        let (store, opened) = Store::open(path, &SCHEMA, options)?;
        Ok((Self { store }, opened))
    }

    /// Takes reports and returns after they are on disk.
    pub(super) async fn record(&self, reports: Vec<Told>) -> Result<Recorded, StoreError> {
        self.store
            .append(move |connection| record(connection, &reports))
            .await
    }

    /// Reads all that is known of a task, grouped by call.
    pub(super) async fn task(&self, task_id: Id) -> Result<Vec<Vec<Told>>, StoreError> {
        self.store
            .read(move |connection| load_task(connection, &task_id))
            .await
    }

    /// Reads a page of tasks, newest first; a page may be short and still have a next one.
    pub(super) async fn tasks(&self, filter: Filter, now: Timestamp) -> Result<Page, StoreError> {
        self.store
            .read(move |connection| load_page(connection, filter, now))
            .await
    }

    pub(super) async fn open_counts(&self, now: Timestamp) -> Result<OpenCounts, StoreError> {
        self.store
            .read(move |connection| count_open(connection, now))
            .await
    }

    /// Forgets some calls that began before `cutoff`; returns whether there are more.
    pub(super) async fn forget(&self, cutoff: Timestamp) -> Result<bool, StoreError> {
        self.store
            .append(move |connection| forget(connection, cutoff))
            .await
    }

    pub(super) async fn close(&self) -> Result<(), StoreError> {
        self.store.close().await
    }
}

fn record(connection: &Connection, reports: &[Told]) -> rusqlite::Result<Recorded> {
    let mut recorded = Recorded::default();
    let mut touched: HashMap<&Id, &Id> = HashMap::new();
    for told in reports {
        let report = &told.report;
        let known = match touched.get(&report.call_id) {
            Some(task_id) => Some(task_id.to_string()),
            None => task_of(connection, &report.call_id)?,
        };
        if known.is_some_and(|known| known != report.task_id.as_str()) {
            let reason = "the call belongs to another task";
            recorded.results.push(Err(reason));
            continue;
        }
        let result = put(connection, told)?;
        if result == Received::Accepted {
            touched.insert(&report.call_id, &report.task_id);
            if report.state.is_end() {
                let finished = (report.application.clone(), report.state);
                recorded.finished.push(finished);
            }
        }
        recorded.results.push(Ok(result));
    }
    for call_id in touched.into_keys() {
        let told = load_call(connection, call_id.as_str())?;
        if let Some(call) = summarise(&told) {
            recorded.breaks.extend(put_call(connection, &call, &told)?);
            put_task(connection, &call)?;
        }
    }
    Ok(recorded)
}

fn task_of(connection: &Connection, call_id: &Id) -> rusqlite::Result<Option<String>> {
    let mut statement =
        connection.prepare_cached("SELECT task_id FROM calls WHERE call_id = ?1")?;
    let found = statement.query_row([call_id.as_str()], |row| row.get(0));
    found.optional()
}

/// Stores one report: the first with its state wins, an end state stays.
fn put(connection: &Connection, told: &Told) -> rusqlite::Result<Received> {
    let report = &told.report;
    let mut statement = connection.prepare_cached(
        "SELECT id, seen, state FROM reports
         WHERE call_id = ?1 AND attempt = ?2 AND reporter = ?3",
    )?;
    let identity = params![
        report.call_id.as_str(),
        report.attempt,
        report.reporter.as_str()
    ];
    let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, state(row, 2)?));
    let known: Option<(i64, i64, State)> = statement.query_row(identity, row).optional()?;
    let bit = bit(report.state);
    let Some((id, seen, present)) = known else {
        insert(connection, told, bit)?;
        return Ok(Received::Accepted);
    };
    if seen & bit != 0 {
        return Ok(Received::Duplicate);
    }
    let is_conflict = present.is_end() && report.state.is_end();
    if is_conflict {
        let mut statement = connection.prepare_cached(
            "INSERT INTO conflicts (report, state, at, body) VALUES (?1, ?2, ?3, ?4)",
        )?;
        let at = report.states.last().map_or(0, |last| millis(last.at));
        statement.execute(params![id, report.state.as_str(), at, json(report)?])?;
    }
    let mut statement = connection.prepare_cached(
        "UPDATE reports SET seen = seen | ?2, conflicts = conflicts + ?3 WHERE id = ?1",
    )?;
    statement.execute(params![id, bit, is_conflict])?;
    // A report that was overtaken is remembered as seen and tells nothing new.
    if !present.is_end() {
        let mut statement = connection.prepare_cached(
            "UPDATE reports SET state = ?2, body = ?3, detail = ?4 WHERE id = ?1",
        )?;
        let name = report.state.as_str();
        statement.execute(params![id, name, json(report)?, told.detail])?;
    }
    Ok(if is_conflict {
        Received::Conflict
    } else {
        Received::Accepted
    })
}

fn insert(connection: &Connection, told: &Told, bit: i64) -> rusqlite::Result<()> {
    let report = &told.report;
    let mut statement = connection.prepare_cached(
        "INSERT INTO reports (call_id, attempt, reporter, state, seen, detail, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    statement.execute(params![
        report.call_id.as_str(),
        report.attempt,
        report.reporter.as_str(),
        report.state.as_str(),
        bit,
        told.detail,
        json(report)?,
    ])?;
    Ok(())
}

/// Writes the sum of a call; returns the applications of attempts whose chain broke just now.
fn put_call(
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
             agent, application, sla_level, breaks)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
         ON CONFLICT (call_id) DO UPDATE SET
             state = ?3, started_at = ?4, ended_at = ?5, deadline_at = ?6, is_root = ?7,
             agent = ?8, application = ?9, sla_level = ?10, breaks = ?11",
    )?;
    statement.execute(params![
        id,
        call.task_id.as_str(),
        call.state.as_str(),
        millis(call.started_at),
        call.ended_at.map(millis),
        millis(call.deadline_at),
        call.parent_step.is_none(),
        call.agent,
        call.application,
        call.sla_level.as_str(),
        broken.len() as i64,
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
fn put_task(connection: &Connection, call: &CallSummary) -> rusqlite::Result<()> {
    let task = call.task_id.as_str();
    let open = state_at(
        connection,
        "SELECT state FROM calls INDEXED BY calls_open WHERE task_id = ?1 AND ended_at IS NULL
         ORDER BY started_at DESC, call_id DESC LIMIT 1",
        task,
    )?;
    let is_open = open.is_some();
    let last = |which| {
        let sql = format!("SELECT state {which} ORDER BY started_at DESC, call_id DESC LIMIT 1");
        state_at(connection, &sql, task)
    };
    let state = match open {
        Some(state) => Some(state),
        // Without a root so far, the calls that are known stand in.
        None => last(ROOTS)?.map_or_else(|| last(CALLS), |state| Ok(Some(state)))?,
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
             (task_id, state, agent, application, sla_level, degraded, started_at, latest_end, ended_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6,
             (SELECT min(started_at) FROM calls WHERE task_id = ?1), ?7, iif(?8, NULL, ?7))
         ON CONFLICT (task_id) DO UPDATE SET
             state = ?2, agent = ?3, application = ?4, sla_level = ?5,
             degraded = degraded OR ?6, started_at = excluded.started_at,
             latest_end = max(latest_end, ?7),
             ended_at = iif(?8, NULL, max(latest_end, ?7))",
    )?;
    statement.execute(params![
        task,
        state.unwrap_or(call.state).as_str(),
        agent,
        application,
        sla_level,
        call.degraded,
        call.ended_at.map_or(0, millis),
        is_open,
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

fn load_call(connection: &Connection, call_id: &str) -> rusqlite::Result<Vec<Told>> {
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

fn load_task(connection: &Connection, task_id: &Id) -> rusqlite::Result<Vec<Vec<Told>>> {
    let mut statement = connection.prepare_cached(
        "SELECT call_id FROM calls WHERE task_id = ?1 ORDER BY started_at DESC LIMIT ?2",
    )?;
    let rows = statement.query_map(params![task_id.as_str(), MOST_CALLS], |row| {
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

fn load_page(connection: &Connection, filter: Filter, now: Timestamp) -> rusqlite::Result<Page> {
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

fn count_open(connection: &Connection, now: Timestamp) -> rusqlite::Result<OpenCounts> {
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
    Ok(counts)
}

fn forget(connection: &Connection, cutoff: Timestamp) -> rusqlite::Result<bool> {
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

fn json(report: &Report) -> rusqlite::Result<String> {
    serde_json::to_string(report)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn state(row: &Row<'_>, index: usize) -> rusqlite::Result<State> {
    let name = row.get_ref(index)?.as_str()?;
    State::from_wire(name).ok_or(rusqlite::Error::InvalidQuery)
}

fn sla_level(row: &Row<'_>, index: usize) -> rusqlite::Result<SlaLevel> {
    let name = row.get_ref(index)?.as_str()?;
    SlaLevel::from_wire(name).ok_or(rusqlite::Error::InvalidQuery)
}

/// Returns a state's place in `seen`; never renumbered, since files hold it.
fn bit(state: State) -> i64 {
    match state {
        State::Pending => 1,
        State::Dispatched => 2,
        State::Executing => 4,
        State::Completed => 8,
        State::FailedValidation => 16,
        State::FailedExecution => 32,
        State::Timeout => 64,
        State::FallbackInvoked => 128,
    }
}

fn millis(at: Timestamp) -> i64 {
    // A timestamp ends with the year 9999, far below the limit.
    at.millis() as i64
}

fn timestamp(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis.max(0) as u64)
}
