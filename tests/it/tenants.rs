//! Teams share one Consul: who is not of a team never meets its instances.

use crate::support::application::Answer;
use crate::support::consul::Consul;
use crate::support::contract::{fraud_input, fraud_output};
use crate::support::fleet::{Caller, Member, fraud};
use crate::support::pair::{FRAUD, RISK};
use crate::support::sidecar::Setup;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Enough that each of three instances has its share.
const TASKS: u32 = 60;

/// An instance for all and one of each of two teams.
struct Stand {
    consul: Consul,
    members: [Member; 3],
}

impl Stand {
    async fn start() -> Self {
        let consul = Consul::start().await;
        let body = || fraud(FRAUD, "1.0.0");
        let (all, one, other) = tokio::join!(
            Member::start(&consul, "all", body(), |setup| setup
                .set("application.tags", vec!["gpu"])),
            Member::start(&consul, "red", body(), |setup| team(setup, "red")),
            Member::start(&consul, "blue", body(), |setup| team(setup, "blue")),
        );
        Self {
            consul,
            members: [all, one, other],
        }
    }

    async fn caller(&self, name: &str, more: impl FnOnce(Setup) -> Setup) -> Caller {
        let caller = Caller::start(&self.consul, name, more).await;
        caller.knows(FRAUD, 3).await;
        caller
    }

    fn calls(&self) -> [usize; 3] {
        [0, 1, 2].map(|at| self.members[at].application.calls(RISK))
    }
}

fn team(setup: Setup, name: &str) -> Setup {
    setup.set("application.team", name)
}

/// Returns who answers the calls of many tasks.
async fn served(caller: &Caller, tags: &[&str]) -> BTreeSet<String> {
    let mut who = BTreeSet::new();
    for task in 0..TASKS {
        let context = json!({"task_id": format!("t-{task}"), "required_tags": tags});
        who.insert(caller.line.who(FRAUD, context).await);
    }
    who
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn tasks_of_others_never_reach_a_teams_instance() {
    let stand = Stand::start().await;
    let stranger = stand.caller("stranger", |setup| setup).await;
    assert_eq!(served(&stranger, &[]).await, set(&["all"]));
    assert_eq!(stand.calls(), [TASKS as usize, 0, 0]);
    let red = stand.caller("red-shop", |setup| team(setup, "red")).await;
    assert_eq!(served(&red, &[]).await, set(&["all", "red"]));
    assert_eq!(stand.calls()[2], 0, "a task of team red reached team blue");
    // Tags narrow what is left.
    assert_eq!(served(&red, &["team-red"]).await, set(&["red"]));
    assert_eq!(served(&red, &["gpu"]).await, set(&["all"]));
    let told = red.explain(FRAUD, "t-1", "").await.json();
    let excluded = told["excluded"].as_array().unwrap();
    assert_eq!(excluded.len(), 1, "{told}");
    assert_eq!(excluded[0]["instance"], "fraud-detection-v1.0-blue");
    assert_eq!(
        excluded[0]["reason"],
        "the instance belongs to another team"
    );
}

#[tokio::test]
async fn another_teams_instances_are_not_for_the_asking() {
    let stand = Stand::start().await;
    let red = stand.caller("red-shop", |setup| team(setup, "red")).await;
    let context = json!({"required_tags": ["team-blue"]});
    let reply = red.line.call(FRAUD, context.clone()).await;
    let told = reply.problem(403, "forbidden");
    assert!(
        told["detail"].as_str().unwrap().contains("team-blue"),
        "{told}"
    );
    let reply = red
        .discover(&json!({"agent": FRAUD, "required_tags": ["team-blue"]}))
        .await;
    reply.problem(403, "forbidden");
    let reply = red.explain(FRAUD, "t", "&tag=team-blue").await;
    reply.problem(403, "forbidden");
    let reply = red.line.call("fraud-detection@^1", context).await;
    reply.problem(403, "forbidden");
    assert_eq!(stand.calls(), [0, 0, 0]);
    // A sidecar of no team serves several of them: there a call says whose it is.
    let gateway = stand.caller("gateway", |setup| setup).await;
    assert_eq!(served(&gateway, &["team-blue"]).await, set(&["blue"]));
    assert_eq!(stand.calls(), [0, 0, TASKS as usize]);
    let context = json!({"required_tags": ["team-blue", "gpu"]});
    let reply = gateway.line.call(FRAUD, context).await;
    reply.problem(503, "no-instance");
}

#[tokio::test]
async fn what_one_call_requires_does_not_bind_the_calls_made_for_it() {
    const FRONT: &str = "front-desk-v1.0";
    let stand = Stand::start().await;
    let front = Member::start(&stand.consul, "front", fraud(FRONT, "1.0.0"), |setup| {
        setup.set("application.tags", vec!["special"])
    })
    .await;
    let onward = |context: Value| Answer::Call {
        url: format!("{}/hermes/invoke", front.sidecar.outbound_url()),
        headers: Vec::new(),
        body: json!({
            "agent": FRAUD, "input": fraud_input(), "context": context,
        }),
        then: Box::new(Answer::json(&fraud_output())),
    };
    front
        .application
        .answer(RISK, onward(json!({"task_id": "order-17"})));
    let caller = Caller::start(&stand.consul, "shop", |setup| setup).await;
    caller.knows(FRONT, 1).await;
    let context = json!({"task_id": "order-17", "required_tags": ["special"]});
    let reply = caller.line.call(FRONT, context).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    // Nobody has the tag that brought the task to the front; it was served all the same.
    assert_eq!(stand.calls(), [1, 0, 0]);
    let received = stand.members[0].application.received(RISK);
    assert_eq!(received[0].headers["hermes-task-id"], "order-17");
    assert!(!received[0].headers.contains_key("hermes-required-tags"));
}
