//! One sidecar: started, running, stopped.

use super::build::Builder;
use super::delivery::Delivery;
use super::signals::Stoppable;
use super::sockets::{Addresses, Sockets};
use super::workers::Workers;
use super::{Error, compose, contracts, tls};
use crate::admin::Command;
use crate::config::Settings;
use crate::contract::watch::Directory;
use crate::lifecycle::{Lifecycle, Phase};
use crate::spool::Spool;
use crate::store::Store;
use crate::telemetry::metrics::{Direction, Sidecar as Metrics};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// Nothing in flight for this long counts as idle while draining: an application that is still
/// finishing its work pauses between its calls.
const QUIET: Duration = Duration::from_secs(1);
/// For connections and calls that are told to end; they need no more than the listener's own
/// patience with them.
const CLOSE: Duration = Duration::from_secs(2);

/// A sidecar that serves.
pub struct Sidecar {
    pub(super) addresses: Addresses,
    pub(super) settings: Settings,
    pub(super) lifecycle: Lifecycle,
    pub(super) workers: Workers,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) spool: Spool,
    pub(super) state: Store,
    pub(super) shipper: Option<Delivery>,
    pub(super) directory: Arc<Directory>,
    pub(super) calls: TaskTracker,
    pub(super) connections: TaskTracker,
}

impl Sidecar {
    /// Starts everything; what cannot work is refused here, before a request is taken.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let ours = contracts::load(&settings.application.contracts)?;
        let metrics = Arc::new(Metrics::new(&settings.application.name));
        let tls = tls::open(settings.tls.as_ref(), metrics.tls())?;
        tls::check_name(tls.as_ref(), &settings.application.name)?;
        let sockets = Sockets::bind(&settings).await?;
        let addresses = sockets.addresses()?;
        let spool = compose::spool(&settings.spool, metrics.clone()).await?;
        let state = compose::state(&settings.spool)?;
        let builder = Builder::new(settings, addresses, metrics, (spool, state), tls)?;
        builder.build(ours, sockets).await
    }

    /// Returns where the listeners are.
    pub fn addresses(&self) -> Addresses {
        self.addresses.clone()
    }

    /// Carries the sidecar on until it is asked to stop or told to quit, then stops it.
    pub fn run(self) -> Stoppable<impl Future<Output = Result<(), Error>>> {
        Stoppable::new(|stop| self.run_until(stop))
    }

    /// Carries the sidecar on until `stop`, then stops it in order.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let incident = {
            let mut stop = std::pin::pin!(stop);
            loop {
                tokio::select! {
                    () = stop.as_mut() => break None,
                    incident = self.workers.watch() => break Some(incident),
                    Some(command) = self.commands.recv() => match command {
                        Command::Quit => break None,
                        Command::Drain => self.lifecycle.advance(Phase::Leaving),
                    },
                }
            }
        };
        if let Some(incident) = &incident {
            tracing::error!(%incident, "stopping after an incident");
        }
        self.stop().await;
        incident.map_or(Ok(()), Err)
    }

    async fn stop(self) {
        let limits = &self.settings.limits;
        let serves = self.addresses.inbound.is_some();
        self.lifecycle.advance(Phase::Leaving);
        if serves {
            tokio::time::sleep(limits.drain_delay).await;
        }
        self.lifecycle.advance(Phase::Draining);
        let drained = tokio::time::timeout(limits.drain_timeout, self.idle()).await;
        if drained.is_err() {
            tracing::warn!("calls were still running at drain_timeout; they end as interrupted");
        }
        self.lifecycle.advance(Phase::Stopping);
        // Calls cut short here report themselves as interrupted, which the spool must still take.
        for running in [&self.connections, &self.calls] {
            running.close();
            if tokio::time::timeout(CLOSE, running.wait()).await.is_err() {
                tracing::warn!(left = running.len(), "not all calls could be ended");
            }
        }
        self.directory.close();
        if let Some(delivery) = self.shipper {
            delivery.finish().await;
        }
        self.workers.end().await;
        for (file, closed) in [
            ("spool", self.spool.close().await),
            ("state", self.state.close().await),
        ] {
            if let Err(error) = closed {
                tracing::warn!(file, %error, "not closed cleanly; nothing committed is lost");
            }
        }
        tracing::info!("stopped");
    }

    /// Waits until nothing has been in flight for a while.
    async fn idle(&self) {
        let mut quiet_since: Option<Instant> = None;
        loop {
            let inflight = [Direction::Inbound, Direction::Outbound]
                .map(|way| self.metrics.inflight(way).get());
            let busy = inflight.iter().any(|count| *count > 0) || !self.calls.is_empty();
            quiet_since = match (busy, quiet_since) {
                (true, _) => None,
                (false, since) => Some(since.unwrap_or_else(Instant::now)),
            };
            if quiet_since.is_some_and(|since| since.elapsed() >= QUIET) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
