//! The collector's book in SQLite.
//!
//! - `reports` holds what was told, one row per (call, attempt, voice: who says it as what); `calls` and `tasks` are
//!   sums of it, kept in the same transaction, so that lists and totals read no report
//! - the work per report does not grow with the size of its task
//! - a report is confirmed after its commit, which is synced to disk: the sender forgets it then
//! - elsewhere: what sums mean (`attempt`), what is shown (`view`)

mod forget;
mod read;
mod sums;

use super::attempt::{Told, summarise};
use super::book::{Due, OpenCounts, Overdue, Recorded, bit};
use super::claims;
use super::list::{Filter, Page};
use crate::contract::trust;
use crate::store::{self, OpenError, Opened, Schema, Store, StoreError};
use crate::task::{Id, Report, SlaLevel, State, Timestamp};
use crate::telemetry::metrics::{Collector as Metrics, Received};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Batches that may wait for the writer; each has at most a thousand reports.
const QUEUE: usize = 256;

const SCHEMA: Schema = Schema {
    name: "collector",
    // "HeCo"
    application_id: 0x4865_436F,
    migrations: &[
        "
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
    ",
        trust::MIGRATION,
        "
        ALTER TABLE calls ADD COLUMN by_sidecar INTEGER NOT NULL DEFAULT 1;
        UPDATE calls SET by_sidecar = EXISTS (
            SELECT 1 FROM reports
            WHERE reports.call_id = calls.call_id AND reporter IN ('caller', 'callee'))
        WHERE ended_at IS NULL;
        DROP INDEX calls_open;
        CREATE INDEX calls_open ON calls (task_id, by_sidecar, started_at) WHERE ended_at IS NULL;
    ",
        "
        CREATE INDEX calls_due ON calls (deadline_at) WHERE ended_at IS NULL;
    ",
        "
        -- whether nobody but the watchdog has told of the end
        ALTER TABLE calls ADD COLUMN marked INTEGER NOT NULL DEFAULT 0;
        CREATE INDEX calls_marked ON calls (call_id) WHERE marked;
    ",
        "
        CREATE INDEX calls_ended ON calls (task_id, by_sidecar, ended_at)
            WHERE ended_at IS NOT NULL;
        ALTER TABLE tasks DROP COLUMN latest_end;
    ",
        "
        DROP INDEX calls_marked;
        CREATE INDEX calls_marked_at ON calls (ended_at) WHERE marked;
    ",
    ],
};

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
            // Counting a month of reports would delay the start.
            probes: &["SELECT task_id FROM tasks ORDER BY started_at DESC LIMIT 1000"],
        };
        let (store, opened) = Store::open(path, &SCHEMA, options)?;
        Ok((Self { store }, opened))
    }

    /// The file itself, for those who keep a table of their own in it.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Takes reports and returns after they are on disk.
    pub(super) async fn record(&self, reports: Vec<Told>) -> Result<Recorded, StoreError> {
        self.store
            .append(move |connection| record(connection, &reports))
            .await
    }

    /// Reads what is known of a task, grouped by call.
    pub(super) async fn task(&self, task_id: Id) -> Result<Vec<Vec<Told>>, StoreError> {
        self.store
            .read(move |connection| read::load_task(connection, &task_id))
            .await
    }

    pub(super) async fn count_calls(&self, task_id: Id) -> Result<usize, StoreError> {
        self.store
            .read(move |connection| read::count_calls(connection, &task_id))
            .await
    }

    /// Reads a page of tasks, newest first; a page may be short and still have a next one.
    pub(super) async fn tasks(&self, filter: Filter, now: Timestamp) -> Result<Page, StoreError> {
        self.store
            .read(move |connection| read::load_page(connection, filter, now))
            .await
    }

    pub(super) async fn open_counts(&self, now: Timestamp) -> Result<OpenCounts, StoreError> {
        self.store
            .read(move |connection| read::count_open(connection, now))
            .await
    }

    /// Reads what is told of open calls after a place and with a deadline before `cutoff`, the longest
    /// due first.
    pub(super) async fn overdue(
        &self,
        after: Due,
        cutoff: Timestamp,
        most: usize,
    ) -> Result<Overdue<Vec<Told>>, StoreError> {
        self.store
            .read(move |connection| read::load_overdue(connection, &after, cutoff, most))
            .await
    }

    /// Forgets some calls that began before `cutoff`; returns whether there are more.
    pub(super) async fn forget(&self, cutoff: Timestamp) -> Result<bool, StoreError> {
        self.store
            .append(move |connection| forget::forget(connection, cutoff))
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
        if result == Ok(Received::Accepted) {
            touched.insert(&report.call_id, &report.task_id);
            if report.state.is_end() {
                let finished = (report.application.clone(), report.state);
                recorded.finished.push(finished);
            }
        }
        recorded.results.push(result);
    }
    for call_id in touched.into_keys() {
        let told = read::load_call(connection, call_id.as_str())?;
        if let Some(call) = summarise(&told) {
            recorded
                .breaks
                .extend(sums::put_call(connection, &call, &told)?);
            sums::put_task(connection, &call)?;
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

/// Stores one report: the first with its state wins, an end state stays. The inner error says why
/// it is refused.
fn put(connection: &Connection, told: &Told) -> rusqlite::Result<Result<Received, &'static str>> {
    let report = &told.report;
    let mut statement = connection.prepare_cached(
        "SELECT id, seen, state FROM reports
         WHERE call_id = ?1 AND attempt = ?2 AND reporter = ?3",
    )?;
    let identity = params![
        report.call_id.as_str(),
        report.attempt,
        claims::voice(report)
    ];
    let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, state(row, 2)?));
    let known: Option<(i64, i64, State)> = statement.query_row(identity, row).optional()?;
    let bit = bit(report.state);
    let Some((id, seen, present)) = known else {
        if count_rivals(connection, report)? >= claims::MOST_CLAIMS {
            return Ok(Err(claims::TOO_MANY));
        }
        insert(connection, told, bit)?;
        return Ok(Ok(Received::Accepted));
    };
    if seen & bit != 0 {
        return Ok(Ok(Received::Duplicate));
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
    Ok(Ok(if is_conflict {
        Received::Conflict
    } else {
        Received::Accepted
    }))
}

/// Counts who has reported as the same side of the attempt.
fn count_rivals(connection: &Connection, report: &Report) -> rusqlite::Result<usize> {
    let mut statement = connection.prepare_cached(
        "SELECT count(*) FROM reports
         WHERE call_id = ?1 AND attempt = ?2 AND reporter >= ?3 AND reporter < ?4",
    )?;
    let rivals = claims::rivals(report);
    let call_id = report.call_id.as_str();
    let range = params![call_id, report.attempt, rivals.start, rivals.end];
    let count: i64 = statement.query_row(range, |row| row.get(0))?;
    Ok(count.max(0) as usize)
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
        claims::voice(report),
        report.state.as_str(),
        bit,
        told.detail,
        json(report)?,
    ])?;
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

fn millis(at: Timestamp) -> i64 {
    // A timestamp ends with the year 9999, far below the limit.
    at.millis() as i64
}

fn timestamp(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis.max(0) as u64)
}
