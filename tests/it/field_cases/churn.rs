//! HTTP/2 connections that make work and take none of it.

use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, HEADERS, Outcome,
    RST_STREAM, WINDOW_UPDATE, block, frame,
};
use super::message::{GOOD, answer, json, post, request};
use super::peer::Step;
use super::wire::{WITHIN, ask};
use super::world::{Inside, order_contract};
use crate::support::wait::wait_until;
use std::time::Duration;
use tokio::time::Instant;

/// What the sidecar may have resident, whatever it is sent.
const MEMORY: u64 = 100 << 20;
/// How long a call on another connection may take meanwhile, on a busy machine.
const LATENCY: Duration = Duration::from_millis(500);
/// How many streams of one connection may be begun before it is ended.
const MOST_BEGUN: usize = 2_000;

fn get(path: &str) -> [(&str, &str); 4] {
    [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", path),
    ]
}

fn order(path: &str) -> [(&str, &str); 5] {
    let [_, scheme, authority, path] = get(path);
    [
        (":method", "POST"),
        scheme,
        authority,
        path,
        ("content-type", "application/json"),
    ]
}

/// Writes what opens a stream and lets it go at once.
type Churn = fn(u32) -> Vec<u8>;

/// A connection may also end for the fault itself (RFC 9113 section 5.4.1).
const FAULTS: [u32; 2] = [1, 3];

/// Streams that are opened and let go at once end their connection after a bounded number; who
/// is on another connection hardly notices, and nothing of them stays.
pub async fn streams_opened_and_dropped_end_their_connection() -> String {
    let mut narrow = order_contract();
    narrow["constraints"]["max_concurrent"] = 1.into();
    narrow["id"] = "order-narrow-v1.0".into();
    let mut world = Inside::with(|setup| setup.contract(narrow, "POST", "/narrow")).await;
    world.application.does("/hang", vec![Step::Hang]);
    world.application.answer("/open", answer(200, "", ""));
    world.application.answer("/narrow", json("{}"));

    // By RST_STREAM: passed through, a contract without its body, and a whole contract call.
    let churns: [(&str, Churn); 5] = [
        ("passed through", |stream| {
            let flags = END_HEADERS | END_STREAM;
            let opened = frame(HEADERS, flags, stream, &block(&get("/hang")));
            [opened, frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
        }),
        ("contract without body", |stream| {
            let opened = frame(HEADERS, END_HEADERS, stream, &block(&order("/narrow")));
            [opened, frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
        }),
        ("whole call", |stream| {
            let opened = frame(HEADERS, END_HEADERS, stream, &block(&order("/narrow")));
            let body = frame(DATA, END_STREAM, stream, GOOD.as_bytes());
            [
                opened,
                body,
                frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()),
            ]
            .concat()
        }),
        // By updates of nothing, and of more than a window holds: the server resets the stream.
        ("nothing granted", |stream| {
            let opened = frame(HEADERS, END_HEADERS, stream, &block(&order("/narrow")));
            [opened, frame(WINDOW_UPDATE, 0, stream, &0u32.to_be_bytes())].concat()
        }),
        ("too much granted", |stream| {
            let opened = frame(HEADERS, END_HEADERS, stream, &block(&order("/narrow")));
            let most = frame(WINDOW_UPDATE, 0, stream, &0x7fff_ffffu32.to_be_bytes());
            [opened, most].concat()
        }),
    ];
    for (name, churn) in churns {
        let mut frames = Frames::to(&world.address).await;
        let flooding = async {
            for batch in 0..500 {
                let streams = (batch * 100..(batch + 1) * 100).map(|n| 2 * n + 1);
                let bytes: Vec<u8> = streams.flat_map(churn).collect();
                if !frames.flood(&bytes).await {
                    return batch;
                }
            }
            panic!("{name}: 50 000 streams were taken");
        };
        let meanwhile = async {
            let mut slowest = Duration::ZERO;
            loop {
                let began = Instant::now();
                let reply = ask(&world.address, request("GET /open", "", "")).await;
                assert_eq!(reply.status, 200);
                slowest = slowest.max(began.elapsed());
                assert!(slowest < LATENCY, "{name}: {slowest:?}");
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            batches = flooding => eprintln!("{name}: ended in batch {batches}"),
            () = meanwhile => unreachable!(),
        }
        // A reset may overtake the farewell of a connection that is written to while it closes.
        let code = frames.farewell().await;
        let granted = name.ends_with("granted");
        let is_told = |code| code == ENHANCE_YOUR_CALM || granted && FAULTS.contains(&code);
        assert!(code.is_none_or(is_told), "{name}: {code:?}");
        let begun = world.application.news();
        let begun = begun
            .iter()
            .filter(|heard| heard.line().1 != "/open")
            .count();
        assert!(
            begun < MOST_BEGUN,
            "{name}: {begun} requests reached the application"
        );
        wait_until(WITHIN, "streams to be over", async || {
            world.inflight().await == 0.0
        })
        .await;
        // The one permit is back, and the next connection is as good as any.
        let reply = ask(&world.address, post("/narrow", "", GOOD)).await;
        assert_eq!(reply.status, 200, "{name}: {reply:?}");
        let mut fresh = Frames::to(&world.address).await;
        fresh.ask(1, &order("/narrow"), GOOD.as_bytes()).await;
        let whole = Outcome::Answer {
            status: 200,
            body: b"{}".to_vec(),
        };
        assert_eq!(fresh.outcome(1).await, whole, "{name}");
        world.application.news();
    }
    let continued = endless_head(&world).await;
    let peak = world.sidecar.process().peak_memory();
    assert!(peak < MEMORY, "{} MB", peak >> 20);
    format!(
        "5 ways to open and drop 50 000 streams ended early, others served within {LATENCY:?}, permits back; {continued}"
    )
}

/// A head of ten thousand frames that never ends.
async fn endless_head(world: &Inside) -> String {
    let mut frames = Frames::to(&world.address).await;
    let opened = frame(HEADERS, END_STREAM, 1, &block(&get("/open")));
    let more = frame(CONTINUATION, 0, 1, &block(&[("x", &"y".repeat(100))]));
    let mut open = frames.flood(&opened).await;
    let mut sent = 0;
    while open && sent < 10_000 {
        open = frames.flood(&more.repeat(100)).await;
        sent += 100;
    }
    // Fails where the connection stays open.
    let code = frames.farewell().await;
    assert!(
        code.is_none_or(|code| code == ENHANCE_YOUR_CALM),
        "{code:?}"
    );
    assert!(world.application.news().is_empty());
    "a head of 10 000 frames ended its connection".to_owned()
}
