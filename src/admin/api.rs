//! Routes of the admin listeners.

use super::{Check, Command, House, Question, Unchanged};
use crate::contract::trust;
use crate::contract::watch::{Agent, Offer};
use crate::task::Problem;
use crate::telemetry::log;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderName, Method, StatusCode, header::CONTENT_TYPE};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::sync::Arc;

/// The header that a command must carry: pages of other sites cannot set it unasked.
const COMMAND: HeaderName = HeaderName::from_static("hermes-admin");
/// The longest log filter taken.
const LONGEST_FILTER: usize = 4096;

/// Everything, for the loopback listener.
pub fn router(house: Arc<House>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/ready/outbound", get(outbound_ready))
        .route("/config", get(config))
        .route("/contracts", get(contracts))
        .route("/instances", get(instances))
        .route("/explain", get(explain))
        .route("/tasks/active", get(active))
        .route("/spool", get(spool))
        .route("/log-level", get(log_level).put(set_log_level))
        .route("/drain", post(drain))
        .route("/quit", post(quit))
        .route("/reload", post(reload))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(house.clone(), guard))
        .with_state(house)
}

/// What may be seen from elsewhere.
pub fn public(house: Arc<House>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/live", get(live))
        .route("/ready", get(ready))
        .with_state(house)
}

/// Keeps other sites' pages out, and commands without their header.
async fn guard(State(house): State<Arc<House>>, request: Request, next: Next) -> Response {
    let checked = (house.local)().check(request.headers(), request.uri());
    if let Err(refused) = checked {
        return problem(StatusCode::FORBIDDEN, "host-refused", &refused.to_string());
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    let asked = request.headers().get(COMMAND);
    if changes && asked.is_none_or(|value| value != "1") {
        let detail = "a command needs the header Hermes-Admin: 1";
        return problem(StatusCode::FORBIDDEN, "forbidden", detail);
    }
    next.run(request).await
}

fn problem(status: StatusCode, kind: &str, detail: &str) -> Response {
    problem_with(status, kind, detail, json!({}))
}

/// A problem with members of its own.
fn problem_with(status: StatusCode, kind: &str, detail: &str, more: Value) -> Response {
    let mut body = json!({
        "type": format!("{}{kind}", Problem::TYPE),
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "detail": detail,
        "error": detail,
    });
    if let (Value::Object(body), Value::Object(mut more)) = (&mut body, more) {
        body.append(&mut more);
    }
    let json = [(CONTENT_TYPE, "application/problem+json")];
    (status, json, body.to_string()).into_response()
}

async fn nothing_here() -> Response {
    let detail = "here are /metrics /live /ready /ready/outbound /config /contracts /instances \
                  /explain /tasks/active /spool /log-level, and POST /drain /reload /quit";
    problem(StatusCode::NOT_FOUND, "not-found", detail)
}

/// What is allowed is told by the router, in `Allow`.
async fn wrong_method() -> Response {
    let detail = "questions are asked by GET, commands given by POST, the log filter set by PUT";
    problem(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail)
}

async fn metrics(State(house): State<Arc<House>>) -> Response {
    for check in (house.ready)() {
        house.metrics.ready_named(check.check, check.ok);
    }
    house.metrics.admission_states(&(house.states)());
    // Brings the spool's families up to date; without an answer they stay as they were.
    house.spool.stats().await.ok();
    let text = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (text, house.metrics.render()).into_response()
}

async fn live() -> Response {
    Json(json!({"live": true})).into_response()
}

async fn ready(State(house): State<Arc<House>>) -> Response {
    let checks = (house.ready)();
    let ok = checks.iter().all(|check| check.ok);
    (code(ok), Json(checks)).into_response()
}

async fn outbound_ready(State(house): State<Arc<House>>) -> Response {
    let check: Check = (house.outbound_ready)();
    (code(check.ok), Json(vec![check])).into_response()
}

fn code(ok: bool) -> StatusCode {
    if ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

async fn config(State(house): State<Arc<House>>) -> Json<Value> {
    Json((house.config)())
}

/// Our own contracts first, then those that are called.
async fn contracts(State(house): State<Arc<House>>) -> Json<Value> {
    let mut shown = match (house.contracts)() {
        Value::Array(own) => own,
        other => vec![other],
    };
    for own in shown.iter_mut().filter_map(Value::as_object_mut) {
        own.insert("use".to_owned(), "served".into());
    }
    let mut called: Vec<Value> = house.directory.agents().iter().map(|a| used(a)).collect();
    called.sort_by_key(|agent| agent["agent"].to_string());
    shown.append(&mut called);
    Json(Value::Array(shown))
}

/// Shows the bodies of a contract that are in use, and those that are published and not used.
fn used(agent: &Agent) -> Value {
    let view = agent.view();
    let mut bodies: Vec<Value> = Vec::new();
    for Offer { contract, .. } in &view.offers {
        let body = json!({
            "version": contract.contract.version.to_string(),
            "digest": contract.digest.to_string(),
            "kid": trust::first_kid(&contract.contract),
        });
        if !bodies.contains(&body) {
            bodies.push(body);
        }
    }
    let refused = view.refused.iter().map(|refused| {
        json!({
            "id": agent.id.as_str(),
            "digest": refused.digest.to_string(),
            "kid": refused.kids.join(", "),
            "reason": refused.reason,
        })
    });
    json!({
        "agent": agent.id.as_str(),
        "use": "called",
        "bodies": bodies,
        "untrusted": refused.collect::<Vec<_>>(),
    })
}

async fn instances(State(house): State<Arc<House>>) -> Json<Value> {
    let agents = house.directory.agents();
    let mut shown: Vec<Value> = agents
        .iter()
        .map(|agent| {
            let view = agent.view();
            let seen = (house.seen)(agent);
            let offers = view.offers.iter().map(|offer| {
                let seen = seen.get(&offer.instance.id);
                json!({
                    "id": &*offer.instance.id,
                    "address": offer.instance.authority(),
                    "weight": offer.instance.weight,
                    "region": offer.instance.region(),
                    "tags": offer.instance.tags,
                    "version": offer.contract.contract.version.to_string(),
                    "digest": offer.contract.digest.to_string(),
                    "in_flight": seen.map_or(&json!(0), |seen| &seen["in_flight"]),
                    "ejected": seen.map(|seen| &seen["ejected"]),
                })
            });
            let left_out = view.left_out.iter();
            let left_out = left_out
                .map(|left_out| json!({"id": &*left_out.instance, "reason": left_out.reason}));
            let share = house.directory.ratios().share(&agent.id);
            json!({
                "agent": agent.id.as_str(),
                "stale": view.stale,
                "untrusted": view.untrusted,
                "canary": {"ratio": share.ratio.of_ten_thousand(), "fault": share.fault},
                "instances": offers.collect::<Vec<_>>(),
                "left_out": left_out.collect::<Vec<_>>(),
            })
        })
        .collect();
    shown.sort_by_key(|agent| agent["agent"].to_string());
    Json(Value::Array(shown))
}

async fn explain(
    State(house): State<Arc<House>>,
    pairs: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Response {
    let pairs = pairs.map_err(|unreadable| unreadable.body_text());
    let question = match pairs.and_then(|Query(pairs)| Question::read(pairs)) {
        Ok(question) => question,
        Err(fault) => return problem(StatusCode::BAD_REQUEST, "bad-request", &fault),
    };
    match (house.explain)(question).await {
        Ok(explanation) => Json(explanation).into_response(),
        Err(refusal) => {
            let status = StatusCode::from_u16(refusal.status);
            let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            problem(status, refusal.kind, &refusal.detail)
        }
    }
}

async fn active(State(house): State<Arc<House>>) -> Json<Value> {
    Json((house.active)())
}

async fn spool(State(house): State<Arc<House>>) -> Response {
    match house.spool.stats().await {
        Ok(stats) => Json(json!({
            "waiting": stats.waiting,
            "open": stats.open,
            "dead": stats.dead,
            "oldest": stats.oldest,
            "bytes": stats.bytes,
            "healthy": house.spool.is_healthy(),
        }))
        .into_response(),
        Err(error) => {
            let detail = error.to_string();
            problem(
                StatusCode::SERVICE_UNAVAILABLE,
                "spool-unavailable",
                &detail,
            )
        }
    }
}

async fn log_level() -> Response {
    match log::filter() {
        Ok(filter) => filter.into_response(),
        Err(error) => problem(StatusCode::NOT_FOUND, "not-found", &error.to_string()),
    }
}

async fn set_log_level(body: String) -> Response {
    let filter = body.trim();
    if filter.is_empty() || filter.len() > LONGEST_FILTER {
        let detail = "the body is the filter, for example info,hermes::call=off";
        return problem(StatusCode::BAD_REQUEST, "bad-request", detail);
    }
    match log::set_filter(filter) {
        Ok(()) => {
            tracing::info!(filter, "log filter replaced");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => problem(StatusCode::BAD_REQUEST, "bad-request", &error.to_string()),
    }
}

async fn drain(State(house): State<Arc<House>>) -> Response {
    tell(&house, Command::Drain).await
}

async fn quit(State(house): State<Arc<House>>) -> Response {
    tell(&house, Command::Quit).await
}

/// Reads the settings again; whatever the reply is, either all that can change has, or nothing.
async fn reload(State(house): State<Arc<House>>) -> Response {
    match (house.reload)().await {
        Ok(reloaded) => Json(reloaded).into_response(),
        Err(Unchanged::Problems(problems)) => {
            let detail = problems.join("\n");
            let more = json!({"problems": problems});
            problem_with(StatusCode::BAD_REQUEST, "bad-settings", &detail, more)
        }
        Err(Unchanged::Refused(why)) => problem(StatusCode::CONFLICT, "not-now", &why),
    }
}

async fn tell(house: &House, command: Command) -> Response {
    // An error means that the process is ending, which is what either command leads to.
    house.commands.send(command).await.ok();
    StatusCode::ACCEPTED.into_response()
}
