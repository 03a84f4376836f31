//! The context as one message states it: every field optional, every present field well-formed.

use super::{Path, header, text};
use crate::task::{Id, MOST_ATTEMPTS, SlaLevel};
use http::{HeaderMap, HeaderValue};
use serde::Deserialize;
use std::time::Duration;

/// The longest free text (requester, scenario, region, tag); longer ones are refused, because they
/// travel with every further call and are stored with every attempt.
const LONGEST_TEXT: usize = 256;
/// The most tags one call may require.
const MOST_TAGS: usize = 32;

/// A context field that is there but not well-formed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is malformed: {expected}")]
pub struct Malformed {
    pub field: &'static str,
    pub expected: &'static str,
}

/// A context field that says one thing in the headers and another in the body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} differs between the headers and the body's context")]
pub struct Differs {
    pub field: &'static str,
}

/// A contract by name: `id` or `id@version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentName {
    pub id: String,
    pub version: Option<String>,
}

impl AgentName {
    /// Splits at the first `@`; the id must be an id of the task grammar.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, version) = match text.split_once('@') {
            Some((id, version)) => (id, Some(version)),
            None => (text, None),
        };
        let fits = |part: &str| Id::parse(part).is_ok();
        (fits(id) && version.is_none_or(fits)).then(|| Self {
            id: id.to_owned(),
            version: version.map(str::to_owned),
        })
    }
}

/// What one message says of its task.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fields {
    pub task_id: Option<Id>,
    pub step_id: Option<Id>,
    pub call_id: Option<Id>,
    pub attempt: Option<u32>,
    pub agent: Option<AgentName>,
    pub application: Option<String>,
    pub trace_id: Option<Id>,
    pub sla_level: Option<SlaLevel>,
    pub requester: Option<String>,
    pub scenario: Option<String>,
    pub required_tags: Option<Vec<String>>,
    pub region: Option<String>,
    pub utc_offset: Option<String>,
    pub deadline: Option<Duration>,
    pub force_refresh: Option<bool>,
    pub path: Option<Path>,
}

/// The same in a body's `context`; members this version does not know are ignored.
#[derive(Deserialize)]
struct Body {
    task_id: Option<String>,
    step_id: Option<String>,
    trace_id: Option<String>,
    sla_level: Option<String>,
    requester: Option<String>,
    scenario: Option<String>,
    required_tags: Option<Vec<String>>,
    region: Option<String>,
    utc_offset: Option<String>,
    deadline_ms: Option<u64>,
    force_refresh: Option<bool>,
    deliver_to: Option<serde::de::IgnoredAny>,
}

const ID: &str = "an id is 1 to 128 characters of A-Z a-z 0-9 . _ : ~ -";
const TEXT: &str = "a text is a structured-field String of at most 256 characters";
const INTEGER: &str = "a whole number of milliseconds from 0";
const SLA: &str = "one of P0, P1, P2, P3";

impl Fields {
    /// Reads the `Hermes-*` fields; others are passed over, a repeated one is malformed.
    pub fn from_headers(headers: &HeaderMap) -> Result<Self, Malformed> {
        let mut fields = Self::default();
        for name in headers.keys() {
            if !name.as_str().starts_with(header::PREFIX) {
                continue;
            }
            let mut values = headers.get_all(name).iter();
            if let Some(value) = values.next() {
                let repeated = values.next().is_some();
                fields.take(name.as_str(), value.as_bytes(), repeated)?;
            }
        }
        Ok(fields)
    }

    fn take(&mut self, name: &str, value: &[u8], repeated: bool) -> Result<(), Malformed> {
        let once = |field: &'static str| {
            let expected = "the field may be given once";
            if repeated {
                return Err(Malformed { field, expected });
            }
            Ok(field)
        };
        match name {
            "hermes-task-id" => self.task_id = Some(id(once("Hermes-Task-Id")?, value)?),
            "hermes-step-id" => self.step_id = Some(id(once("Hermes-Step-Id")?, value)?),
            "hermes-call-id" => self.call_id = Some(id(once("Hermes-Call-Id")?, value)?),
            "hermes-trace-id" => self.trace_id = Some(id(once("Hermes-Trace-Id")?, value)?),
            "hermes-attempt" => self.attempt = Some(attempt(once("Hermes-Attempt")?, value)?),
            "hermes-agent" => self.agent = Some(agent(once("Hermes-Agent")?, value)?),
            "hermes-application" => {
                self.application = Some(application(once("Hermes-Application")?, value)?);
            }
            "hermes-sla-level" => self.sla_level = Some(sla(once("Hermes-Sla-Level")?, value)?),
            "hermes-requester" => self.requester = Some(words(once("Hermes-Requester")?, value)?),
            "hermes-scenario" => self.scenario = Some(words(once("Hermes-Scenario")?, value)?),
            "hermes-region" => self.region = Some(words(once("Hermes-Region")?, value)?),
            "hermes-utc-offset" => {
                let field = once("Hermes-Utc-Offset")?;
                self.utc_offset = Some(utc_offset(field, words(field, value)?)?);
            }
            "hermes-required-tags" => {
                // A list may be spread over several lines (RFC 9651), but not by our peers.
                self.required_tags = Some(tags(once("Hermes-Required-Tags")?, value)?);
            }
            "hermes-deadline-ms" => {
                self.deadline = Some(milliseconds(once("Hermes-Deadline-Ms")?, value)?);
            }
            "hermes-force-refresh" => {
                let field = once("Hermes-Force-Refresh")?;
                let expected = "a structured-field Boolean, ?1 or ?0";
                let value = text::boolean(value).ok_or(Malformed { field, expected })?;
                self.force_refresh = Some(value);
            }
            "hermes-path" => {
                let field = once("Hermes-Path")?;
                let expected = "a list of path members of at most 2 KiB";
                let path = Path::parse(value).ok_or(Malformed { field, expected })?;
                self.path = Some(path);
            }
            // Replies' fields, and `Hermes-Sandbox` and `Hermes-Recovered`, mean nothing here.
            _ => {}
        }
        Ok(())
    }

    /// Reads a body's `context` object.
    pub fn from_body(context: &str) -> Result<Self, Malformed> {
        let body: Body = serde_json::from_str(context).map_err(|_may_quote_values| Malformed {
            field: "context",
            expected: "an object whose members have the documented types, each given once",
        })?;
        if body.deliver_to.is_some() {
            // Accepted without effect it would be a promise that nobody keeps.
            return Err(Malformed {
                field: "context.deliver_to",
                expected: "no delivery channel is there to name; leave it out and fetch the reply, \
                           with Prefer: respond-async, at the Location of the 202",
            });
        }
        let id = |field, text: Option<String>| text.map(|t| id(field, t.as_bytes())).transpose();
        let words = |field, text: Option<String>| text.map(|t| bounded(field, t)).transpose();
        Ok(Self {
            task_id: id("context.task_id", body.task_id)?,
            step_id: id("context.step_id", body.step_id)?,
            trace_id: id("context.trace_id", body.trace_id)?,
            sla_level: body
                .sla_level
                .map(|level| sla("context.sla_level", level.as_bytes()))
                .transpose()?,
            requester: words("context.requester", body.requester)?,
            scenario: words("context.scenario", body.scenario)?,
            required_tags: body
                .required_tags
                .map(|list| bounded_tags("context.required_tags", list))
                .transpose()?,
            region: words("context.region", body.region)?,
            utc_offset: body
                .utc_offset
                .map(|offset| utc_offset("context.utc_offset", offset))
                .transpose()?,
            deadline: body.deadline_ms.map(Duration::from_millis),
            force_refresh: body.force_refresh,
            ..Self::default()
        })
    }

    /// Joins what headers and body say; two different values for one field are an error.
    pub fn join(self, body: Self) -> Result<Self, Differs> {
        fn one<T: PartialEq>(
            field: &'static str,
            header: Option<T>,
            body: Option<T>,
        ) -> Result<Option<T>, Differs> {
            match (header, body) {
                (Some(a), Some(b)) if a != b => Err(Differs { field }),
                (a, b) => Ok(a.or(b)),
            }
        }
        Ok(Self {
            task_id: one("task_id", self.task_id, body.task_id)?,
            step_id: one("step_id", self.step_id, body.step_id)?,
            trace_id: one("trace_id", self.trace_id, body.trace_id)?,
            sla_level: one("sla_level", self.sla_level, body.sla_level)?,
            requester: one("requester", self.requester, body.requester)?,
            scenario: one("scenario", self.scenario, body.scenario)?,
            required_tags: one("required_tags", self.required_tags, body.required_tags)?,
            region: one("region", self.region, body.region)?,
            utc_offset: one("utc_offset", self.utc_offset, body.utc_offset)?,
            deadline: one("deadline_ms", self.deadline, body.deadline)?,
            force_refresh: one("force_refresh", self.force_refresh, body.force_refresh)?,
            ..self
        })
    }

    /// Writes the fields into `headers`, replacing what stands there.
    pub fn write(&self, headers: &mut HeaderMap) {
        let mut put = |name, value: Option<HeaderValue>| {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        };
        let id = |id: &Option<Id>| id.as_ref().and_then(|id| value(id.as_str()));
        let words = |text: &Option<String>| text.as_deref().and_then(text::write_text);
        put(header::TASK_ID, id(&self.task_id));
        put(header::STEP_ID, id(&self.step_id));
        put(header::CALL_ID, id(&self.call_id));
        put(header::TRACE_ID, id(&self.trace_id));
        put(header::ATTEMPT, self.attempt.map(HeaderValue::from));
        put(
            header::AGENT,
            self.agent.as_ref().and_then(|agent| match &agent.version {
                Some(version) => value(&format!("{}@{version}", agent.id)),
                None => value(&agent.id),
            }),
        );
        put(
            header::APPLICATION,
            self.application.as_deref().and_then(value),
        );
        let level = self.sla_level.map(SlaLevel::as_str);
        put(header::SLA_LEVEL, level.map(HeaderValue::from_static));
        put(header::REQUESTER, words(&self.requester));
        put(header::SCENARIO, words(&self.scenario));
        put(header::REGION, words(&self.region));
        put(header::UTC_OFFSET, words(&self.utc_offset));
        put(
            header::REQUIRED_TAGS,
            self.required_tags.as_deref().and_then(text::write_list),
        );
        let left = self
            .deadline
            .map(|left| HeaderValue::from(left.as_millis() as u64));
        put(header::DEADLINE_MS, left);
        let refresh = self.force_refresh.unwrap_or(false);
        put(
            header::FORCE_REFRESH,
            refresh.then(|| HeaderValue::from_static("?1")),
        );
        put(header::PATH, self.path.as_ref().and_then(Path::write));
    }
}

fn value(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(text).ok()
}

fn id(field: &'static str, value: &[u8]) -> Result<Id, Malformed> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(|text| Id::parse(text).ok()).ok_or(Malformed {
        field,
        expected: ID,
    })
}

fn digits(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // More digits than fit mean "longer than any limit", not an error of the sender.
    let text = std::str::from_utf8(value).ok()?;
    Some(text.parse().unwrap_or(u64::MAX))
}

fn attempt(field: &'static str, value: &[u8]) -> Result<u32, Malformed> {
    let number = digits(value).and_then(|number| u32::try_from(number).ok());
    number
        .filter(|number| (1..=MOST_ATTEMPTS).contains(number))
        .ok_or(Malformed {
            field,
            expected: "a whole number from 1 to 1000",
        })
}

fn milliseconds(field: &'static str, value: &[u8]) -> Result<Duration, Malformed> {
    let number = digits(value).ok_or(Malformed {
        field,
        expected: INTEGER,
    })?;
    Ok(Duration::from_millis(number))
}

fn agent(field: &'static str, value: &[u8]) -> Result<AgentName, Malformed> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(AgentName::parse).ok_or(Malformed {
        field,
        expected: "a contract id, or id@version",
    })
}

/// Application names are labels and parts of certificates: `[a-z0-9-]{1,63}`.
fn application(field: &'static str, value: &[u8]) -> Result<String, Malformed> {
    let fits = (1..=63).contains(&value.len())
        && value
            .iter()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
    let text = std::str::from_utf8(value).ok().filter(|_| fits);
    text.map(str::to_owned).ok_or(Malformed {
        field,
        expected: "a name is 1 to 63 characters of a-z 0-9 -",
    })
}

fn sla(field: &'static str, value: &[u8]) -> Result<SlaLevel, Malformed> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(SlaLevel::from_wire).ok_or(Malformed {
        field,
        expected: SLA,
    })
}

fn words(field: &'static str, value: &[u8]) -> Result<String, Malformed> {
    let text = text::text(value).ok_or(Malformed {
        field,
        expected: TEXT,
    })?;
    bounded(field, text)
}

fn bounded(field: &'static str, text: String) -> Result<String, Malformed> {
    if text.chars().count() > LONGEST_TEXT || text.chars().any(char::is_control) {
        return Err(Malformed {
            field,
            expected: TEXT,
        });
    }
    Ok(text)
}

fn tags(field: &'static str, value: &[u8]) -> Result<Vec<String>, Malformed> {
    let list = text::list_of_text(value).ok_or(Malformed {
        field,
        expected: "a structured-field list of Strings",
    })?;
    bounded_tags(field, list)
}

fn bounded_tags(field: &'static str, list: Vec<String>) -> Result<Vec<String>, Malformed> {
    if list.len() > MOST_TAGS {
        let expected = "at most 32 tags";
        return Err(Malformed { field, expected });
    }
    list.into_iter().map(|tag| bounded(field, tag)).collect()
}

/// `+08:00`, as ISO 8601 writes an offset.
fn utc_offset(field: &'static str, text: String) -> Result<String, Malformed> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let shape = bytes.len() == 6
        && matches!(bytes[0], b'+' | b'-')
        && bytes[3] == b':'
        && [1, 2, 4, 5].into_iter().all(digit);
    if !shape {
        let expected = "an offset such as +08:00";
        return Err(Malformed { field, expected });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        map
    }

    #[test]
    fn malformed_fields_are_named() {
        for (name, value, field) in [
            ("hermes-task-id", "a,b", "Hermes-Task-Id"),
            ("hermes-task-id", "", "Hermes-Task-Id"),
            ("hermes-attempt", "0", "Hermes-Attempt"),
            ("hermes-attempt", "+1", "Hermes-Attempt"),
            ("hermes-attempt", "1001", "Hermes-Attempt"),
            ("hermes-sla-level", "P9", "Hermes-Sla-Level"),
            ("hermes-sla-level", "p0", "Hermes-Sla-Level"),
            ("hermes-deadline-ms", "100ms", "Hermes-Deadline-Ms"),
            ("hermes-deadline-ms", "-1", "Hermes-Deadline-Ms"),
            ("hermes-deadline-ms", "", "Hermes-Deadline-Ms"),
            ("hermes-requester", "\"open", "Hermes-Requester"),
            ("hermes-required-tags", "(a)", "Hermes-Required-Tags"),
            ("hermes-utc-offset", "\"8\"", "Hermes-Utc-Offset"),
            ("hermes-force-refresh", "1", "Hermes-Force-Refresh"),
            ("hermes-application", "Fraud", "Hermes-Application"),
            ("hermes-path", "\"x\"", "Hermes-Path"),
        ] {
            let error = Fields::from_headers(&headers(&[(name, value)])).unwrap_err();
            assert_eq!(error.field, field, "{name}: {value}");
        }
    }

    #[test]
    fn a_repeated_field_is_malformed() {
        let twice = headers(&[("hermes-task-id", "a"), ("hermes-task-id", "a")]);
        assert!(Fields::from_headers(&twice).is_err());
    }

    #[test]
    fn a_huge_deadline_is_long_not_wrong() {
        let fields = headers(&[("hermes-deadline-ms", "99999999999999999999999")]);
        let deadline = Fields::from_headers(&fields).unwrap().deadline;
        assert_eq!(deadline, Some(Duration::from_millis(u64::MAX)));
    }

    #[test]
    fn headers_and_body_may_agree_but_not_differ() {
        let head = Fields::from_headers(&headers(&[("hermes-task-id", "t-1")])).unwrap();
        let same = Fields::from_body(r#"{"task_id":"t-1","sla_level":"P0"}"#).unwrap();
        let joined = head.clone().join(same).unwrap();
        assert_eq!(joined.sla_level, Some(SlaLevel::P0));
        let other = Fields::from_body(r#"{"task_id":"t-2"}"#).unwrap();
        assert_eq!(head.join(other), Err(Differs { field: "task_id" }));
    }

    #[test]
    fn body_context_is_typed_and_tolerates_the_unknown() {
        assert!(Fields::from_body(r#"{"colour":"red","task_id":null}"#).is_ok());
        for bad in [
            r#"[]"#,
            r#"{"task_id":7}"#,
            r#"{"task_id":"a b"}"#,
            r#"{"deadline_ms":-1}"#,
            r#"{"required_tags":"x"}"#,
            r#"{"task_id":"a","task_id":"b"}"#,
            r#"{"deliver_to":"hooks"}"#,
        ] {
            assert!(Fields::from_body(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn written_fields_read_back(
            task in "[A-Za-z0-9._:~-]{1,128}",
            attempt in 1u32..9,
            requester in proptest::option::of("[^\\p{C}]{1,40}"),
            tags in proptest::collection::vec("[a-z-]{1,12}", 1..4),
            deadline in proptest::option::of(0u64..1_000_000),
        ) {
            let fields = Fields {
                task_id: Some(Id::parse(&task).unwrap()),
                attempt: Some(attempt),
                agent: AgentName::parse("fraud-detection-v1.0@1.0.0"),
                requester,
                required_tags: Some(tags),
                deadline: deadline.map(Duration::from_millis),
                sla_level: Some(SlaLevel::P1),
                ..Fields::default()
            };
            let mut map = HeaderMap::new();
            fields.write(&mut map);
            prop_assert_eq!(Fields::from_headers(&map).unwrap(), fields);
        }

        #[test]
        fn hostile_bytes_never_panic(name in 0usize..16, value in proptest::collection::vec(any::<u8>(), 0..80)) {
            let names = ["hermes-task-id", "hermes-path", "hermes-requester", "hermes-required-tags",
                "hermes-deadline-ms", "hermes-agent", "hermes-attempt", "hermes-utc-offset"];
            let mut map = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                map.insert(names[name % names.len()], value);
            }
            Fields::from_headers(&map).ok();
        }
    }
}
