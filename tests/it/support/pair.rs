//! A caller and a callee, each behind its sidecar, with a real Consul and a collector around them.

use super::application::{Answer, Application};
use super::client::client;
use super::collector::Collector;
use super::consul::Consul;
use super::contract;
use super::reply::Reply;
use super::sidecar::{Setup, Sidecar};
use reqwest::RequestBuilder;
use serde_json::{Value, json};

/// The contract that the callee serves, and where.
pub const FRAUD: &str = "fraud-detection-v1.0";
pub const RISK: &str = "/api/v1/risk";

/// All of it running and ready; ends with its value.
pub struct Pair {
    pub callee: Sidecar,
    pub caller: Sidecar,
    pub application: Application,
    pub collector: Collector,
    pub consul: Consul,
    client: reqwest::Client,
}

impl Pair {
    /// Starts it with the fraud contract, which the application answers as it should.
    pub async fn start() -> Self {
        Self::with(|callee| callee).await
    }

    /// Starts it with more set at the callee.
    pub async fn with(more: impl FnOnce(Setup) -> Setup) -> Self {
        let (consul, collector) = tokio::join!(Consul::start(), Collector::start());
        let application = Application::start().await;
        application.answer(RISK, Answer::json(&contract::fraud_output()));
        let around = |setup: Setup| setup.consul(&consul.address()).collector(&collector.url());
        let callee = around(Sidecar::named("fraud"))
            .application(&application.url())
            .contract(contract::fraud_detection(), "POST", RISK);
        let (callee, caller) =
            tokio::join!(more(callee).start(), around(Sidecar::named("shop")).start());
        Self {
            callee,
            caller,
            application,
            collector,
            consul,
            client: client(),
        }
    }

    /// Begins a POST of JSON to the callee's inbound listener.
    pub fn inbound(&self, path: &str) -> RequestBuilder {
        self.post(&self.callee.inbound_url(), path)
    }

    /// Begins a POST of JSON to the caller's outbound listener.
    pub fn outbound(&self, path: &str) -> RequestBuilder {
        self.post(&self.caller.outbound_url(), path)
    }

    fn post(&self, base: &str, path: &str) -> RequestBuilder {
        let request = self.client.post(format!("{base}{path}"));
        request.header("content-type", "application/json")
    }

    /// Calls the fraud contract through the caller for this task.
    pub async fn invoke(&self, task: &str) -> Reply {
        let body = wrapped(FRAUD, &contract::fraud_input(), json!({"task_id": task}));
        Reply::to(self.outbound("/hermes/invoke").body(body)).await
    }
}

/// Writes the wrapped form of a call.
pub fn wrapped(agent: &str, input: &Value, context: Value) -> String {
    json!({"agent": agent, "input": input, "context": context}).to_string()
}
