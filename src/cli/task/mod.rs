//! `task`: one task's steps, attempts and states, as the collector knows them.

mod compare;
mod follow;
mod timeline;

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::OutputArgs;
use super::client;
use super::collector::{Asking, CollectorPlace, pass_on, refused};
use super::exit::{Exit, Failure};
use super::output::{self, Palette};
use crate::task::Id;

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 where the task is known, 1 where it is not. With --follow: 0 once it has completed,
1 once it has ended otherwise, 4 past --timeout; the collector's own guess that a call has timed out
is no end. With --compare: 0 where no step differs, else 1. 3 where the collector does not answer.

Examples:
  hermes-sidecar task order-17
  hermes-sidecar task order-17 --follow --timeout 1m
  hermes-sidecar task order-17 --compare order-16")]
pub(super) struct TaskArgs {
    /// Task id, as in the header Hermes-Task-Id.
    #[arg(value_parser = Id::parse)]
    id: Id,
    /// Go on showing the task until it has ended, also one that has not begun.
    #[arg(long)]
    follow: bool,
    /// Length after which --follow gives up, e.g. 30s; default: never.
    #[arg(long, value_name = "LENGTH", value_parser = humantime::parse_duration, requires = "follow", conflicts_with = "compare")]
    timeout: Option<Duration>,
    /// Show where this other task went another way.
    #[arg(long, value_name = "OTHER", value_parser = Id::parse, conflicts_with = "follow")]
    compare: Option<Id>,
    #[command(flatten)]
    place: CollectorPlace,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn task(args: TaskArgs) -> Result<Exit, Failure> {
    let asking = Asking::at(args.place)?;
    let id = args.id.as_str();
    if args.follow {
        return follow::follow(&asking, id, args.timeout, args.output);
    }
    if let Some(other) = &args.compare {
        return compare::compare(&asking, id, other.as_str(), args.output);
    }
    let answer = client::block_on(asking.get(&["tasks", id], &[], is_task))?;
    if !answer.status.is_success() {
        return refused(&answer, args.output);
    }
    if args.output.is_json() {
        pass_on(&answer);
        return Ok(Exit::Fine);
    }
    let drawn = draw(&answer.body).map_err(|error| asking.stranger(error.to_string()))?;
    output::data(drawn.as_bytes());
    Ok(Exit::Fine)
}

/// Draws the body of `GET /tasks/{id}` for people.
pub(super) fn draw(body: &[u8]) -> Result<String, serde_json::Error> {
    let task = serde_json::from_slice(body)?;
    Ok(timeline::timeline(&task, Palette::of_stdout()))
}

fn is_task(told: &Value) -> bool {
    told["task_id"].is_string() && told["steps"].is_array()
}
