//! What this listener serves, as an OpenAPI document.

use super::Served;
use crate::contract::openapi::{Description, parameters, problem_response, responses};
use bytes::Bytes;
use serde_json::{Value, json};

/// Describes contracts, each at its route, and the paths under `/hermes/`.
pub fn describe<'a>(
    application: &str,
    contracts: impl Iterator<Item = &'a Served> + Clone,
) -> Bytes {
    let mut description = Description::new(application);
    for served in contracts.clone() {
        description.contract(&served.contract.contract, &served.method, &served.path);
    }
    let ids: Vec<&str> = contracts.map(Served::id).collect();
    for (path, method, operation) in [
        ("/hermes/health", "get", health("health", &ids)),
        ("/hermes/heartbeat", "get", health("heartbeat", &ids)),
        ("/hermes/handshake", "get", handshake(&ids)),
        ("/hermes/invoke", "post", invoke(&ids)),
        ("/hermes/calls/{call_id}", "get", call()),
        ("/hermes/openapi.json", "get", document()),
    ] {
        description.path(path, json!({method: operation}));
    }
    description.to_bytes()
}

fn asked(ids: &[&str]) -> Value {
    json!({
        "name": "agent",
        "in": "query",
        "description": "The contract that is asked about.",
        "schema": one_of(ids),
    })
}

/// The ids served here; a sidecar without contracts has none to list.
fn one_of(ids: &[&str]) -> Value {
    match ids {
        [] => json!({"type": "string"}),
        ids => json!({"type": "string", "enum": ids}),
    }
}

fn json_reply(description: &str, schema: Value) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

fn health(name: &str, ids: &[&str]) -> Value {
    let text = json!({"type": "string"});
    let agent = json!({
        "type": "object",
        "required": ["id", "version"],
        "properties": {"id": text, "version": text},
    });
    let schema = |states: Value| {
        json!({
            "type": "object",
            "required": ["status", "agents"],
            "properties": {
                "status": {"enum": states},
                "version": text,
                "reason": text,
                "agents": {"type": "array", "items": agent},
            },
        })
    };
    let states = json!(["starting", "admitting", "draining", "unhealthy"]);
    json!({
        "operationId": format!("hermes-{name}"),
        "summary": "Whether contracts are ready to be called.",
        "tags": ["hermes"],
        "parameters": [asked(ids)],
        "responses": {
            "200": json_reply("At least one of the contracts is ready.", schema(json!(["ready"]))),
            "404": problem_response(404),
            "503": json_reply("None is ready.", schema(states)),
        },
    })
}

fn handshake(ids: &[&str]) -> Value {
    let contract = json!({
        "type": "object",
        "required": ["id", "version", "input_schema", "output_schema", "constraints"],
    });
    json!({
        "operationId": "hermes-handshake",
        "summary": "A contract, as it was signed.",
        "tags": ["hermes"],
        "parameters": [asked(ids)],
        "responses": {
            "200": json_reply("The contract.", contract),
            "400": problem_response(400),
            "404": problem_response(404),
        },
    })
}

fn invoke(ids: &[&str]) -> Value {
    let required = match ids.len() {
        1 => json!(["input"]),
        _ => json!(["agent", "input"]),
    };
    let schema = json!({
        "type": "object",
        "required": required,
        "properties": {
            "agent": one_of(ids),
            "input": {"description": "What the contract's input schema accepts."},
            "context": {"type": "object", "description": "The task context; may not differ from the headers."},
        },
    });
    json!({
        "operationId": "hermes-invoke",
        "summary": "A call in a wrapper, for callers without a sidecar.",
        "tags": ["hermes"],
        "parameters": parameters(),
        "requestBody": {"required": true, "content": {"application/json": {"schema": schema}}},
        "responses": responses(json!({})),
    })
}

fn call() -> Value {
    let text = json!({"type": "string"});
    let open = json!({
        "type": "object",
        "required": ["task_id", "call_id", "state"],
        "properties": {"task_id": text, "call_id": text, "state": text},
    });
    json!({
        "operationId": "hermes-call",
        "summary": "The reply of a call that was made with Prefer: respond-async.",
        "tags": ["hermes"],
        "parameters": [
            {"name": "call_id", "in": "path", "required": true, "schema": text},
            {
                "name": "Prefer",
                "in": "header",
                "description": "wait=SECONDS: how long to wait for the end of a call that is open.",
                "schema": text,
            },
        ],
        "responses": {
            "202": json_reply("The call is open.", open),
            "404": problem_response(404),
            "409": problem_response(409),
            "default": {"description": "The reply, as the call itself would have been answered."},
        },
    })
}

fn document() -> Value {
    json!({
        "operationId": "hermes-openapi",
        "summary": "This document.",
        "tags": ["hermes"],
        "responses": {"200": json_reply("OpenAPI 3.1.", json!({"type": "object", "required": ["openapi"]}))},
    })
}
