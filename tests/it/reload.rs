//! Settings and contracts change under calls: none fails, no connection closes.

use crate::support::application::{Answer, Application};
use crate::support::client::client;
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::load::Load;
use crate::support::pair::{FRAUD, RISK, wrapped};
use crate::support::port::free_port;
use crate::support::process::Process;
use crate::support::program;
use crate::support::reply::Reply;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::streamer::Streamer;
use crate::support::wait::wait_until;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use toml::{Table, Value as Setting};

const WITHIN: Duration = Duration::from_secs(30);
const ORDER: &str = "order-create-v2.3";
const ORDERS: &str = "/orders";

/// The fraud contract in a version, with time enough for a busy machine.
fn fraud(version: &str) -> Value {
    let mut contract = fraud_detection();
    contract["version"] = json!(version);
    contract["constraints"]["timeout_ms"] = json!(10_000);
    contract
}

fn order() -> Value {
    let mut contract = fraud("2.3.0");
    contract["id"] = json!(ORDER);
    contract
}

/// An application that answers both contracts.
async fn application() -> Application {
    let application = Application::start().await;
    for path in [RISK, ORDERS] {
        application.answer(path, Answer::json(&fraud_output()));
    }
    application.answer("/open/page", Answer::bytes(200, "text/plain", "open"));
    application
}

fn callee(application: &Application, consul: &Consul) -> Setup {
    Sidecar::named("fraud")
        .consul(&consul.address())
        .application(&application.url())
        .set("application.health_interval", "100ms")
        .set("limits.drain_delay", "500ms")
        .contract(fraud("1.0.0"), "POST", RISK)
}

fn ask(sidecar: &Sidecar, command: &str) -> Output {
    let mut hermes = Command::new(program::hermes());
    hermes.args([command, "--admin", &sidecar.admin_url()]);
    hermes.output().unwrap()
}

/// Reloads and returns the lines of what is in force now and what waits.
fn reload(sidecar: &Sidecar) -> Vec<String> {
    let output = ask(sidecar, "reload");
    assert!(output.status.success(), "{output:?}\n{}", sidecar.log());
    let told = String::from_utf8(output.stdout).unwrap();
    told.lines().map(str::to_owned).collect()
}

/// Writes a contract into the folder of a sidecar; returns its entry of the configuration.
fn entry(sidecar: &Sidecar, contract: &Value, path: &str) -> Setting {
    let name = format!("{}.json", contract["id"].as_str().unwrap());
    let file = sidecar.config_file().with_file_name(name);
    std::fs::write(&file, contract.to_string()).unwrap();
    let mut entry = Table::new();
    entry.insert("file".into(), file.to_str().unwrap().into());
    entry.insert("path".into(), path.into());
    entry.insert("method".into(), "POST".into());
    Setting::Table(entry)
}

async fn get(url: String) -> Reply {
    Reply::to(client().get(url)).await
}

async fn in_force(sidecar: &Sidecar) -> Value {
    get(sidecar.admin_url() + "/config").await.json()
}

async fn post(url: String, body: String) -> Reply {
    let request = client().post(url).body(body);
    Reply::to(request.header("content-type", "application/json")).await
}

/// Waits until Consul shows an instance of the fraud contract whose meta has this.
async fn shown(consul: &Consul, key: &str, value: &str) {
    wait_until(WITHIN, value, async || {
        let passing = consul.passing(FRAUD).await;
        let meta = passing.first().map(|one| &one["Service"]["Meta"]);
        meta.is_some_and(|meta| meta[key] == value)
    })
    .await;
}

/// Looks at Consul again and again, and counts how often no instance was passing.
struct Watching {
    looked: Arc<AtomicUsize>,
    missed: Arc<AtomicUsize>,
    _worker: JoinSet<()>,
}

impl Watching {
    fn start(consul: &Consul) -> Self {
        let (looked, missed) = (Arc::default(), Arc::default());
        let mut worker = JoinSet::new();
        let url = format!("{}/v1/health/service/{FRAUD}?passing", consul.address());
        let counts: (Arc<AtomicUsize>, Arc<AtomicUsize>) =
            (Arc::clone(&looked), Arc::clone(&missed));
        worker.spawn(async move {
            let client = client();
            loop {
                let reply = client.get(&url).send().await.unwrap();
                let passing: Value = reply.json().await.unwrap();
                counts.0.fetch_add(1, Ordering::SeqCst);
                if passing.as_array().unwrap().is_empty() {
                    counts.1.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        Self {
            looked,
            missed,
            _worker: worker,
        }
    }

    fn missed_none(&self) {
        assert!(self.looked.load(Ordering::SeqCst) > 20);
        assert_eq!(self.missed.load(Ordering::SeqCst), 0, "no passing instance");
    }
}

/// One connection, whatever happens.
struct Kept {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    _connection: JoinSet<()>,
}

impl Kept {
    async fn to(url: &str) -> Self {
        let host = url.strip_prefix("http://").unwrap().to_owned();
        let stream = TcpStream::connect(&host).await.unwrap();
        let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        let mut worker = JoinSet::new();
        worker.spawn(async move { drop(connection.await) });
        Self {
            sender,
            host,
            _connection: worker,
        }
    }

    /// Makes a call, which must succeed on this very connection.
    async fn call(&mut self, path: &str, body: String) {
        self.sender.ready().await.expect("the connection is open");
        let request = Request::post(path)
            .header("host", &self.host)
            .header("content-type", "application/json")
            .body(Full::from(body))
            .unwrap();
        let reply = self.sender.send_request(request).await.unwrap();
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.headers().get("connection"), None);
        reply.into_body().collect().await.unwrap();
    }
}

#[tokio::test]
async fn no_call_fails_and_no_connection_closes_while_everything_changes() {
    let (consul, application) = tokio::join!(Consul::start(), application());
    let mut fraud_sidecar = callee(&application, &consul).start().await;
    let mut caller = Sidecar::named("shop")
        .consul(&consul.address())
        .start()
        .await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    let watching = Watching::start(&consul);
    let load = Load::start(50, &[caller.outbound_url()], FRAUD, &fraud_input());
    let input = fraud_input().to_string();
    let invoke = wrapped(FRAUD, &fraud_input(), json!({}));
    let mut inbound = Kept::to(&fraud_sidecar.inbound_url()).await;
    let mut outbound = Kept::to(&caller.outbound_url()).await;
    let callee = &mut fraud_sidecar;
    load.more(25).await;
    inbound.call(RISK, input.clone()).await;
    outbound.call("/hermes/invoke", invoke.clone()).await;

    // A patch version in the same file follows without a gap.
    let mut patched = fraud("1.0.1");
    patched["constraints"]["max_concurrent"] = json!(110);
    let first = entry(callee, &patched, RISK);
    assert_eq!(
        reload(callee),
        ["application.contract[0].file  in force now"]
    );
    shown(&consul, "hermes_version", "1.0.1").await;
    load.more(25).await;
    let handed_on = get(format!("{}/hermes/handshake", callee.inbound_url())).await;
    assert_eq!(handed_on.json()["version"], "1.0.1");

    // Limits, on both sides of the same kept connections.
    let long = json!({"user_id": "u".repeat(5000), "ip_address": "203.0.113.7", "amount_cny": 1});
    let risk = format!("{}{RISK}", callee.inbound_url());
    assert_eq!(post(risk.clone(), long.to_string()).await.status, 200);
    callee.reconfigure("limits.max_body_bytes", 4000);
    callee.reconfigure("limits.max_connections", 200);
    caller.reconfigure("limits.idle_timeout", "50s");
    assert_eq!(
        reload(callee),
        [
            "limits.max_body_bytes  in force now",
            "limits.max_connections  in force now"
        ]
    );
    assert_eq!(reload(&caller), ["limits.idle_timeout  in force now"]);
    post(risk, long.to_string()).await.problem(413, "too-large");
    load.more(25).await;

    // What Consul shows of us.
    callee.reconfigure("application.weight", 50);
    callee.reconfigure("application.region", "cn-east-1");
    reload(callee);
    shown(&consul, "hermes_region", "cn-east-1").await;
    let registered = consul.passing(FRAUD).await;
    assert_eq!(registered[0]["Service"]["Weights"]["Passing"], 50);

    // Another contract comes; the first one does not notice.
    let second = entry(callee, &order(), ORDERS);
    callee.reconfigure(
        "application.contract",
        Setting::Array(vec![first.clone(), second]),
    );
    assert_eq!(reload(callee), ["application.contract[1]  in force now"]);
    consul.wait_passing(ORDER, 1, WITHIN).await;
    let ordered = wrapped(ORDER, &fraud_input(), json!({}));
    let call = format!("{}/hermes/invoke", caller.outbound_url());
    assert_eq!(post(call.clone(), ordered.clone()).await.status, 200);

    // A prefix is passed through that was not.
    let page = format!("{}/open/page", callee.inbound_url());
    get(page.clone()).await.problem(404, "not-found");
    callee.reconfigure("inbound.passthrough", vec!["/open/"]);
    assert_eq!(reload(callee), ["inbound.passthrough  in force now"]);
    assert_eq!(get(page).await.status, 200);

    // And the other contract goes.
    callee.reconfigure("application.contract", Setting::Array(vec![first]));
    assert_eq!(reload(callee), ["application.contract[1]  in force now"]);
    consul.wait_passing(ORDER, 0, WITHIN).await;
    let direct = format!("{}{ORDERS}", callee.inbound_url());
    wait_until(WITHIN, "the other contract's end", async || {
        post(direct.clone(), fraud_input().to_string()).await.status == 404
    })
    .await;
    load.more(25).await;

    inbound.call(RISK, input).await;
    outbound.call("/hermes/invoke", invoke).await;
    watching.missed_none();
    let record = load.stop().await;
    assert!(record.0.len() > 100);
    assert!(
        record.failed().is_empty(),
        "{:?}\n{}",
        record.failed(),
        callee.log()
    );
    let ready = get(format!("{}/ready", callee.admin_url())).await;
    assert_eq!(ready.status, 200, "{ready:?}");
    // Repairs are counted; this was none.
    let repairs = callee.metric("consul_reregistrations_total", &[]).await;
    assert_eq!(repairs, 0.0, "{}", callee.log());
}

/// Consul's view of one registration arrives while the next is made already.
#[tokio::test]
async fn changes_in_quick_succession_are_no_repairs() {
    let (consul, application) = tokio::join!(Consul::start(), application());
    let mut sidecar = callee(&application, &consul).start().await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    let began = Instant::now();
    // Longer than a view is held back before it is judged.
    for region in 0.. {
        if began.elapsed() > Duration::from_secs(4) {
            break;
        }
        let region = format!("cn-{region}");
        sidecar.reconfigure("application.region", region.as_str());
        assert_eq!(reload(&sidecar), ["application.region  in force now"]);
        shown(&consul, "hermes_region", &region).await;
    }
    let log = sidecar.log();
    assert!(!log.contains("the registration is gone"), "{log}");
    assert_eq!(
        sidecar.metric("consul_reregistrations_total", &[]).await,
        0.0
    );
}

#[tokio::test]
async fn a_patch_by_handshake_leaves_no_gap() {
    let (consul, application) = tokio::join!(Consul::start(), application());
    application.answer("/hermes/handshake", Answer::json(&fraud("1.0.0")));
    let _sidecar = Sidecar::named("fraud")
        .consul(&consul.address())
        .application(&application.url())
        .set("application.health_interval", "100ms")
        .handshake()
        .route("path", RISK)
        .start()
        .await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    let watching = Watching::start(&consul);
    for version in ["1.0.1", "1.0.2", "1.0.3"] {
        application.answer("/hermes/handshake", Answer::json(&fraud(version)));
        shown(&consul, "hermes_version", version).await;
    }
    watching.missed_none();
}

#[tokio::test]
async fn a_version_that_is_not_admitted_leaves_the_one_before_in_service() {
    let (consul, application) = tokio::join!(Consul::start(), application());
    let sidecar = callee(&application, &consul).start().await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    let watching = Watching::start(&consul);
    let mut patched = fraud("1.0.1");
    patched["probe"] = json!({"input": fraud_input(), "expect": {"risk_score": 13}, "calls": 1});
    entry(&sidecar, &patched, RISK);
    reload(&sidecar);
    let next = async || {
        let contracts = get(format!("{}/contracts", sidecar.admin_url()))
            .await
            .json();
        contracts[0]["next"].clone()
    };
    wait_until(WITHIN, "a failed trial", async || {
        let next = next().await;
        let reason = next["reason"].as_str().unwrap_or_default();
        next["version"] == "1.0.1" && reason.contains("trial calls failed")
    })
    .await;
    shown(&consul, "hermes_version", "1.0.0").await;
    let risk = format!("{}{RISK}", sidecar.inbound_url());
    let reply = post(risk, fraud_input().to_string()).await;
    assert_eq!((reply.status, reply.json()), (200, fraud_output()));

    // The same file again changes nothing; what the application mends does.
    assert_eq!(reload(&sidecar), Vec::<String>::new());
    let mut mended = fraud_output();
    mended["risk_score"] = json!(13);
    application.answer(RISK, Answer::json(&mended));
    shown(&consul, "hermes_version", "1.0.1").await;
    wait_until(WITHIN, "nobody to follow", async || next().await.is_null()).await;
    watching.missed_none();
}

#[tokio::test]
async fn a_faulty_file_changes_nothing_and_every_fault_is_named() {
    let (consul, application) = tokio::join!(Consul::start(), application());
    let mut sidecar = callee(&application, &consul).start().await;
    let before = in_force(&sidecar).await;
    let refused = |sidecar: &Sidecar| {
        let output = ask(sidecar, "reload");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };

    sidecar.reconfigure("limits.max_body_bytes", 4000);
    sidecar.reconfigure("limits.max_bodies", 1);
    sidecar.reconfigure("application.weight", "heavy");
    let config = std::fs::read_to_string(sidecar.config_file()).unwrap();
    let told = refused(&sidecar);
    for key in ["limits.max_bodies", "application.weight"] {
        let name = key.rsplit('.').next().unwrap();
        let at = config.lines().position(|line| line.starts_with(name));
        let line = format!("hermes.toml:{}: {key}: ", at.unwrap() + 1);
        assert!(told.contains(&line), "no {line:?} in {told}");
        assert!(sidecar.log().contains(&line), "{}", sidecar.log());
    }
    assert_eq!(in_force(&sidecar).await, before);

    // Nor does a faulty contract beside good settings.
    sidecar.forget("limits.max_bodies");
    sidecar.forget("application.weight");
    let mut faulty = fraud("1.0.1");
    faulty["input_schema"]["properties"]["amount_cny"]["type"] = json!("int");
    faulty["output_schema"]["properties"]["risk_level"]["type"] = json!("sting");
    entry(&sidecar, &faulty, RISK);
    let told = refused(&sidecar);
    for fault in [
        "application.contract[0].file",
        "amount_cny/type",
        "risk_level/type",
    ] {
        assert!(told.contains(fault), "no {fault} in {told}");
    }
    // Nor other promises under the version that is served.
    let mut other = fraud("1.0.0");
    other["constraints"]["timeout_ms"] = json!(9_000);
    entry(&sidecar, &other, RISK);
    let told = refused(&sidecar);
    assert!(
        told.contains("give a changed contract another version"),
        "{told}"
    );
    assert_eq!(in_force(&sidecar).await, before);
    shown(&consul, "hermes_version", "1.0.0").await;
    let reply = client().post(sidecar.admin_url() + "/reload");
    let reply = Reply::to(reply.header("hermes-admin", "1")).await;
    let problem = reply.problem(400, "bad-settings");
    assert_eq!(
        problem["problems"].as_array().unwrap().len(),
        1,
        "{problem}"
    );

    // A signal does what the command does.
    entry(&sidecar, &fraud("1.0.1"), RISK);
    sidecar.process().signal(Signal::HUP);
    shown(&consul, "hermes_version", "1.0.1").await;
    let after = in_force(&sidecar).await;
    assert_eq!(after["config"]["limits"]["max_body_bytes"], 4000);

    // What leaves is not reconfigured any more.
    assert!(ask(&sidecar, "drain").status.success());
    let output = ask(&sidecar, "reload");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("the process is leaving"), "{told}");
}

#[tokio::test]
async fn other_settings_of_trust_judge_what_is_served_and_called() {
    let (consul, application) = tokio::join!(Consul::start(), application());
    let mut callee = callee(&application, &consul).start().await;
    let mut caller = Sidecar::named("shop")
        .consul(&consul.address())
        .start()
        .await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    let call = || {
        let invoke = format!("{}/hermes/invoke", caller.outbound_url());
        post(invoke, wrapped(FRAUD, &fraud_input(), json!({})))
    };
    assert_eq!(call().await.status, 200);

    let keys = Command::new(program::hermes())
        .args(["keygen", "somebody"])
        .current_dir(callee.state_directory())
        .output();
    assert!(keys.unwrap().status.success());
    let file = callee.state_directory().join("somebody.pub");
    let mut key = Table::new();
    key.insert("file".into(), file.to_str().unwrap().into());
    key.insert("ids".into(), vec!["fraud-*"].into());
    let pinned = Setting::Table(Table::from_iter([
        ("mode".to_owned(), "pinned".into()),
        ("key".to_owned(), Setting::Array(vec![Setting::Table(key)])),
    ]));
    let tofu = Setting::Table(Table::from_iter([("mode".to_owned(), "tofu".into())]));
    caller.reconfigure("trust", pinned.clone());
    assert_eq!(
        reload(&caller),
        ["trust.key[0]  in force now", "trust.mode  in force now"]
    );
    let invoke = format!("{}/hermes/invoke", caller.outbound_url());
    wait_until(WITHIN, "an untrusted contract", async || {
        let body = wrapped(FRAUD, &fraud_input(), json!({}));
        post(invoke.clone(), body).await.status == 503
    })
    .await;
    caller.reconfigure("trust", tofu.clone());
    reload(&caller);
    wait_until(WITHIN, "a trusted contract", async || {
        let body = wrapped(FRAUD, &fraud_input(), json!({}));
        post(invoke.clone(), body).await.status == 200
    })
    .await;

    callee.reconfigure("trust", pinned);
    reload(&callee);
    consul.wait_passing(FRAUD, 0, WITHIN).await;
    callee.reconfigure("trust", tofu);
    reload(&callee);
    consul.wait_passing(FRAUD, 1, WITHIN).await;
}

#[tokio::test]
async fn a_stream_under_way_survives_a_reload() {
    let (consul, streamer) = tokio::join!(Consul::start(), Streamer::start());
    let mut sidecar = Sidecar::named("fraud")
        .consul(&consul.address())
        .application(&streamer.url())
        .contract(fraud("1.0.0"), "POST", RISK)
        .set("inbound.passthrough", vec!["/events"])
        .start()
        .await;
    let url = format!("{}/events?count=30&every_ms=50", sidecar.inbound_url());
    let mut reply = client().get(url).send().await.unwrap();
    let mut text = reply.chunk().await.unwrap().unwrap().to_vec();
    sidecar.reconfigure("inbound.passthrough", vec!["/other"]);
    sidecar.reconfigure("limits.stream_idle_timeout", "20s");
    entry(&sidecar, &fraud("1.0.1"), RISK);
    reload(&sidecar);
    shown(&consul, "hermes_version", "1.0.1").await;
    while let Some(more) = reply.chunk().await.unwrap() {
        text.extend_from_slice(&more);
    }
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text.matches("data: ").count(), 30, "{text}");
    let later = get(format!(
        "{}/events?count=1&every_ms=1",
        sidecar.inbound_url()
    ));
    later.await.problem(404, "not-found");
}

#[tokio::test]
async fn a_collector_takes_another_token_and_retention_at_a_sighup() {
    let folder = tempfile::TempDir::with_prefix("hermes-collector-").unwrap();
    let path = |name: &str| folder.path().join(name);
    let port = free_port();
    let write = |retention: &str| {
        let text = format!(
            "[collector]\nlisten = \"127.0.0.1:{port}\"\nconsul = false\n\
             token_file = \"token\"\nretention = \"{retention}\"\n\
             [log]\nformat = \"json\"\n"
        );
        std::fs::write(path("hermes.toml"), text).unwrap();
    };
    write("1d");
    std::fs::write(path("token"), "first").unwrap();
    let mut command = Command::new(program::hermes());
    command.args(["collector", "-c", "hermes.toml"]);
    command.env("STATE_DIRECTORY", folder.path());
    command.current_dir(folder.path());
    let mut process = Process::spawn("collector", command, &path("log"));
    let url = format!("http://127.0.0.1:{port}/tasks/none");
    let asked = async |token: &str| {
        let asked = client().get(&url).bearer_auth(token).send().await;
        match asked {
            Ok(reply) => (reply.status().as_u16(), reply.text().await.unwrap()),
            Err(_not_yet) => (0, String::new()),
        }
    };
    wait_until(WITHIN, "collector", async || asked("first").await.0 == 404).await;
    assert_eq!(asked("second").await.0, 401);

    write("2d");
    std::fs::write(path("token"), "second").unwrap();
    process.signal(Signal::HUP);
    wait_until(WITHIN, "the other token", async || {
        asked("second").await.0 == 404
    })
    .await;
    assert_eq!(asked("first").await.0, 401);
    let told = asked("second").await.1;
    assert!(told.contains("2days"), "{told}");
    let log = process.log();
    assert!(
        log.contains("collector.retention collector.token_file"),
        "{log}"
    );

    // A token that is amid a rotation, or has gone, is no reason to let everybody in.
    let log = || std::fs::read_to_string(path("log")).unwrap();
    let refusals = || log().matches("a reload was refused").count();
    std::fs::write(path("token"), "\n").unwrap();
    process.signal(Signal::HUP);
    wait_until(WITHIN, "a refusal", async || refusals() == 1).await;
    assert!(log().contains("write the token into it"), "{}", log());
    std::fs::remove_file(path("token")).unwrap();
    process.signal(Signal::HUP);
    wait_until(WITHIN, "another refusal", async || refusals() == 2).await;
    assert_eq!(asked("").await.0, 401);
    assert_eq!(asked("second").await.0, 404);
}
