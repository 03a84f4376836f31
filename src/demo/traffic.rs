//! Steady sample traffic: customers who order, and checkout's own look-ups of credit scores.
//!
//! Ten requests a second make about twenty calls: an order is three. Every two seconds each kind
//! occurs, good and bad. At most `MOST` requests are under way; what comes then is left out.

use super::house::Addresses;
use reqwest::Client;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

const EVERY: Duration = Duration::from_millis(100);
const MOST: usize = 64;

/// Sends requests until dropped; those under way end with it.
pub async fn flow(addresses: &Addresses, client: &Client) {
    let mut under_way = JoinSet::new();
    let mut pace = interval(EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for number in 0_u64.. {
        pace.tick().await;
        while under_way.try_join_next().is_some() {}
        if under_way.len() < MOST {
            let (url, body) = request(addresses, number);
            let sent = client.post(url).json(&body).send();
            under_way.spawn(async move {
                // Many are meant to fail; the collector tells which did.
                if let Ok(reply) = sent.await {
                    reply.bytes().await.ok();
                }
            });
        }
    }
}

/// Makes the request of this number; twenty make a round.
fn request(addresses: &Addresses, number: u64) -> (String, Value) {
    let checkout = addresses.stand("checkout");
    let inbound = format!("http://{}", checkout.inbound);
    let outbound = format!("http://{}", checkout.outbound);
    let orders = format!("{inbound}{}", checkout.plan.path);
    let invoke = format!("{outbound}/hermes/invoke");
    let score = |kind: &str| {
        let customer = format!("{kind}-{}", number % 997);
        json!({"agent": "credit-score-v1.0", "input": {"customer_id": customer}})
    };
    match number % 20 {
        // Large enough to be declined.
        4 => (orders, order(number, 60_000.0)),
        // A wrapper, as from a caller without a sidecar.
        6 => {
            let wrapped = json!({"agent": checkout.plan.agent, "input": order(number, 20.0)});
            (format!("{inbound}/hermes/invoke"), wrapped)
        }
        // Nothing in the basket: checkout's sidecar refuses.
        8 | 18 => (
            orders,
            json!({"customer_id": "c", "ip_address": "203.0.113.7", "items": []}),
        ),
        // A misspelt amount: the caller's own sidecar refuses.
        9 => {
            let input = json!({"user_id": "u", "ip_address": "203.0.113.7", "amount": 1});
            (
                invoke,
                json!({"agent": "fraud-detection-v1.0", "input": input}),
            )
        }
        11 => (invoke, score("slow")),
        13 => (invoke, score("odd")),
        15 => (invoke, score("down")),
        1 | 3 | 7 | 17 | 19 => (invoke, score("customer")),
        // A contract that nobody serves.
        5 => (invoke, json!({"agent": "weather-report-v1.0", "input": {}})),
        _ => (orders, order(number, 20.0)),
    }
}

fn order(number: u64, price: f64) -> Value {
    json!({
        "customer_id": format!("customer-{}", number % 997),
        "ip_address": format!("203.0.113.{}", number % 250),
        "items": [{"sku": "tea", "quantity": 1 + number % 3, "price_cny": price}],
    })
}
