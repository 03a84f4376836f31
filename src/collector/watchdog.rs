//! Marks attempts whose end nobody reports: a sidecar that was killed tells nothing by itself.
//!
//! - a mark is the end `timeout` by the reporter `watchdog`, past the latest deadline, the grace that
//!   the caller's own timer has, and a while for its report to come; it is provisional and gives way
//!   to any real report
//! - its key and its content come from the attempt alone, so that several collectors on one book
//!   make one mark
//! - what was due while no collector ran, or none could store, is left alone for a while: sidecars
//!   hold their reports and send them soon
//! - marks are no reports: they count in no metric of reports, and those marked stay stalled

use super::attempt::Told;
use super::book::{Book, BookError, Due};
use crate::task::{GRACE, Report, Reporter, State, StateAt, Timestamp};
use crate::telemetry::metrics::Received;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two looks; one is a question to an index.
const EVERY: Duration = Duration::from_millis(500);
/// Attempts that one transaction marks, so that reports are never kept waiting.
const MOST: usize = 200;
/// The breath between two transactions.
const BREATH: Duration = Duration::from_millis(20);
/// For the report of whoever ended at the last moment to come.
const DELIVERY: Duration = Duration::from_secs(1);
/// After a start or a failure, for those to report who found no collector that took reports:
/// longer than they wait to try again.
const RECOVERY: Duration = Duration::from_secs(10);

/// Runs for ever.
pub(super) async fn run(book: &Book) {
    let mut recovery = Recovery::begin(Timestamp::now());
    loop {
        match look(book, &mut recovery, Timestamp::now()).await {
            Ok(0) => {}
            Ok(marked) => tracing::info!(
                attempts = marked,
                "attempts are past their deadline and nobody has reported their end; marked"
            ),
            Err(error) if error.is_repeat() => {}
            Err(error) => {
                tracing::warn!(%error, "overdue attempts could not be marked, will be tried again");
            }
        }
        sleep(EVERY).await;
    }
}

/// A while after nothing could be stored: whatever was due before may have ended without us.
struct Recovery {
    since: Timestamp,
    begun: Instant,
}

impl Recovery {
    fn begin(now: Timestamp) -> Self {
        Self {
            since: now,
            begun: Instant::now(),
        }
    }

    /// Returns since when what is due may be marked, while it lasts.
    fn since(&self) -> Option<Timestamp> {
        (self.begun.elapsed() < RECOVERY).then_some(self.since)
    }
}

/// Marks what is overdue now; where that cannot be done, the next looks are careful again.
async fn look(book: &Book, recovery: &mut Recovery, now: Timestamp) -> Result<u64, BookError> {
    let marked = round(book, recovery.since(), now).await;
    if marked.is_err() {
        *recovery = Recovery::begin(now);
    }
    marked
}

/// Marks what is overdue now, except what was due before `since`; says how much that was.
async fn round(book: &Book, since: Option<Timestamp>, now: Timestamp) -> Result<u64, BookError> {
    let cutoff = now.minus(GRACE + DELIVERY);
    let mut all = 0;
    let mut after = Due::from(since.unwrap_or(Timestamp::from_millis(0)));
    loop {
        let overdue = book.overdue(after, cutoff, MOST).await?;
        let marks: Vec<Told> = overdue.calls.into_iter().map(mark).collect();
        if !marks.is_empty() {
            let recorded = book.record(marks).await?;
            // Another collector may have made the same marks.
            let is_new =
                |result: &&Result<Received, &str>| matches!(result, Ok(Received::Accepted));
            all += recorded.results.iter().filter(is_new).count() as u64;
        }
        match overdue.next {
            Some(last) => after = last,
            None => return Ok(all),
        }
        sleep(BREATH).await;
    }
}

/// Makes the mark of an attempt out of what was last told of it.
fn mark(open: Report) -> Told {
    let at = open.deadline_at.plus(GRACE);
    let began = open.states.iter().map(|state| state.at).min();
    let report = Report {
        state: State::Timeout,
        states: vec![StateAt {
            state: State::Timeout,
            at,
        }],
        reporter: Reporter::Watchdog,
        duration_ms: began.unwrap_or(at).age(at).as_millis() as u64,
        output_digest: None,
        error: None,
        detail: None,
        ..open
    };
    Told {
        report,
        detail: None,
        conflicts: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::attempt::tests::told;
    use super::super::{list, view};
    use super::*;
    use crate::task::Id;
    use crate::task::Reporter::{Application, Callee, Caller};
    use crate::task::State::{Completed, Dispatched, Executing, Pending, Timeout};
    use crate::telemetry::metrics;
    use serde_json::Value;
    use std::sync::Arc;
    use tempfile::TempDir;

    struct World {
        _directory: TempDir,
        book: Book,
    }

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let metrics = Arc::new(metrics::Collector::new());
            let (book, _) = Book::open(&directory.path().join("c.db"), metrics).unwrap();
            Self {
                _directory: directory,
                book,
            }
        }

        async fn tell(&self, told: Told) {
            let recorded = self.book.record(vec![told]).await.unwrap();
            assert_eq!(recorded.results, [Ok(Received::Accepted)]);
        }

        async fn round(&self, now: u64) -> u64 {
            let now = Timestamp::from_millis(now);
            round(&self.book, None, now).await.unwrap()
        }

        async fn view(&self, task: &str) -> Value {
            let calls = self.book.task(Id::parse(task).unwrap()).await.unwrap();
            let view = view::task(&calls, Timestamp::from_millis(10_000)).unwrap();
            serde_json::to_value(view).unwrap()
        }

        /// Holds that the list says the same as the page.
        async fn hold_listed(&self, view: &Value) {
            let now = Timestamp::from_millis(10_000);
            let query = serde_json::from_str::<list::Query>("{}").unwrap();
            let page = self.book.tasks(query.filter(now).unwrap(), now).await;
            let listing = serde_json::to_value(page.unwrap().listing()).unwrap();
            for field in ["state", "ended_at"] {
                assert_eq!(listing["tasks"][0][field], view[field], "{field}");
            }
        }

        async fn stalled(&self) -> u64 {
            self.stalled_at(10_000).await
        }

        async fn stalled_at(&self, now: u64) -> u64 {
            let now = Timestamp::from_millis(now);
            self.book.open_counts(now).await.unwrap().stalled
        }
    }

    #[tokio::test]
    async fn a_mark_comes_after_the_grace_and_gives_way() {
        let world = World::new();
        // Its deadline is 500 ms after it began.
        let open = [(Pending, 1_000), (Dispatched, 1_010)];
        world.tell(told(Caller, &open).plain()).await;
        assert_eq!(world.round(2_700).await, 0, "its end may be on its way");
        assert_eq!(world.round(2_701).await, 1);
        assert_eq!(world.round(2_800).await, 0, "marked once");
        let marked = world.view("task-1").await;
        assert_eq!(marked["state"], "timeout");
        let attempt = &marked["steps"][0]["attempts"][0];
        let last = attempt["states"].as_array().unwrap().last().unwrap();
        assert_eq!(last["reporter"], "watchdog");
        let due = Timestamp::from_millis(1_700).to_string();
        assert_eq!(
            (&last["at"], &marked["ended_at"]),
            (&due.clone().into(), &due.into())
        );
        assert_eq!(attempt["duration_ms"], 700);
        world.hold_listed(&marked).await;
        assert_eq!(world.stalled().await, 1, "nobody has told its end");
        const HOUR: u64 = 3_600_000;
        assert_eq!(world.stalled_at(HOUR + 1_699).await, 1);
        assert_eq!(world.stalled_at(HOUR + 1_700).await, 0, "long ago");

        let open = [(Dispatched, 1_020), (Executing, 1_021)];
        world.tell(told(Callee, &open).plain()).await;
        assert_eq!(world.view("task-1").await["state"], "timeout");
        assert_eq!(world.round(3_000).await, 0);

        let end = [(Dispatched, 1_020), (Executing, 1_021), (Completed, 1_100)];
        world.tell(told(Callee, &end).plain()).await;
        let real = world.view("task-1").await;
        assert_eq!(real["state"], "completed");
        assert!(!real.to_string().contains("watchdog"), "{real}");
        world.hold_listed(&real).await;
        assert_eq!(world.stalled().await, 0);
    }

    #[tokio::test]
    async fn the_latest_deadline_counts() {
        let world = World::new();
        // Due 500 ms after they began; the callee has come further, and its deadline is earlier.
        world
            .tell(told(Caller, &[(Dispatched, 1_300)]).plain())
            .await;
        world
            .tell(told(Callee, &[(Executing, 1_000)]).plain())
            .await;
        assert_eq!(world.round(3_000).await, 0);
        assert_eq!(world.round(3_001).await, 1);
        let marked = world.view("task-1").await;
        let due = Timestamp::from_millis(2_000).to_string();
        assert_eq!(marked["ended_at"], due);
        world.hold_listed(&marked).await;
    }

    #[tokio::test]
    async fn a_real_end_stays_whatever_is_marked_after_it() {
        let world = World::new();
        let open = told(Caller, &[(Pending, 1_000)]).plain();
        let stale = mark(open.report.clone());
        world
            .tell(told(Caller, &[(Pending, 1_000), (Completed, 1_100)]).plain())
            .await;
        let recorded = world.book.record(vec![stale.clone()]).await.unwrap();
        assert_eq!(recorded.results, [Ok(Received::Accepted)]);
        assert_eq!(world.view("task-1").await["state"], "completed");
        assert_eq!(world.stalled().await, 0);
        let again = world.book.record(vec![stale]).await.unwrap();
        assert_eq!(again.results, [Ok(Received::Duplicate)]);
    }

    #[tokio::test]
    async fn more_than_one_batch_is_marked_in_one_round() {
        let world = World::new();
        let open = |number: usize| {
            told(Caller, &[(Pending, 1_000 + number as u64)]).with(|report| {
                report.call_id = Id::parse(&format!("call-{number}")).unwrap();
            })
        };
        let all = MOST * 2 + 3;
        // Those that are left alone stand before none of the others.
        let now = Timestamp::from_millis(9_000);
        world
            .book
            .record((0..all).map(open).collect())
            .await
            .unwrap();
        let since = Some(Timestamp::from_millis(1_500 + all as u64 - 1));
        assert_eq!(round(&world.book, since, now).await.unwrap(), 1);
        assert_eq!(world.round(9_000).await, all as u64 - 1);
        assert_eq!(world.stalled().await, all as u64);
    }

    #[tokio::test]
    async fn what_was_due_before_the_start_is_left_alone_for_a_while() {
        let world = World::new();
        world.tell(told(Caller, &[(Pending, 1_000)]).plain()).await;
        let now = Timestamp::from_millis(5_000);
        let since = Some(Timestamp::from_millis(1_501));
        assert_eq!(round(&world.book, since, now).await.unwrap(), 0);
        let since = Some(Timestamp::from_millis(1_500));
        assert_eq!(round(&world.book, since, now).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn what_was_due_while_the_book_was_away_is_left_alone_for_a_while() {
        let world = World::new();
        let now = Timestamp::from_millis(5_000);
        let mut recovery = Recovery::begin(Timestamp::from_millis(0));
        tokio::time::pause();
        tokio::time::advance(RECOVERY).await;
        assert_eq!(look(&world.book, &mut recovery, now).await.unwrap(), 0);
        assert_eq!(recovery.since(), None);
        world.book.close().await.unwrap();
        look(&world.book, &mut recovery, now).await.unwrap_err();
        assert_eq!(recovery.since(), Some(now));
        tokio::time::advance(RECOVERY).await;
        assert_eq!(recovery.since(), None);
    }

    #[tokio::test]
    async fn an_applications_own_word_holds_for_an_hour() {
        let world = World::new();
        const HOUR: u64 = 3_600_000;
        let own = told(Application, &[(Executing, 1_000)]);
        // Where a deadline would stand, such a report has the time it was made.
        let own = own.with(|report| report.deadline_at = Timestamp::from_millis(1_000));
        world.tell(own).await;
        assert_eq!(world.stalled().await, 0);
        assert_eq!(world.round(HOUR + 2_200).await, 0);
        assert_eq!(world.round(HOUR + 2_201).await, 1);
        assert_eq!(world.view("task-1").await["state"], Timeout.as_str());
        world
            .tell(told(Application, &[(Completed, 2_000)]).plain())
            .await;
        assert_eq!(world.view("task-1").await["state"], "completed");
    }
}
