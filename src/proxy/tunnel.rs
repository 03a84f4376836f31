//! Connections that have switched protocols: WebSocket and the like.
//!
//! - no byte crosses before the upstream has granted the switch with 101
//! - a tunnel counts as a request in flight and holds its connection's place among the most that
//!   are allowed; silence in both directions, or the end of the process, ends it

use super::body::{Activity, Counted};
use crate::lifecycle::{Observer, Phase};
use crate::socket::Occupied;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use prometheus::IntGauge;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::task::TaskTracker;

/// How much is carried at a time.
const PIECE: usize = 16 * 1024;

/// The tunnels of a listener.
#[derive(Debug, Clone)]
pub struct Tunnels {
    pub connections: TaskTracker,
    pub lifecycle: Observer,
    pub inflight: IntGauge,
    /// The longest silence in both directions.
    pub silence: Duration,
}

/// The downstream's side of a switch that it asks for.
#[derive(Debug)]
pub struct Asked {
    pub downstream: OnUpgrade,
    pub place: Option<Occupied>,
}

impl Tunnels {
    /// Joins both sides once the downstream has read that the switch was granted.
    pub fn join(&self, asked: Asked, upstream: OnUpgrade) {
        let counted = Counted::new(self.inflight.clone());
        let (silence, mut lifecycle) = (self.silence, self.lifecycle.clone());
        self.connections.spawn(async move {
            let (_counted, _place) = (counted, asked.place);
            let carried = async {
                let (down, up) =
                    tokio::try_join!(asked.downstream, upstream).map_err(io::Error::other)?;
                carry_both(down, up, silence).await
            };
            let ended = tokio::select! {
                ended = carried => ended,
                () = lifecycle.reached(Phase::Stopping) => Ok(()),
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a tunnel broke");
            }
        });
    }
}

async fn carry_both(down: Upgraded, up: Upgraded, silence: Duration) -> io::Result<()> {
    let activity = Activity::default();
    let (from_down, to_down) = tokio::io::split(TokioIo::new(down));
    let (from_up, to_up) = tokio::io::split(TokioIo::new(up));
    let both = async {
        tokio::try_join!(
            carry(from_down, to_up, &activity),
            carry(from_up, to_down, &activity)
        )
    };
    tokio::select! {
        ended = both => ended.map(|_| ()),
        () = silent(&activity, silence) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Carries bytes one way until their end, which is passed on.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    activity: &Activity,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..length]).await?;
        to.flush().await?;
        activity.mark();
    }
}

async fn silent(activity: &Activity, limit: Duration) {
    loop {
        let until = activity.last() + limit;
        if until <= tokio::time::Instant::now() {
            return;
        }
        tokio::time::sleep_until(until).await;
    }
}
