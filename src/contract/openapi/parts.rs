//! What every operation of a sidecar has in common: context headers and problem bodies.

use std::collections::BTreeMap;

use http::HeaderName;
use serde_json::{Map, Value, json};

use crate::{
    context::header,
    task::{Problem, State},
};

/// The grammar of ids on the wire.
const ID: &str = "^[A-Za-z0-9._:~-]{1,128}$";

/// Answers whether a header is one that sidecars write themselves.
pub fn is_known_header(name: &str) -> bool {
    let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
        return false;
    };
    let standard = [
        header::CONTENT_DIGEST,
        header::IDEMPOTENCY_KEY,
        header::TRACEPARENT,
        header::TRACESTATE,
    ];
    name.as_str().starts_with(header::PREFIX) || standard.contains(&name)
}

/// The request headers of a call: name, schema, what it says.
fn headers() -> Vec<(&'static str, Value, &'static str)> {
    let id = || json!({"type": "string", "pattern": ID});
    let text = || json!({"type": "string"});
    let levels = json!({"enum": ["P0", "P1", "P2", "P3"], "default": "P2"});
    vec![
        (
            "Hermes-Task-Id",
            id(),
            "The task the call belongs to; minted where it is absent.",
        ),
        (
            "Hermes-Step-Id",
            id(),
            "The caller's step; minted where it is absent.",
        ),
        ("Hermes-Call-Id", id(), "This call, over all its attempts."),
        (
            "Hermes-Attempt",
            json!({"type": "integer", "minimum": 1}),
            "Which attempt of the call this is.",
        ),
        (
            "Hermes-Agent",
            text(),
            "The contract meant, ID or ID@VERSION, where several share a route.",
        ),
        ("Hermes-Application", text(), "The calling application."),
        ("Hermes-Trace-Id", id(), "The caller's own trace id."),
        ("Hermes-Sla-Level", levels, "How urgent the task is."),
        ("Hermes-Requester", text(), "Who asked first."),
        ("Hermes-Scenario", text(), "The business scene."),
        ("Hermes-Region", text(), "The region the call is for."),
        (
            "Hermes-Utc-Offset",
            json!({"type": "string", "examples": ["\"+08:00\""]}),
            "The offset the call is for.",
        ),
        (
            "Hermes-Deadline-Ms",
            json!({"type": "integer", "minimum": 0}),
            "The time left, in milliseconds.",
        ),
        (
            "Idempotency-Key",
            text(),
            "Names the work, so that it is not done twice.",
        ),
        (
            "Content-Digest",
            text(),
            "SHA-256 of the body (RFC 9530); a wrong one is refused.",
        ),
        ("traceparent", text(), "W3C trace context."),
        ("tracestate", text(), "W3C trace context."),
    ]
}

/// The response headers of a call.
fn reply_headers() -> Vec<(&'static str, Value, &'static str)> {
    let states: Vec<_> = State::ALL.iter().filter(|state| state.is_end()).collect();
    vec![
        (
            "Hermes-Task-Id",
            json!({"type": "string", "pattern": ID}),
            "The task the call belonged to.",
        ),
        (
            "Hermes-Call-Id",
            json!({"type": "string", "pattern": ID}),
            "The call.",
        ),
        (
            "Hermes-State",
            json!({"enum": states}),
            "How the attempt ended.",
        ),
        (
            "Hermes-Executed",
            json!({"enum": ["?0", "?1"]}),
            "Whether bytes went to the application.",
        ),
        (
            "Content-Digest",
            json!({"type": "string"}),
            "SHA-256 of the body (RFC 9530).",
        ),
    ]
}

/// Writes the parts that operations refer to.
pub fn components() -> Value {
    let parameters = headers().into_iter().map(|(name, schema, description)| {
        let parameter =
            json!({"name": name, "in": "header", "schema": schema, "description": description});
        (name.to_owned(), parameter)
    });
    let headers = reply_headers()
        .into_iter()
        .map(|(name, schema, description)| {
            let header = json!({"schema": schema, "description": description});
            (name.to_owned(), header)
        });
    json!({
        "parameters": Map::from_iter(parameters),
        "headers": Map::from_iter(headers),
        "responses": problems(),
        "schemas": {"Problem": problem()},
    })
}

/// Refers to every context header.
pub fn parameters() -> Value {
    let names = headers().into_iter();
    names
        .map(|(name, _, _)| json!({"$ref": format!("#/components/parameters/{name}")}))
        .collect()
}

/// Refers to every header of a reply.
fn headers_of_reply() -> Value {
    let names = reply_headers().into_iter().map(|(name, _, _)| {
        let reference = json!({"$ref": format!("#/components/headers/{name}")});
        (name.to_owned(), reference)
    });
    Value::Object(names.collect())
}

/// Describes the replies to a call, of which `schema` is the application's.
pub fn responses(schema: Value) -> Value {
    let statuses = kinds().into_keys();
    let problems = statuses.map(|status| (status.to_string(), problem_response(status)));
    let mut responses: Map<String, Value> = problems.collect();
    let reply = json!({
        "description": "The application's reply, checked. Its refusals (other 4xx) pass unchanged.",
        "headers": headers_of_reply(),
        "content": {"application/json": {"schema": schema}},
    });
    responses.insert("200".to_owned(), reply);
    Value::Object(responses)
}

/// Refers to the problem of one status.
pub fn problem_response(status: u16) -> Value {
    json!({"$ref": format!("#/components/responses/problem-{status}")})
}

fn kinds() -> BTreeMap<u16, Vec<&'static str>> {
    let mut kinds = BTreeMap::<u16, Vec<&'static str>>::new();
    for problem in Problem::all() {
        kinds
            .entry(problem.status())
            .or_default()
            .push(problem.as_str());
    }
    kinds
}

fn problems() -> Value {
    let responses = kinds().into_iter().map(|(status, kinds)| {
        let response = json!({
            "description": format!("Problem: {}.", kinds.join(", ")),
            "content": {"application/problem+json": {
                "schema": {"$ref": "#/components/schemas/Problem"},
            }},
        });
        (format!("problem-{status}"), response)
    });
    Value::Object(responses.collect())
}

/// The schema of problem bodies (RFC 9457).
fn problem() -> Value {
    let mut types: Vec<_> = Problem::all()
        .map(|problem| format!("{}{}", Problem::TYPE, problem.as_str()))
        .collect();
    types.sort();
    types.dedup();
    let text = json!({"type": "string"});
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string", "examples": types},
            "title": text,
            "status": {"type": "integer"},
            "detail": text,
            "error": {"type": "string", "description": "Repeats the detail."},
            "state": {"type": "string", "description": "The end state, where a task came into being."},
            "task_id": text,
            "call_id": text,
            "errors": {"type": "array", "items": {
                "type": "object",
                "required": ["instance", "schema", "message"],
                "properties": {"instance": text, "schema": text, "message": text},
            }},
        },
    })
}
