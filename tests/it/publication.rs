//! What is published stays as it is, and no new version breaks the others of its major.

mod calls;
mod commands;
mod fallbacks;
mod line;
mod replicas;

use crate::support::consul::Consul;
use crate::support::contract::fraud_detection;
use crate::support::pair::{FRAUD, RISK};
use crate::support::program;
use crate::support::sidecar::{Setup, Sidecar};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hermes_sidecar::contract::trust::sign;
use hermes_sidecar::identity::key::KeyPair;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(15);
/// What only a person can change is asked for every half minute.
const SLOWLY: Duration = Duration::from_secs(60);

/// How a command ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    /// Fails the test unless it ended so; returns its output.
    fn with(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.out
    }

    fn json(self, code: i32) -> Value {
        let out = self.with(code);
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}"))
    }
}

/// A folder with contract files, and commands that work on them.
struct Desk {
    folder: TempDir,
    consul: String,
    token: String,
}

impl Desk {
    fn at(consul: &str) -> Self {
        let folder = TempDir::with_prefix("hermes-desk-").unwrap();
        let (consul, token) = (consul.to_owned(), String::new());
        Self {
            folder,
            consul,
            token,
        }
    }

    fn file(&self, contract: &Value) -> String {
        let (id, version) = (&contract["id"], &contract["version"]);
        let name = format!(
            "{}-{}.json",
            id.as_str().unwrap(),
            version.as_str().unwrap()
        );
        self.write(&name, &format!("{contract:#}\n"))
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program::hermes());
        command
            .arg("contract")
            .args(args)
            .current_dir(self.folder.path())
            .env_clear()
            .env("USER", "ada")
            .env("CONSUL_HTTP_ADDR", &self.consul)
            .env("CONSUL_HTTP_TOKEN", &self.token)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        let output = self.command(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ended {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    fn publish(&self, contract: &Value, more: &[&str]) -> Ended {
        let file = self.file(contract);
        self.run(&[&["publish", &file], more].concat())
    }
}

/// The fraud contract as another version of its line.
fn fraud(version: &str) -> Value {
    let mut contract = fraud_detection();
    let (line, _patch) = version.rsplit_once('.').unwrap();
    contract["id"] = format!("fraud-detection-v{line}").into();
    contract["version"] = version.into();
    contract
}

/// The fraud contract in a version that wants more than it did.
fn stricter(version: &str) -> Value {
    let mut contract = fraud(version);
    contract["input_schema"]["required"] =
        json!(["user_id", "ip_address", "amount_cny", "device_fingerprint"]);
    contract
}

/// The contract signed by each of these keys, one after the other.
fn signed(contract: Value, keys: &[usize]) -> Value {
    static KEYS: OnceLock<Vec<KeyPair>> = OnceLock::new();
    let pairs = KEYS.get_or_init(|| (0..24).map(|_| KeyPair::generate().unwrap()).collect());
    keys.iter().fold(contract, |contract, key| {
        let kid = format!("key-{key}");
        let renewed = sign(&contract.to_string(), &pairs[*key], Some(&kid)).unwrap();
        serde_json::from_str(&renewed.text.unwrap()).unwrap()
    })
}

/// The signatures that `signed` makes with these keys.
fn signatures(keys: &[usize]) -> Vec<Value> {
    let contract = signed(fraud("1.0.0"), keys);
    contract["signatures"].as_array().unwrap().clone()
}

/// Reads a key's value.
async fn value(consul: &Consul, key: &str) -> Option<String> {
    let entries = consul.get(&format!("/v1/kv/{key}")).await?;
    let value = entries[0]["Value"].as_str().unwrap_or_default();
    Some(String::from_utf8(STANDARD.decode(value).unwrap()).unwrap())
}

fn body_key(version: &str) -> String {
    let (line, _patch) = version.rsplit_once('.').unwrap();
    format!("hermes/contracts/fraud-detection-v{line}/{version}")
}

async fn body(consul: &Consul, version: &str) -> Value {
    let text = value(consul, &body_key(version)).await.unwrap();
    serde_json::from_str(&text).unwrap()
}

async fn pointer(consul: &Consul) -> Option<String> {
    value(consul, &format!("hermes/contracts/{FRAUD}/version")).await
}

async fn index(consul: &Consul) -> Value {
    let text = value(consul, &format!("hermes/index/{FRAUD}")).await;
    text.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap())
}

/// Begins a sidecar of the fraud service with this contract.
fn serving(consul: &Consul, application: &str, contract: Value) -> Setup {
    Sidecar::named("fraud")
        .consul(&consul.address())
        .application(application)
        .set("limits.drain_delay", "0s")
        .contract(contract, "POST", RISK)
}
