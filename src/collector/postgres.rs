//! The collector's book in PostgreSQL, shared by several collectors.
//!
//! - the same meaning as in SQLite: the first of (call, attempt, reporter and its application, state)
//!   wins, sums of calls and tasks change in the transaction that takes the report
//! - a report is confirmed after its commit, which is on disk there whatever the server's default is
//! - lost connections, full pools and silence are errors within seconds; the sender tries again
//! - elsewhere: what sums mean (`attempt`), what is shown (`view`)

mod address;
mod fault;
mod forget;
mod pool;
mod read;
mod schema;
mod sums;
mod tls;
mod write;

pub use address::Address;
pub use fault::Error;

use super::attempt::Told;
use super::book::{Due, OpenCounts, Overdue, Recorded};
use super::list::{Filter, Page};
use crate::task::{Id, Timestamp};
use crate::telemetry::metrics::Collector as Metrics;
use pool::{Lease, Pool};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How often a transaction is tried that others got in the way of.
const TRIES: usize = 6;
/// The breath between two tries, at most.
const BREATH: Duration = Duration::from_millis(40);
/// For an answer: longer than the server itself takes for a statement, so that it can say why.
const ANSWER: Duration = Duration::from_secs(12);
/// How often a lost server is tried while nobody asks.
const TEND: Duration = Duration::from_secs(1);

/// What a connection is used for.
type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// A handle to the book; cheap to clone.
#[derive(Clone)]
pub(super) struct Book {
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
}

impl Book {
    /// Connects once. A server that is away is tried again later; one that refuses is an error.
    pub(super) async fn open(address: &Address, metrics: Arc<Metrics>) -> Result<Self, Error> {
        let pool = Arc::new(Pool::new(address)?);
        let book = Self { pool, metrics };
        match book.reach().await {
            Err(error) if error.is_refusal() => Err(error),
            _ => Ok(book),
        }
    }

    /// Says whether the server can be reached, trying it if need be.
    pub(super) async fn reach(&self) -> Result<(), Error> {
        self.pool.lease().await?.give_back();
        Ok(())
    }

    /// Tries a lost server until it is back, for as long as it is polled.
    pub(super) async fn tend(&self) {
        loop {
            sleep(TEND).await;
            if self.pool.is_away() {
                // How that ended is told where it is known.
                self.reach().await.ok();
            }
        }
    }

    /// Takes reports and returns after they are committed.
    pub(super) async fn record(&self, reports: Vec<Told>) -> Result<Recorded, Error> {
        let began = Instant::now();
        let reports: Arc<[Told]> = reports.into();
        let recorded = self.ask(|lease| {
            let reports = reports.clone();
            Box::pin(async move { write::record(lease, &reports).await })
        });
        let recorded = recorded.await;
        self.metrics.store_write(began.elapsed());
        recorded
    }

    pub(super) async fn task(&self, task_id: Id) -> Result<Vec<Vec<Told>>, Error> {
        self.ask(|lease| {
            let task_id = task_id.clone();
            Box::pin(async move { read::task(lease, &task_id).await })
        })
        .await
    }

    pub(super) async fn count_calls(&self, task_id: Id) -> Result<usize, Error> {
        self.ask(|lease| {
            let task_id = task_id.clone();
            Box::pin(async move { read::count_calls(lease, &task_id).await })
        })
        .await
    }

    pub(super) async fn tasks(&self, filter: Filter, now: Timestamp) -> Result<Page, Error> {
        self.ask(|lease| Box::pin(read::page(lease, filter.clone(), now)))
            .await
    }

    pub(super) async fn open_counts(&self, now: Timestamp) -> Result<OpenCounts, Error> {
        self.ask(|lease| Box::pin(read::open_counts(lease, now)))
            .await
    }

    pub(super) async fn overdue(
        &self,
        after: Due,
        cutoff: Timestamp,
        most: usize,
    ) -> Result<Overdue<Vec<Told>>, Error> {
        self.ask(|lease| {
            let after = after.clone();
            Box::pin(async move { read::overdue(lease, &after, cutoff, most).await })
        })
        .await
    }

    pub(super) async fn forget(&self, cutoff: Timestamp) -> Result<bool, Error> {
        self.ask(|lease| Box::pin(forget::forget(lease, cutoff)))
            .await
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
    }

    /// Lets `work` use a connection; what others got in the way of is done again, a few times.
    async fn ask<T>(
        &self,
        work: impl for<'a> Fn(&'a mut Lease) -> Answering<'a, T>,
    ) -> Result<T, Error> {
        let asking = async {
            for _ in 1..TRIES {
                match self.once(&work).await {
                    Err(error) if error.is_race() => sleep(BREATH.mul_f64(fastrand::f64())).await,
                    settled => return settled,
                }
            }
            self.once(&work).await
        };
        let asked = timeout(ANSWER, asking).await;
        asked.unwrap_or(Err(Error::Silent(ANSWER)))
    }

    async fn once<T>(
        &self,
        work: &impl for<'a> Fn(&'a mut Lease) -> Answering<'a, T>,
    ) -> Result<T, Error> {
        let mut lease = self.pool.lease().await?;
        let done = work(&mut lease).await;
        match &done {
            Ok(_) => lease.give_back(),
            // Only then is the connection known to be sound.
            Err(error) if error.is_race() => {
                lease.client().batch_execute("ROLLBACK").await?;
                lease.give_back();
            }
            Err(_) => drop(lease),
        }
        done
    }
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Book").finish_non_exhaustive()
    }
}
