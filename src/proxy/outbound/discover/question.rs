//! What may be asked: `{"agent"?, "input"?, "required_tags"?, "region"?, "deadline_ms"?}`.

use crate::context::Fields;
use crate::contract::guard;
use crate::proxy::check;
use crate::proxy::respond::Trouble;
use crate::task::Problem;
use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::json;
use serde_json::value::RawValue;

/// A question that has been understood.
#[derive(Debug)]
pub struct Question {
    pub agent: Option<String>,
    /// The very bytes that came; `null` is an input too.
    pub input: Option<Bytes>,
    /// What a call would ask for.
    pub fields: Fields,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw<'a> {
    agent: Option<String>,
    #[serde(borrow, default, deserialize_with = "given")]
    input: Option<&'a RawValue>,
    required_tags: Option<Vec<String>>,
    region: Option<String>,
    deadline_ms: Option<u64>,
}

/// Keeps a `null` that is there apart from nothing.
fn given<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

impl Question {
    pub fn read(body: &Bytes, limits: &guard::Limits) -> Result<Self, Trouble> {
        guard::parse(body, limits).map_err(|refusal| check::refused(&refusal))?;
        let raw: Raw<'_> = serde_json::from_slice(body).map_err(|error| misshapen(&error))?;
        let context = json!({
            "required_tags": raw.required_tags,
            "region": raw.region,
            "deadline_ms": raw.deadline_ms,
        });
        // The bounds of a call's own context hold here too.
        let fields = Fields::from_body(&context.to_string()).map_err(|bad| {
            let field = bad.field.trim_start_matches("context.");
            let detail = format!("{field} is malformed: {}", bad.expected);
            Trouble::new(Problem::BadContext, detail)
        })?;
        Ok(Self {
            agent: raw.agent,
            input: raw
                .input
                .map(|input| body.slice_ref(input.get().as_bytes())),
            fields,
        })
    }
}

/// Says what is wrong with the shape; serde's own text names members and types, never values.
fn misshapen(error: &serde_json::Error) -> Trouble {
    let text = error.to_string();
    let told = match text.starts_with("unknown field") {
        true => "a member is unknown",
        false => "a member has the wrong type",
    };
    let detail = format!(
        "{told} (line {}, column {}): ask with {{\"agent\"?: text, \"input\"?: any, \
         \"required_tags\"?: list of texts, \"region\"?: text, \"deadline_ms\"?: whole number}}",
        error.line(),
        error.column()
    );
    Trouble::new(Problem::BadContext, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn read(body: &'static str) -> Result<Question, Trouble> {
        Question::read(
            &Bytes::from_static(body.as_bytes()),
            &guard::Limits::default(),
        )
    }

    #[test]
    fn every_member_may_be_left_out() {
        let question = read("{}").unwrap();
        assert_eq!((question.agent, question.input), (None, None));
        assert_eq!(question.fields, Fields::default());
        let question = read(r#"{"agent": null, "input": null, "region": null}"#).unwrap();
        assert_eq!(question.agent, None);
        assert_eq!(question.input.as_deref(), Some(&b"null"[..]));
        let question = read(
            r#"{"agent":"a@^1","input": {"n": 1.10},"required_tags":["gpu"],"region":"x","deadline_ms":5}"#,
        )
        .unwrap();
        assert_eq!(question.agent.as_deref(), Some("a@^1"));
        assert_eq!(question.input.as_deref(), Some(&br#"{"n": 1.10}"#[..]));
        assert_eq!(question.fields.required_tags, Some(vec!["gpu".to_owned()]));
        assert_eq!(question.fields.deadline, Some(Duration::from_millis(5)));
    }

    #[test]
    fn what_cannot_be_understood_is_told() {
        let many = format!(r#"{{"required_tags":[{}"x"]}}"#, "\"x\",".repeat(40));
        for (body, problem, told) in [
            ("", Problem::BodyRequired, "body required"),
            ("{", Problem::BadJson, "not complete"),
            (r#"{"agent":"a","agent":"b"}"#, Problem::BadJson, "twice"),
            ("[]", Problem::BadContext, "wrong type"),
            ("7", Problem::BadContext, "wrong type"),
            (r#"{"agents":"a"}"#, Problem::BadContext, "unknown"),
            (r#"{"agent":1}"#, Problem::BadContext, "wrong type"),
            (r#"{"deadline_ms":-1}"#, Problem::BadContext, "wrong type"),
            (
                r#"{"required_tags":"x"}"#,
                Problem::BadContext,
                "wrong type",
            ),
            (
                many.leak(),
                Problem::BadContext,
                "required_tags is malformed",
            ),
        ] {
            let trouble = read(body).unwrap_err();
            assert_eq!(trouble.problem, problem, "{body}: {}", trouble.detail);
            assert!(trouble.detail.contains(told), "{body}: {}", trouble.detail);
        }
    }
}
