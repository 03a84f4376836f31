//! One attempt, from its first state to the report of its last.
//!
//! - an attempt reports itself exactly once, also when the future that carries it out is dropped
//! - it moves only along the table of states; a wrong move is refused, counted and logged
//! - the end state is committed (or the wait for it given up) before the reply goes out

use super::later::Later;
use crate::deferred::Open;
use crate::spool::Spool;
use crate::task::{Deadline, Failure, Report, State, Timestamp, Trail};
use crate::telemetry::metrics::{Phase, Sidecar};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// After this long an attempt that is still open is reported with its present state.
pub const STILL_OPEN: Duration = Duration::from_millis(250);

/// Where reports and counts go; one per sidecar.
#[derive(Debug)]
pub struct Recorder {
    pub spool: Spool,
    pub metrics: Arc<Sidecar>,
}

/// What a call's attempts and its downstream know of each other: whether it still waits, and,
/// where the call is answered later, how far it has come.
#[derive(Debug, Default)]
pub struct Presence {
    gone: AtomicBool,
    watched: Option<Arc<Open>>,
}

impl Presence {
    /// Tells `open` of every state.
    pub fn watched(open: Arc<Open>) -> Self {
        Self {
            gone: AtomicBool::new(false),
            watched: Some(open),
        }
    }

    fn moved(&self, state: State) {
        if let Some(open) = &self.watched {
            open.moved(state);
        }
    }

    /// Notes that the downstream has hung up.
    pub fn left(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

/// An attempt that has begun and not yet been settled.
#[derive(Debug)]
pub struct Attempt {
    recorder: Arc<Recorder>,
    presence: Arc<Presence>,
    report: Option<Box<Report>>,
    trail: Trail,
    began: Instant,
}

impl Attempt {
    /// Begins at the state that `report` carries; `began` is when the request came.
    pub fn begin(
        recorder: Arc<Recorder>,
        presence: Arc<Presence>,
        report: Box<Report>,
        began: Instant,
    ) -> Self {
        recorder.metrics.attempt_began(report.state);
        Self::at(recorder, presence, report, began)
    }

    /// Begins where the attempt before `ended`: at a retry's `dispatched` or at a fallback.
    pub fn follow(
        recorder: Arc<Recorder>,
        presence: Arc<Presence>,
        report: Box<Report>,
        ended: State,
    ) -> Self {
        recorder.metrics.attempt_followed(ended, report.state);
        Self::at(recorder, presence, report, Instant::now())
    }

    fn at(
        recorder: Arc<Recorder>,
        presence: Arc<Presence>,
        report: Box<Report>,
        began: Instant,
    ) -> Self {
        // Its history begins where its duration does: with the request, not after its body.
        let at = Timestamp::now().minus(began.elapsed());
        Self {
            trail: Trail::begin(report.state, at),
            recorder,
            presence,
            report: Some(report),
            began,
        }
    }

    /// Changes what the report says; states change by `advance` alone.
    pub fn note(&mut self, change: impl FnOnce(&mut Report)) {
        if let Some(report) = &mut self.report {
            change(report);
        }
    }

    /// Moves to `next`.
    pub fn advance(&mut self, next: State) {
        let from = self.trail.state();
        match self.trail.advance(next, Timestamp::now()) {
            Ok(()) => {
                self.recorder.metrics.attempt_moved(from, next);
                self.presence.moved(next);
            }
            Err(refused) => {
                self.recorder.metrics.transition_refused();
                tracing::error!(%refused, "an attempt was about to leave the table of states");
            }
        }
    }

    /// Reports the present state of an attempt that takes its time.
    pub fn still_open(&self) {
        if let Some(report) = &self.report {
            let mut report = (**report).clone();
            self.fill(&mut report);
            // A loss is counted there, and the call goes on.
            self.recorder.spool.offer(report).ok();
        }
    }

    /// Ends in `end` and queues the report; the future waits until it is stored and says how long
    /// that took, and may be dropped.
    ///
    /// What could not be stored in time is counted by the spool; the reply goes out all the same.
    pub fn end(
        mut self,
        end: State,
        failure: Option<Failure>,
    ) -> impl Future<Output = Duration> + Send + use<> {
        self.advance(end);
        let recorder = self.recorder.clone();
        let report = self.finished(failure);
        let stored = report.map(|report| recorder.spool.append(report));
        async move {
            let started = Instant::now();
            if let Some(stored) = stored {
                stored.await;
            }
            let took = started.elapsed();
            recorder.metrics.phase(Phase::Record, took);
            took
        }
    }

    /// Ends without a report: the call is another one's, which reports for itself.
    pub fn withdraw(mut self) {
        self.report = None;
        self.recorder.metrics.attempt_withdrawn(self.trail.state());
    }

    /// Takes the report out, complete; a second time there is none.
    fn finished(&mut self, failure: Option<Failure>) -> Option<Report> {
        let mut report = *self.report.take()?;
        report.error = failure;
        report.undelivered = self.presence.is_gone();
        self.fill(&mut report);
        log(&report, self.began.elapsed());
        Some(report)
    }

    fn fill(&self, report: &mut Report) {
        report.state = self.trail.state();
        report.states = self.trail.states().to_vec();
        report.duration_ms = self.began.elapsed().as_millis() as u64;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.report.is_none() {
            return;
        }
        self.advance(State::FailedExecution);
        let failure = Failure {
            kind: "interrupted".to_owned(),
            title: "The sidecar stopped before the attempt had ended".to_owned(),
            detail: String::new(),
        };
        if let Some(report) = self.finished(Some(failure)) {
            // Queued by the call itself; nobody is left to wait for the commit.
            drop(self.recorder.spool.append(report));
        }
    }
}

/// An attempt while its exchange is under way.
pub struct Following<'a> {
    pub attempt: &'a mut Attempt,
    /// What is sent goes to the application itself; of one behind another sidecar the answer tells
    /// whether it was reached.
    pub executes: bool,
    /// The call is answered later: how long it may take once it is acknowledged.
    pub later: Option<(&'a Later, Duration)>,
}

impl Following<'_> {
    /// Hears that the connection was there `after` this long, and that bytes go out on it now;
    /// returns the deadline of the answer.
    pub fn sending(&mut self, after: Duration, deadline: Deadline) -> Deadline {
        self.attempt.recorder.metrics.phase(Phase::Connect, after);
        if !self.executes {
            return deadline;
        }
        self.attempt.advance(State::Executing);
        let Some((later, allowed)) = self.later else {
            return deadline;
        };
        let deadline = Deadline::after(Instant::now(), allowed);
        later.acknowledged(self.attempt, deadline);
        deadline
    }

    /// Hears that the answer takes its time.
    pub fn waiting(&mut self) {
        self.attempt.still_open();
    }
}

/// Turns a deadline into the wall-clock instant that people read.
pub fn deadline_at(deadline: Deadline) -> Timestamp {
    Timestamp::now().plus(deadline.left(Instant::now()))
}

/// Writes the one line that every call leaves, with its total time in seconds.
fn log(report: &Report, took: Duration) {
    let duration_s = (took.as_secs_f64() * 1000.0).round() / 1000.0;
    tracing::info!(
        target: "hermes::call",
        task_id = report.task_id.as_str(),
        step_id = report.step_id.as_str(),
        call_id = report.call_id.as_str(),
        attempt = report.attempt,
        reporter = report.reporter.as_str(),
        agent = report.agent.as_str(),
        version = report.agent_version.as_str(),
        instance = report.instance.as_str(),
        state = report.state.as_str(),
        kind = report.error.as_ref().map_or("", |error| error.kind.as_str()),
        trace_id = report.trace_id.as_str(),
        duration_s,
        "call ended"
    );
}

#[cfg(test)]
impl Recorder {
    /// Opens one for a test, with its spool at `path`.
    pub async fn sample(path: &std::path::Path) -> Arc<Self> {
        let metrics = Arc::new(Sidecar::new("test"));
        let config = crate::spool::Config {
            path: path.to_owned(),
            mode: crate::spool::Mode::Process,
            max_bytes: 1 << 30,
        };
        let (spool, _) = Spool::open(config, metrics.clone()).await.unwrap();
        Arc::new(Self { spool, metrics })
    }
}

#[cfg(test)]
impl Attempt {
    /// Begins one for a test, with its spool at `path`.
    pub async fn sample(path: &std::path::Path) -> Self {
        let report = Box::new(Report::sample("call-1"));
        let recorder = Recorder::sample(path).await;
        Self::begin(recorder, Arc::default(), report, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_attempts_history_begins_with_its_request() {
        let directory = tempfile::tempdir().unwrap();
        let recorder = Recorder::sample(&directory.path().join("spool.db")).await;
        let spool = recorder.spool.clone();
        // The body took its time, or the first use of a contract did.
        let began = Instant::now() - Duration::from_secs(2);
        let mut attempt = Attempt::begin(
            recorder,
            Arc::default(),
            Box::new(Report::sample("call-1")),
            began,
        );
        attempt.advance(State::Dispatched);
        attempt.advance(State::Executing);
        attempt.end(State::Completed, None).await;

        let rows = spool.claim(10, 1 << 20).await.unwrap();
        let told: Report = serde_json::from_slice(&rows[0].body).unwrap();
        let (first, last) = (&told.states[0], &told.states[3]);
        let history = first.at.age(last.at).as_millis() as u64;
        assert!(history >= 1_999, "{:?}", told.states);
        assert!(history.abs_diff(told.duration_ms) <= 1_000, "{told:?}");
    }
}
