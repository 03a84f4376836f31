//! Contracts are OpenAPI documents for whoever wants them so, and OpenAPI documents contracts.

use crate::support::application::{Answer, Application};
use crate::support::client::{client, get_text};
use crate::support::consul::Consul;
use crate::support::contract;
use crate::support::program;
use crate::support::sidecar::Sidecar;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// The official schema of OpenAPI 3.1 documents.
const OAS: &str = include_str!("openapi/oas-3.1-schema.json");

fn assert_openapi(document: &Value) {
    let schema: Value = serde_json::from_str(OAS).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let faults: Vec<_> = validator.iter_errors(document).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Collects every schema of a document with its place, but for those that only refer to another.
fn schemas<'a>(value: &'a Value, at: String, found: &mut Vec<(String, &'a Value)>) {
    let Value::Object(members) = value else {
        if let Value::Array(items) = value {
            for (index, item) in items.iter().enumerate() {
                schemas(item, format!("{at}/{index}"), found);
            }
        }
        return;
    };
    for (name, value) in members {
        let at = format!("{at}/{name}");
        match name.as_str() {
            "x-hermes" => {}
            "schema" if value.get("$ref").is_none() => found.push((at, value)),
            _ if at.starts_with("/components/schemas/") => found.push((at, value)),
            _ => schemas(value, at, found),
        }
    }
}

fn hermes(args: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(program::hermes());
    command.args(args).args(files).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn parsed(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn written(folder: &TempDir, name: &str, content: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// The worked example with definitions, which a document must not take for its own.
fn with_definitions() -> Value {
    let mut body = contract::fraud_detection();
    body["input_schema"]["properties"]["amount_cny"] = json!({"$ref": "#/$defs/amount"});
    body["input_schema"]["$defs"] = json!({"amount": {"type": "number", "minimum": 0.01}});
    body
}

#[tokio::test]
async fn the_document_of_a_sidecar_describes_what_it_serves() {
    let application = Application::start().await;
    let mut other = contract::fraud_detection();
    other["id"] = json!("fraud-rules-v1.0");
    other["input_schema"]["$id"] = json!("https://example.com/input");
    let mut same_name = other.clone();
    same_name["id"] = json!("fraud-extra-v1.0");
    let sidecar = Sidecar::named("fraud")
        .application(&application.url())
        .contract(with_definitions(), "POST", "/api/v1/risk")
        .contract(other, "PUT", "/api/v1/risk")
        .contract(same_name, "POST", "/api/v1/extra")
        .start_unready()
        .await;
    let url = format!("{}/hermes/openapi.json", sidecar.inbound_url());
    let reply = client().get(&url).send().await.unwrap();
    assert_eq!(reply.status(), 200);
    assert_eq!(reply.headers()["content-type"], "application/json");
    let length = reply.headers()["content-length"].clone();
    let document: Value = reply.json().await.unwrap();

    let head = client().head(&url).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), &head.headers()["content-length"]),
        (200, &length)
    );
    let post = client().post(&url).send().await.unwrap();
    assert_eq!(
        (post.status().as_u16(), post.headers()["allow"].as_bytes()),
        (405, &b"GET"[..])
    );

    assert_openapi(&document);
    let paths: Vec<_> = document["paths"].as_object().unwrap().keys().collect();
    let expected = [
        "/api/v1/extra",
        "/api/v1/risk",
        "/hermes/calls/{call_id}",
        "/hermes/handshake",
        "/hermes/health",
        "/hermes/heartbeat",
        "/hermes/invoke",
        "/hermes/openapi.json",
    ];
    assert_eq!(paths, expected);
    assert_eq!(
        document["info"],
        json!({"title": "fraud", "version": "1.0.0"})
    );
    assert_eq!(
        document["jsonSchemaDialect"],
        "https://json-schema.org/draft/2020-12/schema"
    );

    let operation = &document["paths"]["/api/v1/risk"]["post"];
    assert_eq!(operation["x-hermes"]["id"], "fraud-detection-v1.0");
    assert_eq!(operation["x-hermes"]["constraints"]["timeout_ms"], 500);
    assert_eq!(
        document["paths"]["/api/v1/risk"]["put"]["x-hermes"]["id"],
        "fraud-rules-v1.0"
    );

    let mut all = Vec::new();
    schemas(&document, String::new(), &mut all);
    assert!(all.len() > 20, "{all:#?}");
    let mut names = Vec::new();
    for (at, schema) in &all {
        let compiled = jsonschema::options().offline().build(schema);
        assert!(compiled.is_ok(), "{at}: {:?}", compiled.err());
        names.extend(schema.get("$id"));
    }
    let count = names.len();
    names.sort_by_key(|name| name.as_str());
    names.dedup();
    assert_eq!((count, names.len()), (6, 6), "{names:?}");

    // What is called at the route is checked as the document says.
    let input = &operation["requestBody"]["content"]["application/json"]["schema"];
    let input = jsonschema::options().offline().build(input).unwrap();
    assert!(input.is_valid(&contract::fraud_input()));
    let mut bad = contract::fraud_input();
    bad["amount_cny"] = json!(0);
    assert!(!input.is_valid(&bad));
}

#[tokio::test]
async fn a_contract_comes_back_from_the_document_that_is_served() {
    let application = Application::start().await;
    let mut body = with_definitions();
    body["idempotent"] = json!(true);
    body["probe"] = json!({"input": contract::fraud_input()});
    let sidecar = Sidecar::named("fraud")
        .application(&application.url())
        .contract(body.clone(), "POST", "/api/v1/risk")
        .start_unready()
        .await;
    let document = get_text(&format!("{}/hermes/openapi.json", sidecar.inbound_url())).await;
    let folder = TempDir::new().unwrap();
    let file = written(&folder, "openapi.json", &document);

    let output = hermes(&["contract", "openapi"], &[&file]);
    assert_eq!(parsed(&output), body);
    let told = text(&output.stderr);
    assert!(
        told.contains("fraud-detection-v1.0 is at POST /api/v1/risk"),
        "{told}"
    );
    assert!(!told.contains("warning"), "{told}");
    let list = hermes(&["contract", "openapi", "-o", "json"], &[&file]);
    assert_eq!(parsed(&list), json!([body]));
    let lint = parsed(&hermes(&["contract", "lint", "-o", "json"], &[&file]));
    assert_eq!(
        (&lint["errors"], &lint["findings"]),
        (&json!(0), &json!([])),
        "{lint:#}"
    );
}

#[test]
fn a_contract_file_becomes_a_document_and_a_contract_again() {
    let folder = TempDir::new().unwrap();
    let one = written(&folder, "one.json", &with_definitions().to_string());
    let mut other = contract::fraud_detection();
    other["id"] = json!("fraud-rules-v1.0");
    let other = written(&folder, "other.json", &other.to_string());

    let document = parsed(&hermes(&["contract", "openapi"], &[&one, &other]));
    assert_openapi(&document);
    let paths: Vec<_> = document["paths"].as_object().unwrap().keys().collect();
    let expected = [
        "/hermes/agents/fraud-detection-v1.0",
        "/hermes/agents/fraud-rules-v1.0",
    ];
    assert_eq!(paths, expected);
    let both = written(&folder, "both.json", &document.to_string());
    let back = hermes(&["contract", "openapi"], &[&both]);
    assert_eq!(back.status.code(), Some(0));
    let back = serde_json::Deserializer::from_slice(&back.stdout).into_iter::<Value>();
    let ids: Vec<_> = back
        .map(|contract| contract.unwrap()["id"].clone())
        .collect();
    assert_eq!(ids, ["fraud-detection-v1.0", "fraud-rules-v1.0"]);

    let args = [
        "contract",
        "openapi",
        "--method",
        "put",
        "--path",
        "/api/v1/risk",
    ];
    let document = parsed(&hermes(&args, &[&one]));
    assert_openapi(&document);
    assert_eq!(
        document["paths"]["/api/v1/risk"]["put"]["operationId"],
        "fraud-detection-v1.0"
    );

    for (args, files) in [
        (&args[..], vec![&*one, &*other]),
        (&args[..2], vec![&*one, &*both]),
        (&args[..2], vec![&*one, &*one]),
        (&["contract", "openapi", "--path", "risk"], vec![&*one]),
        (&args[..2], vec![Path::new("/nowhere/openapi.json")]),
        (&args[..2], vec![]),
    ] {
        let output = hermes(args, &files);
        assert_eq!(output.status.code(), Some(2), "{args:?} {files:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

/// What a web framework writes, with the one addition.
const FRAMEWORK: &str = r##"{
  "openapi": "3.0.2",
  "info": {"title": "Risk", "version": "1.0.4"},
  "paths": {
    "/live": {"get": {"responses": {"200": {"description": "ok"}}}},
    "/risk": {"post": {
      "summary": "Score Risk", "operationId": "score_risk_risk_post",
      "x-hermes": {"id": "fraud-detection-v1.0", "constraints": {"timeout_ms": 300, "max_concurrent": 8}},
      "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Input"}}}},
      "responses": {
        "200": {"description": "Score", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Output"}}}},
        "422": {"description": "Error", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
      }
    }}
  },
  "components": {"schemas": {
    "Input": {"title": "Input", "type": "object", "required": ["user_id", "amount"], "properties": {
      "user_id": {"type": "string", "format": "uuid"},
      "amount": {"type": "number", "minimum": 0, "exclusiveMinimum": true},
      "note": {"type": "string", "nullable": true},
      "count": {"type": "integer", "format": "int32"},
      "parent": {"$ref": "#/components/schemas/Input"}
    }},
    "Output": {"type": "object", "required": ["level"], "properties": {"level": {"$ref": "#/components/schemas/Level"}}},
    "Level": {"type": "string", "enum": ["low", "high"]},
    "Error": {"type": "object", "properties": {"detail": {"type": "string", "maximum": 9223372036854775807}}}
  }}
}"##;

#[test]
fn the_document_of_a_framework_becomes_a_contract() {
    let folder = TempDir::new().unwrap();
    let file = written(&folder, "openapi.json", FRAMEWORK);
    let output = hermes(&["contract", "openapi"], &[&file]);
    let told = text(&output.stderr);
    assert!(
        told.contains("/components/schemas/Input/properties/count/format"),
        "{told}"
    );
    let contract = parsed(&output);
    assert_eq!(
        contract,
        json!({
            "id": "fraud-detection-v1.0",
            "version": "1.0.4",
            "description": "Score Risk",
            "constraints": {"timeout_ms": 300, "max_concurrent": 8},
            "input_schema": {
                "title": "Input", "type": "object", "required": ["user_id", "amount"],
                "properties": {
                    "user_id": {"type": "string", "format": "uuid"},
                    "amount": {"type": "number", "exclusiveMinimum": 0},
                    "note": {"type": ["string", "null"]},
                    "count": {"type": "integer", "format": "int32"},
                    "parent": {"$ref": "#"},
                },
            },
            "output_schema": {
                "type": "object", "required": ["level"],
                "properties": {"level": {"$ref": "#/$defs/Level"}},
                "$defs": {"Level": {"type": "string", "enum": ["low", "high"]}},
            },
        })
    );
    let lint = parsed(&hermes(&["contract", "lint", "-o", "json"], &[&file]));
    let rules: Vec<_> = lint["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| &f["rule"])
        .collect();
    assert_eq!(rules, ["unchecked-format", "no-probe"], "{lint:#}");
}

#[tokio::test]
async fn a_sidecar_serves_the_contract_of_a_document_that_its_route_names() {
    let application = Application::start().await;
    application.answer("/risk", Answer::json(&json!({"level": "low"})));
    let mut document: Value = serde_json::from_str(FRAMEWORK).unwrap();
    let mut other = document["paths"]["/risk"].clone();
    other["post"]["x-hermes"] = json!({"id": "fraud-other-v1.0"});
    document["paths"]["/other"] = other;
    let folder = TempDir::new().unwrap();
    let file = written(&folder, "openapi.json", &document.to_string());
    let mut entry = toml::Table::new();
    for (key, value) in [
        ("file", file.to_str().unwrap()),
        ("method", "POST"),
        ("path", "/risk"),
    ] {
        entry.insert(key.to_owned(), value.into());
    }
    let consul = Consul::start().await;
    let sidecar = Sidecar::named("fraud")
        .application(&application.url())
        .set("application.contract", vec![entry])
        .consul(&consul.address())
        .start()
        .await;
    let call = async |input: Value| {
        let url = format!("{}/risk", sidecar.inbound_url());
        let reply = client().post(url).json(&input).send().await.unwrap();
        reply.status().as_u16()
    };
    let id = "0b9ac3a4-4b1c-4ee5-a82a-9d3ae38a4ec0";
    assert_eq!(
        call(json!({"user_id": id, "amount": 1, "note": null})).await,
        200
    );
    assert_eq!(call(json!({"user_id": id, "amount": 0})).await, 400);
    let log = sidecar.log();
    assert!(log.contains("[unchecked-format]"), "{log}");
}

#[test]
fn hostile_documents_are_refused_with_one_line_each() {
    let folder = TempDir::new().unwrap();
    let with_input = |input: &str| {
        FRAMEWORK.replace(
            r##"{"$ref": "#/components/schemas/Input"}}}}"##,
            &format!("{input}}}}}}}"),
        )
    };
    let deep = |levels: usize| {
        let (open, close) = (r#"{"items":"#.repeat(levels), "}".repeat(levels));
        format!("{open}{{}}{close}")
    };
    let huge = FRAMEWORK.replace("Score Risk", &"x".repeat(1 << 20));
    let twice = FRAMEWORK.replace(r#""/live": {"#, r#""/risk": {"#);
    for (name, document, rule) in [
        ("deep", with_input(&deep(80)), "[json]"),
        ("deeper", with_input(&deep(100_000)), "[json]"),
        ("huge", huge, "[oversize]"),
        ("twice", twice, "[json]"),
        (
            "remote",
            with_input(r#"{"items": {"$ref": "http://127.0.0.1:1/x.json"}}"#),
            "[remote-ref]",
        ),
        (
            "file",
            with_input(r#"{"items": {"$ref": "file:///etc/hostname"}}"#),
            "[remote-ref]",
        ),
        (
            "lost",
            with_input(r##"{"items": {"$ref": "#/components/schemas/None"}}"##),
            "[unresolved-ref]",
        ),
        (
            "circle",
            FRAMEWORK.replace(
                r#"{"type": "string", "enum": ["low", "high"]}"#,
                r##"{"$ref": "#/components/schemas/Level"}"##,
            ),
            "",
        ),
        (
            "old",
            FRAMEWORK.replace("3.0.2", "2.0.0"),
            "[openapi-version]",
        ),
        ("yaml", "openapi: 3.1.0\n".to_owned(), "[json]"),
        (
            "unmarked",
            FRAMEWORK.replace("x-hermes", "x-other"),
            "[no-contract]",
        ),
    ] {
        let file = written(&folder, &format!("{name}.json"), &document);
        let output = hermes(&["contract", "openapi"], &[&file]);
        let told = text(&output.stderr);
        if rule.is_empty() {
            // A definition that is itself says nothing; it is no fault of the document's form.
            assert_eq!(
                parsed(&output)["output_schema"]["$defs"]["Level"],
                json!({"$ref": "#/$defs/Level"})
            );
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{name}: {told}");
        assert!(output.stdout.is_empty(), "{name}");
        assert!(told.contains(rule), "{name}: {told}");
    }
}
