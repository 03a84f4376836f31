//! One SQLite file, one thread that writes it, one that reads it.
//!
//! - no other room opens a database; jobs are closures that get a connection
//! - what `append` confirmed was committed; what `offer` took will be, unless the process dies
//! - queues are bounded and never block the caller
//! - dropping the store without `close` forgets what is queued, as a crash would
//! - elsewhere: tables and statements (the room that owns the file)

mod fault;
mod file;
mod queue;
mod reader;
mod room;
mod schema;
mod writer;

#[cfg(test)]
mod tests;

pub use fault::{FaultKind, OpenError, StoreError};
pub use room::{Bounds, Room};
pub use schema::Schema;

use queue::{Queue, Refused};
use reader::Request;
use rusqlite::Connection;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use writer::{Jobs, Work, Writer};

/// SQLite's default, which every file here has.
const PAGE_BYTES: u64 = 4096;

/// Queries that may wait; beyond that the asker is told.
const READ_QUEUE: usize = 256;

/// What a commit survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The end of this process, however sudden.
    #[default]
    Process,
    /// The loss of power.
    Disk,
}

/// Hears how long each transaction took; runs on the writer thread.
pub type Observe = Box<dyn Fn(Duration) + Send>;

/// How a store works.
pub struct Options {
    pub durability: Durability,
    /// Jobs that may be queued.
    pub queue: usize,
    pub observe: Observe,
    /// Queries that the owner depends on; a file on which one meets damage is not used.
    pub probes: &'static [&'static str],
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Process,
            queue: 65_536,
            observe: Box::new(|_| {}),
            probes: &[],
        }
    }
}

/// What was found when the file was opened.
#[derive(Debug, Default)]
pub struct Opened {
    /// The new name of a file that was no sound database; worth an alarm.
    pub moved_aside: Option<PathBuf>,
}

/// A handle to one open file; cheap to clone.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    jobs: Arc<Jobs>,
    reader: SyncSender<Request>,
    usage: Arc<Usage>,
    threads: Mutex<Option<Threads>>,
}

struct Threads {
    writer: JoinHandle<()>,
    reader: JoinHandle<()>,
    /// Let go of after both have ended.
    lock: File,
}

/// The file as the writer last saw it.
#[derive(Debug, Default)]
struct Usage {
    pages: AtomicU64,
    free_pages: AtomicU64,
    log_bytes: AtomicU64,
    /// Another process has removed or replaced it.
    gone: AtomicBool,
}

impl Store {
    /// Opens, creates or upgrades the file and starts its threads; blocks for milliseconds.
    pub fn open(
        path: &Path,
        schema: &Schema,
        options: Options,
    ) -> Result<(Self, Opened), OpenError> {
        let prepared = file::prepare(path, schema, &options)?;
        let jobs = Arc::new(Queue::new(options.queue));
        let usage = Arc::new(Usage::default());
        let dirty = Arc::new(AtomicBool::new(true));
        let (reader, requests) = mpsc::sync_channel(READ_QUEUE);
        let weak = Arc::downgrade(&dirty);
        let writer = Writer {
            connection: prepared.writer,
            jobs: jobs.clone(),
            usage: usage.clone(),
            dirty,
            reader: reader.clone(),
            identity: file::identity(path),
            path: path.to_owned(),
            log_path: file::sibling(path, "-wal"),
            observe: options.observe,
            looked_at: Instant::now(),
            commits: 0,
            log_then: 0,
        };
        let connection = prepared.reader;
        let threads = Threads {
            writer: start(path, schema, "writer", move || writer.run())?,
            reader: start(path, schema, "reader", move || {
                reader::run(&connection, &requests, &weak);
            })?,
            lock: prepared.lock,
        };
        let shared = Shared {
            jobs,
            reader,
            usage,
            threads: Mutex::new(Some(threads)),
        };
        let opened = Opened {
            moved_aside: prepared.moved_aside,
        };
        Ok((
            Self {
                shared: Arc::new(shared),
            },
            opened,
        ))
    }

    /// Runs `job` in the next transaction and returns its value once that is committed.
    ///
    /// Queued when called, not when awaited; dropping the future does not cancel it.
    pub fn append<T, J>(
        &self,
        job: J,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<T, J>
    where
        T: Send + 'static,
        J: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let queued = self.submit(Urgency::Now, job, move |outcome| {
            // The asker may have gone.
            reply.send(outcome).ok();
        });
        async move {
            queued?;
            answer.await.unwrap_or(Err(StoreError::Closed))
        }
    }

    /// Queues `job` for a transaction of the next milliseconds; `settled` hears how it ended.
    pub fn offer<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
        settled: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) -> Result<(), StoreError> {
        self.submit(Urgency::Soon, job, settled)
    }

    /// Queues `job`; `settled` hears, on the writer thread after the commit, how it ended, unless
    /// the store is dropped first. It must neither block nor own this store.
    pub fn submit<T: Send + 'static>(
        &self,
        urgency: Urgency,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
        settled: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) -> Result<(), StoreError> {
        let work = Box::new(Job {
            job: Some(job),
            outcome: Err(StoreError::Closed),
            settled,
        });
        let queued = self.shared.jobs.push(work, urgency == Urgency::Now);
        queued.map_err(|refused| match refused {
            Refused::Full => StoreError::QueueFull,
            Refused::Closed => StoreError::Closed,
        })
    }

    /// Runs `query` on the reading connection, which sees committed rows only.
    pub fn read<T, Q>(
        &self,
        query: Q,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<T, Q>
    where
        T: Send + 'static,
        Q: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let request = Request::Query(Box::new(move |connection| {
            // The asker may have gone.
            reply.send(query(connection).map_err(StoreError::from)).ok();
        }));
        let queued = self.shared.reader.try_send(request);
        async move {
            queued.map_err(|refused| match refused {
                TrySendError::Full(_) => StoreError::QueueFull,
                TrySendError::Disconnected(_) => StoreError::Closed,
            })?;
            answer.await.unwrap_or(Err(StoreError::Closed))
        }
    }

    /// Returns the bytes that rows and indexes take inside the file, free pages left out.
    pub fn used_bytes(&self) -> u64 {
        let usage = &self.shared.usage;
        let pages = usage.pages.load(Ordering::Relaxed);
        pages.saturating_sub(usage.free_pages.load(Ordering::Relaxed)) * PAGE_BYTES
    }

    /// Returns the bytes on disk: the file and its log.
    pub fn disk_bytes(&self) -> u64 {
        let usage = &self.shared.usage;
        usage.pages.load(Ordering::Relaxed) * PAGE_BYTES + usage.log_bytes.load(Ordering::Relaxed)
    }

    /// Says whether the file has been removed or replaced under us: what is committed then serves
    /// this process still, but no later one.
    pub fn is_gone(&self) -> bool {
        self.shared.usage.gone.load(Ordering::Relaxed)
    }

    /// Commits what is queued, empties the log, ends both threads and lets go of the file.
    ///
    /// A second call, and every job from now on, finds the store closed.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.shared.jobs.finish();
        let threads = self.shared.take_threads().ok_or(StoreError::Closed)?;
        let reader = self.shared.reader.clone();
        let ended = tokio::task::spawn_blocking(move || threads.join(&reader));
        ended.await.map_err(|_panic| StoreError::Closed)?
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

/// Whether somebody waits for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Commit at once, with everything queued before.
    Now,
    /// Commit within milliseconds, in company.
    Soon,
}

impl Shared {
    fn take_threads(&self) -> Option<Threads> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.take()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.jobs.abandon();
        if let Some(threads) = self.take_threads() {
            // A panic there was reported there.
            threads.join(&self.reader).ok();
        }
    }
}

impl Threads {
    fn join(self, reader: &SyncSender<Request>) -> Result<(), StoreError> {
        let written = self.writer.join();
        // Blocks while the queue is full; an error means that the thread has gone already.
        reader.send(Request::Stop).ok();
        let read = self.reader.join();
        drop(self.lock);
        written.and(read).map_err(|_panic| StoreError::Closed)
    }
}

fn start(
    path: &Path,
    schema: &Schema,
    role: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, OpenError> {
    let thread = thread::Builder::new().name(format!("{} {role}", schema.name));
    thread.spawn(run).map_err(|source| OpenError::Thread {
        path: path.to_owned(),
        source,
    })
}

struct Job<F, T, S> {
    job: Option<F>,
    outcome: Result<T, StoreError>,
    settled: S,
}

impl<F, T, S> Work for Job<F, T, S>
where
    T: Send,
    F: FnOnce(&Connection) -> rusqlite::Result<T> + Send,
    S: FnOnce(Result<T, StoreError>) + Send,
{
    fn run(&mut self, connection: &Connection) -> Result<(), StoreError> {
        let Some(job) = self.job.take() else {
            return Ok(());
        };
        self.outcome = job(connection).map_err(StoreError::from);
        match &self.outcome {
            Ok(_) => Ok(()),
            Err(error) => Err(error.clone()),
        }
    }

    fn settle(self: Box<Self>, commit: Result<(), StoreError>) {
        let outcome = match commit {
            Ok(()) => self.outcome,
            Err(error) => Err(error),
        };
        (self.settled)(outcome);
    }
}
