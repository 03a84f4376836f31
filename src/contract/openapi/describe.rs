//! Writing an OpenAPI 3.1 document of contracts.
//!
//! The document names draft 2020-12 as its dialect, so schemas stand in it as they are in the
//! contract; what `x-hermes` holds is the rest of the contract, so that a contract read back from
//! the document is the same to the last digit of its digest.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use http::Method;
use serde_json::{Map, Value, json};

use super::{embed::embed, operation::EXTENSION, parts};
use crate::contract::{Contract, reference::DIALECT};

const VERSION: &str = "3.1.0";

/// An OpenAPI document in the making.
#[derive(Debug)]
pub struct Description {
    title: String,
    version: Option<String>,
    /// Contracts by path and method, in the order they came.
    routes: BTreeMap<(String, String), Vec<Described>>,
    others: BTreeMap<String, Value>,
    /// Every `$id` in the document.
    taken: HashSet<String>,
}

#[derive(Debug)]
struct Described {
    id: String,
    description: Option<Value>,
    input: Value,
    output: Value,
    example: Option<Value>,
    rest: Map<String, Value>,
}

impl Description {
    /// Begins a document; its version is that of the first contract.
    pub fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            version: None,
            routes: BTreeMap::new(),
            others: BTreeMap::new(),
            taken: HashSet::new(),
        }
    }

    /// Adds a contract where it is called: its own route, or `POST /hermes/agents/ID`.
    pub fn contract(&mut self, contract: &Contract, method: &Method, path: &str) {
        let name = |side| format!("{}@{}:{side}", contract.id, contract.version);
        let rest = serde_json::from_slice(contract.body());
        let mut rest: Map<String, Value> = rest.expect("a contract was read from its body");
        let mut schema = |member, side| {
            let schema = rest.remove(member).unwrap_or_default();
            embed(&schema, &name(side), &mut self.taken)
        };
        let described = Described {
            id: contract.id.to_string(),
            input: schema("input_schema", "input"),
            output: schema("output_schema", "output"),
            description: rest.remove("description"),
            example: contract.probe.as_ref().map(|probe| probe.input.clone()),
            rest,
        };
        self.version
            .get_or_insert_with(|| contract.version.to_string());
        // Braces would be read as a template.
        let path = path.replace('{', "%7B").replace('}', "%7D");
        let method = method.as_str().to_ascii_lowercase();
        self.routes
            .entry((path, method))
            .or_default()
            .push(described);
    }

    /// Adds a path that is no contract's.
    pub fn path(&mut self, path: &str, item: Value) {
        self.others.insert(path.to_owned(), item);
    }

    pub fn to_json(self) -> Value {
        let version = self.version.as_deref();
        let mut paths: BTreeMap<String, Value> = self.others;
        for ((path, method), contracts) in self.routes {
            let item = paths.entry(path).or_insert_with(|| json!({}));
            item[method] = operation(contracts);
        }
        json!({
            "openapi": VERSION,
            "jsonSchemaDialect": DIALECT,
            "info": {
                "title": self.title,
                "version": version.unwrap_or(env!("CARGO_PKG_VERSION")),
            },
            "paths": paths,
            "components": parts::components(),
        })
    }

    pub fn to_bytes(self) -> Bytes {
        Bytes::from(self.to_json().to_string())
    }
}

/// Writes the operation of the contracts that share a route, mostly one.
fn operation(mut contracts: Vec<Described>) -> Value {
    if contracts.len() == 1 {
        let one = contracts.remove(0);
        return written(
            &one.id,
            one.description,
            one.input,
            one.output,
            one.example,
            one.rest.into(),
        );
    }
    let ids: Vec<&str> = contracts.iter().map(|one| one.id.as_str()).collect();
    let description = format!(
        "Several contracts; Hermes-Agent names one: {}.",
        ids.join(", ")
    );
    let name = ids.join("+");
    let (mut inputs, mut outputs, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for one in contracts {
        inputs.push(one.input);
        outputs.push(one.output);
        rest.push(Value::Object(one.rest));
    }
    let (input, output) = (json!({"anyOf": inputs}), json!({"anyOf": outputs}));
    written(
        &name,
        Some(description.into()),
        input,
        output,
        None,
        rest.into(),
    )
}

fn written(
    id: &str,
    description: Option<Value>,
    input: Value,
    output: Value,
    example: Option<Value>,
    rest: Value,
) -> Value {
    let mut request = json!({"schema": input});
    if let Some(example) = example {
        request["example"] = example;
    }
    let mut operation = json!({
        "operationId": id,
        "tags": ["contracts"],
        "parameters": parts::parameters(),
        "requestBody": {"required": true, "content": {"application/json": request}},
        "responses": parts::responses(output),
    });
    operation[EXTENSION] = rest;
    if let Some(description) = description {
        operation["description"] = description;
    }
    operation
}
