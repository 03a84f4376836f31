//! An instance whose calls fail is left out for a while, and one trial lets it in again.

use crate::support::application::Answer;
use crate::support::consul::Consul;
use crate::support::contract::fraud_output;
use crate::support::fleet::{Caller, Line, Member, fraud};
use crate::support::pair::{FRAUD, RISK};
use crate::support::reply::Reply;
use crate::support::wait::{wait_for, wait_until};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::JoinSet;

const WITHIN: Duration = Duration::from_secs(20);
const NAMES: [&str; 3] = ["a", "b", "c"];
/// How many failures in a row eject.
const CONSECUTIVE: usize = 5;

/// Three instances of a contract that asks for no retries, and who calls them.
struct Stand {
    members: Vec<Member>,
    caller: Caller,
    _consul: Consul,
}

/// An answer that is well.
fn sound(name: &str) -> Answer {
    Answer::json(&fraud_output()).with("x-who", name)
}

/// An answer that fails.
fn failing() -> Answer {
    Answer::bytes(500, "application/json", r#"{"error": "out of order"}"#)
}

fn instance(name: &str) -> String {
    format!("{FRAUD}-{name}")
}

impl Stand {
    /// Starts it; ejections last for `base` at first.
    async fn start(base: &str) -> Self {
        let consul = Consul::start().await;
        let body = || {
            let mut body = fraud(FRAUD, "1.0.0");
            body["retry_policy"] = json!({"max_retries": 0});
            body
        };
        let [a, b, c] = NAMES.map(|name| Member::start(&consul, name, body(), |setup| setup));
        let (a, b, c) = tokio::join!(a, b, c);
        consul.wait_passing(FRAUD, 3, WITHIN).await;
        let caller = Caller::start(&consul, "shop", |setup| setup.set("ejection.base", base));
        let caller = caller.await;
        caller.knows(FRAUD, 3).await;
        Self {
            members: vec![a, b, c],
            caller,
            _consul: consul,
        }
    }

    fn member(&self, name: &str) -> &Member {
        self.members.iter().find(|one| one.name == name).unwrap()
    }

    fn answer(&self, name: &str, answer: Answer) {
        self.member(name).application.answer(RISK, answer);
    }

    fn calls(&self, name: &str) -> usize {
        self.member(name).application.calls(RISK)
    }

    /// Finds tasks whose calls go to this instance while nobody is left out.
    async fn tasks_of(&self, name: &str, count: usize) -> Vec<String> {
        let mut found = Vec::new();
        for number in 0.. {
            let task = format!("{name}-{number}");
            let told = self.caller.explain(FRAUD, &task, "").await.json();
            if told["instance"] == instance(name) {
                found.push(task);
            }
            if found.len() == count {
                break;
            }
        }
        found
    }

    async fn call(&self, task: &str) -> Reply {
        self.caller.line.call(FRAUD, json!({"task_id": task})).await
    }

    async fn who(&self, task: &str) -> String {
        self.caller.line.who(FRAUD, json!({"task_id": task})).await
    }

    /// Waits until this task's calls go to this instance, be it as a trial.
    async fn leads(&self, task: &str, name: &str) {
        wait_until(WITHIN, "call that leads to the instance", async || {
            let told = self.caller.explain(FRAUD, task, "").await.json();
            told["instance"] == instance(name)
        })
        .await;
    }

    async fn ejections(&self, reason: &str) -> f64 {
        let labels = [("reason", reason)];
        let sidecar = &self.caller.sidecar;
        sidecar.metric("route_ejections_total", &labels).await
    }

    /// Returns what the caller's admin listener shows of an instance's ejection.
    async fn shown(&self, name: &str) -> Value {
        let url = format!("{}/instances", self.caller.sidecar.admin_url());
        let shown = Reply::to(crate::support::client::client().get(url)).await;
        let shown = shown.json();
        let instances = shown[0]["instances"].as_array().unwrap();
        let mut instances = instances.iter();
        let shown = instances.find(|shown| shown["id"] == instance(name));
        shown.unwrap()["ejected"].clone()
    }
}

#[tokio::test]
async fn an_instance_that_fails_gets_no_calls_until_a_trial_succeeds() {
    let stand = Stand::start("2s").await;
    let tasks = stand.tasks_of("a", 8).await;
    stand.answer("a", failing());
    assert_eq!(stand.shown("a").await, Value::Null);
    for task in tasks.iter().cycle().take(CONSECUTIVE) {
        let reply = stand.call(task).await;
        assert_eq!((reply.status, stand.who_failed(&reply)), (500, true));
    }
    assert_eq!(stand.calls("a"), CONSECUTIVE);
    for task in &tasks {
        assert_ne!(stand.who(task).await, "a");
    }
    let told = stand.caller.explain(FRAUD, &tasks[0], "").await.json();
    let why = told["excluded"].as_array().unwrap().iter();
    let mut why = why.filter(|one| one["instance"] == instance("a"));
    let reason = why.next().unwrap()["reason"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("ejected until 20"), "{reason}");
    assert!(reason.ends_with("failed one after the other"), "{reason}");
    let shown = stand.shown("a").await;
    assert_eq!(shown["reason"], "consecutive", "{shown}");
    assert_eq!(shown["ignored"], false, "{shown}");
    assert_eq!(stand.shown("b").await, Value::Null);
    assert_eq!(stand.calls("a"), CONSECUTIVE, "nobody went there");
    assert_eq!(stand.ejections("consecutive").await, 1.0);

    // The first trial fails, and lasts twice as long.
    stand.leads(&tasks[0], "a").await;
    assert_eq!(stand.call(&tasks[0]).await.status, 500);
    assert_ne!(stand.who(&tasks[1]).await, "a");
    assert_eq!(stand.calls("a"), CONSECUTIVE + 1);
    assert_eq!(stand.ejections("trial").await, 1.0);
    assert_eq!(stand.shown("a").await["reason"], "trial");

    // The second is one call among many that come at once, and it is slow.
    stand.answer("a", sound("a").delayed(Duration::from_secs(2)));
    stand.leads(&tasks[0], "a").await;
    let before = stand.calls("a");
    let mut lanes = JoinSet::new();
    for task in tasks.clone() {
        let line: Line = stand.caller.line.clone();
        lanes.spawn(async move { line.who(FRAUD, json!({"task_id": task})).await });
    }
    let who = lanes.join_all().await;
    assert_eq!(stand.calls("a"), before + 1, "one trial at a time: {who:?}");
    stand.answer("a", sound("a"));
    for task in &tasks {
        assert_eq!(stand.who(task).await, "a");
    }
    assert_eq!(stand.shown("a").await, Value::Null);
    let log = stand.caller.sidecar.log();
    for told in ["an instance is ejected", "an ejected instance serves again"] {
        assert!(log.contains(told), "{told}: {log}");
    }
}

impl Stand {
    /// Says whether a reply is the application's failure, passed on.
    fn who_failed(&self, reply: &Reply) -> bool {
        reply.json() == json!({"error": "out of order"})
    }
}

#[tokio::test]
async fn nobody_is_left_out_where_most_fail_and_who_serves_is_in_again() {
    let stand = Stand::start("60s").await;
    let mut tasks = Vec::new();
    for name in NAMES {
        tasks.push(stand.tasks_of(name, 2).await);
    }
    for name in NAMES {
        stand.answer(name, failing());
    }
    for _ in 0..CONSECUTIVE {
        for task in tasks.iter().flatten() {
            let reply = stand.call(task).await;
            assert_eq!(reply.status, 500, "{reply:?}");
        }
    }
    // More than half of them are ejected, which therefore counts for nothing.
    let before = NAMES.map(|name| stand.calls(name));
    for task in tasks.iter().flatten() {
        assert_eq!(stand.call(task).await.status, 500);
    }
    let after = NAMES.map(|name| stand.calls(name));
    assert_eq!(
        after,
        before.map(|calls| calls + 2),
        "each task keeps its instance"
    );
    assert!(stand.ejections("consecutive").await >= 2.0);
    let ignored = stand.shown("a").await;
    assert_eq!(ignored["ignored"], true, "{ignored}");
    let told = stand.caller.explain(FRAUD, "t", "").await.json();
    assert_eq!(told["ranking"].as_array().unwrap().len(), 3, "{told}");
    assert!(stand.caller.sidecar.log().contains("nobody is left out"));

    // One that serves is in at once; with two of three it is the third that is left out.
    for (name, tasks) in NAMES.into_iter().zip(&tasks).skip(1) {
        stand.answer(name, sound(name));
        assert_eq!(stand.who(&tasks[0]).await, name);
        assert_eq!(stand.shown(name).await, Value::Null);
    }
    let before = stand.calls("a");
    for task in &tasks[0] {
        assert_ne!(stand.who(task).await, "a");
    }
    assert_eq!(stand.calls("a"), before);
    assert_eq!(stand.shown("a").await["ignored"], false);
}

#[tokio::test]
async fn a_killed_instance_costs_a_few_calls_long_before_consul_tells() {
    let mut stand = Stand::start("60s").await;
    let tasks = stand.tasks_of("b", 4).await;
    let dead = stand.members.iter_mut().find(|one| one.name == "b");
    dead.unwrap().sidecar.kill9();
    let mut lost = 0;
    for task in tasks.iter().cycle().take(20) {
        let reply = stand.call(task).await;
        match reply.status {
            200 => assert_ne!(reply.header("x-who"), "b"),
            _ => {
                reply.problem(502, "upstream-unreachable");
                lost += 1;
            }
        }
    }
    assert_eq!(lost, CONSECUTIVE);
    assert_eq!(
        stand.shown("b").await["reason"],
        "consecutive",
        "still registered"
    );
}

#[tokio::test]
async fn refusals_and_broken_contracts_speak_against_nobody() {
    let stand = Stand::start("60s").await;
    let task = stand.tasks_of("c", 1).await.remove(0);
    let refusing = Answer::bytes(404, "application/json", r#"{"error": "no such user"}"#);
    for (answer, status) in [
        (refusing, 404),
        (Answer::json(&json!({"risk_score": 1000})), 502),
        (Answer::bytes(429, "application/json", "{}"), 429),
    ] {
        stand.answer("c", answer);
        let before = stand.calls("c");
        for _ in 0..3 * CONSECUTIVE {
            assert_eq!(stand.call(&task).await.status, status);
        }
        assert_eq!(stand.calls("c"), before + 3 * CONSECUTIVE);
    }
    assert_eq!(stand.ejections("consecutive").await, 0.0);
    assert_eq!(stand.ejections("success_rate").await, 0.0);
}

#[tokio::test]
async fn who_leaves_consul_and_comes_back_is_judged_anew() {
    let mut stand = Stand::start("60s").await;
    let task = stand.tasks_of("a", 1).await.remove(0);
    stand.answer("a", failing());
    for _ in 0..CONSECUTIVE {
        assert_eq!(stand.call(&task).await.status, 500);
    }
    assert_ne!(stand.who(&task).await, "a");
    stand.answer("a", sound("a"));
    let again = stand.members.iter_mut().find(|one| one.name == "a");
    let sidecar = &mut again.unwrap().sidecar;
    sidecar.terminate().await;
    stand.caller.knows(FRAUD, 2).await;
    assert_ne!(stand.who(&task).await, "a");
    let again = stand.members.iter_mut().find(|one| one.name == "a");
    again.unwrap().sidecar.start_again();
    let served = wait_for(WITHIN, "call to the instance that is back", async || {
        let who = stand.who(&task).await;
        (who == "a").then_some(who)
    });
    assert_eq!(served.await, "a");
    assert_eq!(stand.shown("a").await, Value::Null);
}
