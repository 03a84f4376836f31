//! How a run is told: a few lines for people, one object for programs.

use serde_json::{Value, json};

use super::calls::{Ended, Made, Outcome, Plan};
use super::promise::Promise;
use super::verdict::Verdict;
use crate::cli::OutputArgs;
use crate::cli::output::{self, Palette, Tone};
use crate::cli::quantile::{milliseconds, shown};
use crate::task::State;

/// Failures and slow calls that are named; the collector has all of them.
const NAMED_FAILURES: usize = 10;
const NAMED_SLOW: usize = 5;

/// Says what is about to be done.
pub(super) fn begin(plan: &Plan, promise: &Promise, output: OutputArgs) {
    if output.is_json() {
        return;
    }
    let contract = promise.contract();
    let rate = plan.rate.map(|rate| format!(", {rate} per second at most"));
    output::talk(&format!(
        "{} {}: {} calls, {} at once{}; task ids from {} to {}",
        contract.id,
        contract.version,
        plan.calls,
        plan.at_once,
        rate.unwrap_or_default(),
        plan.task_id(1),
        plan.task_id(plan.calls),
    ));
}

/// Tells what came of it.
pub(super) fn end(
    plan: &Plan,
    made: &Made,
    promise: &Promise,
    verdict: &Verdict,
    output: OutputArgs,
) {
    if output.is_json() {
        output::json(&whole(plan, made, promise, verdict));
    } else {
        text(plan, made, promise, verdict);
    }
    let left = plan.calls.saturating_sub(verdict.made);
    match &made.ended {
        Ended::All => {}
        Ended::TimeOver => output::talk(&format!(
            "{left} calls had not ended in time: give more with --timeout, or fewer --calls"
        )),
        Ended::Gone(told) => output::talk(&format!(
            "the sidecar at {} cannot be reached any more: {}; {left} calls were not made",
            plan.base,
            output::plain(told)
        )),
        Ended::Interrupted(_) => {
            output::talk(&format!("interrupted: {left} calls are not counted"));
        }
    }
}

fn text(plan: &Plan, made: &Made, promise: &Promise, verdict: &Verdict) {
    let palette = Palette::of_stdout();
    output::line(&format!(
        "{}  {} of {} calls in {}, {} at once, task ids {}…",
        output::plain(&plan.agent),
        verdict.made,
        plan.calls,
        shown(made.took),
        plan.at_once,
        plan.prefix
    ));
    for (version, timeout) in promise.versions() {
        let timeout = timeout.map_or("unknown".to_owned(), shown);
        output::line(&format!(
            "version {}  timeout {timeout}",
            output::plain(version)
        ));
    }
    let p99 = verdict.p99().map_or("none".to_owned(), shown);
    let longest = shown(verdict.longest);
    for (met, gate, is, limit) in [
        (
            verdict.completes(),
            "completed",
            format!("{:.3} %", verdict.share() * 100.0),
            "at least 99.9 %".to_owned(),
        ),
        (verdict.is_fast(), "p99", p99, format!("at most {longest}")),
        (
            verdict.is_valid(),
            "failed_validation",
            verdict.failed_validation.to_string(),
            "none".to_owned(),
        ),
    ] {
        let word = match met {
            true => palette.paint(Tone::Good, "met    "),
            false => palette.paint(Tone::Bad, "not met"),
        };
        output::line(&format!("{word}  {gate:<17}  {is:>10}  {limit}"));
    }
    output::line(&counts(made, verdict));
    listed("not completed", failures(made));
    if !verdict.is_fast() {
        listed("slowest", slowest(made));
    }
}

fn counts(made: &Made, verdict: &Verdict) -> String {
    let mut words: Vec<String> = [(50, "p50"), (90, "p90"), (100, "max")]
        .into_iter()
        .filter_map(|(percent, name)| {
            let time = verdict.times.percentile(percent)?;
            Some(format!("{name} {}", shown(time)))
        })
        .collect();
    let states = verdict.states.iter();
    words.extend(states.map(|(state, count)| format!("{} {count}", name(*state))));
    for (count, what) in [
        (verdict.degraded, "answered by a fallback"),
        (made.held_back, "begun late, others were still under way"),
    ] {
        if count > 0 {
            words.push(format!("{what}: {count}"));
        }
    }
    words.join("  ")
}

fn listed<'a>(title: &str, outcomes: impl Iterator<Item = &'a Outcome>) {
    for (at, outcome) in outcomes.enumerate() {
        if at == 0 {
            output::line(&format!("{title}:"));
        }
        let status = outcome.status.map(|status| status.to_string());
        let line = [
            outcome.task_id.as_str(),
            &shown(outcome.took),
            name(outcome.state),
            &status.unwrap_or_default(),
            outcome.kind.as_deref().unwrap_or_default(),
            &outcome.detail.replace('\n', " "),
        ];
        output::line(&format!("  {}", line.join("  ").trim_end()));
    }
}

fn failures(made: &Made) -> impl Iterator<Item = &Outcome> {
    let failed = made.outcomes.iter().filter(|one| !one.is_completed());
    failed.take(NAMED_FAILURES)
}

fn slowest(made: &Made) -> impl Iterator<Item = &Outcome> {
    let mut all: Vec<&Outcome> = made.outcomes.iter().collect();
    all.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
    all.into_iter().take(NAMED_SLOW)
}

fn name(state: Option<State>) -> &'static str {
    state.map_or("none", State::as_str)
}

fn whole(plan: &Plan, made: &Made, promise: &Promise, verdict: &Verdict) -> Value {
    let contract = promise.contract();
    let versions = promise.versions().map(
        |(version, timeout)| json!({"version": version, "timeout_ms": timeout.map(milliseconds)}),
    );
    let states: serde_json::Map<String, Value> = verdict
        .states
        .iter()
        .map(|(state, count)| (name(*state).to_owned(), (*count).into()))
        .collect();
    let at = |percent| verdict.times.percentile(percent).map(milliseconds);
    json!({
        "agent": plan.agent,
        "met": verdict.is_met(),
        "ended": match made.ended {
            Ended::All => "all",
            Ended::TimeOver => "timeout",
            Ended::Gone(_) => "unreachable",
            Ended::Interrupted(_) => "interrupted",
        },
        "contract": {
            "id": contract.id.as_str(),
            "digest": contract.digest().to_string(),
            "timeout_ms": milliseconds(promise.timeout()),
            "versions": versions.collect::<Vec<_>>(),
        },
        "task_id_prefix": plan.prefix,
        "calls": plan.calls,
        "made": verdict.made,
        "concurrency": plan.at_once,
        "rate": plan.rate,
        "held_back": made.held_back,
        "took_ms": milliseconds(made.took),
        "gates": [
            {"gate": "completed", "met": verdict.completes(), "is": verdict.share(), "limit": 0.999},
            {"gate": "p99_ms", "met": verdict.is_fast(), "is": at(99),
             "limit": milliseconds(verdict.longest)},
            {"gate": "failed_validation", "met": verdict.is_valid(),
             "is": verdict.failed_validation, "limit": 0},
        ],
        "states": states,
        "degraded": verdict.degraded,
        "duration_ms": {"p50": at(50), "p90": at(90), "p99": at(99), "max": at(100)},
        "failures": failures(made).map(one).collect::<Vec<_>>(),
        "slowest": slowest(made).map(one).collect::<Vec<_>>(),
    })
}

fn one(outcome: &Outcome) -> Value {
    json!({
        "task_id": outcome.task_id,
        "duration_ms": milliseconds(outcome.took),
        "state": outcome.state.map(State::as_str),
        "status": outcome.status,
        "kind": outcome.kind,
        "detail": outcome.detail,
        "agent": outcome.agent,
    })
}
