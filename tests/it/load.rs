//! Who has much to do is passed over, and instances say how much they have to do.

use crate::support::application::Answer;
use crate::support::client::client;
use crate::support::consul::Consul;
use crate::support::contract::{fraud_detection, fraud_input, fraud_output};
use crate::support::fleet::{Caller, Member, fraud};
use crate::support::pair::{FRAUD, Pair, RISK};
use crate::support::reply::Reply;
use crate::support::wait::wait_until;
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinSet;

const WITHIN: Duration = Duration::from_secs(20);
/// Longer than it takes to begin all calls of a burst.
const SLOW: Duration = Duration::from_secs(5);
const NAMES: [&str; 3] = ["a", "b", "c"];
const EIGHT: usize = 8;

/// An answer that is slow for tasks whose id says so.
fn by_task(member: &Member) {
    let name = member.name;
    member.application.script(RISK, move |request| {
        let answer = Answer::json(&fraud_output()).with("x-who", name);
        let task = request.headers.get("hermes-task-id");
        match task.is_some_and(|task| task.as_bytes().starts_with(b"slow")) {
            true => answer.delayed(SLOW),
            false => answer,
        }
    });
}

async fn three(consul: &Consul) -> Vec<Member> {
    let [a, b, c] = NAMES.map(|name| {
        let mut body = fraud(FRAUD, "1.0.0");
        body["retry_policy"] = json!({"max_retries": 0});
        Member::start(consul, name, body, |setup| setup)
    });
    let (a, b, c) = tokio::join!(a, b, c);
    consul.wait_passing(FRAUD, 3, WITHIN).await;
    let members = vec![a, b, c];
    members.iter().for_each(by_task);
    members
}

fn tenth() -> usize {
    let most = fraud(FRAUD, "1.0.0")["constraints"]["max_concurrent"].as_u64();
    most.unwrap() as usize / 10
}

#[tokio::test]
async fn a_burst_of_one_key_is_spread_once_its_instance_has_enough() {
    let consul = Consul::start().await;
    let members = three(&consul).await;
    let caller = Caller::start(&consul, "shop", |setup| setup).await;
    caller.knows(FRAUD, 3).await;
    let context = json!({"task_id": "slow-order"});
    let told = caller.explain(FRAUD, "slow-order", "").await.json();
    let first = told["instance"].as_str().unwrap().to_owned();
    let enough = tenth().max(EIGHT);

    // So few that the average stays too low to count.
    let rest = 2;
    let all = 2 * enough + rest;
    let mut burst = JoinSet::new();
    for _ in 0..all {
        let (line, context) = (caller.line.clone(), context.clone());
        burst.spawn(async move { line.who(FRAUD, context).await });
    }
    let calls = |member: &Member| member.application.calls(RISK);
    wait_until(WITHIN, "calls at the instances", async || {
        members.iter().map(calls).sum::<usize>() == all
    })
    .await;
    let told = caller.explain(FRAUD, "slow-order", "").await.json();
    let ranking = told["ranking"].as_array().unwrap();
    assert_eq!(ranking[0]["instance"], first.as_str(), "never reordered");
    assert!(
        ranking[0]["in_flight"].as_u64().unwrap() >= enough as u64,
        "{told}"
    );
    let taken = |at: usize| {
        let name = ranking[at]["instance"].as_str().unwrap();
        let named = |member: &&Member| name.ends_with(&format!("-{}", member.name));
        calls(members.iter().find(named).unwrap())
    };
    assert_eq!([taken(0), taken(1), taken(2)], [enough, enough, rest]);
    burst.join_all().await;
    let spilt = [("cohort", "spill")];
    let spilt = caller.sidecar.metric("route_selections_total", &spilt);
    assert_eq!(spilt.await, (enough + rest) as f64);

    // With the burst over, the key is back at its instance.
    let told = caller.explain(FRAUD, "slow-order", "").await.json();
    assert_eq!(told["instance"], first.as_str());
}

#[tokio::test]
async fn the_calls_of_others_count_for_a_moment() {
    let consul = Consul::start().await;
    let members = three(&consul).await;
    let caller = Caller::start(&consul, "shop", |setup| setup).await;
    caller.knows(FRAUD, 3).await;
    let told = caller.explain(FRAUD, "order", "").await.json();
    let first = told["instance"].as_str().unwrap().to_owned();
    let named = |member: &&Member| first.ends_with(&format!("-{}", member.name));
    let first = members.iter().find(named).unwrap();

    // Others, who do not come through this caller.
    let mut others = JoinSet::new();
    let many = 8 * tenth();
    for number in 0..many {
        let url = format!("{}{RISK}", first.sidecar.inbound_url());
        let request = client().post(url).json(&fraud_input());
        let request = request.header("hermes-task-id", format!("slow-{number}"));
        others.spawn(async move { Reply::to(request).await.status });
    }
    wait_until(WITHIN, "calls of others at the instance", async || {
        first.application.calls(RISK) == many
    })
    .await;
    let who = async || caller.line.who(FRAUD, json!({"task_id": "order"})).await;
    assert_eq!(who().await, first.name, "the caller has not heard of them");
    assert_ne!(who().await, first.name, "it has been told");
    wait_until(WITHIN, "call to the instance once more", async || {
        who().await == first.name
    })
    .await;
    let ends = others.join_all().await;
    assert!(ends.iter().all(|status| *status == 200), "{ends:?}");
}

#[tokio::test]
async fn every_reply_of_a_contract_tells_the_load_and_no_application_forges_it() {
    let mut narrow = fraud_detection();
    narrow["id"] = "fraud-narrow-v1.0".into();
    narrow["constraints"] = json!({"timeout_ms": 10_000, "max_concurrent": 1});
    narrow["retry_policy"] = json!({"max_retries": 0});
    let pair = Pair::with(|callee| callee.contract(narrow, "POST", "/narrow")).await;
    let forging = Answer::json(&fraud_output()).with("hermes-load", "inflight=900, limit=901");
    pair.application.answer(RISK, forging.clone());
    pair.application.answer("/narrow", forging.delayed(SLOW));
    let ask = async |path: &str, body: serde_json::Value| {
        Reply::to(pair.inbound(path).body(body.to_string())).await
    };
    let reply = ask(RISK, fraud_input()).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("hermes-load"), "inflight=0, limit=100");
    let reply = ask(RISK, json!({})).await;
    reply.problem(400, "input-invalid");
    assert_eq!(reply.header("hermes-load"), "inflight=0, limit=100");
    let reply = Reply::to(
        pair.outbound("/agents/fraud-detection-v1.0/api/v1/risk")
            .body(fraud_input().to_string()),
    )
    .await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("hermes-load"), "", "it is for sidecars");

    let slow = pair.inbound("/narrow").body(fraud_input().to_string());
    let slow = tokio::spawn(Reply::to(slow));
    wait_until(WITHIN, "call under way", async || {
        pair.application.calls("/narrow") == 1
    })
    .await;
    let refused = ask("/narrow", fraud_input()).await;
    refused.problem(429, "overloaded");
    assert_eq!(refused.header("hermes-load"), "inflight=1, limit=1");
    assert_eq!(refused.header("hermes-executed"), "?0");
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!(wait >= 1);
    let reply = ask(RISK, fraud_input()).await;
    assert_eq!(
        reply.header("hermes-load"),
        "inflight=0, limit=100",
        "each contract by itself"
    );
    assert_eq!(
        slow.await.unwrap().header("hermes-load"),
        "inflight=0, limit=1"
    );
}
