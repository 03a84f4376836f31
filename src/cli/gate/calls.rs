//! Making the calls: so many at once, so many per second, until all are made or time is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cli::client::{self, Answer};
use crate::cli::exit::Failure;
use crate::cli::{invoke, output};
use crate::task::State;
use crate::telemetry::log::Chain;

/// A call that begins later than this after its turn was held back by those before it.
const LATE: Duration = Duration::from_millis(10);
const SIGINT: u8 = 130;
const SIGTERM: u8 = 143;

/// What is to be done.
pub(super) struct Plan {
    pub http: reqwest::Client,
    pub base: String,
    pub agent: String,
    pub input: Box<RawValue>,
    pub calls: usize,
    pub at_once: usize,
    /// Calls per second at most.
    pub rate: Option<f64>,
    pub prefix: String,
}

/// How one call ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    pub task_id: String,
    pub took: Duration,
    /// Of the reply, if there was one.
    pub status: Option<u16>,
    pub state: Option<State>,
    /// What a problem body names.
    pub kind: Option<String>,
    /// Why it did not complete.
    pub detail: String,
    /// `id@version` of who answered.
    pub agent: Option<String>,
    /// A fallback answered.
    pub degraded: bool,
}

/// Why no further calls were made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    All,
    TimeOver,
    /// The sidecar takes no connections any more.
    Gone(String),
    /// By a signal; the exit code that stands for it.
    Interrupted(u8),
}

/// What was done.
#[derive(Debug)]
pub(super) struct Made {
    /// In the order in which they ended.
    pub outcomes: Vec<Outcome>,
    pub ended: Ended,
    /// Calls that began after their turn, because too many were under way.
    pub held_back: usize,
    pub took: Duration,
}

impl Plan {
    /// Names the task of the call with this number, counted from 1.
    pub fn task_id(&self, number: usize) -> String {
        let width = self.calls.to_string().len();
        format!("{}{number:0width$}", self.prefix)
    }

    /// Returns how long after the first call the one with this number may begin.
    fn turn(&self, number: usize) -> Duration {
        let after = |rate| Duration::from_secs_f64((number - 1) as f64 / rate);
        self.rate.map_or(Duration::ZERO, after)
    }
}

impl Outcome {
    /// Says whether the contract's own application answered as promised; what a fallback answers
    /// says nothing for it.
    pub fn is_completed(&self) -> bool {
        !self.degraded && self.is_good()
    }

    fn is_good(&self) -> bool {
        self.state == Some(State::Completed)
            && self
                .status
                .is_some_and(|status| (200..300).contains(&status))
    }

    /// Returns the version that answered, if it was one of the contract `id`.
    pub fn version_of(&self, id: &str) -> Option<&str> {
        let (answered, version) = self.agent.as_ref()?.split_once('@')?;
        (answered == id).then_some(version)
    }

    fn of(task_id: String, took: Duration, sent: Result<Answer, Failure>) -> Self {
        let ended = Self {
            task_id,
            took,
            ..Self::default()
        };
        match sent {
            Ok(answer) => ended.with(&answer),
            Err(failure) => Self {
                detail: output::plain(&failure.to_string()).into_owned(),
                ..ended
            },
        }
    }

    fn with(self, answer: &Answer) -> Self {
        let text = |name| {
            answer
                .header(name)
                .map(|text| output::plain(text).into_owned())
        };
        let state = answer.header("hermes-state").and_then(state);
        let outcome = Self {
            status: Some(answer.status.as_u16()),
            state,
            agent: text("hermes-agent"),
            degraded: answer.header("hermes-degraded") == Some("?1"),
            ..self
        };
        if outcome.is_completed() {
            return outcome;
        }
        if outcome.is_good() {
            // Its body is an output as any other.
            let detail = "a fallback answered".to_owned();
            return Self { detail, ..outcome };
        }
        Self {
            kind: kind(&answer.body),
            detail: output::detail(&answer.body)
                .chars()
                .take(MOST_DETAIL)
                .collect(),
            ..outcome
        }
    }
}

/// What is told of one failure; the collector has the rest.
const MOST_DETAIL: usize = 300;

fn state(text: &str) -> Option<State> {
    State::ALL.into_iter().find(|state| state.as_str() == text)
}

fn kind(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Told {
        #[serde(rename = "type")]
        kind: String,
    }
    let told: Told = serde_json::from_slice(body).ok()?;
    let kind = told.kind.strip_prefix(crate::task::Problem::TYPE)?;
    Some(output::plain(kind).into_owned())
}

struct Run {
    plan: Plan,
    began: Instant,
    begun: AtomicUsize,
    held_back: AtomicUsize,
    outcomes: Mutex<Vec<Outcome>>,
    gone: watch::Sender<Option<String>>,
}

/// Makes the calls; those under way when it ends before its time are let go and not counted.
pub(super) async fn make(plan: Plan, until: Instant) -> Result<(Plan, Made), Failure> {
    let at_once = plan.at_once.min(plan.calls);
    let (gone, mut is_gone) = watch::channel(None);
    let run = Arc::new(Run {
        plan,
        began: Instant::now(),
        begun: AtomicUsize::new(0),
        held_back: AtomicUsize::new(0),
        outcomes: Mutex::default(),
        gone,
    });
    let listen = |kind| signal(kind).map_err(|error| Failure::bug(&error));
    let (mut interrupt, mut terminate) = (
        listen(SignalKind::interrupt())?,
        listen(SignalKind::terminate())?,
    );
    let mut workers = JoinSet::new();
    for _ in 0..at_once {
        workers.spawn(run.clone().work());
    }
    let ended = tokio::select! {
        biased;
        _ = interrupt.recv() => Ended::Interrupted(SIGINT),
        _ = terminate.recv() => Ended::Interrupted(SIGTERM),
        Ok(told) = is_gone.wait_for(Option::is_some) => Ended::Gone(told.clone().unwrap_or_default()),
        () = all(&mut workers) => Ended::All,
        () = tokio::time::sleep_until(until) => Ended::TimeOver,
    };
    workers.shutdown().await;
    let made = Made {
        ended,
        held_back: run.held_back.load(Ordering::Relaxed),
        took: run.began.elapsed(),
        outcomes: std::mem::take(&mut *run.lock()),
    };
    let run = Arc::into_inner(run).expect("the workers have ended, and nobody else has it");
    Ok((run.plan, made))
}

async fn all(workers: &mut JoinSet<()>) {
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

impl Run {
    async fn work(self: Arc<Self>) {
        loop {
            let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
            if number > self.plan.calls {
                return;
            }
            let turn = self.began + self.plan.turn(number);
            if self.plan.rate.is_some() && turn.elapsed() > LATE {
                self.held_back.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep_until(turn).await;
            self.call(self.plan.task_id(number)).await;
        }
    }

    async fn call(&self, task_id: String) {
        let plan = &self.plan;
        let body = invoke::body(&plan.agent, &plan.input, &task_id);
        let request = plan
            .http
            .post(client::url(&plan.base, "/hermes/invoke"))
            .header("content-type", "application/json")
            .body(body);
        let began = Instant::now();
        let sent = client::send("the sidecar", &plan.base, request).await;
        let took = began.elapsed();
        if let Err(Failure::Unreachable { source, .. }) = &sent
            && source.is_connect()
        {
            // Nobody was called, so there is nothing to count.
            self.gone.send_replace(Some(Chain(source).to_string()));
            return;
        }
        let outcome = Outcome::of(task_id, took, sent);
        self.lock().push(outcome);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Outcome>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(calls: usize, rate: Option<f64>) -> Plan {
        Plan {
            http: client::http("http://127.0.0.1:1", Duration::from_secs(1)).unwrap(),
            base: "http://127.0.0.1:1".to_owned(),
            agent: "fraud-v1.0".to_owned(),
            input: RawValue::from_string("{}".to_owned()).unwrap(),
            calls,
            at_once: 1,
            rate,
            prefix: "verify-1-".to_owned(),
        }
    }

    #[test]
    fn task_ids_sort_as_they_were_made() {
        let plan = plan(1000, None);
        assert_eq!(plan.task_id(7), "verify-1-0007");
        assert_eq!(plan.task_id(1000), "verify-1-1000");
        assert!(crate::task::Id::parse(&plan.task_id(7)).is_ok());
    }

    #[test]
    fn turns_follow_the_rate() {
        let plan_at = |rate| plan(10, rate);
        assert_eq!(plan_at(None).turn(10), Duration::ZERO);
        assert_eq!(plan_at(Some(4.0)).turn(1), Duration::ZERO);
        assert_eq!(plan_at(Some(4.0)).turn(3), Duration::from_millis(500));
    }

    #[tokio::test]
    async fn a_sidecar_that_takes_no_connection_ends_the_run() {
        let until = Instant::now() + Duration::from_secs(20);
        let (_, made) = make(plan(1000, None), until).await.unwrap();
        assert!(matches!(made.ended, Ended::Gone(_)), "{made:?}");
        assert!(made.outcomes.is_empty(), "{made:?}");
    }
}
