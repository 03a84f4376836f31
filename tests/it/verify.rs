//! `verify` says whether a service keeps its contract: in exit code, gates and task ids.

use crate::support::application::{Answer, Application};
use crate::support::collector::Collector;
use crate::support::command::{Ran, command, hermes};
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::link::Link;
use crate::support::port::free_port;
use crate::support::road::{AGENT, ROUTE, wait_known};
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::wait_until;
use serde_json::{Value, json};
use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(60);

/// A caller and a callee that know each other; ends in this order.
struct Stand {
    caller: Sidecar,
    _callee: Sidecar,
    application: Application,
    consul: Consul,
}

impl Stand {
    /// Starts both for a contract with this timeout and, as its probe, the worked example's input.
    async fn start(timeout_ms: u64, change: impl FnOnce(Setup) -> Setup) -> Self {
        let mut body = fraud_detection();
        body["constraints"] = json!({"timeout_ms": timeout_ms, "max_concurrent": 1000});
        body["probe"] = json!({"input": fraud_input()});
        Self::of(body, change).await
    }

    async fn of(body: Value, change: impl FnOnce(Setup) -> Setup) -> Self {
        let (application, consul) = tokio::join!(Application::start(), Consul::start());
        application.answer(ROUTE, Answer::json(&fraud_output()));
        let callee = Sidecar::named("fraud")
            .application(&application.url())
            .contract(body, "POST", ROUTE)
            .consul(&consul.address());
        let caller = Sidecar::named("payment").consul(&consul.address());
        let (callee, caller) = tokio::join!(change(callee).start(), caller.start());
        consul.wait_passing(AGENT, 1, WITHIN).await;
        wait_known(&caller, 1).await;
        Self {
            caller,
            _callee: callee,
            application,
            consul,
        }
    }

    async fn verify(&self, args: &[&str]) -> Ran {
        let outbound = self.caller.outbound_url();
        let all = [&["verify", AGENT, "--outbound", &outbound], args].concat();
        hermes(&all).await
    }

    /// Answers every `nth` call with `answer`, and the others as the contract asks.
    fn spoil(&self, nth: usize, answer: Answer) {
        let count = AtomicUsize::new(0);
        self.application.script(ROUTE, move |_| {
            match (count.fetch_add(1, Ordering::SeqCst) + 1) % nth {
                0 => answer.clone(),
                _ => Answer::json(&fraud_output()),
            }
        });
    }
}

/// Returns which gates were met, by name.
fn gates(told: &Value) -> Vec<(&str, bool)> {
    let gates = told["gates"].as_array().unwrap().iter();
    gates
        .map(|gate| (gate["gate"].as_str().unwrap(), gate["met"] == true))
        .collect()
}

#[tokio::test]
async fn a_good_service_passes_and_every_call_is_counted() {
    let collector = Collector::start().await;
    let stand = Stand::start(10_000, |callee| callee.collector(&collector.url())).await;
    let before = stand.application.calls(ROUTE);
    let ran = stand.verify(&["--calls", "120", "-o", "json"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(stand.application.calls(ROUTE), before + 120);
    let told = ran.json();
    assert_eq!(told["met"], true, "{told}");
    assert_eq!(
        (&told["made"], &told["ended"]),
        (&json!(120), &json!("all"))
    );
    assert_eq!(told["states"], json!({"completed": 120}));
    assert_eq!(told["contract"]["timeout_ms"], 10_000.0);
    let versions = json!([{"version": "1.0.0", "timeout_ms": 10_000.0}]);
    assert_eq!(told["contract"]["versions"], versions);
    let all = [
        ("completed", true),
        ("p99_ms", true),
        ("failed_validation", true),
    ];
    assert_eq!(gates(&told), all);
    for number in ["001", "120"] {
        let task = format!("{}{number}", told["task_id_prefix"].as_str().unwrap());
        collector.wait_task(&task, "completed", WITHIN).await;
    }
    // For people: what was held against what, and how to find the tasks.
    let ran = stand.verify(&["--calls", "20", "--concurrency", "1"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for text in [
        "20 of 20 calls",
        "at most 12.00 s",
        "completed 20",
        "100.000 %",
    ] {
        assert!(ran.stdout.contains(text), "{text}: {ran:?}");
    }
    assert!(ran.stderr.contains("task ids from verify-"), "{ran:?}");
}

#[tokio::test]
async fn one_failure_of_a_hundred_is_not_met_and_named() {
    let stand = Stand::start(10_000, |callee| callee).await;
    stand.spoil(100, Answer::bytes(500, "application/json", "{\"oops\": 1}"));
    let ran = stand.verify(&["--calls", "200", "-o", "json"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = ran.json();
    assert_eq!(
        told["states"],
        json!({"completed": 198, "failed_execution": 2})
    );
    assert_eq!(gates(&told)[0], ("completed", false), "{told}");
    assert_eq!(gates(&told)[2], ("failed_validation", true), "{told}");
    let failures = told["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 2, "{told}");
    for failure in failures {
        assert_eq!(
            (&failure["state"], &failure["status"]),
            (&json!("failed_execution"), &json!(500))
        );
        let task = failure["task_id"].as_str().unwrap();
        assert!(
            task.starts_with(told["task_id_prefix"].as_str().unwrap()),
            "{told}"
        );
    }
}

#[tokio::test]
async fn invalid_outputs_are_not_met_by_a_gate_of_their_own() {
    let stand = Stand::start(10_000, |callee| callee).await;
    stand.spoil(
        50,
        Answer::json(&json!({"risk_score": "high", "risk_level": "low"})),
    );
    let ran = stand.verify(&["--calls", "50"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let gate = ran
        .stdout
        .lines()
        .find(|line| line.contains("failed_validation  ") && line.contains("none"));
    assert!(gate.unwrap().starts_with("not met"), "{ran:?}");
    assert!(ran.stdout.contains("output-invalid"), "{ran:?}");
}

/// The callee answers at once; what is late is the way to it, which its own times do not show.
#[tokio::test]
async fn a_slow_way_is_not_met_although_all_complete() {
    let port = free_port();
    let link = Link::to(&format!("127.0.0.1:{port}")).await;
    let stand = Stand::start(100, |callee| {
        callee
            .set("inbound.listen", format!("127.0.0.1:{port}"))
            .set("inbound.advertise", link.address().to_string())
    })
    .await;
    link.delay(Duration::from_millis(150));
    let ran = stand.verify(&["--calls", "20", "-o", "json"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = ran.json();
    assert_eq!(gates(&told)[1], ("p99_ms", false), "{told}");
    assert_eq!(told["gates"][1]["limit"], 120.0, "{told}");
    assert!(told["gates"][1]["is"].as_f64().unwrap() >= 150.0, "{told}");
    assert_eq!(told["slowest"].as_array().unwrap().len(), 5, "{told}");
}

/// While a patch is rolled out, two versions answer side by side.
#[tokio::test]
async fn the_strictest_of_the_versions_that_answer_counts() {
    let stand = Stand::start(10_000, |callee| callee).await;
    let mut patch = fraud_detection();
    patch["version"] = json!("1.0.1");
    patch["constraints"] = json!({"timeout_ms": 8000, "max_concurrent": 1000});
    patch["probe"] = json!({"input": fraud_input()});
    let _newer = Sidecar::named("fraud")
        .application(&stand.application.url())
        .contract(patch, "POST", ROUTE)
        .consul(&stand.consul.address())
        .set("application.instance", "newer")
        .start()
        .await;
    wait_known(&stand.caller, 2).await;
    let ran = stand.verify(&["--calls", "60", "-o", "json"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = ran.json();
    let versions = json!([
        {"version": "1.0.0", "timeout_ms": 10_000.0},
        {"version": "1.0.1", "timeout_ms": 8000.0},
    ]);
    assert_eq!(told["contract"]["versions"], versions, "{told}");
    assert_eq!(told["gates"][1]["limit"], 9600.0, "{told}");
}

#[tokio::test]
async fn what_cannot_be_asked_is_told_apart() {
    let mut body = fraud_detection();
    body["constraints"] = json!({"timeout_ms": 10_000});
    let mut other = body.clone();
    other["id"] = json!("other-work-v1.0");
    let both = |callee: Setup| callee.contract(other, "POST", "/api/v1/other");
    let stand = Stand::of(body, both).await;
    let calls = stand.application.calls(ROUTE);
    let ran = stand.verify(&["--calls", "5"]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.stderr.contains("has no probe: give --input FILE"),
        "{ran:?}"
    );
    assert_eq!(stand.application.calls(ROUTE), calls);

    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(file, "{}", fraud_input()).unwrap();
    let input = file.path().to_str().unwrap();
    let ran = stand.verify(&["--calls", "5", "--input", input]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");

    // A range leads to the contract of whoever serves it, also beside another one.
    let outbound = stand.caller.outbound_url();
    let range = ["verify", "fraud-detection@^1", "--outbound", &outbound];
    let ran = hermes(&[&range[..], &["--calls", "5", "--input", input]].concat()).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");

    // One at a time, as fast as told: the second of three calls is due after 100 s.
    let slow = [
        "--calls",
        "3",
        "--rate",
        "0.01",
        "--timeout",
        "2s",
        "--input",
        input,
    ];
    let ran = stand.verify(&[&slow[..], &["-o", "json"]].concat()).await;
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert_eq!(
        (&ran.json()["made"], &ran.json()["met"]),
        (&json!(1), &json!(false))
    );

    let unknown = hermes(&["verify", "nobody-here-v1.0", "--outbound", &outbound]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("404"), "{unknown:?}");
    let none = hermes(&["verify", AGENT, "--outbound", "http://127.0.0.1:1"]).await;
    assert_eq!(none.code, Some(3), "{none:?}");
    for wrong in [
        ["verify", "fraud", "--calls", "1"],
        ["verify", AGENT, "--calls", "0"],
    ] {
        assert_eq!(hermes(&wrong).await.code, Some(2), "{wrong:?}");
    }
    drop(stand.consul);
}

#[tokio::test]
async fn an_interrupt_prints_what_there_is() {
    let stand = Stand::start(10_000, |callee| callee).await;
    let outbound = stand.caller.outbound_url();
    let args = [
        "verify",
        AGENT,
        "--rate",
        "20",
        "--outbound",
        &outbound,
        "-o",
        "json",
    ];
    let child = command(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(WITHIN, "some calls", async || {
        stand.application.calls(ROUTE) > 20
    })
    .await;
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let output = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap());
    let output = output.await.unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["ended"], "interrupted");
    assert!(told["made"].as_u64().unwrap() >= 5, "{told}");
    assert_eq!(told["met"], false);
}
