//! The long-running futures of a process, each with a name and an owner.

use super::Error;
use std::time::Duration;
use tokio::task::JoinSet;

/// All workers of one process.
#[derive(Default)]
pub struct Workers(JoinSet<&'static str>);

impl Workers {
    /// Starts a worker that is meant to live as long as the process.
    pub fn start(&mut self, name: &'static str, worker: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(async move {
            worker.await;
            name
        });
    }

    /// Waits until one ends, which none may do unasked.
    pub async fn watch(&mut self) -> Error {
        match self.0.join_next().await {
            Some(Ok(name)) => Error::Worker(name),
            Some(Err(error)) => {
                tracing::error!(%error, "a worker panicked");
                Error::Worker("that panicked")
            }
            // Without workers there is nothing to watch.
            None => std::future::pending().await,
        }
    }

    /// Lets those end that were told to, for at most `patience`, and drops the rest.
    pub async fn end(&mut self, patience: Duration) {
        let all = async { while self.0.join_next().await.is_some() {} };
        if tokio::time::timeout(patience, all).await.is_err() {
            self.0.shutdown().await;
        }
    }
}
