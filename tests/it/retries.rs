//! A failed attempt is followed by another where that is safe, within the call's time and budget.

use crate::support::application::{Answer, Application, Received};
use crate::support::client::client;
use crate::support::contract::{fraud_input, fraud_output};
use crate::support::crew::{Crew, stand_in};
use crate::support::fleet::{Member, fraud};
use crate::support::link::Link;
use crate::support::pair::{FRAUD, RISK};
use crate::support::port::free_port;
use crate::support::reply::Reply;
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::wait_until;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

const WITHIN: Duration = Duration::from_secs(20);
/// Time that a loaded machine may take beyond what is promised.
const SLACK: Duration = Duration::from_millis(1_500);

fn contract(idempotent: bool, timeout_ms: u64) -> Value {
    let mut body = fraud(FRAUD, "1.0.0");
    body["constraints"]["timeout_ms"] = timeout_ms.into();
    body["idempotent"] = idempotent.into();
    body
}

fn good() -> Answer {
    Answer::json(&fraud_output())
}

fn status(status: u16) -> Answer {
    Answer::bytes(status, "application/json", r#"{"error":"no"}"#)
}

/// What a call came to: its status, how often applications were asked, at how many instances.
async fn outcome(crew: &Crew, task: &str) -> (u16, usize, usize) {
    let reply = crew.call(task).await;
    let received = crew.received(task);
    let instances: HashSet<_> = received.iter().map(|(name, _)| *name).collect();
    let number = received.len().to_string();
    assert_eq!(reply.header("hermes-attempt"), number, "{task}: {reply:?}");
    (reply.status, received.len(), instances.len())
}

#[tokio::test]
async fn work_that_may_be_done_twice_is_tried_elsewhere() {
    let crew = Crew::start(contract(true, 2_000), &["a", "b", "c"]).await;
    let wrong = Answer::json(&json!({"risk_score": "high"}));
    for (name, first, came_to) in [
        ("500", status(500), (200, 2, 2)),
        ("501", status(501), (200, 2, 2)),
        ("503", status(503), (200, 2, 2)),
        ("408", status(408), (200, 2, 2)),
        ("425", status(425), (200, 2, 2)),
        ("429", status(429), (200, 2, 2)),
        ("reset", Answer::Close, (200, 2, 2)),
        ("late", Answer::Hang, (200, 2, 2)),
        ("400", status(400), (400, 1, 1)),
        ("401", status(401), (401, 1, 1)),
        ("404", status(404), (404, 1, 1)),
        ("409", status(409), (409, 1, 1)),
        ("413", status(413), (413, 1, 1)),
        ("422", status(422), (422, 1, 1)),
        ("wrong", wrong, (502, 1, 1)),
    ] {
        crew.answer(move |number| match number {
            0 => first.clone(),
            _ => good(),
        });
        let came = outcome(&crew, &format!("t-{name}")).await;
        assert_eq!(came, came_to, "{name}");
    }

    // Each attempt has its own report, and all are of one call.
    crew.answer(|_| status(500).with("x-reason", "all fail"));
    let reply = crew.call("t-all").await;
    assert_eq!((reply.status, reply.header("x-reason")), (500, "all fail"));
    assert_eq!(reply.header("hermes-attempt"), "3");
    assert_eq!(reply.header("hermes-executed"), "?1");
    assert_eq!(reply.header("hermes-state"), "failed_execution");
    let received = crew.received("t-all");
    let all = |of: &dyn Fn(&Received) -> String| {
        let values = received.iter().map(|(_, request)| of(request));
        values.collect::<HashSet<_>>()
    };
    let header = |name: &'static str| {
        move |request: &Received| request.headers[name].to_str().unwrap().to_owned()
    };
    assert_eq!(all(&header("hermes-attempt")).len(), 3);
    for same in [
        "hermes-call-id",
        "hermes-step-id",
        "idempotency-key",
        "content-digest",
    ] {
        assert_eq!(all(&header(same)).len(), 1, "{same}: {received:?}");
    }
    assert_eq!(all(&|request| format!("{:?}", request.body)).len(), 1);
    let attempts = crew.attempts("t-all", 3).await;
    let instances: HashSet<_> = attempts
        .iter()
        .map(|one| one["instance"].as_str())
        .collect();
    assert_eq!(instances.len(), 3, "{attempts:?}");
    for (number, attempt) in attempts.iter().enumerate() {
        assert_eq!(attempt["attempt"], number + 1, "{attempt}");
        assert_eq!(attempt["state"], "failed_execution", "{attempt}");
    }
    let sidecar = &crew.caller.sidecar;
    let kind = async |kind| {
        let labels = [("contract", FRAUD), ("kind", kind)];
        sidecar_metric(sidecar, "task_attempts_total", &labels).await
    };
    assert_eq!(kind("first").await, 16.0);
    assert_eq!(kind("retry").await, 10.0);
    let moved = [("from", "failed_execution"), ("to", "dispatched")];
    assert_eq!(
        sidecar_metric(sidecar, "task_transitions_total", &moved).await,
        9.0
    );
    let refused = sidecar_metric(sidecar, "task_transitions_refused_total", &[]).await;
    assert_eq!(refused, 0.0);
}

async fn sidecar_metric(sidecar: &Sidecar, name: &str, labels: &[(&str, &str)]) -> f64 {
    sidecar.metric(name, labels).await
}

#[tokio::test]
async fn work_that_must_not_be_done_twice_is_tried_once() {
    let crew = Crew::start(contract(false, 1_000), &["a", "b"]).await;
    for (name, first, came_to) in [
        ("500", status(500), 500),
        ("503", status(503), 503),
        ("429", status(429), 429),
        ("reset", Answer::Close, 502),
        ("late", Answer::Hang, 504),
        ("400", status(400), 400),
    ] {
        crew.answer(move |number| match number {
            0 => first.clone(),
            _ => good(),
        });
        let came = outcome(&crew, &format!("t-{name}")).await;
        assert_eq!(came, (came_to, 1, 1), "{name}");
    }
}

#[tokio::test]
async fn what_was_not_begun_goes_to_another_instance() {
    let mut crew = Crew::start(contract(false, 3_000), &["a", "b"]).await;
    let task = crew.task_for("a", "t-dead").await;
    crew.member("a").sidecar.kill9();
    let reply = crew.call(&task).await;
    assert_eq!(
        (reply.status, reply.header("x-who")),
        (200, "b"),
        "{reply:?}"
    );
    assert_eq!(reply.header("hermes-attempt"), "2");
    let attempts = crew.attempts(&task, 2).await;
    assert_eq!(attempts[0]["state"], "failed_execution");
    assert_eq!(attempts[0]["error"]["kind"], "upstream-unreachable");
    assert_eq!(attempts[1]["state"], "completed");
    assert_eq!(crew.received(&task).len(), 1);
}

#[tokio::test]
async fn a_full_instance_sends_calls_to_another_at_once() {
    let mut narrow = contract(false, 3_000);
    narrow["constraints"]["max_concurrent"] = json!(1);
    let mut crew = Crew::start(narrow, &["a", "b"]).await;
    let slow = good().delayed(Duration::from_millis(1_500));
    crew.member("a")
        .application
        .answer(RISK, slow.with("x-who", "a"));
    let (one, two) = (
        crew.task_for("a", "one").await,
        crew.task_for("a", "two").await,
    );
    let second = async {
        wait_until(WITHIN, "call", async || crew.received(&one).len() == 1).await;
        let began = Instant::now();
        (crew.call(&two).await, began.elapsed())
    };
    let (first, (second, took)) = tokio::join!(crew.call(&one), second);
    assert_eq!(first.header("x-who"), "a", "{first:?}");
    assert_eq!(
        (second.status, second.header("x-who")),
        (200, "b"),
        "{second:?}"
    );
    // The callee asks for a second; nobody waits for it who need not.
    assert!(took < Duration::from_millis(1_000), "{took:?}");
}

#[tokio::test]
async fn a_wait_that_is_asked_for_is_kept_where_there_is_time_for_it() {
    // Nobody else is left to ask.
    let crew = Crew::start(contract(true, 1_500), &["a"]).await;
    let timed = async |task: &str, context: Value| {
        let began = Instant::now();
        let mut context = context;
        context["task_id"] = task.into();
        let reply = crew.caller.line.call(FRAUD, context).await;
        (reply, began.elapsed())
    };
    for (wait, attempts, waits) in [
        ("1", 2, true),
        ("0", 2, false),
        ("-5", 2, false),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 2, false),
        ("120", 1, false),
        ("31536000", 1, false),
    ] {
        crew.answer(move |number| match number {
            0 => status(503).with("retry-after", wait),
            _ => good(),
        });
        let task = format!("t-{}", wait.replace([' ', ','], "-"));
        let (reply, took) = timed(&task, json!({})).await;
        assert_eq!(crew.received(&task).len(), attempts, "{wait}");
        assert_eq!(
            reply.status,
            if attempts == 2 { 200 } else { 503 },
            "{wait}"
        );
        assert_eq!(took >= Duration::from_secs(1), waits, "{wait}: {took:?}");
    }
    // The call's own deadline leaves no time for the wait.
    crew.answer(|_| status(429).with("retry-after", "2"));
    let (reply, took) = timed("t-deadline", json!({"deadline_ms": 2_000})).await;
    assert_eq!((reply.status, crew.received("t-deadline").len()), (429, 1));
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test]
async fn what_one_instance_asks_for_keeps_nobody_from_the_others() {
    let crew = Crew::start(contract(true, 3_000), &["a", "b", "c"]).await;
    for wait in ["120", "1"] {
        crew.answer(move |number| match number {
            0 => status(503).with("retry-after", wait),
            _ => good(),
        });
        let began = Instant::now();
        let came = outcome(&crew, &format!("t-{wait}")).await;
        assert_eq!(came, (200, 2, 2), "{wait}");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(1), "{wait}: {took:?}");
    }
}

/// Ends an instance's sidecar while its application is at work.
async fn dies_of(crew: &mut Crew, task: &str) -> Reply {
    let line = crew.caller.line.clone();
    let killed = async {
        wait_until(WITHIN, "call", async || crew.received(task).len() == 1).await;
        crew.member("a").sidecar.kill9();
    };
    let (reply, ()) = tokio::join!(line.call(FRAUD, json!({"task_id": task})), killed);
    reply
}

#[tokio::test]
async fn an_instance_that_dies_at_work_leaves_it_undone_or_done_once() {
    let mut crew = Crew::start(contract(false, 3_000), &["a", "b"]).await;
    crew.answer(|_| Answer::Hang);
    let task = crew.task_for("a", "t").await;
    let reply = dies_of(&mut crew, &task).await;
    assert_eq!(reply.status, 502, "{reply:?}");
    // The last attempt was refused, but the first may have been carried out.
    assert_eq!(reply.header("hermes-executed"), "?1");
    let told = reply.problem(502, "upstream-unreachable")["detail"].to_string();
    assert!(
        told.contains("last attempt") && told.contains("earlier"),
        "{told}"
    );
    assert_eq!(crew.received(&task).len(), 1);
    let attempts = crew.attempts(&task, 3).await;
    assert_eq!(
        attempts[0]["error"]["kind"], "upstream-reset",
        "{attempts:?}"
    );
    let instance = format!("{FRAUD}-a");
    assert!(
        attempts
            .iter()
            .all(|one| one["instance"] == instance.as_str())
    );
}

#[tokio::test]
async fn an_instance_that_comes_back_says_that_it_does_not_know() {
    let patient = |caller: Setup| {
        caller
            .set("retry.backoff", "4s")
            .set("retry.max_backoff", "4s")
    };
    let mut crew = Crew::start_with(contract(false, 9_000), &["a", "b"], patient).await;
    crew.answer(|_| Answer::Hang);
    let task = crew.task_for("a", "t").await;
    let line = crew.caller.line.clone();
    let restarted = async {
        wait_until(WITHIN, "call", async || crew.received(&task).len() == 1).await;
        crew.member("a").sidecar.start_again();
    };
    let (reply, ()) = tokio::join!(line.call(FRAUD, json!({"task_id": task})), restarted);
    // How soon it is asked again is a matter of chance: still away, not admitted yet, or back.
    assert!(matches!(reply.status, 409 | 502 | 503), "{reply:?}");
    if reply.status == 409 {
        reply.problem(409, "in-doubt");
    }
    assert_eq!(reply.header("hermes-executed"), "?1");
    assert_eq!(crew.received(&task).len(), 1);
}

/// A crew of one whose sidecar is reached over a link.
async fn behind_link(timeout_ms: u64) -> (Crew, Link) {
    let port = free_port();
    let link = Link::to(&format!("127.0.0.1:{port}")).await;
    let mut crew = Crew::start(contract(false, timeout_ms), &[]).await;
    let (consul, url) = (crew.consul.address(), crew.collector.url());
    let application = Application::start().await;
    application.answer(RISK, good());
    let sidecar = Sidecar::named("fraud")
        .consul(&consul)
        .collector(&url)
        .application(&application.url())
        .set("application.instance", "a")
        .set("inbound.listen", format!("127.0.0.1:{port}"))
        .set("inbound.advertise", link.address().to_string())
        .contract(contract(false, timeout_ms), "POST", RISK)
        .start()
        .await;
    crew.members.push(Member {
        name: "a",
        sidecar,
        application,
    });
    crew.caller.knows(FRAUD, 1).await;
    (crew, link)
}

#[tokio::test]
async fn a_reply_that_was_lost_is_fetched_and_the_work_not_done_again() {
    let (crew, link) = behind_link(1_500).await;
    crew.answer(|_| good());
    link.mute();
    let restored = async {
        wait_until(WITHIN, "call", async || crew.received("t").len() == 1).await;
        // Its reply is said by then, into nothing.
        let ended = async || crew.collector.ends().of("t", "callee") == 1;
        wait_until(WITHIN, "end at the callee", ended).await;
        link.restore();
    };
    let (reply, ()) = tokio::join!(crew.call("t"), restored);
    assert_eq!(
        (reply.status, reply.json()),
        (200, fraud_output()),
        "{reply:?}"
    );
    assert_eq!(reply.header("hermes-executed"), "?1");
    assert_eq!(crew.received("t").len(), 1);
    assert_eq!(reply.header("hermes-attempt"), "2");
}

#[tokio::test]
async fn work_under_way_is_waited_for() {
    let (crew, link) = behind_link(3_000).await;
    crew.answer(|_| good().delayed(Duration::from_millis(1_000)));
    let cut = async {
        wait_until(WITHIN, "call", async || crew.received("t").len() == 1).await;
        link.hang_up();
    };
    let (reply, ()) = tokio::join!(crew.call("t"), cut);
    assert_eq!(
        (reply.status, reply.json()),
        (200, fraud_output()),
        "{reply:?}"
    );
    assert_eq!(reply.header("hermes-attempt"), "2");
    assert_eq!(crew.received("t").len(), 1);
}

#[tokio::test]
async fn a_silent_instance_is_asked_again_and_nobody_else() {
    let mut crew = Crew::start(contract(false, 1_000), &["a", "b"]).await;
    let task = crew.task_for("a", "t").await;
    crew.member("a").sidecar.process().signal(Signal::STOP);
    let began = Instant::now();
    let reply = crew.call(&task).await;
    let took = began.elapsed();
    crew.member("a").sidecar.process().signal(Signal::CONT);
    reply.problem(504, "timeout");
    assert!(took >= Duration::from_millis(3 * 1_200 - 300), "{took:?}");
    assert!(took < Duration::from_millis(3 * 1_200) + SLACK, "{took:?}");
    assert!(crew.member("b").application.calls(RISK) == 0);
}

#[tokio::test]
async fn retries_stay_within_their_budget() {
    const CALLS: usize = 300;
    let default = |caller: Setup| {
        caller
            .unset("retry.budget_percent")
            .unset("retry.budget_min_per_second")
    };
    let crew = Crew::start_with(contract(true, 5_000), &["a", "b"], default).await;
    crew.answer(|_| status(500));
    let began = Instant::now();
    let mut calls = JoinSet::new();
    let mut pace = tokio::time::interval(Duration::from_millis(10));
    for number in 0..CALLS {
        pace.tick().await;
        let line = crew.caller.line.clone();
        calls.spawn(async move {
            let context = json!({"task_id": format!("t-{number}")});
            line.call(FRAUD, context).await.status
        });
    }
    let statuses = calls.join_all().await;
    assert!(statuses.iter().all(|status| *status == 500), "{statuses:?}");
    let seconds = began.elapsed().as_secs() as usize + 1;
    let made: usize = crew
        .members
        .iter()
        .map(|one| one.application.calls(RISK))
        .sum();
    assert!(made >= CALLS, "{made}");
    // What is always allowed adds to the share only as long as the share is less.
    let most = CALLS + (CALLS / 5).max(3 * seconds) + 3;
    assert!(made <= most, "{made} of {most} in {seconds} s");
}

#[tokio::test]
async fn without_a_budget_nothing_is_tried_again() {
    let none = |caller: Setup| {
        caller
            .set("retry.budget_percent", 0)
            .set("retry.budget_min_per_second", 0)
    };
    let crew = Crew::start_with(contract(true, 5_000), &["a", "b"], none).await;
    crew.answer(|_| status(500));
    assert_eq!(outcome(&crew, "t").await, (500, 1, 1));
}

#[tokio::test]
async fn one_deadline_bounds_all_attempts() {
    let crew = Crew::start(contract(true, 1_000), &["real"]).await;
    // In place of a sidecar, to hear what sidecars are told.
    let peer = Application::start().await;
    peer.script(RISK, |_| Answer::Hang);
    stand_in(&crew.consul, FRAUD, "peer", &peer).await;
    crew.caller.knows(FRAUD, 2).await;
    let began = Instant::now();
    let context = json!({
        "task_id": "t", "deadline_ms": 2_000, "required_tags": ["stand-in"],
    });
    let reply = crew.caller.line.call(FRAUD, context).await;
    let took = began.elapsed();
    reply.problem(504, "timeout");
    assert!(took >= Duration::from_millis(1_900), "{took:?}");
    assert!(took < Duration::from_millis(2_000) + SLACK, "{took:?}");
    let told: Vec<u64> = peer
        .received(RISK)
        .iter()
        .map(|request| request.headers["hermes-deadline-ms"].to_str().unwrap())
        .map(|left| left.parse().unwrap())
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0] <= 2_000 && told[1] <= 800, "{told:?}");
}

#[tokio::test]
async fn what_a_callee_says_decides_what_follows() {
    let crew = Crew::start(contract(false, 2_000), &["real"]).await;
    let (peer, asked) = (Application::start().await, Arc::new(AtomicUsize::new(0)));
    stand_in(&crew.consul, FRAUD, "peer", &peer).await;
    crew.caller.knows(FRAUD, 2).await;
    let problem = |status: u16, kind: &str| {
        let body = json!({
            "type": format!("urn:hermes:problem:{kind}"), "title": "t", "status": status,
            "detail": "d", "error": "d",
        });
        Answer::bytes(status, "application/problem+json", body.to_string())
    };
    let unread = |answer: Answer| answer.with("hermes-executed", "?0");
    let failed = |answer: Answer| answer.with("hermes-state", "failed_execution");
    for (name, first, came_to, asks) in [
        ("misdirected", unread(problem(421, "misdirected")), 200, 2),
        ("draining", failed(unread(problem(503, "draining"))), 200, 2),
        ("forbidden", unread(problem(403, "forbidden")), 403, 1),
        (
            "in-doubt",
            problem(409, "in-doubt").with("hermes-state", "timeout"),
            409,
            1,
        ),
        (
            "in-flight",
            problem(409, "in-flight").with("hermes-state", "executing"),
            409,
            1,
        ),
    ] {
        asked.store(0, Ordering::SeqCst);
        let asked = asked.clone();
        peer.script(RISK, move |_| match asked.fetch_add(1, Ordering::SeqCst) {
            0 => first.clone(),
            _ => good().with("hermes-executed", "?1"),
        });
        let before = peer.calls(RISK);
        let context = json!({"task_id": format!("t-{name}"), "required_tags": ["stand-in"]});
        let reply = crew.caller.line.call(FRAUD, context).await;
        let made = peer.calls(RISK) - before;
        assert_eq!((reply.status, made), (came_to, asks), "{name}: {reply:?}");
    }
}

#[tokio::test]
async fn a_retry_that_meets_another_version_checks_the_input_again() {
    let crew_of = |version: &str| {
        let mut body = contract(true, 2_000);
        body["version"] = version.into();
        body
    };
    let mut crew = Crew::start(crew_of("1.0.0"), &["a"]).await;
    let mut narrower = crew_of("1.0.1");
    narrower["input_schema"]["properties"]["channel"] = json!({"type": "integer"});
    crew.join(narrower, "b").await;
    crew.caller.knows(FRAUD, 2).await;
    crew.answer(|_| status(500));
    let task = crew.task_for("a", "t").await;
    let mut input = fraud_input();
    input["channel"] = "web".into();
    let url = format!("{}/hermes/invoke", crew.caller.sidecar.outbound_url());
    let body = json!({"agent": FRAUD, "input": input, "context": {"task_id": task}});
    let reply = Reply::to(client().post(url).json(&body)).await;
    reply.problem(400, "input-invalid");
    assert_eq!(crew.received(&task).len(), 1);
    let attempts = crew.attempts(&task, 2).await;
    assert_eq!(attempts[0]["state"], "failed_execution", "{attempts:?}");
    assert_eq!(attempts[1]["state"], "failed_validation", "{attempts:?}");
}
