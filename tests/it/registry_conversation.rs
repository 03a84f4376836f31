//! The built-in registry answers as a real Consul does.
//!
//! One conversation is held with both, and what they said is compared line by line: status, the
//! headers we read, how the index moved, and the body without what names the node or counts.

use crate::support::consul::Consul;
use crate::support::port::free_port;
use crate::support::process::Process;
use crate::support::program;
use crate::support::wait::wait_until;
use hermes_sidecar::consul::{
    Check, CheckKind, CheckStatus, Client, Config, ErrorKind, Instance, Poll, Registration,
    TlsOptions,
};
use hermes_sidecar::devregistry;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

/// How long a real Consul may take to bring its catalogue up to date.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);
const PACE: Duration = Duration::from_millis(20);

#[tokio::test]
async fn the_built_in_registry_answers_as_consul_does() {
    let consul = Consul::start().await;
    let real = converse(&consul.address()).await;
    let ours = with_registry(|address| async move { converse(&address).await }).await;
    assert_eq!(real.len(), ours.len());
    let pairs = real.iter().zip(&ours).filter(|(real, ours)| real != ours);
    let differences = pairs.map(|(real, ours)| format!("Consul: {real}\nours:   {ours}\n"));
    let differences: Vec<String> = differences.collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test]
async fn our_client_reads_the_same_from_both() {
    let consul = Consul::start().await;
    let real = through_the_client(consul.address()).await;
    let ours = with_registry(through_the_client).await;
    assert_eq!(ours, real);
    let maintained = real.iter().find(|line| line.starts_with("maintenance"));
    assert!(maintained.unwrap().contains("passing: false"));
}

/// Mutual TLS with a name that is not the address's, and a socket: both from one agent.
#[tokio::test]
async fn our_client_speaks_tls_and_over_a_socket() {
    let directory = TempDir::with_prefix("hermes-consul-tls-").unwrap();
    let at = |file: &str| directory.path().join(file);
    for arguments in ["ca create", "cert create -server", "cert create -client"] {
        let mut command = Command::new(program::consul());
        command.arg("tls").args(arguments.split(' '));
        assert!(
            command
                .current_dir(&directory)
                .output()
                .unwrap()
                .status
                .success()
        );
    }
    let mut command = Command::new(program::consul());
    let socket = at("http.sock");
    let port = free_port();
    let config = json!({
        "bind_addr": "127.0.0.1", "disable_update_check": true,
        "addresses": {"http": format!("unix://{}", socket.display()), "https": "127.0.0.1"},
        "ports": {"https": port, "server": free_port(), "serf_lan": free_port(),
                  "serf_wan": -1, "dns": -1, "grpc": -1},
        "ca_file": at("consul-agent-ca.pem"), "cert_file": at("dc1-server-consul-0.pem"),
        "key_file": at("dc1-server-consul-0-key.pem"), "verify_incoming": true,
    });
    std::fs::write(at("agent.json"), config.to_string()).unwrap();
    command
        .args(["agent", "-dev", "-config-file"])
        .arg(at("agent.json"));
    let _agent = Process::spawn("consul", command, &at("log"));

    let over_socket = client(format!("unix:{}", socket.display()));
    wait_until(SETTLES_WITHIN, "leader over the socket", async || {
        matches!(over_socket.leader().await, Ok(Some(_)))
    })
    .await;
    let over_tls = |tls: TlsOptions| {
        let address = format!("https://127.0.0.1:{port}");
        let client = Client::new(
            Config {
                tls,
                ..config_of(address)
            },
            Arc::new(|_, _, _| {}),
        )
        .unwrap();
        async move {
            client
                .leader()
                .await
                .map(|leader| leader.is_some())
                .map_err(|error| error.kind())
        }
    };
    let whole = TlsOptions {
        ca: Some(at("consul-agent-ca.pem")),
        cert: Some(at("dc1-client-consul-0.pem")),
        key: Some(at("dc1-client-consul-0-key.pem")),
        server_name: Some("server.dc1.consul".to_owned()),
        verify: true,
    };
    assert_eq!(over_tls(whole.clone()).await, Ok(true));
    let refused = Err(ErrorKind::Unreachable);
    let other_name = Some("server.dc2.consul".to_owned());
    assert_eq!(
        over_tls(TlsOptions {
            server_name: other_name,
            ..whole.clone()
        })
        .await,
        refused
    );
    assert_eq!(
        over_tls(TlsOptions {
            ca: None,
            ..whole.clone()
        })
        .await,
        refused
    );
    assert_eq!(
        over_tls(TlsOptions {
            ca: None,
            verify: false,
            ..whole.clone()
        })
        .await,
        Ok(true)
    );
    assert_eq!(
        over_tls(TlsOptions {
            cert: None,
            key: None,
            ..whole
        })
        .await,
        refused
    );
}

/// Runs `talk` against a registry of its own.
async fn with_registry<T, F: Future<Output = T>>(talk: impl FnOnce(String) -> F) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::select! {
        said = talk(address) => said,
        served = devregistry::serve(listener, std::future::pending()) => {
            panic!("the registry ended by itself: {served:?}")
        }
    }
}

fn client(address: String) -> Client {
    Client::new(config_of(address), Arc::new(|_, _, _| {})).unwrap()
}

fn config_of(address: String) -> Config {
    Config {
        address,
        token: None,
        token_file: None,
        tls: TlsOptions::default(),
        prefix: "hermes".to_owned(),
        watches: 4,
    }
}

/// Everything a sidecar does, by our own client.
async fn through_the_client(address: String) -> Vec<String> {
    let client = client(address.clone());
    let mut registration = Registration {
        id: "fraud-v1.0-a".to_owned(),
        name: "fraud-v1.0".to_owned(),
        address: "127.0.0.1".to_owned(),
        port: 7401,
        tags: vec!["hermes".to_owned(), "team-x".to_owned()],
        weight: 100,
        meta: BTreeMap::from([("hermes_route".to_owned(), "POST /api/v1/risk".to_owned())]),
        checks: vec![Check {
            id: "fraud-v1.0-a:ttl".to_owned(),
            name: "sidecar".to_owned(),
            kind: CheckKind::Ttl(Duration::from_secs(15)),
            status: CheckStatus::Critical,
            deregister_after: Some(Duration::from_secs(600)),
        }],
    };
    let mut said = Vec::new();
    let check = registration.checks[0].id.clone();
    let check = check.as_str();
    let lost = client
        .update_check(check, CheckStatus::Passing, "ok")
        .await
        .unwrap_err();
    said.push(format!("{}: {lost}", lost.is_unknown_check()));
    client.register(&registration).await.unwrap();
    said.push(shown(&instances(&client, |found| found.len() == 1).await));
    client
        .update_check(check, CheckStatus::Passing, "ok")
        .await
        .unwrap();
    said.push(shown(&instances(&client, |found| found[0].passing).await));

    let maintain = format!("{address}/v1/agent/service/maintenance/{}", registration.id);
    let http = crate::support::client::client();
    let switch = async |enable: bool| {
        let url = format!("{maintain}?enable={enable}");
        http.put(url)
            .send()
            .await
            .unwrap()
            .error_for_status()
            .unwrap();
    };
    switch(true).await;
    instances(&client, |found| !found[0].passing).await;
    registration.port = 7402;
    client.register(&registration).await.unwrap();
    let kept = instances(&client, |found| found[0].port == 7402).await;
    said.push(format!("maintenance is the operator's: {}", shown(&kept)));
    switch(false).await;
    instances(&client, |found| found[0].passing).await;

    let own = client
        .service_by_id(&registration.id, None, Duration::ZERO)
        .await
        .unwrap()
        .unwrap();
    let hash = own.hash.clone();
    said.push(format!(
        "{} {} {} {:?}",
        own.id, own.address, own.port, own.meta
    ));
    let gone = client.service_by_id(&registration.id, Some(&hash), Duration::from_secs(30));
    let (gone, ()) = tokio::join!(gone, async {
        client.deregister(&registration.id).await.unwrap()
    });
    said.push(format!("{gone:?}"));

    said.push(format!(
        "{:?}",
        client.kv_put("hermes/canary/a", "500", Some(0)).await
    ));
    said.push(format!(
        "{:?}",
        client.kv_put("hermes/canary/a", "600", Some(0)).await
    ));
    let entry = client.kv_get("hermes/canary/a", Poll::NOW).await.unwrap();
    said.push(format!(
        "{:?} {}",
        entry.value.as_ref().unwrap().value,
        entry.known_leader
    ));
    let cas = entry.value.map(|entry| entry.modify_index);
    said.push(format!(
        "{:?}",
        client.kv_put("hermes/canary/a", "700", cas).await
    ));
    let list = client
        .kv_list("hermes/canary/", Poll::NOW)
        .await
        .unwrap()
        .value;
    said.push(format!(
        "{:?}",
        list.iter().map(|e| (&e.key, &e.value)).collect::<Vec<_>>()
    ));
    said.push(format!(
        "{:?}",
        client
            .kv_keys("hermes/", Poll::CONSISTENT)
            .await
            .unwrap()
            .value
    ));
    said.push(format!(
        "{:?}",
        client.kv_get("hermes/none", Poll::NOW).await.unwrap().value
    ));
    said.push(format!(
        "{:?} {:?}",
        client.version().await,
        client.node_address().await
    ));
    said.push(format!("{}", client.leader().await.unwrap().is_some()));
    said
}

async fn instances(client: &Client, settled: impl Fn(&[Instance]) -> bool) -> Vec<Instance> {
    let deadline = Instant::now() + SETTLES_WITHIN;
    loop {
        let found = client.health("fraud-v1.0", Poll::NOW).await.unwrap().value;
        if settled(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "{found:?}");
        sleep(PACE).await;
    }
}

fn shown(instances: &[Instance]) -> String {
    let nameless = instances.iter().map(|instance| Instance {
        node: String::new(),
        ..instance.clone()
    });
    format!("{:?}", nameless.collect::<Vec<_>>())
}

/// One thing to say. In paths, `{index}` is the index last seen at the same path, `{modify}` the
/// last `ModifyIndex` and `{hash}` the last content hash seen anywhere.
enum Step {
    Say(Method, &'static str, Value),
    /// Asks until the body satisfies it, then goes on with that answer.
    Until(&'static str, fn(&Value) -> bool),
    /// Polls, and makes the poll's reason to return.
    Wakes(&'static str, Method, &'static str, Value),
    /// Polls, makes a change that is none of its business, and sees the wait out.
    Sleeps(&'static str, Method, &'static str, Value),
    /// Asks, and compares these places of the answer alone.
    Pick(&'static str, &'static [&'static str]),
}

use Step::{Pick, Say, Sleeps, Until, Wakes};

fn get(path: &'static str) -> Step {
    Say(Method::GET, path, Value::Null)
}

fn put(path: &'static str, body: Value) -> Step {
    Say(Method::PUT, path, body)
}

fn delete(path: &'static str) -> Step {
    Say(Method::DELETE, path, Value::Null)
}

const REGISTER: &str = "/v1/agent/service/register?replace-existing-checks=true";
const HEALTH: &str = "/v1/health/service/orders";
const HEALTH_POLL: &str = "/v1/health/service/orders?index={index}&wait=20s";

fn orders() -> Value {
    json!({
        "ID": "orders-1", "Name": "orders", "Address": "127.0.0.1", "Port": 8080, "Tags": ["hermes", "x"],
        "Weights": {"Passing": 7, "Warning": 1}, "Meta": {"hermes_version": "1.0.0"}, "EnableTagOverride": false,
        "Checks": [{"CheckID": "orders-1:ttl", "Name": "ttl", "TTL": "15000ms", "Status": "critical",
                    "DeregisterCriticalServiceAfter": "600000ms"}]
    })
}

fn with(mut body: Value, key: &str, value: Value) -> Value {
    body[key] = value;
    body
}

fn count(body: &Value, expected: usize) -> bool {
    body.as_array()
        .is_some_and(|entries| entries.len() == expected)
}

fn registering() -> Vec<Step> {
    let check = |check: Value| json!({"Name": "c", "Checks": [check]});
    vec![
        get("/v1/agent/services"),
        get(HEALTH),
        get("/v1/health/service/orders?passing"),
        get("/v1/health/service/orders?passing=x"),
        get("/v1/health/service/orders?index=x"),
        get("/v1/health/service/orders?index=1&wait=5"),
        put(REGISTER, json!({"Port": 1})),
        put(REGISTER, json!({"Name": "a", "Foo": 1})),
        put(REGISTER, with(orders(), "Locality", json!({}))),
        put(REGISTER, json!({"Name": "a", "Weights": {}})),
        put(
            REGISTER,
            json!({"Name": "a", "Weights": {"Passing": 70000}}),
        ),
        put(REGISTER, json!({"Name": "a", "Address": "0.0.0.0"})),
        put(REGISTER, json!({"Name": "a", "Port": "x"})),
        put(REGISTER, json!({"Name": "a", "Meta": {"a.b": "c"}})),
        put(REGISTER, json!({"Name": "a", "Meta": {"consul-b": "c"}})),
        put(
            REGISTER,
            json!({"Name": "a", "Meta": {"b": "x".repeat(513)}}),
        ),
        put(REGISTER, check(json!({"TTL": "1s", "Interval": "10s"}))),
        put(REGISTER, check(json!({"Interval": "10s"}))),
        put(REGISTER, check(json!({"HTTP": "http://127.0.0.1:1/"}))),
        put(REGISTER, check(json!({"TTL": "10"}))),
        put(REGISTER, check(json!({"TTL": "10s", "Status": "odd"}))),
        put(REGISTER, Value::Null),
        Say(Method::POST, REGISTER, orders()),
        get("/v1/agent/services"),
        Wakes(HEALTH_POLL, Method::PUT, REGISTER, orders()),
        Until(HEALTH, |body| count(body, 1)),
        get("/v1/health/service/orders?passing"),
        get("/v1/health/service/ORDERS?stale"),
        get("/v1/agent/services"),
        get("/v1/agent/checks"),
        get("/v1/agent/service/orders-1"),
        get("/v1/agent/service/orders-1?hash=other&wait=10s"),
        get("/v1/agent/service/none"),
        get("/v1/catalog/services"),
        Sleeps(
            "/v1/health/service/orders?index={index}&wait=300ms",
            Method::PUT,
            REGISTER,
            orders(),
        ),
    ]
}

fn checking() -> Vec<Step> {
    let pass = || json!({"Status": "passing", "Output": "ok"});
    vec![
        put("/v1/agent/check/update/none", pass()),
        put("/v1/agent/check/pass/none", Value::Null),
        put(
            "/v1/agent/check/update/orders-1:ttl",
            json!({"Status": "odd"}),
        ),
        put("/v1/agent/check/update/orders-1:ttl", Value::Null),
        Wakes(
            HEALTH_POLL,
            Method::PUT,
            "/v1/agent/check/update/orders-1:ttl",
            pass(),
        ),
        Until("/v1/health/service/orders?passing", |body| count(body, 1)),
        Sleeps(
            "/v1/health/service/orders?index={index}&wait=300ms",
            Method::PUT,
            "/v1/agent/check/pass/orders-1:ttl",
            Value::Null,
        ),
        // A living check keeps its state, whatever the registration says.
        put(REGISTER, with(orders(), "Tags", json!(["y"]))),
        Until(HEALTH, |body| body[0]["Service"]["Tags"] == json!(["y"])),
        Until("/v1/catalog/services", |body| {
            body["orders"] == json!(["y"])
        }),
        put("/v1/agent/check/warn/orders-1:ttl?note=slow", Value::Null),
        Until(HEALTH, |body| body[0]["Checks"][1]["Status"] == "warning"),
        put("/v1/agent/check/pass/orders-1:ttl?note=well", Value::Null),
        Until("/v1/health/service/orders?passing", |body| count(body, 1)),
        // Maintenance outlives a registration.
        put("/v1/agent/service/maintenance/orders-1", Value::Null),
        put(
            "/v1/agent/service/maintenance/none?enable=true",
            Value::Null,
        ),
        put(
            "/v1/agent/service/maintenance/orders-1?enable=true&reason=why",
            Value::Null,
        ),
        Until("/v1/health/service/orders?passing", |body| count(body, 0)),
        put("/v1/agent/service/register", orders()),
        Until(HEALTH, |body| {
            body[0]["Service"]["Tags"] == json!(["hermes", "x"])
        }),
        get("/v1/health/service/orders?passing"),
        // But not one that replaces all checks.
        put(REGISTER, orders()),
        Until("/v1/health/service/orders?passing", |body| count(body, 1)),
        put(
            "/v1/agent/service/maintenance/orders-1?enable=true",
            Value::Null,
        ),
        Until("/v1/health/service/orders?passing", |body| count(body, 0)),
        put(
            "/v1/agent/service/maintenance/orders-1?enable=false",
            Value::Null,
        ),
        Until("/v1/health/service/orders?passing", |body| count(body, 1)),
        // Time alone: a TTL runs out; an HTTP check runs.
        put(
            REGISTER,
            json!({"Name": "short", "Checks": [{"TTL": "200ms", "Status": "passing"}]}),
        ),
        Until("/v1/health/service/short", |body| {
            body[0]["Checks"][1]["Status"] == "critical"
        }),
        put(
            REGISTER,
            json!({"Name": "probed", "Checks": [
                {"HTTP": "{base}/v1/status/leader", "Interval": "100ms", "Timeout": "5s"},
                {"HTTP": "{base}/v1/nothing", "Interval": "100ms", "Status": "passing"}
            ]}),
        ),
        Until("/v1/health/service/probed", |body| {
            body[0]["Checks"][1]["Status"] == "passing"
                && body[0]["Checks"][2]["Status"] == "critical"
        }),
        // A check that is left out goes, and its service passes without it.
        put(REGISTER, json!({"Name": "short"})),
        Until("/v1/health/service/short", |body| {
            body[0]["Checks"]
                .as_array()
                .is_some_and(|checks| checks.len() == 1)
        }),
        get("/v1/agent/checks"),
    ]
}

fn leaving() -> Vec<Step> {
    let another = || json!({"Name": "another"});
    vec![
        get("/v1/health/service/another"),
        Wakes(
            "/v1/health/service/another?index={index}&wait=20s",
            Method::PUT,
            REGISTER,
            another(),
        ),
        Until("/v1/catalog/services", |body| !body["another"].is_null()),
        get(HEALTH),
        get("/v1/agent/service/orders-1"),
        Wakes(
            "/v1/agent/service/orders-1?hash={hash}&wait=20s",
            Method::PUT,
            REGISTER,
            with(orders(), "Port", json!(8081)),
        ),
        Until(HEALTH, |body| body[0]["Service"]["Port"] == 8081),
        get("/v1/agent/service/orders-1"),
        Wakes(
            "/v1/agent/service/orders-1?hash={hash}&wait=20s",
            Method::PUT,
            "/v1/agent/service/deregister/orders-1",
            Value::Null,
        ),
        Until(HEALTH, |body| count(body, 0)),
        get("/v1/agent/service/orders-1?hash={hash}&wait=20s"),
        put("/v1/agent/service/deregister/orders-1", Value::Null),
        put("/v1/agent/service/deregister/another", Value::Null),
        Until("/v1/catalog/services", |body| body["another"].is_null()),
        get("/v1/status/leader"),
        get("/v1/status/peers"),
        Say(Method::PUT, "/v1/status/leader", Value::Null),
        get("/v1/nothing"),
        Pick(
            "/v1/agent/self",
            &[
                "/Config/Version",
                "/Config/Datacenter",
                "/Config/Server",
                "/Member/Addr",
                "/Member/Status",
            ],
        ),
        Pick(
            "/v1/health/service/consul",
            &[
                "/0/Service/Meta/version",
                "/0/Service/ID",
                "/0/Checks/0/Status",
            ],
        ),
    ]
}

fn keeping() -> Vec<Step> {
    vec![
        get("/v1/kv/a/b"),
        get("/v1/kv/a/?recurse"),
        get("/v1/kv/a/?keys"),
        get("/v1/kv/"),
        put("/v1/kv/", json!("x")),
        put("/v1/kv/a/b", json!(1)),
        get("/v1/kv/a/b"),
        get("/v1/kv/a/b?raw"),
        get("/v1/kv/A/b"),
        put("/v1/kv/a/b?cas=0", json!(2)),
        put("/v1/kv/a/b?cas={modify}", json!(3)),
        put("/v1/kv/a/b?cas={modify}", json!(4)),
        put("/v1/kv/a/b?cas=x", json!(4)),
        put("/v1/kv/a/b?flags=7", json!(5)),
        put("/v1/kv/a/new?cas=9", json!(1)),
        put("/v1/kv/a/new?cas=0", json!(1)),
        put("/v1/kv/a/x/1", json!(1)),
        put("/v1/kv/a/x/2", json!(1)),
        put("/v1/kv/empty", Value::Null),
        get("/v1/kv/empty"),
        get("/v1/kv/empty?raw"),
        get("/v1/kv/a/b"),
        get("/v1/kv/a/?recurse"),
        get("/v1/kv/a/?keys"),
        get("/v1/kv/a/?keys&separator=/"),
        get("/v1/kv/?keys&separator=/"),
        get("/v1/kv/a/b?index=x"),
        // An equal value wakes nobody, nor does a sibling or another prefix.
        Sleeps(
            "/v1/kv/a/b?index={index}&wait=300ms",
            Method::PUT,
            "/v1/kv/a/b?flags=7",
            json!(5),
        ),
        Sleeps(
            "/v1/kv/a/b?index={index}&wait=300ms",
            Method::PUT,
            "/v1/kv/a/x/1",
            json!(2),
        ),
        get("/v1/kv/a/x/?recurse"),
        Sleeps(
            "/v1/kv/a/x/?recurse&index={index}&wait=300ms",
            Method::PUT,
            "/v1/kv/a/b",
            json!(6),
        ),
        // From an index before the last change, the poll would answer at once, with either value.
        get("/v1/kv/a/b"),
        Wakes(
            "/v1/kv/a/b?index={index}&wait=20s",
            Method::PUT,
            "/v1/kv/a/b",
            json!(7),
        ),
        Wakes(
            "/v1/kv/a/x/?recurse&index={index}&wait=20s",
            Method::PUT,
            "/v1/kv/a/x/1",
            json!(9),
        ),
        get("/v1/kv/a/x/?keys"),
        Wakes(
            "/v1/kv/a/x/?keys&index={index}&wait=20s",
            Method::PUT,
            "/v1/kv/a/x/1",
            json!(10),
        ),
        get("/v1/kv/missing"),
        Wakes(
            "/v1/kv/missing?index={index}&wait=20s",
            Method::PUT,
            "/v1/kv/missing",
            json!(1),
        ),
        delete("/v1/kv/missing?cas=1"),
        Wakes(
            "/v1/kv/missing?index={index}&wait=20s",
            Method::DELETE,
            "/v1/kv/missing?cas={modify}",
            Value::Null,
        ),
        delete("/v1/kv/missing"),
        delete("/v1/kv/missing?cas=0"),
        get("/v1/kv/a/x/?recurse"),
        Wakes(
            "/v1/kv/a/x/?recurse&index={index}&wait=20s",
            Method::DELETE,
            "/v1/kv/a/x/2",
            Value::Null,
        ),
        delete("/v1/kv/a/?recurse"),
        get("/v1/kv/a/?recurse"),
        get("/v1/kv/a/b"),
        put("/v1/kv/big", Value::String("x".repeat(512 * 1024))),
        put("/v1/kv/big", Value::String("x".repeat(512 * 1024 + 1))),
        Say(Method::POST, "/v1/kv/a", Value::Null),
    ]
}

async fn converse(base: &str) -> Vec<String> {
    let mut talk = Talk {
        base: base.to_owned(),
        http: crate::support::client::client(),
        indexes: HashMap::new(),
        modify: 0,
        hash: String::new(),
        said: Vec::new(),
    };
    for step in [registering(), checking(), leaving(), keeping()]
        .into_iter()
        .flatten()
    {
        talk.take(step).await;
    }
    talk.said
}

struct Talk {
    base: String,
    http: reqwest::Client,
    /// Path without its waiting part, to the index last seen there.
    indexes: HashMap<String, u64>,
    modify: u64,
    hash: String,
    said: Vec<String>,
}

struct Reply {
    status: u16,
    headers: reqwest::header::HeaderMap,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Talk {
    async fn take(&mut self, step: Step) {
        match step {
            Say(method, path, body) => {
                let reply = self.ask(&method, path, &body).await;
                self.note(&format!("{method} {path}"), path, &reply);
            }
            Until(path, settled) => {
                let deadline = Instant::now() + SETTLES_WITHIN;
                let mut reply = self.ask(&Method::GET, path, &Value::Null).await;
                while !settled(&reply.json()) {
                    assert!(
                        Instant::now() < deadline,
                        "{path} at {}: {}",
                        self.base,
                        reply.body
                    );
                    sleep(PACE).await;
                    reply = self.ask(&Method::GET, path, &Value::Null).await;
                }
                self.note(&format!("GET {path} in the end"), path, &reply);
            }
            Wakes(path, method, at, body) => {
                let began = Instant::now();
                let poll = self.ask(&Method::GET, path, &Value::Null);
                let (reply, _) = tokio::join!(poll, self.ask(&method, at, &body));
                assert!(
                    began.elapsed() < Duration::from_secs(10),
                    "{path} did not wake at {}",
                    self.base
                );
                self.note(&format!("{method} {at} wakes {path}"), path, &reply);
            }
            Sleeps(path, method, at, body) => {
                let began = Instant::now();
                let poll = self.ask(&Method::GET, path, &Value::Null);
                let (reply, _) = tokio::join!(poll, self.ask(&method, at, &body));
                assert!(
                    began.elapsed() >= Duration::from_millis(300),
                    "{at} woke {path} at {}",
                    self.base
                );
                self.note(&format!("{method} {at} lets {path} sleep"), path, &reply);
            }
            Pick(path, places) => {
                let body = self.ask(&Method::GET, path, &Value::Null).await.json();
                let picked: Vec<_> = places.iter().map(|place| body.pointer(place)).collect();
                self.said.push(format!("GET {path}: {picked:?}"));
            }
        }
    }

    async fn ask(&self, method: &Method, path: &str, body: &Value) -> Reply {
        let index = self.indexes.get(&plain(path)).copied().unwrap_or(0);
        let path = path
            .replace("{index}", &index.to_string())
            .replace("{modify}", &self.modify.to_string())
            .replace("{hash}", &self.hash);
        let body = match body {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string().replace("{base}", &self.base),
        };
        let url = format!("{}{path}", self.base);
        let response = self
            .http
            .request(method.clone(), url)
            .body(body)
            .send()
            .await
            .unwrap();
        Reply {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.text().await.unwrap(),
        }
    }

    /// Writes down what is comparable, and keeps what later steps refer to.
    fn note(&mut self, what: &str, path: &str, reply: &Reply) {
        let mut moved = "none";
        if let Some(index) = reply.header("x-consul-index") {
            let index: u64 = index.parse().unwrap();
            assert!(index > 0, "{what}");
            moved = match self.indexes.insert(plain(path), index) {
                None => "first",
                Some(before) if before == index => "same",
                Some(before) if before < index => "higher",
                Some(_) => "lower",
            };
        }
        if let Some(hash) = reply.header("x-consul-contenthash") {
            self.hash = hash.to_owned();
        }
        let mut body = reply.json();
        if let Some(modify) = body[0]["ModifyIndex"].as_u64() {
            self.modify = modify;
        }
        strip(&mut body);
        if path.starts_with("/v1/catalog/services") {
            // Consul gives the tags of a name in no order.
            for tags in body.as_object_mut().unwrap().values_mut() {
                tags.as_array_mut().unwrap().sort_by_key(Value::to_string);
            }
        }
        let text = match (reply.status, &body) {
            // Said by the HTTP library, not by Consul.
            (405 | 413, _) => String::new(),
            (_, Value::Null) => reply.body.trim().to_owned(),
            (_, json) => json.to_string(),
        };
        let header = |name| reply.header(name).unwrap_or("none");
        self.said.push(format!(
            "{what}: {} index {moved}, leader {}, contact {}, consistency {}, hash {}, {text}",
            reply.status,
            header("x-consul-knownleader"),
            header("x-consul-lastcontact"),
            header("x-consul-effective-consistency"),
            reply.header("x-consul-contenthash").is_some(),
        ));
    }
}

/// A path without what makes it wait.
fn plain(path: &str) -> String {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let kept = query.split('&').filter(|part| {
        !["index=", "wait=", "hash=", "stale", "cas=", "flags="]
            .iter()
            .any(|waiting| part.starts_with(waiting))
    });
    format!("{path}?{}", kept.collect::<Vec<_>>().join("&"))
}

/// Takes out what names the node or counts, and the difference between empty and absent.
fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for key in ["CreateIndex", "ModifyIndex", "ContentHash", "Node"] {
                map.remove(key);
            }
            if let Some(Value::String(output)) = map.get_mut("Output")
                && output.starts_with("HTTP GET")
            {
                output.truncate("HTTP GET".len());
            }
            map.values_mut().for_each(strip);
            map.retain(|_, value| !(value.is_null() || *value == json!({})));
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        Value::String(text) if text.parse::<std::net::SocketAddr>().is_ok() => {
            *text = "an address".to_owned();
        }
        _ => {}
    }
}
