//! Who is let in, as whom, and who is not called.

use super::house::{House, client_of, leaf};
use crate::support::authority::{Authority, Order};
use crate::support::client::{client, secure_client};
use crate::support::collector::Collector;
use crate::support::contract::{fraud_input, fraud_output};
use crate::support::program;
use crate::support::reply::Reply;
use crate::support::road::{AGENT, ROUTE};
use crate::support::wait::wait_until;
use reqwest::{StatusCode, Version};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const WITHIN: Duration = Duration::from_secs(20);

#[tokio::test]
async fn calls_and_reports_go_by_certificate() {
    let house = House::start().await;
    let url = format!("{}/hermes/invoke", house.caller.outbound_url());
    let body = json!({"agent": AGENT, "input": fraud_input(), "context": {"task_id": "t-1"}});
    let reply = Reply::to(client().post(url).json(&body)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.body, fraud_output().to_string().as_bytes());
    let told = house.application.received(ROUTE).pop().unwrap().headers;
    assert_eq!(told["hermes-application"], "payment");
    assert_eq!(told["hermes-requester"], "\"payment\"");
    let task = house.collector.wait_task("t-1", "completed", WITHIN).await;
    assert_eq!(task["chain"], "ok");
    // The command shows the certificate of the config file.
    let output = Command::new(program::hermes())
        .args(["task", "t-1", "--collector", &house.collector.url(), "-c"])
        .arg(house.caller.config_file())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("completed"), "{told} {output:?}");

    let registered = house.consul.passing(AGENT).await;
    assert_eq!(registered[0]["Service"]["Meta"]["hermes_proto"], "https");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap().as_secs_f64();
    for certificate in ["own", "ca"] {
        let labels = [("certificate", certificate)];
        let name = "tls_certificate_expiry_timestamp_seconds";
        assert!(house.callee.metric(name, &labels).await > now + 300.0 * 86400.0);
    }
}

/// A report of this side about a call of the fraud contract.
fn report(call: &str, reporter: &str, application: &str) -> Value {
    let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    json!({
        "call_id": call, "task_id": call, "step_id": "s", "attempt": 1, "state": "completed",
        "states": [{"state": "completed", "at": now}],
        "reporter": reporter, "agent": AGENT, "application": application,
        "deadline_at": now, "duration_ms": 12,
    })
}

#[tokio::test]
async fn nobody_tells_of_a_contract_that_another_serves() {
    let house = House::start().await;
    let url = house.collector.url();
    let tell = async |name: &str, reports: Value| {
        let client = client_of(&house.ca, name);
        Reply::to(client.post(format!("{url}/report-status")).json(&reports)).await
    };
    wait_until(WITHIN, "known server of the contract", async || {
        let agents = client_of(&house.ca, "shop").get(format!("{url}/agents"));
        let reply = Reply::to(agents).await;
        reply.status == 200 && reply.json()[0]["application"] == "fraud"
    })
    .await;
    let forged = tell("shop", json!([report("c-1", "callee", "shop")])).await;
    forged.problem(403, "forbidden");
    assert!(house.collector.task("c-1").await.is_none());
    let log = house.collector.log();
    let audit = log
        .lines()
        .find(|line| line.contains(r#""audit":true"#))
        .unwrap();
    assert!(
        audit.contains(r#""caller":"shop""#) && audit.contains(AGENT),
        "{audit}"
    );
    let mixed = json!([
        report("c-2", "caller", "shop"),
        report("c-3", "callee", "shop")
    ]);
    let receipt = tell("shop", mixed).await.json();
    assert_eq!(
        (&receipt["accepted"], &receipt["rejected"][0]["index"]),
        (&json!(1), &json!(1))
    );
    let receipt = tell("fraud", json!([report("c-1", "callee", "fraud")]))
        .await
        .json();
    assert_eq!(receipt["accepted"], 1, "{receipt}");
    // Of a contract that nobody in Consul serves, nothing can be held against anybody.
    let mut unknown = report("c-4", "callee", "shop");
    unknown["agent"] = "never-v1.0".into();
    assert_eq!(tell("shop", unknown).await.json()["accepted"], 1);
    // One that no round reads, since nothing is published of it, is asked for.
    let service = json!({
        "Name": "unread-v1.0", "ID": "unread", "Address": "127.0.0.1", "Port": 1,
        "Tags": ["hermes"], "Meta": {"hermes_app": "fraud"},
    });
    let service = service.to_string();
    house
        .consul
        .put("/v1/agent/service/register", service)
        .await;
    let unread = |call: &str, application: &str| {
        let mut report = report(call, "callee", application);
        report["agent"] = "unread-v1.0".into();
        report
    };
    let calls = AtomicUsize::new(0);
    wait_until(WITHIN, "refusal for an unread contract", async || {
        let call = format!("u-{}", calls.fetch_add(1, Ordering::Relaxed));
        let reply = tell("shop", unread(&call, "shop")).await;
        reply.status == 403
    })
    .await;
    let served = tell("fraud", unread("c-5", "fraud")).await;
    assert_eq!(served.json()["accepted"], 1);
}

#[tokio::test]
async fn the_calling_application_is_the_one_that_the_certificate_names() {
    let house = House::start_with(|callee| callee.set("inbound.passthrough", vec!["/free"])).await;
    let call = |path: &str| {
        client_of(&house.ca, "shop")
            .post(format!("{}{path}", house.callee.secure_inbound_url()))
            .header("content-type", "application/json")
            .header("hermes-application", "forged")
    };
    let request = call(ROUTE).header("hermes-requester", "\"till\"");
    let reply = Reply::to(request.body(fraud_input().to_string())).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("hermes-application"), "shop");
    let told = house.application.received(ROUTE).pop().unwrap().headers;
    assert_eq!(told["hermes-application"], "shop");
    assert_eq!(told["hermes-requester"], "\"till\"");
    // What is passed on unchecked tells the application the same.
    Reply::to(call("/free/x").body("{}")).await;
    let told = house.application.received("/free/x").pop().unwrap().headers;
    assert_eq!(told["hermes-application"], "shop");
}

#[tokio::test]
async fn only_those_who_are_allowed_may_call() {
    let house = House::start_with(|callee| callee.route("allow", vec!["shop", "till"])).await;
    let url = format!("{}{ROUTE}", house.callee.secure_inbound_url());
    for (name, status) in [("shop", 200), ("till", 200), ("payment", 403)] {
        let request = client_of(&house.ca, name)
            .post(&url)
            .header("content-type", "application/json")
            // A name that is allowed, but not the caller's.
            .header("hermes-application", "shop");
        let reply = Reply::to(request.body(fraud_input().to_string())).await;
        assert_eq!(reply.status, status, "{name}");
    }
    let body = json!({"agent": AGENT, "input": fraud_input()});
    let url = format!("{}/hermes/invoke", house.caller.outbound_url());
    let reply = Reply::to(client().post(url).json(&body)).await;
    assert_eq!(reply.header("hermes-executed"), "?0");
    // The caller's sidecar adds the state that its own attempt has ended in.
    assert_eq!(reply.status, 403);
    assert_eq!(reply.json()["type"], "urn:hermes:problem:forbidden");
    assert_eq!(house.application.received(ROUTE).len(), 2);
    let log = house.callee.log();
    assert!(
        log.contains("not in `allow`") && log.contains("payment"),
        "{log}"
    );
}

#[tokio::test]
async fn a_peer_without_or_with_a_foreign_certificate_is_refused() {
    let house = House::start().await;
    let foreign = Authority::new("foreign");
    let now = SystemTime::now();
    let past = (now - Duration::from_secs(60), now - Duration::from_secs(1));
    let other_domain = Order::nameless().uri("spiffe://evil.test/svc/shop");
    let shown = [
        ("none", None),
        ("foreign", Some(foreign.spiffe("shop"))),
        ("expired", {
            let order = Order::spiffe("shop").valid(past.0, past.1);
            Some(house.ca.issue(order))
        }),
        ("nameless", Some(house.ca.issue(Order::nameless()))),
        ("other domain", Some(house.ca.issue(other_domain))),
        (
            "issuer",
            Some(house.ca.issue(Order::spiffe("shop").authority())),
        ),
    ];
    let places = [
        format!("{}/hermes/health", house.callee.secure_inbound_url()),
        format!("{}/live", house.collector.url()),
    ];
    for url in &places {
        for (what, leaf) in &shown {
            let client = secure_client(&house.ca, leaf.as_ref()).build().unwrap();
            let refused = client.get(url).send().await;
            assert!(refused.is_err(), "{what} at {url}: {refused:?}");
        }
        let plain = client().get(url.replace("https", "http")).send().await;
        assert!(plain.is_err(), "{plain:?}");
        let good = client_of(&house.ca, "shop").get(url).send().await;
        assert_eq!(good.unwrap().status(), StatusCode::OK, "{url}");
    }
}

#[tokio::test]
async fn both_protocols_are_spoken_under_tls() {
    let house = House::start().await;
    let shop = house.ca.spiffe("shop");
    let url = format!("{}/hermes/health", house.callee.secure_inbound_url());
    let any = secure_client(&house.ca, Some(&shop));
    let only = secure_client(&house.ca, Some(&shop)).http1_only();
    for (builder, version) in [(any, Version::HTTP_2), (only, Version::HTTP_11)] {
        let reply = builder.build().unwrap().get(&url).send().await.unwrap();
        assert_eq!(reply.version(), version);
        assert_eq!(reply.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn an_address_that_now_belongs_to_another_gets_no_call() {
    let mut house = House::start().await;
    let address = house.callee.secure_inbound_url();
    let address = address.strip_prefix("https://").unwrap();
    house.callee.kill9();
    // Consul believes in the dead one until its check runs out.
    let squatter = Squatter::start(address, &house.ca, "till").await;
    let url = format!("{}/hermes/invoke", house.caller.outbound_url());
    let body = json!({"agent": AGENT, "input": fraud_input()});
    let reply = Reply::to(client().post(url).json(&body)).await;
    assert_eq!(reply.header("hermes-executed"), "?0");
    reply.problem(502, "upstream-unreachable");
    wait_until(WITHIN, "visit to the squatter", async || {
        squatter.tries.load(Ordering::SeqCst) > 0
    })
    .await;
    assert_eq!(squatter.handshakes.load(Ordering::SeqCst), 0);
    let log = house.caller.log();
    assert!(
        log.contains("the peer is \\\"till\\\" where \\\"fraud\\\" was looked for"),
        "{log}"
    );
}

/// Answers at an address that was somebody else's, with a valid certificate of its own.
struct Squatter {
    tries: Arc<AtomicUsize>,
    handshakes: Arc<AtomicUsize>,
    _worker: JoinSet<()>,
}

impl Squatter {
    async fn start(address: &str, ca: &Authority, name: &str) -> Self {
        let leaf = leaf(ca, name);
        let chain = CertificateDer::pem_slice_iter(leaf.chain.as_bytes());
        let chain = chain.collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(address).await.unwrap();
        let (tries, handshakes) = (Arc::default(), Arc::default());
        let mut worker = JoinSet::new();
        let (tried, shaken): (Arc<AtomicUsize>, Arc<AtomicUsize>) =
            (Arc::clone(&tries), Arc::clone(&handshakes));
        worker.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if acceptor.accept(stream).await.is_ok() {
                    shaken.fetch_add(1, Ordering::SeqCst);
                }
                tried.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self {
            tries,
            handshakes,
            _worker: worker,
        }
    }
}

#[tokio::test]
async fn a_collector_takes_reports_from_those_whom_they_are_about() {
    let house = House::start().await;
    let url = format!("{}/report-status", house.collector.url());
    let shop = client_of(&house.ca, "shop");
    let report = |task: &str, application: Option<&str>| {
        let mut report = json!({"task_id": task, "status": "success"});
        if let Some(application) = application {
            report["application"] = application.into();
        }
        report
    };
    let mixed = json!([
        report("r-1", Some("shop")),
        report("r-2", Some("fraud")),
        report("r-3", None)
    ]);
    let reply = shop.post(&url).json(&mixed).send().await.unwrap();
    assert_eq!(reply.status(), StatusCode::OK);
    let receipt: Value = reply.json().await.unwrap();
    assert_eq!(receipt["accepted"], 2);
    assert_eq!(receipt["rejected"][0]["index"], 1);
    let reason = receipt["rejected"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("shop"), "{reason}");
    for (task, is_known) in [("r-1", true), ("r-2", false), ("r-3", true)] {
        let known = house.collector.task(task).await.is_some();
        assert_eq!(known, is_known, "{task}");
    }
    let foreign = json!([report("r-4", Some("fraud"))]);
    let reply = Reply::to(shop.post(&url).json(&foreign)).await;
    reply.problem(403, "forbidden");
    assert!(house.collector.task("r-4").await.is_none());
    let log = house.collector.log();
    let audits = log.lines().filter(|line| line.contains(r#""audit":true"#));
    assert_eq!(audits.count(), 2, "{log}");
}

#[tokio::test]
async fn a_collector_with_a_token_takes_either_proof() {
    let house = House::start().await;
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "s3cret\n").unwrap();
    let settings = [
        ("collector.consul", false.into()),
        ("collector.token_file", token.to_str().unwrap().into()),
    ];
    let shop = client_of(&house.ca, "shop");
    let files = &house.files.collector;
    let collector = Collector::start_secured(&settings, files, shop.clone()).await;
    let nobody = secure_client(&house.ca, None).build().unwrap();
    let url = format!("{}/report-status", collector.url());
    let report = |application: &str| json!({"task_id": "t", "status": "success", "application": application});
    for (client, token, application, status) in [
        (&shop, None, "shop", 200),
        (&shop, None, "fraud", 403),
        // A certificate says who reports, also beside a token.
        (&shop, Some("s3cret"), "fraud", 403),
        (&nobody, Some("s3cret"), "fraud", 200),
        (&nobody, Some("wrong"), "fraud", 401),
        (&nobody, None, "fraud", 401),
    ] {
        let mut request = client.post(&url).json(&report(application));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let reply = request.send().await.unwrap();
        assert_eq!(reply.status().as_u16(), status, "{token:?} {application}");
    }
}
