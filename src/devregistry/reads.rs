//! Catalogue, health and key/value endpoints: what goes through Consul's servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::agent::{NODE_ID, check_json, flag, tagged_addresses};
use super::block;
use super::catalog::{Catalog, NODE, Registered};
use super::decode::Status;
use super::keys::Entry;
use super::state::{Data, Refusal, Shared, indexed};

type Registry = State<Arc<Shared>>;
type Answer = Result<Response, Refusal>;

pub(super) async fn health(
    State(shared): Registry,
    Path(name): Path<String>,
    Query(query): Query<block::Query>,
) -> Answer {
    let passing_only = match query.get("passing").map(String::as_str) {
        None | Some("0" | "false") => false,
        Some("" | "1" | "true") => true,
        Some(_) => return Err(Refusal::bad("Invalid value for ?passing")),
    };
    block::for_index(&shared, &query, |data| data.catalog.touched(&name)).await?;
    let address = shared.address.ip().to_string();
    let answer = shared.read(|data| {
        let catalog = &data.catalog;
        let is_passing = |registered: &&Registered| {
            let mut checks = catalog.checks_of(&registered.service.id);
            !passing_only || checks.all(|check| check.status == Status::Passing)
        };
        let is_known = catalog.named(&name).next().is_some();
        let entries = catalog.named(&name).filter(is_passing);
        let entries: Vec<Value> = entries
            .map(|registered| health_json(catalog, registered, &address))
            .collect();
        let index = if is_known {
            catalog.touched(&name)
        } else {
            catalog.listed()
        };
        indexed(index, Json(entries))
    });
    Ok(consistency(answer, &query))
}

pub(super) async fn services(State(shared): Registry, Query(query): Query<block::Query>) -> Answer {
    block::for_index(&shared, &query, |data| data.catalog.listed()).await?;
    let answer = shared.read(|data| {
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for Registered { service, .. } in data.catalog.services() {
            names
                .entry(service.name.clone())
                .or_default()
                .extend(service.tags.iter().cloned());
        }
        indexed(data.catalog.listed(), Json(names))
    });
    Ok(consistency(answer, &query))
}

pub(super) async fn leader(State(shared): Registry) -> Json<String> {
    Json(shared.address.to_string())
}

pub(super) async fn peers(State(shared): Registry) -> Json<[String; 1]> {
    Json([shared.address.to_string()])
}

/// One key, all below a prefix, or the keys alone; raw where asked for.
pub(super) async fn entries(
    State(shared): Registry,
    key: Option<Path<String>>,
    Query(query): Query<block::Query>,
) -> Answer {
    let key = key.map_or_else(String::new, |Path(key)| key);
    let is_tree = query.contains_key("recurse") || query.contains_key("keys");
    if key.is_empty() && !is_tree {
        return Err(missing_key());
    }
    let index_of = |data: &Data| {
        if is_tree {
            data.keys.index_below(&key)
        } else {
            data.keys.index_of(&key)
        }
    };
    block::for_index(&shared, &query, index_of).await?;
    Ok(shared.read(|data| {
        let index = index_of(data);
        if query.contains_key("keys") {
            let keys = folded(
                data.keys.below(&key).map(|(key, _)| key),
                &key,
                query.get("separator"),
            );
            return if keys.is_empty() {
                none(index)
            } else {
                indexed(index, Json(keys))
            };
        }
        if is_tree {
            let found: Vec<Value> = data
                .keys
                .below(&key)
                .map(|(key, entry)| entry_json(key, entry))
                .collect();
            return if found.is_empty() {
                none(index)
            } else {
                indexed(index, Json(found))
            };
        }
        match data.keys.get(&key) {
            None => none(index),
            Some(entry) if query.contains_key("raw") => indexed(
                index,
                ([(header::CONTENT_TYPE, "text/plain")], entry.value.clone()),
            ),
            Some(entry) => indexed(index, Json([entry_json(&key, entry)])),
        }
    }))
}

pub(super) async fn put(
    State(shared): Registry,
    Path(key): Path<String>,
    Query(query): Query<block::Query>,
    body: Bytes,
) -> Result<Json<bool>, Refusal> {
    if query.contains_key("acquire") || query.contains_key("release") {
        return Err(Refusal::bad("dev-registry has no sessions"));
    }
    let flags = number(&query, "flags")?.unwrap_or(0);
    let cas = number(&query, "cas")?;
    shared
        .write(|data| data.keys.put(&mut data.index, &key, body, flags, cas))
        .map(Json)
}

pub(super) async fn no_key() -> Refusal {
    missing_key()
}

pub(super) async fn delete(
    State(shared): Registry,
    key: Option<Path<String>>,
    Query(query): Query<block::Query>,
) -> Result<Json<bool>, Refusal> {
    let key = key.map_or_else(String::new, |Path(key)| key);
    if query.contains_key("recurse") {
        shared.write(|data| data.keys.delete_tree(&mut data.index, &key));
        return Ok(Json(true));
    }
    if key.is_empty() {
        return Err(missing_key());
    }
    let cas = number(&query, "cas")?;
    Ok(Json(shared.write(|data| {
        data.keys.delete(&mut data.index, &key, cas)
    })))
}

fn missing_key() -> Refusal {
    Refusal::bad("Missing key name")
}

/// "There is none" is an answer too, with an index to wait from.
fn none(index: u64) -> Response {
    let mut response = indexed(index, ());
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

fn consistency(mut response: Response, query: &block::Query) -> Response {
    let mode = if flag(query, "stale") {
        "stale"
    } else {
        "leader"
    };
    let value = header::HeaderValue::from_static(mode);
    response
        .headers_mut()
        .insert("x-consul-effective-consistency", value);
    response
}

/// Keys up to the first separator past the prefix, each once.
fn folded<'k>(
    keys: impl Iterator<Item = &'k str>,
    prefix: &str,
    separator: Option<&String>,
) -> Vec<&'k str> {
    let separator = separator.map_or("", String::as_str);
    let cut = |key: &'k str| match key[prefix.len()..].find(separator) {
        Some(at) if !separator.is_empty() => &key[..prefix.len() + at + separator.len()],
        _ => key,
    };
    let mut found: Vec<&str> = keys.map(cut).collect();
    found.dedup();
    found
}

fn number(query: &block::Query, name: &str) -> Result<Option<u64>, Refusal> {
    let Some(text) = query.get(name) else {
        return Ok(None);
    };
    let invalid = |_error| {
        Refusal::failed(format!(
            "strconv.ParseUint: parsing \"{text}\": invalid syntax"
        ))
    };
    text.parse().map(Some).map_err(invalid)
}

fn entry_json(key: &str, entry: &Entry) -> Value {
    let value = (!entry.value.is_empty()).then(|| STANDARD.encode(&entry.value));
    json!({
        "LockIndex": 0, "Key": key, "Flags": entry.flags, "Value": value,
        "CreateIndex": entry.created, "ModifyIndex": entry.modified,
    })
}

fn health_json(catalog: &Catalog, registered: &Registered, address: &str) -> Value {
    let service = &registered.service;
    let mut shown = json!({
        "ID": service.id, "Service": service.name, "Tags": service.tags, "Address": service.address,
        "Meta": service.meta, "Port": service.port,
        "Weights": {"Passing": service.weights.0, "Warning": service.weights.1},
        "EnableTagOverride": service.enable_tag_override,
        "Proxy": {"MeshGateway": {}, "Expose": {}}, "Connect": {},
        "CreateIndex": registered.created, "ModifyIndex": registered.modified,
    });
    let tagged = tagged_addresses(service);
    if !tagged.is_empty() {
        shown["TaggedAddresses"] = tagged.into();
    }
    let mut checks = vec![json!({
        "Node": NODE, "CheckID": "serfHealth", "Name": "Serf Health Status", "Status": "passing", "Notes": "",
        "Output": "Agent alive and reachable", "ServiceID": "", "ServiceName": "", "ServiceTags": [],
        "Type": "", "Definition": {}, "CreateIndex": 1, "ModifyIndex": 1,
    })];
    checks.extend(catalog.checks_of(&service.id).map(|check| {
        check_json(
            catalog,
            check,
            &check.synced_output,
            (check.created, check.modified),
        )
    }));
    json!({
        "Node": {
            "ID": NODE_ID, "Node": NODE, "Address": address, "Datacenter": "dc1",
            "TaggedAddresses": {"lan": address, "wan": address}, "Meta": {},
            "CreateIndex": 1, "ModifyIndex": 1,
        },
        "Service": shown,
        "Checks": checks,
    })
}
