//! `contract lint`, rule by rule, one file each: its verdict, its place, its three outputs.

use crate::support::contract::fraud_detection;
use crate::support::program;
use serde_json::{Value, json};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A contract of which the linter has nothing to say.
fn sound() -> Value {
    let mut contract = fraud_detection();
    contract["probe"] = json!({
        "input": {"user_id": "u", "ip_address": "127.0.0.1", "amount_cny": 1},
        "expect": {"risk_level": "low"}
    });
    contract
}

fn with(pointer: &str, value: Value) -> Value {
    let mut contract = sound();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    contract.pointer_mut(parent).unwrap()[name] = value;
    contract
}

fn without(pointer: &str) -> Value {
    let mut contract = sound();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = contract.pointer_mut(parent).unwrap();
    parent.as_object_mut().unwrap().remove(name).unwrap();
    contract
}

fn hermes(folder: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(program::hermes());
    command.args(args).current_dir(folder.path());
    command.output().unwrap()
}

fn write(folder: &TempDir, name: &str, contract: &Value) {
    let text = serde_json::to_string_pretty(contract).unwrap();
    std::fs::write(folder.path().join(name), text).unwrap();
}

/// Each file with its one finding: severity, rule and place.
fn cases() -> Vec<(
    &'static str,
    Value,
    &'static str,
    &'static str,
    &'static str,
)> {
    let two = |next: usize| {
        let reference = json!({"$ref": format!("#/$defs/d{next}")});
        json!({"anyOf": [reference.clone(), reference]})
    };
    let mut doubling: serde_json::Map<String, Value> =
        (0..22).map(|at| (format!("d{at}"), two(at + 1))).collect();
    doubling.insert("d22".into(), json!({"type": "string"}));
    let property = |name: &str| format!("/input_schema/properties/user_id/{name}");
    let (kind, pattern) = (property("type"), property("pattern"));
    let patterns: serde_json::Map<String, Value> = (0..200)
        .map(|at| (format!("^a{at}"), json!(true)))
        .collect();
    let mut closed =
        json!({"allOf": [{"properties": {"other": true}}], "additionalProperties": false});
    closed["required"] = json!(["risk_level"]);
    closed["properties"] = json!({"risk_level": true});
    vec![
        (
            "type",
            with(&kind, json!("int")),
            "error",
            "schema",
            "/input_schema/properties/user_id/type",
        ),
        (
            "timeout",
            with("/constraints/timeout_ms", json!(0)),
            "error",
            "timeout",
            "/constraints/timeout_ms",
        ),
        (
            "id",
            with("/id", json!("Fraud-v1")),
            "error",
            "id-form",
            "/id",
        ),
        (
            "version",
            with("/version", json!("1.1.0")),
            "error",
            "id-version",
            "/version",
        ),
        (
            "bare",
            with("/input_schema", json!({"a": {"type": "string"}})),
            "error",
            "bare-properties",
            "/input_schema",
        ),
        (
            "remote",
            with(
                "/output_schema/properties/a",
                json!({"$ref": "http://127.0.0.1/x"}),
            ),
            "error",
            "remote-ref",
            "/output_schema/properties/a/$ref",
        ),
        (
            "dangling",
            with("/output_schema/properties/a", json!({"$ref": "#/$defs/x"})),
            "error",
            "unresolved-ref",
            "/output_schema/properties/a/$ref",
        ),
        (
            "pattern",
            with(&pattern, json!("(a)\\1")),
            "error",
            "pattern",
            "/input_schema/properties/user_id/pattern",
        ),
        (
            "branches",
            with(
                "/input_schema",
                json!({"$ref": "#/$defs/d0", "$defs": doubling}),
            ),
            "error",
            "branches",
            "/input_schema",
        ),
        (
            "cost",
            with("/output_schema/patternProperties", Value::Object(patterns)),
            "error",
            "cost",
            "/output_schema/patternProperties",
        ),
        (
            "misspelt",
            with("/input_schema/requried", json!([])),
            "error",
            "misspelt-keyword",
            "/input_schema/requried",
        ),
        (
            "dialect",
            with(
                "/input_schema/$schema",
                json!("http://json-schema.org/draft-07/schema#"),
            ),
            "error",
            "dialect",
            "/input_schema/$schema",
        ),
        (
            "input",
            with("/probe/input", json!({"user_id": "u"})),
            "error",
            "probe-input",
            "/probe/input",
        ),
        (
            "expect",
            with("/probe/expect", json!({"risk_level": "none"})),
            "error",
            "probe-expect",
            "/probe/expect",
        ),
        (
            "fallback",
            with("/fallback", json!(["fraud-detection-v1.0"])),
            "error",
            "fallback-circle",
            "/fallback",
        ),
        (
            "oversize",
            with("/x-long", json!("a".repeat(256 * 1024))),
            "error",
            "oversize",
            "",
        ),
        (
            "integer",
            with("/x-large", json!(9_007_199_254_740_993_u64)),
            "error",
            "large-integer",
            "/x-large",
        ),
        (
            "unsigned",
            with(
                "/signatures",
                json!([{"protected": "e30", "signature": "AA"}]),
            ),
            "error",
            "signature",
            "/signatures",
        ),
        (
            "field",
            with("/idempotant", json!(true)),
            "error",
            "unknown-field",
            "/idempotant",
        ),
        (
            "required",
            without("/input_schema/required"),
            "warning",
            "no-required",
            "/input_schema",
        ),
        ("probe", without("/probe"), "warning", "no-probe", ""),
        (
            "concurrent",
            without("/constraints/max_concurrent"),
            "warning",
            "no-max-concurrent",
            "/constraints",
        ),
        (
            "format",
            with("/output_schema/properties/a", json!({"format": "date-tme"})),
            "warning",
            "unknown-format",
            "/output_schema/properties/a/format",
        ),
        (
            "keyword",
            with("/output_schema/properties/a", json!({"nullable": true})),
            "warning",
            "unknown-keyword",
            "/output_schema/properties/a/nullable",
        ),
        (
            "old",
            with("/output_schema/definitions", json!({})),
            "warning",
            "old-keyword",
            "/output_schema/definitions",
        ),
        (
            "closed",
            with("/output_schema", closed),
            "warning",
            "closed-combination",
            "/output_schema/additionalProperties",
        ),
    ]
}

#[test]
fn every_rule_finds_its_file_and_no_other() {
    let folder = TempDir::new().unwrap();
    for (name, contract, severity, rule, pointer) in cases() {
        let file = format!("{name}.json");
        write(&folder, &file, &contract);
        let output = hermes(&folder, &["contract", "lint", "-o", "json", &file]);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = told["findings"].as_array().unwrap();
        assert_eq!(findings.len(), 1, "{name}: {told}");
        let found = &findings[0];
        assert_eq!(
            (&found["severity"], &found["rule"]),
            (&json!(severity), &json!(rule)),
            "{name}"
        );
        assert_eq!(found["pointer"], pointer, "{name}");
        assert_ne!(found["remedy"], "", "{name}");
        assert_eq!(
            output.status.code(),
            Some(i32::from(severity == "error")),
            "{name}"
        );
        // The line says what the pointer names.
        let text = std::fs::read_to_string(folder.path().join(&file)).unwrap();
        let line = usize::try_from(found["line"].as_u64().unwrap()).unwrap();
        let line = text.lines().nth(line - 1).unwrap();
        let last = pointer.rsplit('/').next().unwrap();
        assert!(line.contains(last), "{name}: {line}");
    }
    write(&folder, "sound.json", &sound());
    let output = hermes(
        &folder,
        &["contract", "lint", "--profile", "strict", "sound.json"],
    );
    assert_eq!(output.status.code(), Some(0));
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(told, "0 errors, 0 warnings (profile strict)\n");
    let missing = hermes(&folder, &["contract", "lint", "nowhere.json"]);
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn a_sarif_log_holds_every_file_at_its_lines() {
    let folder = TempDir::new().unwrap();
    std::fs::create_dir(folder.path().join("con tracts")).unwrap();
    let cases = cases();
    let mut args = vec![
        "contract".to_owned(),
        "lint".into(),
        "-o".into(),
        "sarif".into(),
    ];
    for (name, contract, ..) in &cases {
        let file = format!("con tracts/{name}.json");
        write(&folder, &file, contract);
        // Named from the root: the log still names it from the folder.
        args.push(
            folder
                .path()
                .canonicalize()
                .unwrap()
                .join(&file)
                .display()
                .to_string(),
        );
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = hermes(&folder, &args);
    assert_eq!(output.status.code(), Some(1));
    let log: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(log["version"], "2.1.0");
    assert!(log["$schema"].is_string());
    let run = &log["runs"][0];
    let driver = &run["tool"]["driver"];
    assert!(driver["name"].is_string() && driver["version"].is_string());
    let rules = driver["rules"].as_array().unwrap();
    let results = run["results"].as_array().unwrap();
    for (name, _, severity, rule, _) in &cases {
        let uri = format!("con%20tracts/{name}.json");
        let place = "/locations/0/physicalLocation";
        let of = |result: &&Value| {
            let result = result.pointer(place).unwrap();
            result["artifactLocation"]["uri"] == uri && result["region"]["startLine"].is_u64()
        };
        let mut own = results.iter().filter(of);
        assert!(
            own.any(|one| one["ruleId"] == *rule && one["level"] == *severity),
            "{name}"
        );
        assert!(rules.iter().any(|known| known["id"] == *rule), "{rule}");
    }
}

#[test]
fn a_signed_contract_that_was_changed_is_an_error() {
    let folder = TempDir::new().unwrap();
    write(&folder, "c.json", &sound());
    assert!(hermes(&folder, &["keygen", "key"]).status.success());
    let signed = hermes(&folder, &["contract", "sign", "c.json", "--key", "key"]);
    assert!(signed.status.success(), "{signed:?}");
    let fine = hermes(&folder, &["contract", "lint", "c.json"]);
    assert_eq!(fine.status.code(), Some(0), "{fine:?}");
    let path = folder.path().join("c.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"high\"", "\"dangerous\"")).unwrap();
    let changed = hermes(&folder, &["contract", "lint", "c.json"]);
    assert_eq!(changed.status.code(), Some(1));
    let told = String::from_utf8(changed.stdout).unwrap();
    assert!(told.contains("error[signature]"), "{told}");
}
