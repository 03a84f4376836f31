//! Settings as a whole; the world that the cases share.

mod every_key;
mod faults;
mod layers;
mod needed;
mod trust;

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::json;

use super::keys::{KEYS, Rule};
use super::*;
use crate::identity::Allow;

const CONTRACT: &str = r#"{"id": "fraud-detection-v1.0", "version": "1.0.0"}"#;

/// A folder with a contract and a config file.
struct World {
    folder: tempfile::TempDir,
    source: Source,
}

impl World {
    fn with(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("fraud.json"), CONTRACT).unwrap();
        let file = folder.path().join("hermes.toml");
        std::fs::write(&file, config).unwrap();
        let source = Source {
            file: Some(file),
            host_name: "web-1".to_owned(),
            ..Source::default()
        };
        Self { folder, source }.variable("STATE_DIRECTORY", "/run/state:/run/other")
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.source.variables.push((name.into(), value.into()));
        self
    }

    fn flag(mut self, key: &str, value: &str) -> Self {
        self.source.flags.push((key.to_owned(), value.to_owned()));
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn load(&self) -> Settings {
        Settings::load(&self.source, Role::Sidecar)
            .unwrap_or_else(|error| panic!("refused:\n{error}"))
    }

    /// `line key: message` of each problem.
    fn problems(&self, role: Role) -> Vec<String> {
        let error = Settings::load(&self.source, role).expect_err("was accepted");
        let describe = |problem: &Problem| {
            let place = match &problem.origin {
                Some(Origin::File { line, .. }) => line.to_string(),
                Some(other) => other.to_string(),
                None => "-".to_owned(),
            };
            format!("{place} {}: {}", problem.key, problem.message)
        };
        error.problems().iter().map(describe).collect()
    }

    fn origin(&self, key: &str) -> String {
        let origin = self.load().effective.get(key).unwrap().origin.to_string();
        origin.replace(&format!("{}/", self.folder.path().display()), "")
    }
}

const SERVICE: &str = r#"
[application]
upstream = "http://127.0.0.1:5000"
[[application.contract]]
file = "fraud.json"
path = "/api/v1/risk"
"#;

const CALLER: &str = "[application]\nname = \"shop\"\n";
