//! `invoke`: one call through the local sidecar.

mod trace;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::{self, Answer};
use super::exit::{Exit, Failure};
use super::{OutputArgs, output};
use crate::task::Id;

const MAX_INPUT_BYTES: u64 = 64 << 20;
/// The sidecar ends a call at its own deadline; this is for one that says nothing.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the sidecar may take to tell us that the deadline has passed.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 for a 2xx reply, 4 for a timeout, 3 if no sidecar answers, else 1.

Examples:
  hermes-sidecar invoke fraud-detection-v1.0 --input payment.json --task-id order-17
  hermes-sidecar invoke fraud-detection-v1.0 --input payment.json --trace
  echo '{\"user_id\": \"u-1\"}' | hermes-sidecar invoke user-lookup-v2.1 --input -")]
pub(super) struct InvokeArgs {
    /// Contract id, e.g. fraud-detection-v1.0.
    agent: String,
    /// File with the input as JSON, or - for standard input; default: {}.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Task this call belongs to; default: a new one.
    #[arg(long, value_name = "ID", value_parser = Id::parse)]
    task_id: Option<Id>,
    /// Tag an instance must have; may be repeated.
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Service level, P0 to P3.
    #[arg(long, value_name = "LEVEL", value_parser = ["P0", "P1", "P2", "P3"])]
    sla: Option<String>,
    /// Length within which the call must end, e.g. 800ms; shortens what the contract grants, and
    /// leaves out instances that may take longer. Default: the contract's timeout; a sidecar that
    /// says nothing is given up after 30s.
    #[arg(long, value_name = "LENGTH", value_parser = humantime::parse_duration)]
    deadline: Option<Duration>,
    /// Tell on standard error what became of the call step by step, with times.
    #[arg(long)]
    trace: bool,
    /// Base URL of the admin listener, which --trace asks too; default: HERMES_ADMIN, else as the
    /// settings say.
    #[arg(long, value_name = "URL", requires = "trace")]
    admin: Option<String>,
    /// Base URL of the outbound listener; default: HERMES_OUTBOUND, else as the settings say.
    #[arg(long, value_name = "URL")]
    outbound: Option<String>,
    /// Config file that names the listener.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Serialize)]
struct Call<'a> {
    agent: &'a str,
    /// As it was given, byte for byte.
    input: &'a RawValue,
    context: Context<'a>,
}

#[derive(Debug, Default, Serialize)]
struct Context<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    required_tags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    sla_level: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<u64>,
}

pub(super) fn invoke(args: InvokeArgs) -> Result<Exit, Failure> {
    let input = read_input(args.input.as_deref())?;
    let call = Call {
        agent: &args.agent,
        input: &input,
        context: Context {
            task_id: args.task_id.as_ref().map(Id::as_str),
            required_tags: &args.tags,
            sla_level: args.sla.as_deref(),
            deadline_ms: args.deadline.map(milliseconds),
        },
    };
    let body = serde_json::to_vec(&call).map_err(|error| Failure::bug(&error))?;
    let tracing = args
        .trace
        .then(|| trace::Before::look(args.admin, args.config.clone(), &args.agent))
        .transpose()?;
    let base = client::base(args.outbound, "outbound", args.config, |addresses| {
        addresses.outbound.clone()
    })?;
    let patience = args
        .deadline
        .map_or(PATIENCE, |length| length.saturating_add(GRACE));
    let request = client::http(&base, patience)?
        .post(client::url(&base, "/hermes/invoke"))
        .header("content-type", "application/json")
        .body(body);
    let began = Instant::now();
    let answer = client::block_on(client::send("the sidecar", &base, request))?;
    if let Some(before) = tracing {
        let call = trace::Call {
            answer: &answer,
            took: began.elapsed(),
            tags: &args.tags,
            sla: args.sla.as_deref(),
        };
        output::talk(before.told(&call).trim_end());
    }
    if args.output.is_json() {
        output::json(&as_json(&answer));
    } else {
        output::data(&answer.body);
        if !answer.body.ends_with(b"\n") && !answer.body.is_empty() {
            output::talk("");
        }
        output::talk(&summary(&answer));
    }
    Ok(outcome(answer.status.as_u16()))
}

/// Writes the body of a call that says nothing but its task.
pub(super) fn body(agent: &str, input: &RawValue, task_id: &str) -> Vec<u8> {
    let call = Call {
        agent,
        input,
        context: Context {
            task_id: Some(task_id),
            ..Context::default()
        },
    };
    serde_json::to_vec(&call).expect("it is made of strings and of JSON")
}

fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

fn outcome(status: u16) -> Exit {
    match status {
        200..=299 => Exit::Fine,
        504 => Exit::Timeout,
        _ => Exit::Negative,
    }
}

pub(super) fn read_input(path: Option<&Path>) -> Result<Box<RawValue>, Failure> {
    let mut text = String::new();
    let name = path.unwrap_or(Path::new("-"));
    let read = match path {
        None => {
            text.push_str("{}");
            Ok(2)
        }
        Some(path) if path == Path::new("-") => std::io::stdin()
            .take(MAX_INPUT_BYTES + 1)
            .read_to_string(&mut text),
        Some(path) => std::fs::File::open(path)
            .and_then(|file| file.take(MAX_INPUT_BYTES + 1).read_to_string(&mut text)),
    };
    read.map_err(|source| Failure::Read {
        path: name.to_owned(),
        source,
    })?;
    if text.len() as u64 > MAX_INPUT_BYTES {
        return Err(Failure::Usage(format!(
            "the input is longer than {MAX_INPUT_BYTES} bytes"
        )));
    }
    RawValue::from_string(text.trim().to_owned())
        .map_err(|error| Failure::Usage(format!("the input is no JSON: {error}")))
}

fn as_json(answer: &Answer) -> Value {
    let reply = serde_json::from_slice::<Value>(&answer.body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&answer.body).into_owned()));
    json!({
        "status": answer.status.as_u16(),
        "task_id": answer.header("hermes-task-id"),
        "call_id": answer.header("hermes-call-id"),
        "state": answer.header("hermes-state"),
        "reply": reply,
    })
}

fn summary(answer: &Answer) -> String {
    let mut text = format!("status {}", answer.status.as_u16());
    for (name, header) in [
        ("state", "hermes-state"),
        ("task", "hermes-task-id"),
        ("call", "hermes-call-id"),
        ("agent", "hermes-agent"),
    ] {
        if let Some(value) = answer.header(header) {
            text.push_str(&format!("  {name} {value}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_become_exit_codes() {
        for (status, expected) in [
            (200, Exit::Fine),
            (204, Exit::Fine),
            (400, Exit::Negative),
            (404, Exit::Negative),
            (502, Exit::Negative),
            (503, Exit::Negative),
            (504, Exit::Timeout),
        ] {
            assert_eq!(outcome(status), expected, "{status}");
        }
    }
}
