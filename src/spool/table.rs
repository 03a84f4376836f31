//! The tables of the spool and their statements.

use crate::store::Schema;
use crate::task::{Report, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

pub(super) const SCHEMA: Schema = Schema {
    name: "spool",
    // "HeSp"
    application_id: 0x4865_5370,
    migrations: &["
        CREATE TABLE reports (
            row         INTEGER PRIMARY KEY,
            revision    INTEGER NOT NULL,
            call_id     TEXT    NOT NULL,
            attempt     INTEGER NOT NULL,
            reporter    TEXT    NOT NULL,
            ended       INTEGER NOT NULL,
            queued_at   INTEGER NOT NULL,
            deadline_at INTEGER NOT NULL,
            body        TEXT    NOT NULL
        ) STRICT;
        CREATE UNIQUE INDEX reports_identity ON reports (call_id, attempt, reporter);
        CREATE INDEX reports_open ON reports (row) WHERE ended = 0;
        CREATE TABLE dead_letters (
            id        INTEGER PRIMARY KEY,
            parked_at INTEGER NOT NULL,
            reason    TEXT    NOT NULL,
            queued_at INTEGER NOT NULL,
            call_id   TEXT    NOT NULL,
            attempt   INTEGER NOT NULL,
            reporter  TEXT    NOT NULL,
            body      TEXT    NOT NULL
        ) STRICT;
    "],
};

/// What a start and the first claim read.
pub(super) const PROBES: &[&str] = &[
    COUNT_ALL,
    "SELECT row, queued_at FROM reports ORDER BY row LIMIT 1000",
    COUNT_DEAD,
];

const COUNT_ALL: &str = "SELECT count(*) FROM reports";
const COUNT_DEAD: &str = "SELECT count(*) FROM dead_letters";

/// What a put did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    Ended,
    Open,
    /// An open row got its end state.
    OpenEnded,
    OpenAgain,
    /// An end state was there already: the same one, or another.
    Ignored {
        repeated: bool,
    },
}

/// How many rows left, by whether their attempt had ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Gone {
    pub(super) ended: u64,
    pub(super) open: u64,
}

impl Gone {
    pub(super) fn total(self) -> u64 {
        self.ended + self.open
    }

    fn add(&mut self, ended: bool) {
        if ended {
            self.ended += 1;
        } else {
            self.open += 1;
        }
    }
}

/// What a file holds when it is opened.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) waiting: u64,
    pub(super) open: u64,
    pub(super) dead: u64,
    pub(super) last_number: i64,
}

/// The proof that a row is still as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Claimed {
    row: i64,
    revision: i64,
}

/// One report as it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub claimed: Claimed,
    /// Whether the attempt had ended.
    pub ended: bool,
    pub queued_at: Timestamp,
    pub deadline_at: Timestamp,
    /// The report as JSON; never rewritten.
    pub body: Vec<u8>,
}

/// A report that will not be sent again by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub id: i64,
    pub parked_at: Timestamp,
    pub reason: String,
    pub body: Vec<u8>,
}

pub(super) fn put(
    connection: &Connection,
    number: i64,
    report: &Report,
    now: Timestamp,
) -> rusqlite::Result<Put> {
    let body = serde_json::to_string(report)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let ended = report.state.is_end();
    let mut statement = connection.prepare_cached(
        "INSERT INTO reports
             (row, revision, call_id, attempt, reporter, ended, queued_at, deadline_at, body)
         VALUES (?1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT (call_id, attempt, reporter) DO UPDATE
             SET revision = ?1, ended = ?5, deadline_at = ?7, body = ?8
             WHERE ended = 0
         RETURNING row",
    )?;
    let values = params![
        number,
        report.call_id.as_str(),
        report.attempt,
        report.reporter.as_str(),
        ended,
        millis(now),
        millis(report.deadline_at),
        body,
    ];
    let row: Option<i64> = statement.query_row(values, |row| row.get(0)).optional()?;
    Ok(match (row, ended) {
        (None, _) => Put::Ignored {
            repeated: present(connection, report)?.as_deref() == Some(report.state.as_str()),
        },
        (Some(row), true) if row == number => Put::Ended,
        (Some(row), false) if row == number => Put::Open,
        (Some(_), true) => Put::OpenEnded,
        (Some(_), false) => Put::OpenAgain,
    })
}

/// Returns the state that a waiting report of the same attempt and reporter has.
fn present(connection: &Connection, report: &Report) -> rusqlite::Result<Option<String>> {
    let mut statement = connection.prepare_cached(
        "SELECT body ->> 'state' FROM reports
         WHERE call_id = ?1 AND attempt = ?2 AND reporter = ?3",
    )?;
    let identity = params![
        report.call_id.as_str(),
        report.attempt,
        report.reporter.as_str()
    ];
    statement.query_row(identity, |row| row.get(0)).optional()
}

pub(super) fn oldest(
    connection: &Connection,
    count: usize,
    bytes: usize,
) -> rusqlite::Result<Vec<Row>> {
    let mut statement = connection.prepare_cached(
        "SELECT row, revision, ended, queued_at, deadline_at, body
         FROM reports ORDER BY row LIMIT ?1",
    )?;
    let mut found = statement.query([count as i64])?;
    let mut rows = Vec::with_capacity(count.min(128));
    let mut taken = 0;
    while let Some(row) = found.next()? {
        let body = row.get_ref(5)?.as_bytes()?;
        taken += body.len();
        if taken > bytes && !rows.is_empty() {
            break;
        }
        rows.push(Row {
            claimed: Claimed {
                row: row.get(0)?,
                revision: row.get(1)?,
            },
            ended: row.get(2)?,
            queued_at: timestamp(row.get(3)?),
            deadline_at: timestamp(row.get(4)?),
            body: body.to_vec(),
        });
    }
    Ok(rows)
}

pub(super) fn delete(connection: &Connection, rows: &[Claimed]) -> rusqlite::Result<Gone> {
    let mut statement = connection
        .prepare_cached("DELETE FROM reports WHERE row = ?1 AND revision = ?2 RETURNING ended")?;
    let mut gone = Gone::default();
    for claimed in rows {
        let values = [claimed.row, claimed.revision];
        let ended = statement.query_row(values, |row| row.get(0)).optional()?;
        if let Some(ended) = ended {
            gone.add(ended);
        }
    }
    Ok(gone)
}

pub(super) fn park(
    connection: &Connection,
    rows: &[(Claimed, String)],
    now: Timestamp,
) -> rusqlite::Result<Gone> {
    let mut copy = connection.prepare_cached(
        "INSERT INTO dead_letters (parked_at, reason, queued_at, call_id, attempt, reporter, body)
         SELECT ?3, ?4, queued_at, call_id, attempt, reporter, body
         FROM reports WHERE row = ?1 AND revision = ?2",
    )?;
    let mut gone = Gone::default();
    for (claimed, reason) in rows {
        copy.execute(params![claimed.row, claimed.revision, millis(now), reason])?;
        let moved = delete(connection, &[*claimed])?;
        gone.ended += moved.ended;
        gone.open += moved.open;
    }
    Ok(gone)
}

/// Looks at the `count` oldest rows only: rows come in the order of time.
pub(super) fn expire(
    connection: &Connection,
    cutoff: Timestamp,
    now: Timestamp,
    count: usize,
) -> rusqlite::Result<Gone> {
    let mut statement = connection.prepare_cached(
        "SELECT row, revision FROM (SELECT row, revision, queued_at FROM reports ORDER BY row LIMIT ?1)
         WHERE queued_at < ?2",
    )?;
    let found = statement.query_map(params![count as i64, millis(cutoff)], |row| {
        let claimed = Claimed {
            row: row.get(0)?,
            revision: row.get(1)?,
        };
        Ok((claimed, "expired".to_owned()))
    })?;
    let rows = found.collect::<rusqlite::Result<Vec<_>>>()?;
    park(connection, &rows, now)
}

/// Drops the oldest dead letters beyond `most`.
pub(super) fn prune(connection: &Connection, most: u64) -> rusqlite::Result<u64> {
    let mut statement = connection.prepare_cached(
        "DELETE FROM dead_letters
         WHERE id <= (SELECT id FROM dead_letters ORDER BY id DESC LIMIT 1 OFFSET ?1)",
    )?;
    let pruned = statement.execute([i64::try_from(most).unwrap_or(i64::MAX)])?;
    Ok(pruned as u64)
}

pub(super) fn dead_letters(
    connection: &Connection,
    count: usize,
) -> rusqlite::Result<Vec<DeadLetter>> {
    let mut statement = connection.prepare_cached(
        "SELECT id, parked_at, reason, body FROM dead_letters ORDER BY id DESC LIMIT ?1",
    )?;
    let found = statement.query_map([count as i64], |row| {
        Ok(DeadLetter {
            id: row.get(0)?,
            parked_at: timestamp(row.get(1)?),
            reason: row.get(2)?,
            body: row.get_ref(3)?.as_bytes()?.to_vec(),
        })
    })?;
    found.collect()
}

pub(super) fn oldest_at(connection: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    let mut statement =
        connection.prepare_cached("SELECT queued_at FROM reports ORDER BY row LIMIT 1")?;
    let oldest = statement.query_row([], |row| row.get(0)).optional()?;
    Ok(oldest.map(timestamp))
}

pub(super) fn count(connection: &Connection) -> rusqlite::Result<Counts> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let all = number(COUNT_ALL)?;
    let open = number("SELECT count(*) FROM reports WHERE ended = 0")?;
    let last_number = number("SELECT coalesce(max(row), 0) FROM reports")?;
    Ok(Counts {
        waiting: (all - open) as u64,
        open: open as u64,
        dead: number(COUNT_DEAD)? as u64,
        last_number,
    })
}

fn millis(at: Timestamp) -> i64 {
    // A timestamp ends with the year 9999, far below the limit.
    at.millis() as i64
}

fn timestamp(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis.max(0) as u64)
}
