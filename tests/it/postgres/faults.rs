//! PostgreSQL away, back, slow, or not as it should be.

use super::super::support::client::{client, succeeds};
use super::super::support::collector::Collector;
use super::super::support::postgres::Postgres;
use super::super::support::wait::wait_until;
use super::{SENT_WITHIN, collector, post, send, tale};
use serde_json::Value;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

#[tokio::test]
async fn a_postgresql_that_restarts_under_load_costs_no_report() {
    let mut postgres = Postgres::start_durable().await;
    let url = postgres.url();
    let (one, other) = tokio::join!(collector(&url), collector(&url));
    let mut sending = JoinSet::new();
    for worker in 0..4 {
        let targets = [one.url(), other.url()];
        sending.spawn(async move {
            for number in 0..50 {
                let task = format!("task-{worker}-{number}");
                let states = [("pending", 1), ("completed", 5)];
                let told = tale::report(&task, "step", 1, "caller", &states);
                send(&targets, &[told]).await;
            }
        });
    }
    for _ in 0..2 {
        let before = postgres.number("SELECT count(*) FROM hermes.tasks").await;
        wait_until(SENT_WITHIN, "further tasks", async || {
            postgres.number("SELECT count(*) FROM hermes.tasks").await > before + 5
        })
        .await;
        postgres.stop().await;
        wait_until(SENT_WITHIN, "a collector that is not ready", async || {
            !succeeds(&client(), &format!("{}/ready", one.url())).await
        })
        .await;
        postgres.start_again().await;
    }
    sending.join_all().await;
    for table in ["reports", "calls", "tasks"] {
        let count = format!("SELECT count(*) FROM hermes.{table}");
        assert_eq!(postgres.number(&count).await, 200, "{table}");
    }
    for of in [&one, &other] {
        wait_until(SENT_WITHIN, "a ready collector", async || {
            succeeds(&client(), &format!("{}/ready", of.url())).await
        })
        .await;
        assert!(!of.log().contains(postgres.password()), "{}", of.log());
        assert!(!of.log().contains("s3cret"), "{}", of.log());
    }
}

#[tokio::test]
async fn without_postgresql_reports_are_refused_at_once_and_it_says_so() {
    let mut postgres = Postgres::start().await;
    let there = collector(&postgres.url()).await;
    postgres.stop().await;
    let states = [("pending", 1), ("completed", 2)];
    let report = tale::report("task", "step", 1, "caller", &states);
    for _ in 0..3 {
        let began = Instant::now();
        let request = client().post(format!("{}/report-status", there.url()));
        let reply = request.json(&[&report]).send().await.unwrap();
        assert_eq!(reply.status(), 503);
        assert_eq!(reply.headers()["retry-after"], "1");
        let problem: Value = reply.json().await.unwrap();
        assert_eq!(problem["type"], "urn:hermes:problem:store-unavailable");
        assert!(
            began.elapsed() < Duration::from_secs(6),
            "{:?}",
            began.elapsed()
        );
    }
    let ready = client()
        .get(format!("{}/ready", there.url()))
        .send()
        .await
        .unwrap();
    assert_eq!(ready.status(), 503);
    assert!(succeeds(&client(), &format!("{}/metrics", there.url())).await);
    let log = there.log();
    let told: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("PostgreSQL cannot be used"))
        .collect();
    assert_eq!(told.len(), 1, "{log}");
    // Whoever was using a connection when it ended hears of that first.
    let causes = ["Connection refused", "connection closed"];
    let is_caused = causes.iter().any(|cause| told[0].contains(cause));
    assert!(is_caused, "{log}");
    postgres.start_again().await;
    wait_until(SENT_WITHIN, "a ready collector", async || {
        succeeds(&client(), &format!("{}/ready", there.url())).await
    })
    .await;
    assert!(there.log().contains("PostgreSQL is back"));
    assert_eq!(post(&there.url(), &[report]).await["accepted"], 1);
}

#[tokio::test]
async fn a_collector_that_starts_before_postgresql_waits_for_it() {
    let mut postgres = Postgres::start().await;
    let url = postgres.url();
    postgres.stop().await;
    let there = Collector::start_unready(&[
        ("collector.consul", false.into()),
        ("collector.store", url.as_str().into()),
    ])
    .await;
    let ready = client()
        .get(format!("{}/ready", there.url()))
        .send()
        .await
        .unwrap();
    assert_eq!(ready.status(), 503);
    assert!(
        there.log().contains("PostgreSQL cannot be used"),
        "{}",
        there.log()
    );
    postgres.start_again().await;
    wait_until(SENT_WITHIN, "a ready collector", async || {
        succeeds(&client(), &format!("{}/ready", there.url())).await
    })
    .await;
    let told = tale::report(
        "task",
        "step",
        1,
        "caller",
        &[("pending", 1), ("completed", 2)],
    );
    assert_eq!(post(&there.url(), &[told]).await["accepted"], 1);
}
