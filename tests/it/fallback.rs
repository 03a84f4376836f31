//! Where an agent fails, those that its contract names answer in its place, and the reply says so.

use crate::support::application::Answer;
use crate::support::contract::{fraud_input, fraud_output};
use crate::support::crew::Crew;
use crate::support::fleet::{Member, fraud};
use crate::support::pair::{FRAUD, RISK};
use crate::support::reply::Reply;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

const RULES: &str = "fraud-rules-v1.0";
const LAST: &str = "fraud-last-v1.0";

/// An agent that names two others, and those; `change` has the last word on each contract.
struct Standby {
    crew: Crew,
    others: HashMap<&'static str, Member>,
}

impl Standby {
    async fn start(change: impl Fn(&str, &mut Value)) -> Self {
        let of = |id: &str| {
            let mut body = fraud(id, "1.0.0");
            body["constraints"]["timeout_ms"] = 2_000.into();
            if id == FRAUD {
                body["fallback"] = json!([RULES, LAST]);
            }
            change(id, &mut body);
            body
        };
        let crew = Crew::start(of(FRAUD), &["own"]).await;
        let url = crew.collector.url();
        let mut others = HashMap::new();
        for (id, name) in [(RULES, "rules"), (LAST, "last")] {
            let member = Member::start(&crew.consul, name, of(id), |setup| setup.collector(&url));
            others.insert(id, member.await);
            crew.caller.knows(id, 1).await;
        }
        Self { crew, others }
    }

    fn answer(&self, id: &str, answer: Answer) {
        match self.others.get(id) {
            Some(member) => member.application.answer(RISK, answer),
            None => self.crew.answer(move |_| answer.clone()),
        }
    }

    /// Returns how often each of the three was asked for a task.
    fn asked(&self, task: &str) -> [usize; 3] {
        let of = |id: &str| {
            let received = self.others[id].application.received(RISK);
            let of_task = |one: &&_| {
                let one: &crate::support::application::Received = one;
                one.headers["hermes-task-id"] == *task
            };
            received.iter().filter(of_task).count()
        };
        [self.crew.received(task).len(), of(RULES), of(LAST)]
    }
}

fn status(status: u16) -> Answer {
    Answer::bytes(status, "application/json", r#"{"error":"no"}"#)
}

fn states(attempt: &Value) -> Vec<&str> {
    let states = attempt["states"].as_array().unwrap().iter();
    let of_caller = states.filter(|one| one["reporter"] == "caller");
    of_caller
        .map(|one| one["state"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_fallback_answers_and_the_reply_says_so() {
    let standby = Standby::start(|_, _| {}).await;
    standby.answer(FRAUD, status(500));
    let reply = standby.crew.call("t-first").await;
    assert_eq!(
        (reply.status, reply.header("x-who")),
        (200, "rules"),
        "{reply:?}"
    );
    assert_eq!(reply.header("hermes-degraded"), "?1");
    assert_eq!(reply.header("hermes-agent"), format!("{RULES}@1.0.0"));
    assert_eq!(reply.header("hermes-attempt"), "2");
    assert_eq!(reply.header("hermes-state"), "completed");
    assert_eq!(standby.asked("t-first"), [1, 1, 0]);
    let attempts = standby.crew.attempts("t-first", 2).await;
    assert_eq!(
        (&attempts[0]["agent"], &attempts[1]["agent"]),
        (&json!(FRAUD), &json!(RULES))
    );
    assert_eq!(states(&attempts[0]).last(), Some(&"failed_execution"));
    let told = states(&attempts[1]);
    // Who told first of `executing` is a matter of chance.
    assert_eq!(
        told[..2],
        ["fallback_invoked", "dispatched"],
        "{attempts:?}"
    );
    assert_eq!(told.last(), Some(&"completed"), "{attempts:?}");
    let shown = standby.crew.collector.task("t-first").await.unwrap();
    let step = &shown["steps"][0];
    assert_eq!(
        (&step["agent"], &step["degraded"]),
        (&json!(FRAUD), &json!(true)),
        "{shown}"
    );
    assert_eq!(shown["steps"].as_array().unwrap().len(), 1, "{shown}");

    // The next in line, where that one fails too.
    standby.answer(RULES, status(503));
    let reply = standby.crew.call("t-second").await;
    assert_eq!(
        (reply.status, reply.header("x-who")),
        (200, "last"),
        "{reply:?}"
    );
    assert_eq!(reply.header("hermes-degraded"), "?1");
    assert_eq!(reply.header("hermes-attempt"), "3");
    assert_eq!(standby.asked("t-second"), [1, 1, 1]);

    // If all fail, the first cause counts.
    standby.answer(FRAUD, status(500).with("x-who", "own"));
    standby.answer(LAST, status(502));
    let reply = standby.crew.call("t-none").await;
    assert_eq!(
        (reply.status, reply.header("x-who")),
        (500, "own"),
        "{reply:?}"
    );
    assert_eq!(reply.header("hermes-degraded"), "");
    assert_eq!(reply.header("hermes-attempt"), "1");
    assert_eq!(reply.header("hermes-agent"), format!("{FRAUD}@1.0.0"));
    assert_eq!(standby.asked("t-none"), [1, 1, 1]);
    standby.crew.attempts("t-none", 3).await;

    let sidecar = &standby.crew.caller.sidecar;
    let metric = async |name: &str, labels: &[(&str, &str)]| sidecar.metric(name, labels).await;
    let of = ("contract", FRAUD);
    let outbound = ("direction", "outbound");
    let ended = |state, degraded| [outbound, of, ("state", state), ("degraded", degraded)];
    let finished = "tasks_finished_total";
    assert_eq!(metric(finished, &ended("completed", "true")).await, 2.0);
    assert_eq!(
        metric(finished, &ended("failed_execution", "false")).await,
        1.0
    );
    assert_eq!(
        metric("task_attempts_total", &[of, ("kind", "first")]).await,
        3.0
    );
    let rules = [("contract", RULES), ("kind", "fallback")];
    assert_eq!(metric("task_attempts_total", &rules).await, 3.0);
    let moved = [("from", "failed_execution"), ("to", "fallback_invoked")];
    assert_eq!(metric("task_transitions_total", &moved).await, 5.0);
    let moved = [("from", "fallback_invoked"), ("to", "dispatched")];
    assert_eq!(metric("task_transitions_total", &moved).await, 5.0);
    assert_eq!(metric("task_transitions_refused_total", &[]).await, 0.0);
}

#[tokio::test]
async fn only_a_failure_brings_a_fallback() {
    let standby = Standby::start(|id, body| {
        if id == FRAUD {
            body["constraints"]["timeout_ms"] = 700.into();
        }
    })
    .await;
    for (name, answer, came_to) in [
        ("refusal", status(422), (422, [1, 0, 0])),
        (
            "wrong",
            Answer::json(&json!({"risk_score": "high"})),
            (502, [1, 0, 0]),
        ),
        ("late", Answer::Hang, (200, [1, 1, 0])),
        ("reset", Answer::Close, (200, [1, 1, 0])),
        ("not-now", status(429), (200, [1, 1, 0])),
    ] {
        standby.answer(FRAUD, answer);
        let task = format!("t-{name}");
        let reply = standby.crew.call(&task).await;
        assert_eq!(
            (reply.status, standby.asked(&task)),
            came_to,
            "{name}: {reply:?}"
        );
    }
    // Nor does an input that the agent would not take.
    let (agent, input) = (FRAUD, json!({"user_id": ""}));
    let body = json!({"agent": agent, "input": input, "context": {"task_id": "t-input"}});
    let url = format!(
        "{}/hermes/invoke",
        standby.crew.caller.sidecar.outbound_url()
    );
    let reply = Reply::to(crate::support::client::client().post(url).json(&body)).await;
    reply.problem(400, "input-invalid");
    assert_eq!(standby.asked("t-input"), [0, 0, 0]);
}

#[tokio::test]
async fn a_fallback_is_held_to_what_the_application_relies_on() {
    // The first stands in with another kind of answer, the last takes other inputs.
    let standby = Standby::start(|id, body| match id {
        RULES => {
            body["output_schema"] = json!({"type": "object", "required": []});
        }
        LAST => body["input_schema"]["required"] = json!(["order_id"]),
        _ => {}
    })
    .await;
    standby.answer(FRAUD, status(500));
    standby.answer(RULES, Answer::json(&json!({"verdict": "fine"})));
    let reply = standby.crew.call("t").await;
    assert_eq!(reply.status, 500, "{reply:?}");
    assert_eq!(reply.header("hermes-degraded"), "");
    assert_eq!(standby.asked("t"), [1, 1, 0]);
    let attempts = standby.crew.attempts("t", 2).await;
    assert_eq!(attempts[1]["state"], "failed_validation", "{attempts:?}");
    // Its own contract would take that, so it must be the other that did not.
    assert_eq!(
        attempts[1]["error"]["kind"], "output-invalid",
        "{attempts:?}"
    );

    standby.answer(RULES, status(500));
    let reply = standby.crew.call("t-input").await;
    assert_eq!(reply.status, 500, "{reply:?}");
    assert_eq!(standby.asked("t-input"), [1, 1, 0], "{:?}", fraud_input());
}

#[tokio::test]
async fn an_agent_that_nobody_serves_has_its_fallbacks_all_the_same() {
    let mut standby = Standby::start(|_, _| {}).await;
    standby.crew.member("own").sidecar.terminate().await;
    standby.crew.caller.knows(FRAUD, 0).await;
    let began = Instant::now();
    let reply = standby.crew.call("t").await;
    assert_eq!(
        (reply.status, reply.header("x-who")),
        (200, "rules"),
        "{reply:?}"
    );
    assert_eq!(reply.header("hermes-degraded"), "?1");
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    let attempts = standby.crew.attempts("t", 2).await;
    assert_eq!(
        states(&attempts[0]),
        ["pending", "failed_execution"],
        "{attempts:?}"
    );
    assert_eq!(attempts[0]["error"]["kind"], "no-instance", "{attempts:?}");
}

#[tokio::test]
async fn fallbacks_end_with_the_call_s_deadline() {
    let standby = Standby::start(|id, body| {
        if id != LAST {
            body["constraints"]["timeout_ms"] = 1_000.into();
        }
    })
    .await;
    for id in [FRAUD, RULES, LAST] {
        standby.answer(id, Answer::Hang);
    }
    let began = Instant::now();
    let context = json!({"task_id": "t", "deadline_ms": 1_500});
    let reply = standby.crew.caller.line.call(FRAUD, context).await;
    let took = began.elapsed();
    reply.problem(504, "timeout");
    assert_eq!(reply.header("hermes-attempt"), "1");
    assert!(took < Duration::from_millis(1_500 + 1_500), "{took:?}");
    assert!(took > Duration::from_millis(1_300), "{took:?}");
    // The last one's timeout is beyond what the call asks for.
    assert_eq!(standby.asked("t"), [1, 1, 0]);
}
