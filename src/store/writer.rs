//! The one thread that writes.
//!
//! - everything queued goes into one commit; each job has its own savepoint, so one that fails
//!   takes nobody along
//! - whoever waits is answered after the commit, never before
//! - a failed commit fails its jobs, not the thread: the next group simply tries again

use super::file::{self, Identity};
use super::queue::{Next, Queue};
use super::reader::Request;
use super::{Observe, StoreError, Usage};
use rusqlite::Connection;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::time::Instant;

/// How long a row that nobody waits for stays queued: a lone commit costs eight times a grouped row.
const LINGER: Duration = Duration::from_millis(5);

/// How often sizes are read; at 100 MB/s a limit is overshot by 2 MB.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The log is emptied by force beyond this size, whoever is reading.
const LOG_LIMIT: u64 = 32 << 20;

/// After so many commits, or so much growth of the log, the second connection is asked to copy it
/// into the file; what is then left for a forced emptying is little.
const CHECKPOINT_COMMITS: u32 = 1_000;
const CHECKPOINT_GROWTH: u64 = 4 << 20;

/// So many free pages are kept for the rows to come.
const FREE_PAGES: u64 = 256;

/// Pages given back at once: half a millisecond beside work, some ten when there is none.
const GIVEN_BACK_BUSY: u64 = 64;
const GIVEN_BACK_IDLE: u64 = 1024;

/// An idle log beyond this size is emptied.
const IDLE_LOG: u64 = 1 << 20;

pub(super) type Jobs = Queue<Box<dyn Work>>;

/// One queued job.
pub(super) trait Work: Send {
    /// Does its part of the transaction.
    fn run(&mut self, connection: &Connection) -> Result<(), StoreError>;

    /// Hears how the transaction ended.
    fn settle(self: Box<Self>, commit: Result<(), StoreError>);
}

pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) jobs: Arc<Jobs>,
    pub(super) usage: Arc<Usage>,
    pub(super) dirty: Arc<AtomicBool>,
    pub(super) reader: SyncSender<Request>,
    pub(super) path: PathBuf,
    /// Which file that name meant when it was opened.
    pub(super) identity: Option<Identity>,
    pub(super) log_path: PathBuf,
    pub(super) observe: Observe,
    pub(super) looked_at: Instant,
    /// Commits, and the size of the log, since the last checkpoint was asked for.
    pub(super) commits: u32,
    pub(super) log_then: u64,
}

impl Writer {
    /// Runs until the queue is finished or abandoned.
    pub(super) fn run(mut self) {
        // However this thread ends, nobody may wait for it any longer.
        let _guard = AbandonOnExit(self.jobs.clone());
        let mut group = Vec::new();
        self.measure();
        loop {
            match self.jobs.take(&mut group, LINGER) {
                Next::Work => self.work(&mut group),
                Next::Idle => self.tidy(),
                Next::Finish => return self.empty_log(),
                Next::Abandon => return,
            }
        }
    }

    fn work(&mut self, group: &mut Vec<Box<dyn Work>>) {
        let started = Instant::now();
        let commit = self.transaction(group);
        let ended = Instant::now();
        (self.observe)(ended - started);
        for work in group.drain(..) {
            work.settle(commit.clone());
        }
        if commit.is_ok() {
            self.dirty.store(true, Ordering::Relaxed);
            self.commits += 1;
        }
        if ended - self.looked_at >= LOOK_EVERY {
            self.look(ended);
        }
    }

    fn transaction(&self, group: &mut [Box<dyn Work>]) -> Result<(), StoreError> {
        if !self.connection.is_autocommit() {
            // A rollback failed before; until one works nothing else can.
            self.execute("ROLLBACK")?;
        }
        self.execute("BEGIN IMMEDIATE")?;
        let done = self.jobs_and_commit(group);
        // Some errors roll back by themselves.
        if done.is_err() && !self.connection.is_autocommit() {
            self.execute("ROLLBACK")?;
        }
        done
    }

    fn jobs_and_commit(&self, group: &mut [Box<dyn Work>]) -> Result<(), StoreError> {
        for work in group {
            self.execute("SAVEPOINT job")?;
            if let Err(error) = work.run(&self.connection) {
                if self.connection.is_autocommit() {
                    return Err(error);
                }
                self.execute("ROLLBACK TO job")?;
            }
            self.execute("RELEASE job")?;
        }
        self.execute("COMMIT")
    }

    fn execute(&self, sql: &str) -> Result<(), StoreError> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    /// Reads sizes and keeps the log from growing.
    fn look(&mut self, now: Instant) {
        self.looked_at = now;
        self.measure();
        let free = self.usage.free_pages.load(Ordering::Relaxed);
        if free > FREE_PAGES && free > self.usage.pages.load(Ordering::Relaxed) / 4 {
            self.give_back(GIVEN_BACK_BUSY);
        }
        let log = self.usage.log_bytes.load(Ordering::Relaxed);
        let grown = log.saturating_sub(self.log_then);
        if log > LOG_LIMIT {
            self.empty_log();
        } else if self.commits >= CHECKPOINT_COMMITS || grown >= CHECKPOINT_GROWTH {
            // A full queue means that the reader is at work; it is asked again at the next look.
            if self.reader.try_send(Request::Checkpoint).is_ok() {
                self.commits = 0;
                self.log_then = log;
            }
        }
    }

    fn measure(&self) {
        let page = |pragma| -> rusqlite::Result<i64> {
            let mut statement = self.connection.prepare_cached(pragma)?;
            statement.query_row([], |row| row.get(0))
        };
        let pages = page("PRAGMA page_count").and_then(|count| {
            let free = page("PRAGMA freelist_count")?;
            Ok((count, free))
        });
        if let Ok((count, free)) = pages {
            self.usage.pages.store(count as u64, Ordering::Relaxed);
            self.usage.free_pages.store(free as u64, Ordering::Relaxed);
        }
        let log = std::fs::metadata(&self.log_path).map_or(0, |file| file.len());
        self.usage.log_bytes.store(log, Ordering::Relaxed);
        self.look_for_file();
    }

    /// A removed file goes on working for whoever has it open, so SQLite reports no error.
    fn look_for_file(&self) {
        let gone = file::identity(&self.path) != self.identity;
        let was_gone = self.usage.gone.swap(gone, Ordering::Relaxed);
        if gone && !was_gone {
            let file = self.path.display();
            tracing::error!(
                %file,
                "the database was removed or replaced; what is written now is lost with this process"
            );
        }
    }

    fn empty_log(&mut self) {
        self.commits = 0;
        self.log_then = 0;
        let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
        let result = self.connection.query_row(sql, [], |_| Ok(()));
        if let Err(error) = result {
            tracing::warn!(%error, "the database log could not be emptied, will be tried again");
        }
    }

    /// Gives space back to the disk while there is nothing else to do.
    fn tidy(&mut self) {
        self.measure();
        if self.usage.free_pages.load(Ordering::Relaxed) > FREE_PAGES {
            self.give_back(GIVEN_BACK_IDLE);
        } else if self.usage.log_bytes.load(Ordering::Relaxed) > IDLE_LOG {
            self.empty_log();
        }
    }

    fn give_back(&self, pages: u64) {
        // One page goes per row that the statement steps through.
        let vacuum = || -> rusqlite::Result<()> {
            let sql = format!("PRAGMA incremental_vacuum({pages})");
            let mut statement = self.connection.prepare_cached(&sql)?;
            let mut rows = statement.query([])?;
            while rows.next()?.is_some() {}
            Ok(())
        };
        if let Err(error) = vacuum() {
            tracing::warn!(%error, "free pages could not be given back, will be tried again");
        }
    }
}

struct AbandonOnExit(Arc<Jobs>);

impl Drop for AbandonOnExit {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
