//! Several collectors on one database.

use super::super::support::client::client;
use super::super::support::collector::Collector;
use super::super::support::metric::Metrics;
use super::super::support::postgres::Postgres;
use super::super::support::wait::wait_until;
use super::{SENT_WITHIN, collector, post, send, tale};
use serde_json::Value;
use std::time::Duration;
use tokio::task::JoinSet;
use toml::Value as Setting;

#[tokio::test]
async fn reports_sent_to_both_collectors_at_once_count_once() {
    let mut postgres = Postgres::start().await;
    let url = postgres.url();
    let (one, other) = tokio::join!(collector(&url), collector(&url));
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    // Few tasks, so that nearly every batch meets another of the same ones; only ends, so that the
    // order of arrival is of no account.
    let mut reports = Vec::new();
    for task in 0..20 {
        for call in 0..10 {
            for reporter in ["caller", "callee"] {
                let at = 100 * call + task;
                let states = [
                    ("pending", at),
                    ("dispatched", at + 1),
                    ("completed", at + 50),
                ];
                let (task, call) = (format!("task-{task}"), format!("call-{call}"));
                reports.push(tale::report(&task, &call, 1, reporter, &states));
            }
        }
    }
    let mut sending = JoinSet::new();
    for target in [one.url(), other.url()] {
        random.shuffle(&mut reports);
        for batch in reports.chunks(40) {
            let (target, batch) = (target.clone(), batch.to_vec());
            sending.spawn(async move { send(&[target], &batch).await });
        }
    }
    let receipts = sending.join_all().await;
    let sum = |field: &str| {
        receipts
            .iter()
            .map(|r| r[field].as_u64().unwrap())
            .sum::<u64>()
    };
    let count = reports.len() as u64;
    assert_eq!(
        (sum("accepted"), sum("duplicates")),
        (count, count),
        "seed {seed}"
    );
    assert_eq!(sum("conflicts"), 0);
    for (sql, expected) in [
        ("SELECT count(*) FROM hermes.reports", 400),
        (
            "SELECT count(*) FROM hermes.calls WHERE ended_at IS NOT NULL",
            200,
        ),
        (
            "SELECT count(*) FROM hermes.tasks WHERE state = 'completed'",
            20,
        ),
        // Each sum is that of its calls, and the last of them ended 950 after the first began.
        (
            "SELECT count(*) FROM hermes.tasks WHERE ended_at - started_at = 950",
            20,
        ),
    ] {
        assert_eq!(postgres.number(sql).await, expected, "{sql}, seed {seed}");
    }
    let mut finished = 0.0;
    for of in [&one, &other] {
        let told = Metrics::of(&of.url()).await;
        finished += told.sum(
            "hermes_collector_tasks_finished_total",
            &[("state", "completed")],
        );
        assert_eq!(told.sum("hermes_collector_tasks_open", &[]), 0.0);
    }
    assert_eq!(finished, 400.0);
    let page = |of: &Collector| format!("{}/tasks/task-7", of.url());
    let text = async |url: String| {
        client()
            .get(url)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    };
    assert_eq!(text(page(&one)).await, text(page(&other)).await);
}

#[tokio::test]
async fn collectors_that_start_together_make_the_tables_once() {
    let mut postgres = Postgres::start().await;
    let url = postgres.url();
    let started = tokio::join!(
        collector(&url),
        collector(&url),
        collector(&url),
        collector(&url)
    );
    let urls = [
        started.0.url(),
        started.1.url(),
        started.2.url(),
        started.3.url(),
    ];
    for (number, target) in urls.iter().enumerate() {
        let states = [("pending", 1), ("completed", 2)];
        let told = tale::report(&format!("task-{number}"), "step", 1, "caller", &states);
        assert_eq!(post(target, &[told]).await["accepted"], 1);
    }
    let repeated = "SELECT count(*) - max(version) FROM hermes.versions";
    assert_eq!(postgres.number(repeated).await, 0);
    assert_eq!(
        postgres.number("SELECT count(*) FROM hermes.tasks").await,
        4
    );
}

#[tokio::test]
async fn a_collector_that_waited_for_the_tables_finds_them_made() {
    let mut postgres = Postgres::start().await;
    let url = postgres.url();
    // The lock that migrations are applied under, held until both wait for it.
    let client = postgres.client("hermes").await;
    let lock = "BEGIN; SELECT pg_advisory_xact_lock(5216649887406188903)";
    client.batch_execute(lock).await.unwrap();
    let started = async { tokio::join!(collector(&url), collector(&url)) };
    let free = async {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        wait_until(SENT_WITHIN, "two that wait", async || {
            postgres.number(waiting).await >= 2
        })
        .await;
        client.batch_execute("COMMIT").await.unwrap();
    };
    let ((one, other), ()) = tokio::join!(started, free);
    for of in [&one, &other] {
        assert!(!of.log().contains("ERROR"), "{}", of.log());
    }
}

#[tokio::test]
async fn a_collector_killed_before_its_answer_loses_nothing() {
    let mut postgres = Postgres::start_durable().await;
    let url = postgres.url();
    let (mut first, second) = tokio::join!(collector(&url), collector(&url));
    let batch = |number: usize| -> Vec<Value> {
        (0..50)
            .map(|n| {
                let task = format!("task-{number}-{n}");
                tale::report(
                    &task,
                    "step",
                    1,
                    "caller",
                    &[("pending", 1), ("completed", 5)],
                )
            })
            .collect()
    };
    let mut sending = JoinSet::new();
    for number in 0..40 {
        // Each is sent to the first, and to the other where no answer came.
        let targets = [first.url(), second.url()];
        let batch = batch(number);
        sending.spawn(async move { send(&targets, &batch).await });
    }
    // In the midst of it.
    wait_until(SENT_WITHIN, "first rows", async || {
        let rows = "SELECT count(*) FROM pg_class WHERE relname = 'reports'";
        postgres.number(rows).await > 0
            && postgres.number("SELECT count(*) FROM hermes.reports").await > 0
    })
    .await;
    first.kill9();
    let receipts = sending.join_all().await;
    for receipt in &receipts {
        let known = receipt["accepted"].as_u64().unwrap() + receipt["duplicates"].as_u64().unwrap();
        assert_eq!(known, 50, "{receipt}");
    }
    for table in ["reports", "calls", "tasks"] {
        let count = format!("SELECT count(*) FROM hermes.{table}");
        assert_eq!(postgres.number(&count).await, 2_000, "{table}");
    }
}

#[tokio::test]
async fn what_is_past_its_retention_goes_though_two_collectors_forget() {
    let mut postgres = Postgres::start().await;
    let url = postgres.url();
    let settings = [
        ("collector.consul", Setting::Boolean(false)),
        ("collector.store", url.as_str().into()),
        ("collector.retention", "1m".into()),
    ];
    let (one, _other) = tokio::join!(
        Collector::start_with(&settings),
        Collector::start_with(&settings)
    );
    let reports: Vec<Value> = (0..900)
        .map(|n| {
            let task = format!("old-{n}");
            tale::report(
                &task,
                "step",
                1,
                "caller",
                &[("pending", n), ("completed", n + 5)],
            )
        })
        .collect();
    let day = &tale::time(0)[..10];
    let long_ago = serde_json::to_string(&reports)
        .unwrap()
        .replace(day, "2020-01-01");
    post(
        &one.url(),
        &serde_json::from_str::<Vec<Value>>(&long_ago).unwrap(),
    )
    .await;
    assert_eq!(
        postgres
            .number("SELECT count(*) FROM hermes.tasks WHERE started_at > 1700000000000")
            .await,
        0
    );
    wait_until(Duration::from_secs(60), "forgotten tasks", async || {
        let mut left = 0;
        for table in ["reports", "calls", "tasks", "conflicts"] {
            let count = format!("SELECT count(*) FROM hermes.{table}");
            left += postgres.number(&count).await;
        }
        left == 0
    })
    .await;
}
