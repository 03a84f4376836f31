//! Contracts that say less, fetch more or cost more than their authors think.

use super::message::{GOOD, json, post};
use super::wire::{WITHIN, ask};
use super::world::{INVOKE, Inside, Outside, at, order_contract};
use crate::support::client::{client, get_text};
use crate::support::collector::Collector;
use crate::support::program;
use crate::support::sidecar::Sidecar;
use serde_json::{Value, json as value};
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What `contract lint` says of a contract, and with which code it ends.
fn lint(contract: &Value) -> (Option<i32>, Value) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("contract.json");
    std::fs::write(&file, contract.to_string()).unwrap();
    let mut lint = Command::new(program::hermes());
    lint.args(["contract", "lint", "-o", "json"]).arg(&file);
    let output = lint.output().unwrap();
    let told = serde_json::from_slice(&output.stdout);
    (output.status.code(), told.unwrap())
}

/// Starts a sidecar with a contract that it must refuse, and returns what it says.
async fn refused_at_start(contract: Value) -> String {
    let setup = Sidecar::named("refused").contract(contract, "POST", INVOKE);
    let mut sidecar = setup.application("http://127.0.0.1:9").launch();
    let status = sidecar.process().ended(WITHIN).await;
    assert_eq!(status.code(), Some(2), "{}", sidecar.log());
    sidecar.log()
}

fn with_input(input: Value) -> Value {
    let mut contract = order_contract();
    contract["input_schema"] = input;
    contract
}

/// Formats are asserted, the same on both sides; the linter names those it knows and any other.
pub async fn a_format_is_checked_or_named_by_the_linter() -> String {
    let mut formats = with_input(value!({"type": "object", "properties": {
        "due": {"format": "date-time"}, "id": {"format": "uuid"},
        "host": {"format": "ipv4"}, "mail": {"format": "email"}
    }}));
    formats["id"] = "order-formats-v1.0".into();
    let inside = Inside::with(|setup| setup.contract(formats.clone(), "POST", "/formats"));
    let (inside, outside) = tokio::join!(inside, Outside::start());
    inside.application.answer("/formats", json("{}"));
    let cases = [
        ("due", "tomorrow", false),
        ("due", "2024-02-30T00:00:00Z", false),
        ("due", "2024-12-31T23:59:60Z", true),
        ("due", "2024-12-31T23:58:60Z", false),
        ("id", "2EB8AA08-AA98-11EA-B4AA-73B441D16380", true),
        ("id", "2eb8aa08-aa98-11ea-b4aa73b441d16380", false),
        ("host", "127.1", false),
        ("host", "127.0.0.1", true),
        ("mail", "\"joe bloggs\"@example.com", true),
        ("mail", "joe", false),
    ];
    for (name, text, is_valid) in cases {
        let body = value!({name: text}).to_string();
        let reply = ask(&inside.address, post("/formats", "", &body)).await;
        match is_valid {
            true => assert_eq!(reply.status, 200, "{body}: {reply:?}"),
            false => {
                let problem = reply.problem(400, "input-invalid");
                assert_eq!(problem["errors"][0]["instance"], format!("/{name}"));
            }
        }
        if name == "due" {
            let order = value!({"order_ref": "A", "qty": 1, "due": text}).to_string();
            let reply = ask(&outside.address, post(&at(INVOKE), "", &order)).await;
            assert_eq!(reply.status, if is_valid { 200 } else { 400 }, "{order}");
        }
    }
    formats["input_schema"]["properties"]["due"]["format"] = "date-tme".into();
    let (code, told) = lint(&formats);
    let mut findings = told["findings"].as_array().unwrap().iter();
    let unknown = findings.find(|finding| finding["rule"] == "unknown-format");
    let remedy = unknown.unwrap()["remedy"].as_str().unwrap();
    assert!(remedy.contains("\"date-time\""), "{remedy}");
    let known = told["formats"].as_array().unwrap().len();
    format!(
        "{} texts judged alike on both sides, {known} formats named, an unknown one warned of ({code:?})",
        cases.len()
    )
}

/// A reference that leads outside is refused by name, and nothing connects anywhere.
pub async fn no_schema_makes_the_sidecar_fetch() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let here = format!("http://{}", listener.local_addr().unwrap());
    let references = [
        value!({"$ref": format!("{here}/v1/agent/self")}),
        value!({"$ref": "http://169.254.169.254/x"}),
        value!({"$ref": "file:///etc/hostname"}),
        value!({"$id": format!("{here}/base/"), "$ref": "relative.json"}),
        value!({"$id": format!("{here}/base/"), "properties": {"a": {"$ref": "../other#/$defs/b"}}}),
        value!({"$dynamicRef": format!("{here}/schema#anchor")}),
        value!({"$schema": format!("{here}/dialect")}),
        value!({"allOf": [{"$schema": format!("{here}/dialect"), "$id": "inner"}]}),
    ];
    for schema in &references {
        let mut contract = with_input(schema.clone());
        contract["input_schema"]["required"] = value!(["order_ref"]);
        let (code, told) = lint(&contract);
        assert_eq!(code, Some(1), "{schema}: {told}");
        let findings = told["findings"].as_array().unwrap().iter();
        let errors: Vec<&Value> = findings.filter(|one| one["severity"] == "error").collect();
        let named = |error: &&Value| {
            let rule = error["rule"].as_str().unwrap();
            ["remote-ref", "dialect"].contains(&rule) && error["line"].is_u64()
        };
        assert!(errors.iter().any(|error| named(error)), "{schema}: {told}");
        let log = refused_at_start(contract).await;
        assert!(
            log.contains("remote-ref") || log.contains("dialect"),
            "{log}"
        );
    }
    let connected = listener.accept().map(|_| ());
    assert!(
        connected.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
        "somebody connected"
    );
    format!(
        "{} references refused by name at lint and start, 0 connections",
        references.len()
    )
}

/// What a schema may cost is bounded when it is read or, if that cannot be seen, at each check;
/// others are served meanwhile.
pub async fn no_schema_keeps_the_sidecar_busy() -> String {
    let doubling = {
        let two = |next: usize| {
            let reference = value!({"$ref": format!("#/$defs/d{next}")});
            value!({"anyOf": [reference.clone(), reference]})
        };
        let mut all: serde_json::Map<String, Value> =
            (0..22).map(|at| (format!("d{at}"), two(at + 1))).collect();
        all.insert("d22".into(), value!({"type": "string"}));
        value!({"$ref": "#/$defs/d0", "$defs": all})
    };
    let patterns: serde_json::Map<String, Value> = (0..1000)
        .map(|at| (format!("^x{at}"), value!(true)))
        .collect();
    for (schema, rule) in [
        (doubling, "branches"),
        (
            value!({"type": "object", "patternProperties": patterns}),
            "cost",
        ),
    ] {
        let (code, told) = lint(&with_input(schema));
        assert_eq!(code, Some(1), "{told}");
        assert!(told.to_string().contains(rule), "{told}");
    }

    // Accepted, since bodies of their usual size cost little.
    let mut nested = value!({"unevaluatedProperties": {"type": "integer"}});
    for _ in 0..12 {
        nested = value!({"allOf": [nested], "unevaluatedProperties": {"type": "integer"}});
    }
    let unique = value!({"properties": {"n": {"allOf": vec![value!({"uniqueItems": true}); 100]}}});
    let contract = |name: &str, schema: Value| {
        let mut contract = with_input(schema);
        contract["id"] = name.into();
        contract
    };
    let world = Inside::with(|setup| {
        setup
            .contract(contract("cost-nested-v1.0", nested), "POST", "/nested")
            .contract(contract("cost-unique-v1.0", unique), "POST", "/unique")
    })
    .await;
    for path in ["/nested", "/unique"] {
        world.application.answer(path, json("{}"));
        let reply = ask(&world.address, post(path, "", r#"{"a":1}"#)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let members: Vec<_> = (0..1000).map(|at| format!("\"m{at}\":1")).collect();
    let numbers: Vec<_> = (0..20_000).map(|number| number.to_string()).collect();
    let bodies = [
        ("/nested", format!("{{{}}}", members.join(","))),
        ("/unique", format!("{{\"n\":[{}]}}", numbers.join(","))),
    ];
    let mut callers = JoinSet::new();
    for (path, body) in bodies.iter().cycle().take(16) {
        let (address, request) = (world.address.clone(), post(path, "", body));
        callers.spawn(async move { ask(&address, request).await });
    }
    // Meanwhile the others are served.
    let (client, health) = (
        client(),
        format!("{}/hermes/health", world.sidecar.inbound_url()),
    );
    let mut longest = Duration::ZERO;
    while !callers.is_empty() {
        let began = Instant::now();
        assert!(
            client
                .get(&health)
                .send()
                .await
                .unwrap()
                .status()
                .is_success()
        );
        longest = longest.max(began.elapsed());
        while let Some(reply) = callers.try_join_next() {
            let problem = reply.unwrap().problem(400, "input-invalid");
            let told = problem["errors"][0]["message"].as_str().unwrap();
            assert!(told.contains("too much work"), "{problem}");
        }
    }
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    "2 schemas refused at load; 16 dear bodies at once refused within their bound, others served meanwhile"
        .to_owned()
}

/// What weakens a schema without a word is an error or a warning, and what is valid is applied.
pub async fn a_schema_that_says_less_is_told_of() -> String {
    let object = |more: Value| {
        let mut schema = value!({
            "type": "object",
            "properties": {"order_ref": {"type": "string"}},
            "required": ["order_ref"]
        });
        let members = schema.as_object_mut().unwrap();
        members.extend(more.as_object().unwrap().clone());
        schema
    };
    let reference = value!({"properties": {"order_ref": {"$ref": "#/$defs/a"}}});
    let cases = [
        (
            object(value!({"requried": ["qty"]})),
            "error",
            "misspelt-keyword",
        ),
        (
            object(value!({"properties": {"qty": {"type": "int"}}})),
            "error",
            "schema",
        ),
        (
            object(value!({"definitions": {"a": {}}, "properties": reference["properties"]})),
            "error",
            "unresolved-ref",
        ),
        (
            object(value!({"definitions": {"a": {}}})),
            "warning",
            "old-keyword",
        ),
        (
            object(value!({"properties": {"list": {"items": [{"type": "string"}]}}})),
            "error",
            "schema",
        ),
        (
            object(value!({"$schema": "http://json-schema.org/draft-07/schema#"})),
            "error",
            "dialect",
        ),
        (object(reference), "error", "unresolved-ref"),
        (
            object(value!({"allOf": [{"properties": {"b": {}}}], "additionalProperties": false})),
            "warning",
            "closed-combination",
        ),
        (
            object(value!({"quantity": 1})),
            "warning",
            "unknown-keyword",
        ),
        (value!({}), "warning", "no-required"),
        (value!(true), "warning", "no-required"),
        (
            value!({"order_ref": {"type": "string"}}),
            "error",
            "bare-properties",
        ),
    ];
    for (schema, severity, rule) in &cases {
        let contract = with_input(schema.clone());
        let (code, told) = lint(&contract);
        let mut findings = told["findings"].as_array().unwrap().iter();
        let found = findings.any(|one| one["severity"] == *severity && one["rule"] == *rule);
        assert!(found, "{rule}: {told}");
        assert_eq!(code, Some(i32::from(*severity == "error")), "{told}");
        if *severity == "error" {
            let log = refused_at_start(contract).await;
            assert!(log.contains(rule), "{log}");
        }
    }
    // No `$schema` is draft 2020-12, in which what stands beside a `$ref` counts too.
    let mut beside = with_input(object(value!({
        "properties": {"order_ref": {"$ref": "#/$defs/text", "maxLength": 3}},
        "$defs": {"text": {"type": "string"}}
    })));
    beside["id"] = "order-beside-v1.0".into();
    let world = Inside::with(|setup| setup.contract(beside, "POST", "/beside")).await;
    world.application.answer("/beside", json("{}"));
    for (text, status) in [("\"abc\"", 200), ("\"abcd\"", 400), ("1", 400)] {
        let body = format!("{{\"order_ref\":{text}}}");
        let reply = ask(&world.address, post("/beside", "", &body)).await;
        assert_eq!(reply.status, status, "{body}");
    }
    format!(
        "{} schemas told of by their rule, those with errors not taken at start",
        cases.len()
    )
}

/// A refused body is told by places and rules: no value of it in reply, log, report or metrics.
pub async fn no_value_leaves_with_an_error() -> String {
    let collector = Collector::start().await;
    let mut choice = with_input(value!({
        "type": "object",
        "properties": {"of": {"enum": (0..5000).map(|at| format!("o{at}")).collect::<Vec<_>>()}},
        "required": ["of"]
    }));
    choice["id"] = "order-choice-v1.0".into();
    let url = collector.url();
    let world = Inside::with(|setup| {
        setup
            .collector(&url)
            .set("limits.max_body_bytes", 4 << 20)
            .contract(choice, "POST", "/choice")
    })
    .await;
    let secret = "4000-0000-0000-0002";
    let long = format!("{secret}{}", "9".repeat(2 << 20));
    let many: String = (0..500)
        .map(|at| format!(",\"m{at}\":\"{secret}\""))
        .collect();
    let order = |more: &str| GOOD.replacen('}', more, 1);
    let cases = [
        ("card", INVOKE, order(&format!(",\"card\":\"{secret}\"}}"))),
        (
            "unknown",
            INVOKE,
            order(&format!(",\"api_token\":\"{secret}\"}}")),
        ),
        ("many", INVOKE, order(&format!("{many}}}"))),
        ("long", INVOKE, order(&format!(",\"card\":\"{long}\"}}"))),
        (
            "type",
            INVOKE,
            format!("{{\"order_ref\":\"A\",\"qty\":\"{secret}\"}}"),
        ),
        ("enum", "/choice", format!("{{\"of\":\"{secret}\"}}")),
        (
            "name",
            INVOKE,
            order(&format!(",\"{}{secret}\":1}}", "n".repeat(100))),
        ),
    ];
    for (name, target, body) in &cases {
        let task = format!("t-secret-{name}");
        let fields = format!("Hermes-Task-Id: {task}\r\n");
        let problem = ask(&world.address, post(target, &fields, body)).await;
        let problem = problem.problem(400, "input-invalid");
        let errors = problem["errors"].as_array().unwrap();
        assert!((1..=20).contains(&errors.len()), "{problem}");
        for error in errors {
            let has = |member: &str| error[member].is_string();
            assert!(
                has("instance") && has("schema") && has("message"),
                "{error}"
            );
        }
        let text = problem.to_string();
        assert!(!text.contains(secret), "{text}");
        assert!(text.len() < 8 << 10, "{} bytes", text.len());
        let told = collector
            .wait_task(&task, "failed_validation", WITHIN)
            .await;
        let told = told.to_string();
        assert!(!told.contains(secret) && told.len() < 16 << 10, "{told}");
    }
    assert!(world.application.news().is_empty());
    let metrics = get_text(&format!("{}/metrics", world.sidecar.admin_url())).await;
    for (place, text) in [
        ("log", world.sidecar.log()),
        ("collector's log", collector.log()),
        ("metrics", metrics),
    ] {
        assert!(
            !text.contains(secret) && !text.contains("api_token"),
            "{place}: {text}"
        );
    }
    format!(
        "{} bodies refused by place and rule; their values in none of reply, log, report, metrics",
        cases.len()
    )
}
