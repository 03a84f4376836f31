//! SIGTERM and SIGINT: the first asks, the second insists.

use super::Error;
use std::pin::Pin;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Listens from before anything is started, so that no signal finds the default action.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// A process that can be asked to stop: the sender asks, the future ends when it has.
pub struct Stoppable<F> {
    pub ask: oneshot::Sender<()>,
    pub ended: F,
}

impl<F> Stoppable<F> {
    /// Gives `carry` the request to stop that the asker will make.
    pub fn new(carry: impl FnOnce(Pin<Box<dyn Future<Output = ()> + Send>>) -> F) -> Self {
        let (ask, asked) = oneshot::channel();
        // An asker that has gone asks for the same.
        let ended = carry(Box::pin(async { drop(asked.await) }));
        Self { ask, ended }
    }
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

    /// Waits for one of them and returns the exit code that stands for it.
    async fn next(&mut self) -> u8 {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return 143,
                _ = self.interrupt.recv() => return 130,
                // A closed terminal or a customary reload must not end a service.
                _ = self.hangup.recv() => {
                    tracing::warn!("SIGHUP is ignored: this version has no reload; restart instead");
                }
            }
        }
    }

    /// Carries `process` to its end; a first signal asks it to stop, a second does not wait.
    pub async fn until_stopped<F, T, E>(&mut self, process: Stoppable<F>) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let mut ended = std::pin::pin!(process.ended);
        tokio::select! {
            ended = ended.as_mut() => return ended,
            _ = self.next() => tracing::info!("stopping; a second signal ends at once"),
        }
        // An error means that it is stopping already.
        process.ask.send(()).ok();
        tokio::select! {
            ended = ended => ended,
            code = self.next() => Err(Error::Killed { code }.into()),
        }
    }
}
