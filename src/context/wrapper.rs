//! Writing the wrapped form of a call, for applications that want to be told of their task so.

use super::Fields;
use crate::task::{Id, SlaLevel};
use bytes::Bytes;
use serde::Serialize;

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
