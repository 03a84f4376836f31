//! The application hands its contract out; the sidecar waits for it, serves it and keeps up.

use crate::support::application::{Answer, Application};
use crate::support::article::Agent;
use crate::support::client::client;
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::pair::{FRAUD, RISK, wrapped};
use crate::support::port::free_port;
use crate::support::program;
use crate::support::reply::Reply;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::wait_until;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use toml::{Table, Value as Setting};

const WITHIN: Duration = Duration::from_secs(20);
const HANDSHAKE: &str = "/hermes/handshake";

/// A sidecar whose application hands its contract out and takes native calls.
fn native(application: &Application, consul: &Consul) -> Setup {
    Sidecar::named("fraud")
        .consul(&consul.address())
        .application(&application.url())
        .set("application.health_interval", "100ms")
        .handshake()
        .route("path", RISK)
}

async fn get(url: String) -> Reply {
    Reply::to(client().get(url)).await
}

async fn post(url: String, body: String) -> Reply {
    let request = client()
        .post(url)
        .header("content-type", "application/json");
    Reply::to(request.body(body)).await
}

/// Returns what `/ready` says of one condition.
async fn condition(sidecar: &Sidecar, name: &str) -> Value {
    let ready = get(format!("{}/ready", sidecar.admin_url())).await.json();
    let checks = ready.as_array().or_else(|| ready["checks"].as_array());
    let found = checks.unwrap().iter().find(|check| check["check"] == name);
    found
        .unwrap_or_else(|| panic!("no {name}: {ready}"))
        .clone()
}

async fn waits_because(sidecar: &Sidecar, reason: &str) {
    wait_until(WITHIN, reason, async || {
        let contract = condition(sidecar, "contract").await;
        let detail = contract["detail"].as_str().unwrap_or_default();
        contract["ok"] == false && detail.contains(reason)
    })
    .await;
}

/// Returns what `check` finds with the config of a sidecar.
fn checked(sidecar: &Sidecar) -> String {
    let mut command = Command::new(program::hermes());
    command.args(["check", "-c"]).arg(sidecar.config_file());
    let ran = command.current_dir(sidecar.state_directory()).output();
    String::from_utf8(ran.unwrap().stdout).unwrap()
}

/// An application that is well and hands out `contract`.
async fn handing_out(contract: &Value) -> Application {
    let application = Application::start().await;
    application.answer("/hermes/health", Answer::json(&json!({"status": "ready"})));
    application.answer(RISK, Answer::json(&fraud_output()));
    application.answer(HANDSHAKE, Answer::json(contract));
    application
}

/// Writes an entry of the configuration, by handshake where there is no file.
fn route(keys: &[(&str, &str)], file: Option<&Path>) -> Setting {
    let mut entry = Table::new();
    match file {
        Some(file) => entry.insert("file".into(), file.to_str().unwrap().into()),
        None => entry.insert("handshake".into(), true.into()),
    };
    entry.insert("method".into(), "POST".into());
    for (key, value) in keys {
        entry.insert((*key).into(), (*value).into());
    }
    Setting::Table(entry)
}

/// Has the configuration read again; an error holds what is wrong with it.
fn reload(sidecar: &Sidecar) -> Result<(), String> {
    let mut hermes = Command::new(program::hermes());
    hermes.args(["reload", "--admin", &sidecar.admin_url()]);
    let output = hermes.output().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

#[tokio::test]
async fn an_agent_that_starts_after_its_sidecar_is_waited_for() {
    let consul = Consul::start().await;
    let port = free_port();
    let mut sidecar = Sidecar::named("fraud")
        .consul(&consul.address())
        .application(&format!("http://127.0.0.1:{port}"))
        .handshake()
        .route("style", "envelope")
        .start_unready()
        .await;
    waits_because(&sidecar, "ask the application for /hermes/handshake").await;
    let (inbound, outbound) = (sidecar.inbound_url(), sidecar.outbound_url());

    // Inbound says that it is not ready and why; nothing was executed.
    let body = wrapped(FRAUD, &fraud_input(), json!({}));
    for path in ["/hermes/invoke", &format!("/hermes/agents/{FRAUD}")] {
        let reply = post(format!("{inbound}{path}"), body.clone()).await;
        let problem = reply.problem(503, "not-ready");
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.contains("has not handed out its contract"),
            "{detail}"
        );
        assert_eq!(reply.header("hermes-executed"), "?0");
        assert_eq!(reply.header("retry-after"), "1");
    }
    let health = get(format!("{inbound}/hermes/health")).await;
    assert_eq!(health.status, 503);
    assert_eq!(health.json()["status"], "starting");
    let reason = health.json()["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("ask the application"), "{reason}");
    let handshake = get(format!("{inbound}{HANDSHAKE}")).await;
    handshake.problem(503, "not-ready");
    let contracts = get(format!("{}/contracts", sidecar.admin_url())).await;
    assert_eq!(contracts.json()[0]["state"], "starting", "{contracts:?}");

    let found = checked(&sidecar);
    assert!(
        found.contains("ask the application for /hermes/handshake"),
        "{found}"
    );

    // Meanwhile the application could call others.
    wait_until(WITHIN, "outbound to be ready", async || {
        let ready = get(format!("{}/ready/outbound", sidecar.admin_url())).await;
        ready.status == 200
    })
    .await;
    let unknown = wrapped("nobody-here-v1.0", &json!({}), json!({}));
    let reply = post(format!("{outbound}/hermes/invoke"), unknown).await;
    reply.problem(404, "unknown-agent");

    let agent = Agent::start_at(port, None).await;
    let _agent = agent.expect("the port stayed free");
    sidecar.ready(WITHIN).await;
    let instances = consul.wait_passing(FRAUD, 1, WITHIN).await;
    let meta = &instances[0]["Service"]["Meta"];
    assert_eq!(meta["hermes_route"], format!("POST /hermes/agents/{FRAUD}"));
    assert_eq!(meta["hermes_version"], "1.0.0");

    let found = checked(&sidecar);
    assert!(
        found.contains("the application hands out fraud-detection-v1.0 1.0.0"),
        "{found}"
    );

    // The truncated hash proves nothing: it is left out, with a word in the log.
    let handed_on = get(format!("{inbound}{HANDSHAKE}")).await.json();
    assert_eq!(handed_on["id"], FRAUD);
    assert_eq!(handed_on.get("signature"), None, "{handed_on}");
    let published = consul
        .get(&format!("/v1/kv/hermes/contracts/{FRAUD}/1.0.0?raw"))
        .await;
    assert!(!published.unwrap().to_string().contains("\"signature\""));
    assert!(sidecar.log().contains("it proves nothing and is left out"));
}

#[tokio::test]
async fn an_application_may_hand_out_its_openapi_document() {
    let consul = Consul::start().await;
    let of = |schema: &Value| json!({"application/json": {"schema": schema}});
    let body = fraud_detection();
    let operation = |id: &str| {
        json!({"post": {
            "x-hermes": {"id": id, "constraints": {"timeout_ms": 500}},
            "requestBody": {"required": true, "content": of(&body["input_schema"])},
            "responses": {"200": {"description": "", "content": of(&body["output_schema"])}},
        }})
    };
    let application = handing_out(&json!({
        "openapi": "3.1.0",
        "info": {"title": "risk", "version": "1.0.2"},
        "paths": {"/other": operation("fraud-other-v1.0"), RISK: operation(FRAUD)},
    }))
    .await;
    let mut sidecar = native(&application, &consul).start_unready().await;
    sidecar.ready(WITHIN).await;
    let inbound = sidecar.inbound_url();
    let handed_on = get(format!("{inbound}{HANDSHAKE}")).await.json();
    assert_eq!(
        (&handed_on["id"], &handed_on["version"]),
        (&json!(FRAUD), &json!("1.0.2"))
    );
    assert_eq!(handed_on["input_schema"], body["input_schema"]);
    let document = get(format!("{inbound}/hermes/openapi.json")).await.json();
    assert_eq!(document["paths"][RISK]["post"]["x-hermes"]["id"], FRAUD);
    assert_eq!(document["paths"].get("/other"), None);
}

#[tokio::test]
async fn a_contract_with_faults_is_named_and_asked_for_again() {
    let consul = Consul::start().await;
    let mut faulty = fraud_detection();
    faulty["input_schema"]["properties"]["amount_cny"]["type"] = json!("int");
    let application = handing_out(&faulty).await;
    let mut sidecar = native(&application, &consul).start_unready().await;
    waits_because(&sidecar, "/input_schema/properties/amount_cny/type").await;
    assert!(
        sidecar
            .log()
            .contains("waiting for the application's contract")
    );
    let body = fraud_input().to_string();
    let reply = post(format!("{}{RISK}", sidecar.inbound_url()), body.clone()).await;
    reply.problem(503, "not-ready");
    assert_eq!(reply.header("hermes-executed"), "?0");

    let oversize = "x".repeat((1 << 20) + 1);
    application.answer(HANDSHAKE, Answer::bytes(200, "application/json", oversize));
    waits_because(&sidecar, "is longer than").await;
    application.answer(HANDSHAKE, Answer::bytes(302, "text/html", "moved"));
    waits_because(&sidecar, "with 302").await;

    application.answer(HANDSHAKE, Answer::json(&fraud_detection()));
    sidecar.ready(WITHIN).await;
    let reply = post(format!("{}{RISK}", sidecar.inbound_url()), body).await;
    assert_eq!((reply.status, reply.json()), (200, fraud_output()));
    assert_eq!(application.calls(RISK), 1);
}

#[tokio::test]
async fn a_renewed_application_is_served_under_its_new_contract() {
    let consul = Consul::start().await;
    let application = handing_out(&fraud_detection()).await;
    let sidecar = native(&application, &consul).start().await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;

    // The same version with other promises cannot be published: the first stays in use.
    let mut other = fraud_detection();
    other["constraints"]["timeout_ms"] = json!(400);
    application.answer(HANDSHAKE, Answer::json(&other));
    wait_until(WITHIN, "a word about the version", async || {
        sidecar
            .log()
            .contains("give a changed contract another version")
    })
    .await;
    assert_eq!(condition(&sidecar, "contract").await["ok"], true);
    assert_eq!(consul.passing(FRAUD).await.len(), 1);

    let renewed = "fraud-detection-v1.1";
    other["id"] = json!(renewed);
    other["version"] = json!("1.1.0");
    application.answer(HANDSHAKE, Answer::json(&other));
    consul.wait_passing(renewed, 1, WITHIN).await;
    consul.wait_passing(FRAUD, 0, WITHIN).await;
    let handed_on = get(format!("{}{HANDSHAKE}", sidecar.inbound_url())).await;
    assert_eq!(handed_on.json()["id"], renewed);
    let called = format!("{}/hermes/invoke", sidecar.inbound_url());
    let reply = post(called.clone(), wrapped(renewed, &fraud_input(), json!({}))).await;
    assert_eq!((reply.status, reply.json()), (200, fraud_output()));
    let reply = post(called, wrapped(FRAUD, &fraud_input(), json!({}))).await;
    reply.problem(404, "unknown-agent");
    let text = get(format!("{}/metrics", sidecar.admin_url())).await;
    let text = String::from_utf8_lossy(&text.body).into_owned();
    let info = text
        .lines()
        .filter(|line| line.starts_with("hermes_sidecar_info"));
    let info: Vec<&str> = info.collect();
    assert_eq!(info.len(), 1, "the first is gone: {info:?}");
    assert!(info[0].contains(renewed), "{info:?}");
}

#[tokio::test]
async fn a_contract_under_a_version_published_otherwise_does_not_end_the_one_served() {
    let consul = Consul::start().await;
    let application = handing_out(&fraud_detection()).await;
    let sidecar = native(&application, &consul).start().await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    let of = |version: &str, timeout: u32| {
        let mut contract = fraud_detection();
        contract["version"] = json!(version);
        contract["constraints"]["timeout_ms"] = json!(timeout);
        Answer::json(&contract)
    };
    application.answer(HANDSHAKE, of("1.0.1", 500));
    let serves = async |version: &str| {
        let passing = consul.passing(FRAUD).await;
        let meta = passing.first().map(|one| &one["Service"]["Meta"]);
        meta.is_some_and(|meta| meta["hermes_version"] == version)
    };
    wait_until(WITHIN, "1.0.1 to be registered", async || {
        serves("1.0.1").await
    })
    .await;

    // Consul keeps the first body of 1.0.0 for good.
    application.answer(HANDSHAKE, of("1.0.0", 400));
    wait_until(WITHIN, "a word about the version", async || {
        let log = sidecar.log();
        log.contains("already holds another contract under this version")
    })
    .await;
    assert_eq!(condition(&sidecar, "contract").await["ok"], true);
    assert!(serves("1.0.1").await, "{}", sidecar.log());
    let reply = post(
        format!("{}{RISK}", sidecar.inbound_url()),
        fraud_input().to_string(),
    )
    .await;
    assert_eq!((reply.status, reply.json()), (200, fraud_output()));
}

#[tokio::test]
async fn an_application_that_hands_out_ever_new_versions_is_asked_at_the_pace_of_its_health() {
    let consul = Consul::start().await;
    let application = handing_out(&fraud_detection()).await;
    let handed_out = AtomicUsize::new(0);
    application.script(HANDSHAKE, move |_| {
        let mut contract = fraud_detection();
        let patch = handed_out.fetch_add(1, Ordering::SeqCst);
        contract["version"] = json!(format!("1.0.{patch}"));
        Answer::json(&contract)
    });
    let _sidecar = native(&application, &consul).start().await;
    wait_until(WITHIN, "forty health checks", async || {
        application.calls("/hermes/health") >= 40
    })
    .await;
    let (asked, checked) = (
        application.calls(HANDSHAKE),
        application.calls("/hermes/health"),
    );
    assert!(asked > 2, "a new version is noticed: asked {asked} times");
    assert!(
        asked <= checked,
        "asked {asked} times over {checked} health checks"
    );
}

#[tokio::test]
async fn a_contract_from_a_file_and_one_by_handshake_stand_side_by_side() {
    let consul = Consul::start().await;
    let application = handing_out(&fraud_detection()).await;
    application.answer(HANDSHAKE, Answer::bytes(503, "text/plain", "starting"));
    application.answer("/hermes/health", Answer::json(&json!({"version": "1.0"})));
    let mut order = fraud_detection();
    order["id"] = json!("order-create-v2.3");
    order["version"] = json!("2.3.0");
    let mut sidecar = native(&application, &consul)
        .contract(order, "POST", "/orders")
        .start_unready()
        .await;
    application.answer("/orders", Answer::json(&fraud_output()));
    waits_because(&sidecar, "with 503").await;
    let invoke = format!("{}/hermes/invoke", sidecar.inbound_url());
    let reply = post(invoke.clone(), wrapped(FRAUD, &fraud_input(), json!({}))).await;
    reply.problem(503, "not-ready");

    // The bare version that health tells is the handshake's; known, it lets both be admitted.
    application.answer(HANDSHAKE, Answer::json(&fraud_detection()));
    sidecar.ready(WITHIN).await;
    for agent in [FRAUD, "order-create-v2.3"] {
        consul.wait_passing(agent, 1, WITHIN).await;
        let reply = post(invoke.clone(), wrapped(agent, &fraud_input(), json!({}))).await;
        assert_eq!(
            (reply.status, reply.json()),
            (200, fraud_output()),
            "{agent}"
        );
    }
}

/// Two entries of the configuration under one id would undo each other's registration.
#[tokio::test]
async fn a_file_cannot_have_the_id_that_the_application_hands_out_now() {
    let consul = Consul::start().await;
    let application = handing_out(&fraud_detection()).await;
    let mut sidecar = native(&application, &consul).start().await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    let mut renewed = fraud_detection();
    renewed["id"] = json!("fraud-detection-v1.1");
    renewed["version"] = json!("1.1.0");
    application.answer(HANDSHAKE, Answer::json(&renewed));
    consul.wait_passing("fraud-detection-v1.1", 1, WITHIN).await;

    let file = sidecar.state_directory().join("renewed.json");
    std::fs::write(&file, renewed.to_string()).unwrap();
    let handshake = route(&[("path", RISK)], None);
    let entries = vec![handshake, route(&[("path", "/other")], Some(&file))];
    sidecar.reconfigure("application.contract", Setting::Array(entries));
    let told = reload(&sidecar).unwrap_err();
    let expected = "fraud-detection-v1.1 is handed out by the application; give it once";
    assert!(told.contains(expected), "{told}");
}

#[tokio::test]
async fn a_file_may_take_the_place_of_what_the_application_hands_out() {
    let consul = Consul::start().await;
    let application = handing_out(&fraud_detection()).await;
    let mut sidecar = native(&application, &consul).start().await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    let mut patched = fraud_detection();
    patched["version"] = json!("1.0.9");
    let file = sidecar.state_directory().join("patched.json");
    std::fs::write(&file, patched.to_string()).unwrap();
    let entry = route(&[("path", RISK)], Some(&file));
    sidecar.reconfigure("application.contract", Setting::Array(vec![entry]));
    assert_eq!(reload(&sidecar), Ok(()));
    wait_until(WITHIN, "the file's contract", async || {
        let passing = consul.passing(FRAUD).await;
        let meta = passing.first().map(|one| &one["Service"]["Meta"]);
        meta.is_some_and(|meta| meta["hermes_version"] == "1.0.9")
    })
    .await;
    let invoke = format!("{}/hermes/invoke", sidecar.inbound_url());
    let reply = post(invoke, wrapped(FRAUD, &fraud_input(), json!({}))).await;
    assert_eq!((reply.status, reply.json()), (200, fraud_output()));
    let log = sidecar.log();
    assert!(!log.contains("the registration is gone"), "{log}");
}

#[tokio::test]
async fn a_sidecar_stops_in_order_with_its_contract_or_without() {
    let consul = Consul::start().await;
    let application = handing_out(&fraud_detection()).await;
    application.answer(HANDSHAKE, Answer::bytes(404, "text/plain", "later"));
    let setup = native(&application, &consul).set("limits.drain_delay", "0s");
    let mut sidecar = setup.start_unready().await;
    waits_because(&sidecar, "with 404").await;
    assert!(sidecar.terminate().await.success(), "{}", sidecar.log());

    application.answer(HANDSHAKE, Answer::json(&fraud_detection()));
    sidecar.start_again();
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    assert!(sidecar.terminate().await.success(), "{}", sidecar.log());
    let left = consul.get(&format!("/v1/health/service/{FRAUD}")).await;
    assert_eq!(left, Some(json!([])), "it is deregistered");
    let log = sidecar.log();
    assert!(!log.contains("ended unasked"), "{log}");
}
