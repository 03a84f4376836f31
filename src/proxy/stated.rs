//! What an answer of another sidecar states of the call: its own problem, the state, and whether
//! bytes had gone to the application.
//!
//! - elsewhere: how it is written (`respond`), and what it means for a call (`outbound`, `later`)

use super::forward::Answer;
use super::headers;
use crate::context::{boolean, header};
use crate::task::{Problem, State};

/// A problem that an answer carries, whoever wrote it first.
#[derive(Debug, PartialEq, Eq)]
pub struct Stated {
    pub problem: Problem,
    pub title: String,
    pub detail: String,
}

/// Reads the problem that an answer carries.
pub fn problem(answer: &Answer) -> Option<Stated> {
    #[derive(serde::Deserialize)]
    struct Written {
        r#type: String,
        title: String,
        detail: String,
    }
    if answer.status.is_success() || !headers::is_json(&answer.headers) {
        return None;
    }
    let written: Written = serde_json::from_slice(&answer.body).ok()?;
    let kind = written.r#type.strip_prefix(Problem::TYPE)?;
    Some(Stated {
        problem: Problem::from_wire(kind, answer.status.as_u16())?,
        title: written.title,
        detail: written.detail,
    })
}

/// Says whether the sidecar itself states this problem of its record. What an application relays
/// has passed its sidecar, which says that the application was reached.
pub fn is_of_record(answer: &Answer, expected: Problem) -> bool {
    !answer.headers.contains_key(header::EXECUTED)
        && problem(answer).is_some_and(|stated| stated.problem == expected)
}

/// Says whether the sidecar is still at work on what was asked of it before.
pub fn is_in_flight(answer: &Answer) -> bool {
    is_of_record(answer, Problem::InFlight)
}

/// Reads the state of the attempt.
pub fn state(answer: &Answer) -> Option<State> {
    State::from_wire(answer.headers.get(header::STATE)?.to_str().ok()?)
}

/// Reads whether bytes had gone to the application.
pub fn executed(answer: &Answer) -> Option<bool> {
    boolean(answer.headers.get(header::EXECUTED)?.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};
    use serde_json::json;

    fn answer(status: u16, kind: &str, fields: &[(&'static str, &'static str)]) -> Answer {
        let body = json!({"type": format!("{}{kind}", Problem::TYPE), "title": "t", "detail": "d"});
        let pair = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        Answer {
            version: Version::HTTP_11,
            status: StatusCode::from_u16(status).unwrap(),
            headers: fields.iter().map(pair).collect::<HeaderMap>(),
            body: body.to_string().into(),
        }
    }

    #[test]
    fn a_call_that_is_under_way_is_known_by_its_sidecar_s_own_word() {
        let json = ("content-type", "application/problem+json");
        for (status, kind, fields, expected) in [
            (409, "in-flight", &[json][..], true),
            // An intermediary between the sidecars changes nothing.
            (409, "in-flight", &[json, ("via", "1.1 balancer")], true),
            (409, "in-flight", &[json, ("hermes-executed", "?1")], false),
            (409, "in-doubt", &[json], false),
            (200, "in-flight", &[json], false),
            (409, "in-flight", &[("content-type", "text/plain")], false),
            (409, "no-such-kind", &[json], false),
        ] {
            let answer = answer(status, kind, fields);
            assert_eq!(
                is_in_flight(&answer),
                expected,
                "{status} {kind} {fields:?}"
            );
        }
    }
}
