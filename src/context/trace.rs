//! W3C Trace Context: kept when valid, begun anew when not, never a reason to refuse a call.

use super::header;
use super::token::{Claim, Token};
use super::tracestate::State;
use crate::task::Id;
use http::{HeaderMap, HeaderValue};

/// The flags that have a meaning (sampled, random trace id); others go out as zero.
const FLAGS: u8 = 0b11;

/// What the W3C fields of one message say of where it comes from.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// Trace id and flags, from a valid `traceparent`.
    parent: Option<(u128, u8)>,
    state: State,
    claim: Claim,
}

/// Where a call stands in its distributed trace.
#[derive(Debug, Clone)]
pub struct Trace {
    id: u128,
    flags: u8,
    state: State,
    /// The caller's own trace id where it is no W3C one; kept beside the real trace.
    correlation: Option<Id>,
}

impl Origin {
    /// Reads both fields; without a valid `traceparent` the other one means nothing.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut parents = headers.get_all(header::TRACEPARENT).iter();
        let parent = parents.next().and_then(|value| parse(value.as_bytes()));
        if parent.is_none() || parents.next().is_some() {
            return Self::default();
        }
        let (state, claim) = State::read(headers.get_all(header::TRACESTATE));
        Self {
            parent,
            state,
            claim,
        }
    }

    /// Returns the step it claims to come from.
    pub fn claim(&self) -> Claim {
        self.claim
    }

    /// Says whether it belongs to `trace`; `wished` decides where there is no `traceparent`.
    pub fn is_of(&self, trace: &Trace, wished: Option<&Id>) -> bool {
        match (self.parent, wished) {
            (Some((id, _)), _) => id == trace.id,
            (None, Some(wished)) => {
                let named = trace_id(wished.as_str());
                named == Some(trace.id) || trace.correlation.as_ref() == Some(wished)
            }
            (None, None) => false,
        }
    }
}

impl Trace {
    /// Takes the trace of a message; `wished` is the context's `trace_id`.
    pub fn of(headers: &HeaderMap, wished: Option<Id>) -> Self {
        Self::from(Origin::of(headers), wished, None)
    }

    /// Takes the trace of a message that comes from `origin`, while `served` is worked on.
    ///
    /// A wish of 32 hex digits names the trace itself when the message carries none; otherwise
    /// what is served goes on.
    pub fn from(origin: Origin, wished: Option<Id>, served: Option<&Self>) -> Self {
        let (named, correlation) = match wished {
            Some(id) => match trace_id(id.as_str()) {
                Some(named) => (Some(named), None),
                None => (None, Some(id)),
            },
            None => (None, None),
        };
        let (id, flags, state) = match (origin.parent, named, served) {
            (Some((id, flags)), _, _) => (id, flags, origin.state),
            (None, Some(named), _) => (named, 1, State::default()),
            (None, None, Some(served)) => (served.id, served.flags, served.state.clone()),
            (None, None, None) => (random_id(), 1, State::default()),
        };
        Self {
            id,
            flags,
            state,
            correlation,
        }
    }

    /// Returns the id that reports carry: the caller's own, else the trace's.
    pub fn reported_id(&self) -> String {
        match &self.correlation {
            Some(id) => id.as_str().to_owned(),
            None => format!("{:032x}", self.id),
        }
    }

    /// Returns the caller's own id, if it is no W3C one.
    pub fn correlation(&self) -> Option<&Id> {
        self.correlation.as_ref()
    }

    /// Writes the trace with a new parent id, as every hop must; no token of ours goes with it.
    pub fn write(&self, headers: &mut HeaderMap) {
        self.write_for(None, headers);
    }

    /// Writes the trace toward the application, which will be known by `token` when it calls.
    pub fn write_for(&self, token: Option<Token>, headers: &mut HeaderMap) {
        let span = fastrand::u64(1..);
        let text = hex_parent(self.id, span, self.flags);
        if let Ok(value) = HeaderValue::from_bytes(&text) {
            headers.insert(header::TRACEPARENT, value);
        }
        match self.state.write(token) {
            Some(state) => headers.insert(header::TRACESTATE, state),
            None => headers.remove(header::TRACESTATE),
        };
    }
}

fn random_id() -> u128 {
    fastrand::u128(1..)
}

/// Writes `00-TRACE-SPAN-FLAGS` without going through the formatting machinery.
fn hex_parent(id: u128, span: u64, flags: u8) -> [u8; 55] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
    for (at, byte) in id.to_be_bytes().into_iter().enumerate() {
        text[3 + 2 * at] = DIGITS[usize::from(byte >> 4)];
        text[4 + 2 * at] = DIGITS[usize::from(byte & 15)];
    }
    for (at, byte) in span.to_be_bytes().into_iter().enumerate() {
        text[36 + 2 * at] = DIGITS[usize::from(byte >> 4)];
        text[37 + 2 * at] = DIGITS[usize::from(byte & 15)];
    }
    text[53] = DIGITS[usize::from(flags >> 4)];
    text[54] = DIGITS[usize::from(flags & 15)];
    text
}

/// Reads 32 lower-case hex digits that are not all zero.
fn trace_id(text: &str) -> Option<u128> {
    let fits = text.len() == 32 && text.bytes().all(is_lower_hex);
    let id = u128::from_str_radix(text, 16).ok().filter(|_| fits)?;
    (id != 0).then_some(id)
}

fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Reads a `traceparent`; higher versions are read as far as version 00 goes.
fn parse(value: &[u8]) -> Option<(u128, u8)> {
    let text = std::str::from_utf8(value).ok()?;
    let known = text.len() == 55;
    let longer = text.len() > 55 && text.as_bytes()[55] == b'-';
    let version = text.get(0..2)?;
    if !(known || (longer && version != "00")) || version == "ff" {
        return None;
    }
    let head = text.get(..55)?;
    let mut parts = head.split('-');
    let (version, id) = (parts.next()?, parts.next()?);
    let (parent, flags) = (parts.next()?, parts.next()?);
    let hex = |part: &str, length| part.len() == length && part.bytes().all(is_lower_hex);
    let shaped = hex(version, 2) && hex(parent, 16) && hex(flags, 2) && parts.next().is_none();
    if !shaped || parent.bytes().all(|byte| byte == b'0') {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()?;
    Some((trace_id(id)?, flags & FLAGS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn message(parent: &str, state: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", HeaderValue::from_str(parent).unwrap());
        if let Some(state) = state {
            headers.insert("tracestate", HeaderValue::from_str(state).unwrap());
        }
        headers
    }

    #[test]
    fn a_valid_trace_goes_on_with_a_new_parent() {
        let received = format!("00-{ID}-00f067aa0ba902b7-01");
        let trace = Trace::of(&message(&received, Some("a=1")), None);
        let mut sent = HeaderMap::new();
        trace.write(&mut sent);
        let parent = sent["traceparent"].to_str().unwrap();
        assert!(parent.starts_with(&format!("00-{ID}-")) && parent.ends_with("-01"));
        assert_ne!(parent, received);
        assert_eq!(sent["tracestate"], "a=1");
        assert_eq!(trace.reported_id(), ID);
    }

    #[test]
    fn damaged_traces_begin_anew_without_state() {
        let zero = "0".repeat(32);
        for damaged in [
            format!("00-{}-00f067aa0ba902b7-01", ID.to_uppercase()),
            format!("00-{zero}-00f067aa0ba902b7-01"),
            format!("00-{ID}-0000000000000000-01"),
            format!("ff-{ID}-00f067aa0ba902b7-01"),
            format!("00-{ID}-00f067aa0ba902b7-0"),
            format!("00-{ID}-00f067aa0ba902b7-01-extra"),
            "x".to_owned(),
        ] {
            let trace = Trace::of(&message(&damaged, Some("a=1")), None);
            let mut sent = HeaderMap::new();
            trace.write(&mut sent);
            assert!(
                !sent["traceparent"].to_str().unwrap().contains(ID),
                "{damaged}"
            );
            assert!(!sent.contains_key("tracestate"), "{damaged}");
        }
    }

    #[test]
    fn a_later_version_is_read_as_far_as_known() {
        let trace = Trace::of(
            &message(&format!("01-{ID}-00f067aa0ba902b7-01-more"), None),
            None,
        );
        assert_eq!(trace.reported_id(), ID);
    }

    #[test]
    fn flags_without_a_meaning_go_out_as_zero() {
        for (received, sent) in [("00", "-00"), ("01", "-01"), ("02", "-02"), ("ff", "-03")] {
            let message = message(&format!("00-{ID}-00f067aa0ba902b7-{received}"), None);
            let mut headers = HeaderMap::new();
            Trace::of(&message, None).write(&mut headers);
            let parent = headers["traceparent"].to_str().unwrap();
            assert!(parent.ends_with(sent), "{received}: {parent}");
        }
    }

    #[test]
    fn a_token_travels_to_the_application_and_no_further() {
        let received = message(&format!("00-{ID}-00f067aa0ba902b7-01"), Some("a=1"));
        let (token, mut to_application) = (Token::draw(), HeaderMap::new());
        Trace::of(&received, None).write_for(Some(token), &mut to_application);
        let state = to_application["tracestate"].to_str().unwrap();
        assert_eq!(state, format!("hermes={token},a=1"));

        let origin = Origin::of(&to_application);
        assert_eq!(origin.claim(), Claim::Step(token));
        let mut onward = HeaderMap::new();
        Trace::from(origin, None, None).write(&mut onward);
        assert_eq!(onward["tracestate"], "a=1");
        to_application.remove("traceparent");
        assert_eq!(Origin::of(&to_application).claim(), Claim::Nothing);
    }

    #[test]
    fn what_is_served_goes_on_where_the_message_says_nothing() {
        let parent = format!("00-{ID}-00f067aa0ba902b7-00");
        let served = Trace::of(&message(&parent, Some("a=1")), None);
        let mut sent = HeaderMap::new();
        Trace::from(Origin::default(), None, Some(&served)).write(&mut sent);
        let parent = sent["traceparent"].to_str().unwrap();
        assert!(parent.contains(ID) && parent.ends_with("-00"), "{parent}");
        assert_eq!(sent["tracestate"], "a=1");
        let other = Id::parse(&"7".repeat(32)).unwrap();
        let named = Trace::from(Origin::default(), Some(other), Some(&served));
        assert_eq!(named.reported_id(), "7".repeat(32));
    }

    #[test]
    fn two_parents_are_none() {
        let mut headers = message(&format!("00-{ID}-00f067aa0ba902b7-01"), None);
        let second = headers["traceparent"].clone();
        headers.append("traceparent", second);
        assert_ne!(Trace::of(&headers, None).reported_id(), ID);
    }

    #[test]
    fn the_callers_own_id_is_kept_or_becomes_the_trace() {
        let own = Trace::of(&HeaderMap::new(), Some(Id::parse("trace-abc123").unwrap()));
        assert_eq!(own.reported_id(), "trace-abc123");
        let hex = Trace::of(&HeaderMap::new(), Some(Id::parse(ID).unwrap()));
        assert_eq!(hex.reported_id(), ID);
        assert_eq!(hex.correlation(), None);
    }
}
