//! The collector's door: reports in, tasks and contracts out.

mod board;
mod speaker;

use super::Desk;
use super::attempt::Told;
use super::book::{BookError, MOST_CALLS, Recorded};
use super::compare::compare;
use super::ingest::{self, BodyError, Coding, PACKED_BYTES, Parsed, Rejected};
use super::list::{Listing, Query as ListQuery};
use super::view;
use crate::apart;
use crate::socket::Peer;
use crate::task::{Id, Problem, Timestamp};
use crate::telemetry::log::Chain;
use crate::telemetry::metrics::Received;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use axum::http::{Extensions, HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::LengthLimitError;
use serde::Serialize;
use serde_json::json;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;

const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Windows of a list that one request looks through.
const MOST_WINDOWS: usize = 10;

/// Returns all routes.
pub(super) fn router(desk: Arc<Desk>) -> Router {
    let guarded = Router::new()
        .route("/report-status", post(report_status))
        .route("/tasks", get(tasks))
        .route("/tasks/{id}", get(task))
        .route("/tasks/{id}/compare/{other}", get(compared))
        .route("/contracts", get(board::contracts))
        .route("/agents", get(board::agents))
        .route("/v1/contract/{id}/{version}", get(board::contract))
        .route("/sd", get(board::targets))
        .layer(from_fn_with_state(desk.clone(), authorise));
    Router::new()
        .merge(guarded)
        .route("/metrics", get(metrics))
        .route("/live", get(live))
        .route("/ready", get(ready))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .with_state(desk)
}

/// A refusal as RFC 9457 wants it.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
}

impl Refusal {
    fn of(problem: Problem, detail: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(problem.status());
        Self {
            status: status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            kind: problem.as_str(),
            title: problem.title(),
            detail: detail.into(),
        }
    }

    fn store(error: &BookError) -> Self {
        let detail = match error.is_full() {
            true => "too many reports are waiting to be stored; send again",
            false => "the collector cannot use its database now; send again",
        };
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "store-unavailable",
            title: "The database is not available",
            detail: detail.to_owned(),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({
            "type": format!("{}{}", Problem::TYPE, self.kind),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "error": self.detail,
        });
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        let problem = "application/problem+json";
        headers.insert(CONTENT_TYPE, problem.parse().expect("a plain header value"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, 1.into());
        }
        response
    }
}

async fn authorise(State(desk): State<Arc<Desk>>, request: Request, next: Next) -> Response {
    let Some(token) = desk.terms.borrow().token.clone() else {
        return next.run(request).await;
    };
    // A connection with a certificate proves more than a token that many share.
    if caller(request.extensions()).is_some() {
        return next.run(request).await;
    }
    let given = request.headers().get(AUTHORIZATION);
    let given = given.map(|value| value.as_bytes()).unwrap_or_default();
    let (scheme, given) = given.split_at(given.len().min(7));
    let matches = scheme.eq_ignore_ascii_case(b"bearer ")
        && verify_slices_are_equal(given, token.reveal().as_bytes()).is_ok();
    if matches {
        return next.run(request).await;
    }
    let refusal = Refusal {
        status: StatusCode::UNAUTHORIZED,
        kind: "unauthorized",
        title: "A token is required",
        detail: "send the collector's token as a bearer token, or show a certificate".to_owned(),
    };
    ([(WWW_AUTHENTICATE, "Bearer")], refusal).into_response()
}

/// Returns the application that the connection's certificate names.
fn caller(extensions: &Extensions) -> Option<Arc<str>> {
    extensions.get::<Peer>().and_then(|peer| peer.name.clone())
}

#[derive(Debug, Serialize)]
struct Receipt {
    accepted: u64,
    duplicates: u64,
    conflicts: u64,
    rejected: Vec<Rejected>,
}

async fn report_status(
    State(desk): State<Arc<Desk>>,
    request: Request,
) -> Result<Json<Receipt>, Refusal> {
    let (parts, body) = request.into_parts();
    let coding = head(&parts.headers)?;
    // The semaphore is never closed.
    let _permit = desk.ingests.acquire().await.ok();
    let body = collect(body).await?;
    let now = Timestamp::now();
    let mut parsed = read(body, coding, now, caller(&parts.extensions)).await?;
    if let Some(caller) = caller(&parts.extensions) {
        speaker::hold_to(&desk, &caller, &mut parsed).await?;
    }
    let (indexes, told): (Vec<usize>, Vec<_>) = parsed.taken.into_iter().unzip();
    let ages: Vec<Duration> = told.iter().map(|told| age(told, now)).collect();
    let recorded = desk.book.record(told).await;
    desk.stores.store(recorded.is_ok(), Ordering::Relaxed);
    let recorded = recorded.map_err(|error| {
        if !error.is_repeat() {
            tracing::error!(error = %Chain(&error), "reports could not be stored");
        }
        Refusal::store(&error)
    })?;
    let reports = indexes.into_iter().zip(ages);
    Ok(Json(receipt(&desk, parsed.rejected, reports, recorded)))
}

/// Reads a body, off the threads that answer others.
async fn read(
    body: Bytes,
    coding: Coding,
    now: Timestamp,
    caller: Option<Arc<str>>,
) -> Result<Parsed, Refusal> {
    let read = move || ingest::read(&body, coding, now, caller.as_deref());
    match apart::caught(read).await {
        Ok(Ok(parsed)) => Ok(parsed),
        Ok(Err(error)) => Err(unreadable(&error)),
        Err(_panicked) => Err(Refusal::of(Problem::Internal, "the body could not be read")),
    }
}

/// Makes the receipt of what was stored, and counts it.
fn receipt(
    desk: &Desk,
    rejected: Vec<Rejected>,
    reports: impl Iterator<Item = (usize, Duration)>,
    recorded: Recorded,
) -> Receipt {
    let mut receipt = Receipt {
        accepted: 0,
        duplicates: 0,
        conflicts: 0,
        rejected,
    };
    for ((index, age), result) in reports.zip(recorded.results) {
        match result {
            Ok(Received::Accepted) => {
                receipt.accepted += 1;
                desk.metrics.lag(age);
            }
            Ok(Received::Duplicate) => receipt.duplicates += 1,
            Ok(Received::Conflict) => receipt.conflicts += 1,
            Ok(Received::Rejected) => receipt.rejected.push(refused(index, "not taken")),
            Err(reason) => receipt.rejected.push(refused(index, reason)),
        }
    }
    receipt.rejected.sort_by_key(|rejected| rejected.index);
    count(desk, &receipt);
    for (application, state) in recorded.finished {
        desk.metrics.finished(&application, state);
    }
    for application in recorded.breaks {
        desk.metrics.chain_break(&application);
    }
    receipt
}

fn refused(index: usize, reason: &str) -> Rejected {
    Rejected {
        index,
        reason: reason.to_owned(),
    }
}

fn count(desk: &Desk, receipt: &Receipt) {
    let metrics = &desk.metrics;
    metrics.received(Received::Accepted, receipt.accepted);
    metrics.received(Received::Duplicate, receipt.duplicates);
    metrics.received(Received::Conflict, receipt.conflicts);
    metrics.received(Received::Rejected, receipt.rejected.len() as u64);
}

/// Returns the time since the last state of a report.
fn age(told: &Told, now: Timestamp) -> Duration {
    let last = told.report.states.last();
    last.map_or(Duration::ZERO, |last| last.at.age(now))
}

/// Checks the head of a request with reports.
fn head(headers: &HeaderMap) -> Result<Coding, Refusal> {
    let unsupported = |detail: &str| Err(Refusal::of(Problem::UnsupportedMediaType, detail));
    let value = |name| headers.get(name).map(|value| value.as_bytes());
    let media_type = value(CONTENT_TYPE).unwrap_or(b"application/json");
    let media_type = media_type.split(|byte| *byte == b';').next();
    let media_type = media_type.unwrap_or_default().trim_ascii();
    let media_type = media_type.to_ascii_lowercase();
    let is_json = [
        &b"application/json"[..],
        b"application/x-ndjson",
        b"application/ndjson",
        b"application/jsonl",
    ];
    if !is_json.contains(&&media_type[..]) && !media_type.ends_with(b"+json") {
        return unsupported("reports are application/json or application/x-ndjson");
    }
    match value(CONTENT_ENCODING).map(<[u8]>::to_ascii_lowercase) {
        None => Ok(Coding::Identity),
        Some(coding) if coding == b"identity" => Ok(Coding::Identity),
        Some(coding) if coding == b"gzip" || coding == b"x-gzip" => Ok(Coding::Gzip),
        Some(_) => unsupported("the only content coding is gzip"),
    }
}

async fn collect(body: Body) -> Result<Bytes, Refusal> {
    match timeout(BODY_TIMEOUT, to_bytes(body, PACKED_BYTES)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) => {
            let is_long = error.source().is_some_and(|s| s.is::<LengthLimitError>());
            if is_long {
                let detail = format!("a body has at most {PACKED_BYTES} bytes");
                return Err(Refusal::of(Problem::TooLarge, detail));
            }
            Err(Refusal::of(Problem::BadRequest, "the body broke off"))
        }
        Err(_elapsed) => Err(Refusal::of(
            Problem::RequestTimeout,
            "the body took too long",
        )),
    }
}

fn unreadable(error: &BodyError) -> Refusal {
    let problem = match error {
        BodyError::TooLong | BodyError::TooMany => Problem::TooLarge,
        BodyError::Gzip | BodyError::Json(_) => Problem::BadJson,
    };
    Refusal::of(problem, error.to_string())
}

async fn task(State(desk): State<Arc<Desk>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let calls = reports(&desk, &id).await?;
    let all = count_calls(&desk, &id).await?;
    let view = view::task(&calls, Timestamp::now()).ok_or_else(|| unknown(&desk, &id))?;
    Ok(fresh(Json(view.of_newest(all.min(MOST_CALLS), all))))
}

async fn count_calls(desk: &Desk, id: &str) -> Result<usize, Refusal> {
    let parsed = Id::parse(id).or(Err(unknown(desk, id)))?;
    let count = desk.book.count_calls(parsed).await;
    count.map_err(|error| failed(&error))
}

async fn compared(
    State(desk): State<Arc<Desk>>,
    Path((id, other)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    let (one, two) = (reports(&desk, &id).await?, reports(&desk, &other).await?);
    // Two long tasks are a million pairs: not for the threads that answer others.
    let written = apart::caught(move || {
        let comparison = compare(&one, &two, Timestamp::now());
        comparison.map(|comparison| serde_json::to_vec(&comparison))
    });
    match written.await {
        Ok(Some(Ok(body))) => Ok(fresh(([(CONTENT_TYPE, "application/json")], body))),
        Ok(None) => Err(unknown(&desk, &id)),
        Ok(Some(Err(_))) | Err(_) => {
            let detail = "the comparison could not be made";
            Err(Refusal::of(Problem::Internal, detail))
        }
    }
}

/// Reads what was told of a task, at least one report.
async fn reports(desk: &Desk, id: &str) -> Result<Vec<Vec<Told>>, Refusal> {
    let parsed = Id::parse(id).or(Err(unknown(desk, id)))?;
    let calls = desk.book.task(parsed).await;
    let calls = calls.map_err(|error| failed(&error))?;
    match calls.is_empty() {
        true => Err(unknown(desk, id)),
        false => Ok(calls),
    }
}

fn unknown(desk: &Desk, id: &str) -> Refusal {
    let kept = humantime::format_duration(desk.terms.borrow().retention);
    // An id is bare text; what is none is not repeated.
    let named = Id::parse(id).map_or_else(|_| "this task".to_owned(), |id| format!("task {id}"));
    let detail = format!(
        "no report of {named} has arrived, or it began longer ago than collector.retention, {kept}"
    );
    Refusal {
        title: "No such task",
        ..Refusal::of(Problem::NotFound, detail)
    }
}

async fn tasks(
    State(desk): State<Arc<Desk>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, Refusal> {
    let bad = |detail: String| Refusal::of(Problem::BadRequest, detail);
    let now = Timestamp::now();
    let Query(query) = query.map_err(|rejection| bad(rejection.body_text()))?;
    let filter = query.filter(now).map_err(bad)?;
    let listing = list(&desk, filter, now).await;
    let listing = listing.map_err(|error| failed(&error))?;
    Ok(fresh(Json(listing)))
}

/// Looks through windows until the page is full; each window is a query of its own.
async fn list(
    desk: &Desk,
    filter: super::list::Filter,
    now: Timestamp,
) -> Result<Listing, BookError> {
    let mut page = desk.book.tasks(filter, now).await?;
    for _ in 1..MOST_WINDOWS {
        let Some(rest) = page.rest() else { break };
        page.extend(desk.book.tasks(rest, now).await?);
    }
    Ok(page.listing())
}

fn failed(error: &BookError) -> Refusal {
    if !error.is_repeat() {
        tracing::error!(error = %Chain(error), "a question could not be answered");
    }
    Refusal::store(error)
}

/// Marks an answer as true for now only.
fn fresh(body: impl IntoResponse) -> Response {
    ([(CACHE_CONTROL, "no-store")], body).into_response()
}

async fn metrics(State(desk): State<Arc<Desk>>) -> Response {
    match desk.book.open_counts(Timestamp::now()).await {
        Ok(counts) => desk.metrics.open(&counts.by_state, counts.stalled),
        // The other families are still worth showing.
        Err(error) => tracing::warn!(%error, "open tasks could not be counted"),
    }
    let text = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, text)], desk.metrics.render()).into_response()
}

async fn live() -> Json<serde_json::Value> {
    Json(json!({"status": "live"}))
}

async fn ready(State(desk): State<Arc<Desk>>) -> Response {
    let stores = desk.stores.load(Ordering::Relaxed) || desk.book.has_recovered().await;
    let reads = desk.book.open_counts(Timestamp::now()).await.is_ok();
    let status = if stores && reads {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let checks = json!([
        {"check": "store_write", "ok": stores},
        {"check": "store_read", "ok": reads},
    ]);
    (status, Json(checks)).into_response()
}

async fn nothing_here() -> Refusal {
    Refusal::of(Problem::NotFound, "there is nothing at this path")
}

async fn wrong_method(request: Request) -> Response {
    let allowed = match request.uri().path() {
        "/report-status" => "POST",
        _ => "GET, HEAD",
    };
    let detail = format!("this path takes {allowed}");
    let refusal = Refusal::of(Problem::MethodNotAllowed, detail);
    ([(ALLOW, allowed)], refusal).into_response()
}
