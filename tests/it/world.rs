//! The world of the other tests is itself what it says: real, separate, and gone afterwards.

use crate::support::application::{Answer, Application};
use crate::support::client::{client, exchange};
use crate::support::consul::Consul;
use crate::support::contract;
use crate::support::link::Link;
use crate::support::process::Process;
use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::json;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_consul_is_real_and_forgets_all_when_restarted_empty() {
    let mut consul = Consul::start().await;
    let service = json!({"Name": "risk", "ID": "risk-1", "Address": "127.0.0.1", "Port": 9});
    consul
        .put("/v1/agent/service/register", service.to_string())
        .await;
    assert_eq!(consul.put("/v1/kv/hermes/x", "1").await, "true");
    let instances = consul.wait_passing("risk", 1, WITHIN).await;
    assert_eq!(instances[0]["Service"]["ID"], "risk-1");
    assert!(consul.get("/v1/kv/hermes/x").await.is_some());

    consul.restart_empty().await;

    assert!(consul.get("/v1/kv/hermes/x").await.is_none());
    consul.wait_passing("risk", 0, WITHIN).await;
}

#[tokio::test]
async fn two_consuls_know_nothing_of_each_other() {
    let (one, other) = tokio::join!(Consul::start(), Consul::start());
    one.put("/v1/kv/hermes/x", "1").await;
    assert!(other.get("/v1/kv/hermes/x").await.is_none());
}

#[tokio::test]
async fn a_killed_consul_refuses_connections() {
    let mut consul = Consul::start().await;
    consul.kill9();
    let url = format!("{}/v1/status/leader", consul.address());
    assert!(client().get(url).send().await.unwrap_err().is_connect());
}

#[tokio::test]
async fn a_dropped_process_is_gone() {
    let directory = TempDir::new().unwrap();
    let mut command = Command::new("sleep");
    command.arg("1000");
    let process = Process::spawn("sleeper", command, &directory.path().join("log"));
    let pid = Pid::from_raw(process.id().cast_signed()).unwrap();
    assert!(test_kill_process(pid).is_ok());
    drop(process);
    assert!(test_kill_process(pid).is_err());
}

#[tokio::test]
async fn a_process_tells_its_log_and_how_it_ended() {
    let directory = TempDir::new().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo out; echo err >&2; exit 3"]);
    let mut process = Process::spawn("talker", command, &directory.path().join("log"));
    assert_eq!(process.ended(WITHIN).await.code(), Some(3));
    assert_eq!(process.log(), "out\nerr\n");
    process.signal(Signal::TERM); // an ended process is left alone
}

#[tokio::test]
async fn a_server_whose_port_was_taken_is_told_from_one_that_fails() {
    let directory = TempDir::new().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo 'bind: address already in use'; exit 1"]);
    let mut late = Process::spawn("late", command, &directory.path().join("log"));
    assert!(!late.serves(WITHIN, async || false).await);

    let mut command = Command::new("sh");
    command.args(["-c", "exec sleep 1000"]);
    let mut server = Process::spawn("server", command, &directory.path().join("log"));
    assert!(server.serves(WITHIN, async || true).await);
}

#[tokio::test]
async fn an_application_follows_its_script_and_remembers() {
    let application = Application::start().await;
    application.answer("/api/v1/risk", Answer::json(&contract::fraud_output()));
    application.script("/echo", |received| {
        Answer::bytes(202, "text/plain", received.body.clone())
    });
    let client = client();

    let risk = client
        .post(application.url() + "/api/v1/risk?dry=1")
        .header("x-one", "1");
    let reply = risk.json(&contract::fraud_input()).send().await.unwrap();
    assert_eq!(
        reply.json::<serde_json::Value>().await.unwrap(),
        contract::fraud_output()
    );
    let echo = client
        .post(application.url() + "/echo")
        .body("hello")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (echo.status().as_u16(), echo.text().await.unwrap().as_str()),
        (202, "hello")
    );
    let unknown = client
        .get(application.url() + "/none")
        .send()
        .await
        .unwrap();
    assert_eq!(unknown.status().as_u16(), 404);

    let received = application.received("/api/v1/risk");
    assert_eq!(received.len(), 1);
    assert_eq!(
        (received[0].method.as_str(), received[0].target.as_str()),
        ("POST", "/api/v1/risk?dry=1")
    );
    assert_eq!(received[0].headers["x-one"], "1");
    assert_eq!(application.calls("/echo"), 1);
}

#[tokio::test]
async fn an_application_hangs_delays_and_closes_as_told() {
    let application = Application::start().await;
    let slow = Answer::bytes(200, "text/plain", "late").delayed(Duration::from_millis(200));
    application.answer("/slow", slow);
    application.answer("/hang", Answer::Hang);
    application.answer("/close", Answer::Close);
    let ask = async |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let address = application.url().replace("http://", "").parse().unwrap();
        String::from_utf8(exchange(address, request.as_bytes(), QUIET).await).unwrap()
    };
    assert!(ask("/slow").await.ends_with("\r\n\r\nlate"));
    assert_eq!(ask("/hang").await, "");
    assert_eq!(ask("/close").await, "");
    assert_eq!(application.calls("/hang") + application.calls("/close"), 2);
}

#[tokio::test]
async fn a_cut_link_ends_what_is_open_and_refuses_what_is_new() {
    let application = Application::start().await;
    application.answer("/", Answer::bytes(200, "text/plain", "here"));
    application.answer("/hang", Answer::Hang);
    let link = Link::to(&application.url().replace("http://", "")).await;
    let (client, url) = (client(), format!("http://{}/", link.address()));
    let ask = async || client.get(&url).send().await;
    assert!(ask().await.is_ok());

    let open = client.get(format!("{url}hang")).send();
    let cut = async {
        while application.calls("/hang") == 0 {
            tokio::task::yield_now().await;
        }
        link.cut();
    };
    let (open, ()) = tokio::join!(open, cut);
    assert!(open.is_err());
    assert!(ask().await.is_err());

    link.restore();
    assert!(ask().await.is_ok());
}
