//! Documents in, contracts out, and back; the world that the cases share.

mod hostile;
mod operations;
mod schemas;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::contract::guard;

/// A document with one contract whose request and reply have these schemas.
fn document(version: &str, input: Value, components: Value) -> Value {
    json!({
        "openapi": version,
        "info": {"title": "risk", "version": "1.0.3"},
        "paths": {"/risk": {"post": {
            "x-hermes": {"id": "fraud-detection-v1.0", "constraints": {"timeout_ms": 500}},
            "requestBody": {"required": true, "content": {"application/json": {"schema": input}}},
            "responses": {"200": {"description": "", "content": {"application/json": {"schema": {"type": "object", "required": ["score"]}}}}},
        }}},
        "components": {"schemas": components},
    })
}

fn bytes(document: &Value) -> Vec<u8> {
    document.to_string().into_bytes()
}

fn imported(document: &Value) -> Imported {
    let all = read(&bytes(document));
    let mut all = all.unwrap_or_else(|problems| panic!("{document:#}\n{problems}"));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn refused(document: &Value) -> Vec<(&'static str, String)> {
    let problems = read(&bytes(document)).err();
    let problems = problems.unwrap_or_else(|| panic!("accepted: {document:#}"));
    told(&problems)
}

fn told(problems: &Problems) -> Vec<(&'static str, String)> {
    let all = problems.as_slice().iter();
    all.map(|problem| (problem.rule, problem.pointer.clone()))
        .collect()
}

/// Where the schema of `document` stands.
const SCHEMA: &str = "/paths/~1risk/post/requestBody/content/application~1json/schema";

/// Converts one input schema, and tells the rules of the warnings with their places in it.
fn converted(version: &str, schema: Value) -> (Value, Vec<(&'static str, String)>) {
    let one = imported(&document(version, schema, json!({})));
    let warnings = told(&one.warnings).into_iter();
    let warnings = warnings.map(|(rule, at)| (rule, at.replace(SCHEMA, "")));
    (one.contract.input_schema, warnings.collect())
}

/// Changes one place of a sound document.
fn changed(version: &str, pointer: &str, value: Value) -> Value {
    let mut document = document(version, json!({"type": "object"}), json!({}));
    let (above, name) = pointer.rsplit_once('/').unwrap();
    document.pointer_mut(above).unwrap()[name] = value;
    document
}
