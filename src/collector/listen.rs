//! Accepting connections for the collector's door.
//!
//! - at most a bounded number at a time; further ones wait in the kernel's queue
//! - a head that does not come, and an idle connection, end after a minute
//! - told to stop, running requests get a few seconds, then connections are closed

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const CONNECTIONS: usize = 4_096;

/// Longer than the reporters' own, so that a connection is never closed under their request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until `stop` is cancelled and the connections have ended.
pub(super) async fn listen(listener: TcpListener, router: Router, stop: CancellationToken) {
    let connections = TaskTracker::new();
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let accepting = async {
        // The semaphore is never closed.
        while let Ok(slot) = slots.clone().acquire_owned().await {
            match listener.accept().await {
                Ok((tcp, _)) => {
                    let connection = serve(tcp, router.clone(), stop.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    // Out of descriptors, most likely: wait instead of spinning.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    };
    stop.run_until_cancelled(accepting).await;
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn serve(tcp: TcpStream, router: Router, stop: CancellationToken) {
    // Only delays small replies where it fails.
    tcp.set_nodelay(true).ok();
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .serve_connection(TokioIo::new(tcp), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            // Out of time, the connection is dropped; reports are sent again elsewhere.
            tokio::time::timeout(DRAIN_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
