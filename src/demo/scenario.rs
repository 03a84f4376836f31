//! The scripted scenario: four tasks, and how each must end.
//!
//! A task is as scripted when the caller got the status, the collector shows exactly its steps
//! (`script`), and applications that must not be reached were not. What the collector does not
//! show yet is waited for, within bounds.

use super::house::Addresses;
use super::script::{self, Side, Step, Task};
use super::{Error, Options};
use reqwest::Client;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Reports take milliseconds; the collector is beside us.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Through which listener of checkout's sidecar a task begins.
enum Door {
    /// As a customer comes.
    Inbound,
    /// As checkout itself calls others.
    Outbound,
}

/// One task: what is sent, and how it must end.
struct Scene {
    title: &'static str,
    door: Door,
    path: &'static str,
    body: &'static str,
    status: u16,
    steps: &'static [Step],
    /// The application that must not be reached.
    untouched: Option<&'static str>,
}

static SCENES: [Scene; 4] = [
    Scene {
        title: "completed over three steps",
        door: Door::Inbound,
        path: "/api/v1/orders",
        body: r#"{"customer_id": "c-1", "ip_address": "203.0.113.7",
            "items": [{"sku": "tea", "quantity": 2, "price_cny": 19.9}]}"#,
        status: 200,
        steps: &[
            Step {
                agent: "checkout-order-v1.0",
                parent: None,
                states: &[
                    ("pending", Side::Callee),
                    ("dispatched", Side::Callee),
                    ("executing", Side::Callee),
                    ("completed", Side::Callee),
                ],
                error: None,
            },
            Step {
                agent: "payment-authorize-v1.0",
                parent: Some("checkout-order-v1.0"),
                states: &[
                    ("pending", Side::Caller),
                    ("dispatched", Side::Caller),
                    ("executing", Side::Callee),
                    ("completed", Side::Caller),
                ],
                error: None,
            },
            Step {
                agent: "fraud-detection-v1.0",
                parent: Some("payment-authorize-v1.0"),
                states: &[
                    ("pending", Side::Caller),
                    ("dispatched", Side::Caller),
                    ("executing", Side::Callee),
                    ("completed", Side::Caller),
                ],
                error: None,
            },
        ],
        untouched: None,
    },
    Scene {
        title: "input refused",
        door: Door::Inbound,
        path: "/api/v1/orders",
        body: r#"{"customer_id": "c-2", "ip_address": "203.0.113.7", "items": []}"#,
        status: 400,
        steps: &[Step {
            agent: "checkout-order-v1.0",
            parent: None,
            states: &[
                ("pending", Side::Callee),
                ("failed_validation", Side::Callee),
            ],
            error: Some("input-invalid"),
        }],
        untouched: Some("checkout"),
    },
    Scene {
        title: "output refused",
        door: Door::Outbound,
        path: "/agents/credit-score-v1.0/api/v1/scores",
        body: r#"{"customer_id": "odd-3"}"#,
        status: 502,
        steps: &[Step {
            agent: "credit-score-v1.0",
            parent: None,
            states: &[
                ("pending", Side::Caller),
                ("dispatched", Side::Caller),
                ("executing", Side::Callee),
                ("failed_validation", Side::Caller),
            ],
            error: Some("output-invalid"),
        }],
        untouched: None,
    },
    Scene {
        title: "timeout",
        door: Door::Outbound,
        path: "/agents/credit-score-v1.0/api/v1/scores",
        body: r#"{"customer_id": "slow-4"}"#,
        status: 504,
        steps: &[Step {
            agent: "credit-score-v1.0",
            parent: None,
            states: &[
                ("pending", Side::Caller),
                ("dispatched", Side::Caller),
                ("executing", Side::Callee),
                ("timeout", Side::Caller),
            ],
            error: Some("timeout"),
        }],
        untouched: None,
    },
];

/// Plays all scenes and prints what came of each; says whether all ended as scripted.
pub async fn play(
    addresses: &Addresses,
    client: &Client,
    options: &Options,
) -> Result<bool, Error> {
    let mut all = true;
    for scene in &SCENES {
        let outcome = scene.play(addresses, client).await?;
        all &= outcome.faults.is_empty();
        scene.tell(&outcome, options);
    }
    Ok(all)
}

/// What came of a scene.
struct Outcome {
    status: u16,
    /// The body of `GET /tasks/{id}`; empty where there was none.
    task: Vec<u8>,
    /// Where it left the script.
    faults: Vec<String>,
}

impl Scene {
    async fn play(&self, addresses: &Addresses, client: &Client) -> Result<Outcome, Error> {
        let checkout = addresses.stand("checkout");
        let door = match self.door {
            Door::Inbound => &checkout.inbound,
            Door::Outbound => &checkout.outbound,
        };
        let watched = self.untouched.map(|name| addresses.stand(name));
        let served = || watched.map(|stand| stand.served.load(Ordering::Relaxed));
        let before = served();
        let request = client.post(format!("http://{door}{}", self.path));
        let request = request.header("content-type", "application/json");
        let reply = request.body(self.body).send().await?;
        let status = reply.status().as_u16();
        let id = reply.headers().get("hermes-task-id");
        let id = id.and_then(|id| id.to_str().ok()).map(str::to_owned);
        let mut faults = Vec::new();
        if status != self.status {
            faults.push(format!("status {status}, not {}", self.status));
        }
        let mut task = Vec::new();
        match id {
            Some(id) => {
                let url = format!("{}/tasks/{id}", addresses.collector);
                let (shown, different) = self.shown(client, &url).await?;
                task = shown;
                faults.extend(different);
            }
            None => faults.push("the reply names no task".to_owned()),
        }
        if served() != before {
            faults.push("the application was reached".to_owned());
        }
        Ok(Outcome {
            status,
            task,
            faults,
        })
    }

    /// Waits until the collector shows the task as scripted; gives up with the differences.
    async fn shown(&self, client: &Client, url: &str) -> Result<(Vec<u8>, Vec<String>), Error> {
        let deadline = Instant::now() + SHOWN_WITHIN;
        loop {
            let reply = client.get(url).send().await?;
            let found = reply.status().is_success();
            let body = reply.bytes().await?;
            let faults = match serde_json::from_slice::<Task>(&body) {
                Ok(task) if found => script::faults(self.steps, &task),
                _ => vec!["the collector does not know the task".to_owned()],
            };
            if faults.is_empty() || Instant::now() > deadline {
                return Ok((body.to_vec(), faults));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    fn tell(&self, outcome: &Outcome, options: &Options) {
        let as_scripted = outcome.faults.is_empty();
        if options.json {
            let task: Value = serde_json::from_slice(&outcome.task).unwrap_or_default();
            let told = json!({
                "scene": self.title,
                "status": outcome.status,
                "as_scripted": as_scripted,
                "faults": outcome.faults,
                "task": task,
            });
            (options.say)(&told.to_string());
            return;
        }
        let verdict = if as_scripted {
            "as scripted"
        } else {
            "NOT AS SCRIPTED"
        };
        (options.say)(&format!("\n{}: {}, {verdict}", self.title, outcome.status));
        for fault in &outcome.faults {
            (options.say)(&format!("  {fault}"));
        }
        if let Ok(drawn) = (options.draw)(&outcome.task) {
            (options.say)(drawn.trim_end());
        }
    }
}
