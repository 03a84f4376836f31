//! The demo shows what it says, with nothing else installed, and leaves nothing behind.

use crate::support::client::client;
use crate::support::consul::Consul;
use crate::support::process::Process;
use crate::support::program;
use crate::support::wait::{wait_for, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, MutexGuard};

const READY_WITHIN: Duration = Duration::from_secs(60);
const SEEN_WITHIN: Duration = Duration::from_secs(30);
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// A running demo whose temporary files go into a directory of the test.
struct Demo {
    process: Process,
    files: TempDir,
    _logs: TempDir,
    /// Another demo would take the ports that this one must be seen to leave.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::const_new(());

impl Demo {
    async fn start(args: &[&str]) -> Self {
        let alone = ALONE.lock().await;
        let (files, logs) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let mut command = Command::new(program::hermes());
        command
            .arg("demo")
            .args(args)
            .env("TMPDIR", files.path())
            .current_dir(logs.path());
        let process = Process::spawn("demo", command, &logs.path().join("demo.log"));
        Self {
            process,
            files,
            _logs: logs,
            _alone: alone,
        }
    }

    /// Waits for the line that `-o json` prints once everything is ready.
    async fn addresses(&mut self) -> Value {
        wait_for(READY_WITHIN, "addresses of the demo", async || {
            let exit = self.process.exit();
            let log = self.process.log();
            assert!(exit.is_none(), "the demo ended ({exit:?}):\n{log}");
            let mut lines = log
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            lines.find(|line: &Value| line["sidecars"].is_array())
        })
        .await
    }

    /// Waits for its end and holds that nothing of it is left: no file, no listener.
    async fn ended(mut self, addresses: &Value) -> i32 {
        let exit = self.process.ended(ENDS_WITHIN).await;
        let left: Vec<_> = std::fs::read_dir(&self.files).unwrap().collect();
        assert!(left.is_empty(), "files are left: {left:?}");
        for url in urls(addresses) {
            let address = url.strip_prefix("http://").unwrap();
            let connected = TcpStream::connect(address).await;
            assert!(connected.is_err(), "{address} still listens");
        }
        exit.code().unwrap_or(-1)
    }
}

/// Returns every URL of its own that the demo names.
fn urls(addresses: &Value) -> Vec<String> {
    let own = ["inbound", "outbound", "admin"];
    let sidecars = addresses["sidecars"].as_array().unwrap();
    let sidecars = sidecars.iter().flat_map(|one| own.map(|part| &one[part]));
    let all = sidecars.chain([&addresses["collector"]]);
    all.map(|url| url.as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_scenario_ends_as_scripted_and_tells_each_task() {
    let files = TempDir::new().unwrap();
    let mut command = Command::new(program::hermes());
    command.args(["demo", "--once"]).env("TMPDIR", files.path());
    let started = tokio::time::Instant::now();
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(started.elapsed() < Duration::from_secs(60));
    for scene in [
        "completed over three steps: 200, as scripted",
        "input refused: 400, as scripted",
        "output refused: 502, as scripted",
        "timeout: 504, as scripted",
    ] {
        assert!(text.contains(scene), "no {scene:?} in:\n{text}");
    }
    let depth = |agent: &str| {
        let line = text.lines().find(|line| line.trim().starts_with(agent));
        let line = line.unwrap_or_else(|| panic!("no step of {agent} in:\n{text}"));
        line.len() - line.trim_start().len()
    };
    let (checkout, payment) = (depth("checkout-order"), depth("payment-authorize"));
    assert!(
        checkout < payment && payment < depth("fraud-detection"),
        "{text}"
    );
    for way in [
        "pending → dispatched → executing → completed",
        "pending → failed_validation",
        "pending → dispatched → executing → failed_validation",
        "pending → dispatched → executing → timeout",
    ] {
        assert!(text.contains(way), "no {way:?} in:\n{text}");
    }
    assert_eq!(std::fs::read_dir(&files).unwrap().count(), 0);
}

#[tokio::test]
async fn sample_traffic_has_good_and_bad_ends_and_stops_in_time() {
    let mut demo = Demo::start(&["--for", "5", "-o", "json"]).await;
    let addresses = demo.addresses().await;
    let sidecars = addresses["sidecars"].as_array().unwrap().iter();
    let names: Vec<_> = sidecars
        .map(|one| one["application"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["checkout", "payment", "fraud", "credit"]);
    let registry = addresses["registry"].as_str().unwrap();
    let leader = client()
        .get(format!("{registry}/v1/status/leader"))
        .send()
        .await;
    assert!(leader.unwrap().status().is_success());

    let wanted = [
        "completed",
        "failed_validation",
        "failed_execution",
        "timeout",
    ];
    let url = format!(
        "{}/tasks?limit=100",
        addresses["collector"].as_str().unwrap()
    );
    wait_until(SEEN_WITHIN, "task of every end", async || {
        let Ok(reply) = client().get(&url).send().await else {
            return false;
        };
        let body: Value = reply.json().await.unwrap();
        let tasks = body["tasks"].as_array().unwrap();
        let seen: BTreeSet<_> = tasks
            .iter()
            .filter_map(|task| task["state"].as_str())
            .collect();
        wanted.iter().all(|state| seen.contains(state))
    })
    .await;
    assert_eq!(demo.ended(&addresses).await, 0);
}

#[tokio::test]
async fn a_signal_ends_it_and_taken_ports_are_passed_by() {
    // Where another demo has them, they are taken as well.
    let _taken = [7401, 7410, 7422, 8500].map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    let mut demo = Demo::start(&["-o", "json"]).await;
    let addresses = demo.addresses().await;
    for taken in ["7401", "7410", "7422", "8500"] {
        let text = addresses.to_string();
        assert!(!text.contains(&format!(":{taken}\"")), "{text}");
    }
    demo.process.signal(Signal::INT);
    assert_eq!(demo.ended(&addresses).await, 0);
}

#[tokio::test]
async fn a_scenario_cut_short_does_not_count_as_played() {
    let mut demo = Demo::start(&["--once", "-o", "json"]).await;
    let addresses = demo.addresses().await;
    demo.process.signal(Signal::TERM);
    assert_eq!(demo.ended(&addresses).await, 1);
}

#[tokio::test]
async fn a_consul_of_yours_is_used_and_left_without_our_services() {
    let consul = Consul::start().await;
    let mut demo = Demo::start(&["--consul", &consul.address(), "-o", "json"]).await;
    let addresses = demo.addresses().await;
    assert_eq!(addresses["registry"], consul.address());
    for service in [
        "checkout-order-v1.0",
        "payment-authorize-v1.0",
        "fraud-detection-v1.0",
        "credit-score-v1.0",
        "hermes-collector",
    ] {
        consul.wait_passing(service, 1, SEEN_WITHIN).await;
    }
    demo.process.signal(Signal::TERM);
    assert_eq!(demo.ended(&addresses).await, 0);
    let left = consul.get("/v1/agent/services").await.unwrap();
    assert_eq!(left, serde_json::json!({}));
}

#[tokio::test]
async fn a_consul_that_is_not_there_is_said_so() {
    let mut demo = Demo::start(&["--consul", "http://127.0.0.1:1", "--once"]).await;
    let exit = demo.process.ended(ENDS_WITHIN).await;
    let log = demo.process.log();
    assert_eq!(exit.code(), Some(3), "{log}");
    assert!(
        log.contains("Consul at http://127.0.0.1:1 cannot be used"),
        "{log}"
    );
    assert_eq!(std::fs::read_dir(&demo.files).unwrap().count(), 0);
}
