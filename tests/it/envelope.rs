//! An application that takes `{"input","context"}` and answers the bare result joins unchanged,
//! called by a sidecar, by a client that finds it through Consul, and by one that knows its port.

use crate::support::application::{Answer, Application};
use crate::support::article::{self, Agent};
use crate::support::client::{client, exchange};
use crate::support::collector::Collector;
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::digest::{content_digest, hex_digest};
use crate::support::pair::{FRAUD, Pair, wrapped};
use crate::support::reply::Reply;
use crate::support::sidecar::Sidecar;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);
const QUIET: Duration = Duration::from_secs(2);
const INVOKE: &str = "/hermes/invoke";
const AGENT: &str = "/hermes/agents/fraud-detection-v1.0";

/// The article's agent behind a sidecar, a caller behind another, Consul and a collector.
struct House {
    agent: Agent,
    callee: Sidecar,
    caller: Sidecar,
    consul: Consul,
    collector: Collector,
}

impl House {
    async fn start() -> Self {
        let (consul, collector) = tokio::join!(Consul::start(), Collector::start());
        let agent = Agent::start(None).await;
        let around = |name: &str| {
            let sidecar = Sidecar::named(name).consul(&consul.address());
            sidecar.collector(&collector.url())
        };
        let callee = around("fraud").application(&agent.url());
        let callee = callee.handshake().route("style", "envelope");
        let (callee, caller) = tokio::join!(callee.start(), around("shop").start());
        consul.wait_passing(FRAUD, 1, WITHIN).await;
        Self {
            agent,
            callee,
            caller,
            consul,
            collector,
        }
    }
}

fn posting(url: String) -> RequestBuilder {
    client()
        .post(url)
        .header("content-type", "application/json")
}

#[tokio::test]
async fn every_way_to_the_agent_gives_the_same_result() {
    let house = House::start().await;
    let (inbound, outbound) = (house.callee.inbound_url(), house.caller.outbound_url());
    let result = json!({"risk_score": 12, "risk_level": "low", "rules_triggered": []});
    let context =
        |task: &str| json!({"task_id": task, "trace_id": "trace-abc123", "sla_level": "P0"});

    // By another sidecar.
    let body = wrapped(FRAUD, &fraud_input(), context("by-sidecar"));
    let reply = Reply::to(posting(format!("{outbound}{INVOKE}")).body(body)).await;
    assert_eq!(
        (reply.status, reply.json()),
        (200, result.clone()),
        "{reply:?}"
    );

    // By the article's client, which asks Consul and knows of no sidecar.
    let task = "test-20240615-001";
    let called = article::call(&house.consul.address(), &fraud_input(), &context(task)).await;
    assert_eq!(called, (200, result.clone()));

    // By a client without a sidecar that knows where the agent's is.
    let body = json!({"input": fraud_input(), "context": context("by-hand")}).to_string();
    let reply = Reply::to(posting(format!("{inbound}{INVOKE}")).body(body)).await;
    assert_eq!(
        (reply.status, reply.json()),
        (200, result.clone()),
        "{reply:?}"
    );

    for (task, reporters) in [("by-sidecar", 2), (task, 1), ("by-hand", 1)] {
        let shown = house.collector.wait_task(task, "completed", WITHIN).await;
        let steps = shown["steps"].as_array().unwrap();
        assert_eq!(steps.len(), 1, "{shown}");
        assert_eq!(shown["chain"], "ok");
        assert_eq!(steps[0]["agent"], FRAUD);
        let ends = house.collector.ends();
        let told = ["caller", "callee"].map(|reporter| ends.of(task, reporter));
        assert_eq!(told.iter().sum::<usize>(), reporters, "{task}: {told:?}");
        let log = house.agent.log();
        assert!(log.contains(&format!("invoke {task} ")), "{log}");
    }

    // Without any context a task is minted, and told to the agent.
    let bare = json!({"input": fraud_input()}).to_string();
    let reply = Reply::to(posting(format!("{inbound}{INVOKE}")).body(bare)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let minted = reply.header("hermes-task-id").to_owned();
    let log = house.agent.log();
    assert!(log.contains(&format!("invoke {minted} ")), "{log}");
}

#[tokio::test]
async fn what_the_agent_refuses_reaches_the_caller_unchanged() {
    let house = House::start().await;
    let mut input = fraud_input();
    input["amount_cny"] = json!(2_000_000);
    let body = wrapped(FRAUD, &input, json!({"task_id": "refused"}));
    let outbound = house.caller.outbound_url();
    let reply = Reply::to(posting(format!("{outbound}{INVOKE}")).body(body)).await;
    assert_eq!(reply.status, 400);
    assert_eq!(
        &reply.body[..],
        br#"{"error": "no single payment above 1000000"}"#
    );
    assert_eq!(reply.header("hermes-executed"), "?1");
    let shown = house
        .collector
        .wait_task("refused", "failed_execution", WITHIN);
    let shown = shown.await;
    let error = &shown["steps"][0]["attempts"][0]["error"];
    assert_eq!(error["kind"], "application_4xx", "{shown}");

    // What breaks the contract never reaches it; its client finds the reason where it looks.
    let body = json!({"input": {"user_id": ""}, "context": {"task_id": "invalid"}});
    let inbound = house.callee.inbound_url();
    let reply = Reply::to(posting(format!("{inbound}{INVOKE}")).body(body.to_string())).await;
    let problem = reply.problem(400, "input-invalid");
    assert!(!problem["error"].as_str().unwrap().is_empty());
    assert!(!house.agent.log().contains("invalid"));
}

/// A scripted application with the contract in a file, called at `path` in a wrapper.
async fn scripted(path: &str, more: &[(&str, &str)]) -> Pair {
    let pair = Pair::with(|setup| {
        // `Pair` gave it a native route; only its style changes.
        let mut setup = setup.route("style", "envelope").route("path", path);
        for (key, value) in more {
            setup = setup.route(key, *value);
        }
        setup.set("inbound.passthrough", vec!["/"])
    })
    .await;
    pair.application.answer(path, Answer::json(&fraud_output()));
    pair
}

#[tokio::test]
async fn the_wrapper_holds_the_very_bytes_and_the_context() {
    let pair = scripted(INVOKE, &[]).await;
    let input = r#"{ "user_id":"u-1",  "ip_address": "203.0.113.7", "amount_cny": 120.50 }"#;
    let context = r#"{"task_id":"t-1","step_id":"s-1","trace_id":"trace-abc123","sla_level":"P0",
        "requester":"alice","scenario":"cross-border","deadline_ms":60000}"#;
    let body = format!(r#"{{"agent":"{FRAUD}","input":{input},"context":{context}}}"#);
    let reply = Reply::to(pair.outbound(INVOKE).body(body)).await;
    assert_eq!(
        (reply.status, reply.json()),
        (200, fraud_output()),
        "{reply:?}"
    );

    let received = pair.application.received(INVOKE);
    let request = &received[0];
    assert_eq!(request.method, "POST");
    let text = std::str::from_utf8(&request.body).unwrap();
    assert!(
        text.starts_with(&format!(r#"{{"input":{input},"context":"#)),
        "{text}"
    );
    let told = serde_json::from_str::<Value>(text).unwrap()["context"].clone();
    for (field, value) in [
        ("task_id", json!("t-1")),
        ("step_id", json!("s-1")),
        ("trace_id", json!("trace-abc123")),
        ("sla_level", json!("P0")),
        ("requester", json!("alice")),
        ("scenario", json!("cross-border")),
        ("attempt", json!(1)),
    ] {
        assert_eq!(told[field], value, "{field}: {told}");
    }
    assert!(
        (1..=500).contains(&told["deadline_ms"].as_u64().unwrap()),
        "{told}"
    );
    let header = |name: &str| request.headers[name].to_str().unwrap().to_owned();
    assert_eq!(header("content-digest"), content_digest(&request.body));
    assert_eq!(header("content-type"), "application/json");
    assert_eq!(header("hermes-task-id"), "t-1");
    assert_eq!(header("hermes-call-id"), told["call_id"].as_str().unwrap());

    // Reports tell of the input, not of the wrapper.
    let shown = pair.collector.wait_task("t-1", "completed", WITHIN).await;
    let attempt = &shown["steps"][0]["attempts"][0];
    assert_eq!(
        attempt["input_digest"],
        hex_digest(input.as_bytes()),
        "{shown}"
    );
    assert_eq!(shown["chain"], "ok", "{shown}");
}

#[tokio::test]
async fn only_the_routes_of_its_own_lead_to_it() {
    let pair = scripted("/run", &[]).await;
    let (inbound, input) = (pair.callee.inbound_url(), fraud_input().to_string());
    let to = |method: &str, path: &str| {
        let method = method.parse::<reqwest::Method>().unwrap();
        let request = client().request(method, format!("{inbound}{path}"));
        let request = request.header("content-type", "application/json");
        request.body(input.clone())
    };
    let reply = Reply::to(to("POST", AGENT)).await;
    assert_eq!(
        (reply.status, reply.json()),
        (200, fraud_output()),
        "{reply:?}"
    );
    let reply = Reply::to(to("PUT", AGENT)).await;
    reply.problem(405, "method-not-allowed");
    assert_eq!(reply.header("allow"), "POST");
    let reply = Reply::to(to("POST", AGENT).header("hermes-agent", "other-one-v1.0")).await;
    reply.problem(421, "misdirected");
    let reply = Reply::to(to("POST", "/hermes/agents/other-one-v1.0")).await;
    reply.problem(404, "not-found");

    // The application's own path is no way around the contract, however it is spelt.
    let address = inbound.strip_prefix("http://").unwrap().parse().unwrap();
    for path in [
        "/run",
        "/RUN",
        "//run",
        "/run/",
        "/run;x=1",
        "/%72un",
        "/hermes/agents//fraud-detection-v1.0",
        "/hermes/AGENTS/fraud-detection-v1.0",
        "/HERMES/agents/fraud-detection-v1.0",
    ] {
        let length = input.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{input}"
        );
        let reply = Reply::read(&exchange(address, request.as_bytes(), QUIET).await);
        assert_eq!(reply.status, 404, "{path}: {reply:?}");
    }
    assert_eq!(pair.application.calls("/run"), 1);
}

#[tokio::test]
async fn an_input_that_is_not_checked_cannot_break_out_of_the_wrapper() {
    let pair = scripted(INVOKE, &[("validate.input", "off")]).await;
    for input in [
        r#"1,"context":{"task_id":"forged"}"#,
        r#"{"user_id":"u"}} "#,
        "",
    ] {
        let reply = Reply::to(pair.inbound(AGENT).body(input)).await;
        assert_eq!(reply.status, 400, "{input}: {reply:?}");
    }
    assert_eq!(pair.application.calls(INVOKE), 0);
    let reply = Reply::to(pair.inbound(AGENT).body(r#"{"unchecked":true}"#)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[tokio::test]
async fn a_faulty_wrapper_leaves_a_report_where_its_agent_is_known() {
    let pair = scripted(INVOKE, &[]).await;
    let good = json!({"input": fraud_input(), "context": {"task_id": "bad-digest"}}).to_string();
    let wrong = content_digest(b"another body");
    let reply = pair
        .inbound(INVOKE)
        .header("content-digest", wrong)
        .body(good);
    Reply::to(reply).await.problem(400, "digest-mismatch");
    let cut = r#"{"input": {"user_id": "#;
    let reply = pair
        .inbound(INVOKE)
        .header("hermes-task-id", "bad-json")
        .body(cut);
    let reply = Reply::to(reply).await;
    reply.problem(400, "bad-json");
    assert_eq!(reply.header("hermes-task-id"), "bad-json");
    for (task, kind) in [("bad-digest", "digest-mismatch"), ("bad-json", "bad-json")] {
        let shown = pair
            .collector
            .wait_task(task, "failed_validation", WITHIN)
            .await;
        let error = &shown["steps"][0]["attempts"][0]["error"];
        assert_eq!(error["kind"], kind, "{shown}");
        assert_eq!(shown["steps"][0]["agent"], FRAUD);
    }
    // A malformed context is refused before a task exists.
    let malformed = json!({"input": {}, "context": {"task_id": "a b"}}).to_string();
    let reply = pair
        .inbound(INVOKE)
        .header("hermes-task-id", "no-task")
        .body(malformed);
    Reply::to(reply).await.problem(400, "bad-context");
    assert_eq!(pair.application.calls(INVOKE), 0);
    assert!(pair.collector.task("no-task").await.is_none());
}

#[tokio::test]
async fn a_wrapper_that_names_no_agent_leaves_no_report_where_several_are_served() {
    let consul = Consul::start().await;
    let application = Application::start().await;
    let mut order = fraud_detection();
    order["id"] = json!("order-create-v1.0");
    let sidecar = Sidecar::named("both")
        .consul(&consul.address())
        .application(&application.url())
        .contract(fraud_detection(), "POST", "/a")
        .contract(order, "POST", "/b")
        .start()
        .await;
    let invoke = format!("{}{INVOKE}", sidecar.inbound_url());
    let before = sidecar.metric("spool_appended_total", &[]).await;
    let reply = Reply::to(posting(invoke.clone()).body("{")).await;
    reply.problem(400, "bad-json");
    assert_eq!(sidecar.metric("spool_appended_total", &[]).await, before);
    let reply = posting(invoke).header("hermes-agent", FRAUD).body("{");
    Reply::to(reply).await.problem(400, "bad-json");
    assert_eq!(
        sidecar.metric("spool_appended_total", &[]).await,
        before + 1.0
    );
}
