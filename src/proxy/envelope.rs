//! Reading the wrapped form of a call: `{"agent", "input", "context"}`.

use super::respond::Trouble;
use crate::context::Fields;
use crate::contract::guard;
use crate::task::Problem;
use bytes::Bytes;
use serde::Deserialize;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::wrap;
    use crate::task::{Id, SlaLevel};

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
