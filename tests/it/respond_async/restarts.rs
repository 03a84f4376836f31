//! Sidecars that end between the acknowledgement and the fetch.

use super::{Asked, called, fetch, look, slow};
use crate::restart::admitted;
use crate::support::application::Answer;
use crate::support::client::client;
use crate::support::contract::{fraud_input, fraud_output};
use crate::support::reply::Reply;
use crate::support::road::{ROUTE, Road};
use crate::support::sidecar::Sidecar;
use crate::support::wait::wait_until;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);

async fn is_live(sidecar: &Sidecar) {
    wait_until(WITHIN, "sidecar that is back", async || {
        let url = format!("{}/live", sidecar.admin_url());
        crate::support::client::succeeds(&client(), &url).await
    })
    .await;
}

#[tokio::test]
async fn the_callers_sidecar_keeps_what_had_ended_and_says_what_had_not() {
    let mut road = Road::start().await;
    let ended = Asked::of(&road.caller, "t-ended");
    let ended = ended.accepted(&Reply::to(ended.wrapped()).await);
    let reply = fetch(&road.caller, &ended).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    road.application.answer(ROUTE, Answer::Hang);
    let open = Asked::of(&road.caller, "t-open");
    let open = open.accepted(&Reply::to(open.wrapped()).await);

    road.caller.start_again();
    is_live(&road.caller).await;
    let again = look(&road.caller, &ended).await;
    assert_eq!((again.status, &again.body), (200, &reply.body));
    for name in ["hermes-call-id", "content-digest", "server-timing"] {
        assert_eq!(again.header(name), reply.header(name), "{name}");
    }
    let doubt = look(&road.caller, &open).await;
    let problem = doubt.problem(409, "in-doubt");
    assert_eq!(problem["state"], "executing", "{problem}");
    assert_eq!(problem["task_id"], "t-open", "{problem}");
}

#[tokio::test]
async fn a_sidecar_that_is_asked_to_stop_sees_its_open_calls_to_their_end() {
    let mut road = Road::start().await;
    road.application.answer(ROUTE, slow());
    let asked = Asked::of(&road.caller, "t-drained");
    let location = asked.accepted(&Reply::to(asked.wrapped()).await);
    assert!(road.caller.terminate().await.success());
    assert!(!road.caller.log().contains("interrupted"));
    road.caller.start_again();
    is_live(&road.caller).await;
    let reply = look(&road.caller, &location).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.body, fraud_output().to_string());
}

#[tokio::test]
async fn a_callee_that_is_killed_in_the_middle_leaves_a_failure() {
    let mut road = Road::start().await;
    road.application.answer(ROUTE, Answer::Hang);
    let asked = Asked::of(&road.caller, "t-killed");
    let location = asked.accepted(&Reply::to(asked.wrapped()).await);
    road.callee.start_again();
    let reply = fetch(&road.caller, &location).await;
    let problem = reply.problem(502, "upstream-reset");
    assert_eq!(problem["state"], "failed_execution", "{problem}");
    assert_eq!(reply.header("hermes-executed"), "?1");
    assert_eq!(road.application.calls(ROUTE), 1);
}

#[tokio::test]
async fn the_callees_sidecar_keeps_the_reply_for_the_application_that_called() {
    let mut road = Road::start().await;
    road.application.answer(ROUTE, slow());
    let url = road.callee.inbound_url();
    let request = client()
        .post(format!("{url}{ROUTE}"))
        .header("content-type", "application/json")
        .header("hermes-application", "payment")
        .header("hermes-call-id", "call-1")
        .header("prefer", "respond-async")
        .body(fraud_input().to_string());
    let reply = Reply::to(request).await;
    assert_eq!(reply.status, 202, "{reply:?}");
    assert_eq!(reply.header("location"), "/hermes/calls/call-1");
    called(&road, 1).await;
    let ask = async |application: &str| {
        let request = client()
            .get(format!("{url}/hermes/calls/call-1"))
            .header("hermes-application", application)
            .header("prefer", "wait=20");
        Reply::to(request).await
    };
    // As long as it runs, and afterwards.
    ask("billing").await.problem(404, "not-found");
    let first = ask("payment").await;
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.header("hermes-state"), "completed");
    ask("billing").await.problem(404, "not-found");

    road.callee.start_again();
    admitted(&road.callee).await;
    let again = ask("payment").await;
    assert_eq!((again.status, &again.body), (200, &first.body));
    ask("billing").await.problem(404, "not-found");
    assert_eq!(road.application.calls(ROUTE), 1);
}

#[tokio::test]
async fn a_reply_is_fetched_also_where_the_way_was_cut_meanwhile() {
    let mut road = Road::start().await;
    let long = Answer::json(&fraud_output()).delayed(Duration::from_secs(2));
    road.application.answer(ROUTE, long);
    let asked = Asked::of(&road.caller, "t-cut");
    let location = asked.accepted(&Reply::to(asked.wrapped()).await);
    called(&road, 1).await;
    // The question that is under way goes unanswered until the callee goes on.
    road.callee.process().signal(rustix::process::Signal::STOP);
    let open = look(&road.caller, &location).await;
    assert_eq!(open.status, 202, "{open:?}");
    road.callee.process().signal(rustix::process::Signal::CONT);
    assert_eq!(fetch(&road.caller, &location).await.status, 200);
}
