//! A new version of a contract takes the place of the old one, instance by instance, under load.
//!
//! A patch keeps the id, so its callers name the id; a minor is a new id of the same family, so
//! its callers name a range. Neither they nor anybody else notice.

use crate::support::application::{Answer, Application};
use crate::support::client::client;
use crate::support::collector::Collector;
use crate::support::consul::Consul;
use crate::support::contract::{fraud_input, fraud_output};
use crate::support::load::{Load, Record};
use crate::support::metric::Metrics;
use crate::support::road::{ROUTE, patient_contract};
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::wait_until;
use serde_json::{Value, json};
use std::time::Duration;
use toml::{Table, Value as Setting};

const V1_0: &str = "fraud-detection-v1.0";
const V1_1: &str = "fraud-detection-v1.1";
const RANGE: &str = "fraud-detection@^1";
const WITHIN: Duration = Duration::from_secs(30);

#[tokio::test]
async fn versions_are_replaced_under_load_without_a_failed_call() {
    replaced_under_load(40, 2).await;
}

/// One copy of the service: an application, which knows its version, and its sidecar.
struct Copy {
    application: Application,
    sidecar: Sidecar,
}

/// The house while a version is rolled out.
struct House {
    consul: Consul,
    collector: Collector,
    copies: Vec<Copy>,
    caller: Sidecar,
}

/// Rolls out 1.0.1 and then 1.1.0 over `copies` instances that take `rate` calls a second by id
/// and as many by range.
pub async fn replaced_under_load(rate: u32, copies: usize) {
    let mut house = House::start(copies).await;
    let urls = [house.caller.outbound_url()];
    let input = fraud_input();

    let by_id = Load::start(rate, &urls, V1_0, &input);
    let by_range = Load::start(rate, &urls, RANGE, &input);
    by_range.more(rate as usize).await;
    for number in 0..copies {
        house.replace(number, &patch()).await;
        house.wait_serving(V1_0, copies).await;
        by_id.more(rate as usize / 2).await;
    }
    // The id itself goes away with its minor, so only those who named a range stay.
    let by_id = by_id.stop().await;
    for number in 0..copies {
        house.replace(number, &minor()).await;
        house.wait_serving(V1_1, number + 1).await;
        by_range.more(rate as usize / 2).await;
    }
    let by_range = by_range.stop().await;

    house.wait_served_by(V1_1, "1.1.0").await;
    for (what, record) in [("by id", &by_id), ("by range", &by_range)] {
        let failed = record.failed();
        assert!(
            failed.is_empty(),
            "{what}: {} of {}: {failed:#?}",
            failed.len(),
            record.0.len()
        );
    }
    house.wait_all_completed([&by_id, &by_range]).await;
    // The new field is there for those who want it.
    let mut input = input;
    input["merchant_category"] = "travel".into();
    let reply = invoked(&house.caller, RANGE, &input).await;
    assert_eq!(reply.status(), 200);
    assert_eq!(reply.headers()["hermes-agent"], format!("{V1_1}@1.1.0"));
    eprintln!(
        "{copies} instances replaced twice under load: {} calls by id, {} by range, none failed",
        by_id.0.len(),
        by_range.0.len()
    );
}

impl House {
    async fn start(copies: usize) -> Self {
        let (consul, collector) = tokio::join!(Consul::start(), Collector::start());
        let joined = |setup: Setup| {
            setup
                .consul(&consul.address())
                .collector(&collector.url())
                .set("spool.retry", "200ms")
        };
        let mut all = Vec::new();
        for number in 0..copies {
            let application = Application::start().await;
            application.answer(ROUTE, Answer::json(&fraud_output()));
            is_version(&application, "1.0.0");
            let setup = Sidecar::named("fraud")
                .application(&application.url())
                .set("application.instance", format!("fraud-{number}"))
                .set("application.health_interval", "500ms")
                .set("application.require_version", true)
                .contract(patient_contract(), "POST", ROUTE);
            let sidecar = joined(setup).start().await;
            all.push(Copy {
                application,
                sidecar,
            });
        }
        let caller = joined(Sidecar::named("payment")).start().await;
        let house = Self {
            consul,
            collector,
            copies: all,
            caller,
        };
        house.wait_serving(V1_0, copies).await;
        for agent in [V1_0, RANGE] {
            wait_until(WITHIN, "first call", async || {
                invoked(&house.caller, agent, &fraud_input()).await.status() == 200
            })
            .await;
        }
        house
    }

    /// Ends one copy as an operator does and starts it again with `contract` and the application
    /// of that version.
    async fn replace(&mut self, number: usize, contract: &Value) {
        let copy = &mut self.copies[number];
        let exit = copy.sidecar.terminate().await;
        assert!(exit.success(), "{exit:?}:\n{}", copy.sidecar.log());
        is_version(&copy.application, contract["version"].as_str().unwrap());
        let file = copy.sidecar.config_file().with_file_name("contract.json");
        std::fs::write(&file, contract.to_string()).unwrap();
        let mut entry = Table::new();
        entry.insert("file".into(), file.to_str().unwrap().into());
        entry.insert("method".into(), "POST".into());
        entry.insert("path".into(), ROUTE.into());
        let entries = Setting::Array(vec![entry.into()]);
        copy.sidecar.reconfigure("application.contract", entries);
        copy.sidecar.start_again();
        copy.sidecar.ready(WITHIN).await;
    }

    async fn wait_serving(&self, agent: &str, count: usize) {
        self.consul.wait_passing(agent, count, WITHIN).await;
    }

    async fn wait_served_by(&self, agent: &str, version: &str) {
        let wanted = format!("{agent}@{version}");
        wait_until(WITHIN, "answer of the new version", async || {
            let reply = invoked(&self.caller, RANGE, &fraud_input()).await;
            reply.status() == 200 && reply.headers()["hermes-agent"] == wanted.as_str()
        })
        .await;
    }

    /// Waits until the collector knows every call, then holds that each was completed, at the
    /// first attempt, with no breach of contract on the way.
    async fn wait_all_completed(&self, records: [&Record; 2]) {
        let tasks: Vec<String> = records.iter().flat_map(|record| record.tasks()).collect();
        wait_until(WITHIN, "all tasks at the collector", async || {
            self.collector.tasks(&tasks).await.len() == tasks.len()
        })
        .await;
        for (id, task) in self.collector.tasks(&tasks).await {
            assert_eq!(task["state"], "completed", "{id}: {task}");
        }
        let breaches = Metrics::of(&self.caller.admin_url()).await.sum(
            "hermes_tasks_finished_total",
            &[("state", "failed_validation")],
        );
        assert_eq!(breaches, 0.0);
    }
}

fn is_version(application: &Application, version: &str) {
    let health = json!({"status": "ready", "version": version});
    application.answer("/hermes/health", Answer::json(&health));
}

/// Better words, a wider input and nothing that callers could miss.
fn patch() -> Value {
    let mut contract = patient_contract();
    contract["version"] = "1.0.1".into();
    contract["description"] = "rule-based fraud risk score, second edition".into();
    contract["input_schema"]["properties"]["device_fingerprint"]["maxLength"] = 128.into();
    contract
}

/// One new optional field of the input.
fn minor() -> Value {
    let mut contract = patch();
    contract["id"] = V1_1.into();
    contract["version"] = "1.1.0".into();
    contract["input_schema"]["properties"]["merchant_category"] = json!({"type": "string"});
    contract
}

async fn invoked(caller: &Sidecar, agent: &str, input: &Value) -> reqwest::Response {
    let url = format!("{}/hermes/invoke", caller.outbound_url());
    let body = json!({"agent": agent, "input": input});
    client().post(url).json(&body).send().await.unwrap()
}
