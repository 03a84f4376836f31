//! The kinds of failure a caller can meet: wire name, status code and the state it leaves.
//!
//! One table for problem bodies, reports and metric labels, so that they cannot disagree.

use super::State;

/// What went wrong, as told in `urn:hermes:problem:KIND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Problem {
    BadContext,
    BadJson,
    BodyRequired,
    InputInvalid,
    RequestDigestMismatch,
    BadRequest,
    OutputInvalid,
    ReplyDigestMismatch,
    TooLarge,
    UnsupportedMediaType,
    UnknownAgent,
    NotFound,
    MethodNotAllowed,
    Forbidden,
    HostRefused,
    Loop,
    RequestTimeout,
    UriTooLong,
    Misdirected,
    HeadersTooLarge,
    InFlight,
    InDoubt,
    IdempotencyMismatch,
    NoInstance,
    UntrustedContract,
    NotReady,
    Draining,
    SpoolUnavailable,
    Overloaded,
    UpstreamUnreachable,
    UpstreamReset,
    ReplyTooLarge,
    Timeout,
    BudgetExhausted,
    Internal,
}

/// One row of the table: kind, wire name, metric label, status, title, state it leaves.
type Row = (
    Problem,
    &'static str,
    &'static str,
    u16,
    &'static str,
    Option<State>,
);

use Problem::*;
use State::{FailedExecution, FailedValidation};

#[rustfmt::skip]
const TABLE: [Row; 35] = [
    (BadContext, "bad-context", "bad_context", 400, "The task context is malformed", Some(FailedValidation)),
    (BadJson, "bad-json", "bad_json", 400, "The body is not acceptable JSON", Some(FailedValidation)),
    (BodyRequired, "body-required", "body_required", 400, "A body is required", Some(FailedValidation)),
    (InputInvalid, "input-invalid", "input_invalid", 400, "The input breaks the contract", Some(FailedValidation)),
    (RequestDigestMismatch, "digest-mismatch", "digest_mismatch", 400, "The body does not match its Content-Digest", Some(FailedValidation)),
    (BadRequest, "bad-request", "bad_request", 400, "The request is malformed", None),
    (OutputInvalid, "output-invalid", "output_invalid", 502, "The output breaks the contract", Some(FailedValidation)),
    (ReplyDigestMismatch, "digest-mismatch", "digest_mismatch", 502, "The reply does not match its Content-Digest", Some(FailedValidation)),
    (TooLarge, "too-large", "too_large", 413, "The body is too large", Some(FailedValidation)),
    (UnsupportedMediaType, "unsupported-media-type", "unsupported_media_type", 415, "The media type or coding is not supported", Some(FailedValidation)),
    (UnknownAgent, "unknown-agent", "unknown_agent", 404, "No such agent", None),
    (NotFound, "not-found", "not_found", 404, "Nothing is served here", None),
    (MethodNotAllowed, "method-not-allowed", "method_not_allowed", 405, "The method is not allowed here", None),
    (Forbidden, "forbidden", "forbidden", 403, "The caller may not do this", None),
    (HostRefused, "host-refused", "host_refused", 403, "The request names a foreign host or site", None),
    (Loop, "loop", "loop", 508, "The call has come back to where it was", None),
    (RequestTimeout, "request-timeout", "request_timeout", 408, "The request did not arrive in time", None),
    (UriTooLong, "uri-too-long", "uri_too_long", 414, "The request target is too long", None),
    (Misdirected, "misdirected", "misdirected", 421, "The agent is not served by this sidecar", None),
    (HeadersTooLarge, "headers-too-large", "headers_too_large", 431, "The header section is too large", None),
    (InFlight, "in-flight", "in_flight", 409, "The call is being carried out", None),
    (InDoubt, "in-doubt", "in_doubt", 409, "What came of the call is not known", None),
    (IdempotencyMismatch, "idempotency-mismatch", "idempotency_mismatch", 422, "The key stands for another request", None),
    (NoInstance, "no-instance", "no_instance", 503, "No fitting instance is available", Some(FailedExecution)),
    (UntrustedContract, "untrusted-contract", "untrusted_contract", 503, "The contract cannot be trusted", Some(FailedExecution)),
    (NotReady, "not-ready", "not_ready", 503, "The agent is not ready", Some(FailedExecution)),
    (Draining, "draining", "draining", 503, "The sidecar is stopping", Some(FailedExecution)),
    (SpoolUnavailable, "spool-unavailable", "spool_unavailable", 503, "The call could not be recorded", Some(FailedExecution)),
    (Overloaded, "overloaded", "overloaded", 429, "The agent is at its concurrency limit", Some(FailedExecution)),
    (UpstreamUnreachable, "upstream-unreachable", "upstream_unreachable", 502, "The upstream could not be reached", Some(FailedExecution)),
    (UpstreamReset, "upstream-reset", "upstream_reset", 502, "The upstream broke off", Some(FailedExecution)),
    (ReplyTooLarge, "reply-too-large", "reply_too_large", 502, "The reply is too large", Some(FailedExecution)),
    (Timeout, "timeout", "timeout", 504, "The attempt ran out of time", Some(State::Timeout)),
    (BudgetExhausted, "budget-exhausted", "budget_exhausted", 504, "The deadline left no time for an attempt", Some(State::Timeout)),
    (Internal, "internal", "internal", 500, "The sidecar failed", Some(FailedExecution)),
];

impl Problem {
    /// How the `type` of every problem begins; KIND follows.
    pub const TYPE: &str = "urn:hermes:problem:";

    /// Returns every kind once.
    pub fn all() -> impl Iterator<Item = Problem> {
        TABLE.iter().map(|row| row.0)
    }

    fn row(self) -> &'static Row {
        // The test below holds that the table is in the enum's order and complete.
        &TABLE[self as usize]
    }

    /// Returns KIND, as in the problem's `type`.
    pub fn as_str(self) -> &'static str {
        self.row().1
    }

    /// Returns the metric label: KIND with underscores.
    pub fn label(self) -> &'static str {
        self.row().2
    }

    /// Returns the HTTP status code.
    pub fn status(self) -> u16 {
        self.row().3
    }

    /// Returns the short text that never changes for a kind.
    pub fn title(self) -> &'static str {
        self.row().4
    }

    /// Returns the end state it leaves, or nothing when no task came into being.
    pub fn state(self) -> Option<State> {
        self.row().5
    }

    /// Finds the kind a peer named; the status tells the two digest mismatches apart.
    pub fn from_wire(kind: &str, status: u16) -> Option<Problem> {
        TABLE
            .iter()
            .find(|row| row.1 == kind && row.3 == status)
            .map(|row| row.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_follows_the_enum() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, index, "{:?} is out of order", row.0);
            assert_eq!(row.1.replace('-', "_"), row.2);
            assert_eq!(Problem::from_wire(row.1, row.3), Some(row.0));
        }
        assert_eq!(Internal as usize + 1, TABLE.len());
    }

    #[test]
    fn a_left_state_is_an_end() {
        for problem in Problem::all() {
            assert!(problem.state().is_none_or(State::is_end), "{problem:?}");
        }
    }
}
