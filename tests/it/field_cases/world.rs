//! The two places where these cases happen: in front of an application, and behind one.

use super::message;
use super::peer::{HEALTH, Peer};
use super::wire::WITHIN;
use crate::support::client::{client, succeeds};
use crate::support::consul::Consul;
use crate::support::digest::hex_digest;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::wait_until;
use serde_json::{Value, json};

/// The contract of these cases and the route that leads to it.
pub const ORDER: &str = "order-create-v1.0";
pub const INVOKE: &str = "/invoke";

/// An order of some pieces.
pub fn order_contract() -> Value {
    json!({
        "id": ORDER,
        "version": "1.0.0",
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "order_ref": {"type": "string", "maxLength": 40},
                "qty": {"type": "integer", "minimum": 1, "maximum": 1000},
                "price": {"type": "number", "multipleOf": 0.01},
                "card": {"type": "string", "pattern": "^[0-9]{12,19}$"},
                "due": {"type": "string", "format": "date-time"}
            },
            "required": ["order_ref", "qty"],
            "additionalProperties": false
        },
        "output_schema": {"type": "object"},
        "constraints": {"timeout_ms": 10_000}
    })
}

/// A sidecar in front of an application: what peers send comes to its inbound listener.
///
/// `POST /invoke` is the contract; everything else is passed through. No registry is there.
pub struct Inside {
    pub sidecar: Sidecar,
    pub application: Peer,
    /// The inbound listener's `host:port`.
    pub address: String,
}

impl Inside {
    pub async fn start() -> Self {
        Self::with(|setup| setup).await
    }

    /// Starts it with more set.
    pub async fn with(more: impl FnOnce(Setup) -> Setup) -> Self {
        Self::before(Peer::start().await, more).await
    }

    /// Starts it before this application.
    pub async fn before(application: Peer, more: impl FnOnce(Setup) -> Setup) -> Self {
        application.answer(INVOKE, message::json("{}"));
        let setup = Sidecar::named("orders")
            .application(&application.url())
            .set("application.health", HEALTH)
            .set("inbound.passthrough", vec!["/"])
            .contract(order_contract(), "POST", INVOKE);
        let sidecar = more(setup).start_unready().await;
        let (client, url) = (client(), format!("{}/hermes/health", sidecar.inbound_url()));
        wait_until(WITHIN, "admitted contract", async || {
            succeeds(&client, &url).await
        })
        .await;
        let address = sidecar.inbound_url().replace("http://", "");
        Self {
            sidecar,
            application,
            address,
        }
    }

    /// Reads how many requests were refused for this reason.
    pub async fn refused(&self, kind: &str) -> f64 {
        refused(&self.sidecar, "inbound", kind).await
    }

    /// Reads how many requests are under way.
    pub async fn inflight(&self) -> f64 {
        let labels = [("direction", "inbound")];
        self.sidecar
            .metric("proxy_inflight_requests", &labels)
            .await
    }
}

/// A sidecar behind which an application calls a bare service, registered by hand.
pub struct Outside {
    pub sidecar: Sidecar,
    pub peer: Peer,
    pub consul: Consul,
    /// The outbound listener's `host:port`.
    pub address: String,
}

impl Outside {
    pub async fn start() -> Self {
        Self::with(|setup| setup).await
    }

    /// Starts it with more set.
    pub async fn with(more: impl FnOnce(Setup) -> Setup) -> Self {
        let (peer, consul) = tokio::join!(Peer::start(), Consul::start());
        let port = peer.address().port();
        register(&consul, "127.0.0.1", port).await;
        peer.answer(INVOKE, message::json("{}"));
        let setup = Sidecar::named("shop").consul(&consul.address());
        let sidecar = more(setup).start().await;
        let address = sidecar.outbound_url().replace("http://", "");
        let outside = Self {
            sidecar,
            peer,
            consul,
            address,
        };
        outside.knows_its_peer().await;
        outside
    }

    /// Waits until calls find the peer.
    pub async fn knows_its_peer(&self) {
        self.peer.answer("/known", message::answer(200, "", ""));
        let url = format!("http://{}{}", self.address, at("/known"));
        let client = client();
        wait_until(WITHIN, "instance to call", async || {
            succeeds(&client, &url).await
        })
        .await;
        self.peer.news();
    }

    /// Reads how many requests were refused for this reason.
    pub async fn refused(&self, kind: &str) -> f64 {
        refused(&self.sidecar, "outbound", kind).await
    }
}

/// The target under which the outbound listener offers a path of the peer.
pub fn at(path: &str) -> String {
    format!("/agents/{ORDER}{path}")
}

/// Publishes the contract and registers one instance of it, as a sidecar would.
pub async fn register(consul: &Consul, address: &str, port: u16) {
    let contract = order_contract();
    let digest = hex_digest(&serde_json_canonicalizer::to_vec(&contract).unwrap());
    let published = json!({
        "contract": contract, "digest": digest,
        "published_at": "2026-01-01T00:00:00.000Z", "published_by": "test"
    });
    let key = format!("/v1/kv/hermes/contracts/{ORDER}");
    consul
        .put(&format!("{key}/1.0.0"), published.to_string())
        .await;
    consul.put(&format!("{key}/version"), "1.0.0").await;
    let service = json!({
        "Name": ORDER, "ID": format!("{ORDER}-bare"), "Address": address, "Port": port,
        "Tags": ["hermes"],
        "Meta": {
            "hermes_version": "1.0.0", "hermes_digest": digest,
            "hermes_route": format!("POST {INVOKE}"), "hermes_app": "orders"
        }
    });
    consul
        .put("/v1/agent/service/register", service.to_string())
        .await;
}

async fn refused(sidecar: &Sidecar, direction: &str, kind: &str) -> f64 {
    let reason = kind.replace('-', "_");
    let labels = [("direction", direction), ("reason", reason.as_str())];
    sidecar.metric("proxy_rejections_total", &labels).await
}
