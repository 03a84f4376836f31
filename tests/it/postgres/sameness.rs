//! The same reports come to the same answers, in whichever database they are kept.

use super::super::support::client::client;
use super::super::support::collector::Collector;
use super::super::support::postgres::Postgres;
use super::{collector, post, tale};
use serde_json::{Value, json};

const TASKS: usize = 60;

#[tokio::test]
async fn any_history_looks_the_same_in_sqlite_and_in_postgresql() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let postgres = Postgres::start().await;
    let url = postgres.url();
    let (here, there) = tokio::join!(Collector::start(), collector(&url));
    let mut reports: Vec<Value> = Vec::new();
    for task in 0..TASKS {
        reports.extend(tale::any(&mut random, &format!("task-{task:02}")));
    }
    // In any order, some twice, one that claims another's call, in batches of any size.
    let repeats: Vec<Value> = reports.iter().filter(|_| random.bool()).cloned().collect();
    reports.extend(repeats);
    random.shuffle(&mut reports);
    let mut foreign = reports[0].clone();
    foreign["task_id"] = "thief".into();
    reports.push(foreign);
    let urls = (here.url(), there.url());
    let mut rest = &reports[..];
    while !rest.is_empty() {
        let (batch, after) = rest.split_at(random.usize(1..200).min(rest.len()));
        rest = after;
        let (one, other) = tokio::join!(post(&urls.0, batch), post(&urls.1, batch));
        assert_eq!(one, other, "seed {seed}");
    }
    for path in (0..TASKS)
        .map(|task| format!("/tasks/task-{task:02}"))
        .chain([
            "/tasks".to_owned(),
            "/tasks?limit=7".to_owned(),
            "/tasks?state=timeout,pending".to_owned(),
            "/tasks?application=caller-app&min_ms=700".to_owned(),
            "/tasks/thief".to_owned(),
        ])
    {
        let (one, other) = tokio::join!(get(&here, &path), get(&there, &path));
        assert_eq!(one, other, "{path}, seed {seed}");
    }
    // All pages together hold every task once.
    let mut seen = 0;
    let mut path = "/tasks?limit=7".to_owned();
    loop {
        let page = get(&there, &path).await.1;
        seen += page["tasks"].as_array().unwrap().len();
        match page["next"].as_str() {
            Some(next) => path = format!("/tasks?limit=7&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen, TASKS);
    let gauges = |text: String| {
        let lines = text.lines().filter(|line| {
            let families = [
                "tasks_open",
                "tasks_stalled",
                "reports_total",
                "chain_breaks_total",
                "tasks_finished_total",
            ];
            families
                .iter()
                .any(|family| line.starts_with(&format!("hermes_collector_{family}")))
        });
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let metrics = async |of: &Collector| {
        let reply = client().get(format!("{}/metrics", of.url())).send();
        gauges(reply.await.unwrap().text().await.unwrap())
    };
    assert_eq!(metrics(&here).await, metrics(&there).await, "seed {seed}");
}

#[tokio::test]
async fn texts_that_postgresql_cannot_keep_stop_no_batch() {
    let postgres = Postgres::start().await;
    let there = collector(&postgres.url()).await;
    let mut odd = tale::report(
        "odd",
        "step",
        1,
        "caller",
        &[("pending", 1), ("completed", 9)],
    );
    odd["agent"] = "a\u{0}b".into();
    odd["application"] = "\u{0}".into();
    let short = json!({"task_id": "short", "status": "success", "output_hash": "x\u{0}y"});
    let plain = tale::report(
        "plain",
        "step",
        1,
        "caller",
        &[("pending", 1), ("completed", 9)],
    );
    let receipt = post(&there.url(), &[odd, short, plain]).await;
    let taken = receipt["accepted"].as_u64().unwrap();
    let rejected = receipt["rejected"].as_array().unwrap().len() as u64;
    assert_eq!(taken + rejected, 3, "{receipt}");
    assert_eq!(get(&there, "/tasks/plain").await.0, 200);
    assert_eq!(get(&there, "/tasks?after=9.%00").await.0, 200);
    assert_eq!(get(&there, "/tasks").await.0, 200);
}

/// Returns status and body; what tells of now is the same within a test: nothing is asked late.
async fn get(of: &Collector, path: &str) -> (u16, Value) {
    let reply = client()
        .get(format!("{}{path}", of.url()))
        .send()
        .await
        .unwrap();
    let status = reply.status().as_u16();
    (status, reply.json().await.unwrap())
}
