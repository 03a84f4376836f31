//! Taking reports, a batch per transaction and a few round trips per batch.
//!
//! Whoever writes holds the rows of the batch's tasks, locked in the order of their ids, from before
//! it reads what is known until its commit. So collectors that receive reports of one task take
//! turns, and each works on what the other has committed.

use super::fault::Error;
use super::pool::Lease;
use super::read::REPORT;
use super::sums;
use crate::collector::attempt::{CallSummary, Told, summarise};
use crate::collector::book::{Recorded, bit, broken};
use crate::collector::claims;
use crate::task::{Report, State, Timestamp};
use crate::telemetry::metrics::Received;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tokio_postgres::Row;

/// How often the rows of tasks are locked anew when they were forgotten meanwhile.
const LOCKS: usize = 5;

const KNOW_TASKS: &str = "
    INSERT INTO hermes.tasks
        (task_id, state, agent, application, sla_level, degraded, started_at)
    SELECT task_id, 'pending', '', '', 'P2', false, 0 FROM unnest($1::text[]) AS new (task_id)
    ON CONFLICT (task_id) DO NOTHING";

const LOCK_TASKS: &str = "
    SELECT task_id FROM hermes.tasks WHERE task_id = ANY ($1::text[]) ORDER BY task_id FOR UPDATE";

const CALLS: &str = "
    SELECT call_id, task_id, breaks FROM hermes.calls WHERE call_id = ANY ($1::text[])";

const REPORTS: &str = "
    SELECT detail, body, call_id, attempt, voice, state, seen
    FROM hermes.reports WHERE call_id = ANY ($1::text[])";

const INSERT_REPORTS: &str = "
    INSERT INTO hermes.reports (call_id, attempt, voice, state, seen, detail, body)
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::bigint[],
                         $6::text[], $7::text[])";

const UPDATE_REPORTS: &str = "
    UPDATE hermes.reports AS known
    SET state = told.state, seen = told.seen, body = coalesce(told.body, known.body),
        detail = CASE WHEN told.body IS NULL THEN known.detail ELSE told.detail END
    FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::bigint[],
                $6::text[], $7::text[])
        AS told (call_id, attempt, voice, state, seen, detail, body)
    WHERE known.call_id = told.call_id AND known.attempt = told.attempt
        AND known.voice = told.voice";

const INSERT_CONFLICTS: &str = "
    INSERT INTO hermes.conflicts (call_id, attempt, voice, state, at, body)
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::bigint[],
                         $6::text[])";

/// Tasks that nothing was taken for have no row before and none after.
const DROP_EMPTY: &str = "
    DELETE FROM hermes.tasks WHERE task_id = ANY ($1::text[])
        AND NOT EXISTS (SELECT FROM hermes.calls WHERE calls.task_id = tasks.task_id)";

/// What is known of one call, and what the batch changes.
#[derive(Default)]
struct Call {
    /// Nothing before its first report.
    task_id: Option<String>,
    breaks: usize,
    rows: BTreeMap<(u32, String), Known>,
    is_touched: bool,
}

/// What one voice told of one attempt.
struct Known {
    state: State,
    seen: i64,
    /// Nothing where the stored one cannot be read.
    told: Option<Told>,
    change: Change,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    /// It was told again, or otherwise; what it says stays.
    Seen,
    Told,
    New,
}

/// An end state that contradicts the one that stands.
struct Contradiction<'a>(&'a Report);

/// Takes a batch; nothing of it is there unless all is.
pub(super) async fn record(lease: &mut Lease, reports: &[Told]) -> Result<Recorded, Error> {
    if reports.is_empty() {
        return Ok(Recorded::default());
    }
    let tasks: BTreeSet<&str> = reports.iter().map(|t| t.report.task_id.as_str()).collect();
    let tasks: Vec<&str> = tasks.into_iter().collect();
    let ids: BTreeSet<&str> = reports.iter().map(|t| t.report.call_id.as_str()).collect();
    let ids: Vec<&str> = ids.into_iter().collect();
    begin(lease, &tasks).await?;
    let mut calls = known(lease, &ids).await?;
    let mut recorded = Recorded::default();
    let mut contradictions = Vec::new();
    for told in reports {
        let call = calls.entry(told.report.call_id.as_str()).or_default();
        let result = call.take(told, &mut contradictions);
        if result == Ok(Received::Accepted) && told.report.state.is_end() {
            let finished = (told.report.application.clone(), told.report.state);
            recorded.finished.push(finished);
        }
        recorded.results.push(result);
    }
    put_reports(lease, &calls, Change::New, INSERT_REPORTS).await?;
    put_reports(lease, &calls, Change::Told, UPDATE_REPORTS).await?;
    put_contradictions(lease, &contradictions).await?;
    let mut summaries: Vec<(CallSummary, usize)> = Vec::new();
    for call in calls.values().filter(|call| call.is_touched) {
        let told = call.told();
        let broken = broken(&told);
        if let Some(summary) = summarise(&told) {
            summaries.push((summary, broken.len()));
            recorded.breaks.extend(broken.into_iter().skip(call.breaks));
        }
    }
    sums::put_calls(lease, &summaries).await?;
    sums::put_tasks(lease, &summaries).await?;
    if recorded.results.iter().any(Result::is_err) {
        let empty = lease.prepared(DROP_EMPTY).await?;
        lease.client().execute(&empty, &[&tasks]).await?;
    }
    lease.client().batch_execute("COMMIT").await?;
    Ok(recorded)
}

/// Begins a transaction that holds the rows of these tasks, whether they are known or not.
async fn begin(lease: &mut Lease, tasks: &[&str]) -> Result<(), Error> {
    let know = lease.prepared(KNOW_TASKS).await?;
    let lock = lease.prepared(LOCK_TASKS).await?;
    let client = lease.client();
    let (params, begin) = ([&tasks as _], client.batch_execute("BEGIN"));
    // One round trip: they are sent in this order, and done in it.
    let (_, _, mut locked) = tokio::try_join!(
        begin,
        client.execute(&know, &params),
        client.query(&lock, &params)
    )?;
    for _ in 1..LOCKS {
        if locked.len() == tasks.len() {
            return Ok(());
        }
        // Between the two, one was forgotten.
        (_, locked) =
            tokio::try_join!(client.execute(&know, &params), client.query(&lock, &params))?;
    }
    match locked.len() == tasks.len() {
        true => Ok(()),
        false => Err(Error::Contended),
    }
}

/// Reads all that is known of these calls.
async fn known<'a>(lease: &mut Lease, ids: &[&'a str]) -> Result<HashMap<&'a str, Call>, Error> {
    let (calls, reports) = (lease.prepared(CALLS).await?, lease.prepared(REPORTS).await?);
    let client = lease.client();
    let params = [&ids as _];
    let (calls, reports) = tokio::try_join!(
        client.query(&calls, &params),
        client.query(&reports, &params)
    )?;
    let mut known: HashMap<&str, Call> = ids.iter().map(|id| (*id, Call::default())).collect();
    for row in &calls {
        let id: &str = row.try_get(0)?;
        if let Some(call) = known.get_mut(id) {
            call.task_id = Some(row.try_get(1)?);
            let breaks: i64 = row.try_get(2)?;
            call.breaks = usize::try_from(breaks).unwrap_or(0);
        }
    }
    for row in &reports {
        let id: &str = row.try_get(REPORT.call_id)?;
        if let Some(call) = known.get_mut(id) {
            call.remember(row)?;
        }
    }
    Ok(known)
}

impl Call {
    fn remember(&mut self, row: &Row) -> Result<(), Error> {
        let key = (REPORT.attempt(row)?, row.try_get(REPORT.voice)?);
        let known = Known {
            state: REPORT.state(row)?,
            seen: row.try_get(REPORT.seen)?,
            told: REPORT.told(row)?,
            change: Change::None,
        };
        self.rows.insert(key, known);
        Ok(())
    }

    /// Takes one report: the first with its state wins, an end state stays.
    fn take<'a>(
        &mut self,
        told: &'a Told,
        contradictions: &mut Vec<Contradiction<'a>>,
    ) -> Result<Received, &'static str> {
        let report = &told.report;
        let task_id = report.task_id.as_str();
        if self
            .task_id
            .as_deref()
            .is_some_and(|known| known != task_id)
        {
            return Err("the call belongs to another task");
        }
        self.task_id = Some(task_id.to_owned());
        let bit = bit(report.state);
        let key = (report.attempt, voice(report));
        let is_new = !self.rows.contains_key(&key);
        if is_new && self.count_rivals(report) >= claims::MOST_CLAIMS {
            return Err(claims::TOO_MANY);
        }
        let Some(known) = self.rows.get_mut(&key) else {
            let new = Known {
                state: report.state,
                seen: bit,
                told: Some(told.clone()),
                change: Change::New,
            };
            self.rows.insert(key, new);
            self.is_touched = true;
            return Ok(Received::Accepted);
        };
        if known.seen & bit != 0 {
            return Ok(Received::Duplicate);
        }
        known.seen |= bit;
        if known.change == Change::None {
            known.change = Change::Seen;
        }
        if known.state.is_end() {
            if report.state.is_end() {
                contradictions.push(Contradiction(report));
                return Ok(Received::Conflict);
            }
            // One that was overtaken is remembered as seen and tells nothing new.
            self.is_touched = true;
            return Ok(Received::Accepted);
        }
        known.state = report.state;
        known.told = Some(told.clone());
        if known.change == Change::Seen {
            known.change = Change::Told;
        }
        self.is_touched = true;
        Ok(Received::Accepted)
    }

    /// Counts who has reported as the same side of the attempt.
    fn count_rivals(&self, report: &Report) -> usize {
        let rivals = claims::rivals(report);
        let bounds = (report.attempt, rivals.start)..(report.attempt, rivals.end);
        self.rows.range(bounds).count()
    }

    /// Returns what is told of the call now, in the order in which it is read back.
    fn told(&self) -> Vec<Told> {
        let told = self.rows.values().filter_map(|known| known.told.clone());
        told.collect()
    }
}

/// Columns of the reports that are new, or of those that changed.
#[derive(Default)]
struct Columns<'a> {
    call_ids: Vec<&'a str>,
    attempts: Vec<i64>,
    voices: Vec<&'a str>,
    states: Vec<&'static str>,
    seen: Vec<i64>,
    details: Vec<Option<String>>,
    bodies: Vec<Option<String>>,
}

async fn put_reports(
    lease: &mut Lease,
    calls: &HashMap<&str, Call>,
    which: Change,
    sql: &'static str,
) -> Result<(), Error> {
    let mut columns = Columns::default();
    for (id, call) in calls {
        for ((attempt, voice), known) in &call.rows {
            let is_one = match which {
                Change::New => known.change == Change::New,
                _ => matches!(known.change, Change::Seen | Change::Told),
            };
            if !is_one {
                continue;
            }
            columns.call_ids.push(id);
            columns.attempts.push(i64::from(*attempt));
            columns.voices.push(voice);
            columns.states.push(known.state.as_str());
            columns.seen.push(known.seen);
            let told = known.told.as_ref().filter(|_| known.change != Change::Seen);
            let detail = told.and_then(|told| told.detail.as_deref());
            columns.details.push(detail.map(storable));
            columns
                .bodies
                .push(told.map(|told| json(&told.report)).transpose()?);
        }
    }
    let count = columns.call_ids.len();
    if count == 0 {
        return Ok(());
    }
    let statement = lease.prepared(sql).await?;
    let written = lease
        .client()
        .execute(
            &statement,
            &[
                &columns.call_ids,
                &columns.attempts,
                &columns.voices,
                &columns.states,
                &columns.seen,
                &columns.details,
                &columns.bodies,
            ],
        )
        .await?;
    match written as usize == count {
        true => Ok(()),
        false => Err(Error::Contended),
    }
}

async fn put_contradictions(
    lease: &mut Lease,
    contradictions: &[Contradiction<'_>],
) -> Result<(), Error> {
    if contradictions.is_empty() {
        return Ok(());
    }
    let reports = || contradictions.iter().map(|one| one.0);
    let last = |report: &Report| report.states.last().map_or(0, |last| millis(last.at));
    let bodies: Result<Vec<String>, Error> = reports().map(json).collect();
    let statement = lease.prepared(INSERT_CONFLICTS).await?;
    lease
        .client()
        .execute(
            &statement,
            &[
                &reports().map(|r| r.call_id.as_str()).collect::<Vec<_>>(),
                &reports().map(|r| i64::from(r.attempt)).collect::<Vec<_>>(),
                &reports().map(voice).collect::<Vec<_>>(),
                &reports().map(|r| r.state.as_str()).collect::<Vec<_>>(),
                &reports().map(last).collect::<Vec<_>>(),
                &bodies?,
            ],
        )
        .await?;
    Ok(())
}

/// Writes a report as it is kept; as JSON it holds no NUL, which PostgreSQL could not keep.
fn json(report: &Report) -> Result<String, Error> {
    serde_json::to_string(report).map_err(|_error| Error::Unreadable("report"))
}

/// Names who speaks: what the same voice says again is a repeat or a conflict.
pub(super) fn voice(report: &Report) -> String {
    storable(&claims::voice(report))
}

/// Makes a text that PostgreSQL can keep: it knows no NUL.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{FFFD}")
}

pub(super) fn millis(at: Timestamp) -> i64 {
    // A timestamp ends with the year 9999, far below the limit.
    at.millis() as i64
}
