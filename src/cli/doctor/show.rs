//! How an examination is told: one block per step and what was found, or one object for programs.

use serde_json::{Map, Value, json};

use super::Measured;
use super::findings::{Findings, Level};
use super::network::{self, Part};
use super::registry;
use super::validation::{Check, Cost};
use crate::cli::OutputArgs;
use crate::cli::output::{self, Palette, Tone};
use crate::cli::quantile::{Times, milliseconds, shown};

/// Kinds of request whose times the agent told that are shown; `-o json` has all.
const SHOWN_REQUESTS: usize = 8;

pub(super) fn show(measured: &Measured, found: &Findings, output: OutputArgs) {
    if output.is_json() {
        return output::json(&json!({
            "healthy": found.count() == 0,
            "findings": found.all,
            "registry": measured.registry.as_ref().map(registry_json),
            "validation": measured.validation.iter().map(cost_json).collect::<Vec<_>>(),
            "network": measured.network.iter().map(place_json).collect::<Vec<_>>(),
        }));
    }
    if let Some(seen) = &measured.registry {
        say(&format!("1 registry    {}", seen.address));
        registry_lines(seen)
            .iter()
            .for_each(|line| say(&format!("  {line}")));
    }
    say("2 validation");
    let costs = measured.validation.iter().map(cost_line);
    costs.for_each(|line| say(&format!("  {line}")));
    say("3 network");
    let places = measured.network.iter().map(place_line);
    places.for_each(|line| say(&format!("  {line}")));
    findings(found);
}

fn say(line: &str) {
    output::line(&output::plain(line));
}

fn findings(found: &Findings) {
    let palette = Palette::of_stdout();
    for finding in &found.all {
        let word = match finding.level {
            Level::Note => palette.paint(Tone::Faint, "note   "),
            Level::Finding => palette.paint(Tone::Bad, "finding"),
        };
        let message = output::plain(&finding.message);
        output::line(&format!("{word}  {:<10}  {message}", finding.step.as_str()));
        output::line(&format!("         remedy      {}", finding.remedy));
    }
    match found.count() {
        0 => output::talk("nothing was found"),
        1 => output::talk("1 finding"),
        count => output::talk(&format!("{count} findings")),
    }
}

fn registry_lines(seen: &registry::Seen) -> Vec<String> {
    if !seen.is_reachable {
        return vec!["does not answer".to_owned()];
    }
    let leaders: Vec<&str> = seen.leaders.iter().map(String::as_str).collect();
    let mut lines = vec![format!(
        "leader {} in {} of {} samples; servers {}",
        if leaders.is_empty() {
            "none".to_owned()
        } else {
            leaders.join(", ")
        },
        seen.samples - seen.leaderless,
        seen.samples,
        seen.peers.join(", ")
    )];
    for (what, times) in [("the agent", &seen.status), ("the leader", &seen.reads)] {
        if let Some(spread) = spread(times) {
            lines.push(format!("answers of {what}, from here: {spread}"));
        }
    }
    let told = seen.load.iter().flat_map(|load| &load.requests);
    let mut told: Vec<_> = told.filter(|one| one.is_work()).collect();
    told.sort_by_key(|one| std::cmp::Reverse(one.mean));
    lines.extend(told.into_iter().take(SHOWN_REQUESTS).map(|one| {
        let (mean, max) = (shown(one.mean), shown(one.max));
        format!(
            "the agent's own: {}  mean {mean}  max {max}  ({})",
            one.what, one.count
        )
    }));
    lines
}

fn spread(times: &Times) -> Option<String> {
    let (median, max) = (times.median()?, times.max()?);
    Some(format!(
        "median {}, longest {} of {}",
        shown(median),
        shown(max),
        times.len()
    ))
}

fn cost_line(cost: &Cost) -> String {
    let check = |check: &Check| {
        let body = if check.is_probe { "probe" } else { "derived" };
        let fails = if check.conforms { "" } else { ", refused" };
        format!(
            "{} ({} bytes, {body}{fails})",
            shown(check.time),
            check.bytes
        )
    };
    format!(
        "{} {}  compile {}  input {}  output {}  {:.2} % of {}",
        cost.agent,
        cost.version,
        shown(cost.compile),
        check(&cost.input),
        check(&cost.output),
        cost.share() * 100.0,
        shown(cost.timeout)
    )
}

fn place_line(seen: &network::Seen) -> String {
    let mut words = vec![seen.authority(), seen.agents.join(", ")];
    for (part, times) in &seen.parts {
        if let Some(median) = times.median() {
            words.push(format!("{} {}", part.as_str(), shown(median)));
        }
    }
    words.extend(seen.status.map(|status| format!("status {status}")));
    if seen.passing == Some(false) {
        words.push("failing in Consul".to_owned());
    }
    if let Some((_, told)) = &seen.trouble {
        words.push(format!(
            "{} of {} tries failed: {told}",
            seen.failed, seen.tries
        ));
    }
    words.join("  ")
}

fn registry_json(seen: &registry::Seen) -> Value {
    let requests = seen.load.as_ref().map(|load| {
        let requests = load.requests.iter().map(|one| {
            json!({"request": one.what, "count": one.count, "mean_ms": milliseconds(one.mean),
                   "max_ms": milliseconds(one.max), "may_wait": !one.is_work()})
        });
        requests.collect::<Vec<_>>()
    });
    json!({
        "address": seen.address,
        "reachable": seen.is_reachable,
        "samples": seen.samples,
        "leaders": seen.leaders,
        "leaderless": seen.leaderless,
        "peers": seen.peers,
        "agent_ms": times_json(&seen.status),
        "leader_ms": times_json(&seen.reads),
        "requests": requests,
        "elections": seen.load.as_ref().map(|load| load.elections),
    })
}

fn cost_json(cost: &Cost) -> Value {
    let check = |check: &Check| {
        json!({"body": if check.is_probe { "probe" } else { "derived" }, "bytes": check.bytes,
               "conforms": check.conforms, "check_ms": milliseconds(check.time)})
    };
    json!({
        "agent": cost.agent,
        "version": cost.version,
        "origin": cost.origin,
        "contract_bytes": cost.bytes,
        "timeout_ms": milliseconds(cost.timeout),
        "compile_ms": milliseconds(cost.compile),
        "input": check(&cost.input),
        "output": check(&cost.output),
        "share_of_timeout": cost.share(),
    })
}

fn place_json(seen: &network::Seen) -> Value {
    let parts = Part::ALL.into_iter().map(|part| {
        let times = seen.parts.get(&part).map(times_json);
        (part.as_str().to_owned(), times.unwrap_or(Value::Null))
    });
    let trouble = seen.trouble.as_ref();
    json!({
        "address": seen.authority(),
        "agents": seen.agents,
        "passing": seen.passing,
        "status": seen.status,
        "ms": parts.collect::<Map<String, Value>>(),
        "tries": seen.tries,
        "failed": seen.failed,
        "trouble": trouble.map(|(part, told)| json!({"part": part.as_str(), "message": told})),
    })
}

fn times_json(times: &Times) -> Value {
    json!({
        "median": times.median().map(milliseconds),
        "max": times.max().map(milliseconds),
        "count": times.len(),
    })
}
