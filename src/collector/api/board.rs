//! What is asked about contracts and who runs them.

use super::{Desk, Refusal, fresh};
use crate::collector::board::{Board, Missing, NeverRead, Text};
use crate::contract::ContractId;
use crate::task::Problem;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::header::{AGE, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::sync::Arc;

/// `?1` on an answer of which Consul could not confirm a part.
const STALE: HeaderName = HeaderName::from_static("hermes-stale");

pub(super) async fn contracts(State(desk): State<Arc<Desk>>) -> Result<Response, Refusal> {
    let board = board(&desk)?;
    aged(board, || board.rows())
}

pub(super) async fn agents(State(desk): State<Arc<Desk>>) -> Result<Response, Refusal> {
    let board = board(&desk)?;
    aged(board, || board.applications())
}

/// Prometheus keeps its targets while it is refused, and loses them to an empty list.
pub(super) async fn targets(State(desk): State<Arc<Desk>>) -> Result<Response, Refusal> {
    let board = board(&desk)?;
    aged(board, || board.targets())
}

pub(super) async fn contract(
    State(desk): State<Arc<Desk>>,
    Path((id, version)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let board = board(&desk)?;
    let id: ContractId = id
        .parse()
        .map_err(|bad| Refusal::of(Problem::NotFound, format!("no such contract: {bad}")))?;
    let wanted = board.version(&id, &version).map_err(refusal)?;
    let text = board.contract(&id, &wanted).await.map_err(refusal)?;
    Ok(published(text, &headers))
}

fn board(desk: &Desk) -> Result<&Board, Refusal> {
    let board = desk.board.get().map(Arc::as_ref);
    board.ok_or_else(|| Refusal {
        title: "This collector knows no contracts",
        ..Refusal::of(
            Problem::NotFound,
            "this collector does not look into Consul: `collector.consul` is false in its config",
        )
    })
}

/// Answers with a list, and says how old it is.
fn aged<T: Serialize>(board: &Board, list: impl FnOnce() -> Vec<T>) -> Result<Response, Refusal> {
    let age = board.age().map_err(|NeverRead { reason }| {
        unavailable(format!(
            "Consul has not said yet what there is: {reason}; ask again"
        ))
    })?;
    let mut response = fresh(Json(list()));
    let headers = response.headers_mut();
    headers.insert(AGE, age.age.as_secs().into());
    if age.is_stale {
        headers.insert(STALE, HeaderValue::from_static("?1"));
    }
    Ok(response)
}

fn published(text: Text, asked: &HeaderMap) -> Response {
    let tag = format!("\"{}\"", text.digest);
    let known = asked.get_all(IF_NONE_MATCH).iter();
    let known = known.filter_map(|value| value.to_str().ok());
    let is_known = known
        .flat_map(|value| value.split(','))
        .map(|one| one.trim().trim_start_matches("W/"))
        .any(|one| one == tag || one == "*");
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(CONTENT_TYPE, "application/json")], text.contract).into_response(),
    };
    let headers = response.headers_mut();
    // A version never changes, but one that was tampered with must not live on in caches.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let plain = |value: String| HeaderValue::try_from(value).ok();
    let of = plain(format!("{}", text.version));
    headers.extend(
        [(ETAG, plain(tag)), (VERSION, of)]
            .into_iter()
            .filter_map(some),
    );
    if let Some(at) = text.audited_at {
        headers.insert(AGE, at.age(crate::task::Timestamp::now()).as_secs().into());
        headers.insert(STALE, HeaderValue::from_static("?1"));
    }
    response
}

/// Which version `current` was.
const VERSION: HeaderName = HeaderName::from_static("hermes-version");

fn some((name, value): (HeaderName, Option<HeaderValue>)) -> Option<(HeaderName, HeaderValue)> {
    Some((name, value?))
}

fn refusal(missing: Missing) -> Refusal {
    let detail = missing.to_string();
    match missing {
        Missing::Unknown { .. } | Missing::Version { .. } => Refusal {
            title: "No such published contract",
            ..Refusal::of(Problem::NotFound, detail)
        },
        Missing::Bad { .. } => Refusal::of(Problem::UntrustedContract, detail),
        Missing::Away { .. } => unavailable(detail),
    }
}

pub(super) fn unavailable(detail: String) -> Refusal {
    Refusal {
        status: StatusCode::SERVICE_UNAVAILABLE,
        kind: "consul-unavailable",
        title: "Consul is not available",
        detail,
    }
}
