//! Bad input is named, counted and recorded, and the application never sees it.

use crate::support::client::{client, exchange};
use crate::support::contract::{fraud_detection, fraud_input};
use crate::support::digest::content_digest;
use crate::support::pair::{FRAUD, Pair, RISK, wrapped};
use crate::support::program;
use crate::support::reply::Reply;
use crate::support::sidecar::Sidecar;
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(5);
const QUIET: Duration = Duration::from_secs(2);
const LIMIT: usize = 4096;

/// A bad body, and the kind it is answered with.
struct Case {
    name: &'static str,
    body: Vec<u8>,
    status: u16,
    kind: &'static str,
}

fn case(name: &'static str, body: impl Into<Vec<u8>>, status: u16, kind: &'static str) -> Case {
    Case {
        name,
        body: body.into(),
        status,
        kind,
    }
}

/// Bodies that are wrong whatever the contract says.
fn no_json() -> Vec<Case> {
    let mut deep = "[".repeat(500);
    deep.push_str(&"]".repeat(500));
    let (name, twice) = ("name-from-body", r#"{"user_id":"a","user_id":"b"}"#);
    vec![
        case("not-json", format!("{name} is no json"), 400, "bad-json"),
        case("cut", r#"{"user_id":"#, 400, "bad-json"),
        case("two", "{} {}", 400, "bad-json"),
        case("twice", twice, 400, "bad-json"),
        case("escaped-twice", r#"{"a":1,"\u0061":2}"#, 400, "bad-json"),
        case("latin", b"{\"user_id\":\"\xe9\"}".to_vec(), 400, "bad-json"),
        case("mark", b"\xef\xbb\xbf{}".to_vec(), 400, "bad-json"),
        case("nan", r#"{"amount_cny":NaN}"#, 400, "bad-json"),
        case("deep", deep, 400, "bad-json"),
        case("empty", "", 400, "body-required"),
    ]
}

async fn sidecar_count(sidecar: &Sidecar, direction: &str, kind: &str) -> f64 {
    let reason = kind.replace('-', "_");
    let labels = [("direction", direction), ("reason", reason.as_str())];
    sidecar.metric("proxy_rejections_total", &labels).await
}

#[tokio::test]
async fn a_bad_body_at_a_contract_is_refused_counted_and_recorded() {
    let pair = Pair::with(|callee| callee.set("limits.max_body_bytes", 200_000)).await;
    let mut cases = no_json();
    let deepest = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    cases.push(case("deepest", deepest, 400, "bad-json"));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(10_000), "}".repeat(10_000));
    cases.push(case("deepest-objects", objects, 400, "bad-json"));
    cases.push(case("missing", r#"{"user_id":"u"}"#, 400, "input-invalid"));
    for case in &cases {
        let before = sidecar_count(&pair.callee, "inbound", case.kind).await;
        let task = format!("t-{}", case.name);
        let request = pair.inbound(RISK).header("hermes-task-id", &task);
        let reply = Reply::to(request.body(case.body.clone())).await;
        let problem = reply.problem(case.status, case.kind);
        assert_eq!(problem["state"], "failed_validation", "{}", case.name);
        assert_eq!(problem["task_id"], task);
        assert!(!problem.to_string().contains("name-from-body"), "{problem}");
        let after = sidecar_count(&pair.callee, "inbound", case.kind).await;
        assert_eq!(after - before, 1.0, "{}", case.name);
        let task = pair
            .collector
            .wait_task(&task, "failed_validation", WITHIN)
            .await;
        let attempt = &task["steps"][0]["attempts"][0];
        assert_eq!(attempt["error"]["kind"], case.kind, "{task}");
        assert!(!task.to_string().contains("name-from-body"), "{task}");
    }
    assert_eq!(pair.application.calls(RISK), 0);
}

#[tokio::test]
async fn a_bad_body_at_the_outbound_listener_is_refused_and_leaves_no_instance_asked() {
    let pair = Pair::start().await;
    let native = format!("/agents/{FRAUD}{RISK}");
    for case in no_json() {
        let before = sidecar_count(&pair.caller, "outbound", case.kind).await;
        let task = format!("t-{}", case.name);
        let request = pair.outbound(&native).header("hermes-task-id", &task);
        let reply = Reply::to(request.body(case.body.clone())).await;
        let problem = reply.problem(case.status, case.kind);
        assert_eq!(problem["task_id"], task, "{}", case.name);
        let after = sidecar_count(&pair.caller, "outbound", case.kind).await;
        assert_eq!(after - before, 1.0, "{}", case.name);
        let task = pair
            .collector
            .wait_task(&task, "failed_validation", WITHIN)
            .await;
        assert_eq!(task["steps"][0]["attempts"][0]["error"]["kind"], case.kind);
    }
    let received = [("direction", "inbound"), ("contract", FRAUD)];
    assert_eq!(
        pair.callee.metric("proxy_requests_total", &received).await,
        0.0
    );
    assert_eq!(pair.application.calls(RISK), 0);
}

#[tokio::test]
async fn an_input_that_breaks_the_contract_is_told_place_by_place() {
    let pair = Pair::start().await;
    let input = json!({"user_id": "", "ip_address": "hidden-value", "amount_cny": 0});
    let body = wrapped(FRAUD, &input, json!({"task_id": "t-places"}));
    let reply = Reply::to(pair.outbound("/hermes/invoke").body(body)).await;
    let problem = reply.problem(400, "input-invalid");
    let mut places: Vec<_> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| {
            assert!(!error["message"].as_str().unwrap().is_empty());
            (
                error["instance"].as_str().unwrap(),
                error["schema"].as_str().unwrap(),
            )
        })
        .collect();
    places.sort_unstable();
    assert_eq!(
        places,
        [
            ("/amount_cny", "/properties/amount_cny/minimum"),
            ("/ip_address", "/properties/ip_address/format"),
            ("/user_id", "/properties/user_id/minLength"),
        ]
    );
    assert!(!problem.to_string().contains("hidden-value"), "{problem}");
    let violated = [("side", "input"), ("keyword", "minLength")];
    assert_eq!(
        pair.caller
            .metric("contract_violations_total", &violated)
            .await,
        1.0
    );
    let task = pair
        .collector
        .wait_task("t-places", "failed_validation", WITHIN)
        .await;
    assert!(!task.to_string().contains("hidden-value"), "{task}");
    assert!(!pair.caller.log().contains("hidden-value"));
    // The callee was not asked: the caller holds the same contract.
    let received = [("direction", "inbound"), ("contract", FRAUD)];
    assert_eq!(
        pair.callee.metric("proxy_requests_total", &received).await,
        0.0
    );
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_declared_or_chunked() {
    let pair = Pair::with(|callee| callee.set("limits.max_body_bytes", LIMIT as i64)).await;
    let mut input = fraud_input();
    let fits = input.to_string().len();
    input["device_fingerprint"] = "x".repeat(10).into();
    let long = format!("{}{}", input, " ".repeat(LIMIT));
    let declared = pair.inbound(RISK).header("hermes-task-id", "t-declared");
    let problem = Reply::to(declared.body(long.clone())).await;
    problem.problem(413, "too-large");

    let chunked = format!(
        "POST {RISK} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         hermes-task-id: t-chunked\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n",
        long.len()
    );
    let address = pair
        .callee
        .inbound_url()
        .replace("http://", "")
        .parse()
        .unwrap();
    let reply = Reply::read(&exchange(address, chunked.as_bytes(), QUIET).await);
    assert_eq!(reply.status, 413, "{reply:?}");
    assert_eq!(reply.header("hermes-state"), "failed_validation");

    pair.collector
        .wait_task("t-chunked", "failed_validation", WITHIN)
        .await;
    // Refused by its head: before there was a task.
    assert!(pair.collector.task("t-declared").await.is_none());
    assert_eq!(
        sidecar_count(&pair.callee, "inbound", "too-large").await,
        2.0
    );
    assert_eq!(pair.application.calls(RISK), 0);

    // At the outbound listener it is the same.
    let native = format!("/agents/{FRAUD}{RISK}");
    let huge = vec![b' '; 5 << 20];
    let length = huge.len();
    let declared = pair
        .outbound(&native)
        .header("hermes-task-id", "t-out-declared");
    Reply::to(declared.body(huge))
        .await
        .problem(413, "too-large");
    let chunk = " ".repeat(length);
    let chunked = format!(
        "POST {native} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         hermes-task-id: t-out-chunked\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{chunk}\r\n0\r\n\r\n"
    );
    let address = pair
        .caller
        .outbound_url()
        .replace("http://", "")
        .parse()
        .unwrap();
    let reply = Reply::read(&exchange(address, chunked.as_bytes(), QUIET).await);
    assert_eq!(reply.status, 413, "{reply:?}");
    pair.collector
        .wait_task("t-out-chunked", "failed_validation", WITHIN)
        .await;
    assert!(pair.collector.task("t-out-declared").await.is_none());
    assert_eq!(
        sidecar_count(&pair.caller, "outbound", "too-large").await,
        2.0
    );
    assert_eq!(pair.application.calls(RISK), 0);

    let exact = format!("{}{}", fraud_input(), " ".repeat(LIMIT - fits));
    assert_eq!(Reply::to(pair.inbound(RISK).body(exact)).await.status, 200);
}

#[tokio::test]
async fn only_plain_json_is_taken_on_a_contract_route() {
    let pair = Pair::start().await;
    let input = fraud_input().to_string();
    let typed = |base: String, pairs: &[(&str, &str)]| {
        let mut request = reqwest::Client::new().post(base).body(input.clone());
        for (name, value) in pairs {
            request = request.header(*name, *value);
        }
        request
    };
    let inbound = format!("{}{RISK}", pair.callee.inbound_url());
    let outbound = format!("{}/agents/{FRAUD}{RISK}", pair.caller.outbound_url());
    let invoke = format!("{}/hermes/invoke", pair.caller.outbound_url());
    for url in [inbound.clone(), outbound, invoke] {
        for pairs in [
            &[][..],
            &[("content-type", "text/plain")],
            &[("content-type", "text/json")],
            &[("content-type", "application/json, text/plain")],
            &[
                ("content-type", "application/json"),
                ("content-encoding", "gzip"),
            ],
        ] {
            let reply = Reply::to(typed(url.clone(), pairs)).await;
            reply.problem(415, "unsupported-media-type");
        }
    }
    assert_eq!(
        sidecar_count(&pair.callee, "inbound", "unsupported-media-type").await,
        5.0
    );
    assert_eq!(
        sidecar_count(&pair.caller, "outbound", "unsupported-media-type").await,
        10.0
    );
    assert_eq!(pair.application.calls(RISK), 0);
    for pairs in [
        [
            ("content-type", "Application/JSON ; charset=utf-8"),
            ("x", "y"),
        ],
        [
            ("content-type", "application/vnd.bank+json"),
            ("content-encoding", "identity"),
        ],
    ] {
        assert_eq!(
            Reply::to(typed(inbound.clone(), &pairs)).await.status,
            200,
            "{pairs:?}"
        );
    }

    // Named in Connection, the media type would not cross: the message that goes on has none.
    let request = format!(
        "POST {RISK} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         connection: close, content-type\r\ncontent-length: {}\r\n\r\n{input}",
        input.len()
    );
    let address = pair
        .callee
        .inbound_url()
        .replace("http://", "")
        .parse()
        .unwrap();
    let reply = Reply::read(&exchange(address, request.as_bytes(), QUIET).await);
    reply.problem(415, "unsupported-media-type");
}

#[tokio::test]
async fn a_body_that_is_not_the_one_its_digest_was_made_for_is_refused() {
    let pair = Pair::start().await;
    let wrong = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:";
    let native = format!("/agents/{FRAUD}{RISK}");
    for (name, request) in [
        ("t-in", pair.inbound(RISK)),
        ("t-out", pair.outbound(&native)),
    ] {
        let request = request
            .header("hermes-task-id", name)
            .header("content-digest", wrong);
        let reply = Reply::to(request.body(fraud_input().to_string())).await;
        reply.problem(400, "digest-mismatch");
        pair.collector
            .wait_task(name, "failed_validation", WITHIN)
            .await;
    }
    // A wrapper's digest is that of the wrapper, as it was sent.
    for (name, at) in [
        ("t-wrap-in", &pair.callee.inbound_url()),
        ("t-wrap-out", &pair.caller.outbound_url()),
    ] {
        let wrapper = wrapped(FRAUD, &fraud_input(), json!({"task_id": name}));
        let sent = |digest: &str| {
            let request = client().post(format!("{at}/hermes/invoke"));
            let request = request.header("content-type", "application/json");
            Reply::to(
                request
                    .header("content-digest", digest)
                    .body(wrapper.clone()),
            )
        };
        sent(wrong).await.problem(400, "digest-mismatch");
        let reply = sent(&content_digest(wrapper.as_bytes())).await;
        assert_eq!(reply.status, 200, "{name}: {reply:?}");
    }
    assert_eq!(pair.application.calls(RISK), 2);
    let unread = pair
        .inbound(RISK)
        .header("content-digest", "sha-256=broken");
    Reply::to(unread.body(fraud_input().to_string()))
        .await
        .problem(400, "digest-mismatch");
    assert_eq!(pair.application.calls(RISK), 2);
    let other = pair
        .inbound(RISK)
        .header("content-digest", "unixsum=:AA==:");
    assert_eq!(
        Reply::to(other.body(fraud_input().to_string()))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_context_that_is_malformed_or_says_two_things_is_refused() {
    let pair = Pair::start().await;
    let long_id = "x".repeat(129);
    let long_text = format!("\"{}\"", "x".repeat(257));
    let malformed = [
        ("hermes-task-id", ""),
        ("hermes-task-id", "a b"),
        ("hermes-task-id", "a,b"),
        ("hermes-task-id", "\"quoted\""),
        ("hermes-task-id", &long_id),
        ("hermes-step-id", "s/1"),
        ("hermes-call-id", "é"),
        ("hermes-trace-id", "t t"),
        ("hermes-attempt", "0"),
        ("hermes-attempt", "one"),
        ("hermes-deadline-ms", "-1"),
        ("hermes-deadline-ms", "1.5"),
        ("hermes-sla-level", "P9"),
        ("hermes-requester", "\"open"),
        ("hermes-scenario", &long_text),
        ("hermes-region", "(a b)"),
        ("hermes-utc-offset", "\"8\""),
        ("hermes-required-tags", "a b"),
        ("hermes-force-refresh", "true"),
        ("hermes-path", "(((("),
        ("hermes-agent", "a b"),
        ("hermes-application", "Shop!"),
    ];
    let input = fraud_input().to_string();
    let native = format!("/agents/{FRAUD}{RISK}");
    for (name, value) in malformed {
        for request in [pair.inbound(RISK), pair.outbound(&native)] {
            let reply = Reply::to(request.header(name, value).body(input.clone())).await;
            let problem = reply.problem(400, "bad-context");
            let detail = problem["detail"].as_str().unwrap().to_lowercase();
            assert!(detail.contains(name), "{name}: {detail}");
        }
    }
    let twice = pair
        .inbound(RISK)
        .header("hermes-task-id", "a")
        .header("hermes-task-id", "a");
    Reply::to(twice.body(input))
        .await
        .problem(400, "bad-context");

    let differing = [
        ("hermes-task-id", "t-1", json!({"task_id": "t-2"})),
        ("hermes-sla-level", "P0", json!({"sla_level": "P1"})),
        ("hermes-requester", "\"ann\"", json!({"requester": "bob"})),
        ("hermes-deadline-ms", "900", json!({"deadline_ms": 901})),
        (
            "hermes-required-tags",
            "\"a\"",
            json!({"required_tags": ["a", "b"]}),
        ),
    ];
    let wrong = [
        json!({"task_id": "a b"}),
        json!({"task_id": 7}),
        json!({"sla_level": "p0"}),
        json!({"deadline_ms": -1}),
        json!([]),
    ];
    let invoke = |pair: &Pair| {
        [
            pair.inbound("/hermes/invoke"),
            pair.outbound("/hermes/invoke"),
        ]
    };
    for (name, value, context) in differing {
        for request in invoke(&pair) {
            let body = wrapped(FRAUD, &fraud_input(), context.clone());
            let reply = Reply::to(request.header(name, value).body(body)).await;
            let detail = reply.problem(400, "bad-context")["detail"].to_string();
            assert!(detail.contains("differs"), "{detail}");
        }
    }
    for context in wrong {
        for request in invoke(&pair) {
            let body = wrapped(FRAUD, &fraud_input(), context.clone());
            Reply::to(request.body(body))
                .await
                .problem(400, "bad-context");
        }
    }
    assert_eq!(pair.application.calls(RISK), 0);
    let same = pair
        .outbound("/hermes/invoke")
        .header("hermes-task-id", "t-same");
    let body = wrapped(
        FRAUD,
        &fraud_input(),
        json!({"task_id": "t-same", "unknown": 1}),
    );
    assert_eq!(Reply::to(same.body(body)).await.status, 200);
}

#[tokio::test]
async fn a_wrapper_that_is_none_is_refused_by_its_fault() {
    let pair = Pair::start().await;
    let sent: [(&str, u16, &str); 8] = [
        ("", 400, "body-required"),
        ("{", 400, "bad-json"),
        ("[]", 400, "bad-json"),
        (r#"{"agent":"fraud-detection-v1.0"}"#, 400, "bad-json"),
        (
            r#"{"agent":"fraud-detection-v1.0","input":{},"input":{}}"#,
            400,
            "bad-json",
        ),
        (
            r#"{"agent":"fraud-detection-v1.0","input":{},"colour":1}"#,
            400,
            "bad-json",
        ),
        (
            r#"{"agent":"fraud-detection-v1.0","input":{"a":1,"a":1}}"#,
            400,
            "bad-json",
        ),
        (
            r#"{"agent":"fraud-detection-v1.0","input":{}}"#,
            400,
            "input-invalid",
        ),
    ];
    for (body, status, kind) in sent {
        for request in [
            pair.inbound("/hermes/invoke"),
            pair.outbound("/hermes/invoke"),
        ] {
            let problem = Reply::to(request.body(body)).await.problem(status, kind);
            assert_eq!(problem["state"], "failed_validation", "{body}");
        }
    }
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    for (input, context, kind) in [
        (&*deep, "{}", "bad-json"),
        ("{}", &deep, "bad-context"),
        ("{}", r#"{"task_id":"a","task_id":"a"}"#, "bad-context"),
    ] {
        let body = format!(r#"{{"agent":"{FRAUD}","input":{input},"context":{context}}}"#);
        for request in [
            pair.inbound("/hermes/invoke"),
            pair.outbound("/hermes/invoke"),
        ] {
            let reply = Reply::to(request.body(body.clone())).await;
            reply.problem(400, kind);
        }
    }
    assert_eq!(pair.application.calls(RISK), 0);
}

#[tokio::test]
async fn heads_that_two_readers_could_read_differently_are_refused() {
    let pair = Pair::start().await;
    let address = pair
        .callee
        .inbound_url()
        .replace("http://", "")
        .parse()
        .unwrap();
    let body = fraud_input().to_string();
    let post = |target: &str, fields: &str| {
        let length = body.len();
        format!(
            "POST {target} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             connection: close\r\n{fields}\r\n{body}"
        )
    };
    let long = format!("/{}", "a".repeat(17_000));
    let wide = format!("host: x\r\nx: {}\r\n", "y".repeat(70_000));
    let many = format!(
        "host: x\r\n{}",
        (0..120)
            .map(|n| format!("x-{n}: y\r\n"))
            .collect::<String>()
    );
    for (target, fields, status) in [
        (RISK, "", 400),
        (RISK, "host: x\r\nhost: x\r\n", 400),
        (RISK, "host: a@b\r\n", 400),
        ("/api/v1/%2e%2e/risk", "host: x\r\n", 400),
        ("/api/./v1/risk", "host: x\r\n", 400),
        ("/api/v1/risk%00", "host: x\r\n", 400),
        ("/api/v1/risk%zz", "host: x\r\n", 400),
        (RISK, "host: x\r\ntransfer-encoding: gzip, chunked\r\n", 400),
        (&long, "host: x\r\n", 414),
        (RISK, &wide, 431),
        (RISK, &many, 431),
    ] {
        let reply = Reply::read(&exchange(address, post(target, fields).as_bytes(), QUIET).await);
        assert_eq!(reply.status, status, "{target:.40} {fields:.60}: {reply:?}");
        if status != 400 {
            let kind = if status == 414 {
                "uri-too-long"
            } else {
                "headers-too-large"
            };
            reply.problem(status, kind);
        }
    }
    assert_eq!(pair.application.calls(RISK), 0);
}

#[tokio::test]
async fn a_body_that_does_not_come_gets_408() {
    let pair = Pair::with(|callee| callee.set("limits.body_timeout", "200ms")).await;
    let address = pair
        .callee
        .inbound_url()
        .replace("http://", "")
        .parse()
        .unwrap();
    let request = format!(
        "POST {RISK} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n{{"
    );
    let reply = Reply::read(&exchange(address, request.as_bytes(), QUIET).await);
    reply.problem(408, "request-timeout");
    assert_eq!(
        sidecar_count(&pair.callee, "inbound", "request-timeout").await,
        1.0
    );
}

#[test]
fn each_fault_of_a_contract_is_named_with_its_place_and_remedy() {
    let folder = TempDir::new().unwrap();
    let mut int = fraud_detection();
    int["input_schema"]["properties"]["amount_cny"]["type"] = "int".into();
    let mut bare = fraud_detection();
    bare["input_schema"] = json!({"user_id": {"type": "string"}});
    let mut timeless = fraud_detection();
    timeless["constraints"] = json!({});
    let mut torn = fraud_detection();
    torn["version"] = "2.1.0".into();
    let cases: [(&str, &Value, &[&str]); 4] = [
        (
            "int",
            &int,
            &["/input_schema/properties/amount_cny/type", "integer"],
        ),
        ("bare", &bare, &["/input_schema", "\"properties\""]),
        ("timeless", &timeless, &["timeout_ms"]),
        ("torn", &torn, &["version", "1.0"]),
    ];
    for (name, contract, told) in cases {
        let file = folder.path().join(name).with_extension("json");
        std::fs::write(&file, contract.to_string()).unwrap();
        let mut lint = Command::new(program::hermes());
        let output = lint.args(["contract", "lint"]).arg(&file).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        for part in told {
            assert!(text.contains(part), "{name}: no {part} in\n{text}");
        }
    }
}
