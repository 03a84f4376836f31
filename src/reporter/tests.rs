//! The reporter against a collector that answers as it is told.

use super::*;
use crate::spool::{self, Durability, Mode};
use crate::task::{Report, Reporter, State};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use flate2::read::GzDecoder;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::io::Read;
use std::sync::Mutex;
use tempfile::TempDir;
use tokio::task::JoinSet;

/// Answers the n-th request (from 0), which holds the calls of these ids.
type Script = Box<dyn Fn(usize, &[String], &HeaderMap) -> Response + Send + Sync>;

struct Collector {
    script: Script,
    requests: Mutex<Vec<Vec<String>>>,
    /// Every body ever seen for a call.
    bodies: Mutex<HashMap<String, Vec<String>>>,
}

struct World {
    collector: Arc<Collector>,
    url: Url,
    spool: Spool,
    metrics: Arc<Sidecar>,
    directory: TempDir,
    _server: JoinSet<()>,
}

impl World {
    async fn new(
        script: impl Fn(usize, &[String], &HeaderMap) -> Response + Send + Sync + 'static,
    ) -> Self {
        let collector = Arc::new(Collector {
            script: Box::new(script),
            requests: Mutex::default(),
            bodies: Mutex::default(),
        });
        let routes = Router::new()
            .route("/base/report-status", post(receive))
            .with_state(collector.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/base/", listener.local_addr().unwrap());
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        let directory = tempfile::tempdir().unwrap();
        let config = spool::Config {
            path: directory.path().join("spool.db"),
            mode: Mode::Process,
            max_bytes: 1 << 30,
        };
        let metrics = Arc::new(Sidecar::new("test"));
        let (spool, _) = Spool::open(config, metrics.clone()).await.unwrap();
        Self {
            collector,
            url: Url::parse(&url).unwrap(),
            spool,
            metrics,
            directory,
            _server: server,
        }
    }

    fn shipper(&self, change: impl FnOnce(&mut Config)) -> Shipper {
        let mut config = Config {
            token_file: None,
            retry: Duration::from_millis(20),
            expire: Duration::from_secs(3600),
            batch: 100,
            linger: Duration::from_millis(5),
        };
        change(&mut config);
        let target = Target::Fixed(self.url.clone());
        Shipper::new(
            config,
            target,
            self.spool.clone(),
            self.metrics.clone(),
            None,
        )
        .unwrap()
    }

    async fn owe(&self, count: usize) {
        let mut stored = Vec::new();
        for n in 0..count {
            stored.push(self.spool.append(report(&format!("call-{n}"))));
        }
        for stored in stored {
            assert!(!matches!(stored.await, Durability::Lost(_)));
        }
        self.spool.owes(count as u64).await;
    }

    /// Runs the shipper until nothing is owed.
    async fn deliver(&self, change: impl FnOnce(&mut Config)) {
        let mut shipper = self.shipper(change);
        let spool = self.spool.clone();
        let emptied = async move {
            while spool.owed() > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let run = shipper.run(emptied);
        tokio::time::timeout(Duration::from_secs(30), run)
            .await
            .expect("everything is delivered");
    }

    async fn dead(&self) -> Vec<(String, String)> {
        let dead = self.spool.dead_letters_newest(1000).await.unwrap();
        let letter = |letter: spool::DeadLetter| {
            let report: Report = serde_json::from_slice(&letter.body).unwrap();
            (report.call_id.to_string(), letter.reason)
        };
        dead.into_iter().map(letter).collect()
    }

    fn requests(&self) -> Vec<usize> {
        let requests = self.collector.requests.lock().unwrap();
        requests.iter().map(Vec::len).collect()
    }

    fn shows(&self, series: &str) {
        assert!(self.metrics.render().contains(series), "no {series}");
    }
}

async fn receive(
    Shared(collector): Shared<Arc<Collector>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = if headers.contains_key("content-encoding") {
        let mut text = String::new();
        GzDecoder::new(&body[..]).read_to_string(&mut text).unwrap();
        text
    } else {
        assert!(body.len() <= 1024);
        String::from_utf8(body.to_vec()).unwrap()
    };
    let raw: Vec<&RawValue> = serde_json::from_str(&text).unwrap();
    let mut calls = Vec::new();
    for body in raw {
        let report: Report = serde_json::from_str(body.get()).unwrap();
        let call = report.call_id.to_string();
        calls.push(call.clone());
        let mut bodies = collector.bodies.lock().unwrap();
        bodies.entry(call).or_default().push(body.get().to_owned());
    }
    let number = {
        let mut requests = collector.requests.lock().unwrap();
        requests.push(calls.clone());
        requests.len() - 1
    };
    (collector.script)(number, &calls, &headers)
}

fn taken(accepted: usize, duplicates: usize, rejected: &str) -> Response {
    format!(
        r#"{{"accepted":{accepted},"duplicates":{duplicates},"conflicts":0,"rejected":[{rejected}]}}"#
    )
    .into_response()
}

fn report(call: &str) -> Report {
    Report {
        state: State::Completed,
        reporter: Reporter::Caller,
        instance: String::new(),
        application: "shop".into(),
        ..Report::sample(call)
    }
}

#[tokio::test]
async fn everything_owed_arrives_once_and_in_order() {
    let world = World::new(|_, calls, _| taken(calls.len(), 0, "")).await;
    world.owe(250).await;
    world.deliver(|_| {}).await;
    assert_eq!(world.requests(), [100, 100, 50]);
    let arrived = world.collector.requests.lock().unwrap().concat();
    let expected: Vec<String> = (0..250).map(|n| format!("call-{n}")).collect();
    assert_eq!(arrived, expected);
    world.shows(r#"hermes_spool_delivered_total{result="accepted",application="test"} 250"#);
}

#[tokio::test]
async fn duplicates_leave_and_rejected_rows_become_dead_letters() {
    let rejected = r#"{"index":1,"reason":"no such state"}"#;
    let world = World::new(move |_, calls, _| taken(1, calls.len() - 2, rejected)).await;
    world.owe(4).await;
    world.deliver(|_| {}).await;
    let dead = [("call-1".to_owned(), "no such state".to_owned())];
    assert_eq!(world.dead().await, dead);
    world.shows(r#"hermes_spool_delivered_total{result="duplicate",application="test"} 2"#);
}

#[tokio::test]
async fn a_collector_that_says_nothing_about_rows_costs_none() {
    let answers: [fn() -> Response; 9] = [
        || StatusCode::SERVICE_UNAVAILABLE.into_response(),
        || StatusCode::TOO_MANY_REQUESTS.into_response(),
        || StatusCode::REQUEST_TIMEOUT.into_response(),
        || StatusCode::TOO_EARLY.into_response(),
        || (StatusCode::TEMPORARY_REDIRECT, [("location", "/elsewhere")]).into_response(),
        || "<html>a portal</html>".into_response(),
        || taken(0, 0, ""),
        || StatusCode::UNAUTHORIZED.into_response(),
        || StatusCode::FORBIDDEN.into_response(),
    ];
    let count = answers.len();
    let world = World::new(move |number, calls, _| match answers.get(number) {
        Some(answer) => answer(),
        None => taken(calls.len(), 0, ""),
    })
    .await;
    world.owe(30).await;
    world.deliver(|_| {}).await;
    // The whole batch fails once; from then on a single row probes.
    let mut requests = vec![30];
    requests.extend(vec![1; count]);
    requests.push(29);
    assert_eq!(world.requests(), requests);
    assert_eq!(world.dead().await, []);
    for bodies in world.collector.bodies.lock().unwrap().values() {
        assert!(bodies.iter().all(|body| *body == bodies[0]));
    }
    world.shows(r#"hermes_spool_failures_total{reason="unreachable",application="test"} 7"#);
    world.shows(r#"hermes_spool_failures_total{reason="denied",application="test"} 2"#);
}

#[tokio::test]
async fn a_batch_refused_as_a_whole_is_split_down_to_the_row_at_fault() {
    let world = World::new(|_, calls, _| {
        for (call, status) in [
            ("call-3", StatusCode::BAD_REQUEST),
            ("call-7", StatusCode::PAYLOAD_TOO_LARGE),
        ] {
            if calls.iter().any(|c| c == call) {
                return status.into_response();
            }
        }
        taken(calls.len(), 0, "")
    })
    .await;
    world.owe(100).await;
    world.deliver(|_| {}).await;
    let dead = world.dead().await;
    let reason = |status| format!("the collector answered {status}");
    let expected = [
        ("call-7".to_owned(), reason(413)),
        ("call-3".to_owned(), reason(400)),
    ];
    assert_eq!(dead, expected);
    world.shows(r#"hermes_spool_delivered_total{result="accepted",application="test"} 98"#);
}

#[tokio::test]
async fn a_rotated_token_is_used_at_once() {
    let world = World::new(|_, calls, headers| {
        if headers["authorization"] == "Bearer new" {
            taken(calls.len(), 0, "")
        } else {
            StatusCode::UNAUTHORIZED.into_response()
        }
    })
    .await;
    let token = world.directory.path().join("token");
    std::fs::write(&token, "old\n").unwrap();
    world.owe(3).await;
    let rotate = async {
        while world.requests().len() < 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        std::fs::write(&token, "new\n").unwrap();
    };
    let deliver = world.deliver(|config| config.token_file = Some(token.clone()));
    tokio::join!(rotate, deliver);
}

#[tokio::test]
async fn what_is_too_old_is_set_aside_after_a_failed_try() {
    let world = World::new(|_, _, _| StatusCode::BAD_GATEWAY.into_response()).await;
    world.owe(3).await;
    world.deliver(|config| config.expire = Duration::ZERO).await;
    assert!(!world.requests().is_empty());
    let dead = world.dead().await;
    assert_eq!(dead.len(), 3);
    assert!(dead.iter().all(|(_, reason)| reason == "expired"));
}

#[tokio::test]
async fn a_collector_that_is_not_known_yet_is_waited_for() {
    let world = World::new(|_, calls, _| taken(calls.len(), 0, "")).await;
    world.owe(3).await;
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let url = world.url.clone();
    let lookup: Lookup = Arc::new(move || {
        let found = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= 2;
        let url = found.then(|| url.clone());
        Box::pin(async move { url })
    });
    let mut shipper = world.shipper(|_| {});
    shipper.target = Target::Lookup(lookup);
    let emptied = async {
        while world.spool.owed() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    shipper.run(emptied).await;
    assert_eq!(world.requests(), [1, 2]);
}

#[tokio::test]
async fn the_last_round_is_bounded() {
    let world = World::new(|_, calls, _| taken(calls.len(), 0, "")).await;
    world.owe(250).await;
    let soon = Instant::now() + Duration::from_secs(20);
    assert_eq!(world.shipper(|_| {}).flush(soon).await, 0);

    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut shipper = world.shipper(|_| {});
    let address = format!("http://{}", silent.local_addr().unwrap());
    shipper.target = Target::Fixed(Url::parse(&address).unwrap());
    world.owe(5).await;
    let soon = Instant::now() + Duration::from_millis(100);
    assert_eq!(shipper.flush(soon).await, 5);
}

#[test]
fn company_is_waited_for_until_a_deadline_presses() {
    let row = |queued_at: u64, deadline_at: u64| Row {
        deadline_at: Timestamp::from_millis(deadline_at),
        queued_at: Timestamp::from_millis(queued_at),
        ..SAMPLE.clone()
    };
    for (rows, wait) in [
        (vec![row(1000, 0)], 50),
        (vec![row(970, 0)], 20),
        (vec![row(900, 0)], 0),
        // The clock went back: no longer than the linger.
        (vec![row(9000, 0)], 50),
        (vec![row(1000, 1010), row(1000, 1005)], 5),
        (vec![row(1000, 5000)], 50),
        (vec![row(1000, 999)], 50),
    ] {
        let now = Timestamp::from_millis(1000);
        let got = linger(&rows, Duration::from_millis(50), now);
        assert_eq!(got, Duration::from_millis(wait), "{rows:?}");
    }
}

static SAMPLE: std::sync::LazyLock<Row> = std::sync::LazyLock::new(|| Row {
    claimed: Claimed::default(),
    ended: true,
    queued_at: Timestamp::from_millis(0),
    deadline_at: Timestamp::from_millis(0),
    body: Vec::new(),
});

#[test]
fn the_longer_wait_counts_within_bounds() {
    let seconds = Duration::from_secs;
    for (asked, least) in [
        (None, 5),
        (Some(seconds(1)), 5),
        (Some(seconds(60)), 60),
        (Some(seconds(86_400)), 300),
    ] {
        let wait = pause(seconds(5), asked);
        assert!(
            (seconds(least)..=seconds(least).mul_f64(1.1)).contains(&wait),
            "{wait:?}"
        );
    }
}
