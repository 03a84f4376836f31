//! What `consul/` holds works: the agent starts, and each policy allows what its owner does and no more.

use crate::support::agent::{Agent, rules};
use crate::support::contract::fraud_detection;
use crate::support::program;
use hermes_sidecar::consul::{
    Check, CheckKind, CheckStatus, Client, Config, Error, ErrorKind, Poll, Registration,
};
use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const SETTLES_WITHIN: Duration = Duration::from_secs(20);
/// For what must not happen: a lone agent takes milliseconds.
const STAYS_FOR: Duration = Duration::from_secs(2);
const PACE: Duration = Duration::from_millis(20);
/// What an operator writes and a sidecar reads.
const RATIO: &str = "hermes/canary/fraud-detection-v1.0";

#[tokio::test]
async fn a_sidecar_needs_each_line_of_its_policy_and_no_other() {
    let agent = Agent::start();
    agent.write(RATIO, "1000").await;
    let rules = rules("policy-sidecar.hcl");
    let client = agent.client(&agent.token(&rules.concat()).await);
    sidecar_work(&client, SETTLES_WITHIN).await.unwrap();
    assert_eq!(
        client.node_address().await.unwrap(),
        None,
        "agent:read is left out"
    );
    assert!(client.version().await.unwrap().unwrap().starts_with("1."));

    for stranger in ["payment-v1.0", "fraud-detection2-v1.0", "consul"] {
        let kind = client
            .register(&registration(stranger))
            .await
            .map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::Denied), "{stranger}");
    }
    for key in [
        "hermes/contracts/payment-v1.0/1.0.0",
        "hermes/contracts/fraud-detection2-v1.0/1.0.0",
        "hermes/index/payment-v1.0",
        "hermes/canary/fraud-detection-v1.0",
        "hermes/canary/_keep",
        "elsewhere",
    ] {
        assert_eq!(put(&client, key).await, Err(ErrorKind::Denied), "{key}");
    }
    for (dropped, without) in each_dropped(&rules) {
        let client = agent.client(&agent.token(&without).await);
        assert!(
            sidecar_work(&client, STAYS_FOR).await.is_err(),
            "nothing needs {dropped}"
        );
    }
}

#[tokio::test]
async fn a_collector_needs_each_line_of_its_policy_and_no_other() {
    let agent = Agent::start();
    let rules = rules("policy-collector.hcl");
    let client = agent.client(&agent.token(&rules.concat()).await);
    collector_work(&client, SETTLES_WITHIN).await.unwrap();
    for key in [
        "hermes/canary/x",
        "hermes/index/x",
        "hermes/contracts/x",
        "elsewhere",
    ] {
        assert_eq!(put(&client, key).await, Err(ErrorKind::Denied), "{key}");
    }
    let kind = client
        .register(&registration("fraud-detection-v1.0"))
        .await
        .map_err(|error| error.kind());
    assert_eq!(kind, Err(ErrorKind::Denied));
    for (dropped, without) in each_dropped(&rules) {
        let client = agent.client(&agent.token(&without).await);
        assert!(
            collector_work(&client, STAYS_FOR).await.is_err(),
            "nothing needs {dropped}"
        );
    }
}

#[tokio::test]
async fn a_publisher_needs_each_line_of_its_policy_and_no_other() {
    let agent = Agent::start();
    let rules = rules("policy-publisher.hcl");
    let token = agent.token(&rules.concat()).await;
    let mut version = 0;
    let mut publish = |token: &str, id: &str| {
        version += 1;
        let mut contract = fraud_detection();
        contract["id"] = id.into();
        contract["version"] = format!("1.0.{version}").into();
        publish(&agent, token, &contract.to_string())
    };
    let output = publish(&token, "fraud-detection-v1.0");
    assert!(output.status.success(), "{output:?}");
    for stranger in ["payment-v1.0", "fraud-detection2-v1.0"] {
        let output = publish(&token, stranger);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("consul/policy-publisher.hcl"), "{said}");
    }
    let client = agent.client(&token);
    let kind = client
        .register(&registration("fraud-detection-v1.0"))
        .await
        .map_err(|error| error.kind());
    assert_eq!(kind, Err(ErrorKind::Denied));
    assert_eq!(
        put(&client, "hermes/canary/fraud-detection-v1.0").await,
        Err(ErrorKind::Denied)
    );
    for (dropped, without) in each_dropped(&rules) {
        let token = agent.token(&without).await;
        let output = publish(&token, "fraud-detection-v1.0");
        assert_eq!(output.status.code(), Some(1), "nothing needs {dropped}");
    }
}

fn publish(agent: &Agent, token: &str, contract: &str) -> Output {
    let file = agent.directory.path().join("contract.json");
    std::fs::write(&file, contract).unwrap();
    let mut command = Command::new(program::hermes());
    command
        .args(["contract", "publish"])
        .arg(file)
        .current_dir(agent.directory.path())
        .env_clear()
        .env("CONSUL_HTTP_ADDR", &agent.address)
        .env("CONSUL_HTTP_TOKEN", token);
    command.output().unwrap()
}

#[tokio::test]
async fn a_token_file_is_read_again_when_it_changes() {
    let agent = Agent::start();
    let good = agent.token(&rules("policy-collector.hcl").concat()).await;
    let file = agent.directory.path().join("rotated.token");
    std::fs::write(&file, "not-a-token").unwrap();
    let config = Config {
        token_file: Some(file.clone()),
        ..agent.config()
    };
    let client = Client::new(config, Arc::new(|_, _, _| {})).unwrap();
    let read = async || {
        client
            .kv_get("hermes/x", Poll::NOW)
            .await
            .map(|answer| answer.value)
            .map_err(|error| error.kind())
    };
    assert_eq!(read().await, Err(ErrorKind::Denied));
    std::fs::write(&file, format!("{good}\n")).unwrap();
    assert_eq!(read().await, Ok(None));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(read().await, Ok(None), "the last token stays in use");
}

/// What a sidecar asks of Consul from its start to its end.
async fn sidecar_work(client: &Client, within: Duration) -> Result<(), String> {
    let own = registration("fraud-detection-v1.0");
    work(
        client
            .kv_put("hermes/contracts/fraud-detection-v1.0/1.0.0", "{}", None)
            .await,
    )?;
    work(
        client
            .kv_put(
                "hermes/contracts/fraud-detection-v1.0/version",
                "1.0.0",
                None,
            )
            .await,
    )?;
    work(client.register(&own).await)?;
    work(
        client
            .update_check(&own.checks[0].id, CheckStatus::Passing, "ok")
            .await,
    )?;
    work(
        client
            .kv_put("hermes/index/fraud-detection-v1.0", "{}", None)
            .await,
    )?;
    work(client.service_by_id(&own.id, None, Duration::ZERO).await)?
        .ok_or("our own service is hidden")?;
    appears(client, &own.name, within).await?;
    // Others: a service that is there on every agent, and somebody else's contract.
    appears(client, "consul", within).await?;
    work(
        client
            .kv_get("hermes/contracts/payment-v1.0/version", Poll::NOW)
            .await,
    )?;
    let line = work(
        client
            .kv_keys("hermes/contracts/fraud-detection-v1.", Poll::NOW)
            .await,
    )?;
    if line.value.len() != 2 {
        return Err("the other versions are hidden".to_owned());
    }
    // Without the right to read them they look as if nothing were written.
    let ratios = work(client.kv_list("hermes/canary/", Poll::NOW).await)?.value;
    if !ratios
        .iter()
        .any(|entry| entry.key == RATIO && entry.value == "1000")
    {
        return Err("the ratios of canaries are hidden".to_owned());
    }
    if work(client.kv_keys("hermes/index/", Poll::CONSISTENT).await)?
        .value
        .is_empty()
    {
        return Err("the index is hidden".to_owned());
    }
    work(client.deregister(&own.id).await)
}

async fn collector_work(client: &Client, within: Duration) -> Result<(), String> {
    let own = registration("hermes-collector");
    work(client.kv_put("hermes/canary/_keep", "", Some(0)).await)?;
    work(client.kv_put("hermes/index/_keep", "", Some(0)).await)?;
    work(client.register(&own).await)?;
    work(
        client
            .update_check(&own.checks[0].id, CheckStatus::Passing, "ok")
            .await,
    )?;
    appears(client, &own.name, within).await?;
    appears(client, "consul", within).await?;
    work(
        client
            .kv_get("hermes/contracts/payment-v1.0/version", Poll::NOW)
            .await,
    )?;
    if !work(client.services(Poll::NOW).await)?
        .value
        .contains_key(&own.name)
    {
        return Err("the services are hidden".to_owned());
    }
    let entries = work(client.kv_list("hermes/index/", Poll::NOW).await)?;
    let keys = work(client.kv_keys("hermes/", Poll::NOW).await)?;
    if entries.value.is_empty() || keys.value.is_empty() {
        return Err("the keys are hidden".to_owned());
    }
    work(client.deregister(&own.id).await)
}

fn work<T>(result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// Missing rights on health look like no instances.
async fn appears(client: &Client, service: &str, within: Duration) -> Result<(), String> {
    let deadline = Instant::now() + within;
    while !work(client.health(service, Poll::NOW).await)?
        .value
        .iter()
        .any(|instance| instance.passing)
    {
        if Instant::now() > deadline {
            return Err(format!("{service} does not appear"));
        }
        sleep(PACE).await;
    }
    Ok(())
}

async fn put(client: &Client, key: &str) -> Result<bool, ErrorKind> {
    client
        .kv_put(key, "x", None)
        .await
        .map_err(|error| error.kind())
}

fn registration(name: &str) -> Registration {
    let id = format!("{name}-a");
    Registration {
        checks: vec![Check {
            id: format!("{id}:ttl"),
            name: "sidecar".to_owned(),
            kind: CheckKind::Ttl(Duration::from_secs(15)),
            status: CheckStatus::Critical,
            deregister_after: Some(Duration::from_secs(600)),
        }],
        id,
        name: name.to_owned(),
        address: "127.0.0.1".to_owned(),
        port: 7401,
        tags: vec!["hermes".to_owned()],
        weight: 100,
        meta: BTreeMap::new(),
    }
}

fn each_dropped(rules: &[String]) -> impl Iterator<Item = (&String, String)> {
    rules.iter().map(|dropped| {
        let kept = rules
            .iter()
            .filter(move |rule| *rule != dropped)
            .cloned()
            .collect();
        (dropped, kept)
    })
}
