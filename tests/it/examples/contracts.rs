//! Contracts in continuous integration: the script, in a repository of its own.

use super::readme::Readme;
use crate::support::contract::fraud_detection;
use crate::support::program;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A repository with one contract on `main`, on a branch of its own.
struct Repository {
    folder: TempDir,
    command: String,
}

impl Repository {
    fn new(command: &str) -> Self {
        let (folder, command) = (TempDir::new().unwrap(), command.to_owned());
        let repository = Self { folder, command };
        let script = program::root().join("examples/ci/check-contracts");
        std::fs::copy(script, repository.path("check-contracts")).unwrap();
        std::fs::create_dir(repository.path("bin")).unwrap();
        let binary = repository.path("bin/hermes-sidecar");
        std::os::unix::fs::symlink(program::hermes(), binary).unwrap();
        std::fs::create_dir(repository.path("contracts")).unwrap();
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        repository.commit("fraud.json", &fraud_detection());
        repository.git(&["checkout", "--quiet", "-b", "change"]);
        repository
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn git(&self, args: &[&str]) {
        let mut git = Command::new("git");
        let who = ["-c", "user.name=somebody", "-c", "user.email=s@example.org"];
        let status = git.args(who).args(args).current_dir(self.folder.path());
        assert!(status.status().unwrap().success(), "git {args:?}");
    }

    fn commit(&self, name: &str, contract: &Value) {
        let file = Path::new("contracts").join(name);
        let text = serde_json::to_string_pretty(contract).unwrap();
        std::fs::write(self.folder.path().join(&file), text).unwrap();
        self.git(&["add", file.to_str().unwrap()]);
        self.git(&["commit", "--quiet", "-m", "Change a contract"]);
    }

    /// Runs the README's command, with our binary first on PATH.
    fn check(&self) -> Output {
        let command = format!("PATH=\"$PWD/bin:$PATH\"\n{}", self.command);
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", &command]).current_dir(self.folder.path());
        shell.output().unwrap()
    }
}

#[test]
fn changed_contracts_are_judged_before_they_are_merged() {
    let readme = Readme::read("examples/ci/README.md");
    let command = readme.blocks[readme.find("./check-contracts")].text.clone();
    readme.is_used_up();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();

    // A new optional member, and a new contract beside it: fine.
    let repository = Repository::new(&command);
    let mut wider = fraud_detection();
    wider["version"] = "1.0.1".into();
    wider["input_schema"]["properties"]["channel"] = json!({"type": "string"});
    repository.commit("fraud.json", &wider);
    let mut other = fraud_detection();
    other["id"] = "fraud-rules-v1.0".into();
    repository.commit("rules.json", &other);
    let output = repository.check();
    let told = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("contracts/fraud.json, since main"), "{told}");
    assert!(!told.contains("contracts/rules.json, since"), "{told}");
    let sarif = std::fs::read(repository.path("contracts.sarif")).unwrap();
    let sarif: Value = serde_json::from_slice(&sarif).unwrap();
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    let file = |result: &Value| {
        let place = &result["locations"][0]["physicalLocation"];
        place["artifactLocation"]["uri"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(!results.is_empty());
    assert!(
        results
            .iter()
            .all(|result| file(result).starts_with("contracts/"))
    );

    // A newly required member breaks callers.
    let repository = Repository::new(&command);
    wider["input_schema"]["required"] = json!(["user_id", "ip_address", "amount_cny", "channel"]);
    repository.commit("fraud.json", &wider);
    let output = repository.check();
    let told = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("channel"), "{told}");

    // So does, on its own, a contract that is none; the finding is in the log.
    let repository = Repository::new(&command);
    let mut broken = fraud_detection();
    broken["id"] = "fraud-other-v1.0".into();
    broken["input_schema"]["properties"]["user_id"]["type"] = "int".into();
    repository.commit("other.json", &broken);
    let output = repository.check();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let sarif = std::fs::read(repository.path("contracts.sarif")).unwrap();
    let sarif: Value = serde_json::from_slice(&sarif).unwrap();
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    assert!(results.iter().any(|result| result["level"] == "error"));
}
