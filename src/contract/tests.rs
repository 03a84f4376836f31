//! Contracts from bytes to digests.

use std::sync::Arc;

use serde_json::json;

use super::*;

/// The fraud contract the examples use, laid out by hand: the digest must not care.
const FRAUD: &str = r#"{
  "version": "1.0.0", "id": "fraud-detection-v1.0",
  "description": "rule-based fraud risk score",
  "input_schema": {
    "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
    "properties": {
      "user_id": {"type": "string", "minLength": 1},
      "ip_address": {"type": "string", "format": "ipv4"},
      "amount_cny": {"type": "number", "minimum": 1.0e-2},
      "device_fingerprint": {"type": "string", "maxLength": 64}},
    "required": ["user_id", "ip_address", "amount_cny"]},
  "output_schema": {"type": "object",
    "properties": {"risk_score": {"type": "number", "minimum": 0, "maximum": 100.0}},
    "required": ["risk_score"]},
  "constraints": {"timeout_ms": 500, "region_support": ["cn-east-1"], "utc_offsets": ["+08:00"]},
  "tags": ["team-finance", "env-prod"],
  "fallback": ["fraud-rules-v1.0"], "compensate": "fraud-undo-v1.0",
  "probe": {"input": {"user_id": "u", "ip_address": "127.0.0.1", "amount_cny": 1}},
  "signatures": [{"protected": "e30", "signature": "AA"}],
  "x-owner": "finance"
}"#;

fn fraud() -> Contract {
    Contract::from_slice(FRAUD.as_bytes()).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn every_field_is_read_and_defaults_are_filled_in() {
    let contract = fraud();
    assert_eq!(contract.id.family(), "fraud-detection");
    assert_eq!(contract.version, Version::new(1, 0, 0));
    assert_eq!(contract.description, "rule-based fraud risk score");
    assert_eq!(contract.constraints.timeout, Duration::from_millis(500));
    assert_eq!(contract.constraints.region_support, ["cn-east-1"]);
    assert_eq!(contract.constraints.utc_offsets, ["+08:00"]);
    assert_eq!(contract.constraints.max_concurrent.get(), 1_024);
    assert_eq!(contract.tags, ["team-finance", "env-prod"]);
    assert!(!contract.idempotent);
    assert_eq!(contract.max_retries, 2);
    assert_eq!(contract.fallback, ["fraud-rules-v1.0".parse().unwrap()]);
    assert_eq!(
        contract.compensate,
        Some("fraud-undo-v1.0".parse().unwrap())
    );
    let probe = contract.probe.as_ref().unwrap();
    assert_eq!(
        (probe.calls, probe.concurrency, probe.timeout),
        (8, 1, None)
    );
    assert_eq!(contract.signatures.len(), 1);
    assert_eq!(contract.extensions["x-owner"], "finance");
    assert_eq!(contract.body(), FRAUD);
}

#[test]
fn the_digest_covers_the_canonical_form_without_signatures() {
    let contract = fraud();
    let canonical = std::str::from_utf8(contract.canonical()).unwrap();
    assert!(canonical.starts_with(r#"{"compensate":"fraud-undo-v1.0","constraints":{"region"#));
    assert!(canonical.contains(r#""amount_cny":{"minimum":0.01,"type":"number"}"#));
    assert!(!canonical.contains("signatures"));
    assert_eq!(contract.digest(), Digest::of(canonical.as_bytes()));

    let mut same: Value = serde_json::from_str(FRAUD).unwrap();
    same["signatures"] = json!([]);
    let same = Contract::from_slice(same.to_string().as_bytes()).unwrap();
    assert_eq!(same.digest(), contract.digest());

    let mut other: Value = serde_json::from_str(FRAUD).unwrap();
    other["description"] = json!("rule-based fraud risk score!");
    let other = Contract::from_slice(other.to_string().as_bytes()).unwrap();
    assert_ne!(other.digest(), contract.digest());
}

#[test]
fn a_hash_in_a_handshake_is_left_out() {
    let mut reply: Value = serde_json::from_str(FRAUD).unwrap();
    reply["signature"] = json!("0123456789abcdef");
    let reply = reply.to_string();
    assert!(Contract::from_slice(reply.as_bytes()).is_err());
    let (contract, had_hash) = Contract::from_handshake(reply.as_bytes()).unwrap();
    assert!(had_hash);
    assert_eq!(contract.digest(), fraud().digest());
    let again = Contract::from_slice(contract.body()).unwrap();
    assert_eq!(again.digest(), fraud().digest());

    let (contract, had_hash) = Contract::from_handshake(FRAUD.as_bytes()).unwrap();
    assert!(!had_hash);
    assert_eq!(contract.body(), FRAUD);
}

#[test]
fn every_fault_is_told_at_once() {
    let body = json!({
        "id": "Fraud",
        "version": "one",
        "input_schema": 7,
        "constraints": {"timeout_ms": -1, "max_concurrent": "x"},
        "tags": [""],
        "idempotent": "yes",
        "retry_policy": [],
        "fallback": ["-"],
        "probe": {"concurrency": 9},
        "signatures": ["x"],
        "more": 1,
    });
    let problems = Contract::from_slice(body.to_string().as_bytes()).unwrap_err();
    let mut places: Vec<_> = problems
        .as_slice()
        .iter()
        .map(|problem| problem.pointer.as_str())
        .collect();
    places.sort_unstable();
    assert_eq!(
        places,
        [
            "/constraints/max_concurrent",
            "/constraints/timeout_ms",
            "/fallback",
            "/id",
            "/idempotent",
            "/input_schema",
            "/more",
            "/output_schema",
            "/probe/concurrency",
            "/probe/input",
            "/retry_policy",
            "/signatures",
            "/tags",
            "/version",
        ]
    );
}

#[test]
fn a_document_made_of_faults_is_told_within_bounds() {
    let members: Map<String, Value> = (0..5_000).map(|at| (format!("f{at}"), json!(1))).collect();
    let body = Value::Object(members).to_string();
    let problems = Contract::from_slice(body.as_bytes()).unwrap_err();
    assert_eq!(problems.as_slice().len(), 256);
}

#[test]
fn one_compiled_form_is_shared() {
    let cache = Cache::new();
    let contract = fraud();
    let key = (&contract.id, &contract.version, contract.digest());
    assert!(cache.get(key.0, key.1, key.2).is_none());
    let first = cache.compiled(&contract).unwrap();
    assert!(Arc::ptr_eq(&first, &cache.compiled(&contract).unwrap()));
    assert!(Arc::ptr_eq(
        &first,
        &cache.get(key.0, key.1, key.2).unwrap()
    ));

    let body = br#"{"user_id":"u","ip_address":"999.1.1.1","amount_cny":1}"#;
    let document = guard::parse(body, &guard::Limits::default()).unwrap();
    let violations = first.input.check(&document).unwrap_err();
    assert_eq!(violations.as_slice()[0].instance, "/ip_address");
}

#[test]
fn faults_of_both_schemas_are_placed_in_the_contract() {
    let mut body: Value = serde_json::from_str(FRAUD).unwrap();
    body["input_schema"]["type"] = json!("dict");
    body["output_schema"]["requird"] = json!([]);
    let contract = Contract::from_slice(body.to_string().as_bytes()).unwrap();
    let problems = Cache::new().compiled(&contract).unwrap_err();
    let places: Vec<_> = problems
        .as_slice()
        .iter()
        .map(|problem| (problem.rule, problem.pointer.as_str()))
        .collect();
    assert_eq!(
        places,
        [
            ("schema", "/input_schema/type"),
            ("misspelt-keyword", "/output_schema/requird"),
        ]
    );
}
