//! The reporter while a sidecar runs, and its last round.

use crate::reporter::Shipper;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// For the last reports of a stopping process.
const FLUSH: Duration = Duration::from_secs(5);
/// The reporter, which must come back to us for its last round.
pub struct Delivery {
    worker: JoinHandle<Shipper>,
    stop: oneshot::Sender<()>,
}

impl Delivery {
    /// Begins to deliver.
    pub fn start(mut shipper: Shipper) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        #[expect(
            clippy::disallowed_methods,
            reason = "its handle is awaited in `finish`"
        )]
        let worker = tokio::spawn(async move {
            shipper.run(async { drop(stopped.await) }).await;
            shipper
        });
        Self { worker, stop }
    }

    /// Delivers what is owed once more, within bounds; the rest waits for the next start.
    pub async fn finish(self) {
        self.stop.send(()).ok();
        match self.worker.await {
            Ok(mut shipper) => {
                let owed = shipper.flush(Instant::now() + FLUSH).await;
                tracing::info!(owed, "last delivery done");
            }
            Err(error) => tracing::error!(%error, "the reporter had failed"),
        }
    }
}
