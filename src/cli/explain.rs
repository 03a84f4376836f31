//! `explain`: where a task's calls to an agent go, and why not elsewhere.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;

use super::exit::{Exit, Failure};
use super::local::{self, AdminPlace};
use super::output::{self, Palette, Tone, plain};
use super::{OutputArgs, client};

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 where an instance fits, 1 where none does or nobody knows the agent.

Examples:
  hermes-sidecar explain fraud-detection-v1.0 --task-id order-17
  hermes-sidecar explain fraud-detection@^1 --task-id order-17 --tag canary -o json")]
pub(super) struct ExplainArgs {
    /// Contract id, id@version, or a range such as fraud-detection@^1.
    agent: String,
    /// Task whose calls are meant.
    #[arg(long, value_name = "ID")]
    task_id: String,
    /// Tag an instance must have; may be repeated.
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Region of the call; default: the sidecar's own.
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// Length that the call names as its deadline, e.g. 800ms.
    #[arg(long, value_name = "LENGTH", value_parser = humantime::parse_duration)]
    deadline: Option<Duration>,
    #[command(flatten)]
    place: AdminPlace,
    #[command(flatten)]
    output: OutputArgs,
}

/// What of the sidecar's answer is shown.
#[derive(Debug, Deserialize)]
struct Explanation {
    agent: String,
    task_id: String,
    instance: Option<String>,
    canary: Canary,
    stale: bool,
    ranking: Vec<Ranked>,
    excluded: Vec<Excluded>,
    problem: Option<Told>,
}

#[derive(Debug, Deserialize)]
struct Canary {
    cohort: String,
    ratio: u16,
    lot: u16,
    fault: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Ranked {
    instance: String,
    address: String,
    version: String,
    weight: u32,
    cohort: String,
}

#[derive(Debug, Deserialize)]
struct Excluded {
    agent: String,
    instance: Option<String>,
    reason: String,
}

#[derive(Debug, Deserialize)]
struct Told {
    kind: String,
    detail: String,
}

pub(super) fn explain(args: ExplainArgs) -> Result<Exit, Failure> {
    let path = path(&args)?;
    let base = local::base(args.place)?;
    let answer = local::ask_at(&base, Method::GET, &path, None)?;
    if !answer.status.is_success() {
        let told = output::detail(&answer.body);
        return Err(match answer.status {
            StatusCode::BAD_REQUEST => Failure::Usage(told),
            status => Failure::Answer(format!("{status}: {told}")),
        });
    }
    let explanation: Explanation = match serde_json::from_slice(&answer.body) {
        Ok(explanation) => explanation,
        Err(error) => {
            return Err(Failure::Stranger {
                what: "the sidecar",
                url: client::url(&base, "/explain"),
                told: error.to_string(),
            });
        }
    };
    if args.output.is_json() {
        output::data(&answer.body);
        output::line("");
    } else {
        output::data(drawn(&explanation, Palette::of_stdout()).as_bytes());
    }
    Ok(output::verdict(explanation.instance.is_some()))
}

/// Writes the question as path and query.
fn path(args: &ExplainArgs) -> Result<String, Failure> {
    let mut url = Url::parse("http://localhost/explain").map_err(|error| Failure::bug(&error))?;
    let mut pairs = url.query_pairs_mut();
    pairs.append_pair("agent", &args.agent);
    pairs.append_pair("task_id", &args.task_id);
    for tag in &args.tags {
        pairs.append_pair("tag", tag);
    }
    if let Some(region) = &args.region {
        pairs.append_pair("region", region);
    }
    if let Some(deadline) = args.deadline {
        pairs.append_pair("deadline_ms", &deadline.as_millis().to_string());
    }
    drop(pairs);
    Ok(format!("/explain?{}", url.query().unwrap_or_default()))
}

/// Writes an explanation for people.
fn drawn(explanation: &Explanation, palette: Palette) -> String {
    let mut text = format!(
        "task {} to {}: ",
        plain(&explanation.task_id),
        plain(&explanation.agent)
    );
    text.push_str(&match (&explanation.instance, &explanation.problem) {
        (Some(instance), _) => palette.paint(Tone::Good, &plain(instance)).into_owned(),
        (None, Some(told)) => {
            let told = format!("{}: {}", plain(&told.kind), plain(&told.detail));
            palette.paint(Tone::Bad, &told).into_owned()
        }
        (None, None) => "nobody".to_owned(),
    });
    let canary = &explanation.canary;
    let mut lines = vec![format!(
        "cohort {}: lot {}, and {} of 10000 are for canaries",
        plain(&canary.cohort),
        canary.lot,
        canary.ratio
    )];
    if let Some(fault) = &canary.fault {
        lines.push(format!("the last good ratio is in use: {}", plain(fault)));
    }
    if explanation.stale {
        lines.push("Consul does not confirm this at present".to_owned());
    }
    for (at, ranked) in explanation.ranking.iter().enumerate() {
        lines.push(format!(
            "{}. {}  {}  version {}  weight {}  {}",
            at + 1,
            plain(&ranked.instance),
            plain(&ranked.address),
            plain(&ranked.version),
            ranked.weight,
            plain(&ranked.cohort)
        ));
    }
    for excluded in &explanation.excluded {
        let who = excluded.instance.as_ref().unwrap_or(&excluded.agent);
        lines.push(format!("not {}: {}", plain(who), plain(&excluded.reason)));
    }
    text.push('\n');
    for line in lines {
        // Writing to a string cannot fail.
        writeln!(text, "  {line}").ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_is_drawn_in_the_order_of_preference() {
        let explanation = serde_json::from_str(
            r#"{"agent": "a-v1.0", "task_id": "t-1", "instance": "one",
                "canary": {"cohort": "stable", "ratio": 1000, "lot": 4711}, "stale": false,
                "ranking": [
                    {"instance": "one", "address": "h:1", "version": "1.0.0", "weight": 100, "cohort": "stable"},
                    {"instance": "two", "address": "h:2", "version": "1.0.1", "weight": 50, "cohort": "stable"}],
                "excluded": [{"agent": "a-v1.0", "instance": "three", "reason": "a required\ntag is missing"}]}"#,
        );
        let text = drawn(&explanation.unwrap(), Palette::none());
        assert_eq!(
            text,
            "task t-1 to a-v1.0: one\n  cohort stable: lot 4711, and 1000 of 10000 are for canaries\n  \
             1. one  h:1  version 1.0.0  weight 100  stable\n  \
             2. two  h:2  version 1.0.1  weight 50  stable\n  \
             not three: a required\u{fffd}tag is missing\n"
        );
    }
}
