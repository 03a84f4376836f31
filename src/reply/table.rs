//! The table of answers: one row per key, from the beginning of the work to the end of the row.

use super::live::Live;
use super::{Answer, DOUBTED, KEPT, Name};
use crate::identity::Digest;
use crate::store::Bounds;
use crate::task::{Id, State, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::Arc;

/// This room's step of the state file's schema.
pub const MIGRATION: &str = "
    CREATE TABLE replies (
        run TEXT PRIMARY KEY,
        scope TEXT NOT NULL,
        agent TEXT NOT NULL,
        key TEXT NOT NULL,
        payload BLOB NOT NULL,
        boot TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('in_flight', 'answered', 'in_doubt')),
        ends_at INTEGER NOT NULL,
        size INTEGER NOT NULL,
        status INTEGER,
        headers TEXT,
        body BLOB,
        end_state TEXT,
        failure TEXT
    ) STRICT;
    CREATE UNIQUE INDEX replies_by_key ON replies (scope, agent, key);
    CREATE INDEX replies_by_end ON replies (state, ends_at, size);";

/// Every so many beginnings, what has had its time goes.
pub const PRUNE_EVERY: u32 = 64;
/// What a row takes beside its answer.
const ROW_BYTES: usize = 512;
/// Rows in flight have no end of their own; this one only has to fit the column.
const NEVER: i64 = i64::MAX;

/// Work that is about to begin.
#[derive(Clone)]
pub struct Begun {
    pub name: Name,
    pub payload: Digest,
    pub boot: Arc<str>,
    pub run: Id,
}

/// What the table knows of a request.
pub enum Row {
    New,
    Answered(Answer),
    InFlight,
    /// The state it was left in.
    InDoubt(State),
    /// The state of what the key stands for.
    OtherPayload(State),
}

/// How work ended.
pub enum End {
    Answered(Answer),
    Undone,
    Doubt(State),
}

/// Tells about what a row takes beside the beginning.
pub fn size(end: &End) -> usize {
    match end {
        End::Answered(answer) => {
            let pairs = answer.headers.iter();
            let headers: usize = pairs.map(|(name, value)| name.len() + value.len()).sum();
            ROW_BYTES + headers + answer.body.len()
        }
        End::Undone | End::Doubt(_) => ROW_BYTES,
    }
}

/// Looks a request up and writes its row if there is none.
pub fn begin(
    connection: &Connection,
    begun: &Begun,
    live: &Live,
    now: Timestamp,
) -> rusqlite::Result<Row> {
    match find(connection, begun, live, now)? {
        Some(found) if found.is_over => remove(connection, &found.run)?,
        Some(found) => return Ok(found.row),
        None => 0,
    };
    let name = &begun.name;
    connection
        .prepare_cached(
            "INSERT INTO replies (run, scope, agent, key, payload, boot, state, ends_at, size)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'in_flight', ?7, ?8)",
        )?
        .execute(params![
            begun.run.as_str(),
            &*name.scope,
            &*name.agent,
            &*name.key,
            begun.payload.as_bytes(),
            &*begun.boot,
            NEVER,
            ROW_BYTES as i64,
        ])?;
    Ok(Row::New)
}

/// Says what a row means that still counts.
pub fn known(
    connection: &Connection,
    begun: &Begun,
    live: &Live,
    now: Timestamp,
) -> rusqlite::Result<Option<Row>> {
    let found = find(connection, begun, live, now)?;
    Ok(found.filter(|found| !found.is_over).map(|found| found.row))
}

struct Read {
    run: String,
    /// It has had its time.
    is_over: bool,
    row: Row,
}

fn find(
    connection: &Connection,
    begun: &Begun,
    live: &Live,
    now: Timestamp,
) -> rusqlite::Result<Option<Read>> {
    let name = &begun.name;
    connection
        .prepare_cached(
            "SELECT run, payload, boot, state, ends_at, status, headers, body, end_state, failure
             FROM replies WHERE scope = ?1 AND agent = ?2 AND key = ?3",
        )?
        .query_row(params![&*name.scope, &*name.agent, &*name.key], |row| {
            let run: String = row.get(0)?;
            let is_same = row.get_ref(1)?.as_blob()? == begun.payload.as_bytes();
            let is_ours = row.get_ref(2)?.as_str()? == &*begun.boot;
            let is_over = row.get::<_, i64>(4)? <= now.millis() as i64;
            let state: Option<String> = row.get(8)?;
            let state = state.and_then(|state| State::from_wire(&state));
            let state = state.unwrap_or(State::Executing);
            let known = match row.get_ref(3)?.as_str()? {
                _ if !is_same => Row::OtherPayload(state),
                "in_flight" if is_ours && live.holds(&run) => Row::InFlight,
                "answered" => Row::Answered(answer(row, state)?),
                // In flight of a process that is no more, or its end could not be written: nobody
                // will ever say.
                _ => Row::InDoubt(state),
            };
            Ok(Read {
                run,
                is_over,
                row: known,
            })
        })
        .optional()
}

fn answer(row: &rusqlite::Row<'_>, state: State) -> rusqlite::Result<Answer> {
    let headers: String = row.get(6)?;
    Ok(Answer {
        status: row.get(5)?,
        headers: serde_json::from_str(&headers).unwrap_or_default(),
        body: row.get::<_, Vec<u8>>(7)?.into(),
        state,
        failure: row
            .get::<_, Option<String>>(9)?
            .and_then(|text| serde_json::from_str(&text).ok()),
    })
}

/// Settles the row of a run that is in flight; any other is left as it is.
pub fn end(connection: &Connection, run: &Id, end: End, now: Timestamp) -> rusqlite::Result<()> {
    let answer = match end {
        End::Undone => {
            connection
                .prepare_cached("DELETE FROM replies WHERE run = ?1 AND state = 'in_flight'")?
                .execute([run.as_str()])?;
            return Ok(());
        }
        End::Doubt(state) => return doubt(connection, run.as_str(), state, now),
        End::Answered(answer) => answer,
    };
    let headers = serde_json::to_string(&answer.headers).unwrap_or_default();
    let failure = answer.failure.as_ref();
    let failure = failure.and_then(|failure| serde_json::to_string(failure).ok());
    let size = ROW_BYTES + headers.len() + answer.body.len();
    let ends_at = now.millis() as i64 + KEPT.as_millis() as i64;
    connection
        .prepare_cached(
            "UPDATE replies SET state = 'answered', ends_at = ?2, size = ?3, status = ?4,
                 headers = ?5, body = ?6, end_state = ?7, failure = ?8
             WHERE run = ?1 AND state = 'in_flight'",
        )?
        .execute(params![
            run.as_str(),
            ends_at,
            size as i64,
            answer.status,
            headers,
            &*answer.body,
            answer.state.as_str(),
            failure,
        ])?;
    Ok(())
}

fn doubt(connection: &Connection, run: &str, state: State, now: Timestamp) -> rusqlite::Result<()> {
    let ends_at = now.millis() as i64 + DOUBTED.as_millis() as i64;
    connection
        .prepare_cached(
            "UPDATE replies SET state = 'in_doubt', ends_at = ?2, end_state = ?3
             WHERE run = ?1 AND state = 'in_flight'",
        )?
        .execute(params![run, ends_at, state.as_str()])?;
    Ok(())
}

/// Removes what has had its time. What was left in flight, by a former process or because its end
/// could not be written, becomes a doubt, which ends.
pub fn prune(
    connection: &Connection,
    boot: &str,
    live: &Live,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let millis = now.millis() as i64;
    let in_flight: Vec<(String, String)> = connection
        .prepare_cached("SELECT run, boot FROM replies WHERE state = 'in_flight'")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (run, begun_by) in in_flight {
        if begun_by != boot || !live.holds(&run) {
            doubt(connection, &run, State::Executing, now)?;
        }
    }
    for state in ["answered", "in_doubt"] {
        connection
            .prepare_cached("DELETE FROM replies WHERE state = ?1 AND ends_at <= ?2")?
            .execute(params![state, millis])?;
    }
    Ok(())
}

/// Removes the oldest that have ended where rows are beyond the bounds, and the answers alone of the
/// oldest where bytes are; returns how many of both may come before that is to be looked at again.
///
/// What is in flight here stays: it is bounded by the calls that are served at once.
pub fn make_room(connection: &Connection, bounds: Bounds) -> rusqlite::Result<(i64, i64)> {
    let (mut rows, mut bytes): (i64, i64) = connection
        .prepare_cached("SELECT count(*), coalesce(sum(size), 0) FROM replies")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if bounds.are_reached(rows, bytes) {
        let aim = bounds.aim();
        for (run, size) in ended(connection)? {
            if rows <= aim.max_rows && bytes <= aim.max_bytes {
                break;
            }
            if rows <= aim.max_rows && size > ROW_BYTES as i64 {
                forget(connection, &run)?;
                bytes -= size - ROW_BYTES as i64;
            } else {
                remove(connection, &run)?;
                rows -= 1;
                bytes -= size;
            }
        }
    }
    Ok((bounds.max_rows - rows, bounds.max_bytes - bytes))
}

/// Drops an answer and leaves its row: who asks again hears that it was carried out.
fn forget(connection: &Connection, run: &str) -> rusqlite::Result<usize> {
    connection
        .prepare_cached(
            "UPDATE replies SET state = 'in_doubt', size = ?2, status = NULL, headers = NULL,
                 body = NULL
             WHERE run = ?1",
        )?
        .execute(params![run, ROW_BYTES as i64])
}

/// Lists some that have ended, oldest first: answers, and doubts only after all of these.
fn ended(connection: &Connection) -> rusqlite::Result<Vec<(String, i64)>> {
    connection
        .prepare_cached(
            "SELECT run, size FROM replies WHERE state != 'in_flight'
             ORDER BY state = 'in_doubt', ends_at LIMIT 2000",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

fn remove(connection: &Connection, run: &str) -> rusqlite::Result<usize> {
    connection
        .prepare_cached("DELETE FROM replies WHERE run = ?1")?
        .execute([run])
}
