//! Parts of the demo that run beside each other and stop together.

use super::Error;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Longer than any part needs by itself; what still runs then is dropped.
const PATIENCE: Duration = Duration::from_secs(20);

/// One tier of the house. Dropped, its parts end at once.
pub struct Tier {
    name: &'static str,
    stop: CancellationToken,
    parts: JoinSet<Result<(), Error>>,
}

impl Tier {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            stop: CancellationToken::new(),
            parts: JoinSet::new(),
        }
    }

    /// Starts a part; it is given the future that ends when it is to stop.
    pub fn start<F, E>(&mut self, part: impl FnOnce(Stop) -> F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Error> + 'static,
    {
        let ended = part(Box::pin(self.stop.clone().cancelled_owned()));
        self.parts.spawn(async { ended.await.map_err(Into::into) });
    }

    /// Waits for a part that ends unasked. One that somebody told to quit is let go.
    pub async fn watch(&mut self) -> Error {
        while let Some(ended) = self.parts.join_next().await {
            match ended {
                Ok(Ok(())) => tracing::warn!(tier = self.name, "a part of the demo has quit"),
                Ok(Err(error)) => return error,
                Err(_) => return Error::Ended(self.name),
            }
        }
        std::future::pending().await
    }

    /// Asks all parts to stop and waits until they have; returns the first error.
    pub async fn end(mut self) -> Result<(), Error> {
        self.stop.cancel();
        let mut result = Ok(());
        let all = async {
            while let Some(ended) = self.parts.join_next().await {
                let ended = ended.unwrap_or_else(|_| Err(Error::Ended(self.name)));
                result = std::mem::replace(&mut result, Ok(())).and(ended);
            }
        };
        if tokio::time::timeout(PATIENCE, all).await.is_err() {
            tracing::warn!(tier = self.name, "a part of the demo did not stop in time");
        }
        result
    }
}

/// Ends when a part is to stop.
pub type Stop = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn parts_stop_when_asked_and_failures_are_told() {
        let mut tier = Tier::new("tier");
        tier.start(|stop| async {
            stop.await;
            Ok::<_, Error>(())
        });
        tier.start(|_| async { Ok::<_, Error>(()) });
        tier.start(|_| async { Err(Error::Ended("one")) });
        assert!(matches!(tier.watch().await, Error::Ended("one")));
        tier.start(|stop| async {
            stop.await;
            Err(Error::Ended("two"))
        });
        assert!(matches!(tier.end().await, Err(Error::Ended("two"))));
    }
}
