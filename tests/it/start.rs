//! A sidecar that cannot work says why and ends; one that can goes on with what is there.

use crate::support::application::{Answer, Application};
use crate::support::client::{client, succeeds};
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::link::Link;
use crate::support::pair::{FRAUD, Pair, RISK, wrapped};
use crate::support::program;
use crate::support::reply::Reply;
use crate::support::road::{AGENT, ROUTE, Road, callee};
use crate::support::sidecar::Sidecar;
use crate::support::wait::{wait_for, wait_until};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;

const WITHIN: Duration = Duration::from_secs(10);
/// The first use of a contract waits two seconds for Consul, never more than this in all.
const FIRST_USE: Duration = Duration::from_millis(2500);

/// Runs a sidecar that is to end by itself, on free ports and with its state in `folder`.
fn run(folder: &Path, config: &str, state: &Path) -> Output {
    std::fs::write(folder.join("hermes.toml"), config).unwrap();
    let mut command = Command::new(program::hermes());
    command
        .args(["run", "-c", "hermes.toml"])
        .current_dir(folder);
    command
        .env_clear()
        .env("HOME", folder)
        .env("STATE_DIRECTORY", state);
    command.output().unwrap()
}

fn config(inbound: &str) -> String {
    format!(
        "[application]\nname = \"fraud\"\nupstream = \"http://127.0.0.1:1\"\n\
         [[application.contract]]\nfile = \"fraud.json\"\nmethod = \"POST\"\npath = \"{RISK}\"\n\
         [inbound]\nlisten = \"{inbound}\"\n[outbound]\nlisten = \"127.0.0.1:0\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[consul]\naddress = \"http://127.0.0.1:1\"\n"
    )
}

fn folder() -> TempDir {
    let folder = TempDir::with_prefix("hermes-start-").unwrap();
    std::fs::write(
        folder.path().join("fraud.json"),
        fraud_detection().to_string(),
    )
    .unwrap();
    folder
}

/// Asserts that it ended with 2 and one clear line that holds each part.
fn refuses(output: &Output, parts: &[&str]) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    let line = told.lines().last().unwrap_or_default();
    for part in parts {
        assert!(line.contains(part), "no {part:?} in {line:?}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn a_contract_given_twice_ends_the_start_with_its_id() {
    let folder = folder();
    let twice = format!(
        "{}[[application.contract]]\nfile = \"fraud.json\"\nmethod = \"POST\"\npath = \"/z\"\n",
        config("127.0.0.1:0")
    );
    let output = run(folder.path(), &twice, &folder.path().join("state"));
    refuses(&output, &[FRAUD, "served already"]);
}

#[tokio::test]
async fn another_process_under_the_same_id_is_one_alarm_until_it_goes() {
    let (consul, application) = tokio::join!(Consul::start(), Application::start());
    let start = async || {
        Sidecar::named("fraud")
            .application(&application.url())
            .contract(fraud_detection(), "POST", RISK)
            .set("application.instance", "one")
            .consul(&consul.address())
            .start()
            .await
    };
    let first = start().await;
    let mut second = start().await;
    let alarms = || {
        first
            .log()
            .matches("another process has registered")
            .count()
    };
    wait_until(WITHIN, "alarm", async || alarms() > 0).await;
    let asked = async || first.metric("consul_requests_total", &[]).await;
    let before = asked().await;
    let watched = Instant::now();
    second.terminate().await;
    // With the other gone the first takes its place again.
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    assert_eq!(alarms(), 1);
    let rate = (asked().await - before) / watched.elapsed().as_secs_f64();
    assert!(rate < 20.0, "{rate} requests to Consul a second");
}

#[test]
fn a_taken_port_ends_the_start_with_its_key_and_address() {
    let (folder, taken) = (folder(), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = taken.local_addr().unwrap().to_string();
    let output = run(
        folder.path(),
        &config(&address),
        &folder.path().join("state"),
    );
    refuses(&output, &["inbound.listen", &address, "in use"]);
}

#[test]
fn a_state_directory_that_cannot_be_written_ends_the_start() {
    let folder = folder();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let below = folder.path().join("file/state");
    let output = run(folder.path(), &config("127.0.0.1:0"), &below);
    refuses(&output, &["spool.path", below.to_str().unwrap()]);
}

#[test]
fn a_spool_of_a_newer_release_ends_the_start_and_is_left_alone() {
    let folder = folder();
    let state = folder.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let spool = state.join("spool.db");
    written_by_a_newer_release(folder.path(), &state);
    let before = std::fs::read(&spool).unwrap();
    let output = run(folder.path(), &config("127.0.0.1:0"), &state);
    refuses(
        &output,
        &[
            "spool.path",
            spool.to_str().unwrap(),
            "newer release",
            "999",
        ],
    );
    assert_eq!(std::fs::read(&spool).unwrap(), before);
}

/// Makes a spool of ours and raises its version.
#[expect(
    clippy::disallowed_methods,
    reason = "it plays the other release, whose file ours must not touch"
)]
fn written_by_a_newer_release(folder: &Path, state: &Path) {
    // A start that fails behind the spool has created it.
    let broken = format!(
        "{}[spool]\nstate_path = \"{}\"\n",
        config("127.0.0.1:0"),
        "fraud.json/x"
    );
    refuses(&run(folder, &broken, state), &["spool.state_path"]);
    let spool = rusqlite::Connection::open(state.join("spool.db")).unwrap();
    spool.pragma_update(None, "user_version", 999).unwrap();
}

#[tokio::test]
async fn a_spool_that_is_no_database_is_moved_aside_and_the_sidecar_runs() {
    let mut pair = Pair::start().await;
    let spool = pair.callee.state_directory().join("spool.db");
    pair.callee.kill9();
    for leftover in ["spool.db-wal", "spool.db-shm"] {
        std::fs::remove_file(pair.callee.state_directory().join(leftover)).ok();
    }
    std::fs::write(&spool, "this is no database at all ".repeat(400)).unwrap();
    pair.callee.start_again();
    pair.callee.ready(WITHIN).await;
    pair.invoke("t-after").await;
    pair.collector
        .wait_task("t-after", "completed", WITHIN)
        .await;
    assert!(
        pair.callee.log().contains("no sound database"),
        "{}",
        pair.callee.log()
    );
    let kept = std::fs::read_dir(pair.callee.state_directory())
        .unwrap()
        .any(|entry| {
            let path = entry.unwrap().path();
            path != spool
                && std::fs::read(path).is_ok_and(|b| b.starts_with(b"this is no database"))
        });
    assert!(kept, "the damaged file is gone");
}

/// Reads a readiness page: is everything well, and what does one condition say?
async fn readiness(sidecar: &Sidecar, page: &str, check: &str) -> (u16, Value) {
    let reply = Reply::to(client().get(format!("{}{page}", sidecar.admin_url()))).await;
    let checks = reply.json();
    let mut all = checks.as_array().unwrap().iter();
    let found = all.find(|found| found["check"] == check);
    (
        reply.status,
        found
            .unwrap_or_else(|| panic!("no {check} in {checks}"))
            .clone(),
    )
}

#[tokio::test]
async fn a_started_sidecar_is_in_consul_once_with_all_that_callers_need() {
    let pair = Pair::with(|callee| {
        let tags: toml::Value = vec!["env-test"].into();
        callee
            .set("application.team", "finance")
            .set("application.region", "cn-east-1")
            .set("application.tags", tags)
            .set("application.weight", 40)
            .set("application.instance", "host-a")
    })
    .await;
    let instances = pair.consul.wait_passing(FRAUD, 1, WITHIN).await;
    let service = &instances[0]["Service"];
    let id = format!("{FRAUD}-host-a");
    assert_eq!(service["ID"], id);
    let address = service["Address"].as_str().unwrap();
    assert_eq!(
        format!("http://{address}:{}", service["Port"]),
        pair.callee.inbound_url()
    );
    assert_eq!(service["Weights"]["Passing"], 40);
    let tags = service["Tags"].as_array().unwrap();
    for tag in ["hermes", "team-finance", "env-test"] {
        assert!(tags.contains(&tag.into()), "{tag}: {service}");
    }
    let meta = &service["Meta"];
    for (key, value) in [
        ("hermes_version", "1.0.0"),
        ("hermes_route", "POST /api/v1/risk"),
        ("hermes_app", "fraud"),
        ("hermes_region", "cn-east-1"),
        ("hermes_team", "finance"),
        ("hermes_max_concurrent", "100"),
        ("hermes_proto", "http"),
    ] {
        assert_eq!(meta[key], value, "{key}");
    }
    let digest = meta["hermes_digest"].as_str().unwrap();
    assert!(
        digest.starts_with("sha-256:") && digest.len() == 72,
        "{digest}"
    );
    assert!(!meta["hermes_boot"].as_str().unwrap().is_empty());
    let checks = instances[0]["Checks"].as_array().unwrap();
    assert!(
        checks
            .iter()
            .any(|check| check["CheckID"] == format!("{id}:ttl")),
        "{checks:?}"
    );

    let raw = async |key: &str| {
        let url = format!("{}/v1/kv/hermes/{key}?raw", pair.consul.address());
        Reply::to(client().get(url)).await
    };
    let stored = raw(&format!("contracts/{FRAUD}/1.0.0")).await.json();
    assert_eq!(
        (&stored["contract"], &stored["digest"]),
        (&fraud_detection(), &digest.into())
    );
    assert!(
        stored["published_at"].is_string() && stored["published_by"].is_string(),
        "{stored}"
    );
    wait_until(WITHIN, "version and index", async || {
        raw(&format!("contracts/{FRAUD}/version")).await.body == "1.0.0"
            && raw(&format!("index/{FRAUD}")).await.status == 200
    })
    .await;
    let index = raw(&format!("index/{FRAUD}")).await.json();
    assert_eq!(
        (&index["version"], &index["digest"]),
        (&json!("1.0.0"), &digest.into())
    );
}

#[tokio::test]
async fn an_application_that_is_not_there_yet_gets_no_call() {
    let (consul, application) = (Consul::start().await, Application::start().await);
    application.answer(RISK, Answer::json(&fraud_output()));
    let link = Link::to(&application.url().replace("http://", "")).await;
    link.cut();
    let mut sidecar = Sidecar::named("fraud")
        .application(&format!("http://{}", link.address()))
        .contract(fraud_detection(), "POST", RISK)
        .consul(&consul.address())
        .start_unready()
        .await;
    let check = wait_for(WITHIN, "reason", async || {
        let (status, check) = readiness(&sidecar, "/ready", "upstream").await;
        (status == 503 && check["ok"] == false).then_some(check)
    })
    .await;
    assert!(!check["detail"].as_str().unwrap().is_empty(), "{check}");
    let health = Reply::to(client().get(sidecar.inbound_url() + "/hermes/health")).await;
    assert_eq!(health.status, 503);
    let said = health.json()["status"].as_str().unwrap().to_owned();
    assert!(
        ["starting", "admitting", "unhealthy"].contains(&said.as_str()),
        "{said}"
    );
    let call = client().post(sidecar.inbound_url() + RISK);
    let call = call.header("content-type", "application/json");
    let reply = Reply::to(call.body(fraud_input().to_string())).await;
    reply.problem(503, "not-ready");
    assert_eq!(reply.header("hermes-executed"), "?0");
    assert!(!reply.header("retry-after").is_empty(), "{reply:?}");
    assert!(consul.passing(FRAUD).await.is_empty());

    link.restore();
    sidecar.ready(WITHIN).await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    assert_eq!(application.calls(RISK), 0);
}

#[tokio::test]
async fn without_consul_a_sidecar_says_why_answers_in_time_and_registers_later() {
    let mut consul = Consul::start().await;
    let application = Application::start().await;
    application.answer(RISK, Answer::json(&fraud_output()));
    consul.kill9();
    let mut sidecar = Sidecar::named("fraud")
        .application(&application.url())
        .contract(fraud_detection(), "POST", RISK)
        .consul(&consul.address())
        .start_unready()
        .await;
    let (status, check) = wait_for(WITHIN, "reason", async || {
        let (status, check) = readiness(&sidecar, "/ready", "consul").await;
        let told = check["detail"]
            .as_str()
            .is_some_and(|detail| detail.contains(FRAUD));
        told.then_some((status, check))
    })
    .await;
    assert_eq!((status, &check["ok"]), (503, &json!(false)), "{check}");
    let (status, check) = readiness(&sidecar, "/ready/outbound", "outbound").await;
    assert_eq!((status, &check["ok"]), (503, &json!(false)));
    assert!(
        check["detail"].as_str().unwrap().contains("Consul"),
        "{check}"
    );

    let asked = Instant::now();
    let body = wrapped(FRAUD, &fraud_input(), json!({}));
    let call = client().post(sidecar.outbound_url() + "/hermes/invoke");
    let call = call.header("content-type", "application/json").body(body);
    let reply = Reply::to(call).await;
    reply.problem(503, "no-instance");
    assert_eq!(reply.header("hermes-executed"), "?0");
    assert!(asked.elapsed() < FIRST_USE, "{:?}", asked.elapsed());

    // Who finds it all the same is served.
    let direct = client().post(sidecar.inbound_url() + RISK);
    let direct = direct.header("content-type", "application/json");
    let reply = Reply::to(direct.body(fraud_input().to_string())).await;
    assert_eq!(reply.status, 200, "{reply:?}");

    consul.restart_empty().await;
    consul.wait_passing(FRAUD, 1, Duration::from_secs(15)).await;
    sidecar.ready(WITHIN).await;
    assert_eq!(
        readiness(&sidecar, "/ready/outbound", "outbound").await.0,
        200
    );
    assert!(
        consul
            .get(&format!("/v1/kv/hermes/contracts/{FRAUD}/1.0.0"))
            .await
            .is_some()
    );
}

#[tokio::test]
async fn a_restart_with_consul_there_asks_it_before_it_calls_whom_it_remembers() {
    let mut road = Road::start().await;
    let input = fraud_input();
    let call = async |caller: &Sidecar| {
        let url = format!("{}/agents/{AGENT}{ROUTE}", caller.outbound_url());
        Reply::to(client().post(url).json(&input)).await
    };
    assert_eq!(call(&road.caller).await.status, 200);
    let state = road.caller.state_directory().join("state.db");
    wait_until(WITHIN, "stored instances", async || holds(&state, AGENT)).await;
    road.caller.kill9();
    // The instance that is remembered goes, another one comes elsewhere.
    assert!(road.callee.terminate().await.success());
    let _moved = callee(&road.application)
        .consul(&road.consul.address())
        .start()
        .await;
    road.consul.wait_passing(AGENT, 1, WITHIN).await;
    road.caller.start_again();
    let url = format!("{}/live", road.caller.admin_url());
    wait_until(WITHIN, "restarted caller", async || {
        succeeds(&client(), &url).await
    })
    .await;
    let reply = call(&road.caller).await;
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[tokio::test]
async fn a_restart_without_consul_serves_what_was_known() {
    let pair = Pair::start().await;
    let link = Link::to(&pair.consul.address().replace("http://", "")).await;
    let mut caller = Sidecar::named("till")
        .consul(&format!("http://{}", link.address()))
        .collector(&pair.collector.url())
        .start()
        .await;
    let call = async |caller: &Sidecar, task: &str| {
        let body = wrapped(FRAUD, &fraud_input(), json!({"task_id": task}));
        let request = client().post(caller.outbound_url() + "/hermes/invoke");
        Reply::to(
            request
                .header("content-type", "application/json")
                .body(body),
        )
        .await
    };
    assert_eq!(call(&caller, "t-known").await.status, 200);
    // A kill leaves what was stored; that is behind the calls, so wait until it is there.
    let state = caller.state_directory().join("state.db");
    wait_until(WITHIN, "stored instances", async || holds(&state, FRAUD)).await;
    link.cut();
    caller.start_again();
    let url = format!("{}/ready/outbound", caller.admin_url());
    wait_until(WITHIN, "readiness of outbound", async || {
        client()
            .get(&url)
            .send()
            .await
            .is_ok_and(|reply| reply.status().is_success())
    })
    .await;
    let asked = Instant::now();
    let reply = call(&caller, "t-restarted").await;
    assert_eq!(
        (reply.status, &reply.body[..]),
        (200, fraud_output().to_string().as_bytes()),
        "{reply:?}"
    );
    assert!(asked.elapsed() < FIRST_USE, "{:?}", asked.elapsed());
    let shown = pair
        .collector
        .wait_task("t-restarted", "completed", WITHIN)
        .await;
    assert_eq!(shown["steps"][0]["agent"], FRAUD);
}

/// Says whether a database file, or the log beside it, holds `text`.
fn holds(path: &Path, text: &str) -> bool {
    let log = path.with_extension("db-wal");
    [path, &log].iter().any(|file| {
        let bytes = std::fs::read(file).unwrap_or_default();
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    })
}
