//! One sidecar: started, running, stopped.

use super::build::Builder;
use super::child::{Child, Program};
use super::delivery::Delivery;
use super::ready::Readiness;
use super::reload::Reload;
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
use rustix::process::Signal;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::task::TaskTracker;

/// Nothing in flight for this long counts as idle while draining: an application that is still
/// finishing its work pauses between its calls.
const QUIET: Duration = Duration::from_secs(1);
/// For connections and calls that are told to end; they need no more than the listener's own
/// patience with them.
const CLOSE: Duration = Duration::from_secs(2);
/// For workers that were told to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// A sidecar that serves.
pub struct Sidecar {
    pub(super) addresses: Addresses,
    pub(super) lifecycle: Lifecycle,
    pub(super) workers: Workers,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) readiness: Arc<Readiness>,
    pub(super) reload: Arc<Reload>,
    /// When it was first told to leave.
    pub(super) left: Option<Instant>,
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
        let contracts = contracts::load(&settings.application.contracts)?;
        let metrics = Arc::new(Metrics::new(&settings.application.name));
        let tls = tls::open(settings.tls.as_ref(), metrics.tls())?;
        tls::check_name(tls.as_ref(), &settings.application.name)?;
        let sockets = Sockets::bind(&settings).await?;
        let addresses = sockets.addresses()?;
        let spool = compose::spool(&settings.spool, metrics.clone()).await?;
        let state = compose::state(&settings.spool)?;
        let builder = Builder::new(settings, addresses, metrics, (spool, state), tls)?;
        builder.build(contracts, sockets).await
    }

    /// Returns where the listeners are.
    pub fn addresses(&self) -> Addresses {
        self.addresses.clone()
    }

    /// Carries the sidecar on until it is asked to stop or told to quit, then stops it.
    pub fn run(self) -> Stoppable<impl Future<Output = Result<(), Error>>> {
        let reload = self.reload.clone();
        Stoppable::new(|stop| async { self.live(None, stop).await.map(drop) })
            .at_hangup(move || reload.hangup())
    }

    /// Carries the sidecar on beside a command, and returns the exit code of that.
    pub fn run_beside(
        self,
        program: Program,
    ) -> Result<Stoppable<impl Future<Output = Result<u8, Error>>>, Error> {
        let readiness = self.readiness.clone();
        let ready = Box::new(move || readiness.outbound().ok);
        let child = Child::new(program, &self.addresses, ready)?;
        // The command hears a SIGHUP; what it means is for the command to say.
        let process = Stoppable::new(|stop| self.live(Some(child), stop));
        Ok(process.at_hangup(|| {}))
    }

    /// Carries the sidecar on until `stop`, then stops it in order.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let stop = async {
            stop.await;
            Signal::TERM
        };
        self.live(None, stop).await.map(drop)
    }

    async fn live(
        mut self,
        mut child: Option<Child>,
        stop: impl Future<Output = Signal>,
    ) -> Result<u8, Error> {
        let cause = self.until_cause(&mut child, stop).await;
        if let Cause::Incident(incident) = &cause {
            tracing::error!(%incident, "stopping after an incident");
        }
        self.stop(&cause, child.as_mut()).await;
        match (cause, child) {
            (Cause::Incident(incident), _) => Err(incident),
            (_, Some(mut child)) => Ok(child.gone().await),
            (_, None) => Ok(0),
        }
    }

    /// Waits for a reason to stop, and obeys commands meanwhile.
    async fn until_cause(
        &mut self,
        child: &mut Option<Child>,
        stop: impl Future<Output = Signal>,
    ) -> Cause {
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                signal = stop.as_mut() => return Cause::Asked(signal),
                incident = self.workers.watch() => return Cause::Incident(incident),
                () = gone(child.as_mut()) => return Cause::Gone,
                Some(command) = self.commands.recv() => match command {
                    Command::Quit => return Cause::Quit,
                    Command::Drain => self.leave(),
                },
            }
        }
    }

    /// Makes the sidecar unready and lets it leave Consul; notes when that was first asked.
    fn leave(&mut self) {
        self.left.get_or_insert_with(Instant::now);
        self.lifecycle.advance(Phase::Leaving);
    }

    async fn stop(&mut self, cause: &Cause, mut child: Option<&mut Child>) {
        self.leave();
        let signal = match cause {
            Cause::Asked(signal) => *signal,
            Cause::Quit | Cause::Gone | Cause::Incident(_) => Signal::TERM,
        };
        if let Some(child) = child.as_deref_mut() {
            child.call_off(signal);
        }
        self.wait_until_heard(child.as_deref_mut()).await;
        self.lifecycle.advance(Phase::Draining);
        let deadline = Instant::now() + self.reload.limits().drain_timeout;
        if let Some(child) = child.as_deref_mut() {
            end_child(child, signal, deadline).await;
        }
        // An application that still works pauses between its calls; one that has gone does not.
        let works = child.is_none() && matches!(cause, Cause::Asked(_) | Cause::Incident(_));
        let quiet = if works { QUIET } else { Duration::ZERO };
        if timeout_at(deadline, self.idle(quiet)).await.is_err() {
            tracing::warn!("calls were still running at drain_timeout; they end as interrupted");
        }
        self.lifecycle.advance(Phase::Stopping);
        self.close().await;
        tracing::info!("stopped");
    }

    /// Serves on until callers have had time to hear that we leave; without an inbound listener
    /// there are none. The command serves with us, so it is told to stop only after this.
    async fn wait_until_heard(&self, child: Option<&mut Child>) {
        if self.addresses.inbound.is_none() {
            return;
        }
        let left = self.left.unwrap_or_else(Instant::now);
        let mut heard = std::pin::pin!(sleep_until(left + self.reload.limits().drain_delay));
        tokio::select! {
            () = heard.as_mut() => {}
            () = gone(child) => heard.await,
        }
    }

    /// Ends connections and calls, delivers what is owed and closes the files.
    async fn close(&mut self) {
        // Calls cut short here report themselves as interrupted, which the spool must still take.
        for running in [&self.connections, &self.calls] {
            running.close();
            if tokio::time::timeout(CLOSE, running.wait()).await.is_err() {
                tracing::warn!(left = running.len(), "not all calls could be ended");
            }
        }
        self.directory.close();
        if let Some(delivery) = self.shipper.take() {
            delivery.finish().await;
        }
        self.workers.end(PATIENCE).await;
        for (file, closed) in [
            ("spool", self.spool.close().await),
            ("state", self.state.close().await),
        ] {
            if let Err(error) = closed {
                tracing::warn!(file, %error, "not closed cleanly; nothing committed is lost");
            }
        }
    }

    /// Waits until nothing has been in flight for `quiet`.
    async fn idle(&self, quiet: Duration) {
        let mut quiet_since: Option<Instant> = None;
        loop {
            let inflight = [Direction::Inbound, Direction::Outbound]
                .map(|way| self.metrics.inflight(way).get());
            let busy = inflight.iter().any(|count| *count > 0) || !self.calls.is_empty();
            quiet_since = match (busy, quiet_since) {
                (true, _) => None,
                (false, since) => Some(since.unwrap_or_else(Instant::now)),
            };
            if quiet_since.is_some_and(|since| since.elapsed() >= quiet) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Why a sidecar stops.
enum Cause {
    /// By this signal.
    Asked(Signal),
    /// By a command on the admin listener.
    Quit,
    /// The command beside which it ran has ended.
    Gone,
    Incident(Error),
}

/// Waits until the command has gone; without one, for ever.
async fn gone(child: Option<&mut Child>) {
    match child {
        Some(child) => drop(child.gone().await),
        None => std::future::pending().await,
    }
}

/// Tells the command to end and gives it until `deadline`; its calls go on meanwhile.
async fn end_child(child: &mut Child, signal: Signal, deadline: Instant) {
    child.tell(signal);
    if timeout_at(deadline, child.gone()).await.is_err() {
        tracing::warn!("the command was still running at drain_timeout; it is killed");
        child.kill().await;
    }
}
