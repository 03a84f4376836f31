//! The network between two sidecars slows down: work that was done in time is not called failed.
//!
//! The contract's own timeout is 500 ms, and its callers wait 200 ms longer; answers come 800 ms
//! late. Callers give up, which they must. The record holds what the application did: the callee's
//! sidecar, whose clock knows nothing of the network, says that it was done in time, and the
//! attempt is shown as completed, and late.

use crate::support::application::{Answer, Application};
use crate::support::collector::Collector;
use crate::support::consul::Consul;
use crate::support::contract;
use crate::support::fleet::Caller;
use crate::support::link::Link;
use crate::support::load::Load;
use crate::support::pair::{FRAUD, RISK};
use crate::support::port::free_port;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::wait_for;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

const DELAY: Duration = Duration::from_millis(800);
const RECORDED_WITHIN: Duration = Duration::from_secs(60);

#[tokio::test]
async fn late_answers_are_not_judged_as_failures() {
    surge(10, Duration::from_secs(4), 0.1).await;
}

/// Slows the way to a callee for `length` under load; of the attempts that its application
/// completed, at most this part may be judged otherwise.
pub async fn surge(rate: u32, length: Duration, most: f64) {
    let road = Road::start().await;
    let urls = [road.caller.sidecar.outbound_url()];
    let load = Load::start(rate, &urls, FRAUD, &contract::fraud_input());
    load.more(rate as usize).await;
    road.link.delay(DELAY);
    tokio::time::sleep(length).await;
    road.link.restore();
    load.more(rate as usize).await;
    let record = load.stop().await;

    let gave_up = record.failed().len();
    assert!(gave_up > 0, "no caller noticed anything");
    let done = road.done();
    let tasks = record.tasks();
    // Judged at the end: what is still open is nobody's failure yet.
    let known = wait_for(RECORDED_WITHIN, "end of every attempt", async || {
        let known = road.collector.tasks(&tasks).await;
        let is_whole = known.len() == tasks.len() && attempts(&known).all(|(_, one)| is_over(one));
        is_whole.then_some(known)
    })
    .await;
    let judged: Vec<(String, &Value)> = attempts(&known)
        .filter(|(call, attempt)| done.contains(&(call.clone(), attempt["attempt"].to_string())))
        .collect();
    let is_failed = |attempt: &Value| attempt["state"] != "completed";
    let failed: Vec<_> = judged.iter().filter(|(_, one)| is_failed(one)).collect();
    let late = judged.iter().filter(|(_, one)| one["late"] == true).count();
    let part = failed.len() as f64 / judged.len() as f64;
    eprintln!(
        "{} calls, {gave_up} given up by their callers; {} attempts done in time, {late} of them \
         late, {} judged failed ({:.3} %)",
        tasks.len(),
        judged.len(),
        failed.len(),
        part * 100.0
    );
    assert!(part <= most, "{failed:#?}");
    assert!(late >= gave_up / 2, "{late} late, {gave_up} given up");
}

/// A caller that reaches its callee by a link. In the order in which they end.
struct Road {
    caller: Caller,
    _callee: Sidecar,
    application: Application,
    link: Link,
    collector: Collector,
    _consul: Consul,
}

impl Road {
    async fn start() -> Self {
        let (consul, collector) = tokio::join!(Consul::start(), Collector::start());
        let application = Application::start().await;
        application.answer(RISK, Answer::json(&contract::fraud_output()));
        let around = |setup: Setup| {
            let setup = setup.consul(&consul.address()).collector(&collector.url());
            setup.set("spool.retry", "200ms")
        };
        let inbound = format!("127.0.0.1:{}", free_port());
        let link = Link::to(&inbound).await;
        let callee = around(Sidecar::named("fraud"))
            .application(&application.url())
            .set("inbound.listen", inbound)
            .set("inbound.advertise", link.address().to_string())
            .contract(contract::fraud_detection(), "POST", RISK)
            .start()
            .await;
        let caller = Caller::start(&consul, "payment", around).await;
        caller.knows(FRAUD, 1).await;
        Self {
            caller,
            _callee: callee,
            application,
            link,
            collector,
            _consul: consul,
        }
    }

    /// Returns call and attempt of what the application did; it takes no time for anything.
    fn done(&self) -> HashSet<(String, String)> {
        let received = self.application.received(RISK).into_iter();
        let names = received.map(|request| {
            let text = |name: &str| request.headers[name].to_str().unwrap().to_owned();
            (text("hermes-call-id"), text("hermes-attempt"))
        });
        names.collect()
    }
}

fn attempts(tasks: &HashMap<String, Value>) -> impl Iterator<Item = (String, &Value)> {
    let steps = tasks
        .values()
        .flat_map(|task| task["steps"].as_array().unwrap());
    steps.flat_map(|step| {
        let call = step["call_id"].as_str().unwrap();
        let attempts = step["attempts"].as_array().unwrap();
        attempts.iter().map(|attempt| (call.to_owned(), attempt))
    })
}

fn is_over(attempt: &Value) -> bool {
    let open = ["pending", "dispatched", "executing", "fallback_invoked"];
    !open.contains(&attempt["state"].as_str().unwrap())
}
