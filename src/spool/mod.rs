//! Status reports waiting for the collector.
//!
//! A report whose `append` returned `Stored` survives a kill. It leaves only after the collector
//! took it, or, past its retention or refused for good, for the dead letters, where it is kept.
//!
//! - one row per (call, attempt, reporter); the first end state wins, an open state gives way
//! - reports leave in the order they came, in bytes that are written once
//! - nobody waits longer than 50 ms, and after one miss nobody waits until a commit succeeded
//! - at the quota new reports are refused and counted; rows still owed are never deleted
//! - elsewhere: delivery (`reporter`), the file and its threads (`store`)

mod table;
mod tally;

#[cfg(test)]
mod tests;

pub use table::{Claimed, DeadLetter, Row};

use crate::store::{self, OpenError, Opened, Store, StoreError, Urgency};
use crate::task::{Report, Timestamp};
use crate::telemetry::metrics::{Sidecar, SpoolLoss};
use rusqlite::Connection;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use table::Put;
use tally::Tally;
use tokio::sync::oneshot;

/// The longest wait of a reply for its end state.
const PATIENCE: Duration = Duration::from_millis(50);

/// Dead letters that are kept at most, and the room that each is granted within the quota.
const DEAD_LETTERS: u64 = 100_000;
const DEAD_LETTER_BYTES: u64 = 8 << 10;

/// What is kept of the reason why a report was refused, in characters.
const LONGEST_REASON: usize = 500;

/// Reports that are expired in one transaction.
const EXPIRED_AT_ONCE: usize = 1_000;

/// When an end state counts as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Once it survives a kill of this process.
    #[default]
    Process,
    /// Once it survives a loss of power.
    Disk,
    /// Once it is queued.
    Async,
}

/// How the spool works.
#[derive(Debug, Clone)]
pub struct Config {
    pub path: PathBuf,
    pub mode: Mode,
    /// The size of the database from which on new reports are refused.
    pub max_bytes: u64,
}

/// How far an end state got before its reply goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It is committed.
    Stored,
    /// An end state by the same reporter waits already and stays: this one (`repeated`), or another.
    Known { repeated: bool },
    /// It is queued, as the mode asks for.
    Queued,
    /// It is queued, and nobody knows yet whether it will be stored.
    Degraded,
    /// It is lost.
    Lost(SpoolLoss),
}

/// The spool as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Reports of ended attempts.
    pub waiting: u64,
    /// Reports of attempts still open.
    pub open: u64,
    /// Reports that will not be sent again by themselves.
    pub dead: u64,
    /// When the oldest report still owed was queued.
    pub oldest: Option<Timestamp>,
    /// The file and its log on disk.
    pub bytes: u64,
}

/// A handle to the spool; cheap to clone.
#[derive(Debug, Clone)]
pub struct Spool {
    store: Store,
    tally: Arc<Tally>,
    mode: Mode,
    max_bytes: u64,
}

impl Spool {
    /// Opens or creates the spool and counts what is owed from before.
    pub async fn open(config: Config, metrics: Arc<Sidecar>) -> Result<(Self, Opened), OpenError> {
        let observed = metrics.clone();
        let options = store::Options {
            durability: match config.mode {
                Mode::Process | Mode::Async => store::Durability::Process,
                Mode::Disk => store::Durability::Disk,
            },
            observe: Box::new(move |took| observed.store_write(took)),
            probes: table::PROBES,
            ..store::Options::default()
        };
        let (store, opened) = Store::open(&config.path, &table::SCHEMA, options)?;
        let counted = store.read(table::count).await;
        let counts = counted.map_err(|error| OpenError::Unreadable {
            path: config.path,
            source: error,
        })?;
        let spool = Self {
            store,
            tally: Arc::new(Tally::new(counts, metrics)),
            mode: config.mode,
            max_bytes: config.max_bytes,
        };
        Ok((spool, opened))
    }

    /// Queues the report of an attempt that is still open; durable within milliseconds.
    ///
    /// It replaces an earlier open state and is ignored once an end state is there. A failure has
    /// been counted; most callers can do nothing else about it.
    pub fn offer(&self, report: Report) -> Result<(), SpoolLoss> {
        self.submit(Urgency::Soon, report, |_| {})
    }

    /// Stores the report of an ended attempt; queued when called, so safe to drop.
    pub fn append(&self, report: Report) -> impl Future<Output = Durability> + Send + use<> {
        let waits = self.mode != Mode::Async && !self.tally.is_slow();
        let (reply, answer) = oneshot::channel();
        let queued = if waits {
            self.submit(Urgency::Now, report, move |outcome| {
                // The asker may have lost its patience.
                reply.send(outcome).ok();
            })
        } else {
            self.submit(Urgency::Soon, report, |_| {})
        };
        let (tally, store) = (self.tally.clone(), self.store.clone());
        let mode = self.mode;
        async move {
            if let Err(loss) = queued {
                return Durability::Lost(loss);
            }
            if mode == Mode::Async {
                return Durability::Queued;
            }
            if waits {
                match tokio::time::timeout(PATIENCE, answer).await {
                    Ok(Ok(Ok(Put::Ignored { repeated }))) => {
                        return Durability::Known { repeated };
                    }
                    Ok(Ok(Ok(_))) if !store.is_gone() => return Durability::Stored,
                    // It will be delivered, but only by this process.
                    Ok(Ok(Ok(_))) => {}
                    Ok(Ok(Err(loss))) => return Durability::Lost(loss),
                    Ok(Err(_store_is_gone)) => return Durability::Lost(SpoolLoss::Io),
                    Err(_elapsed) => tally.missed(),
                }
            }
            tally.degraded();
            Durability::Degraded
        }
    }

    /// Says whether a report offered now would be taken and the last one was stored for good.
    pub fn is_healthy(&self) -> bool {
        !self.tally.is_failing() && !self.is_full() && !self.store.is_gone()
    }

    /// Waits until at least `count` reports are owed; for one waiter.
    pub async fn owes(&self, count: u64) {
        self.tally.reached(count).await;
    }

    /// Waits until everything queued so far is stored or lost, so that `owed` counts it.
    pub async fn settle(&self) {
        // Jobs run in the order they came; an error was counted by whoever it concerns.
        self.store.append(|_| Ok(())).await.ok();
    }

    /// Returns the number of reports owed.
    pub fn owed(&self) -> u64 {
        self.tally.owed()
    }

    /// Reads the oldest rows, at most `count` of them and about `bytes` of reports.
    pub async fn claim(&self, count: usize, bytes: usize) -> Result<Vec<Row>, StoreError> {
        self.store
            .read(move |connection| table::oldest(connection, count, bytes))
            .await
    }

    /// Lets go of rows that the collector has; one that changed since its claim stays.
    pub async fn acknowledge(&self, rows: Vec<Claimed>) -> Result<(), StoreError> {
        self.change(
            move |connection| table::delete(connection, &rows),
            |tally, gone| tally.left(*gone),
        )
        .await?;
        Ok(())
    }

    /// Moves rows that were refused for good to the dead letters.
    pub async fn park(&self, mut rows: Vec<(Claimed, String)>) -> Result<(), StoreError> {
        let most = self.dead_letters();
        for (_, reason) in &mut rows {
            // Reasons come from the collector; the quota counts on their being short.
            if let Some((end, _)) = reason.char_indices().nth(LONGEST_REASON) {
                reason.truncate(end);
            }
        }
        self.change(
            move |connection| {
                let gone = table::park(connection, &rows, Timestamp::now())?;
                Ok((gone, table::prune(connection, most)?))
            },
            |tally, (gone, pruned)| {
                tally.metrics().dead_letter_rejected(gone.total());
                tally.parked(*gone, *pruned);
            },
        )
        .await?;
        Ok(())
    }

    /// Moves reports queued before `cutoff` to the dead letters and returns how many those were.
    pub async fn expire(&self, cutoff: Timestamp) -> Result<u64, StoreError> {
        let most = self.dead_letters();
        let mut expired = 0;
        loop {
            let moved = self.change(
                move |connection| {
                    let now = Timestamp::now();
                    let gone = table::expire(connection, cutoff, now, EXPIRED_AT_ONCE)?;
                    Ok((gone, table::prune(connection, most)?))
                },
                |tally, (gone, pruned)| {
                    tally.metrics().dead_letter_expired(gone.total());
                    tally.parked(*gone, *pruned);
                },
            );
            let (gone, _) = moved.await?;
            expired += gone.total();
            if gone.total() < EXPIRED_AT_ONCE as u64 {
                return Ok(expired);
            }
        }
    }

    /// Reads the newest dead letters, at most `count`.
    pub async fn dead_letters_newest(&self, count: usize) -> Result<Vec<DeadLetter>, StoreError> {
        self.store
            .read(move |connection| table::dead_letters(connection, count))
            .await
    }

    /// Returns counts, age and size, and shows them in the metrics.
    pub async fn stats(&self) -> Result<Stats, StoreError> {
        let oldest = self.store.read(table::oldest_at).await?;
        let stats = Stats {
            oldest,
            bytes: self.store.disk_bytes(),
            ..self.tally.stats()
        };
        let Stats {
            waiting,
            open,
            dead,
            oldest,
            bytes,
        } = stats;
        self.tally
            .metrics()
            .spool(waiting, open, dead, oldest, bytes);
        Ok(stats)
    }

    /// Commits what is queued and closes the file; the spool takes nothing from now on.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.store.close().await
    }

    fn submit(
        &self,
        urgency: Urgency,
        report: Report,
        settled: impl FnOnce(Result<Put, SpoolLoss>) + Send + 'static,
    ) -> Result<(), SpoolLoss> {
        if self.is_full() {
            return Err(self.tally.lost(SpoolLoss::Quota, None));
        }
        let number = self.tally.number();
        let tally = self.tally.clone();
        let queued = self.store.submit(
            urgency,
            // Serialised there, not here: the caller's reply does not pay for it.
            move |connection| table::put(connection, number, &report, Timestamp::now()),
            move |outcome| settled(tally.settle(outcome)),
        );
        queued.map_err(|error| self.tally.failed(&error))
    }

    /// Runs `job`; `count` hears of its commit even when the future was dropped before.
    fn change<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
        count: impl FnOnce(&Tally, &T) + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        let (reply, answer) = oneshot::channel();
        let tally = self.tally.clone();
        let queued = self.store.submit(Urgency::Now, job, move |outcome| {
            if let Ok(value) = &outcome {
                count(&tally, value);
            }
            // The asker may have gone.
            reply.send(outcome).ok();
        });
        async move {
            queued?;
            answer.await.unwrap_or(Err(StoreError::Closed))
        }
    }

    fn is_full(&self) -> bool {
        self.store.used_bytes() >= self.max_bytes
    }

    fn dead_letters(&self) -> u64 {
        DEAD_LETTERS.min(self.max_bytes / DEAD_LETTER_BYTES).max(1)
    }
}
