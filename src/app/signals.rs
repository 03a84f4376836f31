//! SIGTERM and SIGINT: the first asks, the second insists. SIGHUP: read the settings again.

use super::Error;
use rustix::process::Signal;
use std::pin::Pin;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::oneshot;

/// Listens from before anything is started, so that no signal finds the default action.
pub struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hangup: unix::Signal,
}

/// A process that can be asked to stop: the sender asks, the future ends when it has.
pub struct Stoppable<F> {
    /// Takes the signal that asks.
    pub ask: oneshot::Sender<Signal>,
    /// What a SIGHUP does.
    pub hangup: Box<dyn Fn() + Send>,
    pub ended: F,
}

impl<F> Stoppable<F> {
    /// Gives `carry` the request to stop that the asker will make.
    pub fn new(carry: impl FnOnce(Pin<Box<dyn Future<Output = Signal> + Send>>) -> F) -> Self {
        let (ask, asked) = oneshot::channel();
        // An asker that has gone asks for the same.
        let ended = carry(Box::pin(async { asked.await.unwrap_or(Signal::TERM) }));
        Self {
            ask,
            hangup: Box::new(ignore_hangup),
            ended,
        }
    }

    /// Does this at each SIGHUP.
    pub fn at_hangup(mut self, hangup: impl Fn() + Send + 'static) -> Self {
        self.hangup = Box::new(hangup);
        self
    }
}

/// A closed terminal or a customary reload must not end a service.
fn ignore_hangup() {
    tracing::warn!("SIGHUP is ignored: nothing here is read again; restart instead");
}

/// Returns the exit code that stands for an end by `signal`.
pub fn code_of(signal: Signal) -> u8 {
    // Signals are numbered from 1 to 64.
    128 | (signal.as_raw() & 0x7f) as u8
}

impl Signals {
    pub fn listen() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(Error::Signals);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for one that asks to stop.
    async fn next(&mut self, hangup: &(dyn Fn() + Send)) -> Signal {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return Signal::TERM,
                _ = self.interrupt.recv() => return Signal::INT,
                _ = self.hangup.recv() => hangup(),
            }
        }
    }

    /// Carries `process` to its end; a first signal asks it to stop, a second does not wait.
    pub async fn until_stopped<F, T, E>(&mut self, process: Stoppable<F>) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let hangup = process.hangup;
        let mut ended = std::pin::pin!(process.ended);
        let first = tokio::select! {
            ended = ended.as_mut() => return ended,
            signal = self.next(&*hangup) => signal,
        };
        tracing::info!("stopping; a second signal ends at once");
        // An error means that it is stopping already.
        process.ask.send(first).ok();
        tokio::select! {
            ended = ended => ended,
            signal = self.next(&*hangup) => Err(Error::Killed { code: code_of(signal) }.into()),
        }
    }
}
