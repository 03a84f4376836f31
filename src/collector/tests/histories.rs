//! Any history of reports, in any order, comes to the same task.

use super::*;
use crate::task::Reporter::{Application, Watchdog};
use crate::telemetry::metrics::Received;
use proptest::prelude::*;

/// Reports of one task with up to three calls, some retried, some still open.
fn any_history() -> impl Strategy<Value = Vec<Told>> {
    let end = proptest::sample::select(vec![
        None,
        Some(Completed),
        Some(Timeout),
        Some(FailedExecution),
    ]);
    let marked = any::<bool>();
    let attempt = (end.clone(), end, 0..500u64, marked);
    let call = (proptest::collection::vec(attempt, 1..3), any::<bool>());
    let own = proptest::option::of(0..60_000u64);
    let calls = proptest::collection::vec(call, 1..4);
    (calls, own).prop_map(|(calls, own)| {
        let mut history = Vec::new();
        for (c, (attempts, is_root)) in calls.into_iter().enumerate() {
            for (a, (caller, callee, offset, is_marked)) in attempts.into_iter().enumerate() {
                let at = 1_000 * (1 + c as u64 + 10 * a as u64) + offset;
                let mark = is_marked.then_some(Timeout);
                // Each has a clock of its own.
                for (reporter, end, took) in [
                    (Caller, caller, 50 + offset % 307),
                    (Callee, callee, 50 + offset % 311),
                    (Watchdog, mark, 700),
                ] {
                    let mut states = vec![(Pending, at), (Dispatched, at + 1)];
                    states.extend(end.map(|end| (end, at + took)));
                    if reporter == Watchdog {
                        states.drain(..2);
                    }
                    if states.is_empty() {
                        continue;
                    }
                    history.push(told(reporter, &states).with(|report| {
                        report.attempt = a as u32 + 1;
                        report.call_id = Id::parse(&format!("call-{c}")).unwrap();
                        report.step_id = Id::parse(&format!("step-{c}")).unwrap();
                        report.agent = format!("agent-{c}-v1.0");
                        report.parent_step = (!is_root).then(|| Id::parse("step-0").unwrap());
                    }));
                }
            }
        }
        // A step of the application's own, which it tells of whenever it likes.
        history.extend(own.map(|at| {
            told(Application, &[(Executing, at), (Completed, at + 5)]).step("own", Some("step-0"))
        }));
        history
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// In whatever order and however often reports arrive, the task looks the same, and the list
    /// says the same as the view.
    #[test]
    fn the_order_of_arrival_does_not_matter(
        history in any_history(),
        order in proptest::collection::vec(any::<prop::sample::Index>(), 0..40),
        cut in any::<prop::sample::Index>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let mut looks = Vec::new();
            for (name, shuffled) in [("a.db", false), ("b.db", true)] {
                let metrics = Arc::new(metrics::Collector::new());
                let (book, _) = Book::open(&directory.path().join(name), metrics).unwrap();
                let mut reports = history.clone();
                if shuffled {
                    // Repeats first, in any order; then everything, backwards.
                    let repeats = order.iter().map(|index| history[index.index(history.len())].clone());
                    let mut told: Vec<Told> = repeats.collect();
                    reports.reverse();
                    told.extend(reports);
                    reports = told;
                }
                let rest = reports.split_off(cut.index(reports.len()));
                let mut accepted = 0;
                for part in [reports, rest] {
                    let recorded = book.record(part).await.unwrap();
                    let is_accepted = |r: &&Result<Received, &str>| **r == Ok(Received::Accepted);
                    accepted += recorded.results.iter().filter(is_accepted).count();
                }
                assert_eq!(accepted, history.len());
                let calls = book.task(Id::parse("task-1").unwrap()).await.unwrap();
                let now = Timestamp::from_millis(1_000_000);
                let view = serde_json::to_value(view::task(&calls, now).unwrap()).unwrap();
                let filter = serde_json::from_value::<list::Query>(json!({})).unwrap();
                let page = book.tasks(filter.filter(now).unwrap(), now).await.unwrap();
                let line = serde_json::to_value(page.listing()).unwrap()["tasks"][0].clone();
                for field in ["state", "started_at", "ended_at"] {
                    assert_eq!(view.get(field), line.get(field), "{field}");
                }
                looks.push((view, line));
                book.close().await.unwrap();
            }
            assert_eq!(looks[0], looks[1]);
        });
    }
}
