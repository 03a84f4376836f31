//! The collector's book, whichever database it is kept in.
//!
//! - `record` returns after what it took is durable: the sender forgets it then
//! - the same reports come to the same book, in whatever order, however often, in every database
//! - elsewhere: what is told of a task (`attempt`), the databases (`sqlite`, `postgres`)

use super::attempt::{self, Attempt, Told};
use super::list::{Filter, Page};
use super::{postgres, sqlite};
use crate::store::{FaultKind, OpenError, Opened, Store, StoreError};
use crate::task::{Id, Report, Reporter, State, Timestamp};
use crate::telemetry::metrics::{Collector as Metrics, Received};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Calls of one task that are shown at most; the newest.
pub(super) const MOST_CALLS: usize = 1_000;

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

/// Open calls by state, and how many are past their deadline without a word of their end, those that
/// are marked for an hour.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OpenCounts {
    pub(super) by_state: Vec<(State, u64)>,
    pub(super) stalled: u64,
}

/// How long a call that only a mark has ended counts as stalled: long enough to be alarmed, and not
/// for as long as it is remembered.
pub(super) const STALLED: Duration = Duration::from_secs(3600);

/// A place in the order in which open calls become due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) deadline_at: Timestamp,
    pub(super) call_id: String,
}

/// Some of the calls that are overdue, and the last of them where there may be more.
#[derive(Debug)]
pub(super) struct Overdue<T> {
    pub(super) calls: Vec<T>,
    pub(super) next: Option<Due>,
}

/// Why the book did not answer.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    #[error(transparent)]
    Sqlite(#[from] StoreError),
    #[error(transparent)]
    Postgres(#[from] postgres::Error),
}

/// A handle to the book; cheap to clone.
#[derive(Debug, Clone)]
pub(super) enum Book {
    Sqlite(sqlite::Book),
    Postgres(postgres::Book),
}

impl Book {
    /// Opens or creates a file; blocks for milliseconds.
    pub(super) fn open(path: &Path, metrics: Arc<Metrics>) -> Result<(Self, Opened), OpenError> {
        let (book, opened) = sqlite::Book::open(path, metrics)?;
        Ok((Self::Sqlite(book), opened))
    }

    /// Connects to a database that others may share. One that is away is tried again later.
    pub(super) async fn connect(
        address: &postgres::Address,
        metrics: Arc<Metrics>,
    ) -> Result<Self, postgres::Error> {
        Ok(Self::Postgres(
            postgres::Book::open(address, metrics).await?,
        ))
    }

    /// The file itself, for those who keep a table of their own in it; nothing where there is none.
    pub(super) fn store(&self) -> Option<&Store> {
        match self {
            Self::Sqlite(book) => Some(book.store()),
            Self::Postgres(_) => None,
        }
    }

    /// Looks after the connection to a shared database, for as long as it is polled.
    pub(super) async fn tend(&self) {
        match self {
            Self::Sqlite(_) => std::future::pending().await,
            Self::Postgres(book) => book.tend().await,
        }
    }

    /// Says whether reports could be taken again, after one could not.
    pub(super) async fn has_recovered(&self) -> bool {
        match self {
            // Nothing but a write shows whether a disk takes one.
            Self::Sqlite(_) => false,
            Self::Postgres(book) => book.reach().await.is_ok(),
        }
    }

    /// Takes reports and returns after they are durable.
    pub(super) async fn record(&self, reports: Vec<Told>) -> Result<Recorded, BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.record(reports).await?),
            Self::Postgres(book) => Ok(book.record(reports).await?),
        }
    }

    /// Reads what is known of a task, grouped by call: of its newest `MOST_CALLS`.
    pub(super) async fn task(&self, task_id: Id) -> Result<Vec<Vec<Told>>, BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.task(task_id).await?),
            Self::Postgres(book) => Ok(book.task(task_id).await?),
        }
    }

    /// Counts all calls of a task.
    pub(super) async fn count_calls(&self, task_id: Id) -> Result<usize, BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.count_calls(task_id).await?),
            Self::Postgres(book) => Ok(book.count_calls(task_id).await?),
        }
    }

    /// Reads a page of tasks, newest first; a page may be short and still have a next one.
    pub(super) async fn tasks(&self, filter: Filter, now: Timestamp) -> Result<Page, BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.tasks(filter, now).await?),
            Self::Postgres(book) => Ok(book.tasks(filter, now).await?),
        }
    }

    pub(super) async fn open_counts(&self, now: Timestamp) -> Result<OpenCounts, BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.open_counts(now).await?),
            Self::Postgres(book) => Ok(book.open_counts(now).await?),
        }
    }

    /// Reads of at most `most` calls after a place, which are open although their deadline was before
    /// `cutoff`, the attempts that are open, the longest due first: of each call the attempt that it stands by, as its decisive report
    /// tells it, with the deadline that counts. One that was marked has ended, and is not read again.
    pub(super) async fn overdue(
        &self,
        after: Due,
        cutoff: Timestamp,
        most: usize,
    ) -> Result<Overdue<Report>, BookError> {
        let overdue = match self {
            Self::Sqlite(book) => book.overdue(after, cutoff, most).await?,
            Self::Postgres(book) => book.overdue(after, cutoff, most).await?,
        };
        let calls = overdue.calls.iter();
        Ok(Overdue {
            calls: calls.filter_map(|told| standing(told)).collect(),
            next: overdue.next,
        })
    }

    /// Forgets some calls that began before `cutoff`; returns whether there are more.
    pub(super) async fn forget(&self, cutoff: Timestamp) -> Result<bool, BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.forget(cutoff).await?),
            Self::Postgres(book) => Ok(book.forget(cutoff).await?),
        }
    }

    pub(super) async fn close(&self) -> Result<(), BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.close().await?),
            Self::Postgres(book) => {
                book.close().await;
                Ok(())
            }
        }
    }
}

impl Due {
    /// Returns the place before all calls that are due at an instant or later.
    pub(super) fn from(deadline_at: Timestamp) -> Self {
        Self {
            deadline_at,
            // Before every id.
            call_id: String::new(),
        }
    }
}

impl BookError {
    /// Says whether it only repeats that a shared database is away, which was told when it went.
    pub(super) fn is_repeat(&self) -> bool {
        matches!(self, Self::Postgres(error) if error.is_repeat())
    }

    /// Says whether too much is waiting already.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::Sqlite(error) => error.kind() == FaultKind::QueueFull,
            Self::Postgres(error) => error.is_full(),
        }
    }
}

/// Returns the report by which an open call stands.
fn standing(told: &[Told]) -> Option<Report> {
    let attempts = attempt::attempts(told);
    let newest = attempt::newest(&attempts)?;
    (!newest.state.is_end()).then(|| Report {
        deadline_at: newest.due_at(),
        ..newest.decisive.clone()
    })
}

/// Returns the applications of attempts whose chain is broken, in the order of the attempts.
pub(super) fn broken(told: &[Told]) -> Vec<String> {
    let attempts = attempt::attempts(told);
    let broken = attempts.iter().filter(|one| !one.breaks().is_empty());
    broken
        .map(|one| callee_application(one).to_owned())
        .collect()
}

fn callee_application<'a>(attempt: &Attempt<'a>) -> &'a str {
    let callee = attempt.by(Reporter::Callee);
    &callee.unwrap_or(attempt.decisive).application
}

/// Returns a state's place in what a reporter has told; never renumbered, since databases hold it.
pub(super) fn bit(state: State) -> i64 {
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
