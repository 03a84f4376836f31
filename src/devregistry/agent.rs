//! The agent's own endpoints: registering, checks, what runs here.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::block;
use super::catalog::{Catalog, Check, NODE, Registered, VERSION};
use super::decode::{self, Kind, Service, Status};
use super::state::{Refusal, Shared};

type Registry = State<Arc<Shared>>;
type Answer = Result<Response, Refusal>;

pub(super) const NODE_ID: &str = "00000000-0000-0000-0000-000000000001";

pub(super) async fn own(State(shared): Registry) -> Json<Value> {
    let address = shared.address.ip().to_string();
    Json(json!({
        "Config": {
            "Datacenter": "dc1", "NodeName": NODE, "NodeID": NODE_ID, "Revision": "", "Server": true,
            "Version": VERSION,
        },
        "Member": {
            "Name": NODE, "Addr": address, "Port": shared.address.port(), "Status": 1,
            "Tags": {"role": "consul", "dc": "dc1", "build": "dev-registry"},
        },
        "Meta": {"hermes-dev-registry": "true"},
    }))
}

pub(super) async fn services(State(shared): Registry) -> Json<Value> {
    Json(shared.read(|data| {
        let own = data
            .catalog
            .services()
            .filter(|registered| !registered.is_server);
        let own = own.map(|registered| {
            (
                registered.service.id.clone(),
                service_json(&registered.service),
            )
        });
        Value::Object(own.collect())
    }))
}

pub(super) async fn checks(State(shared): Registry) -> Json<Value> {
    Json(shared.read(|data| {
        let checks = data.catalog.checks().map(|check| {
            let shown = check_json(&data.catalog, check, &check.output, (0, 0));
            (check.definition.id.clone(), shown)
        });
        Value::Object(checks.collect())
    }))
}

pub(super) async fn service(
    State(shared): Registry,
    Path(id): Path<String>,
    Query(query): Query<block::Query>,
) -> Answer {
    if let Some(hash) = query.get("hash").filter(|hash| !hash.is_empty()) {
        let has_it = |data: &super::state::Data| {
            own_service(&data.catalog, &id)
                .is_some_and(|registered| content_hash(&registered.service) == *hash)
        };
        block::while_same(&shared, &query, has_it).await?;
    }
    shared.read(|data| {
        let unknown = || Refusal(StatusCode::NOT_FOUND, format!("unknown service ID: {id}"));
        let registered = own_service(&data.catalog, &id).ok_or_else(unknown)?;
        let hash = content_hash(&registered.service);
        let mut shown = service_json(&registered.service);
        shown["ContentHash"] = hash.clone().into();
        Ok(([("x-consul-contenthash", hash)], Json(shown)).into_response())
    })
}

pub(super) async fn register(
    State(shared): Registry,
    Query(query): Query<block::Query>,
    body: Bytes,
) -> Result<(), Refusal> {
    let (service, checks) = decode::registration(&body)?;
    let replace_checks = flag(&query, "replace-existing-checks");
    shared.write(|data| {
        data.catalog
            .register(&mut data.index, service, checks, replace_checks)
    })
}

pub(super) async fn deregister(State(shared): Registry, Path(id): Path<String>) {
    shared.write(|data| data.catalog.deregister(&mut data.index, &id));
}

pub(super) async fn maintain(
    State(shared): Registry,
    Path(id): Path<String>,
    Query(query): Query<block::Query>,
) -> Result<(), Refusal> {
    let enable = match query.get("enable").map(String::as_str) {
        None | Some("") => return Err(Refusal::bad("Missing value for enable")),
        Some("true" | "1") => true,
        Some("false" | "0") => false,
        Some(other) => return Err(Refusal::bad(format!("Invalid value for enable: {other:?}"))),
    };
    let reason = query.get("reason").map_or("", String::as_str);
    shared.write(|data| {
        data.catalog
            .maintain(&mut data.index, &id, enable.then_some(reason))
    })
}

pub(super) async fn update(
    State(shared): Registry,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<(), Refusal> {
    let (status, output) = decode::update(&body)?;
    shared.write(|data| data.catalog.report(&mut data.index, &id, status, &output))
}

/// `pass`, `warn` and `fail`, with the output as `note`.
pub(super) async fn set(
    State(shared): Registry,
    Path((verb, id)): Path<(String, String)>,
    Query(query): Query<block::Query>,
) -> Result<(), Refusal> {
    let status = match verb.as_str() {
        "pass" => Status::Passing,
        "warn" => Status::Warning,
        "fail" => Status::Critical,
        _ => return Err(Refusal(StatusCode::NOT_FOUND, String::new())),
    };
    let note = query.get("note").map_or("", String::as_str);
    shared.write(|data| data.catalog.report(&mut data.index, &id, status, note))
}

/// A bare name in the query means true.
pub(super) fn flag(query: &block::Query, name: &str) -> bool {
    query
        .get(name)
        .is_some_and(|value| matches!(value.as_str(), "" | "1" | "true"))
}

fn own_service<'c>(catalog: &'c Catalog, id: &str) -> Option<&'c Registered> {
    catalog
        .service(id)
        .filter(|registered| !registered.is_server)
}

/// The definition as the agent shows it.
fn service_json(service: &Service) -> Value {
    let mut shown = json!({
        "ID": service.id, "Service": service.name, "Tags": service.tags,
        "Meta": service.meta.clone().unwrap_or_default(), "Port": service.port, "Address": service.address,
        "Weights": {"Passing": service.weights.0, "Warning": service.weights.1},
        "EnableTagOverride": service.enable_tag_override,
    });
    let tagged = tagged_addresses(service);
    if !tagged.is_empty() {
        shown["TaggedAddresses"] = tagged.into();
    }
    shown
}

/// Consul derives these from an address that is an IP.
pub(super) fn tagged_addresses(service: &Service) -> Map<String, Value> {
    let family = match service.address.parse() {
        Ok(std::net::IpAddr::V4(_)) => "ipv4",
        Ok(std::net::IpAddr::V6(_)) => "ipv6",
        Err(_) => return Map::new(),
    };
    let place = json!({"Address": service.address, "Port": service.port});
    ["lan", "wan"]
        .into_iter()
        .map(|net| (format!("{net}_{family}"), place.clone()))
        .collect()
}

fn content_hash(service: &Service) -> String {
    format!(
        "{:x}",
        xxh3_64(service_json(service).to_string().as_bytes())
    )
}

pub(super) fn check_json(
    catalog: &Catalog,
    check: &Check,
    output: &str,
    (created, modified): (u64, u64),
) -> Value {
    let service = catalog
        .service(&check.service_id)
        .map(|registered| &registered.service);
    json!({
        "Node": NODE, "CheckID": check.definition.id, "Name": check.definition.name,
        "Status": check.status.as_str(), "Notes": check.definition.notes, "Output": output,
        "ServiceID": check.service_id,
        "ServiceName": service.map_or("", |service| service.name.as_str()),
        "ServiceTags": check.tags,
        "Type": kind_name(&check.definition.kind), "Definition": {},
        "CreateIndex": created, "ModifyIndex": modified,
    })
}

const fn kind_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Ttl(_) => "ttl",
        Kind::Http { .. } => "http",
        Kind::Maintenance => "maintenance",
    }
}
