//! The wrapped form of a call: `{"agent", "input", "context"}`.

use super::respond::Trouble;
use crate::context::Fields;
use crate::contract::guard;
use crate::task::{Id, Problem, SlaLevel};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// A call taken out of its wrapper; `input` are the very bytes that came.
#[derive(Debug)]
pub struct Envelope {
    pub agent: Option<String>,
    pub input: Bytes,
    pub context: Fields,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw<'a> {
    #[serde(borrow, default)]
    agent: Option<Cow<'a, str>>,
    #[serde(borrow)]
    input: &'a RawValue,
    #[serde(borrow, default)]
    context: Option<&'a RawValue>,
}

impl Envelope {
    /// Reads a wrapper without copying its input.
    pub fn read(body: &Bytes, limits: &guard::Limits) -> Result<Self, Trouble> {
        let raw: Raw<'_> = match serde_json::from_slice(body) {
            Ok(raw) => raw,
            Err(_) => return Err(unreadable(body, limits)),
        };
        let context = match raw.context {
            Some(context) if context.get() != "null" => Fields::from_body(context.get())
                .map_err(|bad| Trouble::new(Problem::BadContext, bad.to_string()))?,
            _ => Fields::default(),
        };
        Ok(Self {
            agent: raw.agent.map(Cow::into_owned),
            input: body.slice_ref(raw.input.get().as_bytes()),
            context,
        })
    }
}

/// Says what is wrong: the JSON itself, or only its shape.
fn unreadable(body: &Bytes, limits: &guard::Limits) -> Trouble {
    match guard::parse(body, limits) {
        Err(refusal) => super::check::refused(&refusal),
        Ok(_) => {
            let detail = "the body must be an object with \"agent\", \"input\" and, if wanted, \
                          \"context\"; nothing else";
            Trouble::new(Problem::BadJson, detail)
        }
    }
}

/// What the application is told of its task, beside the headers.
#[derive(Serialize)]
struct Told<'a> {
    task_id: Option<&'a Id>,
    step_id: Option<&'a Id>,
    call_id: Option<&'a Id>,
    attempt: Option<u32>,
    trace_id: &'a str,
    sla_level: SlaLevel,
    #[serde(skip_serializing_if = "Option::is_none")]
    requester: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scenario: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    utc_offset: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<u64>,
}

/// Writes a wrapper around the very bytes of `input`, which must be one JSON value; the context
/// tells of the fields and the trace, if they are given.
pub fn wrap(input: &[u8], told: Option<(&Fields, String)>) -> Bytes {
    // Text, numbers and nothing else: writing them cannot fail.
    let context = match &told {
        Some((fields, trace_id)) => serde_json::to_vec(&Told::of(fields, trace_id)),
        None => Ok(b"{}".to_vec()),
    };
    let context = context.unwrap_or_default();
    let parts: [&[u8]; 5] = [b"{\"input\":", input, b",\"context\":", &context, b"}"];
    parts.concat().into()
}

impl<'a> Told<'a> {
    fn of(fields: &'a Fields, trace_id: &'a str) -> Self {
        Self {
            task_id: fields.task_id.as_ref(),
            step_id: fields.step_id.as_ref(),
            call_id: fields.call_id.as_ref(),
            attempt: fields.attempt,
            trace_id,
            sla_level: fields.sla_level.unwrap_or_default(),
            requester: fields.requester.as_deref(),
            scenario: fields.scenario.as_deref(),
            region: fields.region.as_deref(),
            utc_offset: fields.utc_offset.as_deref(),
            deadline_ms: fields.deadline.map(|left| left.as_millis() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapper_holds_the_input_verbatim_and_reads_back() {
        let input = br#" { "n" : 1.10, "n\u0061me":"x" } "#;
        let fields = Fields {
            task_id: Id::parse("t-1").ok(),
            scenario: Some("a \"quoted\" one".to_owned()),
            deadline: Some(std::time::Duration::from_millis(480)),
            ..Fields::default()
        };
        let bare = wrap(b"1", None);
        assert_eq!(&bare[..], br#"{"input":1,"context":{}}"#);
        let wrapper = wrap(input, Some((&fields, "trace-abc123".to_owned())));
        let text = std::str::from_utf8(&wrapper).unwrap();
        assert!(text.starts_with(r#"{"input": { "n" : 1.10, "n\u0061me":"x" } ,"context":{"#));
        let envelope = Envelope::read(&wrapper, &guard::Limits::default()).unwrap();
        let told = envelope.context;
        assert_eq!(envelope.agent, None);
        assert_eq!(&envelope.input[..], input.trim_ascii());
        assert_eq!(told.task_id, fields.task_id);
        assert_eq!(told.scenario, fields.scenario);
        assert_eq!(told.deadline, fields.deadline);
        assert_eq!(told.trace_id.unwrap().as_str(), "trace-abc123");
        assert_eq!(told.sla_level, Some(SlaLevel::P2));
    }

    fn read(body: &'static str) -> Result<Envelope, Problem> {
        let limits = guard::Limits::default();
        Envelope::read(&Bytes::from_static(body.as_bytes()), &limits).map_err(|t| t.problem)
    }

    #[test]
    fn the_input_is_taken_verbatim() {
        let body = r#"{"agent":"a-b-v1.0", "input": { "n" : 1.10 } ,"context":{"task_id":"t"}}"#;
        let envelope = read(body).unwrap();
        assert_eq!(&envelope.input[..], br#"{ "n" : 1.10 }"#);
        assert_eq!(envelope.agent.as_deref(), Some("a-b-v1.0"));
        assert_eq!(envelope.context.task_id.unwrap().as_str(), "t");
        assert!(read(r#"{"input":null,"context":null}"#).is_ok());
    }

    #[test]
    fn what_is_no_wrapper_is_refused_by_its_fault() {
        for (body, problem) in [
            ("", Problem::BodyRequired),
            ("{", Problem::BadJson),
            ("[]", Problem::BadJson),
            (r#"{"agent":"a"}"#, Problem::BadJson),
            (r#"{"input":1,"input":2}"#, Problem::BadJson),
            (r#"{"input":1,"colour":2}"#, Problem::BadJson),
            (
                r#"{"input":1,"context":{"task_id":"a b"}}"#,
                Problem::BadContext,
            ),
            (r#"{"input":1,"context":[]}"#, Problem::BadContext),
        ] {
            assert_eq!(read(body).unwrap_err(), problem, "{body}");
        }
    }
}
