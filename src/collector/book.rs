//! The collector's book, whichever database it is kept in.
//!
//! - `record` returns after what it took is durable: the sender forgets it then
//! - the same reports come to the same book, in whatever order, however often, in every database
//! - elsewhere: what is told of a task (`attempt`), SQLite (`sqlite`)

use super::attempt::{self, Told};
use super::list::{Filter, Page};
use super::sqlite;
use crate::store::{FaultKind, OpenError, Opened, Store, StoreError};
use crate::task::{Id, Report, State, Timestamp};
use crate::telemetry::metrics::{Collector as Metrics, Received};
use std::path::Path;
use std::sync::Arc;

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

/// Open calls by state, and how many are past their deadline without a word of their end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OpenCounts {
    pub(super) by_state: Vec<(State, u64)>,
    pub(super) stalled: u64,
}

/// Why the book did not answer.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    #[error(transparent)]
    Sqlite(#[from] StoreError),
}

/// A handle to the book; cheap to clone.
#[derive(Debug, Clone)]
pub(super) enum Book {
    Sqlite(sqlite::Book),
}

impl Book {
    /// Opens or creates a file; blocks for milliseconds.
    pub(super) fn open(path: &Path, metrics: Arc<Metrics>) -> Result<(Self, Opened), OpenError> {
        let (book, opened) = sqlite::Book::open(path, metrics)?;
        Ok((Self::Sqlite(book), opened))
    }

    /// The file itself, for those who keep a table of their own in it.
    pub(super) fn store(&self) -> &Store {
        match self {
            Self::Sqlite(book) => book.store(),
        }
    }

    /// Takes reports and returns after they are durable.
    pub(super) async fn record(&self, reports: Vec<Told>) -> Result<Recorded, BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.record(reports).await?),
        }
    }

    /// Reads all that is known of a task, grouped by call.
    pub(super) async fn task(&self, task_id: Id) -> Result<Vec<Vec<Told>>, BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.task(task_id).await?),
        }
    }

    /// Reads a page of tasks, newest first; a page may be short and still have a next one.
    pub(super) async fn tasks(&self, filter: Filter, now: Timestamp) -> Result<Page, BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.tasks(filter, now).await?),
        }
    }

    pub(super) async fn open_counts(&self, now: Timestamp) -> Result<OpenCounts, BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.open_counts(now).await?),
        }
    }

    /// Reads at most `most` attempts that are open although their deadline was before `cutoff`, the
    /// longest due first: of each open call the attempt that it stands by, as its decisive report
    /// tells it, with the deadline that counts. One that was marked has ended, and is not read again.
    pub(super) async fn overdue(
        &self,
        cutoff: Timestamp,
        most: usize,
    ) -> Result<Vec<Report>, BookError> {
        let calls = match self {
            Self::Sqlite(book) => book.overdue(cutoff, most).await?,
        };
        Ok(calls.iter().filter_map(|told| standing(told)).collect())
    }

    /// Forgets some calls that began before `cutoff`; returns whether there are more.
    pub(super) async fn forget(&self, cutoff: Timestamp) -> Result<bool, BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.forget(cutoff).await?),
        }
    }

    pub(super) async fn close(&self) -> Result<(), BookError> {
        match self {
            Self::Sqlite(book) => Ok(book.close().await?),
        }
    }
}

impl BookError {
    /// Says whether too much is waiting already.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::Sqlite(error) => error.kind() == FaultKind::QueueFull,
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
