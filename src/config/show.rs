//! The values in force, for people and for machines.
//!
//! - both forms load again as a config file with the same meaning
//! - sections of a role that the settings do not describe are left out
//! - secrets are never among them: addresses cannot hold any, tokens are masked

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::keys::KEYS;
use super::settings::Settings;

const MASK: &str = "***";

impl Settings {
    /// `{"config": as in the file, "origins": {key: origin}, "environment": {…}}`.
    pub fn to_json(&self) -> Value {
        let mut config = Value::Object(Map::new());
        let mut origins = BTreeMap::new();
        for key in KEYS.iter().filter(|key| self.concerns(key.path)) {
            for path in self.paths(key.path) {
                if let Some(entry) = self.effective.get(&path) {
                    insert(&mut config, &path, json!(entry.value));
                    origins.insert(path, entry.origin.to_string());
                }
            }
        }
        json!({"config": config, "origins": origins, "environment": self.environment()})
    }

    /// A config file with the origin of each value behind it.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut last = "";
        for key in KEYS.iter().filter(|key| self.concerns(key.path)) {
            let (table, _) = split(key.path);
            if table == last {
                continue;
            }
            last = table;
            for head in self.paths(table) {
                self.write_table(&mut text, table, &head);
            }
        }
        for (name, value) in self.environment() {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            text.push_str(&format!("# {name}={value}\n"));
        }
        text
    }

    /// Says whether a key means anything to the roles described.
    fn concerns(&self, path: &str) -> bool {
        let (is_sidecar, is_collector) = self.roles();
        match path.split('.').next() {
            Some("collector") => is_collector,
            Some("consul" | "limits" | "log" | "tls") => true,
            _ => is_sidecar,
        }
    }

    fn write_table(&self, text: &mut String, table: &str, head: &str) {
        let title = match table.strip_suffix("[]") {
            Some(list) => format!("[[{list}]]"),
            None => format!("[{table}]"),
        };
        text.push_str(&format!("{title}\n"));
        for key in KEYS.iter().filter(|key| split(key.path).0 == table) {
            let (_, name) = split(key.path);
            if let Some(entry) = self.effective.get(&format!("{head}.{name}")) {
                let line = format!("{name} = {}", entry.value);
                text.push_str(&format!("{line:<44} # {}\n", entry.origin));
            }
        }
        text.push('\n');
    }

    /// Writes a path of the table out for each element there is.
    fn paths(&self, path: &str) -> Vec<String> {
        match path.split_once("[]") {
            None => vec![path.to_owned()],
            Some((list, rest)) => (0..self.effective.list_length(list))
                .map(|index| format!("{list}[{index}]{rest}"))
                .collect(),
        }
    }

    /// What only Consul's own variables say.
    fn environment(&self) -> Map<String, Value> {
        let tls = &self.consul.tls;
        let path = |path: &Option<std::path::PathBuf>| {
            path.as_ref().map(|path| json!(path.to_string_lossy()))
        };
        let given = [
            (
                "CONSUL_HTTP_TOKEN",
                self.consul.token.as_ref().map(|_| json!(MASK)),
            ),
            ("CONSUL_CACERT", path(&tls.ca_file)),
            ("CONSUL_CLIENT_CERT", path(&tls.cert_file)),
            ("CONSUL_CLIENT_KEY", path(&tls.key_file)),
            (
                "CONSUL_TLS_SERVER_NAME",
                tls.server_name.as_ref().map(|name| json!(name)),
            ),
            (
                "CONSUL_HTTP_SSL_VERIFY",
                (!tls.verify).then_some(json!(false)),
            ),
        ];
        given
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    }
}

/// Splits a path of the table into its table and the name within.
fn split(path: &str) -> (&str, &str) {
    match path.split_once("[].") {
        Some((list, name)) => (&path[..list.len() + 2], name),
        None => path.split_once('.').unwrap_or(("", path)),
    }
}

/// Puts a value into nested objects and arrays along its path.
fn insert(root: &mut Value, path: &str, value: Value) {
    let mut place = root;
    for segment in path.split('.') {
        let (name, index) = match segment.split_once('[') {
            Some((name, index)) => (name, index.trim_end_matches(']').parse::<usize>().ok()),
            None => (segment, None),
        };
        place = &mut place[name];
        if let Some(index) = index {
            if place.is_null() {
                *place = json!([]);
            }
            if let Value::Array(items) = place
                && items.len() <= index
            {
                items.resize(index + 1, Value::Null);
            }
            place = &mut place[index];
        }
    }
    *place = value;
}
