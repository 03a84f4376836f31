//! An unchanged client reaches agents by their names: through the proxy setting it has, or a Host.

use crate::support::application::{Answer, Application};
use crate::support::client::{client, exchange};
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::pair::{FRAUD, Pair, RISK, wrapped};
use crate::support::reply::Reply;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::streamer::Streamer;
use crate::support::wait::wait_until;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::process::Output;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;

const WITHIN: Duration = Duration::from_secs(20);
const QUIET: Duration = Duration::from_secs(2);
/// A first use waits two seconds for Consul, never more than this in all.
const FIRST_USE: Duration = Duration::from_millis(2900);

/// Runs curl as an application does that knows nothing but the usual proxy variables.
async fn curl(sidecar: &Sidecar, arguments: &[&str]) -> Output {
    let proxy = sidecar.outbound_url();
    let mut command = Command::new("curl");
    command
        .args(["-sS", "--max-time", "20"])
        .args(arguments)
        .env("http_proxy", &proxy)
        .env("https_proxy", &proxy)
        .env_remove("no_proxy")
        .env_remove("NO_PROXY")
        .kill_on_drop(true);
    command.output().await.unwrap()
}

/// The same, for one reply with its head; what the proxy itself says first is left out.
async fn asked(sidecar: &Sidecar, url: &str, arguments: &[&str]) -> Reply {
    let mut all = vec!["-i", url];
    all.extend(arguments);
    let output = curl(sidecar, &all).await;
    assert!(output.status.success(), "{url}: {output:?}");
    Reply::read(&output.stdout)
}

/// Posts `input` as JSON.
async fn posted(sidecar: &Sidecar, url: &str, input: &Value, more: &[&str]) -> Reply {
    let body = input.to_string();
    let mut all = vec!["-H", "Content-Type: application/json", "-d", &body];
    all.extend(more);
    asked(sidecar, url, &all).await
}

/// Sends a request as it is written here to the outbound listener.
async fn raw(sidecar: &Sidecar, request: &str) -> Reply {
    let address = sidecar.outbound_url().replace("http://", "");
    let reply = exchange(address.parse().unwrap(), request.as_bytes(), QUIET).await;
    Reply::read(&reply)
}

/// The pair with everything under `/open/` passed through and the contract in the index, where it
/// comes a moment after its sidecar is ready.
async fn open() -> Pair {
    let pair = Pair::with(|callee| {
        let prefixes: toml::Value = vec!["/open/"].into();
        callee.set("inbound.passthrough", prefixes)
    })
    .await;
    let entry = format!("/v1/kv/hermes/index/{FRAUD}");
    wait_until(WITHIN, "index entry", async || {
        pair.consul.get(&entry).await.is_some()
    })
    .await;
    pair
}

#[tokio::test]
async fn a_client_with_a_proxy_variable_makes_checked_calls() {
    let pair = open().await;
    let echo = |received: &crate::support::application::Received| {
        Answer::bytes(207, "text/odd", received.body.clone())
    };
    pair.application.script("/open/any", echo);
    for host in [
        "fraud-detection-v1.0.hermes",
        "Fraud-Detection-V1.0.HERMES:80",
        "fraud-detection-v1.hermes",
    ] {
        let url = format!("http://{host}{RISK}");
        let reply = posted(&pair.caller, &url, &fraud_input(), &[]).await;
        assert_eq!(reply.status, 200, "{host}: {reply:?}");
        assert_eq!(reply.json(), fraud_output());
        assert_eq!(reply.header("hermes-state"), "completed");
        assert_eq!(reply.header("hermes-agent"), "fraud-detection-v1.0@1.0.0");
        let told = pair.application.received(RISK).pop().unwrap();
        let named = told.headers["host"].to_str().unwrap();
        assert!(!named.to_ascii_lowercase().contains("hermes"), "{told:?}");
        assert!(!told.headers.contains_key("proxy-connection"), "{told:?}");

        let calls = pair.application.calls(RISK);
        let reply = posted(&pair.caller, &url, &json!({"user_id": ""}), &[]).await;
        reply.problem(400, "input-invalid");
        assert_eq!(pair.application.calls(RISK), calls);

        let url = format!("http://{host}/open/any?q=%2F&q");
        let reply = asked(&pair.caller, &url, &["-d", "as it comes"]).await;
        assert_eq!((reply.status, &reply.body[..]), (207, &b"as it comes"[..]));
        let told = pair.application.received("/open/any").pop().unwrap();
        assert_eq!(told.target, "/open/any?q=%2F&q");
        let url = format!("http://{host}/closed");
        let reply = asked(&pair.caller, &url, &[]).await;
        reply.problem(404, "not-found");
    }
    let unknown = asked(&pair.caller, "http://nobody-here-v1.0.hermes/x", &[]).await;
    let unknown = unknown.problem(404, "unknown-agent");
    assert!(
        unknown["detail"]
            .as_str()
            .unwrap()
            .contains("nobody-here-v1.0")
    );

    let tunnel = format!("https://{FRAUD}.hermes{RISK}");
    let told = ["-o", "/dev/null", "-w", "%{http_connect}", &tunnel];
    let refused = curl(&pair.caller, &told).await;
    assert!(!refused.status.success(), "{refused:?}");
    assert_eq!(refused.stdout, b"403", "{refused:?}");
}

#[tokio::test]
async fn a_version_is_named_beside_the_host() {
    let pair = Pair::start().await;
    let url = format!("{}{RISK}", pair.caller.outbound_url());
    for (host, agent, status, kind) in [
        (FRAUD, "fraud-detection-v1.0", 200, ""),
        (FRAUD, "fraud-detection-v1.0@1.0.0", 200, ""),
        (FRAUD, "fraud-detection-v1.0@1.0.9", 503, "no-instance"),
        (FRAUD, "fraud-detection-v1.1", 400, "bad-context"),
        ("fraud-detection-v1", "fraud-detection-v1.0@1.0.0", 200, ""),
        (
            "fraud-detection-v1",
            "fraud-detection-v2.0",
            400,
            "bad-context",
        ),
    ] {
        let request = client().post(&url).json(&fraud_input());
        let request = request.header("host", format!("{host}.hermes"));
        let reply = Reply::to(request.header("hermes-agent", agent)).await;
        match kind {
            "" => assert_eq!(reply.status, status, "{host} {agent}: {reply:?}"),
            kind => drop(reply.problem(status, kind)),
        }
    }
}

#[tokio::test]
async fn an_application_may_hand_on_the_headers_it_was_sent() {
    let pair = Pair::with(|callee| {
        callee.contract(
            json!({
                "id": "order-create-v1.0", "version": "1.0.0",
                "input_schema": {"type": "object", "required": []},
                "output_schema": {"type": "object", "required": []},
                "constraints": {"timeout_ms": 5000}
            }),
            "POST",
            "/orders",
        )
    })
    .await;
    let then = Box::new(Answer::json(&json!({"done": true})));
    let url = format!("{}{RISK}", pair.callee.outbound_url());
    pair.application.script("/orders", move |received| {
        let mut headers: Vec<(String, String)> = received
            .headers
            .iter()
            .filter(|(name, _)| name.as_str().starts_with("hermes-"))
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        assert!(headers.iter().any(|(name, _)| name == "hermes-agent"));
        headers.push(("host".to_owned(), format!("{FRAUD}.hermes")));
        Answer::Call {
            url: url.clone(),
            headers,
            body: fraud_input(),
            then: then.clone(),
        }
    });
    let reply = Reply::to(pair.outbound("/agents/order-create-v1.0/orders").body("{}")).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(pair.application.calls(RISK), 1);
}

#[tokio::test]
async fn one_authority_decides_and_unclear_ones_are_refused() {
    let pair = open().await;
    pair.application
        .answer("/open/any", Answer::bytes(200, "text/plain", "here"));
    let agent = format!("{FRAUD}.hermes");
    for (line, hosts, status, kind) in [
        (
            "GET http://b.example/x",
            &[agent.as_str()][..],
            403,
            "host-refused",
        ),
        (
            "GET http://localhost.b.example/x",
            &["localhost"],
            403,
            "host-refused",
        ),
        ("GET https://AGENT/open/any", &[&agent], 403, "host-refused"),
        ("GET http://u@AGENT/open/any", &[&agent], 400, "bad-request"),
        ("GET http://AGENT/open/../x", &[&agent], 400, "bad-request"),
        (
            "GET http://AGENT/open/%2e%2e/x",
            &[&agent],
            400,
            "bad-request",
        ),
        ("GET /open/any", &[], 400, "bad-request"),
        ("GET http://AGENT/open/any", &[], 400, "bad-request"),
        ("GET /open/any", &[&agent, &agent], 400, "bad-request"),
        ("GET /open/any", &["a, b"], 400, "bad-request"),
        ("GET /open/any", &["a@b"], 400, "bad-request"),
        ("GET /open/any", &["[::1"], 400, "bad-request"),
        ("GET /open/any", &["::1]"], 400, "bad-request"),
        ("GET /open/any", &["localhost:x"], 400, "bad-request"),
        ("GET /open/any", &["b.example"], 403, "host-refused"),
        ("GET /open/any", &["nothing.hermes"], 404, "unknown-agent"),
        ("CONNECT internal:22", &["internal:22"], 403, "host-refused"),
        ("OPTIONS *", &["localhost"], 404, "not-found"),
        ("OPTIONS *", &[&agent], 404, "not-found"),
    ] {
        let line = line.replace("AGENT", &agent);
        let mut request = format!("{line} HTTP/1.1\r\n");
        for host in hosts {
            request.push_str(&format!("host: {host}\r\n"));
        }
        let reply = raw(&pair.caller, &format!("{request}connection: close\r\n\r\n")).await;
        let problem = reply.problem(status, kind);
        if line.starts_with("CONNECT") {
            assert!(problem["detail"].as_str().unwrap().contains("https"));
        }
        assert_eq!(pair.application.calls("/open/any"), 0, "{line}");
    }
    // The target wins over the Host, and what goes on names neither.
    for (line, host) in [
        ("GET http://AGENT/open/any", "evil.example"),
        ("GET http://AGENT:8080/open/any", "localhost"),
        (
            "GET http://localhost/agents/ID/open/any",
            "nobody-here-v1.0.hermes",
        ),
        ("GET /open/any", &agent),
        ("GET /agents/ID/open/any", "[::1]:7402"),
    ] {
        let line = line.replace("AGENT", &agent).replace("ID", FRAUD);
        let request = format!("{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let reply = raw(&pair.caller, &request).await;
        assert_eq!(reply.status, 200, "{line}: {reply:?}");
        let told = pair.application.received("/open/any").pop().unwrap();
        let named = told.headers["host"].to_str().unwrap();
        assert!(named.starts_with("127.0.0.1:"), "{line}: {told:?}");
    }
    let twice = format!("GET http://{agent}/open//evil.example/x HTTP/1.1\r\nhost: x\r\n\r\n");
    raw(&pair.caller, &twice).await;
    assert_eq!(pair.application.calls("/open//evil.example/x"), 1);
    let admin = pair.caller.admin_url().replace("http://", "");
    let broken = b"GET /metrics HTTP/1.1\r\nhost: [::1\r\nconnection: close\r\n\r\n";
    let reply = Reply::read(&exchange(admin.parse().unwrap(), broken, QUIET).await);
    assert_eq!(reply.status, 403, "{reply:?}");
}

/// Posts over HTTP/2 by prior knowledge, with this `:authority` and, if given, this Host.
async fn posted_by_http2(sidecar: &Sidecar, authority: &str, host: Option<&str>) -> (u16, Bytes) {
    let address = sidecar.outbound_url().replace("http://", "");
    let stream = TcpStream::connect(address).await.unwrap();
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    let mut request = Request::post(format!("http://{authority}{RISK}"))
        .header("content-type", "application/json");
    if let Some(host) = host {
        request = request.header("host", host);
    }
    let body = Full::new(Bytes::from(fraud_input().to_string()));
    let answered = async {
        let reply = sender
            .send_request(request.body(body).unwrap())
            .await
            .unwrap();
        let status = reply.status().as_u16();
        (
            status,
            reply.into_body().collect().await.unwrap().to_bytes(),
        )
    };
    tokio::select! {
        answered = answered => answered,
        ended = connection => panic!("the connection ended: {ended:?}"),
    }
}

#[tokio::test]
async fn over_http2_the_authority_names_the_agent() {
    let pair = open().await;
    let agent = format!("{FRAUD}.hermes");
    for (authority, host, status) in [
        (agent.as_str(), None, 200),
        ("fraud-detection-v1.hermes:80", None, 200),
        (&agent, Some(agent.as_str()), 200),
        (&agent, Some("localhost"), 400),
        ("localhost", Some(&agent), 400),
        ("evil.example", None, 403),
        ("nobody-here-v1.0.hermes", None, 404),
    ] {
        let answered = posted_by_http2(&pair.caller, authority, host).await;
        assert_eq!(answered.0, status, "{authority} {host:?}: {answered:?}");
    }
    assert_eq!(pair.application.calls(RISK), 3);
}

/// Two minors of one family, each with its application, and one that calls them.
struct Minors {
    caller: Sidecar,
    callees: Vec<Sidecar>,
    applications: [Application; 2],
    consul: Consul,
}

impl Minors {
    async fn start() -> Self {
        let consul = Consul::start().await;
        let applications = [Application::start().await, Application::start().await];
        let mut callees = Vec::new();
        for (minor, application) in applications.iter().enumerate() {
            let answer = Answer::json(&fraud_output()).with("x-minor", &minor.to_string());
            application.answer(RISK, answer);
            application.answer("/healthy", Answer::bytes(200, "text/plain", ""));
            let mut contract = fraud_detection();
            contract["id"] = format!("fraud-detection-v1.{minor}").into();
            contract["version"] = format!("1.{minor}.0").into();
            contract["constraints"]["timeout_ms"] = 5_000.into();
            let callee = Sidecar::named("fraud")
                .application(&application.url())
                .set("application.health", "/healthy")
                .set("application.health_interval", "200ms")
                .set("limits.drain_delay", "0s")
                .consul(&consul.address())
                .contract(contract, "POST", RISK);
            callees.push(callee.start().await);
        }
        let caller = Sidecar::named("shop").consul(&consul.address());
        Self {
            caller: caller.start().await,
            callees,
            applications,
            consul,
        }
    }

    fn turn(&self, minor: usize, health: u16) {
        let answer = Answer::bytes(health, "text/plain", "");
        self.applications[minor].answer("/healthy", answer);
    }

    async fn ask(&self) -> Reply {
        let url = format!("http://fraud-detection-v1.hermes{RISK}");
        posted(&self.caller, &url, &fraud_input(), &[]).await
    }

    async fn served_by(&self, minor: &str) {
        wait_until(
            WITHIN,
            &format!("call served by minor {minor}"),
            async || {
                let reply = self.ask().await;
                reply.status == 200 && reply.header("x-minor") == minor
            },
        )
        .await;
    }
}

#[tokio::test]
async fn a_family_is_its_highest_minor_that_is_admitted() {
    let mut world = Minors::start().await;
    // A sidecar is ready a moment before its contract is in the index.
    world.served_by("1").await;
    let reply = world.ask().await;
    assert_eq!(
        (reply.status, reply.header("x-minor")),
        (200, "1"),
        "{reply:?}"
    );
    assert_eq!(reply.header("hermes-agent"), "fraud-detection-v1.1@1.1.0");
    let base = world.caller.outbound_url();
    let native = client().post(format!("{base}/agents/fraud-detection@^1{RISK}"));
    let escaped = client().post(format!("{base}/agents/fraud-detection%40%5E1{RISK}"));
    let invoke = client().post(format!("{base}/hermes/invoke"));
    let wrapper = wrapped("fraud-detection@^1", &fraud_input(), json!({}));
    let invoke = invoke
        .header("content-type", "application/json")
        .body(wrapper);
    let natives = [native, escaped].map(|request| request.json(&fraud_input()));
    for request in natives.into_iter().chain([invoke]) {
        let reply = Reply::to(request).await;
        assert_eq!(
            (reply.status, reply.header("x-minor")),
            (200, "1"),
            "{reply:?}"
        );
    }
    let url = format!("http://fraud-detection-v1.hermes{RISK}");
    let refused = posted(&world.caller, &url, &json!({"user_id": 1}), &[]).await;
    refused.problem(400, "input-invalid");

    world.turn(1, 503);
    world.served_by("0").await;
    world.turn(1, 200);
    world.served_by("1").await;

    for (host, status, kind) in [
        ("nobody-here-v1", 404, "unknown-agent"),
        ("fraud-detection-v2", 404, "unknown-agent"),
        ("fraud-v1", 404, "unknown-agent"),
    ] {
        let began = tokio::time::Instant::now();
        let reply = asked(&world.caller, &format!("http://{host}.hermes/x"), &[]).await;
        let detail = reply.problem(status, kind)["detail"].to_string();
        assert!(
            detail.contains(&host.replace("-v", "@^")),
            "{host}: {detail}"
        );
        assert!(began.elapsed() < FIRST_USE, "{:?}", began.elapsed());
    }
    world.turn(0, 503);
    world.turn(1, 503);
    wait_until(WITHIN, "a family without an instance", async || {
        let reply = world.ask().await;
        let nobody = reply.status == 503;
        if nobody {
            reply.problem(503, "no-instance");
        }
        nobody
    })
    .await;
    world.turn(0, 200);
    world.served_by("0").await;
    world.turn(1, 200);
    world.served_by("1").await;

    // What was known serves a caller that starts while Consul is away.
    world.consul.kill9();
    world.caller.terminate().await;
    world.caller.start_again();
    let within = Duration::from_secs(20);
    let base = world.caller.outbound_url();
    wait_until(within, "listening caller", async || {
        client().get(&base).send().await.is_ok()
    })
    .await;
    let reply = world.ask().await;
    assert_eq!(
        (reply.status, reply.header("x-minor")),
        (200, "1"),
        "{reply:?}"
    );
    assert_eq!(world.callees.len(), 2);
}

#[tokio::test]
async fn a_range_is_served_by_a_contract_in_use_where_no_more_can_be_followed() {
    let pair = open().await;
    let invoke = |agent: &str| {
        let body = wrapped(agent, &fraud_input(), json!({}));
        Reply::to(pair.outbound("/hermes/invoke").body(body))
    };
    assert_eq!(invoke(FRAUD).await.status, 200);
    let higher = "/v1/kv/hermes/index/fraud-detection-v1.9";
    pair.consul.put(higher, "{}").await;
    // More names than a sidecar follows, as a faulty client may make them up.
    let mut calls = JoinSet::new();
    for number in 0..1100 {
        let body = wrapped(&format!("made-up{number}-v1.0"), &fraud_input(), json!({}));
        let call = pair.outbound("/hermes/invoke").body(body);
        calls.spawn(Reply::to(call));
    }
    let refused = calls.join_all().await;
    assert!(refused.iter().any(|reply| reply.status == 503));
    let reply = invoke("fraud-detection@^1").await;
    assert_eq!(reply.status, 200, "{reply:?}");
}

fn shop(hosts: &[String]) -> Setup {
    let hosts: Vec<toml::Value> = hosts.iter().map(|host| host.clone().into()).collect();
    Sidecar::named("shop").set("outbound.allow_hosts", hosts)
}

#[tokio::test]
async fn listed_hosts_are_passed_on_to_and_no_others() {
    let (listed, other) = tokio::join!(Application::start(), Application::start());
    let port = |application: &Application| application.url().rsplit(':').next().unwrap().to_owned();
    let (at, elsewhere) = (port(&listed), port(&other));
    // Nothing listens at port 1.
    let hosts = [
        format!("localhost:{at}"),
        "127.0.0.1:1".to_owned(),
        "127.1".to_owned(),
    ];
    let caller = shop(&hosts).start_unready().await;
    let redirect = Answer::bytes(307, "text/plain", "elsewhere")
        .with("location", "http://169.254.169.254/x")
        .with("content-encoding", "x-own")
        .with("hermes-state", "completed")
        .with("set-cookie", "a=1");
    listed.answer("/x", redirect);
    other.answer("/x", Answer::bytes(200, "text/plain", "not listed"));
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let url = format!("http://localhost:{at}/x?q=%2F");
    let sent = [
        "-X",
        "PURGE",
        "-H",
        "Hermes-Task-Id: secret-task",
        "-H",
        "Proxy-Authorization: Basic YTpi",
        "-H",
        &format!("traceparent: {trace}"),
        "-d",
        "bytes",
    ];
    let reply = asked(&caller, &url, &sent).await;
    assert_eq!(
        (reply.status, &reply.body[..]),
        (307, &b"elsewhere"[..]),
        "{reply:?}"
    );
    assert_eq!(reply.header("location"), "http://169.254.169.254/x");
    assert_eq!(reply.header("content-encoding"), "x-own");
    assert_eq!(reply.header("set-cookie"), "a=1");
    assert!(!reply.headers.contains_key("hermes-state"), "{reply:?}");
    let told = listed.received("/x").pop().unwrap();
    assert_eq!(
        (told.method.as_str(), &told.body[..]),
        ("PURGE", &b"bytes"[..])
    );
    assert_eq!(told.target, "/x?q=%2F");
    assert_eq!(told.headers["host"], format!("localhost:{at}"));
    assert_eq!(told.headers["traceparent"], trace);
    assert!(told.headers.contains_key("via"), "{told:?}");
    let ours = |name: &hyper::header::HeaderName| {
        name.as_str().starts_with("hermes") || name.as_str().starts_with("proxy")
    };
    assert!(!told.headers.keys().any(ours), "{told:?}");
    asked(&caller, &url, &["-H", "User-Agent:", "-H", "Accept:"]).await;
    let told = listed.received("/x").pop().unwrap();
    let mut names: Vec<&str> = told.headers.keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["host", "via"], "no field of our own");

    for url in [
        "http://example.invalid/x".to_owned(),
        format!("http://10.0.0.2:{at}/x"),
        format!("http://localhost.invalid:{at}/x"),
    ] {
        let reply = asked(&caller, &url, &[]).await;
        let problem = reply.problem(403, "host-refused");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("outbound.allow_hosts"), "{detail}");
    }
    // Another listener of this machine is none of ours, and told apart by its port.
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("http://{host}:{elsewhere}/x");
        let reply = asked(&caller, &url, &[]).await;
        let detail = reply.problem(404, "not-found")["detail"].to_string();
        assert!(detail.contains("outbound.allow_hosts"), "{detail}");
    }
    assert_eq!(other.calls("/x"), 0);
    let dead = asked(&caller, "http://127.0.0.1:1/x", &[]).await;
    dead.problem(502, "upstream-unreachable");
    let own = caller.outbound_url().rsplit(':').next().unwrap().to_owned();
    // Another spelling of our own address, which curl would have mended.
    let looped = format!("GET http://127.1:{own}/x HTTP/1.1\r\nhost: x\r\n\r\n");
    raw(&caller, &looped).await.problem(508, "loop");
}

#[tokio::test]
async fn what_passes_to_a_listed_host_streams_both_ways() {
    let streamer = Streamer::start().await;
    let host = streamer.url().replace("http://", "");
    let caller = shop(std::slice::from_ref(&host)).start_unready().await;
    let address = caller.outbound_url().replace("http://", "");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST http://{host}/echo HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for piece in ["one", "two", "three"] {
        let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
        stream.write_all(chunk.as_bytes()).await.unwrap();
        // It is back before the next is sent.
        let mut text = String::new();
        let mut buffer = [0; 4096];
        while !text.contains(piece) {
            let read = timeout(WITHIN, stream.read(&mut buffer)).await;
            let length = read
                .unwrap_or_else(|_| panic!("no {piece}: {text}"))
                .unwrap();
            assert!(length > 0, "closed before {piece}: {text}");
            text.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
    }
}
