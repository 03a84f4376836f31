//! Takes status reports from all sidecars and shows what became of each task.
//!
//! - a report is confirmed only after it is on disk; one bad report bothers no other
//! - identity is (call, attempt, reporter, state): repeats are duplicates, a different end state
//!   by the same reporter is a conflict, kept and shown, never applied
//! - reports and tasks need the token, if there is one; `/metrics`, `/live` and `/ready` do not
//! - elsewhere: who sends reports (`reporter`), the words of a task (`task`)

mod api;
mod attempt;
mod ingest;
mod list;
mod listen;
mod retention;
mod sqlite;
mod view;

#[cfg(test)]
mod tests;

use crate::identity::Secret;
use crate::store::{OpenError, Opened, StoreError};
use crate::telemetry::metrics;
use sqlite::Book;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Bodies that are received, unpacked and read at the same time; each takes up to 20 MiB.
const INGESTS: usize = 32;

/// How the collector works.
#[derive(Debug, Clone)]
pub struct Config {
    pub path: PathBuf,
    /// What a client must present, if anything.
    pub token: Option<Secret>,
    /// How long a task is remembered.
    pub retention: Duration,
}

/// An open collector; serves until told to stop, then wants to be closed.
#[derive(Debug)]
pub struct Collector {
    desk: Arc<Desk>,
}

/// What every request needs.
#[derive(Debug)]
struct Desk {
    book: Book,
    metrics: Arc<metrics::Collector>,
    token: Option<Secret>,
    retention: Duration,
    ingests: Semaphore,
    /// Whether the last report could be stored.
    stores: AtomicBool,
}

impl Collector {
    /// Opens or creates the database; blocks for milliseconds.
    pub fn open(
        config: Config,
        metrics: Arc<metrics::Collector>,
    ) -> Result<(Self, Opened), OpenError> {
        let (book, opened) = Book::open(&config.path, metrics.clone())?;
        let desk = Desk {
            book,
            metrics,
            token: config.token.filter(|token| !token.is_empty()),
            retention: config.retention,
            ingests: Semaphore::new(INGESTS),
            stores: AtomicBool::new(true),
        };
        let collector = Self {
            desk: Arc::new(desk),
        };
        Ok((collector, opened))
    }

    /// Serves until `shutdown` resolves, then lets running requests end; that is bounded.
    pub async fn serve(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let stop = CancellationToken::new();
        let serving = listen::listen(listener, api::router(self.desk.clone()), stop.clone());
        let forgetting = stop.run_until_cancelled(retention::run(&self.desk));
        let stopping = async {
            shutdown.await;
            stop.cancel();
        };
        tokio::join!(serving, forgetting, stopping);
    }

    /// Commits what is queued and closes the database.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.desk.book.close().await
    }
}
