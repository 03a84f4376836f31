//! Who could serve, and why each other one could not: asked of any sidecar, answered alike.

use crate::support::client::client;
use crate::support::consul::Consul;
use crate::support::contract::fraud_input;
use crate::support::fleet::{Caller, Member, fraud};
use crate::support::pair::{FRAUD, RISK};
use crate::support::program;
use crate::support::reply::Reply;
use crate::support::wait::wait_until;
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;
use tokio::time::Instant;

const WITHIN: Duration = Duration::from_secs(10);
const HIGHER: &str = "fraud-detection-v1.1";
const ORDER: &str = "order-create-v1.2";

fn order() -> Value {
    json!({
        "id": ORDER,
        "version": "1.2.7",
        "input_schema": {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]},
        "output_schema": {"type": "object", "required": []},
        "constraints": {"timeout_ms": 10_000, "region_support": ["cn-east-1"]}
    })
}

fn id(agent: &str, name: &str) -> String {
    format!("{agent}-{name}")
}

/// The reason why an instance is excluded; fails the test where it is not.
fn reason<'a>(answer: &'a Value, instance: &str) -> &'a str {
    let excluded = answer["excluded"].as_array().unwrap();
    let mut found = excluded.iter().filter(|one| one["instance"] == instance);
    let one = found
        .next()
        .unwrap_or_else(|| panic!("{instance} is not excluded: {answer}"));
    assert!(found.next().is_none(), "{instance} twice: {answer}");
    one["reason"].as_str().unwrap()
}

fn agents(answer: &Value) -> Vec<&str> {
    let candidates = answer["candidates"].as_array().unwrap();
    candidates
        .iter()
        .map(|one| one["agent"].as_str().unwrap())
        .collect()
}

fn instances(candidate: &Value) -> Vec<&str> {
    let instances = candidate["instances"].as_array().unwrap();
    instances
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .collect()
}

/// Asks both sidecars, whose answers must be the same to the byte.
async fn asked(callers: &[Caller; 2], question: Value) -> Value {
    let [one, other] = callers;
    let (one, other) = tokio::join!(one.discover(&question), other.discover(&question));
    assert_eq!(one.status, 200, "{question}: {one:?}");
    assert_eq!(one.body, other.body, "{question}");
    one.json()
}

async fn two_callers(consul: &Consul) -> [Caller; 2] {
    let (one, other) = tokio::join!(
        Caller::start(consul, "shop", |setup| setup),
        Caller::start(consul, "store", |setup| setup)
    );
    [one, other]
}

#[tokio::test]
async fn an_agent_has_candidates_and_everybody_else_a_reason() {
    let consul = Consul::start().await;
    let body = || fraud(FRAUD, "1.0.0");
    let (_b, a, mut ill, _team, _canary) = tokio::join!(
        Member::start(&consul, "b", body(), |setup| setup
            .set("application.weight", 300)),
        Member::start(&consul, "a", body(), |setup| setup
            .set("application.region", "eu-west-1")
            .set("application.tags", vec!["gpu"])),
        Member::start(&consul, "ill", body(), |setup| setup),
        Member::start(&consul, "team", body(), |setup| setup
            .set("application.team", "red")),
        Member::start(&consul, "new", body(), |setup| setup
            .set("application.tags", vec!["canary"])),
    );
    // Its check runs out, and stays registered.
    ill.sidecar.kill9();
    let check = format!("/v1/agent/check/fail/{}:ttl", id(FRAUD, "ill"));
    consul.put(&check, "").await;
    consul.wait_passing(FRAUD, 4, WITHIN).await;
    tampered(&consul, 5).await;
    let callers = two_callers(&consul).await;

    let answer = asked(&callers, json!({"agent": FRAUD})).await;
    let candidates = answer["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 1, "{answer}");
    let candidate = &candidates[0];
    assert_eq!(
        (&candidate["agent"], &candidate["version"]),
        (&json!(FRAUD), &json!("1.0.0"))
    );
    assert!(
        candidate["digest"]
            .as_str()
            .unwrap()
            .starts_with("sha-256:"),
        "{candidate}"
    );
    assert_eq!(instances(candidate), [id(FRAUD, "a"), id(FRAUD, "b")]);
    let first = &candidate["instances"][0];
    assert_eq!(
        (&first["region"], &first["weight"]),
        (&json!("eu-west-1"), &json!(100))
    );
    let inbound = a.sidecar.inbound_url();
    assert_eq!(first["address"], inbound.trim_start_matches("http://"));
    assert_eq!(candidate["instances"][1]["weight"], 300);
    for (name, told) in [
        ("ill", "not passing"),
        ("team", "another team"),
        ("new", "canary"),
        ("odd", "has digest"),
    ] {
        let reason = reason(&answer, &id(FRAUD, name));
        assert!(reason.contains(told), "{name}: {reason}");
    }
    assert_eq!(answer["excluded"].as_array().unwrap().len(), 4, "{answer}");

    let answer = asked(&callers, json!({"agent": FRAUD, "required_tags": ["gpu"]})).await;
    assert_eq!(instances(&answer["candidates"][0]), [id(FRAUD, "a")]);
    let answer = asked(
        &callers,
        json!({"agent": FRAUD, "required_tags": ["tag-canary"]}),
    )
    .await;
    assert_eq!(instances(&answer["candidates"][0]), [id(FRAUD, "new")]);
    let answer = asked(&callers, json!({"agent": FRAUD, "deadline_ms": 9_999})).await;
    assert!(reason(&answer, &id(FRAUD, "b")).contains("longer than the call's deadline"));
    assert_eq!(answer["candidates"], json!([]));
    let answer = asked(&callers, json!({"agent": format!("{FRAUD}@1.0.1")})).await;
    assert!(reason(&answer, &id(FRAUD, "b")).contains("another version"));
    let answer = asked(
        &callers,
        json!({"agent": "fraud-detection@^1", "input": fraud_input()}),
    )
    .await;
    assert_eq!(agents(&answer), [FRAUD]);
    let input = json!({"user_id": "", "ip_address": "secret-text", "amount_cny": 1});
    let answer = asked(&callers, json!({"agent": FRAUD, "input": input})).await;
    let told = reason(&answer, &id(FRAUD, "a"));
    assert!(
        told.contains("/user_id") && told.contains("/ip_address"),
        "{told}"
    );
    assert!(!answer.to_string().contains("secret-text"));
    // A ratio of all tasks makes canaries the ones to be found.
    consul
        .put(&format!("/v1/kv/hermes/canary/{FRAUD}"), "10000")
        .await;
    let answer = asked(&callers, json!({"agent": FRAUD})).await;
    assert_eq!(instances(&answer["candidates"][0]), [id(FRAUD, "new")]);
}

/// Registers one more instance, whose digest is not that of the published body; then so many pass.
async fn tampered(consul: &Consul, passing: usize) {
    let service = json!({
        "ID": id(FRAUD, "odd"), "Name": FRAUD, "Address": "127.0.0.1", "Port": 1,
        "Meta": {
            "hermes_version": "1.0.0", "hermes_digest": format!("sha-256:{}", "0".repeat(64)),
            "hermes_route": format!("POST {RISK}"),
        },
    });
    consul
        .put("/v1/agent/service/register", service.to_string())
        .await;
    consul.wait_passing(FRAUD, passing, WITHIN).await;
}

#[tokio::test]
async fn an_input_alone_finds_the_contracts_that_accept_it() {
    let consul = Consul::start().await;
    let mut wider = fraud(HIGHER, "1.1.0");
    wider["input_schema"]["required"] = json!(["user_id"]);
    let (_lower, _higher, _order) = tokio::join!(
        Member::start(&consul, "one", fraud(FRAUD, "1.0.0"), |setup| setup),
        Member::start(&consul, "one", wider, |setup| setup),
        Member::start(&consul, "one", order(), |setup| setup),
    );
    for agent in [FRAUD, HIGHER, ORDER] {
        consul.wait_passing(agent, 1, WITHIN).await;
        let index = format!("/v1/kv/hermes/index/{agent}");
        wait_until(WITHIN, "index", async || consul.get(&index).await.is_some()).await;
    }
    // Published and served by nobody.
    consul.put("/v1/kv/hermes/index/gone-away-v1.0", "{}").await;
    consul.put("/v1/kv/hermes/index/_keep", "").await;
    let callers = two_callers(&consul).await;

    let all = asked(&callers, json!({})).await;
    assert_eq!(agents(&all), [FRAUD, HIGHER, ORDER]);
    let gone = all["excluded"].as_array().unwrap();
    assert_eq!(gone.len(), 1, "{all}");
    assert_eq!(gone[0]["agent"], "gone-away-v1.0");
    assert!(gone[0]["reason"].as_str().unwrap().contains("no instance"));

    let answer = asked(&callers, json!({"input": fraud_input()})).await;
    assert_eq!(agents(&answer), [FRAUD, HIGHER]);
    assert!(reason(&answer, &id(ORDER, "one")).contains("the whole (/required)"));
    let answer = asked(&callers, json!({"input": {"user_id": "u-1"}})).await;
    assert_eq!(agents(&answer), [HIGHER]);
    let answer = asked(
        &callers,
        json!({"input": {"sku": "s"}, "region": "cn-east-1"}),
    )
    .await;
    assert_eq!(agents(&answer), [ORDER]);
    let answer = asked(
        &callers,
        json!({"input": {"sku": "s"}, "region": "us-west-2"}),
    )
    .await;
    assert_eq!(agents(&answer), [""; 0]);
    assert!(reason(&answer, &id(ORDER, "one")).contains("region"));
    let answer = asked(&callers, json!({"input": null})).await;
    assert_eq!(agents(&answer), [""; 0]);

    // Nothing of it is followed from then on.
    let admin = callers[0].sidecar.admin_url();
    let followed = Reply::to(client().get(format!("{admin}/instances"))).await;
    assert_eq!(followed.json(), json!([]));
    let found = answer["excluded"].as_array().unwrap().len();
    assert_eq!(found, 4);
}

#[tokio::test]
async fn a_question_about_more_than_can_be_looked_at_is_cut_and_says_so() {
    const INDEXED: usize = 600;
    let consul = Consul::start().await;
    for first in (0..INDEXED).step_by(60) {
        let sets = (first..first + 60).map(|n| {
            let key = format!("hermes/index/many-v1.{n}");
            json!({"KV": {"Verb": "set", "Key": key, "Value": "e30="}})
        });
        let sets: Vec<Value> = sets.collect();
        consul.put("/v1/txn", json!(sets).to_string()).await;
    }
    let caller = Caller::start(&consul, "shop", |setup| setup).await;
    let begun = Instant::now();
    let answer = caller.discover(&json!({"input": {}})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(begun.elapsed() < WITHIN, "{:?}", begun.elapsed());
    let answer = answer.json();
    let looked_at = answer["excluded"].as_array().unwrap().len();
    assert!((1..=512).contains(&looked_at), "{looked_at}");
    let note = answer["note"].as_str().unwrap();
    assert!(
        note.contains(&format!("only {looked_at} of {INDEXED}")),
        "{note}"
    );
    // By an agent there is no such bound.
    let answer = caller.discover(&json!({"agent": "many-v1.599"})).await;
    answer.problem(404, "unknown-agent");
}

#[tokio::test]
async fn a_question_that_makes_no_sense_is_told_so() {
    let consul = Consul::start().await;
    let mut caller = Caller::start(&consul, "shop", |setup| setup).await;
    for (question, status, kind) in [
        (json!({"agent": "nobody-here-v1.0"}), 404, "unknown-agent"),
        (json!({"agent": "nobody-here@^1"}), 404, "unknown-agent"),
        (json!({"agent": "nobody"}), 404, "unknown-agent"),
        (json!({"agent": "no body"}), 400, "bad-context"),
        (json!({"agents": FRAUD}), 400, "bad-context"),
        (json!({"required_tags": "gpu"}), 400, "bad-context"),
        (json!({"deadline_ms": "1s"}), 400, "bad-context"),
        (json!([]), 400, "bad-context"),
    ] {
        let reply = caller.discover(&question).await;
        reply.problem(status, kind);
    }
    let url = format!("{}/hermes/discover", caller.sidecar.outbound_url());
    let post = |media: &str, body: &'static str| {
        let request = client().post(&url).header("content-type", media);
        request.body(body)
    };
    let json = "application/json";
    Reply::to(post(json, "{")).await.problem(400, "bad-json");
    Reply::to(post(json, ""))
        .await
        .problem(400, "body-required");
    Reply::to(post("text/plain", "{}"))
        .await
        .problem(415, "unsupported-media-type");
    let long = Box::leak("x".repeat(5 << 20).into_boxed_str());
    Reply::to(post(json, long)).await.problem(413, "too-large");
    let foreign = post(json, "{}").header("origin", "https://evil.example");
    Reply::to(foreign).await.problem(403, "host-refused");
    let reply = Reply::to(client().get(&url)).await;
    reply.problem(405, "method-not-allowed");
    assert_eq!(reply.header("allow"), "POST");
    // Without Consul there is nobody to ask.
    drop(consul);
    let reply = caller.discover(&json!({"agent": FRAUD})).await;
    reply.problem(503, "no-instance");
    assert!(caller.sidecar.terminate().await.success());
}

#[tokio::test]
async fn an_explanation_names_the_instance_that_the_calls_reach() {
    let consul = Consul::start().await;
    let body = || fraud(FRAUD, "1.0.0");
    let (_a, _b, mut ill) = tokio::join!(
        Member::start(&consul, "a", body(), |setup| setup),
        Member::start(&consul, "b", body(), |setup| setup
            .set("application.weight", 200)),
        Member::start(&consul, "ill", body(), |setup| setup),
    );
    ill.sidecar.kill9();
    consul
        .put(
            &format!("/v1/agent/check/fail/{}:ttl", id(FRAUD, "ill")),
            "",
        )
        .await;
    consul.wait_passing(FRAUD, 2, WITHIN).await;
    tampered(&consul, 3).await;
    let caller = Caller::start(&consul, "shop", |setup| setup).await;
    caller.knows(FRAUD, 4).await;
    let selections = caller.sidecar.metric("route_selections_total", &[]).await;
    assert_eq!(selections, 0.0);
    for task in 0..30 {
        let task = format!("t-{task}");
        let told = caller.explain(FRAUD, &task, "").await.json();
        let who = caller.line.who(FRAUD, json!({"task_id": task})).await;
        assert_eq!(told["instance"], id(FRAUD, &who), "{told}");
        assert_eq!(told["ranking"][0]["instance"], told["instance"]);
        assert_eq!(told["ranking"].as_array().unwrap().len(), 2);
        assert!(
            reason(&told, &id(FRAUD, "ill")).contains("not passing"),
            "{told}"
        );
        assert!(
            reason(&told, &id(FRAUD, "odd")).contains("has digest"),
            "{told}"
        );
        let canary = &told["canary"];
        assert_eq!(
            (&canary["cohort"], &canary["ratio"]),
            (&json!("stable"), &json!(0))
        );
    }
    let selections = caller.sidecar.metric("route_selections_total", &[]).await;
    assert_eq!(selections, 30.0);
    // What nobody serves is explained too; what nobody knows is not.
    let told = caller
        .explain(FRAUD, "t", "&tag=gpu&region=eu&deadline_ms=500")
        .await;
    let told = told.json();
    assert_eq!(
        (&told["instance"], &told["problem"]["kind"]),
        (&Value::Null, &json!("no-instance"))
    );
    caller
        .explain("nobody-here-v1.0", "t", "")
        .await
        .problem(404, "unknown-agent");
    caller
        .explain(FRAUD, "t", "&color=red")
        .await
        .problem(400, "bad-request");
    caller
        .explain(FRAUD, "no%20id", "")
        .await
        .problem(400, "bad-context");

    let explain = |agent: &str, more: &[&str]| {
        let mut command = Command::new(program::hermes());
        command
            .args(["explain", agent, "--task-id", "t-7"])
            .args(more);
        let admin = caller.sidecar.admin_url();
        let output = command.args(["--admin", &admin]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text)
    };
    let served = caller.explain(FRAUD, "t-7", "").await.json();
    let instance = served["instance"].as_str().unwrap();
    let (code, text) = explain(FRAUD, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.starts_with(&format!("task t-7 to {FRAUD}: {instance}\n")),
        "{text}"
    );
    assert!(
        text.contains(&format!("not {}: it is not passing", id(FRAUD, "ill"))),
        "{text}"
    );
    let (code, text) = explain(FRAUD, &["-o", "json"]);
    assert_eq!(
        (code, serde_json::from_str::<Value>(&text).unwrap()),
        (Some(0), served)
    );
    let (code, text) = explain(FRAUD, &["--tag", "gpu"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no-instance"), "{text}");
    assert_eq!(explain("nobody-here-v1.0", &[]).0, Some(1));
    assert_eq!(explain("no body", &[]).0, Some(2));
}
