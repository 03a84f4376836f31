//! A road for much traffic: a caller's and a callee's sidecar with timeouts that a busy machine
//! does not use up, and what they need around them.

use super::application::{Answer, Application};
use super::collector::Collector;
use super::consul::Consul;
use super::contract;
use super::sidecar::{Setup, Sidecar};
use super::wait::wait_until;
use serde_json::{Value, json};
use std::time::Duration;

/// The callee's route.
pub const ROUTE: &str = "/api/v1/risk";
/// The contract that the callee offers.
pub const AGENT: &str = "fraud-detection-v1.0";

const KNOWN_WITHIN: Duration = Duration::from_secs(20);

/// Returns the worked example's contract with a timeout that a busy machine does not use up.
pub fn patient_contract() -> Value {
    let mut body = contract::fraud_detection();
    body["constraints"] = json!({"timeout_ms": 10_000, "max_concurrent": 1000});
    body
}

/// Begins the callee's sidecar: the contract above, on `ROUTE` of the application.
pub fn callee(application: &Application) -> Setup {
    Sidecar::named("fraud")
        .application(&application.url())
        .contract(patient_contract(), "POST", ROUTE)
}

/// Starts an application that answers every call as the contract asks.
pub async fn application() -> Application {
    let application = Application::start().await;
    application.answer(ROUTE, Answer::json(&contract::fraud_output()));
    application
}

/// The whole way from an application's call to the record of its task. In the order in which
/// they end: those that speak before those they speak to.
pub struct Road {
    pub caller: Sidecar,
    pub callee: Sidecar,
    pub application: Application,
    pub collector: Collector,
    pub consul: Consul,
}

impl Road {
    /// Starts everything and makes the caller know the callee.
    pub async fn start() -> Self {
        Self::start_with(|callee| callee, |caller| caller).await
    }

    /// Starts everything, with these changes to the two sidecars.
    pub async fn start_with(
        change_callee: impl FnOnce(Setup) -> Setup,
        change_caller: impl FnOnce(Setup) -> Setup,
    ) -> Self {
        let (application, collector, consul) =
            tokio::join!(application(), Collector::start(), Consul::start());
        let joined = |setup: Setup| {
            setup
                .consul(&consul.address())
                .collector(&collector.url())
                .set("spool.retry", "200ms")
        };
        let callee = change_callee(joined(callee(&application)));
        let caller = change_caller(joined(Sidecar::named("payment")));
        let (callee, caller) = tokio::join!(callee.start(), caller.start());
        wait_known(&caller, 1).await;
        Self {
            caller,
            callee,
            application,
            collector,
            consul,
        }
    }
}

/// Waits until `caller` would choose among `count` instances of the contract.
pub async fn wait_known(caller: &Sidecar, count: usize) {
    let client = super::client::client();
    let what = format!("caller that knows {count} instances");
    wait_until(KNOWN_WITHIN, &what, async || {
        // Asking for a contract is what makes the sidecar follow it; the body is refused.
        let url = format!("{}/hermes/invoke", caller.outbound_url());
        let refused = json!({"agent": AGENT, "input": {}});
        client.post(url).json(&refused).send().await.unwrap();
        let url = format!("{}/instances", caller.admin_url());
        let known: Value = client.get(url).send().await.unwrap().json().await.unwrap();
        let instances = known[0]["instances"].as_array();
        instances.is_some_and(|instances| instances.len() == count)
    })
    .await;
}
