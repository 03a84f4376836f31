//! Clients that go away, and streams that go on.

use super::message::{GOOD, answer, chunked, post, request};
use super::peer::{Peer, Step};
use super::wire::{WITHIN, Wire, ask};
use super::world::{Inside, Outside, at, order_contract};
use crate::streaming::at_once;
use crate::support::sidecar::Setup;
use crate::support::wait::wait_until;
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::{Instant, timeout};

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

/// A client that leaves cancels what was passed through for it, at whatever point and however
/// it goes; nothing of it stays.
///
/// A contract call runs to its end instead, and its one report says so: `calls` shows that. Here
/// its permit comes back. A call that was passed through has no report.
pub async fn a_client_that_leaves_leaves_nothing_behind() -> String {
    clients_that_leave(10).await
}

/// Lets clients leave, so many times at each point in each way.
pub async fn clients_that_leave(times: usize) -> String {
    let mut narrow = order_contract();
    narrow["constraints"]["max_concurrent"] = 1.into();
    narrow["id"] = "order-narrow-v1.0".into();
    let world = Inside::with(|setup| setup.contract(narrow, "POST", "/narrow")).await;
    let application = &world.application;
    let half = format!("HTTP/1.1 200 OK\r\n{CHUNKED}\r\n4\r\nhalf\r\n").into_bytes();
    application.at_head("/body", vec![Step::Hang]);
    application.does("/wait", vec![Step::Hang]);
    application.does("/half", vec![Step::Send(half), Step::Hang]);
    application.answer("/fine", answer(200, "", ""));
    let mut left = 0;
    for _ in 0..times {
        for (path, cut) in [("/body", 20), ("/wait", 0), ("/half", 0)] {
            for resets in [false, true] {
                let mut wire = Wire::to(&world.address).await;
                let sent = post(path, "", GOOD);
                wire.send(&sent[..sent.len() - cut]).await;
                match path {
                    "/half" => drop(wire.until(b"half").await),
                    _ => {
                        wait_until(WITHIN, "request", async || application.heard().len() > left)
                            .await
                    }
                }
                match resets {
                    true => wire.reset(),
                    false => drop(wire),
                }
                left += 1;
                wait_until(WITHIN, "application let go", async || {
                    application.left().len() == left
                })
                .await;
            }
        }
    }
    let gone: HashSet<_> = application.left().into_iter().collect();
    assert_eq!(
        gone.len(),
        left,
        "each had a connection that nobody used again"
    );
    application.forget();
    assert_eq!(
        ask(&world.address, request("GET /fine", "", ""))
            .await
            .status,
        200
    );
    assert!(!gone.contains(&application.only().connection));
    wait_until(WITHIN, "requests to be over", async || {
        world.inflight().await == 0.0
    })
    .await;
    for kind in ["upstream-reset", "upstream-unreachable", "timeout"] {
        assert_eq!(world.refused(kind).await, 0.0, "{kind}");
    }

    application.does(
        "/narrow",
        vec![
            Step::After(Duration::from_millis(200)),
            Step::Send(super::message::json("{}")),
        ],
    );
    for resets in [false, true] {
        let mut wire = Wire::to(&world.address).await;
        wire.send(post("/narrow", "", GOOD)).await;
        wait_until(WITHIN, "call", async || !application.heard().is_empty()).await;
        match resets {
            true => wire.reset(),
            false => drop(wire),
        }
        let busy = ask(&world.address, post("/narrow", "", GOOD)).await;
        busy.problem(429, "overloaded");
        wait_until(WITHIN, "permit", async || {
            ask(&world.address, post("/narrow", "", GOOD)).await.status == 200
        })
        .await;
        application.forget();
    }
    wait_until(WITHIN, "calls to be over", async || {
        world.inflight().await == 0.0
    })
    .await;
    only_listening(&world).await;
    format!(
        "{left} clients gone in the body, the wait and the answer, by FIN and by RST: cancelled, gauges 0, permits back; who only listens is answered"
    )
}

/// A client that has said all and still listens reads the answers that come at once.
async fn only_listening(world: &Inside) {
    for (sent, status) in [
        ("GET /fine HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("GET /fine HTTP/1.1\r\nHost : x\r\n\r\n".to_owned(), 400),
        (request("GET /fine/../x", "", ""), 400),
        (request("GET /narrow", "", ""), 405),
        (post("/narrow", "", "no json"), 400),
        (request("GET /fine", "", ""), 200),
        (post("/invoke", "", GOOD), 200),
    ] {
        let mut wire = Wire::to(&world.address).await;
        wire.send(&sent).await;
        wire.finish().await;
        assert_eq!(wire.answer().await.status, status, "{sent}");
        assert_eq!(wire.end().await, b"");
    }
}

/// A stream passes as it comes for as long as it moves; silence and a reader that has gone end it.
///
/// `streaming` shows the same through two sidecars, and ninety seconds of it under `long`.
pub async fn streams_pass_at_once_and_end_visibly() -> String {
    let limited = |setup: Setup| setup.set("limits.stream_idle_timeout", "1s");
    let mut short = order_contract();
    short["constraints"]["timeout_ms"] = 500.into();
    short["id"] = "order-short-v1.0".into();
    let world = Inside::with(|setup| limited(setup).contract(short, "POST", "/short")).await;
    let outside = Outside::with(limited).await;
    let mut slowest = Duration::ZERO;
    for (address, peer, prefix) in [
        (&world.address, &world.application, String::new()),
        (&outside.address, &outside.peer, at("")),
    ] {
        for (kind, event) in [
            ("text/event-stream", "data: 1\n\n"),
            ("application/x-ndjson", "{\"n\":1}\n"),
        ] {
            let target = format!("{prefix}/events");
            slowest = slowest.max(events(address, peer, &target, kind, event).await);
            silence(address, peer, &target, kind, event).await;
            departure(address, peer, &target, kind, event).await;
        }
    }
    pieces_that_wait_for_each_other(&world).await;
    // Only a contract's answer is held back, to be checked as one document.
    world.application.does(
        "/short",
        vec![
            Step::Send(
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{CHUNKED}\r\n1\r\n{{\r\n"
                )
                .into(),
            ),
            Step::After(Duration::from_millis(100)),
            Step::Send(b"1\r\n}\r\n0\r\n\r\n".to_vec()),
        ],
    );
    assert_eq!(
        &ask(&world.address, post("/short", "", GOOD)).await.body[..],
        b"{}"
    );
    format!(
        "event streams and NDJSON, in and out: slowest piece {slowest:?}, silence visible, departure heard"
    )
}

/// An application that writes head and body apart, with Nagle's rule on, is acknowledged at once:
/// the kernel would wait 40 ms.
async fn pieces_that_wait_for_each_other(world: &Inside) {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n";
    let steps = vec![
        Step::Reluctant,
        Step::Send(head.into()),
        Step::Send(b"{}".to_vec()),
    ];
    world.application.does("/short", steps);
    let mut wire = Wire::to(&world.address).await;
    let mut took = Vec::new();
    for _ in 0..41 {
        let began = Instant::now();
        wire.send(post("/short", "", GOOD)).await;
        assert_eq!(wire.answer().await.status, 200);
        took.push(began.elapsed());
    }
    took.sort();
    assert!(took[20] < Duration::from_millis(30), "{took:?}");
}

/// Events for longer than the idle limit and the contract's timeout; returns the slowest.
async fn events(address: &str, peer: &Peer, target: &str, kind: &str, event: &str) -> Duration {
    peer.forget();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{CHUNKED}\r\n");
    let mut steps = vec![Step::Send(head.into())];
    for _ in 0..15 {
        steps.push(Step::After(Duration::from_millis(100)));
        let piece = chunked(event.as_bytes(), 64);
        steps.push(Step::Send(piece[..piece.len() - 5].to_vec()));
    }
    steps.push(Step::Send(b"0\r\n\r\n".to_vec()));
    peer.does("/events", steps);
    let mut wire = Wire::to(address).await;
    wire.send(request(&format!("GET {target}"), "", "")).await;
    wire.head().await;
    let mut came = Vec::new();
    for _ in 0..15 {
        wire.until(event.as_bytes()).await;
        came.push(Instant::now());
    }
    assert_eq!(wire.until(b"0\r\n\r\n").await, b"\r\n0\r\n\r\n");
    let sent = peer.sent();
    let ages = came
        .iter()
        .zip(&sent[1..])
        .map(|(came, sent)| came.saturating_duration_since(*sent));
    let ages: Vec<_> = ages.collect();
    at_once(&ages);
    ages.into_iter().max().unwrap()
}

/// A stream that falls silent ends without the chunk that would make it whole.
async fn silence(address: &str, peer: &Peer, target: &str, kind: &str, event: &str) {
    let piece = chunked(event.as_bytes(), 64);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{CHUNKED}\r\n");
    peer.does(
        "/events",
        vec![
            Step::Send(head.into()),
            Step::Send(piece[..piece.len() - 5].to_vec()),
            Step::Hang,
        ],
    );
    let mut wire = Wire::to(address).await;
    wire.send(request(&format!("GET {target}"), "", "")).await;
    wire.head().await;
    wire.until(event.as_bytes()).await;
    let began = Instant::now();
    assert_eq!(wire.end().await, b"\r\n", "it looks complete");
    let took = began.elapsed();
    assert!(
        took > Duration::from_millis(900) && took < Duration::from_secs(4),
        "{took:?}"
    );
}

/// A reader that goes at the fifth event is heard of within a second, also in silence.
async fn departure(address: &str, peer: &Peer, target: &str, kind: &str, event: &str) {
    peer.forget();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{CHUNKED}\r\n");
    let piece = chunked(event.repeat(5).as_bytes(), event.len());
    peer.does(
        "/events",
        vec![
            Step::Send(head.into()),
            Step::Send(piece[..piece.len() - 5].to_vec()),
            Step::Hang,
        ],
    );
    let mut wire = Wire::to(address).await;
    wire.send(request(&format!("GET {target}"), "", "")).await;
    wire.head().await;
    for _ in 0..5 {
        wire.until(event.as_bytes()).await;
    }
    drop(wire);
    let heard = wait_until(Duration::from_secs(1), "departure", async || {
        peer.left().len() == 1
    });
    timeout(WITHIN, heard).await.unwrap();
}
