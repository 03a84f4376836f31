//! The table of late calls: one row per call and side, from its acknowledgement to its last use.

use super::{KEPT, MOST_OPEN, Name, Reply};
use crate::store::Bounds;
use crate::task::{Id, State, Timestamp};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::Arc;
use std::time::Duration;

/// This room's step of the state file's schema.
pub const MIGRATION: &str = "
    CREATE TABLE deferred (
        side TEXT NOT NULL CHECK (side IN ('caller', 'callee')),
        scope TEXT NOT NULL,
        call_id TEXT NOT NULL,
        run TEXT NOT NULL,
        task_id TEXT NOT NULL,
        boot TEXT NOT NULL,
        state TEXT NOT NULL,
        is_ended INTEGER NOT NULL,
        ends_at INTEGER NOT NULL,
        size INTEGER NOT NULL,
        status INTEGER,
        headers BLOB,
        body BLOB,
        PRIMARY KEY (side, scope, call_id)
    ) STRICT;
    CREATE INDEX deferred_by_end ON deferred (is_ended, ends_at, size);";

/// No call is open for longer than a day; a row without a reply outlives its call by `KEPT`.
const LONGEST: Duration = Duration::from_secs(25 * 3_600);
/// How many rows go at once; more would hold the one writer up.
const MOST_REMOVED: usize = 2_000;
/// What a row takes beside its reply.
const ROW_BYTES: usize = 512;

/// What makes a row.
#[derive(Debug, Clone)]
pub struct Row {
    pub side: &'static str,
    pub name: Name,
    /// Names the attempt that wrote it, so that an earlier one's end does not count any more.
    pub run: Id,
    pub task_id: Id,
    pub boot: Arc<str>,
}

/// What the table knows of a call that this process has not open.
pub enum Known {
    Ended(Reply),
    Left { task_id: Id, state: State },
}

/// Writes the row of an acknowledged call, over that of an earlier attempt.
pub fn begin(connection: &Connection, row: &Row, now: Timestamp) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO deferred
                 (side, scope, call_id, run, task_id, boot, state, is_ended, ends_at, size)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, ?9)",
        )?
        .execute(params![
            row.side,
            &*row.name.scope,
            row.name.call_id.as_str(),
            row.run.as_str(),
            row.task_id.as_str(),
            &*row.boot,
            State::Executing.as_str(),
            until(now, LONGEST),
            ROW_BYTES as i64,
        ])?;
    Ok(())
}

/// Writes the reply, whether or not the row could be begun; a newer attempt's row stays.
pub fn answered(
    connection: &Connection,
    row: &Row,
    reply: &Reply,
    now: Timestamp,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO deferred
                 (side, scope, call_id, run, task_id, boot, state, is_ended, ends_at, size,
                  status, headers, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 1, ?8, ?9, ?10, ?11, ?12)
             ON CONFLICT (side, scope, call_id) DO UPDATE SET
                 is_ended = 1, ends_at = excluded.ends_at, size = excluded.size,
                 status = excluded.status, headers = excluded.headers, body = excluded.body
             WHERE run = excluded.run",
        )?
        .execute(params![
            row.side,
            &*row.name.scope,
            row.name.call_id.as_str(),
            row.run.as_str(),
            row.task_id.as_str(),
            &*row.boot,
            State::Executing.as_str(),
            until(now, KEPT),
            size(reply) as i64,
            reply.status.as_u16(),
            written(&reply.headers),
            &*reply.body,
        ])?;
    Ok(())
}

/// Notes that the call was given up in `state`.
pub fn left(connection: &Connection, row: &Row, state: State) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE deferred SET state = ?2 WHERE run = ?1 AND is_ended = 0")?
        .execute([row.run.as_str(), state.as_str()])?;
    Ok(())
}

/// Looks a call up that has not had its time.
pub fn find(
    connection: &Connection,
    side: &str,
    name: &Name,
    now: Timestamp,
) -> rusqlite::Result<Option<Known>> {
    connection
        .prepare_cached(
            "SELECT task_id, state, status, headers, body FROM deferred
             WHERE side = ?1 AND scope = ?2 AND call_id = ?3 AND ends_at > ?4",
        )?
        .query_row(
            params![
                side,
                &*name.scope,
                name.call_id.as_str(),
                now.millis() as i64
            ],
            known,
        )
        .optional()
        .map(Option::flatten)
}

fn known(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<Known>> {
    let Some(status) = row.get::<_, Option<u16>>(2)? else {
        let Ok(task_id) = Id::parse(row.get_ref(0)?.as_str()?) else {
            return Ok(None);
        };
        let state = State::from_wire(row.get_ref(1)?.as_str()?).unwrap_or(State::Executing);
        return Ok(Some(Known::Left { task_id, state }));
    };
    Ok(Some(Known::Ended(Reply {
        status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        headers: read(row.get_ref(3)?.as_blob()?),
        body: row.get::<_, Vec<u8>>(4)?.into(),
    })))
}

/// Removes what has had its time.
pub fn prune(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    for is_ended in [0, 1] {
        connection
            .prepare_cached("DELETE FROM deferred WHERE is_ended = ?1 AND ends_at <= ?2")?
            .execute(params![is_ended, now.millis() as i64])?;
    }
    Ok(())
}

/// Whose calls may still get a reply.
pub struct Here<'a> {
    pub boot: &'a str,
    pub side: &'a str,
    pub is_open: &'a dyn Fn(&Name) -> bool,
}

/// Removes the oldest where rows or bytes are beyond the bounds with what is coming, replies before
/// what was left without one, by a former process or because the reply could not be written; returns
/// how many of both may come before that is to be looked at again. What is open here stays: it is
/// bounded by its own number.
pub fn make_room(
    connection: &Connection,
    here: &Here<'_>,
    bounds: Bounds,
    (more_rows, more_bytes): (i64, i64),
) -> rusqlite::Result<(i64, i64)> {
    let (rows, bytes): (i64, i64) = connection
        .prepare_cached("SELECT count(*), coalesce(sum(size), 0) FROM deferred")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut rows = rows.saturating_add(more_rows);
    let mut bytes = bytes.saturating_add(more_bytes);
    if bounds.are_reached(rows, bytes) {
        let aim = bounds.aim();
        for (row, size) in removable(connection, here)? {
            if rows <= aim.max_rows && bytes <= aim.max_bytes {
                break;
            }
            connection
                .prepare_cached("DELETE FROM deferred WHERE rowid = ?1")?
                .execute([row])?;
            rows -= 1;
            bytes -= size;
        }
    }
    Ok((bounds.max_rows - rows, bounds.max_bytes - bytes))
}

/// Lists some that may go, oldest first: replies, then what was left without one. Which calls of the
/// other side are open is not known here, so these stay.
fn removable(connection: &Connection, here: &Here<'_>) -> rusqlite::Result<Vec<(i64, i64)>> {
    let mut rows = connection.prepare_cached(
        "SELECT rowid, size, scope, call_id, is_ended OR boot != ?1 FROM deferred
         WHERE is_ended = 1 OR boot != ?1 OR side = ?2
         ORDER BY is_ended DESC, ends_at LIMIT ?3",
    )?;
    let most = (MOST_REMOVED + MOST_OPEN) as i64;
    let mut rows = rows.query(params![here.boot, here.side, most])?;
    let mut removable = Vec::new();
    while let Some(row) = rows.next()?
        && removable.len() < MOST_REMOVED
    {
        let may_go = row.get::<_, bool>(4)? || {
            let call_id = Id::parse(row.get_ref(3)?.as_str()?);
            let scope = Arc::from(row.get_ref(2)?.as_str()?);
            call_id.map_or(true, |call_id| !(here.is_open)(&Name { scope, call_id }))
        };
        if may_go {
            removable.push((row.get(0)?, row.get(1)?));
        }
    }
    Ok(removable)
}

/// Returns what a row with this reply takes.
pub fn size(reply: &Reply) -> usize {
    let headers = reply.headers.iter();
    let headers: usize = headers
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    ROW_BYTES + headers + reply.body.len()
}

fn until(now: Timestamp, length: Duration) -> i64 {
    now.millis() as i64 + length.as_millis() as i64
}

/// Writes fields as HTTP/1.1 does: no value holds a line end.
fn written(headers: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in headers {
        lines.extend_from_slice(name.as_str().as_bytes());
        lines.push(b':');
        lines.extend_from_slice(value.as_bytes());
        lines.push(b'\n');
    }
    lines
}

fn read(lines: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(&line[colon + 1..]);
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}
