//! `Prefer: respond-async`: acknowledged at once, fetched later, whatever restarts meanwhile.

mod restarts;
mod secured;

use crate::support::application::Answer;
use crate::support::client::client;
use crate::support::contract::{fraud_input, fraud_output};
use crate::support::digest::content_digest;
use crate::support::link::Link;
use crate::support::pair::wrapped;
use crate::support::port::free_port;
use crate::support::reply::Reply;
use crate::support::road::{AGENT, ROUTE, Road};
use crate::support::sidecar::{Setup, Sidecar};
use crate::support::wait::wait_until;
use reqwest::RequestBuilder;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

const WITHIN: Duration = Duration::from_secs(20);
/// Long enough to be seen open, on a busy machine too.
const SLOW: Duration = Duration::from_millis(1_500);

/// The caller's side of a late call.
pub struct Asked<'a> {
    caller: &'a Sidecar,
    task: &'a str,
    prefer: &'a str,
    context: Value,
}

impl<'a> Asked<'a> {
    pub fn of(caller: &'a Sidecar, task: &'a str) -> Self {
        Self {
            caller,
            task,
            prefer: "respond-async",
            context: json!({}),
        }
    }

    /// Begins the call in a wrapper.
    pub fn wrapped(&self) -> RequestBuilder {
        let mut context = self.context.clone();
        context["task_id"] = self.task.into();
        let body = wrapped(AGENT, &fraud_input(), context);
        self.post("/hermes/invoke").body(body)
    }

    /// Begins it in the native form.
    pub fn native(&self) -> RequestBuilder {
        self.post(&format!("/agents/{AGENT}{ROUTE}"))
            .header("hermes-task-id", self.task)
            .body(fraud_input().to_string())
    }

    fn post(&self, path: &str) -> RequestBuilder {
        client()
            .post(format!("{}{path}", self.caller.outbound_url()))
            .header("content-type", "application/json")
            .header("prefer", self.prefer)
    }

    /// Asserts that a reply is the acknowledgement of this call; returns where its end will be.
    pub fn accepted(&self, reply: &Reply) -> String {
        assert_eq!(reply.status, 202, "{reply:?}");
        let body = reply.json();
        assert_eq!(body["task_id"], self.task);
        assert_eq!(body["state"], "executing", "{body}");
        let call = body["call_id"].as_str().unwrap();
        let location = reply.header("location");
        assert_eq!(location, format!("/hermes/calls/{call}"));
        for (name, value) in [
            ("preference-applied", "respond-async"),
            ("content-type", "application/json"),
            ("hermes-task-id", self.task),
            ("hermes-call-id", call),
            ("hermes-state", "executing"),
            ("hermes-executed", "?1"),
            ("retry-after", "1"),
        ] {
            assert_eq!(reply.header(name), value, "{name}");
        }
        location.to_owned()
    }
}

/// Looks at a call, without waiting for it.
pub async fn look(caller: &Sidecar, location: &str) -> Reply {
    let url = format!("{}{location}", caller.outbound_url());
    Reply::to(client().get(url)).await
}

/// Fetches the end of a call, as soon as there is one.
pub async fn fetch(caller: &Sidecar, location: &str) -> Reply {
    let url = format!("{}{location}", caller.outbound_url());
    Reply::to(client().get(url).header("prefer", "wait=25")).await
}

/// Changes the contract's timeout and retries.
fn contract(setup: Setup, timeout: u64, retries: u32) -> Setup {
    setup.revise(|body| {
        body["constraints"]["timeout_ms"] = timeout.into();
        body["retry_policy"] = json!({"max_retries": retries});
    })
}

fn slow() -> Answer {
    Answer::json(&fraud_output()).delayed(SLOW)
}

#[tokio::test]
async fn a_call_is_acknowledged_at_once_and_its_reply_fetched_later() {
    let road = Road::start().await;
    road.application
        .answer(ROUTE, slow().with("x-receipt", "17"));
    for (task, native) in [("t-wrapped", false), ("t-native", true)] {
        let asked = Asked {
            prefer: "return=minimal, respond-async",
            ..Asked::of(&road.caller, task)
        };
        let began = Instant::now();
        let request = match native {
            true => asked.native(),
            false => asked.wrapped(),
        };
        let location = asked.accepted(&Reply::to(request).await);
        asked.accepted(&look(&road.caller, &location).await);
        assert!(began.elapsed() < SLOW, "{:?}", began.elapsed());

        let reply = fetch(&road.caller, &location).await;
        let late = began.elapsed().saturating_sub(SLOW);
        assert!(
            late < Duration::from_millis(1_000),
            "{late:?} after the end"
        );
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.body, fraud_output().to_string());
        for (name, value) in [
            ("x-receipt", "17"),
            ("hermes-task-id", task),
            ("hermes-state", "completed"),
            ("hermes-executed", "?1"),
            ("hermes-attempt", "1"),
            ("content-digest", &content_digest(&reply.body)),
        ] {
            assert_eq!(reply.header(name), value, "{name}");
        }
        let again = look(&road.caller, &location).await;
        assert_eq!((again.status, &again.body), (200, &reply.body));
        assert_eq!(
            again.headers["server-timing"],
            reply.headers["server-timing"]
        );
        let received = road.application.received(ROUTE);
        assert_eq!(received.last().unwrap().headers["prefer"], "return=minimal");

        let shown = road.collector.wait_task(task, "completed", WITHIN).await;
        let attempts = shown["steps"][0]["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 1, "{shown}");
        assert!(attempts[0].get("undelivered").is_none(), "{shown}");
    }
    let served = [
        ("direction", "outbound"),
        ("contract", AGENT),
        ("code", "2xx"),
    ];
    assert_eq!(
        road.caller.metric("proxy_requests_total", &served).await,
        2.0
    );
    let finished = [
        ("direction", "outbound"),
        ("contract", AGENT),
        ("state", "completed"),
    ];
    assert_eq!(
        road.caller.metric("tasks_finished_total", &finished).await,
        2.0
    );
    let served = [
        ("direction", "inbound"),
        ("contract", AGENT),
        ("code", "2xx"),
    ];
    assert_eq!(
        road.callee.metric("proxy_requests_total", &served).await,
        2.0
    );
    // Every attempt moved along the table of states, on both sides.
    for sidecar in [&road.caller, &road.callee] {
        let refused = sidecar.metric("task_transitions_refused_total", &[]).await;
        assert_eq!(refused, 0.0);
    }
}

#[tokio::test]
async fn the_reply_is_fetched_under_the_name_that_the_call_was_made_under() {
    let road = Road::start().await;
    let host = format!("{AGENT}.hermes");
    let asked = Asked::of(&road.caller, "t-named");
    let request = asked.post(ROUTE).header("host", &host);
    let request = request.header("hermes-task-id", asked.task);
    let request = request.body(fraud_input().to_string());
    let location = asked.accepted(&Reply::to(request).await);
    let url = format!("{}{location}", road.caller.outbound_url());
    let fetching = client().get(&url).header("host", &host);
    let reply = Reply::to(fetching.header("prefer", "wait=25")).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.body, fraud_output().to_string());

    // Without the body where it is not asked for, at the callee's sidecar too.
    let call = reply.header("hermes-call-id");
    let callee = format!("{}/hermes/calls/{call}", road.callee.inbound_url());
    let at_callee = client().head(callee);
    let at_callee = at_callee.header("hermes-application", "payment");
    for request in [client().head(url).header("host", &host), at_callee] {
        let glanced = Reply::to(request).await;
        assert_eq!(glanced.status, 200, "{glanced:?}");
        assert_eq!(glanced.header("hermes-state"), "completed");
        let length = reply.body.len().to_string();
        assert_eq!(glanced.header("content-length"), length);
        assert!(glanced.body.is_empty(), "{glanced:?}");
    }
}

#[tokio::test]
async fn who_offers_to_wait_gets_the_reply_if_it_comes_meanwhile() {
    let road = Road::start().await;
    road.application.answer(ROUTE, slow());
    let patient = Asked {
        prefer: "respond-async, wait=20",
        ..Asked::of(&road.caller, "t-patient")
    };
    let reply = Reply::to(patient.wrapped()).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.body, fraud_output().to_string());
    assert!(reply.headers.get("preference-applied").is_none());

    let long = Answer::json(&fraud_output()).delayed(Duration::from_secs(4));
    road.application.answer(ROUTE, long);
    let impatient = Asked {
        prefer: "respond-async, wait=1",
        ..Asked::of(&road.caller, "t-impatient")
    };
    let began = Instant::now();
    let location = impatient.accepted(&Reply::to(impatient.native()).await);
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
    assert!(waited < Duration::from_secs(3), "{waited:?}");
    assert_eq!(fetch(&road.caller, &location).await.status, 200);
}

#[tokio::test]
async fn a_failure_is_fetched_as_it_would_have_been_answered() {
    let road = Road::start().await;
    let invalid = Answer::json(&json!({"risk_score": "high"}));
    let refusal = Answer::bytes(422, "application/json", "{\"why\":\"no\"}");
    for (name, answer, status) in [("invalid", invalid, 502), ("refused", refusal, 422)] {
        road.application.answer(ROUTE, answer);
        let (task, native_task) = (format!("t-{name}"), format!("t-{name}-native"));
        let asked = Asked::of(&road.caller, &task);
        let native = Asked::of(&road.caller, &native_task);
        let locations = [
            asked.accepted(&Reply::to(asked.wrapped()).await),
            native.accepted(&Reply::to(native.native()).await),
        ];
        let at_once = Asked {
            prefer: "return=minimal",
            ..Asked::of(&road.caller, "t-at-once")
        };
        let at_once = Reply::to(at_once.wrapped()).await;
        for location in locations {
            let reply = fetch(&road.caller, &location).await;
            assert_eq!(reply.status, status, "{reply:?}");
            for name in ["content-type", "hermes-state", "hermes-executed"] {
                assert_eq!(
                    reply.header(name),
                    at_once.header(name),
                    "{name}: {reply:?}"
                );
            }
            match status {
                502 => assert_eq!(
                    reply.problem(502, "output-invalid")["state"],
                    "failed_validation"
                ),
                _ => assert_eq!(reply.body, at_once.body),
            }
        }
    }
}

#[tokio::test]
async fn a_call_nobody_acknowledges_is_a_timeout_after_three_seconds() {
    // However often it might be tried.
    let thrice = |setup| contract(setup, 20_000, 2);
    let mut road = Road::start_with(thrice, |caller| caller).await;
    road.callee.process().signal(Signal::STOP);
    let asked = Asked::of(&road.caller, "t-silent");
    let began = Instant::now();
    let reply = Reply::to(asked.wrapped()).await;
    let took = began.elapsed();
    let problem = reply.problem(504, "timeout");
    assert!(problem["detail"].as_str().unwrap().contains("acknowledge"));
    assert!(took >= Duration::from_secs(3), "{took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    road.callee.process().signal(Signal::CONT);
    let call = reply.header("hermes-call-id");
    look(&road.caller, &format!("/hermes/calls/{call}"))
        .await
        .problem(404, "not-found");
    road.collector
        .wait_task("t-silent", "timeout", WITHIN)
        .await;
}

#[tokio::test]
async fn an_application_that_cannot_be_reached_is_told_at_once() {
    let once = |setup| contract(setup, 10_000, 0);
    let Road {
        caller,
        callee: _callee,
        application,
        collector: _collector,
        consul: _consul,
    } = Road::start_with(once, |caller| caller).await;
    drop(application);
    let asked = Asked::of(&caller, "t-nobody");
    let reply = Reply::to(asked.wrapped()).await;
    reply.problem(502, "upstream-unreachable");
    assert_eq!(reply.header("hermes-executed"), "?0");
}

#[tokio::test]
async fn the_time_of_a_call_counts_from_its_acknowledgement() {
    let once = |setup| contract(setup, 2_000, 0);
    let mut road = Road::start_with(once, |caller| caller).await;
    road.application.answer(ROUTE, Answer::Hang);
    let asked = Asked {
        context: json!({"deadline_ms": 2_500}),
        ..Asked::of(&road.caller, "t-hung")
    };
    // The acknowledgement takes most of what the call has, which is not taken from it.
    let (callee, request) = (&mut road.callee, asked.wrapped());
    callee.process().signal(Signal::STOP);
    let later = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        callee.process().signal(Signal::CONT);
    };
    let (reply, ()) = tokio::join!(Reply::to(request), later);
    let acknowledged = Instant::now();
    let location = asked.accepted(&reply);
    let reply = fetch(&road.caller, &location).await;
    reply.problem(504, "timeout");
    assert_eq!(reply.header("hermes-executed"), "?1");
    let took = acknowledged.elapsed();
    assert!(took >= Duration::from_millis(1_900), "{took:?}");
    assert!(took < Duration::from_millis(4_000), "{took:?}");
}

#[tokio::test]
async fn hanging_up_changes_nothing() {
    let mut road = Road::start().await;
    road.application.answer(ROUTE, slow());
    let request = Asked::of(&road.caller, "t-left").wrapped();
    // Nobody acknowledges, so the application goes without having heard anything.
    road.callee.process().signal(Signal::STOP);
    let impatient = request.timeout(Duration::from_millis(700)).send().await;
    assert!(impatient.is_err(), "{impatient:?}");
    assert_eq!(road.application.calls(ROUTE), 0);
    road.callee.process().signal(Signal::CONT);
    let shown = road
        .collector
        .wait_task("t-left", "completed", WITHIN)
        .await;
    assert_eq!(road.application.calls(ROUTE), 1);
    assert!(!shown.to_string().contains("undelivered"), "{shown}");
}

#[tokio::test]
async fn a_failed_attempt_is_followed_by_another_after_the_acknowledgement() {
    let idempotent = |setup: Setup| setup.revise(|body| body["idempotent"] = json!(true));
    let road = Road::start_with(idempotent, |caller| caller).await;
    let calls = AtomicUsize::new(0);
    road.application
        .script(ROUTE, move |_| match calls.fetch_add(1, Ordering::SeqCst) {
            0 => Answer::bytes(500, "application/json", "{}").delayed(Duration::from_millis(300)),
            _ => slow(),
        });
    let asked = Asked::of(&road.caller, "t-again");
    let location = asked.accepted(&Reply::to(asked.wrapped()).await);
    let reply = fetch(&road.caller, &location).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("hermes-attempt"), "2");
    assert_eq!(road.application.calls(ROUTE), 2);
}

#[tokio::test]
async fn what_may_have_begun_is_waited_for_and_not_begun_again() {
    let port = free_port();
    let link = Link::to(&format!("127.0.0.1:{port}")).await;
    let behind_link = |setup| {
        contract(setup, 20_000, 1)
            .set("inbound.listen", format!("127.0.0.1:{port}"))
            .set("inbound.advertise", link.address().to_string())
    };
    let road = Road::start_with(behind_link, |caller| caller).await;
    road.application.answer(ROUTE, slow());
    let asked = Asked::of(&road.caller, "t-twice");
    // What acknowledges the first attempt is lost.
    link.mute();
    let cut = async {
        called(&road, 1).await;
        link.hang_up();
        link.restore();
    };
    let (reply, ()) = tokio::join!(Reply::to(asked.wrapped()), cut);
    let location = asked.accepted(&reply);
    let reply = fetch(&road.caller, &location).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.body, fraud_output().to_string());
    assert_eq!(reply.header("hermes-attempt"), "2");
    assert_eq!(road.application.calls(ROUTE), 1);
}

#[tokio::test]
async fn what_is_not_there_is_said_with_what_to_do() {
    let road = Road::start().await;
    let url = format!("{}/hermes/calls/no-such-call", road.caller.outbound_url());
    let unknown = Reply::to(client().get(&url)).await;
    let problem = unknown.problem(404, "not-found");
    assert!(
        problem["detail"].as_str().unwrap().contains("hour"),
        "{problem}"
    );
    let glanced = Reply::to(client().head(&url)).await;
    assert_eq!((glanced.status, &glanced.body[..]), (404, &b""[..]));
    let posted = Reply::to(client().post(&url)).await;
    posted.problem(405, "method-not-allowed");
    assert_eq!(posted.header("allow"), "GET");

    let asked = Asked {
        context: json!({"deliver_to": "hooks"}),
        ..Asked::of(&road.caller, "t-hooks")
    };
    let refused = Reply::to(asked.wrapped()).await;
    let problem = refused.problem(400, "bad-context");
    assert!(
        problem["detail"].as_str().unwrap().contains("deliver_to"),
        "{problem}"
    );
    assert_eq!(road.application.calls(ROUTE), 0);
}

/// Sends a call to the callee's sidecar as another proxy than ours might.
fn at_callee(road: &Road, call: &'static str, key: &'static str) -> RequestBuilder {
    client()
        .post(format!("{}{ROUTE}", road.callee.inbound_url()))
        .header("content-type", "application/json")
        .header("prefer", "respond-async")
        .header("hermes-application", "elsewhere")
        .header("hermes-call-id", call)
        .header("idempotency-key", key)
        .body(fraud_input().to_string())
}

#[tokio::test]
async fn a_call_whose_place_no_client_can_ask_for_is_answered_at_once() {
    let road = Road::start().await;
    for call in [".", ".."] {
        let reply = Reply::to(at_callee(&road, call, call)).await;
        assert_eq!(reply.status, 200, "{call}: {reply:?}");
        assert_eq!(reply.body, fraud_output().to_string());
    }
}

#[tokio::test]
async fn two_calls_under_one_id_do_not_take_each_other_s_place() {
    let road = Road::start().await;
    road.application.answer(ROUTE, slow().with("x-number", "1"));
    let first = Reply::to(at_callee(&road, "one-id", "k-1")).await;
    assert_eq!(first.status, 202, "{first:?}");
    let second = Reply::to(at_callee(&road, "one-id", "k-2")).await;
    let problem = second.problem(409, "in-flight");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("Hermes-Call-Id"), "{detail}");
    assert_eq!(road.application.calls(ROUTE), 1);
    let location = first.header("location");
    let url = format!("{}{location}", road.callee.inbound_url());
    let fetching = client()
        .get(url)
        .header("hermes-application", "elsewhere")
        .header("prefer", "wait=25");
    let reply = Reply::to(fetching).await;
    assert_eq!((reply.status, reply.header("x-number")), (200, "1"));
}

/// Waits until the application has been called this often.
pub async fn called(road: &Road, times: usize) {
    wait_until(WITHIN, "call at the application", async || {
        road.application.calls(ROUTE) == times
    })
    .await;
}
