//! What an application tells of its own work stands beside what the sidecars say, and spoils nothing.

use crate::support::application::Answer;
use crate::support::article::Agent;
use crate::support::client::client;
use crate::support::collector::Collector;
use crate::support::consul::Consul;
use crate::support::contract::{fraud_input, fraud_output};
use crate::support::digest::hex_digest;
use crate::support::pair::{FRAUD, Pair, RISK, wrapped};
use crate::support::port::free_port;
use crate::support::reply::Reply;
use crate::support::sidecar::Sidecar;
use crate::support::wait::{wait_for, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);
const REPORT: &str = "/report-status";
const TAKEN: &str = r#"{"accepted":1,"duplicates":0,"conflicts":0,"rejected":[]}"#;

async fn tell(url: &str, report: &Value) -> Reply {
    let request = client().post(format!("{url}{REPORT}"));
    Reply::to(request.json(report)).await
}

/// Waits until a task's page shows `wanted`, and returns it.
async fn shown(collector: &Collector, task: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let what = format!("the wanted page of task {task}");
    wait_for(WITHIN, &what, async || {
        collector.task(task).await.filter(|page| wanted(page))
    })
    .await
}

#[tokio::test]
async fn the_articles_own_report_joins_the_attempt_that_is_served() {
    let (consul, collector) = tokio::join!(Consul::start(), Collector::start());
    // The agent reports to the sidecar that serves it, whose port it is told at its start.
    let port = free_port();
    let sidecar = Sidecar::named("fraud")
        .consul(&consul.address())
        .collector(&collector.url())
        .application(&format!("http://127.0.0.1:{port}"))
        .handshake()
        .route("style", "envelope");
    let mut sidecar = sidecar.start_unready().await;
    let agent = Agent::start_at(port, Some(&sidecar.outbound_url())).await;
    let agent = agent.expect("the port stayed free");
    sidecar.ready(WITHIN).await;
    let invoke = format!("{}/hermes/invoke", sidecar.inbound_url());
    let call = async |task: &str, amount: f64| {
        let mut input = fraud_input();
        input["amount_cny"] = json!(amount);
        let body = json!({"input": input, "context": {"task_id": task, "sla_level": "P0"}});
        Reply::to(client().post(&invoke).json(&body)).await
    };
    assert_eq!(call("task-good", 120.5).await.status, 200);
    assert_eq!(call("task-refused", 2_000_000.0).await.status, 400);
    for task in ["task-good", "task-refused"] {
        wait_until(WITHIN, "what both tell of it", async || {
            let ends = collector.ends();
            ["callee", "application"].map(|by| ends.of(task, by)) == [1, 1]
        })
        .await;
    }
    let good = collector.task("task-good").await.unwrap();
    let steps = good["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 1, "the report made a step of its own: {good}");
    assert_eq!(good["state"], "completed", "{good}");
    let detail = steps[0]["attempts"][0]["detail"].as_str().unwrap();
    let md5 = detail.strip_prefix("output_hash ").unwrap();
    assert_eq!(md5.len(), 32, "{detail}");

    // The application calls it failed_validation; its sidecar knows that it refused by itself.
    let refused = collector.task("task-refused").await.unwrap();
    assert_eq!(refused["steps"].as_array().unwrap().len(), 1, "{refused}");
    assert_eq!(refused["state"], "failed_execution", "{refused}");
    let attempt = &refused["steps"][0]["attempts"][0];
    assert_eq!(attempt["error"]["kind"], "application_4xx", "{refused}");
    wait_until(WITHIN, "both answers in the agent's log", async || {
        agent.log().matches(&format!("report 200 {TAKEN}")).count() == 2
    })
    .await;
}

#[tokio::test]
async fn a_report_of_work_that_is_not_served_here_names_its_own_call() {
    let pair = Pair::start().await;
    let outbound = pair.callee.outbound_url();
    let digest = hex_digest(b"result");
    let step = json!({"task_id": "own-task", "step_id": "step_3_risk_check",
                      "status": "success", "output_hash": digest});
    let reply = tell(&outbound, &step).await;
    assert_eq!((reply.status, &reply.body[..]), (200, TAKEN.as_bytes()));
    let open = json!({"task_id": "own-task", "step_id": "open", "state": "executing"});
    assert_eq!(tell(&outbound, &open).await.status, 200);
    let page = shown(&pair.collector, "own-task", |page| {
        page["steps"]
            .as_array()
            .is_some_and(|steps| steps.len() == 2)
    })
    .await;
    let steps = page["steps"].as_array().unwrap();
    let of = |step: &str| steps.iter().find(|s| s["step_id"] == step).unwrap();
    let done = of("step_3_risk_check");
    assert_eq!(done["call_id"], "own-task:step_3_risk_check");
    assert_eq!(done["agent"], "fraud", "no contract is served: {done}");
    assert_eq!(done["attempts"][0]["output_digest"], digest);
    assert_eq!(done["state"], "completed");
    assert_eq!(of("open")["state"], "executing");
    let log = "the later end closes it";
    let end = json!({"task_id": "own-task", "step_id": "open", "state": "failed", "error": log});
    assert_eq!(tell(&outbound, &end).await.status, 200);
    let page = shown(&pair.collector, "own-task", |page| {
        page["ended_at"].is_string()
    })
    .await;
    assert_eq!(page["state"], "failed_execution", "{page}");

    let long = "l".repeat(100);
    let report = json!({"task_id": long, "step_id": long, "status": "success"});
    assert_eq!(tell(&outbound, &report).await.status, 200);
    let page = shown(&pair.collector, &long, |_| true).await;
    let named = hex_digest(format!("{long}:{long}").as_bytes());
    assert_eq!(
        page["steps"][0]["call_id"],
        named.trim_start_matches("sha-256:")
    );
}

#[tokio::test]
async fn the_step_named_decides_which_attempt_a_report_joins() {
    let pair = Pair::start().await;
    let url = format!("{}{REPORT}", pair.callee.outbound_url());
    let then = Answer::json(&fraud_output());
    let tells = |step: &'static str| Answer::Call {
        url: url.clone(),
        headers: Vec::new(),
        body: json!({"task_id": format!("task-{step}"), "step_id": step, "state": "success"}),
        then: Box::new(then.clone()),
    };
    for (step, steps) in [("served", 1), ("internal", 2)] {
        pair.application.answer(RISK, tells(step));
        let task = format!("task-{step}");
        let context = json!({"task_id": task, "step_id": "served"});
        let body = wrapped(FRAUD, &fraud_input(), context);
        let reply = Reply::to(pair.outbound("/hermes/invoke").body(body)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        wait_until(WITHIN, "three ends", async || {
            let ends = pair.collector.ends();
            let told = ["caller", "callee", "application"].map(|by| ends.of(&task, by));
            told == [1, 1, 1]
        })
        .await;
        let page = pair.collector.task(&task).await.unwrap();
        assert_eq!(page["steps"].as_array().unwrap().len(), steps, "{page}");
        assert_eq!(page["state"], "completed");
        if steps == 1 {
            assert_eq!(page["steps"][0]["agent"], FRAUD);
        }
    }
}

#[tokio::test]
async fn reports_with_faults_are_refused_with_a_reason() {
    let pair = Pair::start().await;
    let outbound = pair.callee.outbound_url();
    let post = async |media: &str, body: &str| {
        let request = client().post(format!("{outbound}{REPORT}"));
        let request = request.header("content-type", media).body(body.to_owned());
        Reply::to(request).await
    };
    const JSON: &str = "application/json";
    for (media, body, status, kind) in [
        (JSON, "{", 400, "bad-json"),
        (JSON, "", 400, "body-required"),
        (
            JSON,
            r#"[{"task_id":"t","state":"success"}]"#,
            400,
            "bad-json",
        ),
        (JSON, r#"{"task_id":"t","task_id":"u"}"#, 400, "bad-json"),
        ("text/plain", "{}", 415, "unsupported-media-type"),
    ] {
        post(media, body).await.problem(status, kind);
    }
    let long = json!({"task_id": "t", "state": "success", "pad": "x".repeat(70_000)}).to_string();
    for (body, reason) in [
        (r#"{"status":"success"}"#, "missing field `task_id`"),
        (r#"{"task_id":"t"}"#, "missing field `state`"),
        (
            r#"{"task_id":"t","status":"odd"}"#,
            "success and failed are taken",
        ),
        (r#"{"task_id":"a b","status":"success"}"#, "an id is"),
        (
            r#"{"task_id":"t","state":"failed","attempt":0}"#,
            "attempt is a number",
        ),
        (
            r#"{"task_id":"t","state":"failed","reporter":"callee"}"#,
            "another reporter",
        ),
        (long.as_str(), "at most 65536 bytes"),
    ] {
        let reply = post(JSON, body).await;
        assert_eq!(reply.status, 200, "{body}: {reply:?}");
        let receipt = reply.json();
        assert_eq!(receipt["accepted"], 0, "{receipt}");
        let rejected = receipt["rejected"][0].clone();
        assert_eq!(rejected["index"], 0);
        let told = rejected["reason"].as_str().unwrap();
        assert!(told.contains(reason), "{told}");
    }
    let reply = Reply::to(client().get(format!("{outbound}{REPORT}"))).await;
    reply.problem(405, "method-not-allowed");
    let foreign = client()
        .post(format!("{outbound}{REPORT}"))
        .json(&json!({}));
    let reply = Reply::to(foreign.header("sec-fetch-site", "cross-site")).await;
    reply.problem(403, "host-refused");
}

#[tokio::test]
async fn the_collector_takes_the_same_form_and_the_sidecars_word_decides() {
    let pair = Pair::start().await;
    let reply = pair.invoke("told-twice").await;
    assert_eq!(reply.status, 200);
    pair.collector
        .wait_task("told-twice", "completed", WITHIN)
        .await;
    // An article's agent posts straight to the registry's port, without ids of its own.
    let late = json!({"task_id": "told-twice", "step_id": "step_3_risk_check",
                      "status": "failed", "output_hash": "d41d8cd98f00b204e9800998ecf8427e"});
    let reply = tell(&pair.collector.url(), &late).await;
    assert_eq!((reply.status, &reply.body[..]), (200, TAKEN.as_bytes()));
    let again = tell(&pair.collector.url(), &late).await.json();
    assert_eq!(
        (&again["accepted"], &again["duplicates"]),
        (&json!(0), &json!(1))
    );
    let page = pair.collector.task("told-twice").await.unwrap();
    let steps = page["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 2, "{page}");
    assert_eq!(steps[1]["state"], "failed_execution");
    let detail = &steps[1]["attempts"][0]["detail"];
    assert_eq!(detail, "output_hash d41d8cd98f00b204e9800998ecf8427e");
    assert_eq!(
        page["state"], "completed",
        "an application's word decided: {page}"
    );
    let verdict = page["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("completed"), "{verdict}");
    let list = client().get(format!("{}/tasks", pair.collector.url()));
    let list = Reply::to(list).await.json();
    let tasks = list["tasks"].as_array().unwrap();
    let line = tasks.iter().find(|task| task["task_id"] == "told-twice");
    let line = line.unwrap();
    assert_eq!(line["state"], "completed", "{line}");
    assert_eq!(line["agent"], FRAUD, "{line}");
}

#[tokio::test]
async fn what_was_told_before_is_not_taken_twice() {
    // Without a collector the spool holds every report.
    let sidecar = Sidecar::named("shop").start_unready().await;
    let outbound = sidecar.outbound_url();
    let told = |state: &str| json!({"task_id": "t", "step_id": "s", "state": state});
    for (state, accepted, duplicates) in [
        ("executing", 1, 0),
        ("success", 1, 0),
        ("completed", 0, 1),
        ("failed", 0, 0),
    ] {
        let receipt = tell(&outbound, &told(state)).await.json();
        let counts = (&receipt["accepted"], &receipt["duplicates"]);
        assert_eq!(
            counts,
            (&json!(accepted), &json!(duplicates)),
            "{state}: {receipt}"
        );
        let reason = receipt["rejected"][0]["reason"]
            .as_str()
            .unwrap_or_default();
        assert_eq!(
            reason.contains("was told already"),
            state == "failed",
            "{receipt}"
        );
    }
}
