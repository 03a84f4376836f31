//! Four small services as they might exist without Hermes.
//!
//! checkout takes orders and asks payment; payment asks fraud; credit is slow and faulty on
//! purpose. All they do for Hermes: they call each other through the address they are told, pass
//! three headers of the request they serve on to the requests they make, and ask nobody when they
//! are tried themselves.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Names the request that is being served to those who are asked on its behalf.
const PASSED_ON: [&str; 3] = ["hermes-task-id", "traceparent", "tracestate"];

/// Marks a request by which a sidecar tries its application before it lets others in.
const TRIAL: &str = "hermes-sandbox";

/// Longer than credit's contract allows.
const TOO_LONG: Duration = Duration::from_secs(2);

/// What a service is given.
#[derive(Clone)]
pub struct Surroundings {
    /// Base URL through which others are called.
    pub outbound: String,
    pub client: reqwest::Client,
    /// Counts the requests that reached the service.
    pub served: Arc<AtomicU64>,
}

impl Surroundings {
    /// Notes that a request has come.
    fn serve(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks another service; nothing where it does not answer with a success.
    async fn ask(&self, path: &str, headers: &HeaderMap, question: &Value) -> Option<Value> {
        let mut request = self.client.post(format!("{}{path}", self.outbound));
        for name in PASSED_ON {
            if let Some(value) = headers.get(name) {
                request = request.header(name, value);
            }
        }
        let reply = request.json(question).send().await.ok()?;
        reply.error_for_status().ok()?.json().await.ok()
    }
}

/// Makes a service of one route, with a health page beside it.
fn service<H, T>(path: &str, handler: H, surroundings: Surroundings) -> Router
where
    H: axum::handler::Handler<T, Surroundings>,
    T: 'static,
{
    Router::new()
        .route(path, post(handler))
        .route("/health", get(|| async { Json(json!({"status": "ok"})) }))
        .with_state(surroundings)
}

#[derive(Deserialize)]
struct Order {
    customer_id: String,
    ip_address: String,
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    quantity: u32,
    price_cny: f64,
}

/// Takes orders: `POST /api/v1/orders`.
pub fn checkout(surroundings: Surroundings) -> Router {
    async fn order(
        State(here): State<Surroundings>,
        headers: HeaderMap,
        Json(order): Json<Order>,
    ) -> Response {
        here.serve();
        let prices = order.items.iter();
        let total: f64 = prices
            .map(|item| f64::from(item.quantity) * item.price_cny)
            .sum();
        if headers.contains_key(TRIAL) {
            return Json(json!({"status": "confirmed", "total_cny": total})).into_response();
        }
        let payment = json!({
            "customer_id": order.customer_id, "ip_address": order.ip_address, "amount_cny": total,
        });
        let path = "/agents/payment-authorize-v1.0/api/v1/payments";
        let Some(payment) = here.ask(path, &headers, &payment).await else {
            return unavailable("payment");
        };
        let status = match payment["status"].as_str() {
            Some("authorized") => "confirmed",
            _ => "declined",
        };
        Json(json!({"status": status, "total_cny": total})).into_response()
    }
    service("/api/v1/orders", order, surroundings)
}

#[derive(Deserialize)]
struct Payment {
    customer_id: String,
    ip_address: String,
    amount_cny: f64,
}

/// Authorises payments: `POST /api/v1/payments`.
pub fn payment(surroundings: Surroundings) -> Router {
    async fn authorize(
        State(here): State<Surroundings>,
        headers: HeaderMap,
        Json(payment): Json<Payment>,
    ) -> Response {
        here.serve();
        if headers.contains_key(TRIAL) {
            return Json(json!({"status": "authorized", "risk_level": "low"})).into_response();
        }
        let question = json!({"agent": "fraud-detection-v1.0", "input": {
            "user_id": payment.customer_id,
            "ip_address": payment.ip_address,
            "amount_cny": payment.amount_cny,
        }});
        let Some(risk) = here.ask("/hermes/invoke", &headers, &question).await else {
            return unavailable("fraud");
        };
        let level = risk["risk_level"].as_str().unwrap_or("high");
        let status = match level {
            "high" => "declined",
            _ => "authorized",
        };
        Json(json!({"status": status, "risk_level": level})).into_response()
    }
    service("/api/v1/payments", authorize, surroundings)
}

#[derive(Deserialize)]
struct Behaviour {
    ip_address: String,
    amount_cny: f64,
    device_fingerprint: Option<String>,
}

/// Judges the risk of fraud by rules: `POST /api/v1/risk`.
pub fn fraud(surroundings: Surroundings) -> Router {
    async fn risk(State(here): State<Surroundings>, Json(seen): Json<Behaviour>) -> Response {
        here.serve();
        Json(judge(&seen)).into_response()
    }
    service("/api/v1/risk", risk, surroundings)
}

fn judge(seen: &Behaviour) -> Value {
    let rules = [
        ("large_amount", 40, seen.amount_cny > 5_000.0),
        ("very_large_amount", 40, seen.amount_cny > 50_000.0),
        ("private_address", 20, seen.ip_address.starts_with("10.")),
        ("unknown_device", 5, seen.device_fingerprint.is_none()),
    ];
    let triggered = || rules.iter().filter(|(_, _, holds)| *holds);
    let score: u32 = triggered().map(|(_, points, _)| points).sum();
    let score = score.min(100);
    let level = match score {
        0..40 => "low",
        40..80 => "medium",
        _ => "high",
    };
    let names: Vec<_> = triggered().map(|(name, _, _)| *name).collect();
    json!({"risk_score": score, "risk_level": level, "rules_triggered": names})
}

#[derive(Deserialize)]
struct Customer {
    customer_id: String,
}

/// Looks up credit scores: `POST /api/v1/scores`. How it goes wrong depends on the customer's id:
/// `slow…` is answered too late, `odd…` with a body that breaks the contract, `down…` with 500.
pub fn credit(surroundings: Surroundings) -> Router {
    async fn score(State(here): State<Surroundings>, Json(customer): Json<Customer>) -> Response {
        here.serve();
        let id = customer.customer_id.as_str();
        if id.starts_with("slow") {
            tokio::time::sleep(TOO_LONG).await;
        }
        if id.starts_with("odd") {
            return Json(json!({"score": "AAA"})).into_response();
        }
        if id.starts_with("down") {
            let body = Json(json!({"error": "the bureau is down"}));
            return (StatusCode::INTERNAL_SERVER_ERROR, body).into_response();
        }
        let spread = id.bytes().map(u64::from).sum::<u64>();
        tokio::time::sleep(Duration::from_millis(20 + spread % 80)).await;
        Json(json!({"score": 500 + spread % 300})).into_response()
    }
    service("/api/v1/scores", score, surroundings)
}

fn unavailable(whom: &str) -> Response {
    let body = Json(json!({"error": format!("{whom} did not answer")}));
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_add_up_to_a_level() {
        for (ip_address, amount_cny, device, score, level) in [
            ("203.0.113.7", 20.0, Some("d"), 0, "low"),
            ("203.0.113.7", 5_000.01, None, 45, "medium"),
            ("10.0.0.1", 60_000.0, None, 100, "high"),
        ] {
            let seen = Behaviour {
                ip_address: ip_address.to_owned(),
                amount_cny,
                device_fingerprint: device.map(str::to_owned),
            };
            let risk = judge(&seen);
            assert_eq!(
                (&risk["risk_score"], &risk["risk_level"]),
                (&json!(score), &json!(level))
            );
        }
    }
}
