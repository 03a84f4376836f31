//! Nobody is led to a contract before its three steps hold, and each step says why it does not.

use crate::support::application::{Answer, Application};
use crate::support::client::client;
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::link::Link;
use crate::support::pair::{FRAUD, RISK};
use crate::support::program;
use crate::support::reply::Reply;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::{wait_for, wait_until};
use crate::support::witness::Witness;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);
/// Until a trial that failed is tried again, some time may pass.
const REPAIRED_WITHIN: Duration = Duration::from_secs(40);
const HEALTH: &str = "/hermes/health";

/// The fraud contract under another name, with a probe.
fn contract(name: &str, probe: Value) -> Value {
    let mut body = fraud_detection();
    body["id"] = format!("{name}-v1.0").into();
    body["probe"] = probe;
    body["probe"]["input"] = fraud_input();
    body
}

/// A sidecar that serves one contract and looks at its application all the time.
fn sidecar(application: &Application, consul: &Consul, contract: Value) -> Setup {
    Sidecar::named("fraud")
        .application(&application.url())
        .consul(&consul.address())
        .set("application.health_interval", "100ms")
        .contract(contract, "POST", RISK)
}

fn says(version: &str) -> Answer {
    Answer::json(&json!({"status": "ready", "version": version}))
}

/// An application that is well and answers as the contract says.
async fn good() -> Application {
    let application = Application::start().await;
    application.answer(HEALTH, says("1.0.0"));
    application.answer(RISK, Answer::json(&fraud_output()));
    application
}

/// Returns what `/ready` says of one step of a contract.
async fn step(sidecar: &Sidecar, id: &str, step: &str) -> (String, String) {
    let ready = client().get(format!("{}/ready", sidecar.admin_url()));
    let ready = Reply::to(ready).await.json();
    let checks = ready.as_array().unwrap().iter();
    let admission = checks.clone().find(|check| check["check"] == "admission");
    let steps = admission.unwrap()["steps"].as_array().cloned();
    let found = steps.unwrap_or_default().into_iter();
    let mut found = found.filter(|there| there["contract"] == id && there["step"] == step);
    let there = found.next().unwrap_or_default();
    let text = |name: &str| there[name].as_str().unwrap_or_default().to_owned();
    (text("result"), text("detail"))
}

/// Waits until a step has this result and returns what is said of it.
async fn step_is(sidecar: &Sidecar, id: &str, name: &str, result: &str) -> String {
    let what = format!("{id}: {name} {result}");
    wait_for(REPAIRED_WITHIN, &what, async || {
        let (there, detail) = step(sidecar, id, name).await;
        (there == result).then_some(detail)
    })
    .await
}

async fn tried(sidecar: &Sidecar, step: &str, result: &str) -> f64 {
    let labels = [("step", step), ("result", result)];
    sidecar.metric("admission_steps_total", &labels).await
}

async fn in_state(sidecar: &Sidecar, state: &str) -> f64 {
    sidecar.metric("admission_state", &[("state", state)]).await
}

async fn heartbeat(sidecar: &Sidecar) -> String {
    let reply = client().get(sidecar.inbound_url() + HEALTH);
    let status = Reply::to(reply).await.json()["status"].clone();
    status.as_str().unwrap().to_owned()
}

/// Serves a contract that does not hold, sees that it is kept from callers and why, repairs it.
async fn kept_out_until_repaired(
    consul: &Consul,
    contract: Value,
    (name, reason): (&str, &str),
    application: Application,
    repair: impl FnOnce(&Application),
) {
    let id = contract["id"].as_str().unwrap().to_owned();
    let witness = Witness::of(consul, &id).await;
    let sidecar = sidecar(&application, consul, contract);
    let sidecar = sidecar.start_unready().await;
    let detail = step_is(&sidecar, &id, name, "failed").await;
    assert!(detail.contains(reason), "{id}: {detail}");
    // A further try tells no other story.
    wait_until(REPAIRED_WITHIN, "registration", async || {
        witness.seen().last().is_some_and(|last| last == "critical")
    })
    .await;
    assert!(tried(&sidecar, name, "failed").await >= 1.0);
    if name == "health" {
        // What comes after a step that does not hold is not tried.
        assert_eq!(application.calls(RISK), 0);
        assert_eq!(step(&sidecar, &id, "trial").await.0, "waiting");
        assert_eq!(tried(&sidecar, "trial", "failed").await, 0.0);
    }
    let failures = tried(&sidecar, "trial", "failed").await;
    if name == "trial" {
        wait_until(REPAIRED_WITHIN, "second try", async || {
            tried(&sidecar, "trial", "failed").await > failures
        })
        .await;
    }
    let logged = sidecar.log();
    let told = logged.lines().any(|line| {
        let has = |part: &str| line.contains(part);
        has("step of admission") && has(&id) && has(&format!("\"{name}\"")) && has(reason)
    });
    assert!(told, "{id}: {logged}");
    assert_eq!(heartbeat(&sidecar).await, "admitting");
    assert_eq!(in_state(&sidecar, "admitting").await, 1.0);
    assert_eq!(in_state(&sidecar, "admitted").await, 0.0);
    let call = client().post(sidecar.inbound_url() + RISK);
    let reply = Reply::to(call.json(&fraud_input())).await;
    let refused = reply.problem(503, "not-ready");
    assert!(
        refused["detail"].as_str().unwrap().contains(reason),
        "{refused}"
    );
    witness.never_passed();

    repair(&application);
    witness
        .saw(&["absent", "critical", "passing"], REPAIRED_WITHIN)
        .await;
    for name in ["health", "trial"] {
        step_is(&sidecar, &id, name, "ok").await;
        assert!(tried(&sidecar, name, "ok").await >= 1.0);
    }
    assert_eq!(in_state(&sidecar, "admitting").await, 0.0);
    assert_eq!(in_state(&sidecar, "admitted").await, 1.0);
    assert_eq!(heartbeat(&sidecar).await, "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_keep_its_contract_never_passes_and_says_why() {
    let consul = Consul::start().await;
    let (old, forgetful, late, broken) = tokio::join!(good(), good(), good(), good());
    let (patient, wordy) = tokio::join!(good(), good());
    let mut newer = contract("older", json!({}));
    newer["version"] = "1.0.1".into();
    let made = Arc::new(AtomicUsize::new(0));
    forgetful.script(RISK, move |_| {
        match made.fetch_add(1, Ordering::SeqCst) % 20 {
            19 => Answer::json(&json!({})),
            _ => Answer::json(&fraud_output()),
        }
    });
    let slow = Answer::json(&fraud_output()).delayed(Duration::from_millis(900));
    late.answer(RISK, slow.clone());
    patient.answer(RISK, slow);
    let padded = json!({"status": "down", "padding": "x".repeat(70_000)});
    wordy.answer(HEALTH, Answer::json(&padded));
    broken.answer(RISK, Answer::bytes(500, "application/json", "{}"));
    let well = |application: &Application| {
        application.answer(RISK, Answer::json(&fraud_output()));
    };
    tokio::join!(
        kept_out_until_repaired(
            &consul,
            newer,
            ("health", "says it runs 1.0.0, the contract is 1.0.1"),
            old,
            |application| application.answer(HEALTH, says("1.0.1")),
        ),
        kept_out_until_repaired(
            &consul,
            contract("forgetful", json!({"calls": 200, "concurrency": 8})),
            ("trial", "breaks output_schema: must have the member"),
            forgetful,
            well,
        ),
        kept_out_until_repaired(
            &consul,
            contract("late", json!({"calls": 2, "timeout_ms": 300})),
            ("trial", "no whole reply within 300ms"),
            late,
            well,
        ),
        // Calls get 500 ms, whatever the probe would grant.
        kept_out_until_repaired(
            &consul,
            contract("patient", json!({"calls": 2, "timeout_ms": 5_000})),
            ("trial", "no whole reply within 500ms"),
            patient,
            well,
        ),
        kept_out_until_repaired(
            &consul,
            contract("wordy", json!({})),
            ("health", "more than 65536 bytes of JSON"),
            wordy,
            |application| application.answer(HEALTH, says("1.0.0")),
        ),
        kept_out_until_repaired(
            &consul,
            contract("broken", json!({"expect": {"risk_level": "low"}})),
            ("trial", "the application answered 500"),
            broken,
            well,
        ),
    );
}

#[tokio::test]
async fn a_trial_is_sent_as_a_call_and_marked_and_counts_nowhere_else() {
    let (consul, application) = (Consul::start().await, good().await);
    let reply = Answer::json(&fraud_output()).delayed(Duration::from_millis(30));
    application.answer(RISK, reply);
    let probe = json!({"calls": 100, "concurrency": 8, "expect": {"risk_level": "low"}});
    let sidecar = sidecar(&application, &consul, contract("fraud-detection", probe));
    let sidecar = sidecar.start().await;
    let detail = step_is(&sidecar, FRAUD, "trial", "ok").await;
    assert!(detail.contains("100 calls"), "{detail}");
    assert_eq!(application.calls(RISK), 100);
    assert_eq!(application.at_once(RISK), 8);
    let received = application.received(RISK);
    let mut calls: Vec<_> = received
        .iter()
        .map(|call| call.headers["hermes-call-id"].to_str().unwrap())
        .collect();
    calls.sort_unstable();
    calls.dedup();
    assert_eq!(calls.len(), 100);
    for call in &received {
        let header = |name: &str| call.headers[name].to_str().unwrap();
        assert_eq!(header("hermes-sandbox"), "?1");
        assert_eq!(header("hermes-agent"), "fraud-detection-v1.0@1.0.0");
        assert_eq!(
            header("hermes-task-id"),
            received[0].headers["hermes-task-id"]
        );
        assert_eq!(header("content-type"), "application/json");
        assert_eq!(header("accept-encoding"), "identity");
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        assert_eq!(body, fraud_input());
    }
    assert_eq!(tried(&sidecar, "trial", "ok").await, 1.0);
    for family in [
        "tasks_finished_total",
        "proxy_requests_total",
        "contract_validations_total",
        "spool_appended_total",
        "tasks_active",
    ] {
        assert_eq!(sidecar.metric(family, &[]).await, 0.0, "{family}");
    }
    // Health goes on being looked at; a trial is not repeated for that.
    let asked = application.calls(HEALTH);
    wait_until(WITHIN, "health checks", async || {
        application.calls(HEALTH) > asked + 10
    })
    .await;
    assert_eq!(application.calls(RISK), 100);
    // Callers cannot mark their calls so.
    let call = client().post(sidecar.inbound_url() + RISK);
    let call = call.json(&fraud_input()).header("hermes-sandbox", "?1");
    assert_eq!(Reply::to(call).await.status, 200);
    let last = application.received(RISK).pop().unwrap();
    assert!(!last.headers.contains_key("hermes-sandbox"), "{last:?}");
}

#[tokio::test]
async fn a_wrapped_contract_is_tried_with_a_wrapper() {
    let (consul, application) = (Consul::start().await, good().await);
    application.answer("/hermes/invoke", Answer::json(&fraud_output()));
    let sidecar = Sidecar::named("fraud")
        .application(&application.url())
        .consul(&consul.address())
        .contract(contract("fraud-detection", json!({"calls": 1})), "POST", "")
        .route("style", "envelope");
    let _sidecar = sidecar.start().await;
    let received = application.received("/hermes/invoke");
    assert_eq!(received.len(), 1);
    let body: Value = serde_json::from_slice(&received[0].body).unwrap();
    assert_eq!(body["input"], fraud_input());
    let task = received[0].headers["hermes-task-id"].to_str().unwrap();
    assert_eq!(body["context"]["task_id"], task);
    assert_eq!(received[0].headers["hermes-sandbox"], "?1");
}

#[tokio::test]
async fn without_a_probe_nothing_is_sent_unless_an_input_is_asked_for() {
    let (consul, application) = (Consul::start().await, good().await);
    let without = sidecar(&application, &consul, fraud_detection());
    let mut without = without.start().await;
    let detail = step_is(&without, FRAUD, "trial", "skipped").await;
    assert!(detail.contains("no probe"), "{detail}");
    assert_eq!(tried(&without, "trial", "skipped").await, 1.0);
    assert!(without.log().contains("no probe"));
    assert_eq!(application.calls(RISK), 0);
    assert!(without.terminate().await.success());

    let derived = sidecar(&application, &consul, fraud_detection()).route("derive_probe", true);
    let mut derived = derived.start().await;
    step_is(&derived, FRAUD, "trial", "ok").await;
    assert_eq!(application.calls(RISK), 8);
    let sent: Value = serde_json::from_slice(&application.received(RISK)[0].body).unwrap();
    assert_eq!(sent["ip_address"], "192.0.2.1");
    assert!(derived.terminate().await.success());

    let mut plate = fraud_detection();
    plate["input_schema"]["properties"]["user_id"]["pattern"] = "^[A-Z]{3}-[0-9]{4}$".into();
    plate["version"] = "1.0.1".into();
    application.answer(HEALTH, says("1.0.1"));
    let lost = sidecar(&application, &consul, plate).route("derive_probe", true);
    let lost = lost.start_unready().await;
    let detail = step_is(&lost, FRAUD, "trial", "failed").await;
    assert!(detail.contains("/user_id must match"), "{detail}");
    assert!(detail.contains("write a probe"), "{detail}");
    assert_eq!(application.calls(RISK), 8);
}

#[tokio::test]
async fn another_version_under_a_running_sidecar_is_out_until_the_right_one_is_back() {
    let (consul, application) = (Consul::start().await, good().await);
    let witness = Witness::of(&consul, FRAUD).await;
    let probe = contract("fraud-detection", json!({"calls": 3}));
    let sidecar = sidecar(&application, &consul, probe).start().await;
    witness
        .saw(&["absent", "critical", "passing"], WITHIN)
        .await;
    assert_eq!(application.calls(RISK), 3);

    application.answer(HEALTH, says("0.9.0"));
    let out = ["absent", "critical", "passing", "critical"];
    witness.saw(&out, WITHIN).await;
    let (result, detail) = step(&sidecar, FRAUD, "health").await;
    assert_eq!(result, "failed");
    assert!(detail.contains("runs 0.9.0"), "{detail}");
    assert_eq!(step(&sidecar, FRAUD, "trial").await.0, "waiting");
    // Its answers would be to another question.
    let call = client().post(sidecar.inbound_url() + RISK);
    let reply = Reply::to(call.json(&fraud_input())).await;
    reply.problem(503, "not-ready");
    assert_eq!(reply.header("hermes-executed"), "?0");
    assert_eq!(application.calls(RISK), 3);

    // The right version is not enough: it has to show that it keeps the contract.
    application.answer(RISK, Answer::json(&json!({})));
    application.answer(HEALTH, says("1.0.0"));
    step_is(&sidecar, FRAUD, "trial", "failed").await;
    witness.saw(&out, WITHIN).await;
    application.answer(RISK, Answer::json(&fraud_output()));
    let back = ["absent", "critical", "passing", "critical", "passing"];
    witness.saw(&back, REPAIRED_WITHIN).await;
}

#[tokio::test]
async fn an_application_that_was_away_is_tried_again() {
    let (consul, application) = (Consul::start().await, good().await);
    let link = Link::to(&application.url().replace("http://", "")).await;
    let witness = Witness::of(&consul, FRAUD).await;
    let probe = contract("fraud-detection", json!({"calls": 3}));
    let sidecar = sidecar(&application, &consul, probe);
    let sidecar = sidecar.application(&format!("http://{}", link.address()));
    let sidecar = sidecar.start().await;
    witness
        .saw(&["absent", "critical", "passing"], WITHIN)
        .await;
    link.cut();
    let out = ["absent", "critical", "passing", "critical"];
    witness.saw(&out, WITHIN).await;
    assert_eq!(in_state(&sidecar, "unhealthy").await, 1.0);
    application.answer(RISK, Answer::json(&json!({})));
    link.restore();
    let detail = step_is(&sidecar, FRAUD, "trial", "failed").await;
    assert!(
        detail.starts_with("3 of 3 trial calls failed; call 1:"),
        "{detail}"
    );
    witness.saw(&out, WITHIN).await;
    // Who comes all the same is served: the reply is held against the contract as ever.
    let call = client().post(sidecar.inbound_url() + RISK);
    let reply = Reply::to(call.json(&fraud_input())).await;
    reply.problem(502, "output-invalid");
    application.answer(RISK, Answer::json(&fraud_output()));
    let back = ["absent", "critical", "passing", "critical", "passing"];
    witness.saw(&back, REPAIRED_WITHIN).await;
}

/// Runs a command of ours in a folder; it must succeed.
fn run(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new(program::hermes());
    let output = command
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// Believes the owner of `keys/ours` alone.
fn pinned(setup: Setup, folder: &Path) -> Setup {
    run(folder, &["keygen", "ours"]);
    let mut key = toml::Table::new();
    let file = folder.join("ours.pub").display().to_string();
    key.insert("file".into(), file.into());
    key.insert("kid".into(), "ours-1".into());
    key.insert("ids".into(), vec!["fraud-*"].into());
    setup
        .set("trust.mode", "pinned")
        .set("trust.key", vec![toml::Value::Table(key)])
}

async fn refused_as_unsigned(sidecar: &Sidecar, application: &Application) {
    let detail = step_is(sidecar, FRAUD, "signature", "failed").await;
    assert!(detail.contains("it bears no signature"), "{detail}");
    assert!(detail.contains(FRAUD), "{detail}");
    // It is tried again, and nothing behind it is tried.
    wait_until(REPAIRED_WITHIN, "second try", async || {
        tried(sidecar, "signature", "failed").await > 1.0
    })
    .await;
    for name in ["health", "trial"] {
        assert_eq!(step(sidecar, FRAUD, name).await.0, "waiting");
        for result in ["ok", "failed", "skipped"] {
            assert_eq!(tried(sidecar, name, result).await, 0.0, "{name} {result}");
        }
    }
    assert_eq!(application.calls(RISK), 0);
    assert_eq!(heartbeat(sidecar).await, "admitting");
    let logged = sidecar.log();
    let told = logged.lines().filter(|line| {
        line.contains("step of admission") && line.contains("it bears no signature")
    });
    assert_eq!(told.count(), 1, "{logged}");
}

#[tokio::test]
async fn an_unsigned_contract_is_kept_out_where_keys_are_pinned() {
    let (consul, application) = (Consul::start().await, good().await);
    let witness = Witness::of(&consul, FRAUD).await;
    let folder = tempfile::tempdir().unwrap();
    let probe = contract("fraud-detection", json!({"calls": 2}));
    let setup = sidecar(&application, &consul, probe);
    let mut sidecar = pinned(setup, folder.path()).start_unready().await;
    refused_as_unsigned(&sidecar, &application).await;
    witness.never_passed();

    let file = sidecar
        .config_file()
        .with_file_name(format!("{FRAUD}.json"));
    let key = folder.path().join("ours");
    let (file, key) = (file.to_str().unwrap(), key.to_str().unwrap());
    let sign = ["contract", "sign", file, "--key", key, "--kid", "ours-1"];
    run(folder.path(), &sign);
    sidecar.start_again();
    witness
        .saw(&["absent", "critical", "passing"], REPAIRED_WITHIN)
        .await;
    let detail = step_is(&sidecar, FRAUD, "signature", "ok").await;
    assert_eq!(detail, "signed by ours-1");
    assert_eq!(application.calls(RISK), 2);
}

#[tokio::test]
async fn a_signature_that_the_application_hands_out_later_is_taken_over() {
    let (consul, application) = (Consul::start().await, good().await);
    let witness = Witness::of(&consul, FRAUD).await;
    let folder = tempfile::tempdir().unwrap();
    let body = contract("fraud-detection", json!({"calls": 2}));
    application.answer("/hermes/handshake", Answer::json(&body));
    let setup = Sidecar::named("fraud")
        .application(&application.url())
        .consul(&consul.address())
        .set("application.health_interval", "100ms")
        .handshake()
        .route("path", RISK);
    let sidecar = pinned(setup, folder.path()).start_unready().await;
    refused_as_unsigned(&sidecar, &application).await;
    witness.never_passed();

    let file = folder.path().join("contract.json");
    std::fs::write(&file, body.to_string()).unwrap();
    let sign = ["contract", "sign", "contract.json", "--key", "ours"];
    run(folder.path(), &[&sign[..], &["--kid", "ours-1"]].concat());
    let signed: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    application.answer("/hermes/handshake", Answer::json(&signed));
    consul.wait_passing(FRAUD, 1, REPAIRED_WITHIN).await;
    let seen = witness.seen();
    let passed = seen.iter().filter(|status| *status == "passing").count();
    assert_eq!(passed, 1, "{seen:?}");

    // A further signature is taken over, too, and is no reason to take it from its callers.
    let sign = ["contract", "sign", "contract.json", "--key", "next"];
    run(folder.path(), &["keygen", "next"]);
    run(folder.path(), &sign);
    let twice: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(twice["signatures"].as_array().unwrap().len(), 2);
    application.answer("/hermes/handshake", Answer::json(&twice));
    wait_until(REPAIRED_WITHIN, "both signatures", async || {
        sidecar.log().matches("has taken over").count() == 2
    })
    .await;
    assert_eq!(witness.seen(), seen);
    assert!(application.calls(RISK) > 2, "it is tried like any other");
}

#[tokio::test]
async fn what_fell_while_consul_was_away_does_not_come_back_as_passing() {
    let (mut consul, application) = (Consul::start().await, good().await);
    let probe = contract("fraud-detection", json!({"calls": 1}));
    let sidecar = sidecar(&application, &consul, probe).start().await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    consul.kill9();
    application.answer(HEALTH, says("2.0.0"));
    step_is(&sidecar, FRAUD, "health", "failed").await;
    consul.restart_empty().await;
    let witness = Witness::of(&consul, FRAUD).await;
    wait_until(REPAIRED_WITHIN, "registration", async || {
        witness.seen().last().is_some_and(|last| last != "absent")
    })
    .await;
    application.answer(HEALTH, says("1.0.0"));
    let seen = ["absent", "critical", "passing"];
    witness.saw(&seen, REPAIRED_WITHIN).await;
}

#[tokio::test]
async fn no_text_of_a_failed_trial_repeats_the_reply() {
    let (consul, application) = (Consul::start().await, good().await);
    let secret = "4000-0000-0000-0002";
    let mut reply = fraud_output();
    reply["risk_level"] = secret.into();
    application.answer(RISK, Answer::json(&reply));
    let probe = json!({"calls": 1, "expect": {"risk_score": 12}});
    let sidecar = sidecar(&application, &consul, contract("fraud-detection", probe));
    let sidecar = sidecar.start_unready().await;
    let detail = step_is(&sidecar, FRAUD, "trial", "failed").await;
    assert!(detail.contains("/risk_level must be one of"), "{detail}");
    application.answer(RISK, {
        let mut reply = fraud_output();
        reply["risk_score"] = 99.125.into();
        Answer::json(&reply)
    });
    wait_until(REPAIRED_WITHIN, "other reason", async || {
        let (_, detail) = step(&sidecar, FRAUD, "trial").await;
        detail.contains("not as probe.expect says at /risk_score")
    })
    .await;
    let ready = client().get(format!("{}/ready", sidecar.admin_url()));
    let shown = Reply::to(ready).await;
    let shown = String::from_utf8_lossy(&shown.body).into_owned() + &sidecar.log();
    assert!(!shown.contains(secret), "{shown}");
    assert!(!shown.contains("99.125"), "{shown}");
}

#[tokio::test]
async fn a_sidecar_killed_in_the_middle_of_a_trial_begins_it_anew() {
    let (consul, application) = (Consul::start().await, good().await);
    let witness = Witness::of(&consul, FRAUD).await;
    let slow = Answer::json(&fraud_output()).delayed(Duration::from_millis(100));
    application.answer(RISK, slow);
    let probe = contract("fraud-detection", json!({"calls": 40, "concurrency": 2}));
    let mut sidecar = sidecar(&application, &consul, probe).start_unready().await;
    wait_until(WITHIN, "trial", async || application.calls(RISK) > 4).await;
    sidecar.kill9();
    let before = application.calls(RISK);
    witness.never_passed();
    sidecar.start_again();
    witness
        .saw(&["absent", "critical", "passing"], WITHIN)
        .await;
    assert_eq!(application.calls(RISK), before + 40);
    assert_eq!(application.at_once(RISK), 2);
}

#[tokio::test]
async fn leaving_ends_a_trial_that_nobody_answers() {
    let (consul, application) = (Consul::start().await, good().await);
    application.answer(RISK, Answer::Hang);
    let witness = Witness::of(&consul, FRAUD).await;
    let probe = contract("fraud-detection", json!({"timeout_ms": 60_000}));
    let sidecar = sidecar(&application, &consul, probe).set("limits.drain_delay", "0s");
    let mut sidecar = sidecar.start_unready().await;
    wait_until(WITHIN, "trial", async || application.calls(RISK) == 1).await;
    assert_eq!(step(&sidecar, FRAUD, "trial").await.0, "running");
    assert!(sidecar.terminate().await.success());
    wait_until(WITHIN, "dropped call", async || {
        application.abandoned() == 1
    })
    .await;
    witness.never_passed();
}

#[tokio::test]
async fn illness_in_the_middle_of_a_trial_ends_it() {
    let (consul, application) = (Consul::start().await, good().await);
    application.answer(RISK, Answer::Hang);
    let probe = contract("fraud-detection", json!({"timeout_ms": 60_000}));
    let sidecar = sidecar(&application, &consul, probe).start_unready().await;
    wait_until(WITHIN, "trial", async || application.calls(RISK) == 1).await;
    application.answer(HEALTH, Answer::bytes(503, "text/plain", "no"));
    step_is(&sidecar, FRAUD, "health", "failed").await;
    assert_eq!(step(&sidecar, FRAUD, "trial").await.0, "waiting");
    wait_until(WITHIN, "dropped call", async || {
        application.abandoned() == 1
    })
    .await;
}

#[tokio::test]
async fn several_contracts_are_judged_and_counted_each_for_itself() {
    let (consul, application) = (Consul::start().await, good().await);
    let is_good = Arc::new(AtomicBool::new(false));
    let repaired = is_good.clone();
    application.script("/second", move |_| match is_good.load(Ordering::SeqCst) {
        true => Answer::json(&fraud_output()),
        false => Answer::json(&json!({})),
    });
    let sidecar = sidecar(
        &application,
        &consul,
        contract("first", json!({"calls": 1})),
    )
    .contract(contract("second", json!({"calls": 1})), "POST", "/second")
    .start_unready()
    .await;
    step_is(&sidecar, "first-v1.0", "trial", "ok").await;
    step_is(&sidecar, "second-v1.0", "trial", "failed").await;
    consul.wait_passing("first-v1.0", 1, WITHIN).await;
    assert!(consul.passing("second-v1.0").await.is_empty());
    assert_eq!(in_state(&sidecar, "admitted").await, 1.0);
    assert_eq!(in_state(&sidecar, "admitting").await, 1.0);
    assert_eq!(in_state(&sidecar, "starting").await, 0.0);
    repaired.store(true, Ordering::SeqCst);
    consul.wait_passing("second-v1.0", 1, REPAIRED_WITHIN).await;
    assert_eq!(in_state(&sidecar, "admitted").await, 2.0);
    assert_eq!(in_state(&sidecar, "admitting").await, 0.0);
}
