//! What a contract call must bring before it becomes one: media type, size, a whole body in time.

use super::body;
use super::head;
use super::headers;
use super::received::Received;
use super::respond::Trouble;
use crate::contract::guard;
use crate::task::Problem;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::request::Parts;
use std::time::Duration;

/// How much of a refused request's body is read and forgotten, and for how long.
const MOST_DISCARDED: usize = 16 * 1024 * 1024;
const DISCARDED_WITHIN: Duration = Duration::from_secs(2);

/// How much a request may bring, and how slowly.
#[derive(Debug, Clone)]
pub struct Limits {
    pub head: head::Limits,
    pub max_body_bytes: usize,
    pub body: guard::Limits,
    pub body_timeout: Duration,
}

/// Where a call's input comes from.
pub enum Source {
    /// The request's body is the input.
    Body(Received),
    /// It was taken out of a wrapper.
    Input(Bytes),
    /// The wrapper had a fault, but whom it was for is known.
    Refused(Box<Trouble>),
}

impl Limits {
    /// Refuses what the head alone shows to be no contract call.
    pub fn check(&self, head: &Parts) -> Result<(), Trouble> {
        if !headers::is_json(&head.headers) {
            let detail =
                "a contract call takes Content-Type: application/json, or a type ending in +json";
            return Err(Trouble::new(Problem::UnsupportedMediaType, detail));
        }
        if headers::is_coded(&head.headers) {
            let detail = "a coded body cannot be checked; send it with Content-Encoding: identity";
            return Err(Trouble::new(Problem::UnsupportedMediaType, detail));
        }
        let declared = head.headers.get(CONTENT_LENGTH);
        let declared = declared.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if declared.is_some_and(|length| length > self.max_body_bytes as u64) {
            return Err(too_large(self.max_body_bytes));
        }
        Ok(())
    }

    /// Reads a whole body.
    pub async fn read(&self, incoming: Received) -> Result<Bytes, Trouble> {
        let limit = self.body_timeout;
        let reading = body::collect(incoming, self.max_body_bytes);
        match tokio::time::timeout(limit, reading).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(body::Error::TooLarge(max))) => Err(too_large(max)),
            Ok(Err(error)) => {
                let detail = format!("the body did not arrive whole: {error}");
                Err(Trouble::new(Problem::BadRequest, detail))
            }
            Err(_elapsed) => {
                let detail =
                    format!("the body did not arrive within limits.body_timeout, {limit:?}");
                Err(Trouble::new(Problem::RequestTimeout, detail))
            }
        }
    }
}

impl Source {
    /// Returns the input, reading it if it has not been read.
    pub async fn read(self, limits: &Limits) -> Result<Bytes, Trouble> {
        match self {
            Source::Input(input) => Ok(input),
            Source::Refused(trouble) => Err(*trouble),
            Source::Body(incoming) => limits.read(incoming).await,
        }
    }
}

/// Lets the body of a refused request go by, so that its sender is there to read the refusal.
///
/// A sender that is cut off while it writes often loses the answer (RFC 9112 section 9.6). Who
/// waits for a 100 has not begun and is not asked to. Returns whether the connection can go on.
pub async fn turn_away(head: &Parts, incoming: Received) -> bool {
    if head.headers.contains_key(EXPECT) {
        return false;
    }
    let reading = body::discard(incoming, MOST_DISCARDED);
    tokio::time::timeout(DISCARDED_WITHIN, reading)
        .await
        .unwrap_or(false)
}

fn too_large(max: usize) -> Trouble {
    let detail = format!("the body is longer than limits.max_body_bytes, {max} bytes");
    Trouble::new(Problem::TooLarge, detail)
}
