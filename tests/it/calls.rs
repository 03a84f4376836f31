//! A call goes the whole way: checked, carried, recorded; bytes untouched, every end told truly.

use crate::support::application::{Answer, Application};
use crate::support::client::{client, exchange};
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::digest::{content_digest, hex_digest};
use crate::support::pair::{FRAUD, Pair, RISK, wrapped};
use crate::support::program;
use crate::support::reply::Reply;
use crate::support::sidecar::Sidecar;
use crate::support::wait::{wait_for, wait_until};
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

const WITHIN: Duration = Duration::from_secs(5);
const QUIET: Duration = Duration::from_secs(2);

/// A contract of the application that accepts any object; `path` is `/ID`.
fn free(id: &str) -> Value {
    json!({
        "id": id,
        "version": "1.0.0",
        "input_schema": {"type": "object", "required": []},
        "output_schema": {"type": "object", "required": []},
        "constraints": {"timeout_ms": 2000}
    })
}

/// The states of a call's last attempt, oldest first, each once.
fn walked(task: &Value) -> Vec<&str> {
    let attempts = task["steps"][0]["attempts"].as_array().unwrap();
    let states = attempts.last().unwrap()["states"].as_array().unwrap();
    let mut walked: Vec<&str> = states
        .iter()
        .map(|s| s["state"].as_str().unwrap())
        .collect();
    walked.dedup();
    walked
}

#[tokio::test]
async fn a_call_is_answered_and_its_task_shows_every_state() {
    let pair = Pair::start().await;
    let reply = pair.invoke("t-whole").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.body, fraud_output().to_string());
    for (name, value) in [
        ("hermes-task-id", "t-whole"),
        ("hermes-attempt", "1"),
        ("hermes-agent", "fraud-detection-v1.0@1.0.0"),
        ("hermes-application", "shop"),
        ("hermes-state", "completed"),
        ("hermes-executed", "?1"),
        ("content-digest", &content_digest(&reply.body)),
    ] {
        assert_eq!(reply.header(name), value, "{name}");
    }
    for part in [
        "validate;dur=",
        "route;dur=",
        "upstream;dur=",
        "record;dur=",
    ] {
        assert!(
            reply.header("server-timing").contains(part),
            "{part}: {reply:?}"
        );
    }
    assert!(reply.headers.contains_key("via"));

    let task = pair
        .collector
        .wait_task("t-whole", "completed", WITHIN)
        .await;
    let step = &task["steps"][0];
    assert_eq!(task["steps"].as_array().unwrap().len(), 1, "{task}");
    assert_eq!(step["step_id"], reply.header("hermes-step-id"));
    assert_eq!(step["call_id"], reply.header("hermes-call-id"));
    assert_eq!(
        (&step["agent"], &step["degraded"]),
        (&json!(FRAUD), &json!(false))
    );
    assert_eq!(step["attempts"].as_array().unwrap().len(), 1, "{task}");
    let attempt = &step["attempts"][0];
    assert_eq!(attempt["attempt"], 1);
    assert!(
        attempt["instance"]
            .as_str()
            .unwrap()
            .starts_with("fraud-detection-v1.0-")
    );
    assert_eq!(
        attempt["input_digest"],
        hex_digest(fraud_input().to_string().as_bytes())
    );
    assert_eq!(attempt["output_digest"], hex_digest(&reply.body));
    assert!(attempt["deadline_at"].as_str().unwrap().ends_with('Z'));
    assert!(attempt["duration_ms"].is_u64());
    // Both sidecars have reported by then: the callee's report was stored before the reply.
    wait_until(WITHIN, "reports of both sides", async || {
        let task = pair.collector.task("t-whole").await.unwrap().to_string();
        task.contains(r#""caller""#) && task.contains(r#""callee""#)
    })
    .await;
    let task = pair.collector.task("t-whole").await.unwrap();
    let order = ["pending", "dispatched", "executing", "completed"];
    let mut seen = walked(&task);
    seen.sort_by_key(|state| order.iter().position(|known| known == state));
    seen.dedup();
    assert_eq!(seen, order, "{task}");
    assert_eq!(task["chain"], "ok");
    assert!(
        task["ended_at"].is_string() && task["verdict"].is_string(),
        "{task}"
    );

    for (series, labels) in [
        (
            "proxy_requests_total",
            vec![
                ("direction", "inbound"),
                ("contract", FRAUD),
                ("code", "2xx"),
            ],
        ),
        (
            "proxy_requests_total",
            vec![
                ("direction", "outbound"),
                ("contract", FRAUD),
                ("code", "2xx"),
            ],
        ),
        (
            "tasks_finished_total",
            vec![("direction", "inbound"), ("state", "completed")],
        ),
        (
            "tasks_finished_total",
            vec![("direction", "outbound"), ("state", "completed")],
        ),
    ] {
        let sidecar = if labels[0].1 == "inbound" {
            &pair.callee
        } else {
            &pair.caller
        };
        assert_eq!(
            sidecar.metric(series, &labels).await,
            1.0,
            "{series} {labels:?}"
        );
    }
    assert!(pair.callee_log_line("t-whole").contains("duration_s"));
}

impl Pair {
    /// Returns the one line that the callee's sidecar logged for a task's call.
    fn callee_log_line(&self, task: &str) -> String {
        let log = self.callee.log();
        let mut lines = log
            .lines()
            .filter(|l| l.contains("call ended") && l.contains(task));
        let line = lines
            .next()
            .unwrap_or_else(|| panic!("no line for {task}:\n{log}"));
        assert!(lines.next().is_none(), "two lines for {task}:\n{log}");
        line.to_owned()
    }
}

#[tokio::test]
async fn a_task_is_found_by_the_command_and_in_the_list() {
    let pair = Pair::start().await;
    pair.application
        .answer(RISK, Answer::bytes(500, "text/plain", ""));
    pair.invoke("t-failed").await;
    let answer = Answer::json(&fraud_output());
    pair.application.answer(RISK, answer);
    let context = json!({"task_id": "t-listed", "sla_level": "P1", "scenario": "night run"});
    let body = wrapped(FRAUD, &fraud_input(), context);
    Reply::to(pair.outbound("/hermes/invoke").body(body)).await;
    for (task, state) in [("t-failed", "failed_execution"), ("t-listed", "completed")] {
        pair.collector.wait_task(task, state, WITHIN).await;
    }
    for (query, found) in [
        ("?state=completed", &["t-listed"][..]),
        ("?state=failed_execution", &["t-failed"]),
        ("?agent=fraud-detection-v1.0&sla=P1", &["t-listed"]),
        ("?sla=P0", &[]),
        ("?agent=nobody-here-v1.0", &[]),
        ("", &["t-failed", "t-listed"]),
    ] {
        let url = format!("{}/tasks{query}", pair.collector.url());
        let list = Reply::to(client().get(url)).await.json();
        let tasks = list["tasks"].as_array().unwrap().iter();
        let mut ids: Vec<_> = tasks
            .map(|task| task["task_id"].as_str().unwrap())
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, found, "{query}");
    }
    let mut command = std::process::Command::new(program::hermes());
    command.args(["task", "t-listed", "--collector", &pair.collector.url()]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let states = "pending → dispatched → executing → completed";
    assert!(text.contains(states), "{text}");
}

#[tokio::test]
async fn bodies_cross_byte_for_byte_both_ways() {
    let pair = Pair::with(|callee| callee.contract(free("free-echo-v1.0"), "POST", "/echo")).await;
    pair.application.script("/echo", |received| {
        Answer::bytes(
            200,
            "application/json; charset=utf-8",
            received.body.clone(),
        )
    });
    let odd = "{ \"z\" : 1.10,\t\"a\":[12345678901234567890123450 ,1E+2,-0.0],\r\n \
               \"k\":\"\\u00e9\\/é\\n\" , \"b\":{\"y\":null,\"x\":{ }}  }";
    let wrapper = format!(r#"{{"context":{{}}, "agent":"free-echo-v1.0","input": {odd} }}"#);
    for (request, body) in [
        (pair.inbound("/echo"), odd),
        (pair.inbound("/hermes/invoke"), &wrapper),
        (pair.outbound("/agents/free-echo-v1.0/echo"), odd),
        (pair.outbound("/hermes/invoke"), &wrapper),
    ] {
        let reply = Reply::to(request.body(body.to_owned())).await;
        assert_eq!(
            (reply.status, &reply.body[..]),
            (200, odd.as_bytes()),
            "{reply:?}"
        );
        assert_eq!(
            reply.header("content-type"),
            "application/json; charset=utf-8"
        );
        let received = pair.application.received("/echo").pop().unwrap();
        assert_eq!(received.body, odd);
        assert_eq!(
            received.headers["content-digest"],
            content_digest(odd.as_bytes()).as_str()
        );
        assert_eq!(
            received.headers["content-length"],
            odd.len().to_string().as_str()
        );
        assert_eq!(
            reply.header("content-digest"),
            content_digest(odd.as_bytes())
        );
    }
    assert_eq!(pair.application.calls("/echo"), 4);
}

#[tokio::test]
async fn a_query_goes_along_and_a_chunked_body_arrives_whole() {
    let pair = Pair::start().await;
    let input = fraud_input().to_string();
    let native = format!("/agents/{FRAUD}{RISK}?dry=%20a%2Fb&x=1");
    let reply = Reply::to(pair.outbound(&native).body(input.clone())).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let received = pair.application.received(RISK).pop().unwrap();
    assert_eq!(received.target, format!("{RISK}?dry=%20a%2Fb&x=1"));

    let (one, other) = input.split_at(10);
    let request = format!(
        "POST {RISK} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\na\r\n{one}\r\n{:x}\r\n{other}\r\n0\r\n\r\n",
        other.len()
    );
    let address = pair
        .callee
        .inbound_url()
        .replace("http://", "")
        .parse()
        .unwrap();
    let reply = Reply::read(&exchange(address, request.as_bytes(), QUIET).await);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(pair.application.received(RISK).pop().unwrap().body, input);
}

#[tokio::test]
async fn headers_of_one_hop_stay_on_it() {
    let pair = Pair::start().await;
    let answer = Answer::json(&fraud_output())
        .with("connection", "x-gone")
        .with("x-gone", "1")
        .with("keep-alive", "timeout=9")
        .with("x-kept", "1")
        .with("hermes-state", "timeout")
        .with("hermes-degraded", "?1")
        .with("hermes-anything", "1");
    pair.application.answer(RISK, answer);
    let body = fraud_input().to_string();
    let request = format!(
        "POST {RISK} HTTP/1.1\r\nhost: x\r\nContent-Type: application/json\r\ncontent-length: {}\r\n\
         connection: close, X-One\r\nConnection: x-two\r\nx-one: 1\r\nX-Two: 2\r\nx-three: 3\r\n\
         keep-alive: timeout=5\r\nproxy-connection: close\r\nte: gzip\r\nupgrade: h2c\r\n\
         accept-encoding: gzip, br\r\nhermes_task_id: forged\r\nhermes-sandbox: ?1\r\n\
         hermes-recovered: ?1\r\nhermes-look-alike: 1\r\nhermes-task-id: t-hop\r\n\
         idempotency-key: \"k 1\"\r\n\r\n{body}",
        body.len()
    );
    let address = pair
        .callee
        .inbound_url()
        .replace("http://", "")
        .parse()
        .unwrap();
    let reply = Reply::read(&exchange(address, request.as_bytes(), QUIET).await);
    assert_eq!(reply.status, 200, "{reply:?}");

    let received = pair.application.received(RISK).pop().unwrap().headers;
    for gone in [
        "connection",
        "x-one",
        "x-two",
        "keep-alive",
        "proxy-connection",
        "te",
        "upgrade",
        "transfer-encoding",
        "hermes_task_id",
        "hermes-sandbox",
        "hermes-recovered",
        "hermes-look-alike",
        "hermes-path",
    ] {
        assert!(
            !received.contains_key(gone),
            "{gone} reached the application: {received:?}"
        );
    }
    for (name, value) in [
        ("x-three", "3"),
        ("accept-encoding", "identity"),
        ("idempotency-key", "k 1"),
        ("hermes-task-id", "t-hop"),
        ("hermes-attempt", "1"),
        ("hermes-agent", "fraud-detection-v1.0@1.0.0"),
        ("content-type", "application/json"),
    ] {
        let mut values = received.get_all(name).iter();
        assert_eq!(values.next().unwrap(), value, "{name}");
        assert!(values.next().is_none(), "{name} twice: {received:?}");
    }
    let left: u64 = received["hermes-deadline-ms"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=500).contains(&left), "{left}");
    assert!(received["via"].to_str().unwrap().starts_with("1.1 "));
    assert!(received.contains_key("traceparent"));

    for gone in ["x-gone", "keep-alive", "hermes-degraded", "hermes-anything"] {
        assert!(
            !reply.headers.contains_key(gone),
            "{gone} came back: {reply:?}"
        );
    }
    assert_eq!(reply.header("x-kept"), "1");
    assert_eq!(reply.header("hermes-state"), "completed");
    assert_eq!(reply.header("hermes-load"), "inflight=0, limit=100");
}

#[tokio::test]
async fn without_a_key_of_its_own_a_call_is_known_by_its_id() {
    let pair = Pair::start().await;
    let reply = pair.invoke("t-key").await;
    let received = pair.application.received(RISK).pop().unwrap().headers;
    assert_eq!(received["idempotency-key"], reply.header("hermes-call-id"));
    assert_eq!(received["hermes-call-id"], reply.header("hermes-call-id"));
    assert_eq!(received["hermes-application"], "shop");

    let body = wrapped(FRAUD, &fraud_input(), json!({}));
    let keyed = pair
        .outbound("/hermes/invoke")
        .header("idempotency-key", "order-7");
    Reply::to(keyed.body(body)).await;
    let received = pair.application.received(RISK).pop().unwrap().headers;
    assert_eq!(received["idempotency-key"], "order-7");
}

#[tokio::test]
async fn what_the_application_answers_beside_success_is_passed_on_as_it_is() {
    let pair = Pair::start().await;
    for (status, kind) in [
        (400, "application_4xx"),
        (404, "application_4xx"),
        (422, "application_4xx"),
        (408, "application_status"),
        (429, "application_status"),
        (302, "application_status"),
        (500, "application_status"),
        (503, "application_status"),
    ] {
        let answer = Answer::bytes(status, "text/x-odd", "<no json>").with("x-reason", "own");
        pair.application.answer(RISK, answer);
        let task = format!("t-{status}");
        let before = pair.application.calls(RISK);
        let reply = pair.invoke(&task).await;
        assert_eq!(
            (reply.status, &reply.body[..]),
            (status, &b"<no json>"[..]),
            "{reply:?}"
        );
        assert_eq!(reply.header("content-type"), "text/x-odd");
        assert_eq!(reply.header("x-reason"), "own");
        assert_eq!(reply.header("hermes-state"), "failed_execution");
        assert_eq!(reply.header("hermes-executed"), "?1");
        assert_eq!(
            pair.application.calls(RISK),
            before + 1,
            "{status} was tried again"
        );
        let task = pair
            .collector
            .wait_task(&task, "failed_execution", WITHIN)
            .await;
        let attempt = &task["steps"][0]["attempts"][0];
        assert_eq!(attempt["error"]["kind"], kind, "{task}");
        assert_eq!(attempt["output_digest"], hex_digest(b"<no json>"), "{task}");
    }
}

#[tokio::test]
async fn an_output_that_breaks_the_contract_never_reaches_the_caller() {
    let pair = Pair::start().await;
    let json = |body: &str| Answer::bytes(200, "application/json", body.to_owned());
    let cases = [
        (
            "schema",
            json(r#"{"risk_score":101,"risk_level":"secret-word"}"#),
        ),
        ("missing", json(r#"{"risk_score":1}"#)),
        ("empty", json("")),
        ("no-content", Answer::bytes(204, "application/json", "")),
        ("broken", json("{")),
        (
            "twice",
            json(r#"{"risk_score":1,"risk_level":"low","risk_score":2}"#),
        ),
        (
            "coded",
            Answer::json(&fraud_output()).with("content-encoding", "gzip"),
        ),
    ];
    for (name, answer) in cases {
        pair.application.answer(RISK, answer);
        let task = format!("t-{name}");
        let reply = pair.invoke(&task).await;
        let problem = reply.problem(502, "output-invalid");
        assert_eq!(problem["state"], "failed_validation", "{name}");
        assert_eq!(reply.header("hermes-executed"), "?1", "{name}");
        assert!(!problem.to_string().contains("secret-word"), "{problem}");
        if name == "schema" {
            let errors = problem["errors"].as_array().unwrap();
            let of = |place: &str| errors.iter().find(|e| e["instance"] == place).unwrap();
            assert_eq!(
                of("/risk_score")["schema"],
                "/properties/risk_score/maximum"
            );
            assert_eq!(of("/risk_level")["schema"], "/properties/risk_level/enum");
        }
        let task = pair
            .collector
            .wait_task(&task, "failed_validation", WITHIN)
            .await;
        assert_eq!(
            task["steps"][0]["attempts"][0]["error"]["kind"],
            "output-invalid"
        );
    }
    let counted = [("direction", "inbound"), ("reason", "output_invalid")];
    assert_eq!(
        pair.callee.metric("proxy_rejections_total", &counted).await,
        7.0
    );

    let wrong = Answer::json(&fraud_output()).with("content-digest", &content_digest(b"other"));
    pair.application.answer(RISK, wrong);
    pair.invoke("t-digest")
        .await
        .problem(502, "digest-mismatch");
    let own = content_digest(fraud_output().to_string().as_bytes());
    pair.application.answer(
        RISK,
        Answer::json(&fraud_output()).with("content-digest", &own),
    );
    assert_eq!(pair.invoke("t-own-digest").await.status, 200);
}

#[tokio::test]
async fn no_content_completes_where_the_contract_accepts_null() {
    let mut void = free("free-void-v1.0");
    void["output_schema"] = json!({"type": ["object", "null"], "required": []});
    let pair = Pair::with(|callee| callee.contract(void, "PUT", "/void")).await;
    pair.application
        .answer("/void", Answer::bytes(204, "application/json", ""));
    let body = wrapped("free-void-v1.0", &json!({}), json!({"task_id": "t-void"}));
    let reply = Reply::to(pair.outbound("/hermes/invoke").body(body)).await;
    assert_eq!((reply.status, reply.body.len()), (204, 0), "{reply:?}");
    assert_eq!(reply.header("hermes-state"), "completed");
    assert_eq!(pair.application.received("/void")[0].method, "PUT");
    pair.collector
        .wait_task("t-void", "completed", WITHIN)
        .await;
}

#[tokio::test]
async fn checks_that_are_off_or_only_warn_let_bodies_pass() {
    let pair = Pair::with(|callee| {
        callee
            .route("validate.input", "warn")
            .route("validate.output", "off")
    })
    .await;
    pair.application
        .answer(RISK, Answer::bytes(200, "text/plain", "not json"));
    let reply = Reply::to(pair.inbound(RISK).body("{}")).await;
    assert_eq!(
        (reply.status, &reply.body[..]),
        (200, &b"not json"[..]),
        "{reply:?}"
    );
    assert_eq!(pair.application.received(RISK)[0].body, "{}");
    let counted = async |side, result| {
        let labels = [("contract", FRAUD), ("side", side), ("result", result)];
        pair.callee
            .metric("contract_validations_total", &labels)
            .await
    };
    assert_eq!(counted("input", "invalid").await, 1.0);
    assert_eq!(counted("output", "skipped").await, 1.0);
}

#[tokio::test]
async fn an_application_that_fails_on_the_way_is_told_by_what_it_did() {
    let pair = Pair::with(|callee| callee.set("limits.max_body_bytes", 4096)).await;
    pair.application.answer(RISK, Answer::Close);
    let reply = pair.invoke("t-reset").await;
    reply.problem(502, "upstream-reset");
    assert_eq!(reply.header("hermes-executed"), "?1");
    assert!(
        reply
            .header("proxy-status")
            .contains("error=connection_terminated"),
        "{reply:?}"
    );
    assert_eq!(pair.application.calls(RISK), 1);

    let long = json!({"risk_score": 1, "risk_level": "low", "x": "y".repeat(5000)});
    pair.application.answer(RISK, Answer::json(&long));
    let reply = pair.invoke("t-long").await;
    reply.problem(502, "reply-too-large");
    assert_eq!(reply.header("hermes-executed"), "?1");

    let Pair { application, .. } = &pair;
    assert_eq!(application.calls(RISK), 2);
    for (task, kind) in [("t-reset", "upstream-reset"), ("t-long", "reply-too-large")] {
        let task = pair
            .collector
            .wait_task(task, "failed_execution", WITHIN)
            .await;
        assert_eq!(
            task["steps"][0]["attempts"][0]["error"]["kind"], kind,
            "{task}"
        );
    }
}

#[tokio::test]
async fn an_application_that_is_gone_was_not_reached() {
    let mut pair = Pair::start().await;
    // No call came before: a kept connection that dies while it is written to is another story.
    let gone = pair.application.url();
    pair.application = Application::start().await;
    wait_until(WITHIN, "a refused connection", async || {
        let refused = client().get(&gone).send().await;
        refused.is_err_and(|error| error.is_connect())
    })
    .await;
    let reply = pair.invoke("t-gone").await;
    reply.problem(502, "upstream-unreachable");
    assert_eq!(reply.header("hermes-executed"), "?0");
    let task = pair
        .collector
        .wait_task("t-gone", "failed_execution", WITHIN)
        .await;
    assert_eq!(
        task["steps"][0]["attempts"][0]["error"]["kind"],
        "upstream-unreachable"
    );
}

#[tokio::test]
async fn an_attempt_ends_at_the_contracts_timeout() {
    let pair = Pair::start().await;
    pair.application.answer(RISK, Answer::Hang);
    let asked = Instant::now();
    let reply = pair.invoke("t-late").await;
    let took = asked.elapsed().as_millis();
    reply.problem(504, "timeout");
    assert_eq!(reply.header("hermes-executed"), "?1");
    assert!(
        reply
            .header("proxy-status")
            .contains("error=http_response_timeout")
    );
    assert!(
        (480..1200).contains(&took),
        "{took} ms for a timeout of 500 ms"
    );
    let told = pair.inbound(RISK).header("hermes-deadline-ms", "120");
    let asked = Instant::now();
    let reply = Reply::to(told.body(fraud_input().to_string())).await;
    let took = asked.elapsed().as_millis();
    reply.problem(504, "timeout");
    assert!(
        (115..480).contains(&took),
        "{took} ms for a deadline of 120 ms"
    );
    let task = pair.collector.wait_task("t-late", "timeout", WITHIN).await;
    assert_eq!(task["steps"][0]["attempts"][0]["error"]["kind"], "timeout");
    wait_until(WITHIN, "both requests to be dropped", async || {
        pair.application.abandoned() == 2
    })
    .await;
}

#[tokio::test]
async fn an_attempt_that_takes_its_time_is_shown_while_it_runs() {
    let pair = Pair::with(|callee| callee.contract(free("free-slow-v1.0"), "POST", "/slow")).await;
    let slow = Answer::json(&json!({})).delayed(Duration::from_millis(1500));
    pair.application.answer("/slow", slow);
    let body = wrapped("free-slow-v1.0", &json!({}), json!({"task_id": "t-slow"}));
    let call = Reply::to(pair.outbound("/hermes/invoke").body(body));
    let look = pair
        .collector
        .wait_task("t-slow", "executing", Duration::from_millis(1400));
    let (reply, task) = tokio::join!(call, look);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(task.get("ended_at").is_none(), "{task}");
    pair.collector
        .wait_task("t-slow", "completed", WITHIN)
        .await;
}

#[tokio::test]
async fn a_call_without_time_is_not_sent() {
    let pair = Pair::start().await;
    for (left, task) in [("0", "t-none"), ("1", "t-hardly")] {
        let late = pair.inbound(RISK).header("hermes-deadline-ms", left);
        let late = late.header("hermes-task-id", task);
        let reply = Reply::to(late.body(fraud_input().to_string())).await;
        reply.problem(504, "budget-exhausted");
        assert_eq!(reply.header("hermes-executed"), "?0");
        let task = pair.collector.wait_task(task, "timeout", WITHIN).await;
        assert_eq!(
            task["steps"][0]["attempts"][0]["error"]["kind"],
            "budget-exhausted"
        );
    }

    // A call that names less time than the contract may take fits no instance.
    pair.invoke("t-warm").await;
    let body = wrapped(FRAUD, &fraud_input(), json!({"deadline_ms": 100}));
    let reply = Reply::to(pair.outbound("/hermes/invoke").body(body)).await;
    let problem = reply.problem(503, "no-instance");
    assert!(
        problem["detail"].as_str().unwrap().contains("deadline"),
        "{problem}"
    );
    assert_eq!(pair.application.calls(RISK), 1);
}

#[tokio::test]
async fn calls_beyond_the_limit_are_turned_away_at_once() {
    let mut narrow = fraud_detection();
    narrow["id"] = "narrow-fraud-v1.0".into();
    narrow["constraints"]["max_concurrent"] = 1.into();
    let pair = Pair::with(|callee| callee.contract(narrow, "POST", "/narrow")).await;
    pair.application.answer("/narrow", Answer::Hang);
    let input = fraud_input().to_string();
    let first = Reply::to(pair.inbound("/narrow").body(input.clone()));
    let second = async {
        wait_until(WITHIN, "first call", async || {
            pair.application.calls("/narrow") == 1
        })
        .await;
        let request = pair.inbound("/narrow").header("hermes-task-id", "t-many");
        Reply::to(request.body(input.clone())).await
    };
    let (first, second) = tokio::join!(first, second);
    first.problem(504, "timeout");
    second.problem(429, "overloaded");
    assert_eq!(second.header("retry-after"), "1");
    assert_eq!(second.header("hermes-executed"), "?0");
    assert_eq!(second.header("hermes-load"), "inflight=1, limit=1");
    assert_eq!(pair.application.calls("/narrow"), 1);
    let task = pair
        .collector
        .wait_task("t-many", "failed_execution", WITHIN)
        .await;
    assert_eq!(
        task["steps"][0]["attempts"][0]["error"]["kind"],
        "overloaded"
    );
}

#[tokio::test]
async fn a_caller_that_hangs_up_leaves_a_call_that_runs_to_its_true_end() {
    let (collector, reports) = listener_of_reports().await;
    let pair = Pair::with(|callee| callee.collector(&collector.url())).await;
    let answer = Answer::json(&fraud_output()).delayed(Duration::from_millis(300));
    pair.application.answer(RISK, answer);
    let till = Sidecar::named("till")
        .consul(&pair.consul.address())
        .collector(&collector.url())
        .start()
        .await;
    let native = format!("{}/agents/{FRAUD}{RISK}", till.outbound_url());
    let through = client().post(native);
    let through = through.header("content-type", "application/json");
    // Who left is the one whose reply was not taken; the sidecar between took the callee's.
    for (calls, task, request, left) in [
        (1, "t-left", pair.inbound(RISK), "callee"),
        (2, "t-left-out", through, "caller"),
    ] {
        let request = request.header("hermes-task-id", task);
        let call = Reply::to(request.body(fraud_input().to_string()));
        tokio::select! {
            reply = call => panic!("answered before the caller left: {reply:?}"),
            () = wait_until(WITHIN, "call", async || pair.application.calls(RISK) == calls) => {}
        }
        let ended = |reporter: &str| {
            let reports = reports.lock().unwrap();
            let is_end = |report: &&Value| {
                report["task_id"] == task
                    && report["state"] == "completed"
                    && report["reporter"] == reporter
            };
            reports.iter().find(is_end).cloned()
        };
        let end = wait_for(WITHIN, "end state", async || ended(left)).await;
        assert_eq!(end["undelivered"], true, "{end}");
        let output = fraud_output().to_string();
        assert_eq!(end["output_digest"], hex_digest(output.as_bytes()));
        let callee = wait_for(WITHIN, "callee's report", async || ended("callee")).await;
        assert_eq!(
            callee.get("undelivered").is_some(),
            left == "callee",
            "{callee}"
        );
    }
    assert_eq!(pair.application.calls(RISK), 2);
    assert_eq!(pair.application.abandoned(), 0);
}

type Reports = Arc<Mutex<Vec<Value>>>;

/// Starts a collector that takes every report and shows it as it came.
async fn listener_of_reports() -> (Application, Reports) {
    let reports = Reports::default();
    let (kept, collector) = (reports.clone(), Application::start().await);
    collector.script("/report-status", move |received| {
        let sent = read_reports(
            &received.body,
            received.headers.contains_key("content-encoding"),
        );
        let count = sent.len();
        kept.lock().unwrap().extend(sent);
        let answer = json!({"accepted": count, "duplicates": 0, "conflicts": 0, "rejected": []});
        Answer::json(&answer)
    });
    (collector, reports)
}

/// Reads a batch of reports in any of the forms a collector takes.
fn read_reports(body: &[u8], is_coded: bool) -> Vec<Value> {
    let mut text = String::new();
    match is_coded {
        true => GzDecoder::new(body).read_to_string(&mut text).unwrap(),
        false => { body }.read_to_string(&mut text).unwrap(),
    };
    let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    values
        .flat_map(|value| match value.unwrap() {
            Value::Array(reports) => reports,
            report => vec![report],
        })
        .collect()
}
