//! Who waits for whom: permission to send a body, and clients that take their time.

use super::frames::{DATA, END_HEADERS, Frames, HEADERS, Outcome, block, frame};
use super::message::{GOOD, answer, post, request};
use super::peer::Step;
use super::wire::{Now, WITHIN, Wire, ask};
use super::world::{INVOKE, Inside, order_contract};
use crate::support::sidecar::Setup;
use crate::support::wait::wait_until;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, timeout};

const LARGE: usize = 5 << 20;
/// What the sidecar may have resident, whatever it passes on.
const MEMORY: u64 = 80 << 20;
/// How soon a head that can be judged is answered.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Writes the head of a large POST whose sender waits for a 100.
fn expecting(target: &str, kind: &str, fields: &str) -> String {
    let fields = format!(
        "Content-Type: {kind}\r\nContent-Length: {LARGE}\r\nExpect: 100-continue\r\n{fields}"
    );
    request(&format!("POST {target}"), &fields, "")
}

/// An order with white space behind it.
fn large() -> String {
    format!("{GOOD}{}", " ".repeat(LARGE - GOOD.len()))
}

/// What the head shows is refused without a 100; otherwise there is exactly one, at once.
///
/// An expectation that is not known is ignored, as RFC 9110 section 10.1.1 allows beside 417.
pub async fn a_sender_that_waits_is_told_at_once() -> String {
    let wide = |setup: Setup| setup.set("limits.max_body_bytes", 8 << 20);
    let (world, narrow) = tokio::join!(Inside::with(wide), Inside::start());
    let out = |world: &Inside| world.sidecar.outbound_url().replace("http://", "");
    let json = "application/json";
    let refused = [
        (&world.address, expecting(INVOKE, "text/plain", ""), 415),
        (
            &world.address,
            expecting(INVOKE, json, "Content-Encoding: gzip\r\n"),
            415,
        ),
        (
            &world.address,
            expecting(INVOKE, json, "Hermes-Agent: other-v1.0\r\n"),
            421,
        ),
        (
            &world.address,
            expecting("/hermes/agents/other-v1.0", json, ""),
            404,
        ),
        (
            &world.address,
            expecting(INVOKE, json, "Hermes-Task-Id: a b\r\n"),
            400,
        ),
        (&narrow.address, expecting(INVOKE, json, ""), 413),
        (
            &out(&world),
            expecting("/hermes/invoke", "text/plain", ""),
            415,
        ),
        (&out(&world), expecting("/elsewhere", json, ""), 404),
        (&out(&narrow), expecting("/hermes/invoke", json, ""), 413),
    ];
    for (address, head, status) in &refused {
        let mut wire = Wire::to(address).await;
        wire.send(head).await;
        let reply = timeout(AT_ONCE, wire.answer())
            .await
            .expect("no answer to a head");
        assert_eq!(reply.status, *status, "{head}: {reply:?}");
        // The body that was announced does not come, so nothing else can.
        assert_eq!(wire.end().await, b"");
    }
    assert!(world.application.news().is_empty() && narrow.application.news().is_empty());

    let body = large();
    world.application.answer("/open", answer(200, "", ""));
    for target in [INVOKE, "/open"] {
        let mut wire = Wire::to(&world.address).await;
        wire.send(expecting(target, json, "")).await;
        let go_on = timeout(AT_ONCE, wire.head()).await.expect("no 100");
        assert!(go_on.starts_with("HTTP/1.1 100 "), "{go_on}");
        wire.send(&body).await;
        assert_eq!(wire.answer().await.status, 200, "{target}");
        assert_eq!(wire.now().await, Now::Silent, "{target}");
        let heard = world.application.only();
        assert_eq!(heard.body, body.as_bytes());
        assert!(heard.values("expect").is_empty(), "{}", heard.head);
    }
    // A refusal of the application arrives, whether the sender has begun or still waits.
    let early = answer(413, "Connection: close\r\n", "early");
    world.application.at_head("/early", vec![Step::Send(early)]);
    for sends in [false, true] {
        let mut wire = Wire::to(&world.address).await;
        wire.send(expecting("/early", json, "")).await;
        if sends {
            wire.send(&body).await;
        }
        let mut reply = wire.answer().await;
        if reply.status == 100 {
            reply = wire.answer().await;
        }
        assert_eq!(
            (reply.status, &reply.body[..]),
            (413, &b"early"[..]),
            "{sends}"
        );
    }
    world.application.news();

    let other = post(INVOKE, "Expect: something-else\r\n", GOOD);
    assert!(matches!(ask(&world.address, other).await.status, 200 | 417));
    for target in [INVOKE, "/open"] {
        let old = expecting(target, json, "").replace("HTTP/1.1", "HTTP/1.0");
        let mut wire = Wire::to(&world.address).await;
        wire.send(old).await;
        assert_eq!(wire.now().await, Now::Silent, "HTTP/1.0 knows no 100");
        wire.send(&body).await;
        assert_eq!(wire.answer().await.status, 200);
    }
    format!(
        "{} heads refused without a 100, one 100 otherwise, early refusals arrive, none for HTTP/1.0",
        refused.len()
    )
}

/// A client that sends a byte now and then, and what became of it.
async fn trickle(address: String, begin: String, pace: Duration) -> Vec<u8> {
    let mut wire = Wire::to(&address).await;
    wire.send(begin).await;
    let (began, mut pace) = (Instant::now(), interval(pace));
    while began.elapsed() < WITHIN {
        pace.tick().await;
        if !wire.send("x").await || wire.is_over() {
            break;
        }
    }
    wire.end().await
}

/// Slow heads and bodies are ended by limits of their own, and hold up nobody else meanwhile; a
/// reader that takes nothing is let go.
pub async fn slow_clients_are_ended_and_hold_up_nobody() -> String {
    let shown = slow_clients(60, Duration::from_millis(50)).await;
    readers_that_take_nothing().await;
    stalled_http2().await;
    format!("{shown}; readers that take nothing let go")
}

/// HTTP/2 connections whose greeting, head or body does not come to its end.
async fn stalled_http2() {
    let world = Inside::with(|setup| {
        setup
            .set("limits.header_timeout", "300ms")
            .set("limits.body_timeout", "500ms")
            .set("limits.idle_timeout", "700ms")
    })
    .await;
    let mut wire = Wire::to(&world.address).await;
    wire.send("PRI * HTT").await;
    wire.end().await;

    let order = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", INVOKE),
        ("content-type", "application/json"),
    ];
    let mut frames = Frames::to(&world.address).await;
    // After a first request both sides have acknowledged each other's settings: nothing comes
    // between the parts of a head.
    frames.ask(1, &order, GOOD.as_bytes()).await;
    let whole = frames.outcome(1).await;
    assert!(
        matches!(whole, Outcome::Answer { status: 200, .. }),
        "{whole:?}"
    );
    world.application.only();
    frames.send(&frame(HEADERS, 0, 3, &block(&order))).await;
    let began = Instant::now();
    let code = frames.farewell().await;
    let took = began.elapsed();
    assert!(took > Duration::from_millis(250), "{took:?}: {code:?}");

    let mut frames = Frames::to(&world.address).await;
    let head = frame(HEADERS, END_HEADERS, 1, &block(&order));
    frames.send(&[head, frame(DATA, 0, 1, b"{")].concat()).await;
    match frames.outcome(1).await {
        Outcome::Answer { status, .. } => assert_eq!(status, 408),
        other => panic!("{other:?}"),
    }
    assert!(world.application.news().is_empty());
}

/// Answers of 50 MB for readers that stop after the first bytes.
async fn readers_that_take_nothing() {
    let limited = |setup: Setup| setup.set("limits.stream_idle_timeout", "1s");
    let mut world = Inside::with(limited).await;
    world
        .application
        .answer("/large", answer(200, "", &"x".repeat(50 << 20)));
    let mut readers = Vec::new();
    for _ in 0..5 {
        let mut wire = Wire::to(&world.address).await;
        wire.send(request("GET /large", "", "")).await;
        wire.head().await;
        readers.push(wire);
    }
    wait_until(WITHIN, "the application to be let go", async || {
        world.application.left().len() == readers.len()
    })
    .await;
    wait_until(WITHIN, "requests to be over", async || {
        world.inflight().await == 0.0
    })
    .await;
    let peak = world.sidecar.process().peak_memory();
    assert!(peak < MEMORY, "{} MB", peak >> 20);
}

/// Lets `count` clients of each kind send one byte each `pace`.
pub async fn slow_clients(count: usize, pace: Duration) -> String {
    let mut narrow = order_contract();
    narrow["constraints"]["max_concurrent"] = 1.into();
    narrow["id"] = "order-narrow-v1.0".into();
    let world = Inside::with(|setup| {
        setup
            .set("limits.header_timeout", "500ms")
            .set("limits.body_timeout", "700ms")
            .set("limits.idle_timeout", "900ms")
            .contract(narrow, "POST", "/narrow")
    })
    .await;
    world
        .application
        .answer("/narrow", super::message::json("{}"));
    let inbound = world.address.clone();
    let outbound = world.sidecar.outbound_url().replace("http://", "");

    let mut heads = JoinSet::new();
    for (address, target) in [(&inbound, "/narrow"), (&outbound, "/hermes/invoke")] {
        for _ in 0..count {
            let begin = format!("POST {target} HTTP/1.1\r\nHost: localhost\r\nX: ");
            heads.spawn(trickle(address.clone(), begin, pace));
        }
    }
    served_meanwhile(&world, &mut heads, |ended| {
        assert_eq!(ended, b"", "a head that is late has no answer")
    })
    .await;

    let mut bodies = JoinSet::new();
    for (address, target) in [(&inbound, "/narrow"), (&outbound, "/hermes/invoke")] {
        for _ in 0..count {
            let begin = request(
                &format!("POST {target}"),
                "Content-Type: application/json\r\nContent-Length: 100000\r\n",
                "{",
            );
            bodies.spawn(trickle(address.clone(), begin, pace));
        }
    }
    served_meanwhile(&world, &mut bodies, |ended| {
        crate::support::reply::Reply::read(ended).problem(408, "request-timeout");
    })
    .await;
    assert_eq!(world.refused("request-timeout").await, count as f64);

    // One that says nothing at all, before its first request and after one.
    for first in ["", &*post(INVOKE, "", GOOD)] {
        let mut wire = Wire::to(&world.address).await;
        if !first.is_empty() {
            wire.send(first).await;
            assert_eq!(wire.answer().await.status, 200);
        }
        assert_eq!(wire.end().await, b"");
    }
    format!(
        "{} late heads closed, {} late bodies 408, silent ones closed; the one permit stayed free",
        2 * count,
        2 * count
    )
}

/// Calls while the clients are at it; each call is answered, although the contract has one permit.
async fn served_meanwhile(world: &Inside, clients: &mut JoinSet<Vec<u8>>, check: impl Fn(&[u8])) {
    let mut served = 0;
    while !clients.is_empty() {
        // One after the other, each to its end: one let go would still hold the permit.
        let reply = ask(&world.address, post("/narrow", "", GOOD)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        served += 1;
        while let Some(ended) = clients.try_join_next() {
            check(&ended.unwrap());
        }
    }
    assert!(served > 0);
}
