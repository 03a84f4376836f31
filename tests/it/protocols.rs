//! HTTP/1.1 and HTTP/2, TCP and unix sockets, upgrades: whatever a service speaks passes.

use crate::support::client::client;
use crate::support::consul::Consul;
use crate::support::contract;
use crate::support::polyglot::Polyglot;
use crate::support::road::{AGENT, ROUTE, patient_contract, wait_known};
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::wait_until;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

const WITHIN: Duration = Duration::from_secs(10);

/// Two sidecars and an application of many protocols behind the second one.
struct Pair {
    caller: Sidecar,
    callee: Sidecar,
    application: Polyglot,
    _consul: Consul,
}

impl Pair {
    async fn speaking(protocol: &str) -> Self {
        Self::with(|callee| callee.set("application.protocol", protocol)).await
    }

    async fn with(change: impl FnOnce(Setup) -> Setup) -> Self {
        let (application, address) = Polyglot::on_port().await;
        let consul = Consul::start().await;
        let everything: toml::Value = vec!["/"].into();
        let callee = Sidecar::named("fraud")
            .application(&format!("http://{address}"))
            .contract(tried_contract(), "POST", ROUTE)
            .set("inbound.passthrough", everything)
            .consul(&consul.address());
        let caller = Sidecar::named("payment").consul(&consul.address());
        let (callee, caller) = tokio::join!(change(callee).start(), caller.start());
        wait_known(&caller, 1).await;
        Self {
            caller,
            callee,
            application,
            _consul: consul,
        }
    }

    /// The inbound listener and the outbound one, each with the path that leads to `path`.
    fn doors(&self, path: &str) -> [String; 2] {
        [
            format!("{}{path}", self.callee.inbound_url()),
            format!("{}/agents/{AGENT}{path}", self.caller.outbound_url()),
        ]
    }
}

/// One that is admitted only after calls, which go the way of every other call.
fn tried_contract() -> Value {
    let mut body = patient_contract();
    body["probe"] = json!({"input": contract::fraud_input(), "calls": 4, "concurrency": 4});
    body
}

fn http2_client() -> reqwest::Client {
    let builder = reqwest::Client::builder().no_proxy().timeout(WITHIN);
    builder.http2_prior_knowledge().build().unwrap()
}

/// Asks for `url` and returns the protocol of the reply and the one the application was asked in.
async fn asked_in(client: &reqwest::Client, url: &str) -> (Version, String) {
    let request = client.post(url).json(&contract::fraud_input());
    let reply = request.send().await.unwrap().error_for_status().unwrap();
    let told = reply.headers()["x-asked-in"].to_str().unwrap().to_owned();
    // The first hop says in which protocol the answer came (RFC 9110 section 7.6.3).
    let via = reply.headers()["via"].to_str().unwrap();
    assert_eq!(via[..3], told[5..], "{via}");
    let version = reply.version();
    reply.bytes().await.unwrap();
    (version, told)
}

#[tokio::test]
async fn the_application_is_spoken_to_as_it_wants_whatever_comes_in() {
    for (protocol, from_http1, from_http2) in [
        ("http1", "HTTP/1.1", "HTTP/1.1"),
        ("h2c", "HTTP/2.0", "HTTP/2.0"),
        ("same", "HTTP/1.1", "HTTP/2.0"),
    ] {
        let pair = Pair::speaking(protocol).await;
        for url in pair.doors("/other") {
            let (version, told) = asked_in(&client(), &url).await;
            assert_eq!((version, told.as_str()), (Version::HTTP_11, from_http1));
            let (version, told) = asked_in(&http2_client(), &url).await;
            assert_eq!(
                (version, told.as_str()),
                (Version::HTTP_2, from_http2),
                "{protocol} {url}"
            );
        }
        // A checked call travels between sidecars as they like; in clear that is HTTP/1.1.
        let [inbound, outbound] = pair.doors(ROUTE);
        assert_eq!(asked_in(&http2_client(), &inbound).await.1, from_http2);
        assert_eq!(asked_in(&http2_client(), &outbound).await.1, from_http1);
    }
}

#[tokio::test]
async fn trailers_pass_both_ways_in_either_protocol() {
    let pair = Pair::speaking("same").await;
    for url in pair.doors("/trailers") {
        let url: hyper::Uri = url.parse().unwrap();
        let address: SocketAddr = url.authority().unwrap().as_str().parse().unwrap();
        let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("42"));
        let body = Full::new(Bytes::from_static(b"content"));
        let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
        let request = Request::post(url).header("te", "trailers").body(body);
        let reply = sender.send_request(request.unwrap()).await.unwrap();
        assert_eq!(reply.status(), 200);
        let collected = reply.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["x-sum"], "42");
        assert_eq!(collected.to_bytes(), "content");

        let mut stream = TcpStream::connect(address).await.unwrap();
        let path = sender_path(&pair, address);
        let text = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nTE: trailers\r\nConnection: close, te\r\n\
             Trailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n7\r\ncontent\r\n0\r\nx-sum: 43\r\n\r\n"
        );
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut reply = String::new();
        let reading = stream.read_to_string(&mut reply);
        timeout(WITHIN, reading).await.unwrap().unwrap();
        assert!(reply.ends_with("x-sum: 43\r\n\r\n"), "{reply}");
    }
}

fn sender_path(pair: &Pair, address: SocketAddr) -> String {
    match pair.callee.inbound_url().ends_with(&address.to_string()) {
        true => "/trailers".to_owned(),
        false => format!("/agents/{AGENT}/trailers"),
    }
}

#[tokio::test]
async fn an_answer_that_an_http2_peer_does_not_take_is_let_go() {
    let pair = Pair::with(|callee| callee.set("limits.stream_idle_timeout", "1s")).await;
    let [inbound, _] = pair.doors("/other");
    let url: hyper::Uri = inbound.parse().unwrap();
    let stream = TcpStream::connect(url.authority().unwrap().as_str());
    let io = TokioIo::new(stream.await.unwrap());
    let mut builder = http2::Builder::new(TokioExecutor::new());
    // Not a byte of any answer may be sent.
    builder.initial_stream_window_size(0);
    let (mut sender, connection) = builder.handshake(io).await.unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    let mut replies = Vec::new();
    for _ in 0..20 {
        let request = Request::get(url.clone()).body(Full::<Bytes>::default());
        let reply = sender.send_request(request.unwrap()).await.unwrap();
        assert_eq!(reply.status(), 200);
        replies.push(reply);
    }
    wait_until(WITHIN, "answers that are let go", async || {
        let inflight = [("direction", "inbound")];
        let inflight = pair.callee.metric("proxy_inflight_requests", &inflight);
        inflight.await == 0.0
    })
    .await;
    // The connection goes on.
    let request = Request::get(url).body(Full::<Bytes>::default());
    let reply = sender.send_request(request.unwrap()).await.unwrap();
    assert_eq!(reply.status(), 200);
}

#[tokio::test]
async fn no_byte_crosses_before_a_switch_is_granted_and_every_byte_after() {
    let pair = Pair::speaking("http1").await;
    for url in pair.doors("/echo") {
        let url: hyper::Uri = url.parse().unwrap();
        let authority = url.authority().unwrap().as_str();
        let mut stream = TcpStream::connect(authority).await.unwrap();
        let path = url.path();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: parrot\r\n\r\n"
        );
        // The second half would be a request to a path of its own, were it read as one.
        let early = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
        stream
            .write_all(format!("{head}{early}").as_bytes())
            .await
            .unwrap();
        let application = &pair.application;
        wait_until(WITHIN, "request at the application", async || {
            application
                .heads()
                .iter()
                .any(|(_, path, _)| path == "/echo")
        })
        .await;
        let mut piece = [0; 1];
        let early_answer = timeout(Duration::from_millis(200), stream.read(&mut piece)).await;
        assert!(early_answer.is_err(), "answered before it was granted");
        application.grant();
        let answer = read_until(&mut stream, early).await;
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        assert!(
            answer.to_lowercase().contains("upgrade: parrot\r\n"),
            "{answer}"
        );
        stream.write_all(b"more").await.unwrap();
        assert_eq!(read_until(&mut stream, "more").await, "more");
        let paths: Vec<String> = application.heads().into_iter().map(|head| head.1).collect();
        assert!(!paths.iter().any(|path| path == "/smuggled"), "{paths:?}");
        let inbound = pair
            .callee
            .metric("proxy_inflight_requests", &[("direction", "inbound")]);
        assert_eq!(inbound.await, 1.0, "a tunnel is in flight");
        drop(stream);
        wait_until(WITHIN, "end of the tunnel", async || {
            let inflight = [("direction", "inbound")];
            pair.callee
                .metric("proxy_inflight_requests", &inflight)
                .await
                == 0.0
        })
        .await;
    }
}

#[tokio::test]
async fn a_refused_switch_leaves_an_ordinary_connection_and_h2c_is_never_asked_for() {
    let pair = Pair::speaking("http1").await;
    for url in pair.doors("/refuse") {
        let url: hyper::Uri = url.parse().unwrap();
        let authority = url.authority().unwrap().as_str();
        let mut stream = TcpStream::connect(authority).await.unwrap();
        let path = url.path();
        for protocol in ["parrot", "h2c"] {
            let head = format!(
                "GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade, HTTP2-Settings\r\n\
                 Upgrade: {protocol}\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let end = contract::fraud_output().to_string();
            let answer = read_until(&mut stream, &end).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
    }
    let heads = pair.application.heads();
    let asked: Vec<_> = heads.iter().filter(|head| head.1 == "/refuse").collect();
    assert_eq!(asked.len(), 4);
    for (index, (_, _, fields)) in asked.iter().enumerate() {
        assert_eq!(fields.contains_key("upgrade"), index % 2 == 0, "{fields:?}");
        assert!(!fields.contains_key("http2-settings"), "{fields:?}");
    }
}

#[tokio::test]
async fn unix_sockets_serve_as_listeners_and_as_the_application() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let at = |name: &str| format!("unix:{}", place(name).display());
    let application = Polyglot::on_socket(&place("application"));
    let consul = Consul::start().await;
    let mut callee = Sidecar::named("fraud")
        .application(&at("application"))
        .contract(tried_contract(), "POST", ROUTE)
        .set("outbound.listen", at("outbound"))
        .set("admin.public_listen", at("public"))
        .consul(&consul.address())
        .start()
        .await;
    let input = contract::fraud_input().to_string();
    // Its own contract, through its own outbound listener and back in.
    let request = format!(
        "POST /agents/{AGENT}{ROUTE} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{input}",
        input.len()
    );
    let mut reply = String::new();
    wait_until(WITHIN, "answer over the unix socket", async || {
        reply = talk(&place("outbound"), &request).await;
        reply.starts_with("HTTP/1.1 200 ")
    })
    .await;
    assert!(reply.contains("hermes-state: completed"), "{reply}");
    let live = "GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let live = talk(&place("public"), live).await;
    assert!(live.starts_with("HTTP/1.1 200 "), "{live}");
    assert!(application.heads().iter().any(|head| head.1 == ROUTE));
    assert!(callee.terminate().await.success());
    assert!(!place("outbound").exists(), "its socket was left behind");
}

async fn talk(socket: &std::path::Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    let reading = stream.read_to_string(&mut reply);
    timeout(WITHIN, reading).await.unwrap().unwrap();
    reply
}

/// Reads until what came ends with `end`.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    let mut piece = [0; 1024];
    while !read.ends_with(end.as_bytes()) {
        let length = timeout(WITHIN, stream.read(&mut piece)).await;
        let length =
            length.unwrap_or_else(|_| panic!("so far: {}", String::from_utf8_lossy(&read)));
        let length = length.unwrap();
        assert_ne!(length, 0, "ended: {}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&piece[..length]);
    }
    String::from_utf8(read).unwrap()
}
