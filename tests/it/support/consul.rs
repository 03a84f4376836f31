//! A real Consul server of one's own.

use super::authority::TlsFiles;
use super::client::client;
use super::port::free_port;
use super::process::{Process, STARTS};
use super::program;
use super::wait::wait_for;
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// How long a lone server may take to elect itself and to list its own node.
const LEADER_WITHIN: Duration = Duration::from_secs(30);

/// A server in memory (`-dev`): what it knew is gone after its end.
pub struct Consul {
    process: Process,
    ports: Ports,
    tls: Value,
    directory: TempDir,
    client: reqwest::Client,
}

#[derive(Clone, Copy)]
struct Ports {
    http: u16,
    server: u16,
    serf: u16,
    /// Serves only if there are certificates.
    https: u16,
}

impl Consul {
    /// Starts a server and returns once it leads and its node is in the catalogue.
    pub async fn start() -> Self {
        Self::start_with(json!({})).await
    }

    /// Starts one that also serves HTTPS, to clients with a certificate alone.
    pub async fn start_secured(files: &TlsFiles) -> Self {
        Self::start_with(json!({
            "ca_file": files.ca, "cert_file": files.cert, "key_file": files.key,
            "verify_incoming": true, "verify_outgoing": true,
        }))
        .await
    }

    async fn start_with(tls: Value) -> Self {
        for _ in 0..STARTS {
            let ports = Ports {
                http: free_port(),
                server: free_port(),
                serf: free_port(),
                https: free_port(),
            };
            let directory = TempDir::with_prefix("hermes-consul-").unwrap();
            let process = spawn(ports, &tls, &directory);
            let mut consul = Self {
                process,
                ports,
                tls: tls.clone(),
                directory,
                client: client(),
            };
            if consul.leads().await {
                return consul;
            }
        }
        panic!("Consul found its ports taken {STARTS} times");
    }

    /// Returns its address as `consul.address` takes it.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.http)
    }

    /// Returns its address for those with a certificate.
    pub fn secure_address(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.https)
    }

    /// Ends it as a crash would.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Starts it again at the same address, knowing nothing.
    pub async fn restart_empty(&mut self) {
        self.process.kill9();
        self.process = spawn(self.ports, &self.tls, &self.directory);
        assert!(
            self.leads().await,
            "another process took the port of a stopped Consul"
        );
    }

    /// Reads an API path such as `/v1/kv/hermes/index?recurse`; nothing on 404.
    pub async fn get(&self, path: &str) -> Option<Value> {
        let reply = self.client.get(self.address() + path).send().await.unwrap();
        if reply.status() == reqwest::StatusCode::NOT_FOUND {
            return None;
        }
        Some(reply.error_for_status().unwrap().json().await.unwrap())
    }

    /// Writes to an API path and returns the answer's text.
    pub async fn put(&self, path: &str, body: impl Into<reqwest::Body>) -> String {
        let reply = self
            .client
            .put(self.address() + path)
            .body(body)
            .send()
            .await
            .unwrap();
        reply
            .error_for_status()
            .unwrap()
            .text()
            .await
            .unwrap()
            .trim_end()
            .to_owned()
    }

    /// Returns the passing instances of a service as the health endpoint lists them.
    pub async fn passing(&self, service: &str) -> Vec<Value> {
        let path = format!("/v1/health/service/{service}?passing");
        match self.get(&path).await {
            Some(Value::Array(instances)) => instances,
            other => panic!("Consul answered {path} with {other:?}"),
        }
    }

    /// Waits until exactly `count` instances of a service are passing, and returns them.
    pub async fn wait_passing(&self, service: &str, count: usize, within: Duration) -> Vec<Value> {
        let what = format!("{count} passing instances of {service}");
        wait_for(within, &what, async || {
            let instances = self.passing(service).await;
            (instances.len() == count).then_some(instances)
        })
        .await
    }

    /// Waits until it leads; says no when another process has one of its ports.
    async fn leads(&mut self) -> bool {
        let node = format!("{}/v1/health/node/{}", self.address(), node(self.ports));
        let client = &self.client;
        self.process
            .serves(LEADER_WITHIN, async || lists_itself(client, &node).await)
            .await
    }
}

async fn lists_itself(client: &reqwest::Client, node: &str) -> bool {
    match client.get(node).send().await {
        Ok(reply) => reply
            .text()
            .await
            .is_ok_and(|text| text.contains("serfHealth")),
        Err(_) => false,
    }
}

fn node(ports: Ports) -> String {
    format!("hermes-test-{}", ports.http)
}

fn spawn(ports: Ports, tls: &Value, directory: &TempDir) -> Process {
    let mut config = json!({
        "node_name": node(ports),
        "bind_addr": "127.0.0.1",
        "client_addr": "127.0.0.1",
        "ports": {
            "http": ports.http, "server": ports.server, "serf_lan": ports.serf,
            "serf_wan": -1, "dns": -1, "grpc": -1
        },
        "disable_update_check": true,
        "log_level": "info",
    });
    for (key, value) in tls.as_object().unwrap() {
        config[key] = value.clone();
        config["ports"]["https"] = ports.https.into();
    }
    let file = directory.path().join("consul.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let mut command = Command::new(program::consul());
    command
        .args(["agent", "-dev", "-config-file"])
        .arg(file)
        .current_dir(directory);
    Process::spawn("consul", command, &directory.path().join("consul.log"))
}
