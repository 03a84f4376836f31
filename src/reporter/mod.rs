//! Delivers what the spool owes to the collector.
//!
//! - one batch is under way at a time, oldest first, in the bytes that were spooled
//! - a row leaves the spool only on an answer about that row; a collector that is away, busy or
//!   refuses us costs no row anything, only time
//! - a batch refused as a whole is split until the one row at fault is found
//! - age, not attempts, ends a row: past `expire` it becomes a dead letter, but never untried
//! - elsewhere: what a report says (`task`), where it waits (`spool`)

mod client;

#[cfg(test)]
mod tests;

pub use reqwest::Url;

use crate::identity::tls::{Found, Tls};
use crate::spool::{Claimed, Row, Spool};
use crate::store::StoreError;
use crate::task::Timestamp;
use crate::telemetry::log::Chain;
use crate::telemetry::metrics::{Sidecar, SpoolLoss};
use client::{Answer, Client, Receipt, Secured};
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Reports in one request, in bytes before compression.
const BATCH_BYTES: usize = 1 << 20;

/// The longest wait that a collector may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// How the reporter works.
#[derive(Debug, Clone)]
pub struct Config {
    pub token_file: Option<PathBuf>,
    /// How long the collector is left alone after a failure.
    pub retry: Duration,
    /// The age at which an undeliverable report becomes a dead letter.
    pub expire: Duration,
    /// Reports in one request; at least 1.
    pub batch: usize,
    /// How long a report waits for company.
    pub linger: Duration,
}

/// Finds a collector, if there is one now.
pub type Lookup = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Option<Url>> + Send>> + Send + Sync>;

/// Where the reports go.
#[derive(Clone)]
pub enum Target {
    /// They stay in the spool.
    Nowhere,
    Fixed(Url),
    Lookup(Lookup),
}

/// How to work, and for whom.
pub type Order = (Config, Target);

/// The delivering worker; its owner runs it, then flushes it.
pub struct Shipper {
    config: Config,
    target: Target,
    client: Client,
    spool: Spool,
    metrics: Arc<Sidecar>,
    tls: Option<Arc<Tls>>,
    /// How it is to work from now on.
    orders: watch::Receiver<Order>,
    /// Whether the last try failed; then a single row probes first.
    troubled: bool,
}

/// The collector's HTTP client could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("set up the client for the collector")]
pub struct SetUpError(#[source] reqwest::Error);

/// Why a round ended without delivering everything.
#[derive(Debug, thiserror::Error)]
enum Setback {
    #[error("no collector is known")]
    Unknown,
    #[error("the collector is not there or not ready: {reason}")]
    Away {
        reason: String,
        wait: Option<Duration>,
    },
    #[error(
        "the collector denies access (status {0}); check spool.token_file and, under TLS, whom the certificate is for"
    )]
    Denied(u16),
    #[error("the spool cannot be used")]
    Spool(#[from] StoreError),
}

impl Shipper {
    /// Sets up the client; nothing is sent before `run`. With `tls` an `https` collector is shown
    /// our certificate and must have one that its roots vouch for.
    pub fn new(
        config: Config,
        target: Target,
        spool: Spool,
        metrics: Arc<Sidecar>,
        tls: Option<Arc<Tls>>,
    ) -> Result<Self, SetUpError> {
        Ok(Self {
            client: client(&config, &target, tls.as_ref())?,
            orders: watch::Sender::new((config.clone(), target.clone())).subscribe(),
            config,
            target,
            spool,
            metrics,
            tls,
            troubled: false,
        })
    }

    /// Works as the latest of these orders says, from its next round on.
    pub fn following(mut self, orders: watch::Receiver<Order>) -> Self {
        self.orders = orders;
        self
    }

    /// Takes over what was ordered since; a collector that is given anew is tried at once.
    fn take_orders(&mut self) {
        if !self.orders.has_changed().unwrap_or(false) {
            return;
        }
        let (config, target) = self.orders.borrow_and_update().clone();
        match client(&config, &target, self.tls.as_ref()) {
            Ok(client) => (self.config, self.target, self.client) = (config, target, client),
            Err(error) => {
                tracing::error!(error = %Chain(&error), "reports are delivered as before")
            }
        }
    }

    /// Waits until reports are owed to somebody.
    async fn owes(&mut self) {
        loop {
            self.take_orders();
            let is_nowhere = matches!(self.target, Target::Nowhere);
            tokio::select! {
                () = self.spool.owes(1), if !is_nowhere => return,
                Ok(()) = self.orders.changed() => self.orders.mark_changed(),
                else => std::future::pending().await,
            }
        }
    }

    /// Delivers until `stop` resolves; what is under way then is sent again by `flush`.
    pub async fn run(&mut self, stop: impl Future<Output = ()>) {
        let deliver = async {
            loop {
                self.owes().await;
                if let Err(setback) = self.round(true).await {
                    self.rest(setback).await;
                }
            }
        };
        tokio::select! {
            () = stop => {}
            () = deliver => {}
        }
    }

    /// Delivers without lingering until nothing is owed, a try fails or `deadline` comes, and
    /// returns how many reports are still owed.
    pub async fn flush(&mut self, deadline: Instant) -> u64 {
        self.troubled = false;
        let deliver = async {
            self.spool.settle().await;
            let is_nowhere = matches!(self.target, Target::Nowhere);
            while !is_nowhere && self.spool.owed() > 0 {
                if let Err(setback) = self.round(false).await {
                    tracing::warn!(%setback, "the last delivery failed; reports stay in the spool");
                    break;
                }
            }
        };
        // Out of time is no failure: the next start goes on.
        tokio::time::timeout_at(deadline, deliver).await.ok();
        self.spool.owed()
    }

    /// Sends one batch and settles each of its rows.
    async fn round(&mut self, lingers: bool) -> Result<(), Setback> {
        let rows = self.gather(lingers).await?;
        let mut parts: Vec<Range<usize>> = std::iter::once(0..rows.len()).collect();
        while let Some(part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let batch = &rows[part.clone()];
            match self.send(batch).await? {
                Outcome::Settled(receipt) => self.settle(batch, receipt).await?,
                Outcome::Refused(status) if part.len() == 1 => {
                    let reason = format!("the collector answered {status}");
                    self.spool.park(vec![(batch[0].claimed, reason)]).await?;
                }
                Outcome::Refused(_) => {
                    let middle = part.start + part.len() / 2;
                    parts.push(middle..part.end);
                    parts.push(part.start..middle);
                }
            }
        }
        Ok(())
    }

    /// Claims a batch, waiting a little for company unless a deadline is near.
    async fn gather(&self, lingers: bool) -> Result<Vec<Row>, StoreError> {
        let most = if self.troubled { 1 } else { self.config.batch };
        let rows = self.spool.claim(most, BATCH_BYTES).await?;
        if rows.is_empty() {
            // Counts and rows disagree for an instant at most; never spin on it.
            tokio::time::sleep(self.config.linger).await;
        }
        if !lingers || rows.len() >= most || rows.is_empty() {
            return Ok(rows);
        }
        let wait = linger(&rows, self.config.linger, Timestamp::now());
        if wait.is_zero() {
            return Ok(rows);
        }
        let full = self.spool.owes(most as u64);
        // Either way it is time to go.
        tokio::time::timeout(wait, full).await.ok();
        self.spool.claim(most, BATCH_BYTES).await
    }

    async fn send(&mut self, rows: &[Row]) -> Result<Outcome, Setback> {
        let url = match &self.target {
            Target::Nowhere => return Err(Setback::Unknown),
            Target::Fixed(url) => url.clone(),
            Target::Lookup(lookup) => lookup().await.ok_or(Setback::Unknown)?,
        };
        let bodies = rows.iter().map(|row| row.body.as_slice());
        let answer = self.client.post(&url, bodies).await;
        match answer {
            Answer::Receipt(receipt) => {
                self.metrics.batch(rows.len());
                if std::mem::take(&mut self.troubled) {
                    tracing::info!(
                        owed = self.spool.owed(),
                        "the collector takes reports again"
                    );
                }
                Ok(Outcome::Settled(receipt))
            }
            Answer::Refused(status) => {
                self.metrics.spool_failed(SpoolLoss::Refused);
                Ok(Outcome::Refused(status))
            }
            Answer::Denied(status) => Err(Setback::Denied(status)),
            Answer::Away { reason, wait } => Err(Setback::Away { reason, wait }),
        }
    }

    async fn settle(&self, rows: &[Row], receipt: Receipt) -> Result<(), StoreError> {
        let mut taken: Vec<Option<Claimed>> = rows.iter().map(|row| Some(row.claimed)).collect();
        let mut refused = Vec::new();
        for rejected in receipt.rejected {
            if let Some(claimed) = taken.get_mut(rejected.index).and_then(Option::take) {
                refused.push((claimed, rejected.reason));
            }
        }
        // A conflict is kept by the collector, so it has been delivered.
        self.metrics
            .spool_accepted(receipt.accepted + receipt.conflicts);
        self.metrics.spool_duplicate(receipt.duplicates);
        let acknowledged = self
            .spool
            .acknowledge(taken.into_iter().flatten().collect());
        if !refused.is_empty() {
            tracing::warn!(
                count = refused.len(),
                reason = refused[0].1,
                "the collector rejected reports; they are kept as dead letters"
            );
            self.spool.park(refused).await?;
        }
        acknowledged.await
    }

    /// Leaves the collector alone for a while; what has become too old meanwhile is set aside.
    async fn rest(&mut self, setback: Setback) {
        let first = !std::mem::replace(&mut self.troubled, true);
        let mut asked = None;
        match &setback {
            Setback::Denied(_) => {
                self.metrics.spool_failed(SpoolLoss::Denied);
                if first {
                    tracing::error!(%setback, "reports are not delivered");
                }
            }
            Setback::Spool(error) => {
                tracing::error!(%setback, cause = %error, "reports are not delivered")
            }
            Setback::Unknown | Setback::Away { .. } => {
                self.metrics.spool_failed(SpoolLoss::Unreachable);
                if first {
                    tracing::warn!(%setback, owed = self.spool.owed(), "reports wait in the spool");
                }
            }
        }
        if let Setback::Away { wait, .. } = setback {
            asked = wait;
        }
        self.expire().await;
        tokio::select! {
            () = tokio::time::sleep(pause(self.config.retry, asked)) => {}
            Ok(()) = self.orders.changed() => self.orders.mark_changed(),
        }
    }

    async fn expire(&self) {
        let cutoff = Timestamp::now().minus(self.config.expire);
        match self.spool.expire(cutoff).await {
            Ok(0) => {}
            Ok(count) => tracing::error!(
                count,
                "reports could not be delivered in time; they are kept as dead letters"
            ),
            Err(error) => tracing::warn!(%error, "old reports could not be set aside"),
        }
    }
}

fn client(config: &Config, target: &Target, tls: Option<&Arc<Tls>>) -> Result<Client, SetUpError> {
    let found = match target {
        Target::Nowhere | Target::Fixed(_) => Found::ByUrl,
        Target::Lookup(_) => Found::ByLookup,
    };
    let secured = tls.map(|tls| Secured::new(tls.clone(), found));
    Client::new(config.token_file.clone(), secured).map_err(SetUpError)
}

enum Outcome {
    Settled(Receipt),
    Refused(u16),
}

/// Returns how long a batch may still wait for company.
fn linger(rows: &[Row], linger: Duration, now: Timestamp) -> Duration {
    let waited = rows.first().map_or(linger, |row| row.queued_at.age(now));
    let deadlines = rows.iter().map(|row| now.age(row.deadline_at));
    // A deadline that has passed presses nobody any more.
    let nearest = deadlines.filter(|left| !left.is_zero()).min();
    let wait = linger.saturating_sub(waited);
    nearest.map_or(wait, |left| wait.min(left))
}

/// Returns the wait before the next try: ours, or the longer one that the collector asked for;
/// up to a tenth more, so that sidecars do not come back together.
fn pause(retry: Duration, asked: Option<Duration>) -> Duration {
    let wait = asked.unwrap_or_default().min(LONGEST_WAIT).max(retry);
    wait + wait.mul_f64(fastrand::f64() / 10.0)
}
