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
    ready: Ready,
    /// What its config says beside the usual.
    more: Value,
    directory: TempDir,
    client: reqwest::Client,
}

/// What a start waits for.
#[derive(Clone, Copy)]
enum Ready {
    /// Its node is in the catalogue.
    Listed,
    Leads,
    Answers,
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

    /// Starts one that lets nobody do anything without a token, and returns once it leads.
    pub async fn start_closed() -> Self {
        let acl = json!({"acl": {"enabled": true, "default_policy": "deny"}});
        Self::start_until(Ready::Leads, acl).await
    }

    /// Starts one that waits for a second server, which never comes, and so has no leader.
    pub async fn start_leaderless() -> Self {
        Self::start_until(
            Ready::Answers,
            json!({"server": true, "bootstrap_expect": 2}),
        )
        .await
    }

    async fn start_with(more: Value) -> Self {
        Self::start_until(Ready::Listed, more).await
    }

    async fn start_until(ready: Ready, more: Value) -> Self {
        for _ in 0..STARTS {
            let ports = Ports {
                http: free_port(),
                server: free_port(),
                serf: free_port(),
                https: free_port(),
            };
            let directory = TempDir::with_prefix("hermes-consul-").unwrap();
            let process = spawn(ports, &more, &directory);
            let mut consul = Self {
                process,
                ports,
                ready,
                more: more.clone(),
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
        self.process = spawn(self.ports, &self.more, &self.directory);
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

    /// Waits until it is ready; says no when another process has one of its ports.
    async fn leads(&mut self) -> bool {
        let (path, wanted) = match self.ready {
            Ready::Listed => (format!("health/node/{}", node(self.ports)), "serfHealth"),
            Ready::Leads => ("status/leader".to_owned(), ":"),
            Ready::Answers => ("status/leader".to_owned(), "\""),
        };
        let url = format!("{}/v1/{path}", self.address());
        let client = &self.client;
        self.process
            .serves(LEADER_WITHIN, async || says(client, &url, wanted).await)
            .await
    }
}

async fn says(client: &reqwest::Client, url: &str, wanted: &str) -> bool {
    match client.get(url).send().await {
        Ok(reply) => reply.text().await.is_ok_and(|text| text.contains(wanted)),
        Err(_) => false,
    }
}

fn node(ports: Ports) -> String {
    format!("hermes-test-{}", ports.http)
}

fn spawn(ports: Ports, more: &Value, directory: &TempDir) -> Process {
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
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    if more.get("cert_file").is_some() {
        config["ports"]["https"] = ports.https.into();
    }
    let is_server = more.get("server").is_some();
    if is_server {
        config["data_dir"] = directory.path().join("data").to_str().unwrap().into();
    }
    let file = directory.path().join("consul.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let mut command = Command::new(program::consul());
    command.arg("agent");
    if !is_server {
        command.arg("-dev");
    }
    command.arg("-config-file").arg(file).current_dir(directory);
    Process::spawn("consul", command, &directory.path().join("consul.log"))
}
