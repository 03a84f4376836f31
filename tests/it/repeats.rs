//! A call that comes again is not carried out again, whatever happened to the first.

use crate::restart::admitted;
use crate::support::application::{Answer, Application};
use crate::support::client::client;
use crate::support::contract::{fraud_input, fraud_output};
use crate::support::reply::Reply;
use crate::support::road::{ROUTE, application, patient_contract};
use crate::support::sidecar::Sidecar;
use crate::support::wait::wait_until;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::JoinSet;

const WITHIN: Duration = Duration::from_secs(20);

/// A call as another application's sidecar would make it.
struct Call<'a> {
    key: &'a str,
    application: &'a str,
    input: Value,
}

impl<'a> Call<'a> {
    fn under(key: &'a str) -> Self {
        Self {
            key,
            application: "payment",
            input: fraud_input(),
        }
    }

    async fn make(&self, sidecar: &Sidecar) -> Reply {
        Reply::to(self.request(sidecar)).await
    }

    fn request(&self, sidecar: &Sidecar) -> reqwest::RequestBuilder {
        client()
            .post(format!("{}{ROUTE}", sidecar.inbound_url()))
            .header("content-type", "application/json")
            .header("hermes-application", self.application)
            .header("hermes-task-id", "t-1")
            .header("idempotency-key", self.key)
            .body(self.input.to_string())
    }
}

async fn serving(application: &Application, change: impl FnOnce(&mut Value)) -> Sidecar {
    let mut contract = patient_contract();
    change(&mut contract);
    let sidecar = Sidecar::named("fraud")
        .application(&application.url())
        .contract(contract, "POST", ROUTE)
        .start_unready()
        .await;
    admitted(&sidecar).await;
    sidecar
}

#[tokio::test]
async fn an_answered_call_gets_the_same_answer_and_is_done_once() {
    let application = application().await;
    let answer = Answer::bytes(201, "application/json", fraud_output().to_string());
    application.answer(ROUTE, answer.with("x-receipt", "receipt-17"));
    let mut sidecar = serving(&application, |_| {}).await;
    let first = Call::under("k-1").make(&sidecar).await;
    // Quoted or bare, it is the same key.
    for key in ["k-1", "\"k-1\""] {
        let again = Call::under(key).make(&sidecar).await;
        assert_eq!((again.status, &again.body), (201, &first.body), "{again:?}");
        for name in [
            "x-receipt",
            "content-type",
            "content-digest",
            "hermes-state",
        ] {
            assert_eq!(again.headers[name], first.headers[name], "{name}");
        }
        assert_eq!(again.header("hermes-executed"), "?1");
    }
    assert_eq!(application.calls(ROUTE), 1);

    // It survives a kill, too.
    sidecar.start_again();
    admitted(&sidecar).await;
    let again = Call::under("k-1").make(&sidecar).await;
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert_eq!(application.calls(ROUTE), 1);

    // Another caller's key, and another key, are other calls.
    let foreign = Call {
        application: "billing",
        ..Call::under("k-1")
    };
    assert_eq!(foreign.make(&sidecar).await.status, 201);
    assert_eq!(Call::under("k-2").make(&sidecar).await.status, 201);
    assert_eq!(application.calls(ROUTE), 3);
}

#[tokio::test]
async fn another_payload_under_a_known_key_is_refused() {
    let application = application().await;
    let sidecar = serving(&application, |_| {}).await;
    assert_eq!(Call::under("k").make(&sidecar).await.status, 200);
    let mut other = Call::under("k");
    other.input["amount_cny"] = json!(999);
    let refused = other.make(&sidecar).await;
    let problem = refused.problem(422, "idempotency-mismatch");
    assert_eq!(problem["state"], "completed", "{problem}");
    assert_eq!(application.calls(ROUTE), 1);
    // The query reaches the application, too.
    let asking = |mode: &str| {
        let url = format!("{}{ROUTE}?mode={mode}", sidecar.inbound_url());
        let request = client().post(url).header("idempotency-key", "queried");
        let request = request.header("content-type", "application/json");
        Reply::to(request.body(fraud_input().to_string()))
    };
    for _ in 0..2 {
        assert_eq!(asking("a").await.status, 200);
    }
    let refused = asking("b").await;
    refused.problem(422, "idempotency-mismatch");
    assert_eq!(application.calls(ROUTE), 2);
}

#[tokio::test]
async fn what_is_no_key_is_refused_before_anything_begins() {
    let application = application().await;
    let idempotent = |contract: &mut Value| contract["idempotent"] = json!(true);
    let sidecar = serving(&application, idempotent).await;
    let far_too_long = "k".repeat(300);
    let refused = Call::under(&far_too_long).make(&sidecar).await;
    refused.problem(400, "bad-context");
    let twice = Call::under("one").request(&sidecar);
    let refused = Reply::to(twice.header("idempotency-key", "two")).await;
    let problem = refused.problem(400, "bad-context");
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("more than one"),
        "{problem}"
    );
    assert_eq!(application.calls(ROUTE), 0);
    // An attempt that had begun would have ended as one.
    let failed = [("direction", "inbound"), ("state", "failed_validation")];
    let ended = sidecar.metric("tasks_finished_total", &failed).await;
    assert!(ended.abs() < 0.5, "{ended}");
}

#[tokio::test]
async fn an_application_that_says_not_now_is_asked_again() {
    let application = application().await;
    let sidecar = serving(&application, |_| {}).await;
    for status in [408, 425, 429, 503] {
        let key = format!("k-{status}");
        let before = application.calls(ROUTE);
        application.answer(ROUTE, Answer::bytes(status, "application/json", "{}"));
        assert_eq!(Call::under(&key).make(&sidecar).await.status, status);
        application.answer(ROUTE, Answer::json(&fraud_output()));
        for _ in 0..2 {
            assert_eq!(Call::under(&key).make(&sidecar).await.status, 200);
        }
        assert_eq!(application.calls(ROUTE), before + 2, "{status}");
    }
}

#[tokio::test]
async fn a_call_under_way_is_not_begun_twice() {
    let application = application().await;
    let slow = Answer::json(&fraud_output()).delayed(Duration::from_millis(800));
    application.answer(ROUTE, slow);
    let sidecar = serving(&application, |_| {}).await;
    let (call, repeated) = (Call::under("k"), Call::under("k"));
    let again = async {
        wait_until(WITHIN, "call", async || application.calls(ROUTE) == 1).await;
        repeated.make(&sidecar).await
    };
    let (first, again) = tokio::join!(call.make(&sidecar), again);
    assert_eq!(first.status, 200);
    let problem = again.problem(409, "in-flight");
    assert_eq!(problem["state"], "executing", "{problem}");
    assert_eq!(again.header("retry-after"), "1");
    let refused = [("direction", "inbound"), ("code", "4xx")];
    let counted = sidecar.metric("proxy_requests_total", &refused).await;
    assert!((counted - 1.0).abs() < 0.5, "{counted}");
    let later = Call::under("k").make(&sidecar).await;
    assert_eq!((later.status, later.body), (200, first.body));
    assert_eq!(application.calls(ROUTE), 1);
}

/// "Not carried out" would send the caller elsewhere with work that is being done here.
#[tokio::test]
async fn a_leaving_sidecar_does_not_deny_the_call_it_carries_out() {
    let application = application().await;
    let slow = Answer::json(&fraud_output()).delayed(Duration::from_secs(4));
    application.answer(ROUTE, slow);
    let mut sidecar = Sidecar::named("fraud")
        .application(&application.url())
        .set("limits.drain_delay", "0s")
        .contract(patient_contract(), "POST", ROUTE)
        .start_unready()
        .await;
    admitted(&sidecar).await;
    let mut calls = JoinSet::new();
    calls.spawn(Call::under("k").request(&sidecar).send());
    wait_until(WITHIN, "call", async || application.calls(ROUTE) == 1).await;
    sidecar.process().signal(Signal::TERM);
    wait_until(WITHIN, "sidecar that drains", async || {
        Call::under("other").make(&sidecar).await.status == 503
    })
    .await;
    let again = Call::under("k").make(&sidecar).await;
    again.problem(409, "in-flight");
    let first = calls.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(first.status(), 200);
    assert_eq!(sidecar.ended().await.code(), Some(0));
}

#[tokio::test]
async fn what_nobody_can_say_is_said_and_not_done_again() {
    let application = application().await;
    application.answer(ROUTE, Answer::Hang);
    let quick = |contract: &mut Value| contract["constraints"]["timeout_ms"] = json!(300);
    let mut sidecar = serving(&application, quick).await;
    let late = Call::under("late").make(&sidecar).await;
    late.problem(504, "timeout");
    let doubt = Call::under("late").make(&sidecar).await;
    let problem = doubt.problem(409, "in-doubt");
    assert_eq!(problem["state"], "timeout", "{problem}");

    // Killed in the middle.
    application.answer(ROUTE, Answer::Hang);
    let (calls, killed) = (application.calls(ROUTE), Call::under("killed"));
    tokio::select! {
        reply = killed.request(&sidecar).send() => panic!("answered: {reply:?}"),
        () = wait_until(WITHIN, "call", async || application.calls(ROUTE) > calls) => {}
    }
    sidecar.start_again();
    admitted(&sidecar).await;
    application.answer(ROUTE, Answer::json(&fraud_output()));
    let doubt = Call::under("killed").make(&sidecar).await;
    let problem = doubt.problem(409, "in-doubt");
    assert_eq!(problem["state"], "executing", "{problem}");
    assert_eq!(application.calls(ROUTE), calls + 1);
}

#[tokio::test]
async fn what_never_reached_the_application_may_come_again() {
    let application = Application::start().await;
    application.answer(
        ROUTE,
        Answer::json(&fraud_output()).delayed(Duration::from_millis(500)),
    );
    let narrow = |contract: &mut Value| contract["constraints"]["max_concurrent"] = json!(1);
    let sidecar = serving(&application, narrow).await;
    let (first, second) = (Call::under("one"), Call::under("two"));
    let turned_away = async {
        wait_until(WITHIN, "call", async || application.calls(ROUTE) == 1).await;
        second.make(&sidecar).await
    };
    let (answered, turned_away) = tokio::join!(first.make(&sidecar), turned_away);
    assert_eq!(answered.status, 200);
    turned_away.problem(429, "overloaded");
    assert_eq!(second.make(&sidecar).await.status, 200);
    assert_eq!(application.calls(ROUTE), 2);
}

#[tokio::test]
async fn what_calls_itself_idempotent_is_done_as_often_as_it_is_asked_for() {
    let application = application().await;
    let idempotent = |contract: &mut Value| contract["idempotent"] = json!(true);
    let sidecar = serving(&application, idempotent).await;
    for calls in 1..=3 {
        assert_eq!(Call::under("k").make(&sidecar).await.status, 200);
        assert_eq!(application.calls(ROUTE), calls);
    }
}

#[tokio::test]
async fn an_answer_that_breaks_the_contract_stays_that_answer() {
    let application = application().await;
    application.answer(ROUTE, Answer::json(&json!({"risk_score": "high"})));
    let sidecar = serving(&application, |_| {}).await;
    let first = Call::under("k").make(&sidecar).await;
    first.problem(502, "output-invalid");
    application.answer(ROUTE, Answer::json(&fraud_output()));
    let again = Call::under("k").make(&sidecar).await;
    assert_eq!((again.status, &again.body), (502, &first.body));
    assert_eq!(again.header("hermes-state"), "failed_validation");
    assert_eq!(application.calls(ROUTE), 1);
}

#[tokio::test]
async fn the_last_places_are_kept_for_urgent_calls() {
    let application = Application::start().await;
    application.answer(ROUTE, Answer::Hang);
    let narrow = |contract: &mut Value| {
        contract["constraints"] = json!({"timeout_ms": 3_000, "max_concurrent": 20});
    };
    let sidecar = serving(&application, narrow).await;
    let mut calls = tokio::task::JoinSet::new();
    let mut taken = 0;
    for (level, most) in [("P3", 16), ("P2", 18), ("P1", 19), ("P0", 20)] {
        let call = |key: String| {
            let request = client()
                .post(format!("{}{ROUTE}", sidecar.inbound_url()))
                .header("content-type", "application/json")
                .header("hermes-sla-level", level)
                .header("idempotency-key", key);
            Reply::to(request.body(fraud_input().to_string()))
        };
        for number in taken..most {
            calls.spawn(call(format!("{level}-{number}")));
        }
        let what = "calls at the application";
        wait_until(WITHIN, what, async || application.calls(ROUTE) == most).await;
        let refused = call(format!("{level}-more")).await;
        let problem = refused.problem(429, "overloaded");
        assert_eq!(refused.header("retry-after"), "1");
        assert_eq!(
            refused.header("hermes-load"),
            format!("inflight={most}, limit=20")
        );
        let named = problem["detail"].as_str().unwrap().contains(level);
        assert_eq!(named, most < 20, "{problem}");
        taken = most;
    }
}
