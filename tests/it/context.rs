//! A task keeps its context from sidecar to sidecar, through applications that only pass an id on.

use crate::support::application::{Answer, Application};
use crate::support::client::client;
use crate::support::contract::{fraud_input, fraud_output};
use crate::support::pair::{FRAUD, Pair, RISK, wrapped};
use crate::support::reply::Reply;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::wait_for;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(5);
const PAY: &str = "payment-order-v1.0";

/// A payment that asks for the risk before it answers.
fn payment() -> Value {
    json!({
        "id": PAY,
        "version": "1.0.3",
        "input_schema": {"type": "object", "required": []},
        "output_schema": {"type": "object", "required": []},
        "constraints": {"timeout_ms": 3000}
    })
}

/// The pair with a third sidecar between them, whose application calls the fraud contract twice.
struct Chain {
    pair: Pair,
    payment: Sidecar,
    application: Application,
}

impl Chain {
    async fn start() -> Self {
        Self::with(|payment| payment).await
    }

    /// Starts it with more set at the payment's sidecar.
    async fn with(more: impl FnOnce(Setup) -> Setup) -> Self {
        let pair = Pair::with(|callee| callee.set("application.forward_path", true)).await;
        let application = Application::start().await;
        let payment = Sidecar::named("payment")
            .application(&application.url())
            .contract(payment(), "POST", "/pay")
            .consul(&pair.consul.address())
            .collector(&pair.collector.url());
        let payment = more(payment).start().await;
        Self {
            pair,
            payment,
            application,
        }
    }

    /// Lets the payment ask for the risk `times` times, taking `carried` over from its request.
    fn pays_after(&self, times: usize, carried: &'static [&'static str]) {
        let url = format!("{}/hermes/invoke", self.payment.outbound_url());
        self.application.script("/pay", move |received| {
            let take = |name: &&str| {
                let value = received.headers[*name].to_str().unwrap();
                ((*name).to_owned(), value.to_owned())
            };
            let headers: Vec<_> = carried.iter().map(take).collect();
            let mut answer = Answer::json(&json!({"paid": true}));
            for _ in 0..times {
                answer = Answer::Call {
                    url: url.clone(),
                    headers: headers.clone(),
                    body: json!({"agent": FRAUD, "input": fraud_input()}),
                    then: Box::new(answer),
                };
            }
            answer
        });
    }

    async fn pay(&self, context: Value) -> Reply {
        let body = wrapped(PAY, &json!({"order": 1}), context);
        let reply = Reply::to(self.pair.outbound("/hermes/invoke").body(body)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        reply
    }

    /// Waits until the task shows `steps` steps and has ended.
    async fn ended(&self, task: &str, steps: usize) -> Value {
        wait_for(WITHIN, "ended task", async || {
            let shown = self.pair.collector.task(task).await?;
            let is_whole = shown["steps"].as_array()?.len() == steps;
            (is_whole && shown.get("ended_at").is_some()).then_some(shown)
        })
        .await
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers
        .get(name)
        .map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn nested_calls_are_steps_of_one_task_and_keep_what_belongs_to_it() {
    let chain = Chain::start().await;
    chain.pays_after(2, &["hermes-task-id"]);
    let reply = chain
        .pay(json!({
            "task_id": "t-chain", "step_id": "step_1_pay", "sla_level": "P0",
            "requester": "Jürgen", "scenario": "cross-border payment",
            "region": "cn-east-1", "utc_offset": "+08:00", "trace_id": "trace-abc123"
        }))
        .await;
    assert_eq!(reply.header("hermes-step-id"), "step_1_pay");
    let task = chain.ended("t-chain", 3).await;
    assert_eq!(task["state"], "completed");
    assert_eq!(task["chain"], "ok");
    let steps = task["steps"].as_array().unwrap();
    assert_eq!(steps[0]["step_id"], "step_1_pay", "{task}");
    assert!(steps[0].get("parent_step").is_none(), "{task}");
    for step in &steps[1..] {
        assert_eq!(step["parent_step"], "step_1_pay", "{task}");
        assert_eq!(step["agent"], FRAUD);
        assert_eq!(step["state"], "completed");
    }
    assert_ne!(steps[1]["step_id"], steps[2]["step_id"]);
    assert_ne!(steps[1]["call_id"], steps[2]["call_id"]);

    let received = chain.pair.application.received(RISK);
    assert_eq!(received.len(), 2);
    let paid = &chain.application.received("/pay")[0].headers;
    assert!(
        !paid.contains_key("hermes-path"),
        "it is told only where it is asked for"
    );
    for request in &received {
        let told = &request.headers;
        for (name, value) in [
            ("hermes-task-id", "t-chain"),
            ("hermes-sla-level", "P0"),
            ("hermes-requester", "%\"J%c3%bcrgen\""),
            ("hermes-scenario", "\"cross-border payment\""),
            ("hermes-region", "\"cn-east-1\""),
            ("hermes-utc-offset", "\"+08:00\""),
            ("hermes-trace-id", "trace-abc123"),
            ("hermes-attempt", "1"),
            ("hermes-application", "payment"),
        ] {
            assert_eq!(text(told, name), value, "{name}");
        }
        assert_ne!(text(told, "idempotency-key"), text(paid, "idempotency-key"));
        let left: u64 = text(told, "hermes-deadline-ms").parse().unwrap();
        assert!(left <= 500, "{left}");
    }
    let first = text(&received[0].headers, "hermes-path");
    let ancestor = format!("\"step_1_pay\";a=\"{PAY}@1.0.3\";t=");
    assert!(first.starts_with(&ancestor), "{first}");
    assert!(first.contains(";i=:") && !first.contains(";o=:"), "{first}");
    assert_eq!(first.split(", ").count(), 1, "{first}");
    let second: Vec<_> = text(&received[1].headers, "hermes-path")
        .split(", ")
        .collect();
    assert_eq!(second.len(), 2, "{second:?}");
    assert_eq!(second[0], first);
    let made = steps[1]["step_id"].as_str().unwrap();
    assert!(
        second[1].starts_with(&format!("\"{made}\";a=\"{FRAUD}@1.0.0\";t=")),
        "{second:?}"
    );
    assert!(
        second[1].contains(";i=:") && second[1].contains(";o=:"),
        "{second:?}"
    );
}

#[tokio::test]
async fn a_step_or_call_id_alone_names_the_parent_and_is_not_taken_over() {
    let chain = Chain::start().await;
    let all: &[&str] = &[
        "hermes-task-id",
        "hermes-step-id",
        "hermes-call-id",
        "hermes-attempt",
        "idempotency-key",
        "hermes-agent",
        "hermes-deadline-ms",
    ];
    for (task, carried) in [
        ("t-call", &["hermes-call-id"][..]),
        ("t-step", &["hermes-step-id"]),
        ("t-all", all),
    ] {
        chain.pays_after(1, carried);
        let reply = chain.pay(json!({"task_id": task})).await;
        let shown = chain.ended(task, 2).await;
        let nested = &shown["steps"][1];
        assert_eq!(
            nested["parent_step"],
            reply.header("hermes-step-id"),
            "{shown}"
        );
        assert_ne!(nested["step_id"], shown["steps"][0]["step_id"]);
        assert_ne!(nested["call_id"], shown["steps"][0]["call_id"]);
        let told = chain.pair.application.received(RISK).pop().unwrap().headers;
        assert_eq!(text(&told, "hermes-task-id"), task);
        assert_eq!(nested["call_id"], text(&told, "idempotency-key"), "{task}");
    }
}

/// Two calls with different inputs under one key would be one call to their callee.
#[tokio::test]
async fn the_key_of_the_served_call_is_not_that_of_its_calls() {
    let chain = Chain::start().await;
    chain.pays_after(2, &["hermes-task-id", "idempotency-key"]);
    let body = wrapped(PAY, &json!({"order": 1}), json!({"task_id": "t-key"}));
    let request = chain.pair.outbound("/hermes/invoke").body(body);
    let reply = Reply::to(request.header("idempotency-key", "order-17")).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let paid = chain.application.received("/pay").pop().unwrap().headers;
    assert_eq!(text(&paid, "idempotency-key"), "order-17");
    let asked = chain.pair.application.received(RISK);
    assert_eq!(asked.len(), 2);
    for asked in asked {
        let (key, call) = ("idempotency-key", "hermes-call-id");
        assert_eq!(text(&asked.headers, key), text(&asked.headers, call));
    }
}

#[tokio::test]
async fn a_call_that_says_nothing_begins_a_task_of_its_own() {
    let chain = Chain::start().await;
    chain.pays_after(1, &[]);
    chain
        .pay(json!({"task_id": "t-silent", "sla_level": "P0"}))
        .await;
    let told = chain.pair.application.received(RISK).pop().unwrap().headers;
    assert_ne!(text(&told, "hermes-task-id"), "t-silent");
    assert_eq!(text(&told, "hermes-requester"), "\"payment\"");
    chain.ended("t-silent", 1).await;
    chain.ended(text(&told, "hermes-task-id"), 1).await;
}

#[tokio::test]
async fn a_nested_call_has_no_more_time_than_its_task() {
    let chain = Chain::start().await;
    let url = format!("{}/hermes/invoke", chain.payment.outbound_url());
    chain.pair.application.answer(RISK, Answer::Hang);
    chain
        .application
        .script("/pay", move |received| Answer::Call {
            url: url.clone(),
            headers: vec![(
                "hermes-task-id".to_owned(),
                received.headers["hermes-task-id"]
                    .to_str()
                    .unwrap()
                    .to_owned(),
            )],
            body: json!({"agent": FRAUD, "input": fraud_input()}),
            then: Box::new(Answer::Hang),
        });
    let native = format!("/agents/{PAY}/pay");
    Reply::to(chain.pair.outbound(&native).body("{}")).await; // the first use finds its instance
    let before = chain.pair.application.calls(RISK);
    let direct = client().post(chain.payment.inbound_url() + "/pay");
    let direct = direct.header("content-type", "application/json");
    let request = direct
        .header("hermes-deadline-ms", "200")
        .header("hermes-task-id", "t-short");
    let reply = Reply::to(request.body("{}")).await;
    reply.problem(504, "timeout");
    let told = chain.pair.application.received(RISK);
    assert_eq!(told.len(), before + 1);
    let left: u64 = text(&told[before].headers, "hermes-deadline-ms")
        .parse()
        .unwrap();
    assert!(left < 200, "{left}");
    let shown = chain.ended("t-short", 2).await;
    assert_eq!(shown["steps"][1]["state"], "timeout", "{shown}");
}

#[tokio::test]
async fn ids_are_minted_where_none_are_given_and_the_trace_is_kept_or_made() {
    let pair = Pair::start().await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let native = format!("/agents/{FRAUD}{RISK}");
    let request = pair
        .outbound(&native)
        .header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    let request = request.header("tracestate", "vendor=x");
    let reply = Reply::to(request.body(fraud_input().to_string())).await;
    let task = reply.header("hermes-task-id").to_owned();
    for name in ["hermes-task-id", "hermes-step-id", "hermes-call-id"] {
        let id = reply.header(name);
        assert_eq!(
            (id.len(), id.as_bytes()[14]),
            (36, b'7'),
            "{name} is no UUIDv7: {id}"
        );
    }
    let told = pair.application.received(RISK).pop().unwrap().headers;
    assert!(
        text(&told, "traceparent").starts_with(&format!("00-{trace}-")),
        "{told:?}"
    );
    assert!(text(&told, "traceparent").ends_with("-01"), "{told:?}");
    assert!(text(&told, "tracestate").contains("vendor=x"), "{told:?}");
    assert!(!told.contains_key("hermes-trace-id"), "{told:?}");
    assert_eq!(text(&told, "hermes-task-id"), task);
    assert_eq!(text(&told, "hermes-requester"), "\"shop\"");
    pair.collector.wait_task(&task, "completed", WITHIN).await;

    let reply = Reply::to(pair.outbound(&native).body(fraud_input().to_string())).await;
    assert_ne!(reply.header("hermes-task-id"), task);
    let told = pair.application.received(RISK).pop().unwrap().headers;
    let parts: Vec<_> = text(&told, "traceparent").split('-').collect();
    assert_eq!(
        parts.iter().map(|part| part.len()).collect::<Vec<_>>(),
        [2, 32, 16, 2]
    );
    assert_ne!(parts[1], trace);

    // 32 hex digits given as the trace id are one and are used as one.
    let body = wrapped(FRAUD, &fraud_input(), json!({"trace_id": trace}));
    Reply::to(pair.outbound("/hermes/invoke").body(body)).await;
    let told = pair.application.received(RISK).pop().unwrap().headers;
    assert!(text(&told, "traceparent").contains(trace), "{told:?}");
}

#[tokio::test]
async fn a_peer_that_is_not_believed_brings_no_context() {
    let pair = Pair::with(|callee| {
        let trusted: toml::Value = vec!["10.0.0.0/8"].into();
        callee.set("inbound.trust_context", trusted)
    })
    .await;
    let request = pair
        .inbound(RISK)
        .header("hermes-task-id", "forged")
        .header("hermes-sla-level", "P0")
        .header("hermes-deadline-ms", "not even a number")
        .header("hermes-agent", "other-agent-v1.0");
    let reply = Reply::to(request.body(fraud_input().to_string())).await;
    assert_eq!(
        (reply.status, &reply.body[..]),
        (200, fraud_output().to_string().as_bytes())
    );
    let told = pair.application.received(RISK).pop().unwrap().headers;
    assert_ne!(text(&told, "hermes-task-id"), "forged");
    assert!(!told.contains_key("hermes-sla-level"), "{told:?}");
    assert!(text(&told, "hermes-agent").starts_with(FRAUD));
}

#[tokio::test]
async fn many_calls_of_one_step_keep_their_parent_and_the_path_its_length() {
    const CALLS: usize = 20;
    let chain = Chain::start().await;
    chain.pays_after(CALLS, &["hermes-task-id"]);
    chain
        .pay(json!({"task_id": "t-many", "step_id": "step_1_pay"}))
        .await;
    let task = chain.ended("t-many", CALLS + 1).await;
    assert_eq!(task["chain"], "ok", "{task}");
    for step in &task["steps"].as_array().unwrap()[1..] {
        assert_eq!(step["parent_step"], "step_1_pay", "{task}");
    }
    let received = chain.pair.application.received(RISK);
    let paths: Vec<_> = received
        .iter()
        .map(|request| text(&request.headers, "hermes-path"))
        .collect();
    for path in &paths {
        assert!(path.len() <= 2048, "{} bytes", path.len());
        assert!(path.starts_with("\"step_1_pay\";"), "{path}");
    }
    // The newest of the finished calls are those that stay.
    let last: Vec<_> = paths[CALLS - 1].split(", ").collect();
    assert!((5..CALLS).contains(&last.len()), "{}", last.len());
    let newest = text(&received[CALLS - 2].headers, "hermes-step-id");
    let newest = format!("\"{newest}\";");
    assert!(last[last.len() - 1].starts_with(&newest), "{last:?}");
}

#[tokio::test]
async fn wrapped_and_http2_calls_are_known_by_their_token_too() {
    let w3c: &[&str] = &["traceparent", "tracestate"];
    let wrapping = |setup: Setup| setup.route("style", "envelope");
    let wrapped = Chain::with(wrapping).await;
    wrapped.pays_after(1, w3c);
    let reply = wrapped.pay(json!({"task_id": "t-wrapped"})).await;
    let shown = wrapped.ended("t-wrapped", 2).await;
    assert_eq!(
        shown["steps"][1]["parent_step"],
        reply.header("hermes-step-id")
    );

    let chain = Chain::start().await;
    chain.pays_after(1, w3c);
    let http2 = reqwest::Client::builder()
        .no_proxy()
        .http2_prior_knowledge();
    let request = http2.build().unwrap();
    let request = request.post(chain.payment.inbound_url() + "/pay");
    let request = request.header("hermes-task-id", "t-http2");
    let reply = request.json(&json!({})).send().await.unwrap();
    assert_eq!(reply.version(), reqwest::Version::HTTP_2);
    assert_eq!(reply.status(), 200);
    let shown = chain.ended("t-http2", 2).await;
    let step = reply.headers()["hermes-step-id"].to_str().unwrap();
    let nested = shown["steps"].as_array().unwrap().iter();
    let mut nested = nested.filter(|one| one["agent"] == FRAUD);
    assert_eq!(nested.next().unwrap()["parent_step"], step, "{shown}");
}

#[tokio::test]
async fn no_token_passes_through_or_leaves_for_a_foreign_host() {
    let foreign = Application::start().await;
    foreign.answer("/x", Answer::json(&json!({})));
    let port = foreign.url().rsplit(':').next().unwrap().to_owned();
    let listed: toml::Value = vec![format!("localhost:{port}")].into();
    let passes: toml::Value = vec!["/plain/"].into();
    let chain = Chain::with(|setup| {
        let setup = setup.set("outbound.allow_hosts", listed);
        setup.set("inbound.passthrough", passes)
    })
    .await;
    let answer = Answer::json(&json!({}));
    chain.application.answer("/plain/x", answer);
    let traced = |request: reqwest::RequestBuilder| {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let request = request.header("traceparent", parent);
        request.header("tracestate", "hermes=0123,vendor=x,hermes=45")
    };
    let plain = chain.payment.inbound_url() + "/plain/x";
    Reply::to(traced(client().get(plain))).await;
    let got = chain.application.received("/plain/x").pop().unwrap();
    assert_eq!(text(&got.headers, "tracestate"), "vendor=x");

    let proxy = reqwest::Proxy::http(chain.payment.outbound_url()).unwrap();
    let through = reqwest::Client::builder().proxy(proxy).build().unwrap();
    let url = format!("http://localhost:{port}/x");
    let reply = Reply::to(traced(through.get(url))).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let got = foreign.received("/x").pop().unwrap().headers;
    assert_eq!(text(&got, "tracestate"), "vendor=x");
    assert!(text(&got, "traceparent").ends_with("-00f067aa0ba902b7-01"));
}

#[tokio::test]
async fn the_key_of_the_served_call_does_not_leave_for_a_foreign_host() {
    let foreign = Application::start().await;
    foreign.answer("/x", Answer::json(&json!({})));
    let host = foreign.url().replace("http://127.0.0.1", "127.1");
    let listed: toml::Value = vec![host.clone()].into();
    let chain = Chain::with(|setup| setup.set("outbound.allow_hosts", listed)).await;
    let url = format!("{}/x", chain.payment.outbound_url());
    chain.application.script("/pay", move |received| {
        let mut answer = Answer::json(&json!({"paid": true}));
        for key in [text(&received.headers, "idempotency-key"), "own-1"] {
            let task = text(&received.headers, "hermes-task-id");
            let headers = [
                ("host", &*host),
                ("hermes-task-id", task),
                ("idempotency-key", key),
            ];
            answer = Answer::Call {
                url: url.clone(),
                headers: headers
                    .map(|(name, value)| (name.into(), value.into()))
                    .into(),
                body: json!({}),
                then: Box::new(answer),
            };
        }
        answer
    });
    let body = wrapped(PAY, &json!({"order": 1}), json!({"task_id": "t-key"}));
    let request = chain.pair.outbound("/hermes/invoke").body(body);
    let reply = Reply::to(request.header("idempotency-key", "order-17")).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let received = foreign.received("/x");
    let keys = received
        .iter()
        .map(|request| text(&request.headers, "idempotency-key"));
    assert_eq!(keys.collect::<Vec<_>>(), ["own-1", ""]);
}

#[tokio::test]
async fn a_request_that_comes_back_to_where_it_was_is_a_loop() {
    let pair = Pair::start().await;
    Reply::to(pair.inbound(RISK).body(fraud_input().to_string())).await;
    let told = pair.application.received(RISK).pop().unwrap().headers;
    let again = pair.inbound(RISK).header("via", text(&told, "via"));
    Reply::to(again.body(fraud_input().to_string()))
        .await
        .problem(508, "loop");
    let other = pair.inbound(RISK).header("via", "1.1 someone-else");
    assert_eq!(
        Reply::to(other.body(fraud_input().to_string()))
            .await
            .status,
        200
    );
}
