//! Calls that come again: work that must not be done twice is answered from the record.
//!
//! A contract that does not call itself idempotent gets a row before its application is asked.
//! The key is the application's own `Idempotency-Key`, else the call's id, which a caller keeps
//! over its attempts; it counts within the calling application.

use super::{Inbound, Served};
use crate::context::{Fields, header};
use crate::identity::Digest;
use crate::proxy::body::Body;
use crate::proxy::forward;
use crate::proxy::headers;
use crate::proxy::respond::Trouble;
use crate::reply::{Answer, Found, Name, Ticket, Unrecorded};
use crate::task::{Failure, Id, Problem, State};
use crate::telemetry::log::Chain;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};
use std::sync::Arc;
use std::time::Duration;

/// How long a call waits for its row, and as long again for what is known without it. After that
/// it goes on all the same, which is counted, if it can be no repeat.
const WAIT: Duration = Duration::from_millis(50);
/// Keys longer than this are refused: what is kept must be bounded.
const LONGEST_KEY: usize = 256;

/// What the record says of a call.
pub enum Before {
    /// It is to be carried out; the ticket says how that ended, where it must not be done twice.
    Nothing(Option<Ticket>),
    /// It was answered: once more, with how it ended.
    Answered(forward::Answer, State, Option<Failure>),
}

impl Inbound {
    /// Looks a call up and begins its row; a call that may not be carried out now is refused.
    pub(super) async fn before(
        &self,
        served: &Served,
        fields: &Fields,
        head: &Parts,
        payload: Digest,
    ) -> Result<Before, Trouble> {
        if served.contract.contract.idempotent {
            return Ok(Before::Nothing(None));
        }
        let name = name(served, fields, head);
        let payload = fingerprint(served, head, payload);
        Err(match self.replies.begin(name, payload, WAIT).await {
            Found::New(ticket) => return Ok(Before::Nothing(Some(ticket))),
            Found::Unrecorded(ticket, why) if may_hide(&why, fields) => {
                ticket.undone();
                tracing::warn!(contract = served.id(), error = %Chain(&why), "a repeat was refused");
                refused(
                    Problem::InDoubt,
                    State::Executing,
                    "whether this call was begun before cannot be told now; it is not begun again",
                )
            }
            Found::Unrecorded(ticket, why) => {
                self.unrecorded(served, &why);
                return Ok(Before::Nothing(Some(ticket)));
            }
            Found::Answered(answer) => return Ok(again(answer)),
            Found::InFlight => refused(
                Problem::InFlight,
                State::Executing,
                "this call is being carried out; ask again for its answer",
            ),
            Found::InDoubt(state) => refused(
                Problem::InDoubt,
                state,
                "this call was begun and nobody can say what came of it; it is not begun again",
            ),
            Found::OtherPayload(state) => refused(
                Problem::IdempotencyMismatch,
                state,
                "this Idempotency-Key stands for another request; use a fresh key",
            ),
        })
    }

    /// Tells of a call that goes on although its row is not on disk yet.
    fn unrecorded(&self, served: &Served, why: &Unrecorded) {
        self.recorder.metrics.durability_degraded();
        tracing::warn!(
            contract = served.id(),
            error = %Chain(why),
            "a call goes on unrecorded: after a crash it would not be known again"
        );
    }
}

/// Says whether a call may have come before although no row of it is found.
fn may_hide(why: &Unrecorded, fields: &Fields) -> bool {
    let is_another_attempt = fields.attempt.is_some_and(|attempt| attempt > 1);
    match why {
        Unrecorded::Late => false,
        // The row of its first attempt may have failed like this one. Keys of applications must
        // not fail with the disk; for them the rows that are there have to do.
        Unrecorded::Failed(_) => is_another_attempt,
        // A first attempt may arrive after a later one.
        Unrecorded::Unread(_) | Unrecorded::ReadLate => true,
    }
}

/// Says whether a call may be a repeat of one that was made before.
pub fn may_be_known(fields: &Fields, head: &Parts) -> bool {
    let is_another_attempt = fields.attempt.is_some_and(|attempt| attempt > 1);
    is_another_attempt || head.headers.contains_key(header::IDEMPOTENCY_KEY)
}

/// What the application gets that tells one request from another under the same key: the body,
/// and the query where that is handed on.
fn fingerprint(served: &Served, head: &Parts, body: Digest) -> Digest {
    match served.query(&head.uri) {
        Some(query) => Digest::of(format!("{body}?{query}").as_bytes()),
        None => body,
    }
}

/// Refuses a key that could not be kept, or that is not one.
pub fn check_key(headers: &HeaderMap) -> Result<(), Trouble> {
    let mut given = headers.get_all(header::IDEMPOTENCY_KEY).iter();
    let (first, second) = (given.next(), given.next());
    let detail = match (first, second) {
        (None, _) => return Ok(()),
        (Some(_), Some(_)) => "there is more than one Idempotency-Key; send one".to_owned(),
        (Some(_), None) => {
            let key = headers::own_idempotency_key(headers).unwrap_or_default();
            let is_visible = key.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            if is_visible && (1..=LONGEST_KEY).contains(&key.len()) {
                return Ok(());
            }
            format!("Idempotency-Key is 1 to {LONGEST_KEY} visible ASCII characters")
        }
    };
    Err(Trouble::new(Problem::BadContext, detail).executed(false))
}

fn refused(problem: Problem, state: State, detail: &str) -> Trouble {
    let trouble = Trouble::new(problem, detail).stands(state);
    match problem {
        Problem::InFlight => trouble.retry_after(Duration::from_secs(1)),
        _ => trouble,
    }
}

/// Names a call by a key that was checked with its head, else by its id.
fn name(served: &Served, fields: &Fields, head: &Parts) -> Name {
    let own = headers::own_idempotency_key(&head.headers);
    let call_id = fields.call_id.as_ref().map(Id::as_str);
    Name {
        scope: scope(fields, &head.headers),
        agent: Arc::from(served.id()),
        key: Arc::from(own.or(call_id).unwrap_or_default()),
    }
}

/// Names whose key it is: the calling application, else the peer's address.
pub fn scope(fields: &Fields, headers: &HeaderMap) -> Arc<str> {
    if let Some(application) = fields.application.as_deref() {
        return Arc::from(application);
    }
    match headers::last_forwarded_for(headers) {
        Some(address) => Arc::from(format!("address {address}")),
        None => Arc::from("this machine"),
    }
}

fn again(answer: Answer) -> Before {
    let mut headers = HeaderMap::new();
    for (name, value) in &answer.headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(&bytes(value))) {
            headers.append(name, value);
        }
    }
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kept = forward::Answer {
        version: Version::HTTP_11,
        status,
        headers,
        body: answer.body,
    };
    Before::Answered(kept, answer.state, answer.failure)
}

/// Makes what is kept of the application's own answer.
pub fn kept(answer: &forward::Answer, state: State, failure: Option<Failure>) -> Answer {
    Answer {
        status: answer.status.as_u16(),
        headers: pairs(&answer.headers),
        body: answer.body.clone(),
        state,
        failure,
    }
}

/// Makes what is kept where the answer is a problem of ours.
pub fn kept_problem(response: &Response<Body>, state: State, failure: Failure) -> Answer {
    let body = match response.body() {
        Body::Whole(bytes) => bytes.clone().unwrap_or_default(),
        // A problem is never streamed.
        Body::Marked(..) | Body::Stream(_) => bytes::Bytes::new(),
    };
    let content_type = |(name, _): &(String, String)| name == "content-type";
    Answer {
        status: response.status().as_u16(),
        headers: pairs(response.headers())
            .into_iter()
            .filter(content_type)
            .collect(),
        body,
        state,
        failure: Some(failure),
    }
}

/// Field values are bytes; each becomes the character of its number, which loses none.
fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let pair = |(name, value): (&HeaderName, &HeaderValue)| {
        let value = value.as_bytes().iter().map(|byte| char::from(*byte));
        (name.as_str().to_owned(), value.collect())
    };
    headers.iter().map(pair).collect()
}

fn bytes(text: &str) -> Vec<u8> {
    let byte = |letter: char| u8::try_from(u32::from(letter)).unwrap_or(b'?');
    text.chars().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn field_values_come_back_as_they_were(value in proptest::collection::vec(32u8..=255, 0..64)) {
            prop_assume!(!value.contains(&127));
            let mut headers = HeaderMap::new();
            headers.insert("x-a", HeaderValue::from_bytes(&value).unwrap());
            let kept = pairs(&headers);
            prop_assert_eq!(bytes(&kept[0].1), value);
        }
    }

    #[test]
    fn keys_that_could_not_be_kept_are_refused() {
        let long = "k".repeat(LONGEST_KEY + 1);
        for (given, is_key) in [
            (&[][..], true),
            (&["order-17"], true),
            (&["\"order-17\""], true),
            (&[&long], false),
            (&[""], false),
            (&["\"\""], false),
            (&["a", "b"], false),
            (&["schl\u{fc}ssel"], false),
        ] {
            let mut headers = HeaderMap::new();
            for key in given {
                let key = HeaderValue::from_bytes(key.as_bytes()).unwrap();
                headers.append(header::IDEMPOTENCY_KEY, key);
            }
            assert_eq!(check_key(&headers).is_ok(), is_key, "{given:?}");
        }
    }
}
