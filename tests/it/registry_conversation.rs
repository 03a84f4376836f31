//! The built-in registry answers as a real Consul does.
//!
//! One conversation is held with both, and what they said is compared line by line: status, the
//! headers we read, how the index moved, and the body without what names the node or counts.

mod script;
mod talk;

use crate::support::consul::Consul;
use crate::support::port::free_port;
use crate::support::process::Process;
use crate::support::program;
use crate::support::wait::wait_until;
use hermes_sidecar::consul::{
    Check, CheckKind, CheckStatus, Client, Config, ErrorKind, Instance, Poll, Registration,
    TlsOptions,
};
use hermes_sidecar::devregistry;
use serde_json::json;
use std::collections::BTreeMap;
use std::future::Future;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use talk::{PACE, SETTLES_WITHIN, converse};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

#[tokio::test]
async fn the_built_in_registry_answers_as_consul_does() {
    let consul = Consul::start().await;
    let real = converse(&consul.address()).await;
    let ours = with_registry(|address| async move { converse(&address).await }).await;
    assert_eq!(real.len(), ours.len());
    let pairs = real.iter().zip(&ours).filter(|(real, ours)| real != ours);
    let differences = pairs.map(|(real, ours)| format!("Consul: {real}\nours:   {ours}\n"));
    let differences: Vec<String> = differences.collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test]
async fn our_client_reads_the_same_from_both() {
    let consul = Consul::start().await;
    let real = through_the_client(consul.address()).await;
    let ours = with_registry(through_the_client).await;
    assert_eq!(ours, real);
    let maintained = real.iter().find(|line| line.starts_with("maintenance"));
    assert!(maintained.unwrap().contains("passing: false"));
}

/// Mutual TLS with a name that is not the address's, and a socket: both from one agent.
#[tokio::test]
async fn our_client_speaks_tls_and_over_a_socket() {
    let directory = TempDir::with_prefix("hermes-consul-tls-").unwrap();
    let at = |file: &str| directory.path().join(file);
    for arguments in ["ca create", "cert create -server", "cert create -client"] {
        let mut command = Command::new(program::consul());
        command.arg("tls").args(arguments.split(' '));
        assert!(
            command
                .current_dir(&directory)
                .output()
                .unwrap()
                .status
                .success()
        );
    }
    let mut command = Command::new(program::consul());
    let socket = at("http.sock");
    let port = free_port();
    let config = json!({
        "bind_addr": "127.0.0.1", "disable_update_check": true,
        "addresses": {"http": format!("unix://{}", socket.display()), "https": "127.0.0.1"},
        "ports": {"https": port, "server": free_port(), "serf_lan": free_port(),
                  "serf_wan": -1, "dns": -1, "grpc": -1},
        "ca_file": at("consul-agent-ca.pem"), "cert_file": at("dc1-server-consul-0.pem"),
        "key_file": at("dc1-server-consul-0-key.pem"), "verify_incoming": true,
    });
    std::fs::write(at("agent.json"), config.to_string()).unwrap();
    command
        .args(["agent", "-dev", "-config-file"])
        .arg(at("agent.json"));
    let _agent = Process::spawn("consul", command, &at("log"));

    let over_socket = client(format!("unix:{}", socket.display()));
    wait_until(SETTLES_WITHIN, "leader over the socket", async || {
        matches!(over_socket.leader().await, Ok(Some(_)))
    })
    .await;
    let over_tls = |tls: TlsOptions| {
        let address = format!("https://127.0.0.1:{port}");
        let client = Client::new(
            Config {
                tls,
                ..config_of(address)
            },
            Arc::new(|_, _, _| {}),
        )
        .unwrap();
        async move {
            client
                .leader()
                .await
                .map(|leader| leader.is_some())
                .map_err(|error| error.kind())
        }
    };
    let whole = TlsOptions {
        ca: Some(at("consul-agent-ca.pem")),
        cert: Some(at("dc1-client-consul-0.pem")),
        key: Some(at("dc1-client-consul-0-key.pem")),
        server_name: Some("server.dc1.consul".to_owned()),
        verify: true,
    };
    assert_eq!(over_tls(whole.clone()).await, Ok(true));
    let refused = Err(ErrorKind::Unreachable);
    let other_name = Some("server.dc2.consul".to_owned());
    assert_eq!(
        over_tls(TlsOptions {
            server_name: other_name,
            ..whole.clone()
        })
        .await,
        refused
    );
    assert_eq!(
        over_tls(TlsOptions {
            ca: None,
            ..whole.clone()
        })
        .await,
        refused
    );
    assert_eq!(
        over_tls(TlsOptions {
            ca: None,
            verify: false,
            ..whole.clone()
        })
        .await,
        Ok(true)
    );
    assert_eq!(
        over_tls(TlsOptions {
            cert: None,
            key: None,
            ..whole
        })
        .await,
        refused
    );
}

/// Runs `talk` against a registry of its own.
async fn with_registry<T, F: Future<Output = T>>(talk: impl FnOnce(String) -> F) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::select! {
        said = talk(address) => said,
        served = devregistry::serve(listener, std::future::pending()) => {
            panic!("the registry ended by itself: {served:?}")
        }
    }
}

fn client(address: String) -> Client {
    Client::new(config_of(address), Arc::new(|_, _, _| {})).unwrap()
}

fn config_of(address: String) -> Config {
    Config {
        address,
        token: None,
        token_file: None,
        tls: TlsOptions::default(),
        prefix: "hermes".to_owned(),
        watches: 4,
    }
}

/// Everything a sidecar does, by our own client.
async fn through_the_client(address: String) -> Vec<String> {
    let client = client(address.clone());
    let mut registration = Registration {
        id: "fraud-v1.0-a".to_owned(),
        name: "fraud-v1.0".to_owned(),
        address: "127.0.0.1".to_owned(),
        port: 7401,
        tags: vec!["hermes".to_owned(), "team-x".to_owned()],
        weight: 100,
        meta: BTreeMap::from([("hermes_route".to_owned(), "POST /api/v1/risk".to_owned())]),
        checks: vec![Check {
            id: "fraud-v1.0-a:ttl".to_owned(),
            name: "sidecar".to_owned(),
            kind: CheckKind::Ttl(Duration::from_secs(15)),
            status: CheckStatus::Critical,
            deregister_after: Some(Duration::from_secs(600)),
        }],
    };
    let mut said = Vec::new();
    let check = registration.checks[0].id.clone();
    let check = check.as_str();
    let lost = client
        .update_check(check, CheckStatus::Passing, "ok")
        .await
        .unwrap_err();
    said.push(format!("{}: {lost}", lost.is_unknown_check()));
    client.register(&registration).await.unwrap();
    said.push(shown(&instances(&client, |found| found.len() == 1).await));
    client
        .update_check(check, CheckStatus::Passing, "ok")
        .await
        .unwrap();
    said.push(shown(&instances(&client, |found| found[0].passing).await));

    let maintain = format!("{address}/v1/agent/service/maintenance/{}", registration.id);
    let http = crate::support::client::client();
    let switch = async |enable: bool| {
        let url = format!("{maintain}?enable={enable}");
        http.put(url)
            .send()
            .await
            .unwrap()
            .error_for_status()
            .unwrap();
    };
    switch(true).await;
    instances(&client, |found| !found[0].passing).await;
    registration.port = 7402;
    client.register(&registration).await.unwrap();
    let kept = instances(&client, |found| found[0].port == 7402).await;
    said.push(format!("maintenance is the operator's: {}", shown(&kept)));
    switch(false).await;
    instances(&client, |found| found[0].passing).await;

    let own = client
        .service_by_id(&registration.id, None, Duration::ZERO)
        .await
        .unwrap()
        .unwrap();
    let hash = own.hash.clone();
    said.push(format!(
        "{} {} {} {:?}",
        own.id, own.address, own.port, own.meta
    ));
    let gone = client.service_by_id(&registration.id, Some(&hash), Duration::from_secs(30));
    let (gone, ()) = tokio::join!(gone, async {
        client.deregister(&registration.id).await.unwrap()
    });
    said.push(format!("{gone:?}"));

    said.push(format!(
        "{:?}",
        client.kv_put("hermes/canary/a", "500", Some(0)).await
    ));
    said.push(format!(
        "{:?}",
        client.kv_put("hermes/canary/a", "600", Some(0)).await
    ));
    let entry = client.kv_get("hermes/canary/a", Poll::NOW).await.unwrap();
    said.push(format!(
        "{:?} {}",
        entry.value.as_ref().unwrap().value,
        entry.known_leader
    ));
    let cas = entry.value.map(|entry| entry.modify_index);
    said.push(format!(
        "{:?}",
        client.kv_put("hermes/canary/a", "700", cas).await
    ));
    let list = client
        .kv_list("hermes/canary/", Poll::NOW)
        .await
        .unwrap()
        .value;
    said.push(format!(
        "{:?}",
        list.iter().map(|e| (&e.key, &e.value)).collect::<Vec<_>>()
    ));
    said.push(format!(
        "{:?}",
        client
            .kv_keys("hermes/", Poll::CONSISTENT)
            .await
            .unwrap()
            .value
    ));
    said.push(format!(
        "{:?}",
        client.kv_get("hermes/none", Poll::NOW).await.unwrap().value
    ));
    said.push(format!(
        "{:?} {:?}",
        client.version().await,
        client.node_address().await
    ));
    said.push(format!("{}", client.leader().await.unwrap().is_some()));
    said
}

async fn instances(client: &Client, settled: impl Fn(&[Instance]) -> bool) -> Vec<Instance> {
    let deadline = Instant::now() + SETTLES_WITHIN;
    loop {
        let found = client.health("fraud-v1.0", Poll::NOW).await.unwrap().value;
        if settled(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "{found:?}");
        sleep(PACE).await;
    }
}

fn shown(instances: &[Instance]) -> String {
    let nameless = instances.iter().map(|instance| Instance {
        node: String::new(),
        ..instance.clone()
    });
    format!("{:?}", nameless.collect::<Vec<_>>())
}
