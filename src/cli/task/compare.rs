//! `task --compare`: two tasks side by side.

use serde::Deserialize;
use serde_json::Value;

use crate::cli::OutputArgs;
use crate::cli::client;
use crate::cli::collector::{Asking, pass_on, refused};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{self, Palette, Tone, plain};

use super::timeline::word;

/// What of the collector's answer is shown.
#[derive(Debug, Deserialize)]
struct Comparison {
    task_id: String,
    other_task_id: String,
    same: bool,
    verdict: String,
    state: Both<String>,
    duration_ms: Both<Option<u64>>,
    first_difference: Option<usize>,
    steps: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Both<T> {
    task: T,
    other: T,
}

#[derive(Debug, Deserialize)]
struct Row {
    agent: String,
    differs: Vec<String>,
    input: String,
    output: String,
    task: Option<Side>,
    other: Option<Side>,
}

#[derive(Debug, Deserialize)]
struct Side {
    step_id: String,
    instance: String,
    state: String,
    duration_ms: u64,
}

pub(super) fn compare(
    asking: &Asking,
    id: &str,
    other: &str,
    format: OutputArgs,
) -> Result<Exit, Failure> {
    let path = ["tasks", id, "compare", other];
    let answer = client::block_on(asking.get(&path, &[], is_comparison))?;
    if !answer.status.is_success() {
        return refused(&answer, format);
    }
    let comparison: Comparison =
        serde_json::from_slice(&answer.body).map_err(|error| asking.stranger(error.to_string()))?;
    match format.is_json() {
        true => pass_on(&answer),
        false => output::data(drawn(&comparison, Palette::of_stdout()).as_bytes()),
    }
    Ok(output::verdict(comparison.same))
}

fn is_comparison(told: &Value) -> bool {
    told["same"].is_boolean() && told["steps"].is_array()
}

/// Writes a comparison for people: a line per step, and both sides of each that differs.
fn drawn(comparison: &Comparison, palette: Palette) -> String {
    let tone = if comparison.same {
        Tone::Good
    } else {
        Tone::Doubtful
    };
    let verdict = plain(&comparison.verdict);
    let mut text = format!(
        "{} and {}: {}\n",
        plain(&comparison.task_id),
        plain(&comparison.other_task_id),
        palette.paint(tone, &verdict)
    );
    let took = |took: Option<u64>| took.map_or_else(String::new, |ms| format!(" in {ms} ms"));
    let (state, length) = (&comparison.state, &comparison.duration_ms);
    text.push_str(&format!(
        "  {}{}, {}{}\n",
        word(&state.task, palette),
        took(length.task),
        word(&state.other, palette),
        took(length.other)
    ));
    for (place, row) in comparison.steps.iter().enumerate() {
        write_row(&mut text, row, palette);
        if comparison.first_difference == Some(place) {
            let told = palette.paint(Tone::Doubtful, "    the ways part here");
            text.push_str(&format!("{told}\n"));
        }
    }
    text
}

fn write_row(text: &mut String, row: &Row, palette: Palette) {
    let differs = match row.differs.is_empty() {
        true => palette.paint(Tone::Faint, "equal").into_owned(),
        false => {
            let differs = format!("differs: {}", row.differs.join(", "));
            palette.paint(Tone::Bad, &plain(&differs)).into_owned()
        }
    };
    text.push_str(&format!(
        "  {}  {differs}  (input {}, output {})\n",
        plain(&row.agent),
        plain(&row.input),
        plain(&row.output)
    ));
    for side in [&row.task, &row.other] {
        let told = match side {
            Some(side) => {
                // A call that nobody could be found for has none.
                let place = match side.instance.as_str() {
                    "" => String::new(),
                    instance => format!(" at {}", plain(instance)),
                };
                format!(
                    "step {}{place}, {} ms: {}",
                    plain(&side.step_id),
                    side.duration_ms,
                    word(&side.state, palette)
                )
            }
            None => "no such step".to_owned(),
        };
        text.push_str(&format!("    {told}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_sides_of_each_step_are_shown() {
        let side = |step: &str, state: &str| json!({"step_id": step, "instance": "a-1", "state": state, "duration_ms": 5});
        let comparison = json!({
            "task_id": "t-1", "other_task_id": "t-2", "same": false,
            "verdict": "the ways part at step s2 (b-v1.0): only the first task has it",
            "state": {"task": "completed", "other": "timeout"},
            "duration_ms": {"task": 12, "other": null},
            "first_difference": 1,
            "steps": [
                {"agent": "a-v1.0", "differs": [], "input": "equal", "output": "equal",
                 "task": side("s1", "completed"), "other": side("s1", "completed")},
                {"agent": "b-v1.0", "differs": ["missing"], "input": "unknown", "output": "unknown",
                 "task": {"step_id": "s2", "instance": "", "state": "failed_execution", "duration_ms": 0}, "other": null},
            ],
        });
        let comparison = serde_json::from_value(comparison).unwrap();
        let expected = "\
t-1 and t-2: the ways part at step s2 (b-v1.0): only the first task has it
  completed in 12 ms, timeout
  a-v1.0  equal  (input equal, output equal)
    step s1 at a-1, 5 ms: completed
    step s1 at a-1, 5 ms: completed
  b-v1.0  differs: missing  (input unknown, output unknown)
    step s2, 0 ms: failed_execution
    no such step
    the ways part here
";
        assert_eq!(drawn(&comparison, Palette::none()), expected);
    }
}
