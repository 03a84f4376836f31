//! Turning outcomes into replies: the only place that writes problem bodies.
//!
//! A problem says what went wrong and where, never a value from a body (RFC 9457). The caller
//! reads a safe message; the log has the whole chain of causes.

use super::body::Body;
use super::forward::Answer;
use super::headers::{add_via, strip_context, strip_hop_by_hop, strip_length};
use crate::context::{Fields, header};
use crate::contract::Violations;
use crate::identity::Digest;
use crate::task::{Failure, Problem, State};
use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// A failure on its way to the caller.
#[derive(Debug)]
pub struct Trouble {
    pub problem: Problem,
    pub detail: String,
    pub violations: Option<Violations>,
    /// Whether bytes had gone to the application; `None` where no attempt was under way.
    pub executed: Option<bool>,
    pub retry_after: Option<Duration>,
    /// Methods that would be taken, for 405.
    pub allow: Option<String>,
    /// Where the call stands that is asked for again.
    pub stands: Option<State>,
}

impl Trouble {
    /// Names a problem and says what to do about it.
    pub fn new(problem: Problem, detail: impl Into<String>) -> Self {
        Self {
            problem,
            detail: detail.into(),
            violations: None,
            executed: None,
            retry_after: None,
            allow: None,
            stands: None,
        }
    }

    /// Adds the places where a body broke its contract.
    pub fn violating(problem: Problem, violations: Violations) -> Self {
        // The texts name places and rules; neither holds a value from the body.
        let detail = violations.to_string();
        Self {
            violations: Some(violations),
            ..Self::new(problem, detail)
        }
    }

    /// Says whether bytes had gone to the application.
    pub fn executed(mut self, executed: bool) -> Self {
        self.executed = Some(executed);
        self
    }

    /// Says when trying again makes sense.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Says where the call stands that this one asks for again.
    pub fn stands(mut self, state: State) -> Self {
        self.stands = Some(state);
        self
    }

    /// Returns what the attempt's report says of it.
    pub fn failure(&self) -> Failure {
        Failure {
            kind: self.problem.as_str().to_owned(),
            title: self.problem.title().to_owned(),
            detail: self.detail.clone(),
        }
    }
}

#[derive(Serialize)]
struct ProblemBody<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    /// Repeats `detail` for clients that look for one text only.
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<State>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<&'a [crate::contract::Violation]>,
}

/// Writes the reply for `trouble`; `names` are the call's ids as far as there are any.
pub fn trouble(trouble: &Trouble, names: &Fields, proxy: &HeaderValue) -> Response<Body> {
    let problem = trouble.problem;
    let state = trouble.stands.or(problem.state());
    let body = ProblemBody {
        r#type: format!("{}{}", Problem::TYPE, problem.as_str()),
        title: problem.title(),
        status: problem.status(),
        detail: &trouble.detail,
        error: &trouble.detail,
        state,
        task_id: names.task_id.as_ref().map(|id| id.as_str()),
        call_id: names.call_id.as_ref().map(|id| id.as_str()),
        errors: trouble.violations.as_ref().map(Violations::as_slice),
    };
    let body = serde_json::to_vec(&body).unwrap_or_default();
    let mut response = Response::new(Body::whole(Bytes::from(body)));
    *response.status_mut() = status(problem);
    let headers = response.headers_mut();
    let json = HeaderValue::from_static("application/problem+json");
    headers.insert(CONTENT_TYPE, json);
    name(headers, names);
    if let Some(state) = state {
        say_state(headers, state);
    }
    if let Some(executed) = trouble.executed {
        say_executed(headers, executed);
    }
    if let Some(wait) = trouble.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(wait.as_secs().max(1)));
    }
    if let Some(allow) = trouble
        .allow
        .as_deref()
        .and_then(|a| HeaderValue::from_str(a).ok())
    {
        headers.insert(http::header::ALLOW, allow);
    }
    if problem == Problem::UnsupportedMediaType {
        // What would be taken instead (RFC 9110 section 15.5.16).
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    say_proxy_status(headers, proxy, problem);
    response
}

fn status(problem: Problem) -> StatusCode {
    StatusCode::from_u16(problem.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Repeats the ids of a call in its reply.
fn name(headers: &mut HeaderMap, names: &Fields) {
    names.write(headers);
}

/// States the end of the attempt.
fn say_state(headers: &mut HeaderMap, state: State) {
    headers.insert(header::STATE, HeaderValue::from_static(state.as_str()));
}

/// States whether bytes had gone to the application.
fn say_executed(headers: &mut HeaderMap, executed: bool) {
    let value = if executed { "?1" } else { "?0" };
    headers.insert(header::EXECUTED, HeaderValue::from_static(value));
}

/// States the digest of the body as forwarded (RFC 9530).
pub fn say_digest(headers: &mut HeaderMap, digest: Digest) {
    if let Ok(value) = HeaderValue::try_from(digest.to_content_digest()) {
        headers.insert(header::CONTENT_DIGEST, value);
    }
}

/// Says which hop failed and how (RFC 9209).
fn say_proxy_status(headers: &mut HeaderMap, proxy: &HeaderValue, problem: Problem) {
    let error = match problem {
        Problem::Timeout => "http_response_timeout",
        Problem::BudgetExhausted => "connection_timeout",
        Problem::UpstreamUnreachable => "connection_refused",
        Problem::UpstreamReset => "connection_terminated",
        Problem::ReplyTooLarge => "http_response_body_size",
        Problem::OutputInvalid | Problem::ReplyDigestMismatch => "http_protocol_error",
        Problem::NoInstance | Problem::UnknownAgent => "destination_not_found",
        Problem::NotReady | Problem::Draining => "destination_unavailable",
        Problem::Overloaded => "connection_limit_reached",
        Problem::Loop => "proxy_loop_detected",
        Problem::Internal => "proxy_internal_error",
        Problem::Forbidden | Problem::HostRefused => "http_request_denied",
        _ => "http_request_error",
    };
    let mut value = String::with_capacity(96);
    value.push_str(proxy.to_str().unwrap_or("hermes"));
    // Writing to a string cannot fail.
    write!(value, "; error={error}; details=\"{}\"", problem.as_str()).ok();
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(header::PROXY_STATUS, value);
    }
}

/// What a reply says of the call it ends, beside the application's own answer.
#[derive(Debug)]
pub struct Said<'a> {
    pub names: &'a Fields,
    pub end: State,
    pub executed: bool,
    pub digest: Digest,
    pub timing: &'a Timing,
    pub proxy: &'a HeaderValue,
}

/// Writes the reply that carries an application's answer: its status and bytes unchanged.
pub fn answer(answer: Answer, said: &Said<'_>) -> Response<Body> {
    let Answer {
        version,
        status,
        mut headers,
        body,
    } = answer;
    strip_hop_by_hop(&mut headers);
    strip_context(&mut headers);
    strip_length(&mut headers);
    name(&mut headers, said.names);
    say_state(&mut headers, said.end);
    say_executed(&mut headers, said.executed);
    say_digest(&mut headers, said.digest);
    add_via(&mut headers, version, said.proxy);
    said.timing.write(&mut headers);
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The longest `Server-Timing` of a reply.
const LONGEST_TIMINGS: usize = 1 << 10;

/// Puts what we say of our times before what those behind us say of theirs, in one line (RFC 9110
/// section 5.3): many clients read the first line of a field only. What is over the length is left
/// out, the farthest first.
fn add_timing(headers: &mut HeaderMap, own: &str) {
    let lines = headers.get_all(header::SERVER_TIMING).iter();
    let theirs = lines.filter_map(|line| list(line.to_str().ok()?)).flatten();
    let mut all = own.to_owned();
    for member in theirs {
        if all.len() + 2 + member.len() > LONGEST_TIMINGS {
            break;
        }
        all.push_str(", ");
        all.push_str(member);
    }
    if let Ok(value) = HeaderValue::try_from(all) {
        headers.insert(header::SERVER_TIMING, value);
    }
}

/// Splits a list at the commas that are in no quotes; one with open quotes would swallow what comes
/// after it.
fn list(line: &str) -> Option<Vec<&str>> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let members = line.split(|c: char| {
        let is_comma = c == ',' && !is_quoted;
        is_quoted ^= c == '"' && !is_escaped;
        is_escaped = c == '\\' && is_quoted && !is_escaped;
        is_comma
    });
    let members: Vec<&str> = members
        .map(str::trim)
        .filter(|one| !one.is_empty())
        .collect();
    (!is_quoted).then_some(members)
}

/// Says which instance has answered, as a member of `Server-Timing` without a time.
pub fn say_instance(headers: &mut HeaderMap, instance: &str) {
    // What would want an escape is no id that Consul takes well.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:@/".contains(c);
    if instance.chars().all(plain) {
        add_timing(headers, &format!("instance;desc=\"{instance}\""));
    }
}

/// Times of the parts of a call, for `Server-Timing`.
#[derive(Debug, Default, Clone, Copy)]
pub struct Timing {
    pub validate: Duration,
    pub route: Duration,
    pub upstream: Duration,
    pub record: Duration,
}

impl Timing {
    /// Returns the time that was our own.
    pub fn own(&self, total: Duration) -> Duration {
        total.saturating_sub(self.upstream)
    }

    /// Writes the header, in milliseconds as the specification asks.
    pub fn write(&self, headers: &mut HeaderMap) {
        let parts = [
            ("validate", self.validate),
            ("route", self.route),
            ("upstream", self.upstream),
            ("record", self.record),
        ];
        let mut value = String::with_capacity(96);
        for (name, part) in parts {
            let comma = if value.is_empty() { "" } else { ", " };
            let micros = part.as_micros();
            let (whole, thousandths) = (micros / 1000, micros % 1000);
            // Writing to a string cannot fail.
            write!(value, "{comma}{name};dur={whole}.{thousandths:03}").ok();
        }
        add_timing(headers, &value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replied(theirs: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for line in theirs {
            let line = HeaderValue::from_str(line).unwrap();
            headers.append(header::SERVER_TIMING, line);
        }
        Timing::default().write(&mut headers);
        say_instance(&mut headers, "fraud-1");
        let mut lines = headers.get_all(header::SERVER_TIMING).iter();
        let line = lines.next().unwrap().to_str().unwrap().to_owned();
        assert!(lines.next().is_none(), "{headers:?}");
        line
    }

    #[test]
    fn times_are_one_line_with_the_nearest_first() {
        const OURS: &str = "instance;desc=\"fraud-1\", validate;dur=0.000, route;dur=0.000, \
                            upstream;dur=0.000, record;dur=0.000";
        for (theirs, rest) in [
            (&[][..], ""),
            (&["db;dur=4"], ", db;dur=4"),
            (&["db;dur=4,,cache ", "app"], ", db;dur=4, cache, app"),
            (&["a;desc=\"x, \\\", y\", b"], ", a;desc=\"x, \\\", y\", b"),
            (&["a;desc=\"open, b", "c"], ", c"),
            (&["a;desc=\"open\\\"", "c"], ", c"),
            (&["", "c"], ", c"),
        ] {
            assert_eq!(replied(theirs), format!("{OURS}{rest}"), "{theirs:?}");
        }
        // The farthest are left out, and nothing in the middle.
        let long = format!("a, b;desc=\"{}\", c", "x".repeat(LONGEST_TIMINGS));
        assert_eq!(replied(&[&long]), format!("{OURS}, a"));
        let many = vec!["part;dur=1.000"; 500].join(", ");
        let line = replied(&[&many]);
        assert!(
            (LONGEST_TIMINGS - 16..=LONGEST_TIMINGS).contains(&line.len()),
            "{}",
            line.len()
        );
    }
}
