//! A task drawn for people: a line for the task, one for each step and attempt, its states below.

use std::collections::HashMap;

use serde::Deserialize;

use crate::cli::output::{Palette, Tone, plain};

/// A chain of calls is refused beyond this depth; deeper indentation would only be noise, so a
/// step below it says in words whose it is.
const MAX_DEPTH: usize = 32;

/// What of the collector's answer is shown; fields it may leave out are empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Task {
    pub(super) task_id: String,
    pub(super) state: String,
    pub(super) verdict: Option<String>,
    started_at: Option<String>,
    pub(super) ended_at: Option<String>,
    pub(super) steps: Vec<Step>,
    chain: serde_json::Value,
}

impl Task {
    /// Says whether it has ended by the word of those who called or were called: a mark of the
    /// collector's watchdog gives way to that once it arrives.
    pub(super) fn has_ended(&self) -> bool {
        let is_marked = |step: &Step| {
            let states = step.attempts.last().map(|attempt| &attempt.states);
            let last = states.and_then(|states| states.last());
            last.is_some_and(|last| last.reporter == "watchdog")
        };
        self.ended_at.is_some() && !self.steps.iter().any(is_marked)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Step {
    pub(super) step_id: String,
    parent_step: Option<String>,
    pub(super) agent: String,
    state: String,
    degraded: bool,
    pub(super) attempts: Vec<Attempt>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Attempt {
    pub(super) attempt: u64,
    pub(super) agent: String,
    pub(super) instance: Option<String>,
    pub(super) state: String,
    pub(super) states: Vec<Moment>,
    duration_ms: Option<f64>,
    error: Option<Fault>,
    late: Option<serde_json::Value>,
    undelivered: Option<serde_json::Value>,
    conflict: Option<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Moment {
    pub(super) state: String,
    pub(super) at: String,
    pub(super) reporter: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fault {
    kind: String,
    title: Option<String>,
    detail: Option<String>,
}

/// Writes a task for people.
pub(super) fn timeline(task: &Task, palette: Palette) -> String {
    let mut text = format!(
        "task {}  {}",
        plain(&task.task_id),
        word(&task.state, palette)
    );
    if let Some(verdict) = &task.verdict {
        text.push_str(&format!("  {}", plain(verdict)));
    }
    text.push('\n');
    if let Some(start) = &task.started_at {
        let end = task.ended_at.as_deref().unwrap_or("still open");
        text.push_str(&format!("  from {} to {}\n", plain(start), plain(end)));
    }
    for place in places(&task.steps) {
        write_step(&mut text, &place, palette);
    }
    match &task.chain {
        serde_json::Value::Array(breaks) if !breaks.is_empty() => {
            let told = palette.paint(Tone::Bad, "chain broken").into_owned();
            text.push_str(&format!("  {told}: {}\n", plain(&task.chain.to_string())));
        }
        serde_json::Value::Null => {}
        _ => text.push_str("  chain ok\n"),
    }
    text
}

/// A step where it is drawn.
struct Place<'a> {
    step: &'a Step,
    depth: usize,
    /// Its parent, where the place itself does not show it.
    below: Option<&'a str>,
}

/// Lays out every step once, each below the one that made it. A step that names itself or nobody we
/// know begins a tree; so does the first of a circle, or none of it would be seen.
fn places(steps: &[Step]) -> Vec<Place<'_>> {
    let mut named: HashMap<&str, usize> = HashMap::new();
    for (at, step) in steps.iter().enumerate() {
        named.entry(&step.step_id).or_insert(at);
    }
    let parent = |step: &Step| {
        let name = step.parent_step.as_deref()?;
        named.get(name).copied().filter(|_| name != step.step_id)
    };
    let mut children = vec![Vec::new(); steps.len()];
    let mut roots = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        match parent(step) {
            Some(parent) => children[parent].push(at),
            None => roots.push(at),
        }
    }
    let mut is_placed = vec![false; steps.len()];
    let mut places = Vec::with_capacity(steps.len());
    for root in roots.into_iter().chain(0..steps.len()) {
        let mut waiting = vec![(root, 1)];
        while let Some((at, depth)) = waiting.pop() {
            if std::mem::replace(&mut is_placed[at], true) {
                continue;
            }
            let step = &steps[at];
            let is_shown = (2..=MAX_DEPTH).contains(&depth) || parent(step).is_none();
            places.push(Place {
                step,
                depth: depth.min(MAX_DEPTH),
                below: step.parent_step.as_deref().filter(|_| !is_shown),
            });
            waiting.extend(children[at].iter().rev().map(|child| (*child, depth + 1)));
        }
    }
    places
}

fn write_step(text: &mut String, place: &Place<'_>, palette: Palette) {
    let step = place.step;
    let pad = "  ".repeat(place.depth);
    let degraded = if step.degraded { "  degraded" } else { "" };
    let below = place.below.map_or_else(String::new, |parent| {
        format!(" below step {}", plain(parent))
    });
    let name = format!("step {}{below}", plain(&step.step_id));
    text.push_str(&format!(
        "{pad}{}  {}{degraded}  {}\n",
        plain(&step.agent),
        word(&step.state, palette),
        palette.paint(Tone::Faint, &name),
    ));
    for attempt in &step.attempts {
        write_attempt(text, step, attempt, &pad, palette);
    }
}

fn write_attempt(text: &mut String, step: &Step, attempt: &Attempt, pad: &str, palette: Palette) {
    let mut head = format!("attempt {}", attempt.attempt);
    if attempt.agent != step.agent && !attempt.agent.is_empty() {
        head.push_str(&format!(" by {}", plain(&attempt.agent)));
    }
    if let Some(instance) = attempt.instance.as_deref().filter(|i| !i.is_empty()) {
        head.push_str(&format!(" at {}", plain(instance)));
    }
    if let Some(duration) = attempt.duration_ms {
        head.push_str(&format!(", {duration} ms"));
    }
    text.push_str(&format!("{pad}  {head}: {}\n", plain(&way(attempt))));
    for moment in &attempt.states {
        let (state, reporter) = (plain(&moment.state), plain(&moment.reporter));
        text.push_str(&format!(
            "{pad}    {}  {state:<18} {reporter}\n",
            plain(&moment.at)
        ));
    }
    for (flag, told) in [
        (&attempt.late, "late"),
        (&attempt.undelivered, "undelivered"),
        (&attempt.conflict, "conflict"),
    ] {
        if flag.as_ref().is_some_and(|flag| {
            !matches!(
                flag,
                serde_json::Value::Bool(false) | serde_json::Value::Null
            )
        }) {
            text.push_str(&format!(
                "{pad}    {}\n",
                palette.paint(Tone::Doubtful, told)
            ));
        }
    }
    if let Some(fault) = &attempt.error {
        let told = fault
            .detail
            .as_deref()
            .or(fault.title.as_deref())
            .unwrap_or_default();
        let kind = palette.paint(Tone::Bad, &plain(&fault.kind)).into_owned();
        text.push_str(&format!("{pad}    {kind}: {}\n", plain(told)));
    }
}

/// Writes the states an attempt went through, each once, in life order: `pending → dispatched → …`.
fn way(attempt: &Attempt) -> String {
    const ORDER: [&str; 4] = ["fallback_invoked", "pending", "dispatched", "executing"];
    let mut states: Vec<&str> = attempt
        .states
        .iter()
        .map(|moment| moment.state.as_str())
        .collect();
    states.push(&attempt.state);
    let mut seen: Vec<&str> = Vec::new();
    for state in states {
        if !state.is_empty() && !seen.contains(&state) {
            seen.push(state);
        }
    }
    // Clocks of two machines differ, the order of life does not; what ended the attempt comes last.
    let rank = |state: &&str| {
        ORDER
            .iter()
            .position(|known| known == state)
            .unwrap_or(ORDER.len())
    };
    seen.sort_by_key(|state| (rank(state), *state == attempt.state));
    seen.join(" → ")
}

pub(super) fn word(state: &str, palette: Palette) -> String {
    let tone = match state {
        "completed" => Tone::Good,
        "pending" | "dispatched" | "executing" | "fallback_invoked" => Tone::Doubtful,
        _ => Tone::Bad,
    };
    palette.paint(tone, &plain(state)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(task: serde_json::Value) -> String {
        timeline(&serde_json::from_value(task).unwrap(), Palette::none())
    }

    #[test]
    fn what_only_the_watchdog_tells_is_no_end() {
        let task = |ended_at: Option<&str>, reporters: &[&[&str]]| {
            let attempts = reporters.iter().map(|reporters| {
                let states = reporters
                    .iter()
                    .map(|reporter| json!({"state": "timeout", "at": "1", "reporter": reporter}));
                json!({"states": states.collect::<Vec<_>>()})
            });
            let attempts: Vec<_> = attempts.collect();
            let task = json!({"ended_at": ended_at, "steps": [{"attempts": attempts}]});
            serde_json::from_value::<Task>(task).unwrap()
        };
        let at = Some("2025-01-01T00:00:00.012Z");
        assert!(!task(None, &[&["caller"]]).has_ended());
        assert!(task(at, &[&["caller", "callee"]]).has_ended());
        assert!(!task(at, &[&["caller", "watchdog"]]).has_ended());
        // A later attempt tells more than a mark of the one before.
        assert!(task(at, &[&["watchdog"], &["caller"]]).has_ended());
        assert!(!task(at, &[&["caller"], &["watchdog"]]).has_ended());
    }

    #[test]
    fn a_timeline_tells_each_attempt_on_one_line() {
        let text = render(json!({
            "task_id": "t1", "state": "completed", "verdict": "completed in 12 ms",
            "started_at": "2025-01-01T00:00:00.000Z", "ended_at": "2025-01-01T00:00:00.012Z",
            "steps": [
                {"step_id": "b", "call_id": "c2", "parent_step": "a", "agent": "fraud-detection-v1.0",
                 "state": "failed_validation", "degraded": false,
                 "attempts": [{"attempt": 1, "agent": "fraud-detection-v1.0", "state": "failed_validation",
                   "states": [{"state": "pending", "at": "x", "reporter": "caller"}],
                   "error": {"kind": "input\u{1b}[31m-invalid", "title": "no", "detail": "no \u{1b}[2J amount"}}]},
                {"step_id": "a", "call_id": "c1", "agent": "pay-order-v1.0", "state": "completed", "degraded": true,
                 "attempts": [{"attempt": 2, "agent": "pay-order-v1.0", "instance": "pay-7401", "state": "completed",
                   "duration_ms": 12, "late": true,
                   "states": [
                     {"state": "executing", "at": "00:00:00.003", "reporter": "callee"},
                     {"state": "pending", "at": "00:00:00.001", "reporter": "caller"},
                     {"state": "dispatched", "at": "00:00:00.004", "reporter": "caller"},
                     {"state": "completed", "at": "00:00:00.012", "reporter": "callee"},
                     {"state": "completed", "at": "00:00:00.013", "reporter": "caller"}]}]},
            ],
            "chain": "ok"
        }));
        let expected = "\
task t1  completed  completed in 12 ms
  from 2025-01-01T00:00:00.000Z to 2025-01-01T00:00:00.012Z
  pay-order-v1.0  completed  degraded  step a
    attempt 2 at pay-7401, 12 ms: pending → dispatched → executing → completed
      00:00:00.003  executing          callee
      00:00:00.001  pending            caller
      00:00:00.004  dispatched         caller
      00:00:00.012  completed          callee
      00:00:00.013  completed          caller
      late
    fraud-detection-v1.0  failed_validation  step b
      attempt 1: pending → failed_validation
        x  pending            caller
        input\u{fffd}[31m-invalid: no \u{fffd}[2J amount
  chain ok
";
        assert_eq!(text, expected);
    }

    #[test]
    fn circles_and_gaps_hide_no_step() {
        let circle = json!({"steps": [
            {"step_id": "a", "parent_step": "b"}, {"step_id": "b", "parent_step": "a"},
            {"step_id": "c", "parent_step": "c"}, {"step_id": "d", "parent_step": "gone"}]});
        let lines = ["step c", "step d", "step a below step b", "  step b"];
        let lines: String = lines.map(|line| format!("      {line}\n")).concat();
        assert_eq!(render(circle), format!("task   \n{lines}"));
        assert_eq!(render(json!({})), "task   \n");
    }

    #[test]
    fn a_deep_chain_is_shown_to_its_end() {
        let step = |n: usize| json!({"step_id": format!("s{n}"), "parent_step": format!("s{}", n.wrapping_sub(1))});
        let steps: Vec<_> = (0..1000).map(step).collect();
        let text = render(json!({"steps": steps}));
        assert_eq!(text.lines().count(), 1001);
        let last = text.lines().last().unwrap();
        assert!(last.ends_with("step s999 below step s998"), "{last}");
        assert!(!text.contains("step s31 below"), "its place shows it");
    }
}
