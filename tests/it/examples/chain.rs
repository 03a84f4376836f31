//! One payment through services in several languages, each behind a sidecar of its own.

use super::readme::Readme;
use super::stage::Stage;
use crate::support::client::{client, succeeds};
use crate::support::port::free_ports;
use crate::support::process::{Process, STARTS};
use crate::support::program;
use crate::support::wait::wait_for;
use rustix::process::Signal;
use serde_json::Value;
use std::time::Duration;

/// Who calls whom; the last one only where there is a `go`.
const CHAIN: [&str; 5] = [
    "payment-order-v1.0",
    "payment-screening-v1.0",
    "currency-conversion-v1.0",
    "ledger-booking-v1.0",
    "customer-notice-v1.0",
];

/// The ports that `chain/start` uses, by default from here on.
const FIRST: u16 = 7600;
const PORTS: u16 = 60;
const COLLECTOR: u16 = FIRST + 3;
/// The slowest part is building the Rust service, where no run has built it before.
const STARTED_WITHIN: Duration = Duration::from_secs(600);
const ENDED_WITHIN: Duration = Duration::from_secs(60);

#[tokio::test]
async fn one_payment_passes_through_every_language_as_one_task() {
    if !program::has(&["node", "java"]) {
        return;
    }
    let length = if program::has(&["go"]) { 5 } else { 4 };
    let readme = Readme::read("examples/README.md");
    readme.leave("export PATH");
    let stage = Stage::empty(readme);
    let mut chain = start(&stage, length).await;

    let (reply, shown) = stage.reply_and_shown("payment-1").await;
    let [mut reply, shown] =
        [reply, shown].map(|text| serde_json::from_str::<Value>(&text).unwrap());
    if length == 5 {
        let booking = &mut reply["screening"]["conversion"]["booking"];
        let notice = booking.as_object_mut().unwrap().remove("notice").unwrap();
        assert_eq!(notice["text"], "Order o-1: 1600.00 EUR, booked as b-1.");
    }
    assert_eq!(reply, shown);

    let task = wait_for(
        ENDED_WITHIN,
        "report of every step from both sides",
        async || {
            let task = stage.task_at(COLLECTOR, "payment-1", "completed").await;
            is_told_whole(&task, length).then_some(task)
        },
    )
    .await;
    is_one_chain(&task, length);
    let printed = stage.prints("hermes-sidecar task payment-1").await;
    assert!(
        printed.starts_with("task payment-1  completed"),
        "{printed}"
    );
    assert!(printed.contains("chain ok"), "{printed}");
    stage.readme.is_used_up();

    chain.signal(Signal::TERM);
    assert_eq!(chain.ended(ENDED_WITHIN).await.code(), Some(143));
    for port in FIRST..FIRST + PORTS {
        let left = client().get(stage.url(port)).send().await;
        assert!(
            left.is_err_and(|error| error.is_connect()),
            "{port} is still served"
        );
    }
}

/// Runs the script until every sidecar is ready, on other ports if some were taken meanwhile.
async fn start(stage: &Stage, length: usize) -> Process {
    let command = stage.command("chain/start");
    let client = client();
    for _ in 0..STARTS {
        let first = free_ports(PORTS);
        for at in 0..PORTS {
            stage.place(FIRST + at, first + at);
        }
        let mut chain = stage.spawn("chain", &command, &[("FIRST_PORT", first.to_string())]);
        let last = u16::try_from(length).unwrap();
        let ready = format!("{}/ready", stage.url(FIRST + 10 * last + 3));
        let answers = async || succeeds(&client, &ready).await;
        if chain.serves(STARTED_WITHIN, answers).await {
            return chain;
        }
    }
    panic!("the chain found its ports taken {STARTS} times");
}

/// Both sides of each step have reported, and in batches that need not come in order.
fn is_told_whole(task: &Value, length: usize) -> bool {
    let steps = task["steps"].as_array().unwrap();
    let told = |step: &Value, side| {
        let states = step["attempts"][0]["states"].as_array();
        states.is_some_and(|states| states.iter().any(|state| state["reporter"] == side))
    };
    let is_whole =
        |step: &Value| step["state"] == "completed" && told(step, "caller") && told(step, "callee");
    steps.len() == length && steps.iter().all(is_whole)
}

/// Asserts one step per service, each the child of the one before, with digests that agree.
fn is_one_chain(task: &Value, length: usize) {
    assert_eq!(task["chain"], "ok", "{task}");
    let steps = task["steps"].as_array().unwrap();
    assert_eq!(steps.len(), length, "{task}");
    let mut parent = &Value::Null;
    for agent in &CHAIN[..length] {
        let step = steps.iter().find(|step| step["agent"] == *agent).unwrap();
        assert_eq!(step["state"], "completed", "{step}");
        assert_eq!(&step["parent_step"], parent, "{agent}: {task}");
        let attempts = step["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 1, "{step}");
        for digest in ["input_digest", "output_digest"] {
            let digest = attempts[0][digest].as_str().unwrap();
            assert!(digest.starts_with("sha-256:"), "{step}");
        }
        parent = &step["step_id"];
    }
}
