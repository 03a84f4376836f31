//! The questions that are asked of the book.

use super::fault::Error;
use super::pool::Lease;
use super::write::{millis, storable, voice};
use crate::collector::attempt::Told;
use crate::collector::book::{Due, MOST_CALLS, OpenCounts, Overdue, STALLED};
use crate::collector::list::{Filter, Page, TaskLine};
use crate::task::{Id, Report, SlaLevel, State, StateAt, Timestamp};
use std::collections::HashMap;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Rows that one query of a list looks at, and how many it fetches at a time.
const WINDOW: usize = 20_000;
const PORTION: i32 = 500;

const OF_TASK: &str = "
    SELECT told.detail, told.body, told.call_id, told.attempt, told.voice
    FROM (
        SELECT call_id, started_at FROM hermes.calls WHERE task_id = $1
        ORDER BY started_at DESC, call_id DESC LIMIT $2
    ) AS newest
    JOIN hermes.reports AS told USING (call_id)
    ORDER BY newest.started_at, call_id, told.attempt, told.voice";

const CALLS_OF_TASK: &str = "SELECT count(*) FROM hermes.calls WHERE task_id = $1";

const CONFLICTS_OF_TASK: &str = "
    SELECT call_id, attempt, voice, conflicts.state, at FROM hermes.conflicts
    JOIN hermes.calls USING (call_id) WHERE task_id = $1 ORDER BY at, conflicts.state";

const PAGE: &str = "
    SELECT task_id, state, agent, application, sla_level, degraded, started_at, ended_at
    FROM hermes.tasks WHERE (started_at, task_id) < ($1, $2)
    ORDER BY started_at DESC, task_id DESC LIMIT $3";

const OPEN: &str = "
    SELECT state, count(*), count(*) FILTER (WHERE deadline_at < $1)
    FROM hermes.calls WHERE ended_at IS NULL GROUP BY state";

/// A mark is a collector's own: nobody has told of the end of these either.
const MARKED: &str = "SELECT count(*) FROM hermes.calls WHERE marked AND ended_at > $1";

const OVERDUE: &str = "
    SELECT told.detail, told.body, told.call_id, told.attempt, told.voice, due.deadline_at
    FROM (
        SELECT call_id, deadline_at FROM hermes.calls
        WHERE ended_at IS NULL AND deadline_at < $1 AND (deadline_at, call_id) > ($2, $3)
        ORDER BY deadline_at, call_id LIMIT $4
    ) AS due
    JOIN hermes.reports AS told USING (call_id)
    ORDER BY due.deadline_at, call_id, told.attempt, told.voice";

/// Where `OVERDUE` has the deadline by which it is ordered.
const DEADLINE: usize = 5;

/// Where a query of reports has its columns.
pub(super) struct Columns {
    detail: usize,
    body: usize,
    pub(super) call_id: usize,
    attempt: usize,
    pub(super) voice: usize,
    state: usize,
    pub(super) seen: usize,
}

pub(super) const REPORT: Columns = Columns {
    detail: 0,
    body: 1,
    call_id: 2,
    attempt: 3,
    voice: 4,
    state: 5,
    seen: 6,
};

impl Columns {
    pub(super) fn attempt(&self, row: &Row) -> Result<u32, Error> {
        number(row, self.attempt)
    }

    pub(super) fn state(&self, row: &Row) -> Result<State, Error> {
        state(row.try_get(self.state)?)
    }

    /// Reads what was told; nothing where that is damaged, which must not hide its neighbours.
    pub(super) fn told(&self, row: &Row) -> Result<Option<Told>, Error> {
        let body: &str = row.try_get(self.body)?;
        let Ok(report) = serde_json::from_str::<Report>(body) else {
            let call: &str = row.try_get(self.call_id)?;
            tracing::error!(call, "a stored report cannot be read");
            return Ok(None);
        };
        Ok(Some(Told {
            report,
            detail: row.try_get(self.detail)?,
            conflicts: Vec::new(),
        }))
    }
}

/// A call, an attempt, a voice.
type Key = (String, u32, String);

pub(super) async fn task(lease: &mut Lease, task_id: &Id) -> Result<Vec<Vec<Told>>, Error> {
    let statement = lease.prepared(OF_TASK).await?;
    let conflicts = lease.prepared(CONFLICTS_OF_TASK).await?;
    let client = lease.client();
    let id = task_id.as_str();
    let params: [&(dyn ToSql + Sync); 2] = [&id, &(MOST_CALLS as i64)];
    let (rows, conflicts) = tokio::try_join!(
        client.query(&statement, &params),
        client.query(&conflicts, &params[..1])
    )?;
    let mut found: HashMap<Key, Vec<StateAt>> = HashMap::new();
    for row in &conflicts {
        let key = (row.try_get(0)?, number(row, 1)?, row.try_get(2)?);
        found.entry(key).or_default().push(StateAt {
            state: state(row.try_get(3)?)?,
            at: timestamp(row.try_get(4)?),
        });
    }
    let mut calls = grouped(&rows)?;
    for told in calls.iter_mut().flatten() {
        let report = &told.report;
        let key = (report.call_id.to_string(), report.attempt, voice(report));
        told.conflicts = found.remove(&key).unwrap_or_default();
    }
    Ok(calls)
}

pub(super) async fn count_calls(lease: &mut Lease, task_id: &Id) -> Result<usize, Error> {
    let statement = lease.prepared(CALLS_OF_TASK).await?;
    let id = task_id.as_str();
    let row = lease.client().query_one(&statement, &[&id]).await?;
    let count: i64 = row.try_get(0)?;
    Ok(count.max(0) as usize)
}

pub(super) async fn overdue(
    lease: &mut Lease,
    after: &Due,
    cutoff: Timestamp,
    most: usize,
) -> Result<Overdue<Vec<Told>>, Error> {
    let statement = lease.prepared(OVERDUE).await?;
    let (cutoff, limit) = (millis(cutoff), i64::try_from(most).unwrap_or(i64::MAX));
    let from = millis(after.deadline_at);
    let params: [&(dyn ToSql + Sync); 4] = [&cutoff, &from, &after.call_id, &limit];
    let rows = lease.client().query(&statement, &params).await?;
    // Counted by their rows: what cannot be read must not hide what is behind it.
    let mut ids: Vec<&str> = Vec::new();
    for row in &rows {
        ids.push(row.try_get(REPORT.call_id)?);
    }
    ids.dedup();
    let next = match rows.last().filter(|_| ids.len() >= most) {
        Some(last) => Some(Due {
            deadline_at: timestamp(last.try_get(DEADLINE)?),
            call_id: last.try_get(REPORT.call_id)?,
        }),
        None => None,
    };
    let calls = grouped(&rows)?;
    Ok(Overdue { calls, next })
}

/// Puts the reports of each call together; those of one call follow each other.
fn grouped(rows: &[Row]) -> Result<Vec<Vec<Told>>, Error> {
    let mut calls: Vec<Vec<Told>> = Vec::new();
    for row in rows {
        let Some(told) = REPORT.told(row)? else {
            continue;
        };
        match calls.last_mut() {
            Some(call) if call[0].report.call_id == told.report.call_id => call.push(told),
            _ => calls.push(vec![told]),
        }
    }
    Ok(calls)
}

pub(super) async fn page(lease: &mut Lease, filter: Filter, now: Timestamp) -> Result<Page, Error> {
    let statement = lease.prepared(PAGE).await?;
    let (before, id) = filter.cursor();
    let (before, id) = (millis(before), storable(id));
    let mut page = Page::new(filter);
    let transaction = lease.transaction().await?;
    let portal = transaction
        .bind(&statement, &[&before, &id, &(WINDOW as i64)])
        .await?;
    'window: while page.looked() < WINDOW {
        // Few pages look at many rows: those of the window come as they are wanted.
        let rows = transaction.query_portal(&portal, PORTION).await?;
        for row in &rows {
            if !page.look(line(row)?, now) {
                break 'window;
            }
        }
        if rows.len() < PORTION as usize && page.looked() < WINDOW {
            page.exhaust();
            break;
        }
    }
    transaction.commit().await?;
    Ok(page)
}

fn line(row: &Row) -> Result<TaskLine, Error> {
    let ended_at: Option<i64> = row.try_get(7)?;
    Ok(TaskLine {
        task_id: row.try_get(0)?,
        state: state(row.try_get(1)?)?,
        agent: row.try_get(2)?,
        application: row.try_get(3)?,
        sla_level: SlaLevel::from_wire(row.try_get(4)?).ok_or(Error::Unreadable("SLA level"))?,
        degraded: row.try_get(5)?,
        started_at: timestamp(row.try_get(6)?),
        ended_at: ended_at.map(timestamp),
    })
}

pub(super) async fn open_counts(lease: &mut Lease, now: Timestamp) -> Result<OpenCounts, Error> {
    let (open, marked) = (lease.prepared(OPEN).await?, lease.prepared(MARKED).await?);
    let since = millis(now.minus(STALLED));
    let (client, now) = (lease.client(), millis(now));
    let params: [&(dyn ToSql + Sync); 1] = [&now];
    let recent: [&(dyn ToSql + Sync); 1] = [&since];
    let (rows, marked) = tokio::try_join!(
        client.query(&open, &params),
        client.query_one(&marked, &recent)
    )?;
    let mut counts = OpenCounts::default();
    for row in &rows {
        let (count, stalled): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
        counts
            .by_state
            .push((state(row.try_get(0)?)?, count.max(0) as u64));
        counts.stalled += stalled.max(0) as u64;
    }
    let marked: i64 = marked.try_get(0)?;
    counts.stalled += marked.max(0) as u64;
    Ok(counts)
}

fn number(row: &Row, index: usize) -> Result<u32, Error> {
    let number: i64 = row.try_get(index)?;
    u32::try_from(number).map_err(|_error| Error::Unreadable("attempt"))
}

fn state(name: &str) -> Result<State, Error> {
    State::from_wire(name).ok_or(Error::Unreadable("state"))
}

fn timestamp(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis.max(0) as u64)
}
