//! What comes too late for its caller is shown as what it was: done in time, and late.

use crate::support::application::Answer;
use crate::support::application::Application;
use crate::support::client::client;
use crate::support::collector::Collector;
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::link::Link;
use crate::support::pair::{FRAUD, Pair, RISK, wrapped};
use crate::support::port::free_port;
use crate::support::reply::Reply;
use crate::support::sidecar::Sidecar;
use crate::support::wait::{wait_for, wait_until};
use serde_json::json;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_reply_that_was_late_on_its_way_is_no_failure_of_the_callee() {
    let (consul, collector) = tokio::join!(Consul::start(), Collector::start());
    let application = Application::start().await;
    application.answer(RISK, Answer::json(&fraud_output()));
    let port = free_port();
    let link = Link::to(&format!("127.0.0.1:{port}")).await;
    let mut contract = fraud_detection();
    contract["retry_policy"] = json!({"max_retries": 0});
    let callee = Sidecar::named("fraud")
        .consul(&consul.address())
        .collector(&collector.url())
        .application(&application.url())
        .contract(contract, "POST", RISK)
        .set("inbound.listen", format!("127.0.0.1:{port}"))
        .set("inbound.advertise", link.address().to_string());
    let caller = Sidecar::named("shop")
        .consul(&consul.address())
        .collector(&collector.url());
    let (_callee, caller) = tokio::join!(callee.start(), caller.start());
    let invoke = async |task: &str| {
        let url = format!("{}/hermes/invoke", caller.outbound_url());
        let body = wrapped(FRAUD, &fraud_input(), json!({"task_id": task}));
        let request = client()
            .post(url)
            .header("content-type", "application/json");
        Reply::to(request.body(body)).await
    };
    assert_eq!(invoke("in-time").await.status, 200);

    // The contract grants 500 ms, the caller waits 700.
    link.delay(Duration::from_millis(800));
    invoke("late").await.problem(504, "timeout");
    assert_eq!(application.calls(RISK), 2, "the application did its work");
    // The callee's report comes first, the caller's makes it late.
    let task = wait_for(WITHIN, "a late attempt", async || {
        let task = collector.task("late").await?;
        (task["steps"][0]["attempts"][0]["late"] == true).then_some(task)
    })
    .await;
    assert_eq!(task["state"], "completed", "{task}");
    let attempt = &task["steps"][0]["attempts"][0];
    assert_eq!(attempt["state"], "completed", "{task}");
    let verdict = task["verdict"].as_str().unwrap();
    assert!(
        verdict.ends_with("its caller had already given up (late)"),
        "{verdict}"
    );

    // It tells nothing of the instance, which is called again.
    link.restore();
    let reply = invoke("after").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let task = collector.wait_task("after", "completed", WITHIN).await;
    assert!(
        task["steps"][0]["attempts"][0].get("late").is_none(),
        "{task}"
    );
}

#[tokio::test]
async fn a_reply_that_nobody_waited_for_is_told_by_the_verdict() {
    let pair = Pair::start().await;
    // Whoever leaves while the contract is still read for the first time has made no call.
    pair.application.answer(RISK, Answer::json(&fraud_output()));
    assert_eq!(pair.invoke("known").await.status, 200);
    let answer = Answer::json(&fraud_output()).delayed(Duration::from_millis(300));
    pair.application.answer(RISK, answer);
    let body = wrapped(FRAUD, &fraud_input(), json!({"task_id": "hung-up"}));
    let request = pair.outbound("/hermes/invoke").body(body);
    tokio::select! {
        reply = request.send() => panic!("nobody waits for {reply:?}"),
        () = wait_until(WITHIN, "call", async || pair.application.calls(RISK) == 2) => {}
    }
    // The callee's report completes the task; that nobody waited comes with the caller's.
    let task = wait_for(WITHIN, "an undelivered reply", async || {
        let task = pair.collector.task("hung-up").await?;
        (task["steps"][0]["attempts"][0]["undelivered"] == true).then_some(task)
    })
    .await;
    assert_eq!(task["state"], "completed", "{task}");
    let verdict = task["verdict"].as_str().unwrap();
    assert!(verdict.ends_with("its caller had hung up"), "{verdict}");
}
