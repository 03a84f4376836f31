//! What is passed through is passed on as it comes, from end to end, and never kept.

use crate::support::client::streaming_client;
use crate::support::consul::Consul;
use crate::support::process::Process;
use crate::support::road::{AGENT, ROUTE, patient_contract, wait_known};
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::streamer::Streamer;
use crate::support::wait::wait_for;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::process::Command;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, Interval, interval};

/// How late an event may reach its reader.
const AT_ONCE: Duration = Duration::from_millis(200);
/// What either sidecar may have resident, whatever passes through.
const MEMORY: u64 = 60 << 20;
const UPLOAD: usize = 200 << 20;

#[tokio::test]
async fn twenty_events_at_ten_a_second_pass_at_once() {
    events_pass_at_once(20, Duration::from_millis(100)).await;
}

/// By a client that is not of our own kind.
#[tokio::test]
async fn events_over_http2_pass_at_once() {
    let pipe = Pipe::start(|setup| setup).await;
    let directory = TempDir::with_prefix("hermes-events-").unwrap();
    let mut curl = Command::new("curl");
    curl.args([
        "-sSN",
        "--http2-prior-knowledge",
        "-w",
        "over HTTP/%{http_version}",
    ])
    .arg(pipe.url("/events?count=20&every_ms=100"));
    let mut curl = Process::spawn("curl", curl, &directory.path().join("log"));
    let mut ages = Vec::new();
    for count in 1..=20 {
        // Each is there before the next one is sent, or soon after.
        let events = wait_for(AT_ONCE * 10, "next event", async || {
            let log = curl.log();
            (log.matches("\n\n").count() >= count).then_some(log)
        })
        .await;
        let event = events.split("\n\n").nth(count - 1).unwrap();
        ages.push(pipe.streamer.age(event));
    }
    at_once(&ages);
    let ended = curl.ended(AT_ONCE * 5).await;
    assert!(ended.success(), "{ended}: {}", curl.log());
    assert!(curl.log().ends_with("over HTTP/2"), "{}", curl.log());
}

#[tokio::test]
async fn an_upload_of_200_mb_passes_in_little_memory() {
    let mut pipe = Pipe::start(|setup| setup).await;
    let began = Instant::now();
    let upload = streaming_client()
        .post(pipe.url("/upload"))
        .header("content-type", "application/octet-stream")
        .body(reqwest::Body::wrap(Zeros { left: UPLOAD }));
    let reply = upload.send().await.unwrap().error_for_status().unwrap();
    assert_eq!(reply.text().await.unwrap(), UPLOAD.to_string());
    eprintln!("200 MB took {:?}", began.elapsed());
    pipe.used_little_memory();
}

#[tokio::test]
async fn a_talk_is_not_taken_for_a_head_that_does_not_come() {
    let pipe = Pipe::start(|setup| setup.set("limits.header_timeout", "300ms")).await;
    let talk = Talk {
        left: 10,
        pace: interval(Duration::from_millis(100)),
    };
    let upload = streaming_client()
        .post(pipe.url("/echo"))
        .body(reqwest::Body::wrap(talk));
    let reply = upload.send().await.unwrap().error_for_status().unwrap();
    assert_eq!(reply.text().await.unwrap(), "word ".repeat(10));
}

#[tokio::test]
async fn silence_beyond_the_limit_ends_a_stream_visibly_incomplete() {
    let limited = |setup: Setup| setup.set("limits.stream_idle_timeout", "1s");
    let pipe = Pipe::start(limited).await;
    let url = pipe.url("/events?count=3&every_ms=10&then=silence");
    let mut reply = streaming_client().get(url).send().await.unwrap();
    assert_eq!(reply.status(), 200);
    let mut received = Vec::new();
    let began = Instant::now();
    let ended = loop {
        match reply.chunk().await {
            Ok(Some(chunk)) => received.extend_from_slice(&chunk),
            ended => break ended,
        }
    };
    let took = began.elapsed();
    assert!(ended.is_err(), "the stream looks complete");
    assert_eq!(received.iter().filter(|byte| **byte == b'\n').count(), 6);
    let within = Duration::from_millis(900)..Duration::from_secs(3);
    assert!(within.contains(&took), "it ended after {took:?}");
    pipe.streamer.left_at(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_reader_that_leaves_is_heard_of_at_the_application_within_a_second() {
    let pipe = Pipe::start(|setup| setup).await;
    for url in [
        pipe.url("/events?count=1000&every_ms=50"),
        // Nothing is written that could fail: the end must be seen by reading.
        pipe.url("/events?count=5&every_ms=50&then=silence"),
    ] {
        let mut reply = streaming_client().get(&url).send().await.unwrap();
        for _ in 0..5 {
            reply.chunk().await.unwrap().unwrap();
        }
        let left = Instant::now();
        drop(reply);
        let heard = pipe.streamer.left_at(Duration::from_secs(1)).await;
        eprintln!("the application heard of it after {:?}", heard - left);
        pipe.streamer.forget();
    }
}

/// Reads `count` events, one each `pace`, and asks of each that it comes at once.
pub async fn events_pass_at_once(count: u32, pace: Duration) {
    let mut pipe = Pipe::start(|setup| setup.set("limits.stream_idle_timeout", "10s")).await;
    let url = pipe.url(&format!(
        "/events?count={count}&every_ms={}",
        pace.as_millis()
    ));
    let mut reply = streaming_client().get(url).send().await.unwrap();
    assert_eq!(reply.headers()["content-type"], "text/event-stream");
    let (mut text, mut ages) = (String::new(), Vec::new());
    while let Some(chunk) = reply.chunk().await.unwrap() {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            ages.push(pipe.streamer.age(event));
            text = rest.to_owned();
        }
    }
    assert_eq!(ages.len(), count as usize);
    ages.sort();
    let (middle, last) = (ages[ages.len() / 2], ages[ages.len() - 1]);
    eprintln!("{count} events: median {middle:?}, slowest {last:?}");
    at_once(&ages);
    pipe.used_little_memory();
}

/// Holds that events came when they were sent. On a busy machine one in ten may be late; what is
/// held back anywhere is late as a whole.
pub fn at_once(ages: &[Duration]) {
    let late = ages.iter().filter(|age| **age > AT_ONCE).count();
    assert!(late * 10 <= ages.len(), "{late} were late: {ages:?}");
}

/// A streaming application behind two sidecars.
struct Pipe {
    caller: Sidecar,
    callee: Sidecar,
    streamer: Streamer,
    _consul: Consul,
}

impl Pipe {
    async fn start(change: impl Fn(Setup) -> Setup) -> Self {
        let (streamer, consul) = tokio::join!(Streamer::start(), Consul::start());
        let callee = Sidecar::named("fraud")
            .application(&streamer.url())
            .contract(patient_contract(), "POST", ROUTE)
            .set("inbound.passthrough", vec!["/events", "/upload", "/echo"])
            .consul(&consul.address());
        let caller = Sidecar::named("payment").consul(&consul.address());
        let (callee, caller) = tokio::join!(change(callee).start(), change(caller).start());
        wait_known(&caller, 1).await;
        Self {
            caller,
            callee,
            streamer,
            _consul: consul,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/agents/{AGENT}{path}", self.caller.outbound_url())
    }

    fn used_little_memory(&mut self) {
        let peaks = [&mut self.caller, &mut self.callee].map(|s| s.process().peak_memory());
        eprintln!("most memory: {:?} MB", peaks.map(|peak| peak >> 20));
        assert!(peaks.iter().all(|peak| *peak < MEMORY), "{peaks:?}");
    }
}

/// A body of zeros whose length is told beforehand.
struct Zeros {
    left: usize,
}

impl Body for Zeros {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        static PIECE: [u8; 64 << 10] = [0; 64 << 10];
        let length = self.left.min(PIECE.len());
        self.left -= length;
        let frame = || Ok(Frame::data(Bytes::from_static(&PIECE[..length])));
        Poll::Ready((length > 0).then(frame))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

/// A body of words, one each pace.
struct Talk {
    left: u32,
    pace: Interval,
}

impl Body for Talk {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        ready!(self.pace.poll_tick(context));
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"word ")))))
    }
}
