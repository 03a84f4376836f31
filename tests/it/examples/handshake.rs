//! An agent and a client written by hand work together with a sidecar on no side, on either and
//! on both, and the client gets the same result.

use super::readme::Readme;
use super::stage::Stage;
use crate::support::client::client;
use crate::support::consul::Consul;
use crate::support::reply::Reply;
use crate::support::wait::wait_for;
use serde_json::{Value, json};
use std::time::Duration;

const AGENT: &str = "fraud-detection-v1.0";
const AGENT_PORT: u16 = 5000;
/// Consul asks for the first heartbeat at some moment of the first ten seconds.
const PASSING_WITHIN: Duration = Duration::from_secs(30);
const TOLD_WITHIN: Duration = Duration::from_secs(10);

#[tokio::test]
async fn the_handwritten_agent_works_alone_and_with_sidecars_on_any_side() {
    let readme = Readme::read("examples/handshake-agent/README.md");
    readme.leave("export PATH");
    readme.leave("pip install");
    readme.leave("consul agent -dev");
    let consul = Consul::start().await;
    let stage = Stage::with(readme, &consul);
    stage.collect("hermes-sidecar collector").await;

    // Nobody beside either.
    start_registered(&stage, &consul, 1).await;
    stage.replies("risk-1").await;
    let task = stage.task("risk-1", "completed").await;
    assert_eq!(reporters(&task), ["application"], "{task}");
    refuses(&stage, AGENT_PORT).await;
    stage.stop("application").await;
    consul.wait_passing(AGENT, 0, PASSING_WITHIN).await;

    // A sidecar beside the agent, which the client finds in the agent's place.
    stage
        .application("python3 agent.py", AGENT_PORT, "/hermes/heartbeat")
        .await;
    stage
        .sidecar(
            "agent-side",
            "-c agent-side.toml",
            &[7401, 7402, 7403],
            Some(AGENT_PORT),
        )
        .await;
    consul.wait_passing(AGENT, 1, PASSING_WITHIN).await;
    stage.replies("risk-2").await;
    is_whole(&stage, "risk-2", &["callee"]).await;
    refuses(&stage, 7401).await;

    // One beside each.
    stage
        .sidecar("client-side", "-c client-side.toml", &[7502, 7503], None)
        .await;
    stage.replies("risk-3").await;
    is_whole(&stage, "risk-3", &["caller", "callee"]).await;
    refuses(&stage, 7502).await;
    for name in ["client-side", "agent-side", "application"] {
        stage.stop(name).await;
    }
    consul.wait_passing(AGENT, 0, PASSING_WITHIN).await;

    // One beside the client alone, which stands for the agent, too.
    start_registered(&stage, &consul, 1).await;
    stage
        .sidecar(
            "gateway",
            "-c client-side-alone.toml",
            &[7501, 7502, 7503],
            Some(AGENT_PORT),
        )
        .await;
    consul.wait_passing(AGENT, 2, PASSING_WITHIN).await;
    stage.replies("risk-4").await;
    is_whole(&stage, "risk-4", &["caller", "callee"]).await;
    refuses(&stage, 7502).await;

    stage.readme.is_used_up();
}

/// Starts the agent that registers itself, and waits until Consul has had its heartbeat.
async fn start_registered(stage: &Stage, consul: &Consul, count: usize) {
    stage
        .application("env CONSUL_HTTP_ADDR", AGENT_PORT, "/hermes/heartbeat")
        .await;
    consul.wait_passing(AGENT, count, PASSING_WITHIN).await;
}

/// Waits until these sides and the agent itself have told of the task's end, and asserts that what
/// crossed was the same.
async fn is_whole(stage: &Stage, id: &str, sides: &[&str]) {
    let what = format!("word of {sides:?} and the agent on {id}");
    let task = wait_for(TOLD_WITHIN, &what, async || {
        let task = stage.task(id, "completed").await;
        let told = sides.iter().all(|side| reporters(&task).contains(side));
        (told && tells_of_hash(&task)).then_some(task)
    });
    let task = task.await;
    assert_eq!(task["chain"], "ok", "{task}");
    let steps = task["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 1, "one call, whoever tells of it: {task}");
}

/// The agent's own hash is no digest that could be compared; it is kept as it was told.
fn tells_of_hash(task: &Value) -> bool {
    let steps = task["steps"].as_array().unwrap().iter();
    let mut attempts = steps.flat_map(|step| step["attempts"].as_array().unwrap());
    attempts.any(|attempt| {
        let detail = attempt["detail"].as_str();
        detail.is_some_and(|detail| detail.starts_with("output_hash "))
    })
}

fn reporters(task: &Value) -> Vec<&str> {
    let steps = task["steps"].as_array().unwrap().iter();
    let attempts = steps.flat_map(|step| step["attempts"].as_array().unwrap());
    let states = attempts.flat_map(|attempt| attempt["states"].as_array().unwrap());
    states
        .map(|state| state["reporter"].as_str().unwrap())
        .collect()
}

/// Whoever is asked there refuses an input that breaks the contract, and says so in `error`.
async fn refuses(stage: &Stage, port: u16) {
    let broken = json!({"user_id": "u-1", "ip_address": "somewhere", "amount_cny": 1});
    let call = json!({"agent": AGENT, "input": broken, "context": {"task_id": "risk-broken"}});
    let url = format!("{}/hermes/invoke", stage.url(port));
    let reply = Reply::to(client().post(url).json(&call)).await;
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(reply.json()["error"].is_string(), "{reply:?}");
}
