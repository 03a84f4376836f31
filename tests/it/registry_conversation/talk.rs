//! Saying it, and noting the answers without what names the node or counts.

use super::script::Step::{self, Pick, Say, Sleeps, Until, Wakes};
use super::script::script;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a real Consul may take to bring its catalogue up to date.
pub(super) const SETTLES_WITHIN: Duration = Duration::from_secs(20);
pub(super) const PACE: Duration = Duration::from_millis(20);

/// Holds the conversation with the registry at `base`; returns what both sides said, line by line.
pub(super) async fn converse(base: &str) -> Vec<String> {
    let mut talk = Talk {
        base: base.to_owned(),
        http: crate::support::client::client(),
        indexes: HashMap::new(),
        modify: 0,
        hash: String::new(),
        said: Vec::new(),
    };
    for step in script() {
        talk.take(step).await;
    }
    talk.said
}

struct Talk {
    base: String,
    http: reqwest::Client,
    /// Path without its waiting part, to the index last seen there.
    indexes: HashMap<String, u64>,
    modify: u64,
    hash: String,
    said: Vec<String>,
}

struct Reply {
    status: u16,
    headers: reqwest::header::HeaderMap,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Talk {
    async fn take(&mut self, step: Step) {
        match step {
            Say(method, path, body) => {
                let reply = self.ask(&method, path, &body).await;
                self.note(&format!("{method} {path}"), path, &reply);
            }
            Until(path, settled) => {
                let deadline = Instant::now() + SETTLES_WITHIN;
                let mut reply = self.ask(&Method::GET, path, &Value::Null).await;
                while !settled(&reply.json()) {
                    assert!(
                        Instant::now() < deadline,
                        "{path} at {}: {}",
                        self.base,
                        reply.body
                    );
                    sleep(PACE).await;
                    reply = self.ask(&Method::GET, path, &Value::Null).await;
                }
                self.note(&format!("GET {path} in the end"), path, &reply);
            }
            Wakes(path, method, at, body) => {
                let began = Instant::now();
                let poll = self.ask(&Method::GET, path, &Value::Null);
                let (reply, _) = tokio::join!(poll, self.ask(&method, at, &body));
                assert!(
                    began.elapsed() < Duration::from_secs(10),
                    "{path} did not wake at {}",
                    self.base
                );
                self.note(&format!("{method} {at} wakes {path}"), path, &reply);
            }
            Sleeps(path, method, at, body) => {
                let began = Instant::now();
                let poll = self.ask(&Method::GET, path, &Value::Null);
                let (reply, _) = tokio::join!(poll, self.ask(&method, at, &body));
                assert!(
                    began.elapsed() >= Duration::from_millis(300),
                    "{at} woke {path} at {}",
                    self.base
                );
                self.note(&format!("{method} {at} lets {path} sleep"), path, &reply);
            }
            Pick(path, places) => {
                let body = self.ask(&Method::GET, path, &Value::Null).await.json();
                let picked: Vec<_> = places.iter().map(|place| body.pointer(place)).collect();
                self.said.push(format!("GET {path}: {picked:?}"));
            }
        }
    }

    async fn ask(&self, method: &Method, path: &str, body: &Value) -> Reply {
        let index = self.indexes.get(&plain(path)).copied().unwrap_or(0);
        let path = path
            .replace("{index}", &index.to_string())
            .replace("{modify}", &self.modify.to_string())
            .replace("{hash}", &self.hash);
        let body = match body {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string().replace("{base}", &self.base),
        };
        let url = format!("{}{path}", self.base);
        let response = self
            .http
            .request(method.clone(), url)
            .body(body)
            .send()
            .await
            .unwrap();
        Reply {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.text().await.unwrap(),
        }
    }

    /// Writes down what is comparable, and keeps what later steps refer to.
    fn note(&mut self, what: &str, path: &str, reply: &Reply) {
        let mut moved = "none";
        if let Some(index) = reply.header("x-consul-index") {
            let index: u64 = index.parse().unwrap();
            assert!(index > 0, "{what}");
            moved = match self.indexes.insert(plain(path), index) {
                None => "first",
                Some(before) if before == index => "same",
                Some(before) if before < index => "higher",
                Some(_) => "lower",
            };
        }
        if let Some(hash) = reply.header("x-consul-contenthash") {
            self.hash = hash.to_owned();
        }
        let mut body = reply.json();
        if let Some(modify) = body[0]["ModifyIndex"].as_u64() {
            self.modify = modify;
        }
        strip(&mut body);
        if path.starts_with("/v1/catalog/services") {
            // Consul gives the tags of a name in no order.
            for tags in body.as_object_mut().unwrap().values_mut() {
                tags.as_array_mut().unwrap().sort_by_key(Value::to_string);
            }
        }
        let text = match (reply.status, &body) {
            // Said by the HTTP library, not by Consul.
            (405 | 413, _) => String::new(),
            (_, Value::Null) => reply.body.trim().to_owned(),
            (_, json) => json.to_string(),
        };
        let header = |name| reply.header(name).unwrap_or("none");
        self.said.push(format!(
            "{what}: {} index {moved}, leader {}, contact {}, consistency {}, hash {}, {text}",
            reply.status,
            header("x-consul-knownleader"),
            header("x-consul-lastcontact"),
            header("x-consul-effective-consistency"),
            reply.header("x-consul-contenthash").is_some(),
        ));
    }
}

/// A path without what makes it wait.
fn plain(path: &str) -> String {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let kept = query.split('&').filter(|part| {
        !["index=", "wait=", "hash=", "stale", "cas=", "flags="]
            .iter()
            .any(|waiting| part.starts_with(waiting))
    });
    format!("{path}?{}", kept.collect::<Vec<_>>().join("&"))
}

/// Takes out what names the node or counts, and the difference between empty and absent.
fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for key in ["CreateIndex", "ModifyIndex", "ContentHash", "Node"] {
                map.remove(key);
            }
            if let Some(Value::String(output)) = map.get_mut("Output")
                && output.starts_with("HTTP GET")
            {
                output.truncate("HTTP GET".len());
            }
            map.values_mut().for_each(strip);
            map.retain(|_, value| !(value.is_null() || *value == json!({})));
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        Value::String(text) if text.parse::<std::net::SocketAddr>().is_ok() => {
            *text = "an address".to_owned();
        }
        _ => {}
    }
}
