//! The reporter while a sidecar runs, its last round, and where it finds its collector.

use super::Error;
use super::workers::Workers;
use crate::config::CollectorTarget;
use crate::consul::{Client, Poll};
use crate::lifecycle::{Observer, Phase};
use crate::reporter::{Shipper, Target, Url};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// For the last reports of a stopping process.
const FLUSH: Duration = Duration::from_secs(5);

/// The reporter, which comes back for its last round.
pub struct Delivery {
    stop: oneshot::Sender<()>,
    back: oneshot::Receiver<Shipper>,
}

impl Delivery {
    /// Begins to deliver, as a worker whose unasked end is an incident.
    pub fn start(mut shipper: Shipper, mut phase: Observer, workers: &mut Workers) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (give, back) = oneshot::channel();
        workers.start("reporter", async move {
            shipper.run(async { drop(stopped.await) }).await;
            // Nobody to give it to means that nobody wants a last round.
            give.send(shipper).ok();
            phase.reached(Phase::Stopping).await;
        });
        Self { stop, back }
    }

    /// Delivers what is owed once more, within bounds; the rest waits for the next start.
    pub async fn finish(self) {
        // A reporter that has failed takes no notice; its reports stay in the spool.
        self.stop.send(()).ok();
        if let Ok(mut shipper) = self.back.await {
            let owed = shipper.flush(Instant::now() + FLUSH).await;
            tracing::info!(owed, "last delivery done");
        }
    }
}

/// Says where reports go.
pub fn target(client: &Client, collector: Option<&CollectorTarget>) -> Result<Target, Error> {
    Ok(match collector {
        None => Target::Nowhere,
        Some(CollectorTarget::Url(url)) => {
            Target::Fixed(url.parse().map_err(|e| Error::Client(Box::new(e)))?)
        }
        Some(CollectorTarget::Consul(service)) => looked_up(client, service),
    })
}

/// Finds the collector in Consul anew for every round; any passing one will do.
fn looked_up(client: &Client, service: &str) -> Target {
    let (client, service) = (client.clone(), service.to_owned());
    Target::Lookup(Arc::new(move || {
        let (client, service) = (client.clone(), service.clone());
        Box::pin(async move {
            let name = client.layout().service(&service);
            let found = client.health(&name, Poll::NOW).await.ok()?.value;
            let passing: Vec<_> = found.iter().filter(|i| i.passing).collect();
            let one = passing.get(fastrand::usize(..passing.len().max(1)))?;
            Url::parse(&format!("{}://{}", one.proto(), one.authority())).ok()
        })
    }))
}
