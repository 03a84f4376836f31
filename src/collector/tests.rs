//! The collector from its door to its file.

use super::attempt::Told;
use super::attempt::tests::told;
use super::*;
use crate::lifecycle::Lifecycle;
use crate::socket::Address;
use crate::task::{Id, Report, Reporter, State, Timestamp};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use std::io::Write;
use tempfile::TempDir;
use tokio::task::JoinSet;

mod histories;

struct World {
    directory: TempDir,
    url: String,
    http: reqwest::Client,
    desk: Arc<Desk>,
    lifecycle: Lifecycle,
    serving: JoinSet<()>,
}

impl World {
    async fn new() -> Self {
        Self::start(tempfile::tempdir().unwrap(), None).await
    }

    async fn start(directory: TempDir, token: Option<Secret>) -> Self {
        let config = Config {
            store: Place::File(directory.path().join("collector.db")),
            token,
            retention: Duration::from_secs(30 * 24 * 3600),
        };
        let metrics = Arc::new(metrics::Collector::new());
        let (collector, _) = Collector::open(config, metrics).await.unwrap();
        let desk = collector.desk.clone();
        let free = Address::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = Listener::bind(&free).await.unwrap();
        let url = listener.address().unwrap().to_url();
        let (lifecycle, phase) = Lifecycle::new();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            collector.serve(listener, None, phase).await;
            collector.close().await.unwrap();
        });
        Self {
            directory,
            url,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            desk,
            lifecycle,
            serving,
        }
    }

    async fn stop(mut self) -> TempDir {
        self.lifecycle.advance(Phase::Stopping);
        self.serving.join_next().await.unwrap().unwrap();
        self.directory
    }

    async fn post(&self, body: impl Into<reqwest::Body>, headers: &[(&str, &str)]) -> Response {
        let mut request = self.http.post(format!("{}/report-status", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(body).send().await.unwrap()
    }

    async fn tell(&self, reports: &[Report]) -> Value {
        let body = serde_json::to_vec(reports).unwrap();
        let response = self
            .post(body, &[("content-type", "application/json")])
            .await;
        assert_eq!(response.status(), StatusCode::OK);
        json_of(response).await
    }

    async fn get(&self, path: &str) -> Response {
        self.http
            .get(format!("{}{path}", self.url))
            .send()
            .await
            .unwrap()
    }

    async fn json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        json_of(response).await
    }
}

async fn json_of(response: Response) -> Value {
    serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
}

async fn assert_problem(response: Response, status: u16, kind: &str) -> Value {
    assert_eq!(response.status().as_u16(), status);
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    let body = json_of(response).await;
    assert_eq!(body["type"], format!("urn:hermes:problem:{kind}"));
    assert_eq!(body["error"], body["detail"]);
    body
}

/// A report of a one-step task that began at `at`.
fn report(task: &str, reporter: Reporter, states: &[(State, u64)]) -> Report {
    let told = told(reporter, states).with(|report| {
        report.task_id = Id::parse(task).unwrap();
        report.call_id = Id::parse(&format!("{task}-call")).unwrap();
    });
    told.report
}

use Reporter::{Callee, Caller};
use State::*;

#[tokio::test]
async fn reports_become_a_task_that_survives_a_restart() {
    let world = World::new().await;
    let now = Timestamp::now().millis();
    let caller = [(Pending, now), (Dispatched, now + 2), (Completed, now + 90)];
    let callee = [
        (Dispatched, now + 3),
        (Executing, now + 5),
        (Completed, now + 80),
    ];
    let caller = report("t", Caller, &caller);
    let callee = report("t", Callee, &callee);
    let receipt = world.tell(&[caller, callee]).await;
    let expected = json!({"accepted": 2, "duplicates": 0, "conflicts": 0, "rejected": []});
    assert_eq!(receipt, expected);
    let before = world.json("/tasks/t").await;
    assert_eq!(before["state"], "completed");
    let states = before["steps"][0]["attempts"][0]["states"]
        .as_array()
        .unwrap();
    let states: Vec<&str> = states
        .iter()
        .map(|s| s["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["pending", "dispatched", "executing", "completed"]);

    let world = World::start(world.stop().await, None).await;
    assert_eq!(world.json("/tasks/t").await, before);
}

#[tokio::test]
async fn repeats_are_duplicates_and_another_end_is_a_conflict() {
    let world = World::new().await;
    let open = report("t", Caller, &[(Pending, 1000), (Dispatched, 1002)]);
    let end = report("t", Caller, &[(Pending, 1000), (Timeout, 1700)]);
    let other = report("t", Caller, &[(Pending, 1000), (Completed, 1800)]);
    let late = report("t", Caller, &[(Pending, 1000)]);
    for (report, result) in [
        (&open, "accepted"),
        (&open, "duplicates"),
        (&end, "accepted"),
        (&end, "duplicates"),
        (&other, "conflicts"),
        (&other, "duplicates"),
        (&late, "accepted"),
    ] {
        let receipt = world.tell(std::slice::from_ref(report)).await;
        assert_eq!(receipt[result], 1, "{:?}: {receipt}", report.state);
    }
    let task = world.json("/tasks/t").await;
    assert_eq!(task["state"], "timeout");
    let attempt = &task["steps"][0]["attempts"][0];
    assert_eq!(attempt["conflict"][0]["state"], "completed");

    let mut foreign = end;
    foreign.task_id = Id::parse("other").unwrap();
    let receipt = world.tell(&[foreign]).await;
    assert_eq!(
        receipt["rejected"][0]["reason"],
        "the call belongs to another task"
    );
    let text = world.get("/metrics").await.text().await.unwrap();
    for series in [
        r#"hermes_collector_reports_total{result="accepted"} 3"#,
        r#"hermes_collector_reports_total{result="duplicate"} 3"#,
        r#"hermes_collector_reports_total{result="conflict"} 1"#,
        r#"hermes_collector_reports_total{result="rejected"} 1"#,
        r#"hermes_collector_tasks_finished_total{application="shop",state="timeout"} 1"#,
        "hermes_collector_tasks_stalled 0",
    ] {
        assert!(text.contains(series), "no {series}");
    }
}

#[tokio::test]
async fn few_may_claim_to_be_the_same_side() {
    let world = World::new().await;
    let claim = |reporter, number: usize| {
        let mut claim = report("t", reporter, &[(Pending, 1000)]);
        claim.application = format!("app-{number}");
        claim
    };
    let most = claims::MOST_CLAIMS;
    for reporter in [Caller, Callee] {
        let all: Vec<Report> = (0..=most).map(|number| claim(reporter, number)).collect();
        let receipt = world.tell(&all).await;
        assert_eq!(receipt["accepted"], most, "{receipt}");
        assert_eq!(receipt["rejected"][0]["index"], most);
        assert_eq!(receipt["rejected"][0]["reason"], claims::TOO_MANY);
        let again = world.tell(&all[..most]).await;
        assert_eq!(again["duplicates"], most, "{again}");
    }
    let mut second = claim(Caller, most);
    second.attempt = 2;
    assert_eq!(world.tell(&[second]).await["accepted"], 1);
}

#[tokio::test]
async fn bodies_come_in_several_forms() {
    let world = World::new().await;
    let one = serde_json::to_string(&report("t", Callee, &[(Completed, 1)])).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(one.as_bytes()).unwrap();
    let packed = encoder.finish().unwrap();
    let gzip = [
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
    ];
    let receipt = json_of(world.post(packed, &gzip).await).await;
    assert_eq!(receipt["accepted"], 1);
    let lines = format!("{one}\nnonsense\n{{\"task_id\":\"u\",\"status\":\"success\"}}\n");
    let response = world.post(
        lines,
        &[("content-type", "application/x-ndjson; charset=utf-8")],
    );
    let receipt = json_of(response.await).await;
    assert_eq!(
        (&receipt["duplicates"], &receipt["accepted"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(receipt["rejected"][0]["index"], 1);
    let task = world.json("/tasks/u").await;
    assert_eq!(
        task["steps"][0]["attempts"][0]["states"][0]["reporter"],
        "application"
    );

    let json = [("content-type", "application/json")];
    assert_problem(world.post("{", &json).await, 400, "bad-json").await;
    assert_problem(world.post(one.clone(), &gzip).await, 400, "bad-json").await;
    let many = format!("[{}0]", "0,".repeat(1000));
    assert_problem(world.post(many, &json).await, 413, "too-large").await;
    let long = vec![b' '; ingest::PACKED_BYTES + 1];
    assert_problem(world.post(long, &json).await, 413, "too-large").await;
    let text = [("content-type", "text/plain")];
    assert_problem(
        world.post(one.clone(), &text).await,
        415,
        "unsupported-media-type",
    )
    .await;
    let br = [("content-encoding", "br")];
    assert_problem(world.post(one, &br).await, 415, "unsupported-media-type").await;
}

#[tokio::test]
async fn what_is_not_there_says_so() {
    let world = World::new().await;
    let problem = assert_problem(world.get("/tasks/unknown").await, 404, "not-found").await;
    assert!(
        problem["detail"].as_str().unwrap().contains("30days"),
        "{problem}"
    );
    assert_problem(world.get("/nothing").await, 404, "not-found").await;
    let wrong = world.get("/report-status").await;
    assert_eq!(wrong.headers()["allow"], "POST");
    assert_problem(wrong, 405, "method-not-allowed").await;
    for query in ["state=odd", "limit=x", "colour=red", "after=1"] {
        let response = world.get(&format!("/tasks?{query}")).await;
        assert_problem(response, 400, "bad-request").await;
    }
    assert_eq!(world.get("/live").await.status(), StatusCode::OK);
    assert_eq!(world.get("/ready").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_token_guards_reports_and_tasks() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::start(directory, Some(Secret::new("s3cret"))).await;
    for (header, status) in [
        (None, 401),
        (Some("Bearer wrong"), 401),
        (Some("Bearer s3cre"), 401),
        (Some("Basic s3cret"), 401),
        (Some("s3cret"), 401),
        (Some("Bearer s3cret"), 200),
        (Some("bearer s3cret"), 200),
    ] {
        let mut request = world.http.get(format!("{}/tasks", world.url));
        if let Some(value) = header {
            request = request.header("authorization", value);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{header:?}");
    }
    assert_problem(world.post("[]", &[]).await, 401, "unauthorized").await;
    assert_eq!(world.get("/metrics").await.status(), StatusCode::OK);
    assert_eq!(world.get("/ready").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_task_of_too_many_calls_says_what_is_not_shown() {
    let world = World::new().await;
    let call = |n: u64| {
        let mut report = report("t", Caller, &[(Pending, 1_000 + n), (Completed, 1_005 + n)]);
        report.call_id = Id::parse(&format!("call-{n}")).unwrap();
        report.step_id = Id::parse(&format!("step-{n}")).unwrap();
        report
    };
    let reports: Vec<Report> = (0..1_000).map(call).collect();
    world.tell(&reports).await;
    let whole = world.json("/tasks/t").await;
    assert_eq!(whole.get("truncated"), None);
    world.tell(&[call(1_000), call(1_001)]).await;
    let task = world.json("/tasks/t").await;
    assert_eq!(task["steps"].as_array().unwrap().len(), 1_000);
    assert_eq!(task["steps"][0]["step_id"], "step-2");
    assert_eq!(task["truncated"], json!({"shown": 1_000, "calls": 1_002}));
    let verdict = task["verdict"].as_str().unwrap();
    let said = "; only the newest 1000 of its 1002 calls are looked at";
    assert!(verdict.ends_with(said), "{verdict}");
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let world = World::new().await;
    let end = |n| if n % 2 == 0 { Completed } else { Timeout };
    let reports: Vec<Report> = (0..25)
        .map(|n| {
            let at = 1_000_000 + n * 10;
            report(&format!("t{n}"), Caller, &[(Pending, at), (end(n), at + n)])
        })
        .collect();
    world.tell(&reports).await;
    let mut seen = Vec::new();
    let mut path = "/tasks?limit=10".to_owned();
    loop {
        let page = world.json(&path).await;
        let tasks = page["tasks"].as_array().unwrap();
        assert!(tasks.len() <= 10);
        seen.extend(
            tasks
                .iter()
                .map(|task| task["task_id"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => path = format!("/tasks?limit=10&after={next}"),
            None => break,
        }
    }
    let newest_first: Vec<String> = (0..25).rev().map(|n| format!("t{n}")).collect();
    assert_eq!(seen, newest_first);
    for (query, count) in [
        ("state=timeout", 12),
        ("state=timeout,completed", 25),
        ("agent=fraud-detection-v1.0&application=shop&sla=P2", 25),
        ("agent=other", 0),
        ("min_ms=20", 5),
        ("since=1970-01-01T00:16:40.200Z", 5),
        ("since=1h", 0),
        ("state=completed&limit=3", 3),
    ] {
        let page = world.json(&format!("/tasks?{query}")).await;
        assert_eq!(page["tasks"].as_array().unwrap().len(), count, "{query}");
    }
    let line = &world.json("/tasks?limit=1").await["tasks"][0];
    let at = |millis| Timestamp::from_millis(millis).to_string();
    let expected = json!({
        "task_id": "t24", "state": "completed", "agent": "fraud-detection-v1.0",
        "application": "shop", "sla_level": "P2", "started_at": at(1_000_240),
        "ended_at": at(1_000_264), "degraded": false,
    });
    assert_eq!(*line, expected);
}

#[tokio::test]
async fn old_tasks_are_forgotten_and_younger_calls_stay() {
    let world = World::new().await;
    let book = &world.desk.book;
    let mut reports: Vec<Report> = (0..700)
        .map(|n| {
            report(
                &format!("old{n}"),
                Caller,
                &[(Pending, 10), (Completed, 20)],
            )
        })
        .collect();
    let long = |call: &str, at| {
        let mut report = report("long", Caller, &[(Pending, at), (Completed, at + 1)]);
        report.call_id = Id::parse(call).unwrap();
        report
    };
    reports.extend([long("long-1", 10), long("long-2", 5_000)]);
    reports.push(report(
        "young",
        Caller,
        &[(Pending, 5_000), (Completed, 5_001)],
    ));
    world.tell(&reports).await;
    let mut rounds = 0;
    while book.forget(Timestamp::from_millis(1_000)).await.unwrap() {
        rounds += 1;
        assert!(rounds < 100);
    }
    let left = world.json("/tasks").await;
    let left: Vec<&str> = left["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["task_id"].as_str().unwrap())
        .collect();
    assert_eq!(left, ["young", "long"]);
    assert_eq!(
        world.json("/tasks/long").await["steps"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        world.get("/tasks/old0").await.status(),
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn an_applications_own_open_step_holds_no_finished_task_open() {
    let world = World::new().await;
    let own = |task: &str| {
        let mut own = report(task, Reporter::Application, &[(Executing, 50)]);
        own.call_id = Id::parse(&format!("{task}-own")).unwrap();
        own
    };
    let call = |task: &str| report(task, Caller, &[(Pending, 1), (Completed, 90)]);
    let at = |millis| Timestamp::from_millis(millis).to_string();
    // Whichever comes first.
    for reports in [[own("a"), call("a")], [call("b"), own("b")]] {
        for report in reports {
            world.tell(&[report]).await;
        }
    }
    world.tell(&[own("c")]).await;
    let list = world.json("/tasks").await;
    let listed = |task: &str| {
        let mut tasks = list["tasks"].as_array().unwrap().iter();
        tasks.find(|one| one["task_id"] == task).unwrap().clone()
    };
    for task in ["a", "b"] {
        for shown in [listed(task), world.json(&format!("/tasks/{task}")).await] {
            assert_eq!(shown["state"], "completed", "{shown:#}");
            assert_eq!(shown["ended_at"], at(90), "{shown:#}");
        }
    }
    // Where no sidecar speaks, the application's word is all there is.
    for shown in [listed("c"), world.json("/tasks/c").await] {
        assert_eq!(shown["state"], "executing", "{shown:#}");
        assert_eq!(shown.get("ended_at"), None, "{shown:#}");
    }
}

#[tokio::test]
async fn a_chain_break_is_counted_once() {
    let world = World::new().await;
    let digest = |text: &str, mut report: Report| {
        report.input_digest = Some(text.to_owned());
        report
    };
    let caller = digest(
        "sha-256:aa",
        report("t", Caller, &[(Pending, 1), (Completed, 9)]),
    );
    let callee = digest(
        "sha-256:bb",
        report("t", Callee, &[(Executing, 2), (Completed, 8)]),
    );
    let open = digest("sha-256:aa", report("t", Caller, &[(Pending, 1)]));
    for reports in [vec![open], vec![callee], vec![caller]] {
        world.tell(&reports).await;
    }
    let task = world.json("/tasks/t").await;
    assert_eq!(task["chain"][0]["body"], "input");
    let text = world.get("/metrics").await.text().await.unwrap();
    assert!(text.contains(r#"hermes_collector_chain_breaks_total{application="shop"} 1"#));
}

#[tokio::test]
async fn attempts_past_their_deadline_are_found_until_they_are_marked() {
    let world = World::new().await;
    let book = &world.desk.book;
    let due = |task: &str, at, states: &[(State, u64)]| {
        let mut report = report(task, Caller, states);
        report.deadline_at = Timestamp::from_millis(at);
        report
    };
    world
        .tell(&[
            due("second", 900, &[(Pending, 100), (Dispatched, 101)]),
            due("first", 800, &[(Pending, 100)]),
            due("later", 1_000, &[(Pending, 100)]),
            due("done", 700, &[(Pending, 100), (Completed, 200)]),
        ])
        .await;
    let page = async |after, most| {
        let cutoff = Timestamp::from_millis(1_000);
        let found = book.overdue(after, cutoff, most).await.unwrap();
        let calls = found.calls.iter().map(|report| report.task_id.to_string());
        (calls.collect::<Vec<_>>(), found.next)
    };
    let begin = || book::Due::from(Timestamp::from_millis(0));
    assert_eq!(page(begin(), 10).await.0, ["first", "second"]);
    let (first, next) = page(begin(), 1).await;
    assert_eq!(first, ["first"]);
    let (second, next) = page(next.unwrap(), 1).await;
    assert_eq!(second, ["second"]);
    assert_eq!(page(next.unwrap(), 1).await, (Vec::new(), None));
    // Nobody may send a mark in the watchdog's name; it writes into the book itself.
    let mark = told(Reporter::Watchdog, &[(Pending, 100), (Timeout, 1_000)]).with(|mark| {
        mark.task_id = Id::parse("first").unwrap();
        mark.call_id = Id::parse("first-call").unwrap();
    });
    book.record(vec![mark]).await.unwrap();
    assert_eq!(page(begin(), 10).await.0, ["second"]);
}
