//! Five services in a chain, each plain HTTP behind a sidecar of its own.
//!
//! They import nothing of ours and know none of our headers: toward the next one they hand on what
//! W3C Trace Context tells every service to hand on, and nothing else.

use super::application::{Answer, Application, Received, Relay};
use super::client::client;
use super::collector::Collector;
use super::consul::Consul;
use super::reply::Reply;
use super::sidecar::{Setup, Sidecar};
use super::wait::wait_for;
use serde_json::{Value, json};
use std::time::Duration;

/// What the services serve, the first one first.
pub const AGENTS: [&str; 5] = [
    "order-intake-v1.0",
    "risk-screening-v1.0",
    "currency-conversion-v1.0",
    "ledger-booking-v1.0",
    "customer-notice-v1.0",
];
/// Where each of them is called.
pub const PATH: &str = "/next";
/// What W3C Trace Context has a service hand on.
pub const W3C: &[&str] = &["traceparent", "tracestate"];

const KNOWN_WITHIN: Duration = Duration::from_secs(20);
const ENDED_WITHIN: Duration = Duration::from_secs(10);

/// One of them.
pub struct Service {
    pub sidecar: Sidecar,
    pub application: Application,
    /// What it has heard from the next one.
    pub relay: Relay,
}

/// All of it running, and known to each other; ends with its value.
pub struct Hops {
    pub services: Vec<Service>,
    /// Who calls the first one.
    pub shop: Sidecar,
    pub collector: Collector,
    pub consul: Consul,
}

/// A contract that leaves every service time for those behind it; the fourth and the fifth have
/// `patience`.
fn contract(at: usize, patience: Duration) -> Value {
    let above = 3usize.saturating_sub(at) as u64;
    let timeout_ms = patience.as_millis() as u64 + 2_000 * above;
    json!({
        "id": AGENTS[at],
        "version": "1.0.0",
        "input_schema": {"type": "object", "required": ["order"]},
        "output_schema": {"type": "object", "required": ["by"]},
        "constraints": {"timeout_ms": timeout_ms},
        "retry_policy": {"max_retries": 0}
    })
}

impl Hops {
    /// Starts them; `patience` is the timeout of the fourth and the fifth.
    pub async fn start(patience: Duration) -> Self {
        Self::start_with(patience, |setup| setup).await
    }

    /// Starts them with more set at every sidecar.
    pub async fn start_with(patience: Duration, more: impl Fn(Setup) -> Setup) -> Self {
        let (consul, collector) = tokio::join!(Consul::start(), Collector::start());
        let around = |name: &str| {
            let setup = Sidecar::named(name).consul(&consul.address());
            more(setup.collector(&collector.url()))
        };
        let mut services = Vec::new();
        for (at, agent) in AGENTS.iter().enumerate() {
            let application = Application::start().await;
            let setup = around(agent.split('-').next().unwrap())
                .application(&application.url())
                .contract(contract(at, patience), "POST", PATH);
            services.push(Service {
                sidecar: setup.start().await,
                application,
                relay: Relay::default(),
            });
        }
        let shop = around("shop").start().await;
        for agent in AGENTS {
            consul.wait_passing(agent, 1, KNOWN_WITHIN).await;
        }
        let hops = Self {
            services,
            shop,
            collector,
            consul,
        };
        hops.hand_on(W3C);
        hops.warm().await;
        hops
    }

    /// Lets every service hand on just these fields of the request it got.
    pub fn hand_on(&self, fields: &'static [&'static str]) {
        for at in 0..AGENTS.len() {
            self.hand_on_at(at, fields);
        }
    }

    /// Lets one service hand on just these fields.
    pub fn hand_on_at(&self, at: usize, fields: &'static [&'static str]) {
        let service = &self.services[at];
        let Some(next) = AGENTS.get(at + 1) else {
            let answer = Answer::json(&json!({"by": AGENTS[at]}));
            return service.application.answer(PATH, answer);
        };
        let url = format!("{}/agents/{next}{PATH}", service.sidecar.outbound_url());
        let relay = service.relay.clone();
        service
            .application
            .script(PATH, move |received| Answer::Relay {
                url: url.clone(),
                headers: taken(received, fields),
                body: received.body.clone(),
                by: AGENTS[at],
                relay: relay.clone(),
            });
    }

    /// Makes the first calls: each service's first use of the next one finds its instance.
    async fn warm(&self) {
        wait_for(
            KNOWN_WITHIN,
            "first order through all services",
            async || {
                let reply = self.order("warm", &[]).await;
                (reply.status == 200).then_some(())
            },
        )
        .await;
        for service in &self.services {
            service.relay.forget();
        }
    }

    /// Places an order as the shop, under this task.
    pub async fn order(&self, task: &str, headers: &[(&str, &str)]) -> Reply {
        let url = format!("{}/agents/{}{PATH}", self.shop.outbound_url(), AGENTS[0]);
        let mut request = client().post(url).json(&json!({"order": task}));
        if !task.is_empty() {
            request = request.header("hermes-task-id", task);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Reply::to(request).await
    }

    /// Returns the requests of this order that a service got.
    pub fn received(&self, at: usize, order: &str) -> Vec<Received> {
        let mut received = self.services[at].application.received(PATH);
        let body = json!({"order": order}).to_string();
        received.retain(|request| request.body == body);
        received
    }

    /// Waits until a task shows so many steps, each told of by both sides, and has ended.
    pub async fn ended(&self, task: &str, steps: usize) -> Value {
        wait_for(ENDED_WITHIN, &format!("end of task {task}"), async || {
            let shown = self.collector.task(task).await?;
            let has_ended = shown.get("ended_at").is_some();
            let is_whole = shown["steps"].as_array()?.len() == steps && has_ended;
            is_whole.then_some(shown)
        })
        .await
    }
}

fn taken(received: &Received, fields: &[&str]) -> Vec<(String, String)> {
    let take = |name: &&str| {
        let value = received.headers.get(*name)?.to_str().unwrap();
        Some(((*name).to_owned(), value.to_owned()))
    };
    fields.iter().filter_map(take).collect()
}

/// Asserts that a task is one chain through all services, each step under its caller's.
pub fn is_one_chain(task: &Value) {
    assert_eq!(task["chain"], "ok", "{task:#}");
    let steps = task["steps"].as_array().unwrap();
    assert_eq!(steps.len(), AGENTS.len(), "{task:#}");
    let mut parent = &Value::Null;
    for agent in AGENTS {
        let step = steps.iter().find(|step| step["agent"] == agent).unwrap();
        assert_eq!(step["state"], "completed", "{task:#}");
        assert_eq!(&step["parent_step"], parent, "{agent}: {task:#}");
        parent = &step["step_id"];
    }
}
