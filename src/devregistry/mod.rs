//! An in-memory stand-in for one Consul agent, for laptops and tests.
//!
//! Serves the part of Consul's HTTP API that `consul` uses, with the behaviour of Consul 1.8.7;
//! one conversation replayed against both keeps it so (`tests/it/registry_conversation.rs`).
//!
//! - nothing survives it, and everything in it is bounded; what does not fit is refused
//! - no cluster, no ACLs, no TLS, no sessions, no Connect: unknown paths are 404
//! - the catalogue follows the agent at once, where a real one takes milliseconds
//! - a missing key and an empty prefix wake on any write to the store (in Consul: a near one)

mod agent;
mod block;
mod catalog;
mod decode;
mod keys;
mod reads;
mod state;
mod timers;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, put};
use tokio::net::TcpListener;

use state::Shared;

/// After `stop`: for answers under way. Blocked polls end at once.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest body; a key's value may have 512 KiB, the least of all limits that Consul has here.
const MAX_BODY_BYTES: usize = keys::MAX_VALUE_BYTES + 1;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("set up the client for HTTP checks")]
    Probe(#[source] reqwest::Error),
    #[error("serve the registry")]
    Serve(#[source] std::io::Error),
}

/// Serves a fresh, empty registry on `listener` until `stop` is done.
///
/// The future is all there is: dropping it ends the registry at once.
pub async fn serve(
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let address = listener.local_addr().map_err(Error::Serve)?;
    let shared = Arc::new(Shared::new(address));
    let timers = timers::run(shared.clone())?;
    let stopping = shared.stopping.clone();
    let told = async move {
        stop.await;
        stopping.cancel();
    };
    let stopping = shared.stopping.clone();
    let server = axum::serve(listener, router(shared)).with_graceful_shutdown(told);
    let overdue = async move {
        stopping.cancelled().await;
        tokio::time::sleep(STOP_TIMEOUT).await;
    };
    tokio::select! {
        served = std::future::IntoFuture::into_future(server) => served.map_err(Error::Serve),
        () = timers => Ok(()),
        () = overdue => Ok(()),
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/agent/self", get(agent::own))
        .route("/v1/agent/services", get(agent::services))
        .route("/v1/agent/checks", get(agent::checks))
        .route("/v1/agent/service/register", put(agent::register))
        .route("/v1/agent/service/deregister/{id}", put(agent::deregister))
        .route("/v1/agent/service/maintenance/{id}", put(agent::maintain))
        .route("/v1/agent/service/{id}", get(agent::service))
        .route("/v1/agent/check/update/{id}", put(agent::update))
        .route("/v1/agent/check/{verb}/{id}", put(agent::set))
        .route("/v1/health/service/{name}", get(reads::health))
        .route("/v1/catalog/services", get(reads::services))
        .route("/v1/status/leader", get(reads::leader))
        .route("/v1/status/peers", get(reads::peers))
        .route(
            "/v1/kv/",
            get(reads::entries).put(reads::no_key).delete(reads::delete),
        )
        .route(
            "/v1/kv/{*key}",
            get(reads::entries).put(reads::put).delete(reads::delete),
        )
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(shared)
}
