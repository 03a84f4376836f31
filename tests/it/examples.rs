//! What the READMEs say works as they say it: their own commands, run in their own order.
//!
//! A README's commands are its `sh` blocks. A test finds each by a part of it, gives it free ports
//! (in the text, and by variables for what the config files say) and runs it with our binary on
//! PATH. What is shown as reply is what must come back. A block that no test runs fails the test.

mod chain;
mod contracts;
mod handshake;
mod languages;
mod readme;
mod stage;

use crate::support::consul::Consul;
use crate::support::program;
use readme::Readme;
use serde_json::Value;
use stage::Stage;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[tokio::test]
async fn the_first_request_of_the_readme_works() {
    let readme = Readme::read("README.md");
    let consul = Consul::start().await;
    // The one is `Consul` here; the others are how the binary came about, and the other tests.
    readme.leave("consul agent -dev");
    readme.leave("cargo build --release");
    readme.leave("cargo run --release -- demo");
    readme.leave("tests/run");

    let stage = Stage::with(readme, &consul);
    stage
        .serve(("app.py", 5000), "collector -c", "run -c")
        .await;
    // Consul's agent knows of the check a moment before its catalogue does.
    let within = Duration::from_secs(10);
    consul.wait_passing("fraud-detection-v1.0", 1, within).await;
    let listed: Value = serde_json::from_str(&stage.prints("/v1/health/service").await).unwrap();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    let keys: Vec<String> = serde_json::from_str(&stage.prints("/v1/kv/").await).unwrap();
    let key = |name| format!("hermes/contracts/fraud-detection-v1.0/{name}");
    assert_eq!(keys, [key("1.0.0"), key("version")]);
    stage.replies("/hermes/invoke").await;
    stage.completes("first-task").await;
    stage.replies("env http_proxy=").await;
    stage.readme.is_used_up();
}

#[tokio::test]
async fn the_quickstart_works_as_written_on_a_real_consul() {
    let readme = Readme::read("examples/quickstart/README.md");
    readme.leave("hermes-sidecar dev-registry");
    let consul = Consul::start().await;
    let stage = Stage::with(readme, &consul);
    quickstart(stage).await;
}

#[tokio::test]
async fn the_quickstart_works_as_written_on_the_development_registry() {
    let readme = Readme::read("examples/quickstart/README.md");
    quickstart(Stage::with_dev_registry(readme).await).await;
}

async fn quickstart(stage: Stage) {
    stage.readme.leave("export PATH");
    stage
        .serve(("app.py", 5000), "collector -c", "hermes-sidecar run\n")
        .await;
    stage.replies("order-1").await;
    stage.completes("order-1").await;
    stage.start_caller("-c caller.toml").await;
    stage.replies("order-2").await;
    stage.task("order-2", "completed").await;
    let problem: Value = serde_json::from_str(&stage.prints("order-3").await).unwrap();
    assert_eq!(problem["status"], 400, "{problem}");
    let places = problem["errors"].as_array().unwrap().iter();
    let places: Vec<&str> = places.filter_map(|e| e["instance"].as_str()).collect();
    assert_eq!(places, ["/ip_address", "/amount_cny"], "{problem}");
    stage.task("order-3", "failed_validation").await;
    stage.readme.is_used_up();
}

#[test]
fn the_sample_config_shows_every_key_with_its_default() {
    let path = program::root().join("examples/hermes.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let shown: toml::Table = toml::from_str(&text).unwrap();
    let mut known = Vec::new();
    keys(&hermes_sidecar::config::schema(), "", &mut known);
    assert!(known.len() > 80, "the schema lists only {known:?}");
    // These have no default that works, so the sample gives a value.
    let given = ["upstream", "file", "path"];
    for (key, default, help) in &known {
        let (section, name) = key.rsplit_once('.').unwrap();
        let line = text.lines().find(|line| {
            let line = line.trim_start_matches("# ");
            line.contains(help.as_str()) && line.starts_with(name_in_file(key))
        });
        assert!(
            line.is_some(),
            "`{key}` is not shown with its help, `{help}`"
        );
        // A list of tables that must stay empty is shown as a comment.
        if section == "trust.key[]" {
            continue;
        }
        let value = value(&shown, key).unwrap_or_else(|| panic!("`{key}` is not set"));
        let is_given = section.starts_with("application") && given.contains(&name);
        assert!(
            is_given || value == *default,
            "{key}: {value} is not {default}"
        );
    }
}

/// `validate.input` of `application.contract[].validate.input`: how a line of the file begins.
fn name_in_file(key: &str) -> &str {
    match key.split_once("[].") {
        Some((_, inner)) => inner,
        None => key.split_once('.').unwrap().1,
    }
}

/// Collects path, default and help of each key below a section of the schema.
fn keys(section: &Value, above: &str, found: &mut Vec<(String, Value, String)>) {
    for (name, schema) in section["properties"].as_object().unwrap() {
        let path = match above {
            "" => name.clone(),
            above => format!("{above}.{name}"),
        };
        if schema["properties"].is_object() {
            keys(schema, &path, found);
        } else if schema["items"]["properties"].is_object() {
            keys(&schema["items"], &format!("{path}[]"), found);
        } else {
            let help = schema["description"].as_str().unwrap().to_owned();
            found.push((path, schema["default"].clone(), help));
        }
    }
}

/// Reads a key from the file; of a list of tables the first.
fn value(file: &toml::Table, key: &str) -> Option<Value> {
    let mut place = toml::Value::Table(file.clone());
    for part in key.split('.') {
        let name = part.trim_end_matches("[]");
        place = place.get(name)?.clone();
        if part.ends_with("[]") {
            place = place.get(0)?.clone();
        }
    }
    serde_json::to_value(place).ok()
}

#[test]
fn every_example_is_run_by_a_test() {
    let tests = [
        "examples.rs",
        "examples/chain.rs",
        "examples/handshake.rs",
        "examples/languages.rs",
    ];
    let tests = tests.map(|name| program::root().join("tests/it").join(name));
    let source: String = tests
        .map(|path| std::fs::read_to_string(path).unwrap())
        .concat();
    let folder = program::root().join("examples");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        let is_run = source.contains(&format!("examples/{name}/README.md"));
        assert!(
            !has_readme(&path) || is_run,
            "examples/{name} is run by no test"
        );
    }
}

fn has_readme(folder: &Path) -> bool {
    folder.join("README.md").is_file()
}
