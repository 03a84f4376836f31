//! Fetching the reply of a call from the sidecar that has acknowledged it.

use super::prefer::PREFER;
use super::{ACKNOWLEDGED_WITHIN, CALLS};
use crate::backoff;
use crate::context::{Fields, header};
use crate::proxy::body::Body;
use crate::proxy::forward::{self, Answer};
use crate::proxy::headers;
use crate::proxy::respond::Trouble;
use crate::proxy::stated;
use crate::proxy::upstream::Upstream;
use crate::socket::Speaks;
use crate::task::{Deadline, Id, Problem, State};
use crate::telemetry::log::Chain;
use http::header::HOST;
use http::{HeaderValue, Method, Request, StatusCode, Version};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the other sidecar is asked to wait for the end before it says that there is none yet.
const WAIT: Duration = Duration::from_secs(10);
/// How much later than that its answer may come; a peer that is silent for longer is asked anew.
const SLACK: Duration = Duration::from_secs(2);
/// Pauses between questions that were not answered, or sooner than asked.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Which reply is fetched.
pub struct Fetching<'a> {
    pub call_id: &'a Id,
    pub task_id: &'a Id,
    /// The calling application, which the call's scope is.
    pub application: &'a str,
    pub pseudonym: &'a HeaderValue,
    /// The longest body that is taken.
    pub max: usize,
}

/// What an answer to the question means.
enum Meaning {
    Reply,
    NotYet,
    /// The sidecar does not know the call: not any more, or not yet, since it may be carrying out
    /// an attempt at it that its application has not got.
    Unknown,
    /// The sidecar does not know any more what became of the call.
    Forgotten,
}

/// Asks for the reply until it is there or the deadline has passed.
///
/// A call that is unknown there may still be acknowledged; it has the time that it has for that.
/// A peer that cannot be reached may be on its way back, so only the deadline ends the questions.
pub async fn fetch(
    upstream: &Arc<Upstream>,
    fetching: &Fetching<'_>,
    deadline: Deadline,
) -> Result<Answer, Trouble> {
    let mut backoff = backoff::Backoff::new(PAUSE, LONGEST_PAUSE);
    let known_by = Deadline::after(Instant::now(), ACKNOWLEDGED_WITHIN);
    loop {
        let asked = Instant::now();
        let wait = WAIT.min(deadline.left(asked));
        if wait.is_zero() {
            let detail = "the callee acknowledged the call and did not end it within its time";
            return Err(Trouble::new(Problem::Timeout, detail).executed(true));
        }
        let request = fetching.question(upstream, wait);
        let patience = Deadline::after(asked, wait + SLACK).earliest(deadline);
        let speaks = (request, Speaks::Either);
        match forward::whole(upstream, speaks, patience, fetching.max).await {
            Ok(answer) => match meaning(&answer, fetching.call_id) {
                Meaning::Reply => return Ok(answer),
                Meaning::Forgotten => return Err(forgotten()),
                Meaning::Unknown if known_by.left(Instant::now()).is_zero() => {
                    return Err(forgotten());
                }
                Meaning::Unknown | Meaning::NotYet => {}
            },
            Err(forward::Failed::TooLarge(max)) => {
                let failed = forward::Failed::TooLarge(max);
                return Err(failed.into_trouble(upstream.authority()));
            }
            Err(failed) => {
                let upstream = upstream.authority();
                tracing::debug!(upstream, error = %Chain(&failed), "a late reply was not fetched");
            }
        }
        if asked.elapsed() >= PAUSE {
            backoff.reset();
        }
        let pause = Deadline::after(Instant::now(), backoff.next_wait()).earliest(deadline);
        tokio::time::sleep_until(pause.instant()).await;
    }
}

impl Fetching<'_> {
    fn question(&self, upstream: &Upstream, wait: Duration) -> Request<Body> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::GET;
        let path = format!("{CALLS}{}", self.call_id.as_str());
        *request.uri_mut() = path.parse().unwrap_or_default();
        let fields = Fields {
            task_id: Some(self.task_id.clone()),
            call_id: Some(self.call_id.clone()),
            application: Some(self.application.to_owned()),
            ..Fields::default()
        };
        let out = request.headers_mut();
        fields.write(out);
        // In whole seconds, which the deadline here ends early.
        let seconds = wait.as_millis().div_ceil(1000);
        if let Ok(prefer) = HeaderValue::try_from(format!("wait={seconds}")) {
            out.insert(PREFER, prefer);
        }
        if let Ok(host) = HeaderValue::try_from(upstream.authority()) {
            out.insert(HOST, host);
        }
        headers::add_via(out, Version::HTTP_11, self.pseudonym);
        request
    }
}

/// Says whether the callee's sidecar has acknowledged the call instead of answering it.
///
/// No answer of an application looks so: its sidecar states the end that it means.
pub fn is_acknowledgement(answer: &Answer) -> bool {
    answer.status == StatusCode::ACCEPTED
        && stated::state(answer).is_some_and(|state| !state.is_end())
}

fn meaning(answer: &Answer, call_id: &Id) -> Meaning {
    if is_acknowledgement(answer) {
        return Meaning::NotYet;
    }
    let is_of_record = |problem| stated::is_of_record(answer, problem);
    if is_of_record(Problem::NotFound) {
        return Meaning::Unknown;
    }
    if is_of_record(Problem::InDoubt) {
        return Meaning::Forgotten;
    }
    let named = answer.headers.get(header::CALL_ID);
    let is_ours = named.is_some_and(|named| named.as_bytes() == call_id.as_str().as_bytes());
    match is_ours && stated::state(answer).is_some_and(State::is_end) {
        true => Meaning::Reply,
        // A refusal of the question, such as of a sidecar that is overloaded.
        false => Meaning::NotYet,
    }
}

fn forgotten() -> Trouble {
    let detail = "the callee acknowledged the call, but its sidecar stopped before the end and \
                  cannot say what came of it";
    Trouble::new(Problem::UpstreamReset, detail).executed(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::HeaderMap;
    use http::header::CONTENT_TYPE;
    use serde_json::json;

    fn answer(status: u16, fields: &[(&'static str, &'static str)], kind: &str) -> Answer {
        let mut headers = HeaderMap::new();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(CONTENT_TYPE, json);
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let kind = format!("{}{kind}", Problem::TYPE);
        let body = json!({"type": kind, "title": "t", "detail": "d"});
        Answer {
            version: Version::HTTP_11,
            status: StatusCode::from_u16(status).unwrap(),
            headers,
            body: Bytes::from(body.to_string()),
        }
    }

    #[test]
    fn answers_and_what_they_mean() {
        let (call, other) = (("hermes-call-id", "c"), ("hermes-call-id", "d"));
        let completed = ("hermes-state", "completed");
        let failed = ("hermes-state", "failed_execution");
        let executing = ("hermes-state", "executing");
        let relayed = ("hermes-executed", "?1");
        for (status, fields, kind, means) in [
            (200, &[call, completed, relayed][..], "", "reply"),
            // The application's own 202 is a reply; that of its sidecar is none.
            (202, &[call, completed, relayed], "", "reply"),
            (202, &[call, executing], "", "not yet"),
            (
                504,
                &[call, ("hermes-state", "timeout")],
                "timeout",
                "reply",
            ),
            (409, &[call, executing], "in-doubt", "forgotten"),
            (409, &[call, failed], "in-doubt", "forgotten"),
            (409, &[call, failed, relayed], "in-doubt", "reply"),
            (404, &[], "not-found", "unknown"),
            (404, &[call, failed, relayed], "not-found", "reply"),
            (429, &[], "overloaded", "not yet"),
            (200, &[other, completed, relayed], "", "not yet"),
            (200, &[completed, relayed], "", "not yet"),
        ] {
            let meant = match meaning(&answer(status, fields, kind), &Id::parse("c").unwrap()) {
                Meaning::Reply => "reply",
                Meaning::NotYet => "not yet",
                Meaning::Unknown => "unknown",
                Meaning::Forgotten => "forgotten",
            };
            assert_eq!(meant, means, "{status} {fields:?} {kind}");
        }
    }
}
