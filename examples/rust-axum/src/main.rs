//! Books amounts into a ledger in memory: axum, JSON over HTTP.
//!
//! NOTICE_URL, where it is set, is told of each booking. PORT chooses the port.

use axum::Router;
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

/// What W3C Trace Context has every service hand on; nothing of the sidecar is known here.
const CORRELATION: [&str; 2] = ["traceparent", "tracestate"];

#[derive(Clone)]
struct Ledger {
    /// The number of each order's booking: booking an order again changes nothing.
    booked: Arc<Mutex<HashMap<String, usize>>>,
    notice_url: Option<String>,
    client: reqwest::Client,
}

#[derive(Deserialize)]
struct Order {
    order_id: String,
    amount: i64,
    currency: String,
}

#[derive(Serialize)]
struct Entry {
    account: String,
    amount: i64,
}

#[derive(Serialize)]
struct Booking {
    booking_id: String,
    entries: [Entry; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    notice: Option<Value>,
}

async fn book(
    State(ledger): State<Ledger>,
    headers: HeaderMap,
    Json(order): Json<Order>,
) -> Result<Json<Booking>, (StatusCode, Json<Value>)> {
    let number = {
        let mut booked = ledger.booked.lock().unwrap_or_else(PoisonError::into_inner);
        let next = booked.len() + 1;
        *booked.entry(order.order_id.clone()).or_insert(next)
    };
    let entry = |account: &str, amount| Entry {
        account: format!("{account}:{}", order.currency),
        amount,
    };
    let mut booking = Booking {
        booking_id: format!("b-{number}"),
        entries: [
            entry("clearing", -order.amount),
            entry("creditors", order.amount),
        ],
        notice: None,
    };
    if let Some(url) = &ledger.notice_url {
        let told = tell(&ledger.client, url, &headers, &order, &booking.booking_id).await;
        booking.notice = Some(told.map_err(|problem| {
            let body = json!({"error": format!("booked, but not told: {problem}")});
            (StatusCode::BAD_GATEWAY, Json(body))
        })?);
    }
    Ok(Json(booking))
}

async fn tell(
    client: &reqwest::Client,
    url: &str,
    headers: &HeaderMap,
    order: &Order,
    booking_id: &str,
) -> reqwest::Result<Value> {
    let mut call = client.post(url).json(&json!({
        "order_id": order.order_id,
        "booking_id": booking_id,
        "amount": order.amount,
        "currency": order.currency,
    }));
    for name in CORRELATION {
        if let Some(value) = headers.get(name) {
            call = call.header(name, value);
        }
    }
    call.send().await?.error_for_status()?.json().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let variable = |name: &str| std::env::var(name).ok();
    let ledger = Ledger {
        booked: Arc::default(),
        notice_url: variable("NOTICE_URL"),
        client: reqwest::Client::new(),
    };
    let port: u16 = variable("PORT").unwrap_or("8000".to_owned()).parse()?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let app = Router::new()
        .route("/bookings", post(book))
        .with_state(ledger);
    axum::serve(listener, app).await?;
    Ok(())
}
