//! `task --follow`: a task watched until it has ended.
//!
//! - on a terminal the timeline is drawn anew in its place; elsewhere each state is a line, once
//! - a task that is not known yet is waited for, and so is a collector that is away for a while
//! - an end counts after it has stood for a moment: a retry or a next step may still follow it
//! - what only the collector's watchdog takes for an end is none: the sidecars may still report

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::cli::OutputArgs;
use crate::cli::client::{self, Answer};
use crate::cli::collector::{Asking, pass_on, refusal};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{self, Palette, Screen, plain};

use super::is_task;
use super::timeline::{Task, timeline, word};

/// Between two looks.
const EVERY: Duration = Duration::from_millis(250);
/// How long an end stands before it counts.
const SETTLED: Duration = Duration::from_secs(1);
/// How long a collector may be away that has answered before.
const AWAY: Duration = Duration::from_secs(30);

pub(super) fn follow(
    asking: &Asking,
    id: &str,
    timeout: Option<Duration>,
    format: OutputArgs,
) -> Result<Exit, Failure> {
    client::block_on(async {
        let mut watch = Watch::new(asking, id, format);
        let watched = watch.until_ended();
        // Without a limit the end of the task is the only one.
        let until = timeout.and_then(|length| Instant::now().checked_add(length));
        let done = match until {
            None => watched.await,
            Some(until) => match timeout_at(until, watched).await {
                Ok(done) => done,
                Err(_elapsed) => {
                    output::talk("the task has not ended within the time given");
                    Ok(Exit::Timeout)
                }
            },
        };
        watch.leave();
        done
    })
}

/// What has been shown of a task so far.
struct Watch<'a> {
    asking: &'a Asking,
    id: &'a str,
    format: OutputArgs,
    palette: Palette,
    /// Where a terminal shows it; none elsewhere.
    screen: Option<Screen>,
    told: HashSet<String>,
    last: Vec<String>,
    said_waiting: bool,
    answered_at: Option<Instant>,
}

impl<'a> Watch<'a> {
    fn new(asking: &'a Asking, id: &'a str, format: OutputArgs) -> Self {
        Self {
            asking,
            id,
            format,
            palette: Palette::of_stdout(),
            screen: Screen::of_stdout().filter(|_| !format.is_json()),
            told: HashSet::new(),
            last: Vec::new(),
            said_waiting: false,
            answered_at: None,
        }
    }

    async fn until_ended(&mut self) -> Result<Exit, Failure> {
        let mut ended: Option<(String, Instant)> = None;
        loop {
            let task = match self.look().await? {
                Some(answer) => Some(self.show(&answer)?),
                None => None,
            };
            let end = task.filter(Task::has_ended);
            ended = match (end, ended) {
                (Some(task), Some((state, since))) if state == task.state => Some((state, since)),
                (Some(task), _) => Some((task.state, Instant::now())),
                (None, _) => None,
            };
            if let Some((state, _)) = ended.as_ref().filter(|(_, at)| at.elapsed() >= SETTLED) {
                return Ok(output::verdict(state == "completed"));
            }
            sleep(EVERY).await;
        }
    }

    /// Asks once; nothing while the task is unknown or the collector is away.
    async fn look(&mut self) -> Result<Option<Answer>, Failure> {
        match self.asking.get(&["tasks", self.id], &[], is_task).await {
            Ok(answer) if answer.status.is_success() => {
                self.answered_at = Some(Instant::now());
                Ok(Some(answer))
            }
            Ok(answer) if answer.status == reqwest::StatusCode::NOT_FOUND => {
                self.answered_at = Some(Instant::now());
                if !self.said_waiting {
                    output::talk("no report of this task has arrived yet; waiting for one");
                    self.said_waiting = true;
                }
                Ok(None)
            }
            Ok(answer) => self.survive(refusal(&answer)),
            Err(failure) => self.survive(failure),
        }
    }

    /// Goes on after a failure if the collector has answered a while ago.
    fn survive(&self, failure: Failure) -> Result<Option<Answer>, Failure> {
        let is_short = self.answered_at.is_some_and(|at| at.elapsed() < AWAY);
        if is_short { Ok(None) } else { Err(failure) }
    }

    fn show(&mut self, answer: &Answer) -> Result<Task, Failure> {
        let task: Task = serde_json::from_slice(&answer.body)
            .map_err(|error| self.asking.stranger(error.to_string()))?;
        if let Some(screen) = &mut self.screen {
            screen.draw(&timeline(&task, self.palette));
        } else if self.format.is_json() {
            // A running time in the verdict is no change.
            let states: Vec<String> = lines(&task).into_iter().map(|(key, _)| key).collect();
            if states != self.last {
                pass_on(answer);
                self.last = states;
            }
        } else {
            for (key, line) in lines(&task) {
                if self.told.insert(key) {
                    output::line(&line);
                }
            }
        }
        self.last_verdict(&task);
        Ok(task)
    }

    /// Writes the verdict of a task that has ended, once for each.
    fn last_verdict(&mut self, task: &Task) {
        let is_plain = self.screen.is_none() && !self.format.is_json();
        let Some(verdict) = task.verdict.as_ref().filter(|_| task.ended_at.is_some()) else {
            return;
        };
        let (state, verdict) = (word(&task.state, self.palette), plain(verdict));
        let line = format!("task {}  {state}  {verdict}", plain(&task.task_id));
        if is_plain && self.told.insert(line.clone()) {
            output::line(&line);
        }
    }

    fn leave(&mut self) {
        if let Some(screen) = &mut self.screen {
            screen.leave();
        }
    }
}

/// Writes each state that an attempt has reached as a line, with what makes it this state: who saw
/// it best may change when the other side reports.
fn lines(task: &Task) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for step in &task.steps {
        for attempt in &step.attempts {
            let place = attempt.instance.as_deref().unwrap_or_default();
            let place = match place {
                "" => String::new(),
                place => format!(" at {}", plain(place)),
            };
            for moment in &attempt.states {
                let key = format!("{} {} {}", step.step_id, attempt.attempt, moment.state);
                let line = format!(
                    "{}  step {}  {} attempt {}{place}: {} ({})",
                    plain(&moment.at),
                    plain(&step.step_id),
                    plain(&attempt.agent),
                    attempt.attempt,
                    plain(&moment.state),
                    plain(&moment.reporter)
                );
                lines.push((key, line));
            }
        }
    }
    lines
}
