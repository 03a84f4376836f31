//! Killed at any moment: what was answered is recorded, what is owed is delivered once.

use crate::support::client::{client, succeeds};
use crate::support::collector::{Collector, Ends};
use crate::support::contract;
use crate::support::link::Link;
use crate::support::load::{Load, Outcome};
use crate::support::metric::Metrics;
use crate::support::road::{AGENT, ROUTE, Road, application, callee};
use crate::support::sidecar::Sidecar;
use crate::support::wait::{wait_for, wait_until};
use std::time::Duration;
use tokio::time::sleep;

const BACK_WITHIN: Duration = Duration::from_secs(20);
const DELIVERED_WITHIN: Duration = Duration::from_secs(30);

#[tokio::test]
async fn eight_kills_of_the_callee_lose_no_answered_call() {
    killed_under_load(50, 8).await;
}

#[tokio::test]
async fn rows_owed_at_a_kill_are_delivered_after_the_restart() {
    let (application, collector) = tokio::join!(application(), Collector::start());
    let link = Link::to(&collector.url().replace("http://", "")).await;
    let mut sidecar = callee(&application)
        .collector(&format!("http://{}", link.address()))
        .set("spool.retry", "100ms")
        .start_unready()
        .await;
    admitted(&sidecar).await;
    link.cut();
    let tasks: Vec<String> = (0..10).map(|number| format!("owed-{number}")).collect();
    for task in &tasks {
        call(&sidecar, task).await;
    }
    sidecar.kill9();
    link.restore();
    assert_eq!(collector.tasks(&tasks).await.len(), 0);

    sidecar.start_again();
    wait_until(DELIVERED_WITHIN, "all ten tasks", async || {
        collector.tasks(&tasks).await.len() == tasks.len()
    })
    .await;
    for (id, task) in collector.tasks(&tasks).await {
        assert_eq!(task["state"], "completed", "{id}: {task}");
    }
    assert_eq!(sum(&collector, "accepted").await, 10.0);
}

#[tokio::test]
async fn a_kill_between_the_collectors_commit_and_its_answer_counts_once() {
    let (application, collector) = tokio::join!(application(), Collector::start());
    let link = Link::to(&collector.url().replace("http://", "")).await;
    let mut sidecar = callee(&application)
        .collector(&format!("http://{}", link.address()))
        .set("spool.retry", "100ms")
        .start_unready()
        .await;
    admitted(&sidecar).await;
    link.mute();
    call(&sidecar, "twice").await;
    let within = DELIVERED_WITHIN;
    collector.wait_task("twice", "completed", within).await;
    sidecar.kill9();
    link.restore();

    sidecar.start_again();
    wait_until(within, "repeated report", async || {
        sum(&collector, "duplicate").await == 1.0
    })
    .await;
    assert_eq!(sum(&collector, "accepted").await, 1.0);
    assert_eq!(sum(&collector, "conflict").await, 0.0);
    assert_eq!(collector.ends().of("twice", "callee"), 1);
}

/// Kills the callee's sidecar `times` times at random moments under `rate` calls a second.
pub async fn killed_under_load(rate: u32, times: usize) {
    let mut road = Road::start().await;
    let input = contract::fraud_input();
    let load = Load::start(rate, &[road.caller.outbound_url()], AGENT, &input);
    for _ in 0..times {
        load.more(1).await;
        // Not a wait for anything: the random moment itself.
        sleep(Duration::from_micros(fastrand::u64(..500_000))).await;
        road.callee.kill9();
        road.callee.start_again();
        admitted(&road.callee).await;
    }
    load.more(rate as usize / 5).await;
    let record = load.stop().await;
    let answered = record.answered();
    assert_eq!(
        answered.len(),
        record.0.len(),
        "a caller got no answer at all"
    );
    let ends = wait_recorded(&road.collector, &answered).await;
    let served = answered.iter().filter(|call| completed(call)).count();
    for call in &answered {
        // One that was not begun, or whose fate is unknown, is tried again.
        let attempts = ends.of(&call.task, "caller");
        assert!((1..=3).contains(&attempts), "{attempts}: {call:?}");
        assert!(ends.of(&call.task, "callee") <= 3, "{call:?}");
    }
    eprintln!(
        "{times} kills, {} calls answered, {served} of them completed; all recorded",
        answered.len()
    );
    assert!(served > answered.len() / 4, "{:#?}", record.failed());
}

fn completed(call: &Outcome) -> bool {
    matches!(&call.answer, Ok((200, state)) if state == "completed")
}

/// Waits until the collector has the end of every answered call, by each side that answered.
async fn wait_recorded(collector: &Collector, answered: &[&Outcome]) -> Ends {
    let what = "record of every answered call";
    wait_for(DELIVERED_WITHIN, what, async || {
        let ends = collector.ends();
        let recorded = answered.iter().all(|call| {
            let callee = !completed(call) || ends.of(&call.task, "callee") > 0;
            callee && ends.of(&call.task, "caller") > 0
        });
        recorded.then_some(ends)
    })
    .await
}

/// Waits until a sidecar takes calls, whether or not it is registered.
pub async fn admitted(sidecar: &Sidecar) {
    let health = format!("{}/hermes/health", sidecar.inbound_url());
    let client = client();
    wait_until(BACK_WITHIN, "sidecar that takes calls", async || {
        succeeds(&client, &health).await
    })
    .await;
}

/// Calls the callee directly, as one task.
pub async fn call(sidecar: &Sidecar, task: &str) {
    let request = client()
        .post(sidecar.inbound_url() + ROUTE)
        .header("hermes-task-id", task)
        .json(&contract::fraud_input());
    let reply = request.send().await.unwrap();
    let status = reply.status();
    assert_eq!(status, 200, "{task}: {}", reply.text().await.unwrap());
}

async fn sum(collector: &Collector, result: &str) -> f64 {
    let metrics = Metrics::of(&collector.url()).await;
    metrics.sum("hermes_collector_reports_total", &[("result", result)])
}
