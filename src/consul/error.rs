//! Why a call to Consul failed, said with what was being tried.

use std::path::PathBuf;

use reqwest::StatusCode;

/// Longest piece of Consul's own text that an error repeats.
const MAX_TEXT_CHARS: usize = 300;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Consul address {address:?} is not usable: {reason}")]
    Address { address: String, reason: String },
    #[error("read the Consul {what} {path}", path = path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("set up the Consul client: {what}")]
    Setup {
        what: &'static str,
        source: reqwest::Error,
    },
    /// Found by us before anything was sent; names every field at fault.
    #[error("{what} does not fit Consul: {}", problems.join("; "))]
    Invalid { what: String, problems: Vec<String> },
    #[error("{doing}: Consul cannot be reached")]
    Unreachable {
        doing: String,
        source: reqwest::Error,
    },
    #[error("{doing}: no answer from Consul in time")]
    Timeout {
        doing: String,
        source: reqwest::Error,
    },
    #[error("{doing}: Consul answered {status}: {text}")]
    Status {
        doing: String,
        status: u16,
        text: String,
        kind: ErrorKind,
    },
    #[error("{doing}: Consul's answer makes no sense: {reason}")]
    BadAnswer { doing: String, reason: String },
}

/// The kinds a caller may tell apart; also the metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No connection, or it broke before the answer was whole.
    Unreachable,
    Timeout,
    /// The token lacks a right, or Consul does not know the token.
    Denied,
    NoLeader,
    /// The agent has lost our check: register again.
    UnknownCheck,
    RateLimited,
    /// Consul refused the request itself.
    Refused,
    /// Consul failed at it; the same request may work later.
    Failed,
    BadAnswer,
    /// Never sent: it breaks a limit that we know, or our own set-up is at fault.
    Invalid,
}

impl ErrorKind {
    pub const ALL: [ErrorKind; 10] = [
        ErrorKind::Unreachable,
        ErrorKind::Timeout,
        ErrorKind::Denied,
        ErrorKind::NoLeader,
        ErrorKind::UnknownCheck,
        ErrorKind::RateLimited,
        ErrorKind::Refused,
        ErrorKind::Failed,
        ErrorKind::BadAnswer,
        ErrorKind::Invalid,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Denied => "denied",
            ErrorKind::NoLeader => "no_leader",
            ErrorKind::UnknownCheck => "unknown_check",
            ErrorKind::RateLimited => "rate_limited",
            ErrorKind::Refused => "refused",
            ErrorKind::Failed => "failed",
            ErrorKind::BadAnswer => "bad_answer",
            ErrorKind::Invalid => "invalid",
        }
    }
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Unreachable { .. } => ErrorKind::Unreachable,
            Error::Timeout { .. } => ErrorKind::Timeout,
            Error::Status { kind, .. } => *kind,
            Error::BadAnswer { .. } => ErrorKind::BadAnswer,
            Error::Address { .. }
            | Error::File { .. }
            | Error::Setup { .. }
            | Error::Invalid { .. } => ErrorKind::Invalid,
        }
    }

    /// Tells that the agent no longer has our check, so that we must register again.
    pub fn is_unknown_check(&self) -> bool {
        self.kind() == ErrorKind::UnknownCheck
    }

    /// Sorts out a failure of the HTTP exchange itself.
    pub(super) fn exchange(doing: &str, source: reqwest::Error) -> Error {
        let doing = doing.to_owned();
        // The URL repeats what `doing` says, in a longer form.
        let source = source.without_url();
        if source.is_timeout() {
            Error::Timeout { doing, source }
        } else {
            Error::Unreachable { doing, source }
        }
    }

    pub(super) fn status(doing: &str, status: StatusCode, body: &[u8]) -> Error {
        let text = String::from_utf8_lossy(body);
        Error::Status {
            doing: doing.to_owned(),
            status: status.as_u16(),
            kind: kind_of(status, &text),
            text: text.trim().chars().take(MAX_TEXT_CHARS).collect(),
        }
    }
}

/// Consul has no error codes beside the HTTP status: most of its failures are 500 and differ in
/// their text alone. This is the one place that reads such texts.
fn kind_of(status: StatusCode, text: &str) -> ErrorKind {
    if text.contains("does not have associated TTL") || text.contains("Unknown check") {
        return ErrorKind::UnknownCheck;
    }
    match status.as_u16() {
        401 | 403 => ErrorKind::Denied,
        // From 1.15 on an unknown token is 404 in places.
        _ if text.contains("ACL not found") || text.contains("Permission denied") => {
            ErrorKind::Denied
        }
        // 1.15 sheds load with either; both say the same in the body.
        429 => ErrorKind::RateLimited,
        _ if text.contains("rate limit") => ErrorKind::RateLimited,
        _ if text.contains("No cluster leader") => ErrorKind::NoLeader,
        500..=599 => ErrorKind::Failed,
        _ => ErrorKind::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_sorted_by_status_and_text() {
        let cases = [
            (
                500,
                "CheckID \"x\" does not have associated TTL",
                ErrorKind::UnknownCheck,
            ),
            (404, "Unknown check ID \"x\"", ErrorKind::UnknownCheck),
            (500, "Unknown check \"x\"", ErrorKind::UnknownCheck),
            (403, "Permission denied", ErrorKind::Denied),
            (403, "ACL not found", ErrorKind::Denied),
            (404, "ACL not found", ErrorKind::Denied),
            (
                500,
                "rpc error making call: Permission denied",
                ErrorKind::Denied,
            ),
            (500, "No cluster leader", ErrorKind::NoLeader),
            (500, "rpc error making call: EOF", ErrorKind::Failed),
            (429, "", ErrorKind::RateLimited),
            (
                503,
                "rate limit exceeded, try again later",
                ErrorKind::RateLimited,
            ),
            (400, "Invalid service address", ErrorKind::Refused),
            (413, "Request body too large", ErrorKind::Refused),
            (301, "", ErrorKind::Refused),
        ];
        for (status, text, kind) in cases {
            let status = StatusCode::from_u16(status).expect("a status");
            let error = Error::status("test", status, text.as_bytes());
            assert_eq!(error.kind(), kind, "{status} {text:?}");
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let error = Error::status("test", StatusCode::INTERNAL_SERVER_ERROR, &[b'x'; 10_000]);
        assert!(error.to_string().len() < 400);
    }
}
