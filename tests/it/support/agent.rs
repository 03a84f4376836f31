//! A Consul agent with ACLs, deny by default: the one that `consul/start.sh` starts.

use super::client::client as http;
use super::port::free_port;
use super::program;
use hermes_sidecar::consul::{Client, Config, TlsOptions};
use hermes_sidecar::identity::Secret;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use tempfile::TempDir;

/// How often a start is tried on fresh ports when others took ours.
const STARTS: usize = 5;

/// The agent of `consul/start.sh`, stopped by `consul/stop.sh`.
pub struct Agent {
    pub directory: TempDir,
    pub address: String,
}

impl Agent {
    /// Starts it, with the management token in its directory.
    pub fn start() -> Agent {
        for _ in 0..STARTS {
            let directory = TempDir::with_prefix("hermes-consul-dev-").unwrap();
            let port = free_port().to_string();
            let output = script("start.sh", &[directory.path().to_str().unwrap(), &port]);
            if output.status.success() {
                let address = String::from_utf8(output.stdout).unwrap().trim().to_owned();
                return Agent { directory, address };
            }
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                log.contains("address already in use"),
                "start.sh: {log}; `tests/run` provides Consul"
            );
        }
        panic!("Consul found its ports taken {STARTS} times");
    }

    /// Describes how it is reached without a token.
    pub fn config(&self) -> Config {
        Config {
            address: self.address.clone(),
            token: None,
            token_file: None,
            tls: TlsOptions::default(),
            prefix: "hermes".to_owned(),
            watches: 4,
        }
    }

    /// Makes a client with this token.
    pub fn client(&self, token: &str) -> Client {
        let config = Config {
            token: Some(Secret::new(token)),
            ..self.config()
        };
        Client::new(config, Arc::new(|_, _, _| {})).unwrap()
    }

    /// Makes a policy of these rules and a token for it.
    pub async fn token(&self, rules: &str) -> String {
        let name = format!("p-{:x}", fastrand::u64(..));
        self.manage("policy", json!({"Name": name, "Rules": rules}))
            .await;
        let made = self
            .manage("token", json!({"Policies": [{"Name": name}]}))
            .await;
        made["SecretID"].as_str().unwrap().to_owned()
    }

    /// Writes a key as somebody who may.
    pub async fn write(&self, key: &str, value: &'static str) {
        let client = self.client(&self.management_token());
        assert!(client.kv_put(key, value, None).await.unwrap());
    }

    fn management_token(&self) -> String {
        let file = self.directory.path().join("management.token");
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }

    async fn manage(&self, what: &str, body: Value) -> Value {
        let token = self.management_token();
        let url = format!("{}/v1/acl/{what}", self.address);
        let request = http()
            .put(url)
            .header("x-consul-token", token.trim())
            .body(body.to_string());
        request
            .send()
            .await
            .unwrap()
            .error_for_status()
            .unwrap()
            .json()
            .await
            .unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let output = script("stop.sh", &[self.directory.path().to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() || std::thread::panicking(),
            "stop.sh: {said}"
        );
    }
}

fn script(name: &str, arguments: &[&str]) -> Output {
    let path: PathBuf = program::root().join("consul").join(name);
    Command::new(path)
        .args(arguments)
        .env("CONSUL", program::consul())
        .output()
        .unwrap()
}

/// The rules of a policy file, one a piece.
pub fn rules(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(program::root().join("consul").join(file)).unwrap();
    let text: String = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    let rules: Vec<String> = text
        .split_inclusive("\n}\n")
        .map(str::to_owned)
        .filter(|rule| !rule.trim().is_empty())
        .collect();
    assert!(rules.len() >= 2, "{rules:?}");
    rules
}
