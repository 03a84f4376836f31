//! A task stays one task through services that only hand on the W3C trace fields.

use crate::support::application::Answer;
use crate::support::client::client;
use crate::support::hops::{AGENTS, Hops, PATH, W3C, is_one_chain};
use crate::support::reply::Reply;
use crate::support::wait::wait_for;
use reqwest::header::HeaderMap;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

/// Long enough for a loaded machine.
const PATIENT: Duration = Duration::from_secs(4);
const WITHIN: Duration = Duration::from_secs(10);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// What the caller's sidecar adds to a contract's timeout.
const GRACE: Duration = Duration::from_millis(200);

fn parent() -> String {
    format!("00-{TRACE}-00f067aa0ba902b7-01")
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name);
    value.map_or("", |value| value.to_str().unwrap())
}

/// Returns the token in what an application was sent.
fn token(headers: &HeaderMap) -> &str {
    let state = text(headers, "tracestate");
    let token = state.strip_prefix("hermes=");
    let token = token.unwrap_or_else(|| panic!("our member is not the first: {state}"));
    token.split(',').next().unwrap()
}

async fn unmatched(hops: &Hops, at: usize) -> f64 {
    let sidecar = &hops.services[at].sidecar;
    sidecar.metric("context_unmatched_total", &[]).await
}

#[tokio::test]
async fn five_services_that_hand_on_trace_fields_alone_are_one_task() {
    let hops = Hops::start(PATIENT).await;
    let parent = parent();
    let reply = hops
        .order(
            "t-one",
            &[
                ("traceparent", &parent),
                ("tracestate", "vendor=x,other=y"),
                ("hermes-sla-level", "P0"),
                ("hermes-requester", "\"wang\""),
                ("hermes-scenario", "\"cross-border payment\""),
                ("hermes-region", "\"cn-east-1\""),
                ("hermes-utc-offset", "\"+08:00\""),
                ("hermes-deadline-ms", "20000"),
            ],
        )
        .await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let task = hops.ended("t-one", 5).await;
    assert_eq!(task["state"], "completed", "{task:#}");
    is_one_chain(&task);

    let (mut spans, mut tokens, mut left) = (HashSet::new(), HashSet::new(), 20_000);
    for at in 0..AGENTS.len() {
        let told = hops.received(at, "t-one").pop().unwrap().headers;
        for (name, value) in [
            ("hermes-task-id", "t-one"),
            ("hermes-sla-level", "P0"),
            ("hermes-requester", "\"wang\""),
            ("hermes-scenario", "\"cross-border payment\""),
            ("hermes-region", "\"cn-east-1\""),
            ("hermes-utc-offset", "\"+08:00\""),
        ] {
            assert_eq!(text(&told, name), value, "{name} at {at}");
        }
        let deadline: u64 = text(&told, "hermes-deadline-ms").parse().unwrap();
        assert!(deadline <= left, "{deadline} of {left} at {at}");
        left = deadline;
        assert!(!told.contains_key("hermes-path"), "{at}: {told:?}");
        let traced: Vec<_> = text(&told, "traceparent").split('-').collect();
        assert_eq!([traced[0], traced[1], traced[3]], ["00", TRACE, "01"]);
        spans.insert(traced[2].to_owned());
        let state = text(&told, "tracestate");
        assert!(state.ends_with(",vendor=x,other=y"), "{state}");
        assert_eq!(state.matches("hermes=").count(), 1, "{state}");
        tokens.insert(token(&told).to_owned());
    }
    assert_eq!((spans.len(), tokens.len()), (5, 5), "new at every hop");
    for (at, service) in hops.services.iter().enumerate() {
        let unmatched = service.sidecar.metric("context_unmatched_total", &[]).await;
        assert_eq!(unmatched, 0.0, "{at}");
    }

    // Without a task or a trace of the caller's own both are made, and kept just so.
    let reply = hops.order("", &[]).await;
    let task = hops.ended(reply.header("hermes-task-id"), 5).await;
    is_one_chain(&task);
    let traced = |at| {
        let told = hops.received(at, "").pop().unwrap().headers;
        let traceparent = text(&told, "traceparent").to_owned();
        traceparent.split('-').nth(1).unwrap().to_owned()
    };
    assert_eq!(traced(0), traced(4));
}

#[tokio::test]
async fn tasks_under_way_at_once_are_told_apart_or_not_guessed_at() {
    let hops = Hops::start(PATIENT).await;
    let parent = parent();
    let same = [("traceparent", parent.as_str())];
    // Nobody goes on before both orders have come.
    for service in &hops.services {
        service.relay.together(2);
    }
    let (a, b) = tokio::join!(hops.order("t-a", &same), hops.order("t-b", &same));
    assert_eq!((a.status, b.status), (200, 200), "{a:?} {b:?}");
    for task in ["t-a", "t-b"] {
        is_one_chain(&hops.ended(task, 5).await);
        for at in 0..AGENTS.len() {
            let told = hops.received(at, task);
            assert_eq!(told.len(), 1);
            assert_eq!(text(&told[0].headers, "hermes-task-id"), task, "{at}");
        }
    }

    // With the trace alone, which both have, nobody can say whose a call is: each begins anew.
    let before = unmatched(&hops, 0).await;
    hops.services[1..]
        .iter()
        .for_each(|service| service.relay.together(1));
    hops.hand_on(&["traceparent"]);
    let (a, b) = tokio::join!(hops.order("t-c", &same), hops.order("t-d", &same));
    assert_eq!((a.status, b.status), (200, 200), "{a:?} {b:?}");
    for task in ["t-c", "t-d"] {
        hops.ended(task, 1).await;
        let told = hops.received(1, task).pop().unwrap().headers;
        let own = text(&told, "hermes-task-id").to_owned();
        assert!(!["t-c", "t-d"].contains(&own.as_str()), "{own}");
        assert_eq!(text(&told, "hermes-requester"), "\"order\"");
        assert_eq!(text(&told, "traceparent").split('-').nth(1), Some(TRACE));
        hops.collector.wait_task(&own, "completed", WITHIN).await;
    }
    assert_eq!(unmatched(&hops, 0).await, before + 2.0);

    // One task at a time, and the trace alone is enough.
    hops.services[0].relay.together(1);
    let reply = hops.order("t-e", &same).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    is_one_chain(&hops.ended("t-e", 5).await);
}

#[tokio::test]
async fn a_token_is_believed_only_while_its_step_is_served_and_only_for_that() {
    let hops = Hops::start(PATIENT).await;
    let parent = parent();
    let same = [("traceparent", parent.as_str()), ("hermes-sla-level", "P0")];
    let reply = hops.order("t-early", &same).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let ended = hops.received(0, "t-early").pop().unwrap().headers;
    let of_next = hops.received(1, "t-early").pop().unwrap().headers;

    // Meanwhile another task with the same trace is served, and it is not the one.
    hops.services[0].application.answer(PATH, Answer::Hang);
    let waiting = hops.order("t-served", &same);
    let late = async {
        wait_for(WITHIN, "order under way", async || {
            hops.received(0, "t-served").pop()
        })
        .await;
        let url = hops.services[0].sidecar.outbound_url();
        let before = unmatched(&hops, 0).await;
        for (told, order) in [(&ended, "t-late"), (&of_next, "t-foreign")] {
            let mut request = client().post(format!("{url}/agents/{}{PATH}", AGENTS[4]));
            for name in W3C {
                request = request.header(*name, text(told, name));
            }
            let reply = Reply::to(request.json(&json!({"order": order}))).await;
            assert_eq!(reply.status, 200, "{reply:?}");
            let got = hops.received(4, order).pop().unwrap().headers;
            let task = text(&got, "hermes-task-id");
            assert!(!["t-early", "t-served"].contains(&task), "{task}");
            assert!(!got.contains_key("hermes-sla-level"), "{got:?}");
            assert_ne!(token(&got), token(told));
        }
        assert_eq!(unmatched(&hops, 0).await, before + 2.0);
    };
    // The order itself hangs, and nobody waits for it.
    tokio::select! {
        reply = waiting => panic!("{reply:?}"),
        () = late => {}
    }
}

#[tokio::test]
async fn damaged_trace_fields_are_replaced_and_never_fail_a_call() {
    let hops = Hops::start(PATIENT).await;
    let parent = parent();
    let upper = parent.to_uppercase();
    let many = (0..40)
        .map(|n| format!("k{n}=1"))
        .collect::<Vec<_>>()
        .join(",");
    let big = format!("big={}", "x".repeat(250));
    let long = format!("a=1,{big},b={},c=3", "y".repeat(250));
    for (order, parent, state, kept) in [
        ("upper", upper.as_str(), "a=1", ""),
        ("version", &parent.replacen("00", "ff", 1), "a=1", ""),
        ("none", "", "a=1", ""),
        ("malformed", &parent, "a=1,no member", ""),
        ("many", &parent, &many, ""),
        ("long", &parent, &long, &format!("a=1,{big},c=3")),
        ("twice", &parent, "a=1,b=2,a=3", "a=1,b=2"),
        ("forged", &parent, "hermes=0,a=1", "a=1"),
    ] {
        let mut headers = vec![("tracestate", state)];
        if !parent.is_empty() {
            headers.push(("traceparent", parent));
        }
        let reply = hops.order(order, &headers).await;
        assert_eq!(reply.status, 200, "{order}: {reply:?}");
        is_one_chain(&hops.ended(order, 5).await);
        for at in [0, 4] {
            let told = hops.received(at, order).pop().unwrap().headers;
            let (_, others) = text(&told, "tracestate")
                .split_once(',')
                .unwrap_or_default();
            assert_eq!(others, kept, "{order}");
            let is_kept = text(&told, "traceparent").contains(TRACE);
            assert_eq!(
                is_kept,
                !["upper", "version", "none"].contains(&order),
                "{order}"
            );
        }
    }
}

#[tokio::test]
async fn a_path_from_outside_that_does_not_follow_breaks_the_chain() {
    let hops = Hops::start(PATIENT).await;
    let reply = hops.order("t-true", &[]).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let task = hops.ended("t-true", 5).await;
    is_one_chain(&task);

    // Somebody without a sidecar claims to call for the first step, by a path of his own.
    let first = reply.header("hermes-step-id");
    let made_up = format!("i=:{}=:", "A".repeat(43));
    let path = format!(
        "\"{first}\";a=\"{}@1.0.0\";t=1700000000;{made_up}",
        AGENTS[0]
    );
    let forge = |path: String| {
        let url = format!("{}{PATH}", hops.services[4].sidecar.inbound_url());
        let request = client().post(url).json(&json!({"order": "forged"}));
        let request = request.header("hermes-task-id", "t-true");
        Reply::to(request.header("hermes-path", path))
    };
    let forged = forge(path.clone()).await;
    assert_eq!(forged.status, 200, "{forged:?}");
    let shown = hops.ended("t-true", 6).await;
    let broken = shown["chain"].as_array().unwrap();
    assert_eq!(broken.len(), 1, "{shown:#}");
    assert_eq!(broken[0]["body"], "path", "{shown:#}");
    assert_eq!(broken[0]["step_id"], forged.header("hermes-step-id"));
    assert_ne!(broken[0]["caller"], broken[0]["callee"]);

    // Who tells of too many ancestors is a loop, carried or not; a damaged record is refused.
    let record = |count| format!("\"\";n={count};c=:{}=:, {path}", "A".repeat(43));
    assert_eq!(forge(record("31")).await.status, 200);
    forge(record("32")).await.problem(508, "loop");
    forge(record("999999999999999")).await.problem(508, "loop");
    forge(record("0")).await.problem(400, "bad-context");
}

/// Lets the fourth service hang and then its sidecar stop, `times` each; returns how long the
/// third one's application waited for its 504s.
pub async fn hung_step(hops: &mut Hops, times: usize) -> [Vec<Duration>; 2] {
    let (mut hung, mut stopped) = (Vec::new(), Vec::new());
    for turn in 0..times {
        let task = format!("t-hung-{turn}");
        hops.services[3].application.answer(PATH, Answer::Hang);
        hung.push(gave_up(hops, &task).await);
        let shown = hops.ended(&task, 4).await;
        blames_the_fourth(&shown);
        hops.hand_on_at(3, W3C);

        let task = format!("t-stopped-{turn}");
        hops.services[3].sidecar.process().signal(Signal::STOP);
        stopped.push(gave_up(hops, &task).await);
        // Once it goes on, it carries out what nobody waits for any more.
        let shown = hops.ended(&task, 4).await;
        hops.services[3].sidecar.process().signal(Signal::CONT);
        hops.services[3].sidecar.ready(WITHIN).await;
        blames_the_fourth(&shown);
    }
    [hung, stopped]
}

/// Places an order that fails at the fourth step; returns how long the third one waited.
async fn gave_up(hops: &Hops, task: &str) -> Duration {
    let asker = &hops.services[2].relay;
    asker.forget();
    let reply = hops.order(task, &[]).await;
    assert_eq!(reply.status, 502, "{reply:?}");
    let heard = asker.heard();
    assert_eq!(heard.len(), 1);
    assert_eq!(heard[0].0, 504, "{reply:?}");
    heard[0].1
}

fn blames_the_fourth(task: &Value) {
    let verdict = task["verdict"].as_str().unwrap();
    assert!(verdict.contains(AGENTS[3]), "{task:#}");
    let step = task["steps"].as_array().unwrap().iter();
    let mut of_fourth = step.filter(|step| step["agent"] == AGENTS[3]);
    assert_eq!(of_fourth.next().unwrap()["state"], "timeout", "{task:#}");
}

/// Asserts that every wait is at least `least`, and the median so many milliseconds over it; returns
/// these.
pub fn came_at(waits: &mut [Duration], least: Duration, within: Range<u64>) -> u64 {
    waits.sort_unstable();
    assert!(waits[0] >= least, "{waits:?}");
    let over = (waits[waits.len() / 2] - least).as_millis() as u64;
    assert!(
        within.contains(&over),
        "{over} ms over {least:?}: {waits:?}"
    );
    over
}

#[tokio::test]
async fn a_hung_step_is_named_and_its_caller_told_in_time() {
    let patience = Duration::from_secs(1);
    let mut hops = Hops::start(patience).await;
    let [mut hung, mut stopped] = hung_step(&mut hops, 2).await;
    // The bounds of the long show, widened for a machine that does other things too.
    came_at(&mut hung, patience, 0..700);
    came_at(&mut stopped, patience + GRACE, 0..700);
}
