//! Stopping hurts nobody: those who call are told in time, what runs is finished, all is recorded.

use crate::restart::admitted;
use crate::support::application::{Answer, Application};
use crate::support::client::{client, streaming_client};
use crate::support::collector::Collector;
use crate::support::consul::Consul;
use crate::support::contract;
use crate::support::load::Load;
use crate::support::metric::Metrics;
use crate::support::road::{AGENT, ROUTE, Road, application, callee, patient_contract, wait_known};
use crate::support::sidecar::Sidecar;
use crate::support::streamer::Streamer;
use crate::support::wait::{wait_for, wait_until};
use reqwest::{Response, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

const SOON: Duration = Duration::from_secs(1);
const WITHIN: Duration = Duration::from_secs(20);
/// The task whose call the application answers late.
const RUNNING: &str = "running";

#[tokio::test]
async fn a_stopping_sidecar_says_goodbye_in_order() {
    let mut road = Road::start_with(
        |callee| callee.set("limits.drain_delay", "2s"),
        |caller| caller,
    )
    .await;
    let history = history(&road).await;
    slow_for_running(&road.application, Duration::from_secs(5));
    let known = async || call_history(&road.callee).await.status() == 200;
    wait_until(WITHIN, "callee that knows whom it calls", known).await;
    let mut running = call_in_background(&road.caller.outbound_url(), RUNNING);
    wait_until(WITHIN, "running call", async || {
        road.application.calls(ROUTE) == 1
    })
    .await;

    let asked = Instant::now();
    road.callee.process().signal(Signal::TERM);

    // Unready and out of Consul at once.
    let health = format!("{}/hermes/health", road.callee.inbound_url());
    let told: Value = wait_for(SOON, "unready sidecar", async || {
        let reply = client().get(&health).send().await.unwrap();
        let unready = reply.status() == 503;
        let told = reply.json().await.unwrap();
        unready.then_some(told)
    })
    .await;
    assert_eq!(told["status"], "draining", "{told}");
    road.consul.wait_passing(AGENT, 0, SOON).await;

    // Whoever has not heard of it is served, and told to come no more.
    let reply = call(&road.callee, "late").await;
    assert!(asked.elapsed() < Duration::from_secs(2));
    assert_eq!(reply.status(), 200);
    assert_eq!(reply.headers()["connection"], "close");

    // Then new calls are refused, unexecuted.
    let refused = wait_for(WITHIN, "refusal", async || {
        let reply = call(&road.callee, "too-late").await;
        (reply.status() == 503).then_some(reply)
    })
    .await;
    assert!(
        asked.elapsed() >= Duration::from_secs(2),
        "refused before drain_delay"
    );
    assert_eq!(refused.headers()["hermes-executed"], "?0");
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(problem["type"], "urn:hermes:problem:draining", "{problem}");

    // The application may still call others, and what runs is finished.
    assert_eq!(call_history(&road.callee).await.status(), 200);
    assert!(running.try_join_next().is_none(), "nothing to wait for");
    assert_eq!(running.join_all().await, [Some(StatusCode::OK)]);
    assert_eq!(road.callee.process().ended(WITHIN).await.code(), Some(0));

    // The last reports went out before the end.
    let ends = road.collector.ends();
    assert_eq!(ends.of(RUNNING, "callee"), 1);
    assert_eq!(ends.of("late", "callee"), 1);
    drop(history);
}

#[tokio::test]
async fn calls_that_outlast_the_drain_are_recorded_as_interrupted() {
    let mut road = Road::start_with(
        |callee| {
            callee
                .set("limits.drain_delay", "100ms")
                .set("limits.drain_timeout", "500ms")
        },
        |caller| caller,
    )
    .await;
    road.application.answer(ROUTE, Answer::Hang);
    let running = call_in_background(&road.callee.inbound_url(), RUNNING);
    // The caller of this one has gone before the end.
    let left = call_in_background(&road.callee.inbound_url(), "left");
    wait_until(WITHIN, "running calls", async || {
        road.application.calls(ROUTE) == 2
    })
    .await;
    drop(left);
    road.callee.process().signal(Signal::TERM);
    assert_eq!(road.callee.process().ended(WITHIN).await.code(), Some(0));
    drop(running);
    for task in [RUNNING, "left"] {
        let ended = road
            .collector
            .wait_task(task, "failed_execution", WITHIN)
            .await;
        let error = &ended["steps"][0]["attempts"][0]["error"];
        assert_eq!(error["kind"], "interrupted", "{ended}");
    }
}

#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let application = application().await;
        application.answer(ROUTE, Answer::Hang);
        let mut sidecar = callee(&application).start_unready().await;
        admitted(&sidecar).await;
        let running = call_in_background(&sidecar.inbound_url(), RUNNING);
        wait_until(WITHIN, "running call", async || {
            application.calls(ROUTE) == 1
        })
        .await;
        sidecar.process().signal(Signal::TERM);
        wait_until(SOON, "first signal's effect", async || {
            sidecar
                .process()
                .log()
                .contains("stopping; a second signal")
        })
        .await;
        sidecar.process().signal(signal);
        let ended = sidecar.process().ended(SOON).await;
        assert_eq!(ended.code(), Some(code), "{}", sidecar.process().log());
        assert_eq!(running.join_all().await, [None]);
    }
}

#[tokio::test]
async fn callers_of_three_instances_notice_nothing_of_one_that_stops() {
    let (application, consul) = tokio::join!(application(), Consul::start());
    let one = || callee(&application).consul(&consul.address()).start();
    let (mut first, _second, _third) = tokio::join!(one(), one(), one());
    let caller = |name| Sidecar::named(name).consul(&consul.address()).start();
    let callers = tokio::join!(caller("payment"), caller("orders"));
    let callers = [callers.0, callers.1];
    for caller in &callers {
        wait_known(caller, 3).await;
    }
    let urls = callers.each_ref().map(Sidecar::outbound_url);
    let load = Load::start(200, &urls, AGENT, &contract::fraud_input());
    load.more(400).await;
    let served = Metrics::of(&first.admin_url()).await;
    let labels = [("direction", "inbound")];
    assert!(served.sum("hermes_proxy_requests_total", &labels) > 50.0);
    assert_eq!(first.terminate().await.code(), Some(0));
    load.more(400).await;
    let record = load.stop().await;
    assert_eq!(record.failed().len(), 0, "{:#?}", record.failed());
    eprintln!("{} calls, none failed", record.0.len());
}

#[tokio::test]
async fn a_stream_under_way_is_finished_before_the_end() {
    let streamer = Streamer::start().await;
    let mut sidecar = Sidecar::named("fraud")
        .application(&streamer.url())
        .contract(patient_contract(), "POST", ROUTE)
        .set("inbound.passthrough", vec!["/events"])
        .set("limits.drain_delay", "0s")
        .start_unready()
        .await;
    admitted(&sidecar).await;
    let url = format!("{}/events?count=80&every_ms=100", sidecar.inbound_url());
    let mut reply = streaming_client().get(url).send().await.unwrap();
    let mut received = reply.chunk().await.unwrap().unwrap().to_vec();
    sidecar.process().signal(Signal::TERM);
    while let Some(chunk) = reply.chunk().await.unwrap() {
        received.extend_from_slice(&chunk);
    }
    assert_eq!(received.iter().filter(|byte| **byte == b'\n').count(), 160);
    assert_eq!(sidecar.process().ended(WITHIN).await.code(), Some(0));
}

#[tokio::test]
async fn without_a_collector_the_end_is_in_time_and_the_rows_stay() {
    let application = application().await;
    let mut sidecar = callee(&application)
        .collector("http://127.0.0.1:1")
        .set("limits.drain_delay", "0s")
        .start_unready()
        .await;
    admitted(&sidecar).await;
    for number in 0..5 {
        let reply = call(&sidecar, &format!("kept-{number}")).await;
        assert_eq!(reply.status(), 200);
    }
    let asked = Instant::now();
    assert_eq!(sidecar.terminate().await.code(), Some(0));
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(10), "it took {took:?}");
    sidecar.start_again();
    admitted(&sidecar).await;
    let page = Metrics::of(&sidecar.admin_url()).await;
    assert_eq!(
        page.sum("hermes_spool_reports", &[("state", "waiting")]),
        5.0
    );
}

#[tokio::test]
async fn a_stopping_collector_leaves_consul_first_and_takes_what_is_on_its_way() {
    let consul = Consul::start().await;
    let mut collector = Collector::start_with(&[
        ("collector.consul", true.into()),
        ("consul.address", consul.address().into()),
    ])
    .await;
    let service = "hermes-collector";
    consul.wait_passing(service, 1, WITHIN).await;
    let report = json!({"task_id": "slow", "call_id": "c-1", "state": "completed"}).to_string();
    let (first, rest) = report.split_at(10);
    let address = collector.url().replace("http://", "");
    let mut sender = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /report-status HTTP/1.1\r\nhost: c\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{first}",
        report.len()
    );
    sender.write_all(head.as_bytes()).await.unwrap();
    // Who asks for liveness after the first half was sent finds it received.
    let live = client().get(format!("{}/live", collector.url()));
    assert_eq!(live.send().await.unwrap().status(), 200);

    let asked = Instant::now();
    collector.process().signal(Signal::TERM);
    consul.wait_passing(service, 0, SOON).await;
    // Whoever had just looked it up is still served.
    let live = client().get(format!("{}/live", collector.url()));
    assert_eq!(live.send().await.unwrap().status(), 200);

    // Longer than workers with nothing to finish are given.
    tokio::time::sleep_until(asked + Duration::from_secs(3)).await;
    sender.write_all(rest.as_bytes()).await.unwrap();
    let mut reply = String::new();
    sender.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    assert_eq!(collector.process().ended(SOON).await.code(), Some(0));
}

/// Calls the callee directly, as one task, on a connection of its own.
async fn call(sidecar: &Sidecar, task: &str) -> Response {
    let request = client()
        .post(sidecar.inbound_url() + ROUTE)
        .header("hermes-task-id", task)
        .json(&contract::fraud_input());
    request.send().await.unwrap()
}

/// Invokes the callee through a listener; the status comes once it is there, if it comes.
fn call_in_background(url: &str, task: &str) -> JoinSet<Option<StatusCode>> {
    let body = json!({
        "agent": AGENT, "input": contract::fraud_input(), "context": {"task_id": task},
    });
    let request = client().post(format!("{url}/hermes/invoke")).json(&body);
    let mut call = JoinSet::new();
    call.spawn(async move { Some(request.send().await.ok()?.status()) });
    call
}

fn slow_for_running(application: &Application, delay: Duration) {
    application.script(ROUTE, move |received| {
        let answer = Answer::json(&contract::fraud_output());
        match received.headers["hermes-task-id"] == RUNNING {
            true => answer.delayed(delay),
            false => answer,
        }
    });
}

/// Starts a third sidecar, whose contract the callee's application may call.
async fn history(road: &Road) -> Sidecar {
    let mut body = patient_contract();
    body["id"] = "customer-history-v1.0".into();
    let output = Answer::json(&contract::fraud_output());
    road.application.answer("/history", output);
    Sidecar::named("history")
        .application(&road.application.url())
        .contract(body, "POST", "/history")
        .consul(&road.consul.address())
        .start()
        .await
}

async fn call_history(sidecar: &Sidecar) -> Response {
    let body = json!({"agent": "customer-history-v1.0", "input": contract::fraud_input()});
    let url = format!("{}/hermes/invoke", sidecar.outbound_url());
    client().post(url).json(&body).send().await.unwrap()
}
