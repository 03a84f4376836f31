//! Paths beside the contracts are passed on as they come, and end when their caller goes.

use crate::support::application::Answer;
use crate::support::client::{client, exchange};
use crate::support::pair::{FRAUD, Pair, RISK};
use crate::support::reply::Reply;
use crate::support::wait::wait_until;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const WITHIN: Duration = Duration::from_secs(5);
const QUIET: Duration = Duration::from_secs(2);

/// The pair with everything under `/open/` passed through.
async fn open() -> Pair {
    Pair::with(|callee| {
        let prefixes: toml::Value = vec!["/open/", "/API/", "/api/"].into();
        callee.set("inbound.passthrough", prefixes)
    })
    .await
}

#[tokio::test]
async fn answers_of_known_length_leave_their_connection_for_the_next() {
    let pair = open().await;
    pair.application
        .answer("/open/kept", Answer::bytes(200, "text/plain", "whole"));
    for (base, prefix) in [
        (pair.callee.inbound_url(), String::new()),
        (pair.caller.outbound_url(), format!("/agents/{FRAUD}")),
    ] {
        for _ in 0..5 {
            let request = client().post(format!("{base}{prefix}/open/kept"));
            let reply = Reply::to(request.body("as it comes")).await;
            assert_eq!(reply.status, 200, "{reply:?}");
        }
    }
    let received = pair.application.received("/open/kept");
    let mut connections: Vec<usize> = received.iter().map(|r| r.connection).collect();
    connections.dedup();
    assert_eq!(
        (received.len(), connections.len()),
        (10, 1),
        "{connections:?}"
    );
}

#[tokio::test]
async fn whatever_comes_goes_on_unchecked_and_comes_back_as_it_is() {
    let pair = open().await;
    pair.application.script("/open/any", |received| {
        Answer::bytes(207, "text/odd", received.body.clone())
            .with("x-method", received.method.as_str())
            .with("hermes-state", "completed")
            .with("set-cookie", "a=1")
    });
    for (base, prefix) in [
        (pair.callee.inbound_url(), String::new()),
        (pair.caller.outbound_url(), format!("/agents/{FRAUD}")),
    ] {
        let url = format!("{base}{prefix}/open/any?q=%2F&q=2");
        let request = client().request("PATCH".parse().unwrap(), url);
        let request = request
            .header("hermes-look-alike", "1")
            .header("content-encoding", "x-own");
        let reply = Reply::to(request.body(&b"\0\xffnot json"[..])).await;
        assert_eq!(
            (reply.status, &reply.body[..]),
            (207, &b"\0\xffnot json"[..]),
            "{reply:?}"
        );
        assert_eq!(reply.header("x-method"), "PATCH");
        assert_eq!(reply.header("set-cookie"), "a=1");
        assert!(!reply.headers.contains_key("hermes-state"), "{reply:?}");
        let received = pair.application.received("/open/any").pop().unwrap();
        assert_eq!(received.target, "/open/any?q=%2F&q=2");
        assert_eq!(received.headers["content-encoding"], "x-own");
        assert!(
            !received.headers.contains_key("hermes-look-alike"),
            "{received:?}"
        );
        assert!(
            received.headers.contains_key("traceparent") && received.headers.contains_key("via")
        );
    }
    // An error of the application is the application's; a path it does not pass is not found.
    let url = format!("{}/open/none", pair.callee.inbound_url());
    let reply = Reply::to(client().get(url)).await;
    assert_eq!((reply.status, reply.body.len()), (404, 0), "{reply:?}");
    let url = format!("{}/closed", pair.callee.inbound_url());
    Reply::to(client().get(url)).await.problem(404, "not-found");
}

#[tokio::test]
async fn no_spelling_of_a_contracts_path_slips_through_unchecked() {
    let pair = open().await;
    for path in [
        "/api/v1/risk/",
        "/api//v1/risk",
        "/API/v1/risk",
        "/api/v1/Risk",
        "/api/v1/%72isk",
        "/api/v1/risk;a=b",
        "/api/v1%2Frisk",
        "/api/v1\\risk",
    ] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        let address = pair
            .callee
            .inbound_url()
            .replace("http://", "")
            .parse()
            .unwrap();
        let reply = Reply::read(&exchange(address, request.as_bytes(), QUIET).await);
        assert!(matches!(reply.status, 404 | 400), "{path}: {reply:?}");
        if reply.status == 404 {
            reply.problem(404, "not-found");
        }
        assert_eq!(pair.application.calls(path), 0, "{path}");
    }
    assert_eq!(pair.application.calls(RISK), 0);
    let near = client().get(format!("{}/api/v1/risks", pair.callee.inbound_url()));
    assert_eq!(Reply::to(near).await.body.len(), 0);
    assert_eq!(pair.application.calls("/api/v1/risks"), 1);
}

#[tokio::test]
async fn a_caller_that_hangs_up_cancels_what_is_passed_through() {
    let pair = open().await;
    pair.application.answer("/open/hang", Answer::Hang);
    let call = client()
        .get(format!("{}/open/hang", pair.callee.inbound_url()))
        .send();
    tokio::select! {
        reply = call => panic!("answered: {reply:?}"),
        () = wait_until(WITHIN, "request", async || pair.application.calls("/open/hang") == 1) => {}
    }
    wait_until(WITHIN, "the application to be let go", async || {
        pair.application.abandoned() == 1
    })
    .await;
}

#[tokio::test]
async fn bodies_stream_both_ways_piece_by_piece() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    let pair = Pair::with(|callee| {
        let prefixes: toml::Value = vec!["/"].into();
        callee
            .set("inbound.passthrough", prefixes)
            .set("application.health", "/healthy")
            .application(&upstream)
    });
    // Until the sidecar is ready it asks for health; afterwards our own request comes.
    let healthy = async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            answer_health(stream).await;
        }
    };
    let pair = tokio::select! {
        pair = pair => pair,
        () = healthy => unreachable!(),
    };
    let address = pair.callee.inbound_url().replace("http://", "");
    let mut caller = TcpStream::connect(address).await.unwrap();
    caller
        .write_all(
            b"POST /up HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n",
        )
        .await
        .unwrap();
    let mut application = loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = read_until(&mut stream, "\r\n\r\n").await;
        if head.starts_with("POST /up") {
            // The first piece arrives while the caller still has the rest.
            if !head.contains("one") {
                read_until(&mut stream, "one").await;
            }
            break stream;
        }
    };
    caller.write_all(b"3\r\ntwo\r\n0\r\n\r\n").await.unwrap();
    read_until(&mut application, "two").await;
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    application.write_all(head.as_bytes()).await.unwrap();
    for event in ["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"] {
        let piece = format!("{:x}\r\n{event}\r\n", event.len());
        application.write_all(piece.as_bytes()).await.unwrap();
        // It is here before the next is sent.
        read_until(&mut caller, event).await;
    }
    application.write_all(b"0\r\n\r\n").await.unwrap();
    read_until(&mut caller, "0\r\n\r\n").await;
}

async fn answer_health(mut stream: TcpStream) {
    read_until(&mut stream, "\r\n\r\n").await;
    let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.write_all(reply).await.unwrap();
}

/// Reads until `mark` has come, and returns everything read.
async fn read_until(stream: &mut TcpStream, mark: &str) -> String {
    let mut text = String::new();
    let mut chunk = [0; 4096];
    while !text.contains(mark) {
        let read = timeout(WITHIN, stream.read(&mut chunk)).await;
        let length = read
            .unwrap_or_else(|_| panic!("no {mark:?} after {text:?}"))
            .unwrap();
        assert!(length > 0, "closed before {mark:?} after {text:?}");
        text.push_str(&String::from_utf8_lossy(&chunk[..length]));
    }
    text
}
