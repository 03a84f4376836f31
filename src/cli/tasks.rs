//! `tasks`: which tasks the collector knows, newest first.

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::OutputArgs;
use super::client;
use super::collector::{Asking, CollectorPlace, pass_on, refused};
use super::exit::{Exit, Failure};
use super::output::{self, Palette, Tone, plain};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hermes-sidecar tasks --state timeout,failed_execution --since 1h
  hermes-sidecar tasks --application shop --min-ms 500 --limit 20
  hermes-sidecar tasks --limit 1000 -o json")]
pub(super) struct TasksArgs {
    /// State or states, separated by commas.
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Contract that the task's first step asked for.
    #[arg(long, value_name = "ID")]
    agent: Option<String>,
    /// Application that began the task.
    #[arg(long, value_name = "NAME")]
    application: Option<String>,
    /// Service level, P0 to P3.
    #[arg(long, value_name = "LEVEL")]
    sla: Option<String>,
    /// Only what began since then: a time (RFC 3339), or a length before now such as 15m.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only what took, or has taken, at least this many milliseconds.
    #[arg(long, value_name = "MS")]
    min_ms: Option<u64>,
    /// Most tasks to list, up to 1000; default: 100.
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    /// Where to go on, as the page before says.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    #[command(flatten)]
    place: CollectorPlace,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Deserialize)]
struct Listing {
    tasks: Vec<Line>,
    next: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Line {
    task_id: String,
    state: String,
    agent: String,
    application: String,
    sla_level: String,
    started_at: String,
    ended_at: Option<String>,
    degraded: bool,
}

pub(super) fn tasks(args: TasksArgs) -> Result<Exit, Failure> {
    let query = query(&args);
    let asking = Asking::at(args.place)?;
    let is_list = |told: &Value| told["tasks"].is_array();
    let answer = client::block_on(asking.get(&["tasks"], &query, is_list))?;
    if !answer.status.is_success() {
        return refused(&answer, args.output);
    }
    if args.output.is_json() {
        pass_on(&answer);
        return Ok(Exit::Fine);
    }
    let listing: Listing =
        serde_json::from_slice(&answer.body).map_err(|error| asking.stranger(error.to_string()))?;
    output::data(table(&listing.tasks, Palette::of_stdout()).as_bytes());
    if listing.tasks.is_empty() {
        output::talk("no task fits");
    }
    if let Some(next) = &listing.next {
        output::talk(&format!("older ones: --after {}", plain(next)));
    }
    Ok(Exit::Fine)
}

fn query(args: &TasksArgs) -> Vec<(&'static str, String)> {
    let all = [
        ("state", args.state.clone()),
        ("agent", args.agent.clone()),
        ("application", args.application.clone()),
        ("sla", args.sla.clone()),
        ("since", args.since.clone()),
        ("min_ms", args.min_ms.map(|ms| ms.to_string())),
        ("limit", args.limit.map(|limit| limit.to_string())),
        ("after", args.after.clone()),
    ];
    let given = all.into_iter();
    given
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

const HEAD: [&str; 7] = [
    "STARTED",
    "TASK",
    "STATE",
    "TOOK",
    "AGENT",
    "APPLICATION",
    "SLA",
];
/// The column that is coloured.
const STATE: usize = 2;

fn table(tasks: &[Line], palette: Palette) -> String {
    if tasks.is_empty() {
        return String::new();
    }
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(tasks.iter().map(row));
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let mut text = String::new();
    for (place, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let cell = format!("{cell:<width$}  ");
            match column == STATE && place > 0 {
                true => line.push_str(&palette.paint(tone(cell.trim_end()), &cell)),
                false => line.push_str(&cell),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn tone(state: &str) -> Tone {
    match state {
        "completed" => Tone::Good,
        "completed, degraded" => Tone::Doubtful,
        "pending" | "dispatched" | "executing" | "fallback_invoked" => Tone::Doubtful,
        _ => Tone::Bad,
    }
}

fn row(line: &Line) -> [String; 7] {
    let text = |text: &str| match text {
        "" => "-".to_owned(),
        text => plain(text).into_owned(),
    };
    let state = match line.degraded {
        true => format!("{}, degraded", text(&line.state)),
        false => text(&line.state),
    };
    [
        text(&line.started_at),
        text(&line.task_id),
        state,
        took(line).unwrap_or_else(|| "open".to_owned()),
        text(&line.agent),
        text(&line.application),
        text(&line.sla_level),
    ]
}

fn took(line: &Line) -> Option<String> {
    let began = humantime::parse_rfc3339(&line.started_at).ok()?;
    let ended = humantime::parse_rfc3339(line.ended_at.as_ref()?).ok()?;
    // Clocks of two machines may differ by more than a task takes.
    let took = ended.duration_since(began).unwrap_or_default();
    Some(format!("{} ms", took.as_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_lines_up_and_says_what_is_open() {
        let line = |task: &str, state: &str, ended_at: Option<&str>, degraded| Line {
            task_id: task.into(),
            state: state.into(),
            agent: "fraud-v1.0".into(),
            application: "shop".into(),
            sla_level: "P0".into(),
            started_at: "2026-01-05T09:30:00.000Z".into(),
            ended_at: ended_at.map(str::to_owned),
            degraded,
        };
        let tasks = [
            line(
                "order-1",
                "completed",
                Some("2026-01-05T09:30:01.200Z"),
                true,
            ),
            line("\u{1b}[2J", "executing", None, false),
        ];
        let expected = "\
STARTED                   TASK     STATE                TOOK     AGENT       APPLICATION  SLA
2026-01-05T09:30:00.000Z  order-1  completed, degraded  1200 ms  fraud-v1.0  shop         P0
2026-01-05T09:30:00.000Z  \u{fffd}[2J     executing            open     fraud-v1.0  shop         P0
";
        assert_eq!(table(&tasks, Palette::none()), expected);
        assert_eq!(table(&[], Palette::none()), "");
    }
}
