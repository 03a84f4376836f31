//! Counts of what the spool holds, adjusted after each commit, and the bell for the reporter.

use super::Stats;
use super::table::{Counts, Gone, Put};
use crate::store::{FaultKind, StoreError};
use crate::telemetry::metrics::{Sidecar, SpoolLoss};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use tokio::sync::Notify;

#[derive(Debug)]
pub(super) struct Tally {
    waiting: AtomicU64,
    open: AtomicU64,
    dead: AtomicU64,
    /// The number of the next row or revision; never used twice while claims are about.
    next: AtomicI64,
    /// Set when a commit took longer than anybody waits, until one succeeds.
    slow: AtomicBool,
    failing: AtomicBool,
    /// The count at which the waiter wants to be woken.
    wake_at: AtomicU64,
    bell: Notify,
    metrics: Arc<Sidecar>,
}

impl Tally {
    pub(super) fn new(counts: Counts, metrics: Arc<Sidecar>) -> Self {
        Self {
            waiting: AtomicU64::new(counts.waiting),
            open: AtomicU64::new(counts.open),
            dead: AtomicU64::new(counts.dead),
            next: AtomicI64::new(counts.last_number + 1),
            slow: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            wake_at: AtomicU64::new(u64::MAX),
            bell: Notify::new(),
            metrics,
        }
    }

    pub(super) fn metrics(&self) -> &Sidecar {
        &self.metrics
    }

    pub(super) fn number(&self) -> i64 {
        self.next.fetch_add(1, Relaxed)
    }

    pub(super) fn owed(&self) -> u64 {
        self.waiting.load(SeqCst) + self.open.load(SeqCst)
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            waiting: self.waiting.load(Relaxed),
            open: self.open.load(Relaxed),
            dead: self.dead.load(Relaxed),
            ..Stats::default()
        }
    }

    pub(super) fn is_slow(&self) -> bool {
        self.slow.load(Relaxed)
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Relaxed)
    }

    /// Somebody waited in vain.
    pub(super) fn missed(&self) {
        if !self.slow.swap(true, Relaxed) {
            tracing::warn!("the spool is slow: replies do not wait for it until it has caught up");
        }
    }

    pub(super) fn degraded(&self) {
        self.metrics.durability_degraded();
    }

    /// Hears how a report's transaction ended; runs on the writer thread.
    pub(super) fn settle(&self, outcome: Result<Put, StoreError>) -> Result<Put, SpoolLoss> {
        let put = outcome.map_err(|error| self.failed(&error))?;
        if self.slow.swap(false, Relaxed) {
            tracing::info!("the spool has caught up");
        }
        if self.failing.swap(false, Relaxed) {
            tracing::info!("reports are stored again");
        }
        match put {
            Put::Ended => _ = self.waiting.fetch_add(1, SeqCst),
            Put::Open => _ = self.open.fetch_add(1, SeqCst),
            Put::OpenEnded => {
                self.waiting.fetch_add(1, SeqCst);
                self.open.fetch_sub(1, SeqCst);
            }
            Put::OpenAgain => {}
            Put::Ignored { .. } => return Ok(put),
        }
        self.metrics.spool_appended();
        // Sequentially consistent with `reached`: one of both sees the other's store.
        if self.owed() >= self.wake_at.load(SeqCst) {
            self.bell.notify_one();
        }
        Ok(put)
    }

    /// Counts a report that the store refused.
    pub(super) fn failed(&self, error: &StoreError) -> SpoolLoss {
        self.lost(loss(error.kind()), Some(error))
    }

    /// Counts a lost report; logs the first of a series.
    pub(super) fn lost(&self, loss: SpoolLoss, error: Option<&StoreError>) -> SpoolLoss {
        self.metrics.spool_failed(loss);
        if !self.failing.swap(true, Relaxed) {
            let error = error.map(|error| error as &dyn std::error::Error);
            tracing::error!(
                ?loss,
                error,
                "reports are being lost: they cannot be stored"
            );
        }
        loss
    }

    pub(super) fn left(&self, gone: Gone) {
        self.waiting.fetch_sub(gone.ended, SeqCst);
        self.open.fetch_sub(gone.open, SeqCst);
    }

    pub(super) fn parked(&self, gone: Gone, pruned: u64) {
        self.dead.fetch_add(gone.total(), Relaxed);
        self.dead.fetch_sub(pruned, Relaxed);
        if pruned > 0 {
            tracing::warn!(
                count = pruned,
                "the oldest dead letters made room for newer ones"
            );
        }
        self.left(gone);
    }

    pub(super) async fn reached(&self, count: u64) {
        loop {
            self.wake_at.store(count, SeqCst);
            if self.owed() >= count {
                break;
            }
            self.bell.notified().await;
        }
        self.wake_at.store(u64::MAX, SeqCst);
    }
}

fn loss(kind: FaultKind) -> SpoolLoss {
    match kind {
        FaultKind::QueueFull => SpoolLoss::QueueFull,
        FaultKind::Busy => SpoolLoss::Busy,
        FaultKind::DiskFull => SpoolLoss::DiskFull,
        FaultKind::ReadOnly => SpoolLoss::ReadOnly,
        FaultKind::Corrupt => SpoolLoss::Corrupt,
        FaultKind::Closed | FaultKind::Io | FaultKind::Other => SpoolLoss::Io,
    }
}
