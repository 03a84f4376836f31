//! Takes status reports from all sidecars and shows what became of each task; shows which contracts
//! are published and who runs them.
//!
//! - a report is confirmed only after it is on disk; one bad report bothers no other
//! - identity is (call, attempt, reporter and its application, state): repeats are duplicates, a
//!   different end state by the same one is a conflict, kept and shown, never applied
//! - reports and tasks need a certificate or the token, where there are any; `/metrics`, `/live`
//!   and `/ready` need no token
//! - whoever shows a certificate reports for the application it names, and for no other
//! - as the callee it reports only of contracts that this application serves, and is heard only
//!   where the caller meant it
//! - elsewhere: who sends reports (`reporter`), the words of a task (`task`)

mod api;
mod attempt;
mod board;
mod book;
mod chain;
mod claims;
mod compare;
mod ingest;
mod list;
mod postgres;
mod retention;
mod sqlite;
mod step;
mod verdict;
mod view;
mod watchdog;

#[cfg(test)]
mod tests;

use crate::consul::Client;
use crate::contract::trust::Trust;
use crate::identity::Secret;
use crate::lifecycle::{Observer, Phase};
use crate::socket::{self, Listener, Routes, ServerTls};
use crate::store::{OpenError, Opened, Store};
use crate::telemetry::metrics;
use board::Board;
use book::Book;
pub use book::BookError;
pub use postgres::{Address as PostgresAddress, Error as PostgresError};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

/// Bodies that are received, unpacked and read at the same time; each takes up to 20 MiB.
const INGESTS: usize = 32;

/// Idle connections are kept longer than the reporters keep theirs, so that none is closed under
/// a request. Out of time, a connection is dropped; its reports are sent again elsewhere.
const LIMITS: socket::Limits = socket::Limits {
    max_connections: 4_096,
    header_timeout: Duration::from_secs(10),
    idle_timeout: Duration::from_secs(60),
    stream_idle_timeout: Duration::from_secs(60),
    max_header_bytes: 64 * 1024,
    max_headers: 100,
    close: Duration::from_secs(5),
};

/// How the collector works.
#[derive(Debug, Clone)]
pub struct Config {
    pub store: Place,
    /// What a client must present, if anything.
    pub token: Option<Secret>,
    /// How long a task is remembered.
    pub retention: Duration,
}

/// Where the book is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a file of this process alone.
    File(PathBuf),
    /// In a database that collectors share.
    Postgres(Box<PostgresAddress>),
}

/// Why the book could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenBookError {
    #[error(transparent)]
    File(#[from] OpenError),
    #[error("use the database at {address}")]
    Postgres {
        address: Box<PostgresAddress>,
        #[source]
        source: PostgresError,
    },
}

/// An open collector; serves until told to stop, then wants to be closed.
#[derive(Debug)]
pub struct Collector {
    desk: Arc<Desk>,
}

/// What may change while the collector runs; a request reads it once.
#[derive(Debug)]
struct Terms {
    token: Option<Secret>,
    retention: Duration,
}

impl Terms {
    fn new(token: Option<Secret>, retention: Duration) -> Self {
        Self {
            token: token.filter(|token| !token.is_empty()),
            retention,
        }
    }
}

/// What every request needs.
#[derive(Debug)]
struct Desk {
    book: Book,
    metrics: Arc<metrics::Collector>,
    terms: watch::Sender<Terms>,
    ingests: Semaphore,
    /// Whether the last report could be stored.
    stores: AtomicBool,
    /// What is known of contracts; nothing where Consul is not asked.
    board: OnceLock<Arc<Board>>,
}

impl Collector {
    /// Opens or creates the database; one that is shared and away is waited for later.
    pub async fn open(
        config: Config,
        metrics: Arc<metrics::Collector>,
    ) -> Result<(Self, Opened), OpenBookError> {
        let (book, opened) = match config.store {
            Place::File(path) => Book::open(&path, metrics.clone())?,
            Place::Postgres(address) => {
                let book = Book::connect(&address, metrics.clone()).await;
                let book = book.map_err(|source| OpenBookError::Postgres { address, source })?;
                (book, Opened::default())
            }
        };
        let desk = Desk {
            book,
            metrics,
            terms: watch::Sender::new(Terms::new(config.token, config.retention)),
            ingests: Semaphore::new(INGESTS),
            stores: AtomicBool::new(true),
            board: OnceLock::new(),
        };
        let collector = Self {
            desk: Arc::new(desk),
        };
        Ok((collector, opened))
    }

    /// Asks for this token from now on, and keeps tasks for so long.
    pub fn follow_terms(&self, token: Option<Secret>, retention: Duration) {
        self.desk.terms.send_replace(Terms::new(token, retention));
    }

    /// Returns the collector's own file, where first keys of contracts are remembered; nothing where
    /// the book is in a shared database.
    pub fn store(&self) -> Option<&Store> {
        self.desk.book.store()
    }

    /// Shows what is published in Consul and who runs it, too; the future follows that for as long
    /// as it is polled. There is none where that has begun already.
    pub fn follow(
        &self,
        client: Client,
        trust: Arc<Trust>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let mut begun = None;
        self.desk.board.get_or_init(|| {
            let (board, following) = Board::open(client, trust, self.desk.metrics.clone());
            begun = Some(following);
            board
        });
        begun
    }

    /// Serves until the process stops, then lets running requests end; that is bounded.
    pub async fn serve(&self, listener: Listener, tls: Option<ServerTls>, lifecycle: Observer) {
        let mut ending = lifecycle.clone();
        let routes = Routes::new(api::router(self.desk.clone()));
        let connections = TaskTracker::new();
        let serving = socket::serve(
            listener,
            tls,
            routes,
            watch::Sender::new(LIMITS).subscribe(),
            lifecycle,
            connections.clone(),
        );
        let tending = async {
            // Each goes on for ever.
            let forgetting = retention::run(&self.desk);
            let watching = watchdog::run(&self.desk.book);
            tokio::select! {
                _ = async { tokio::join!(forgetting, watching, self.desk.book.tend()) } => {}
                () = ending.reached(Phase::Stopping) => {}
            }
        };
        tokio::join!(serving, tending);
        connections.close();
        connections.wait().await;
    }

    /// Commits what is queued and closes the database.
    pub async fn close(&self) -> Result<(), BookError> {
        self.desk.book.close().await
    }
}
