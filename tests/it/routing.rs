//! Requests find their way: to a contract, to a reserved path, to the one instance, or to a refusal.

use crate::support::application::{Answer, Application};
use crate::support::client::{client, exchange};
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::pair::{FRAUD, Pair, RISK, wrapped};
use crate::support::reply::Reply;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::{wait_for, wait_until};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

const WITHIN: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_secs(2);
/// The first use of a contract waits two seconds for Consul, never more than this in all.
const FIRST_USE: Duration = Duration::from_millis(2500);

/// A second contract of the same application.
fn order() -> Value {
    json!({
        "id": "order-create-v1.2",
        "version": "1.2.7",
        "input_schema": {"type": "object", "required": []},
        "output_schema": {"type": "object", "required": []},
        "constraints": {"timeout_ms": 500}
    })
}

async fn get(url: String) -> Reply {
    Reply::to(client().get(url)).await
}

#[tokio::test]
async fn requests_that_lead_nowhere_are_told_so() {
    let pair = Pair::with(|callee| callee.contract(order(), "PUT", "/orders")).await;
    let (inbound, outbound) = (pair.callee.inbound_url(), pair.caller.outbound_url());
    let ask = async |method: &str, url: String| {
        let request = client().request(method.parse::<Method>().unwrap(), url);
        Reply::to(
            request
                .header("content-type", "application/json")
                .body("{}"),
        )
        .await
    };
    for (method, path, allow) in [
        ("GET", RISK, "POST"),
        ("DELETE", RISK, "POST"),
        ("POST", "/orders", "PUT"),
        ("GET", "/hermes/invoke", "POST"),
        ("POST", "/hermes/health", "GET"),
        ("PUT", "/hermes/handshake", "GET"),
    ] {
        let reply = ask(method, format!("{inbound}{path}")).await;
        reply.problem(405, "method-not-allowed");
        assert!(
            reply.header("allow").contains(allow),
            "{method} {path}: {reply:?}"
        );
        assert!(!reply.headers.contains_key("hermes-state"), "{reply:?}");
    }
    for path in [
        "/",
        "/api/v1",
        "/hermes/",
        "/hermes/none",
        "/hermes/agents/x",
    ] {
        ask("POST", format!("{inbound}{path}"))
            .await
            .problem(404, "not-found");
    }
    for path in ["/", "/agents", "/none", "/hermes/none"] {
        ask("POST", format!("{outbound}{path}"))
            .await
            .problem(404, "not-found");
    }
    let reply = ask("GET", format!("{outbound}/hermes/invoke")).await;
    reply.problem(405, "method-not-allowed");
    assert_eq!(reply.header("allow"), "POST");

    let meant_elsewhere = pair
        .inbound(RISK)
        .header("hermes-agent", "order-create-v1.2");
    let reply = Reply::to(meant_elsewhere.body(fraud_input().to_string())).await;
    reply.problem(421, "misdirected");
    assert_eq!(reply.header("hermes-executed"), "?0");
    let named = pair
        .inbound(RISK)
        .header("hermes-agent", "fraud-detection-v1.0@1.0.0");
    assert_eq!(
        Reply::to(named.body(fraud_input().to_string()))
            .await
            .status,
        200
    );
    for (direction, reason, count) in [
        ("inbound", "method_not_allowed", 6.0),
        ("inbound", "not_found", 5.0),
        ("inbound", "misdirected", 1.0),
    ] {
        let labels = [("direction", direction), ("reason", reason)];
        assert_eq!(
            pair.callee.metric("proxy_rejections_total", &labels).await,
            count,
            "{reason}"
        );
    }
    assert_eq!(pair.application.calls(RISK), 1);
}

#[tokio::test]
async fn reserved_paths_tell_what_is_served_and_how_it_is() {
    let pair = Pair::with(|callee| callee.contract(order(), "PUT", "/orders")).await;
    let inbound = pair.callee.inbound_url();
    for page in ["health", "heartbeat"] {
        let reply = get(format!("{inbound}/hermes/{page}")).await;
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (200, "application/json")
        );
        let both = json!([
            {"id": FRAUD, "version": "1.0.0"}, {"id": "order-create-v1.2", "version": "1.2.7"}
        ]);
        assert_eq!(
            reply.json(),
            json!({"status": "ready", "version": "1.0.0", "agents": both})
        );
        let one = get(format!("{inbound}/hermes/{page}?agent=order-create-v1.2"))
            .await
            .json();
        let only = json!([{"id": "order-create-v1.2", "version": "1.2.7"}]);
        assert_eq!(
            one,
            json!({"status": "ready", "version": "1.2.7", "agents": only})
        );
        let unknown = get(format!("{inbound}/hermes/{page}?agent=nobody-here-v1.0")).await;
        unknown.problem(404, "unknown-agent");
    }
    let reply = get(format!("{inbound}/hermes/handshake?agent={FRAUD}")).await;
    assert_eq!((reply.status, reply.json()), (200, fraud_detection()));
    let which = get(format!("{inbound}/hermes/handshake")).await;
    assert_eq!(which.status, 400);
    for id in [FRAUD, "order-create-v1.2"] {
        assert!(
            which.json()["detail"].as_str().unwrap().contains(id),
            "{which:?}"
        );
    }
    let head = client().head(format!("{inbound}/hermes/health"));
    let head = Reply::to(head).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[tokio::test]
async fn health_follows_the_application_and_the_version_it_runs() {
    let pair = Pair::with(|callee| callee.set("application.health_interval", "100ms")).await;
    let url = format!("{}/hermes/health?agent={FRAUD}", pair.callee.inbound_url());
    let shows = async |status: u16, said: &str| {
        wait_for(WITHIN, said, async || {
            let reply = get(url.clone()).await;
            let fits = reply.status == status && reply.json()["status"] == said;
            fits.then_some(reply)
        })
        .await
    };
    let answer = |body: Value| {
        pair.application
            .answer("/hermes/health", Answer::json(&body))
    };
    answer(json!({"status": "out_of_service"}));
    shows(503, "unhealthy").await;
    pair.consul.wait_passing(FRAUD, 0, WITHIN).await;
    answer(json!({"status": "ready", "version": "1.0.0"}));
    shows(200, "ready").await;
    pair.consul.wait_passing(FRAUD, 1, WITHIN).await;
    answer(json!({"status": "ready", "version": "0.9.0"}));
    let reply = wait_for(WITHIN, "refusal of the version", async || {
        let reply = get(url.clone()).await;
        (reply.status == 503).then_some(reply)
    })
    .await;
    let reason = reply.json()["reason"].as_str().unwrap().to_owned();
    assert!(
        reason.contains("0.9.0") && reason.contains("1.0.0"),
        "{reason}"
    );
    pair.consul.wait_passing(FRAUD, 0, WITHIN).await;
}

#[tokio::test]
async fn a_wrapped_call_finds_its_contract_without_a_sidecar_of_the_callers() {
    let pair = Pair::with(|callee| callee.contract(order(), "PUT", "/orders")).await;
    pair.application
        .answer("/orders", Answer::json(&json!({"n": 1})));
    let call = async |body: Value, headers: &[(&str, &str)]| {
        let mut request = pair.inbound("/hermes/invoke");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Reply::to(request.body(body.to_string())).await
    };
    let context =
        json!({"task_id": "test-20240615-001", "trace_id": "trace-abc123", "sla_level": "P0"});
    let reply = call(
        json!({"agent": FRAUD, "input": fraud_input(), "context": context}),
        &[],
    )
    .await;
    assert_eq!(
        (reply.status, reply.body),
        (200, fraud_output().to_string().into())
    );
    let received = pair.application.received(RISK).pop().unwrap();
    assert_eq!(received.method, "POST");
    assert_eq!(received.body, fraud_input().to_string());
    assert_eq!(received.headers["hermes-task-id"], "test-20240615-001");
    assert_eq!(received.headers["hermes-trace-id"], "trace-abc123");
    pair.collector
        .wait_task("test-20240615-001", "completed", WITHIN)
        .await;

    let by_header = [("hermes-agent", "order-create-v1.2")];
    let reply = call(json!({"input": {"a": 1}}), &by_header).await;
    assert_eq!(reply.json(), json!({"n": 1}));
    assert_eq!(pair.application.received("/orders")[0].method, "PUT");

    assert_eq!(call(json!({"input": {}}), &[]).await.status, 400);
    let unknown = call(json!({"agent": "nobody-here-v1.0", "input": {}}), &[]).await;
    unknown.problem(404, "unknown-agent");
}

#[tokio::test]
async fn local_listeners_refuse_foreign_hosts_and_pages_of_other_sites() {
    let pair = Pair::start().await;
    let outbound = pair.caller.outbound_url();
    let admin = pair.caller.admin_url();
    let refused = [
        ("host", "evil.example"),
        ("host", "evil.example:7402"),
        ("host", "localhost.evil.example"),
        ("host", "10.1.2.3"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
    ];
    for (name, value) in refused {
        let native = client().post(format!("{outbound}/agents/{FRAUD}{RISK}"));
        let reply = Reply::to(native.header(name, value).body("{}")).await;
        reply.problem(403, "host-refused");
        for page in ["/metrics", "/ready", "/config"] {
            let request = client().get(format!("{admin}{page}")).header(name, value);
            Reply::to(request).await.problem(403, "host-refused");
        }
    }
    for (name, value) in [
        ("host", "localhost"),
        ("host", "127.0.0.1:1"),
        ("host", "[::1]:7402"),
        ("origin", "http://localhost:3000"),
        ("sec-fetch-site", "same-origin"),
    ] {
        let native = pair
            .outbound(&format!("/agents/{FRAUD}{RISK}"))
            .header(name, value);
        let reply = Reply::to(native.body(fraud_input().to_string())).await;
        assert_eq!(reply.status, 200, "{name}: {value}: {reply:?}");
        let request = client().get(format!("{admin}/live")).header(name, value);
        assert_eq!(Reply::to(request).await.status, 200, "{name}: {value}");
    }
    for listener in [&outbound, &admin] {
        let address = listener.replace("http://", "").parse().unwrap();
        let tunnel = b"CONNECT 10.0.0.1:80 HTTP/1.1\r\nhost: 10.0.0.1:80\r\n\r\n";
        let reply = Reply::read(&exchange(address, tunnel, QUIET).await);
        assert_eq!(reply.status, 403, "{reply:?}");
    }
    // A command needs the header that a page cannot set unasked.
    for path in ["/quit", "/drain"] {
        let request = client().post(format!("{admin}{path}"));
        Reply::to(request).await.problem(403, "forbidden");
    }
    let level = client().put(format!("{admin}/log-level")).body("debug");
    Reply::to(level).await.problem(403, "forbidden");
    let asked = Reply::to(client().get(format!("{admin}/quit"))).await;
    asked.problem(405, "method-not-allowed");
    assert_eq!(asked.header("allow"), "POST");
    assert_eq!(pair.application.calls(RISK), 5);
}

#[tokio::test]
async fn the_first_use_of_a_contract_waits_briefly_and_then_says_what_is_missing() {
    let pair = Pair::start().await;
    let call = async |agent: &str| {
        let asked = Instant::now();
        let body = wrapped(agent, &json!({}), json!({}));
        let reply = Reply::to(pair.outbound("/hermes/invoke").body(body)).await;
        assert!(
            asked.elapsed() < FIRST_USE,
            "{agent}: {:?}",
            asked.elapsed()
        );
        reply
    };
    let reply = call("nobody-here-v1.0").await;
    let problem = reply.problem(404, "unknown-agent");
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("nobody-here-v1.0")
    );
    assert!(!reply.headers.contains_key("hermes-state"));
    let native = pair.outbound("/agents/nobody-else-v1.0/path").body("{}");
    Reply::to(native).await.problem(404, "unknown-agent");

    // A contract is published, but nobody serves it.
    let body = json!({"contract": order(), "digest": "sha-256:0", "published_by": "test"});
    let key = "/v1/kv/hermes/contracts/order-create-v1.2";
    pair.consul
        .put(&format!("{key}/1.2.7"), body.to_string())
        .await;
    pair.consul.put(&format!("{key}/version"), "1.2.7").await;
    let reply = call("order-create-v1.2").await;
    reply.problem(503, "no-instance");
    assert_eq!(reply.header("hermes-executed"), "?0");

    // The known one is there at once, and what fits nobody is said to fit nobody.
    assert_eq!(pair.invoke("t-known").await.status, 200);
    let body = wrapped(
        FRAUD,
        &fraud_input(),
        json!({"required_tags": ["gpu"], "task_id": "t-tags"}),
    );
    let reply = Reply::to(pair.outbound("/hermes/invoke").body(body)).await;
    let problem = reply.problem(503, "no-instance");
    assert!(
        problem["detail"].as_str().unwrap().contains("tag"),
        "{problem}"
    );
    let shown = pair
        .collector
        .wait_task("t-tags", "failed_execution", WITHIN)
        .await;
    assert_eq!(shown["steps"][0]["attempts"][0]["instance"], "", "{shown}");
    for agent in ["fraud-detection-v1.0@2.0.0", "fraud-detection-v1.0@1.0.0"] {
        let body = wrapped(agent, &fraud_input(), json!({}));
        let reply = Reply::to(pair.outbound("/hermes/invoke").body(body)).await;
        assert_eq!(
            reply.status,
            if agent.ends_with("2.0.0") { 503 } else { 200 },
            "{reply:?}"
        );
    }
    for agent in ["no agent", "", "fraud-detection@^1"] {
        let body = wrapped(agent, &json!({}), json!({}));
        let reply = Reply::to(pair.outbound("/hermes/invoke").body(body)).await;
        assert!(matches!(reply.status, 400 | 404), "{agent:?}: {reply:?}");
    }
    assert_eq!(pair.application.calls(RISK), 2);
}

#[tokio::test]
async fn region_team_canary_and_offset_decide_who_may_be_called() {
    let mut contract = fraud_detection();
    contract["constraints"]["region_support"] = json!(["cn-east-1"]);
    contract["constraints"]["utc_offsets"] = json!(["+08:00"]);
    let application = Application::start().await;
    application.answer(RISK, Answer::json(&fraud_output()));
    let consul = Consul::start().await;
    let serves = |name: &'static str, change: fn(Setup) -> Setup| {
        let setup = Sidecar::named("fraud")
            .application(&application.url())
            .set("application.instance", name)
            .consul(&consul.address())
            .contract(contract.clone(), "POST", RISK);
        change(setup).start()
    };
    let finance = |setup: Setup| setup.set("application.team", "finance");
    let canary = |setup: Setup| setup.set("application.tags", toml::Value::from(vec!["canary"]));
    let calls = |setup: Setup| setup.consul(&consul.address()).start();
    let (_team, _canary, plain, member) = tokio::join!(
        serves("team", finance),
        serves("canary", canary),
        calls(Sidecar::named("plain")),
        calls(Sidecar::named("member").set("application.team", "finance")),
    );
    consul.wait_passing(FRAUD, 2, WITHIN).await;
    let call = async |caller: &Sidecar, context: Value| {
        let request = client().post(caller.outbound_url() + "/hermes/invoke");
        let request = request.header("content-type", "application/json");
        Reply::to(request.body(wrapped(FRAUD, &fraud_input(), context))).await
    };
    for caller in [&plain, &member] {
        call(caller, json!({})).await;
        let url = format!("{}/instances", caller.admin_url());
        wait_until(WITHIN, "both instances", async || {
            get(url.clone()).await.json()[0]["instances"]
                .as_array()
                .is_some_and(|i| i.len() == 2)
        })
        .await;
    }
    for (caller, context, status) in [
        (&plain, json!({}), 503),
        (&plain, json!({"required_tags": ["canary"]}), 200),
        (&plain, json!({"required_tags": ["team-finance"]}), 200),
        (&plain, json!({"required_tags": ["team-risk"]}), 503),
        (&member, json!({}), 200),
        (&member, json!({"required_tags": ["team-risk"]}), 403),
        (&member, json!({"region": "cn-east-1"}), 200),
        (&member, json!({"region": "us-west-2"}), 503),
        (&member, json!({"utc_offset": "+08:00"}), 200),
        (&member, json!({"utc_offset": "+00:00"}), 503),
        (&member, json!({"deadline_ms": 500}), 200),
        (&member, json!({"deadline_ms": 499}), 503),
    ] {
        let reply = call(caller, context.clone()).await;
        assert_eq!(reply.status, status, "{context}: {reply:?}");
    }
}

/// Ten instances of the fraud contract with different weights, and one that calls them.
struct Ten {
    instances: Vec<(Application, Sidecar)>,
    caller: Arc<Sidecar>,
    client: reqwest::Client,
    _consul: Consul,
}

const WEIGHTS: [i64; 10] = [50, 75, 100, 100, 100, 125, 150, 175, 200, 225];
/// Calls under way at a time.
const ABREAST: usize = 16;

impl Ten {
    async fn start() -> Self {
        let consul = Consul::start().await;
        let mut instances = Vec::new();
        for (n, weight) in WEIGHTS.iter().enumerate() {
            let application = Application::start().await;
            let answer = Answer::json(&fraud_output()).with("x-instance", &n.to_string());
            application.answer(RISK, answer);
            let mut contract = fraud_detection();
            // What is shown is the choice, however slow the machine is.
            contract["constraints"]["timeout_ms"] = 20_000.into();
            let sidecar = Sidecar::named("fraud")
                .application(&application.url())
                .set("application.instance", format!("host-{n}"))
                .set("application.weight", *weight)
                .set("limits.drain_delay", "0s")
                .set("log.filter", "warn")
                .consul(&consul.address())
                .contract(contract, "POST", RISK)
                .start()
                .await;
            instances.push((application, sidecar));
        }
        let caller = Sidecar::named("shop")
            .set("log.filter", "warn")
            .consul(&consul.address());
        let ten = Self {
            instances,
            caller: Arc::new(caller.start().await),
            client: client(),
            _consul: consul,
        };
        ten.called("t-first").await;
        ten.sees(10).await;
        ten
    }

    /// Waits until the caller knows exactly `count` instances.
    async fn sees(&self, count: usize) {
        let url = format!("{}/instances", self.caller.admin_url());
        wait_until(WITHIN, "instances", async || {
            let shown = get(url.clone()).await.json();
            shown[0]["instances"]
                .as_array()
                .is_some_and(|i| i.len() == count)
        })
        .await;
    }

    async fn called(&self, task: &str) -> usize {
        called(
            self.client.clone(),
            self.caller.outbound_url(),
            task.to_owned(),
        )
        .await
    }

    /// Makes one call for each task, several abreast, and tells which instance had it.
    async fn spread(&self, tasks: usize) -> Vec<usize> {
        let mut had = vec![0; tasks];
        let mut calls = JoinSet::new();
        for task in 0..tasks {
            if calls.len() == ABREAST {
                let (task, instance): (usize, usize) = calls.join_next().await.unwrap().unwrap();
                had[task] = instance;
            }
            let call = called(
                self.client.clone(),
                self.caller.outbound_url(),
                format!("task-{task}"),
            );
            calls.spawn(async move { (task, call.await) });
        }
        while let Some(done) = calls.join_next().await {
            let (task, instance) = done.unwrap();
            had[task] = instance;
        }
        had
    }

    /// The whole show: `same` calls of one task, `tasks` ids, shares within `points` percent.
    async fn show(mut self, same: usize, tasks: usize, points: f64) {
        let home = self.called("one-task").await;
        for _ in 1..same {
            assert_eq!(self.called("one-task").await, home);
        }
        let before = self.spread(tasks).await;
        let mut counts = HashMap::new();
        before
            .iter()
            .for_each(|instance| *counts.entry(*instance).or_insert(0) += 1);
        let sum: i64 = WEIGHTS.iter().sum();
        for (n, weight) in WEIGHTS.iter().enumerate() {
            let share = 100.0 * f64::from(counts.get(&n).copied().unwrap_or(0)) / tasks as f64;
            let wanted = 100.0 * *weight as f64 / sum as f64;
            assert!(
                (share - wanted).abs() < points,
                "host-{n}: {share} % for {wanted} %"
            );
        }
        let gone = 9;
        let (_, mut sidecar) = self.instances.remove(gone);
        assert!(sidecar.terminate().await.success());
        self.sees(9).await;
        let after = self.spread(tasks).await;
        for (task, (was, is)) in before.iter().zip(&after).enumerate() {
            assert_ne!(*is, gone);
            assert!(
                *was == gone || was == is,
                "task-{task} moved from host-{was} to host-{is}"
            );
        }
    }
}

/// Calls the fraud contract for `task` and returns the number of the instance that answered.
async fn called(client: reqwest::Client, outbound: String, task: String) -> usize {
    let request = client.post(format!("{outbound}/agents/{FRAUD}{RISK}"));
    let request = request.header("content-type", "application/json");
    let request = request.header("hermes-task-id", task);
    let reply = Reply::to(request.body(fraud_input().to_string())).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.header("x-instance").parse().unwrap()
}

#[tokio::test]
async fn a_task_keeps_its_instance_and_tasks_spread_by_weight() {
    Ten::start().await.show(200, 2_000, 3.0).await;
}

/// The same in the numbers the product promises.
mod long {
    #[tokio::test]
    async fn ten_instances_share_ten_thousand_tasks_by_weight() {
        super::Ten::start().await.show(1_000, 10_000, 3.0).await;
    }
}
