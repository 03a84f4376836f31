//! A faulty config is told whole, and what is shown is what is in force.

use crate::support::contract::{fraud_detection, fraud_input};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The program under test, in a folder and an environment of its own.
fn hermes(folder: &TempDir, args: &[&str]) -> Command {
    let named = std::env::vars_os().find(|(name, _)| name == "HERMES_TEST_BIN");
    let program = named.map_or_else(
        || env!("CARGO_BIN_EXE_hermes-sidecar").into(),
        |(_, path)| PathBuf::from(path),
    );
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(folder.path())
        .env_clear()
        .env("HOME", folder.path());
    command
}

fn folder_with(config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("hermes.toml"), config).unwrap();
    folder
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn shown(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const FIVE_FAULTS: &str = r#"[application]
name = "Fraud"
upsteam = "http://127.0.0.1:5000"
health_interval = "soon"
[outbound]
listen = "0.0.0.0:7402"
[trust]
mode = "pinned"
"#;

#[test]
fn five_faults_are_all_told_with_their_lines_before_anything_starts() {
    let folder = folder_with(FIVE_FAULTS);
    for command in [vec!["run"], vec!["config", "show"]] {
        let output = hermes(&folder, &command).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(
            output.stdout.is_empty(),
            "{command:?}: data beside an error"
        );
        let told: Vec<&str> = text(&output.stderr).lines().collect();
        assert_eq!(told.len(), 5, "{told:#?}");
        for (line, start) in told.iter().zip([
            "hermes.toml:2: application.name: ",
            "hermes.toml:3: application.upsteam: no such key; did you mean `upstream`?",
            "hermes.toml:4: application.health_interval: ",
            "hermes.toml:6: outbound.listen: must be a loopback address",
            "hermes.toml:8: trust.mode: \"pinned\" needs keys: add [[trust.key]]",
        ]) {
            assert!(line.starts_with(start), "{line}");
        }
    }
}

#[test]
fn check_tells_the_same_faults_and_goes_on() {
    let folder = folder_with(FIVE_FAULTS);
    let output = hermes(&folder, &["check", "-o", "json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["ok"], false);
    let of = |check: &str| {
        let findings = found["findings"].as_array().unwrap();
        findings
            .iter()
            .filter(|finding| finding["check"] == check)
            .count()
    };
    assert_eq!((of("config"), of("clock")), (5, 1), "{found:#}");
}

#[test]
fn check_finds_everything_in_one_run() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = folder_with(&format!(
        "[application]\nname = 'shop'\nupstream = 'http://127.0.0.1:1'\n\
         [[application.contract]]\nfile = 'missing.json'\npath = '/a'\n\
         [[application.contract]]\nfile = 'bad.json'\npath = '/b'\n\
         [inbound]\nlisten = '127.0.0.1:0'\n[outbound]\nlisten = '{}'\n\
         [admin]\nlisten = '127.0.0.1:0'\n[consul]\naddress = 'http://127.0.0.1:1'\n",
        taken.local_addr().unwrap()
    ));
    std::fs::write(folder.path().join("bad.json"), "{\"id\": 1}").unwrap();
    let output = hermes(&folder, &["check", "-o", "json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (check, part) in [
        ("config", "missing.json"),
        ("ports", "outbound 127.0.0.1"),
        ("contracts", "bad.json"),
        ("consul", "127.0.0.1:1"),
        ("application", "127.0.0.1:1"),
    ] {
        let is_told = told["findings"].as_array().unwrap().iter().any(|finding| {
            finding["check"] == check
                && finding["level"] == "problem"
                && finding["message"].as_str().unwrap().contains(part)
        });
        assert!(is_told, "no problem of {check} with {part}: {told:#}");
    }
}

#[test]
fn check_says_what_admission_will_send() {
    let folder = folder_with(
        "[application]\nupstream = 'http://127.0.0.1:1'\n\
         [[application.contract]]\nfile = 'tried.json'\npath = '/a'\n\
         [[application.contract]]\nfile = 'wrong.json'\npath = '/b'\n\
         [[application.contract]]\nfile = 'made-up.json'\npath = '/c'\nderive_probe = true\n\
         [[application.contract]]\nfile = 'lost.json'\npath = '/d'\nderive_probe = true\n",
    );
    let write = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut body = fraud_detection();
        body["id"] = format!("{name}-v1.0").into();
        change(&mut body);
        let file = folder.path().join(format!("{name}.json"));
        std::fs::write(file, body.to_string()).unwrap();
    };
    write("tried", &|body| {
        body["probe"] = json!({"input": fraud_input(), "calls": 200, "concurrency": 8});
    });
    write("wrong", &|body| body["probe"] = json!({"input": {}}));
    write("made-up", &|_| {});
    write("lost", &|body| {
        body["input_schema"]["properties"]["user_id"]["pattern"] = "^[0-9]{18}$".into();
    });
    let output = hermes(&folder, &["check", "-o", "json"]).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (level, part) in [
        (
            "ok",
            "tried-v1.0: 200 calls to POST /a, 8 at once, each within 500ms",
        ),
        ("problem", "wrong-v1.0: probe.input does not conform"),
        ("ok", "made-up-v1.0: 8 calls to POST /c, 1 at once"),
        ("problem", "lost-v1.0: derive_probe finds no input"),
    ] {
        let is_told = told["findings"].as_array().unwrap().iter().any(|finding| {
            finding["check"] == "trial"
                && finding["level"] == level
                && finding["message"].as_str().unwrap().contains(part)
        });
        assert!(is_told, "no {level} with {part}: {told:#}");
    }
}

#[test]
fn a_variable_with_two_underscores_must_name_a_key() {
    let folder = folder_with("[application]\nname = 'shop'\n");
    for (name, part) in [
        (
            "HERMES_FOO__BAR",
            "names no section; there are admin, application",
        ),
        ("HERMES_LOGG__FILTER", "did you mean HERMES_LOG__"),
        ("HERMES_LOG__FILTR", "did you mean HERMES_LOG__FILTER?"),
    ] {
        let mut command = hermes(&folder, &["config", "show"]);
        let output = command.env(name, "x").output().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {told}");
        assert!(told.contains(name) && told.contains(part), "{told}");
    }
    // Kubernetes names services this way; a sidecar tells its command where it is.
    for name in ["HERMES_COLLECTOR_PORT", "HERMES_OUTBOUND", "HERMES_ADMIN"] {
        let mut command = hermes(&folder, &["config", "show"]);
        let output = command.env(name, "tcp://10.0.0.1:80").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{name}");
    }
}

#[test]
fn the_stronger_layer_wins_and_says_who_it_is() {
    let folder = folder_with("[application]\nname = 'shop'\n[log]\nfilter = 'warn'\n");
    let mut told = Vec::new();
    for (variable, flags) in [
        (None, vec![]),
        (Some("error"), vec![]),
        (Some("error"), vec!["--set", "log.filter=debug"]),
    ] {
        let mut command = hermes(&folder, &["config", "show", "-o", "json"]);
        command
            .args(flags)
            .envs(variable.map(|value| ("HERMES_LOG__FILTER", value)));
        let shown = shown(&command.output().unwrap());
        told.push(format!(
            "{} {}",
            shown["config"]["log"]["filter"], shown["origins"]["log.filter"]
        ));
    }
    assert_eq!(
        told,
        [
            r#""warn" "hermes.toml:4""#,
            r#""error" "HERMES_LOG__FILTER""#,
            r#""debug" "flag""#
        ]
    );
}

#[test]
fn a_token_in_the_environment_is_never_shown() {
    let folder = folder_with("[application]\nname = 'shop'\n");
    for format in ["text", "json"] {
        let mut command = hermes(&folder, &["config", "show", "-o", format]);
        let output = command
            .env("CONSUL_HTTP_TOKEN", "3f1c-secret")
            .output()
            .unwrap();
        let shown = text(&output.stdout);
        assert!(
            output.status.success() && shown.contains("CONSUL_HTTP_TOKEN"),
            "{shown}"
        );
        assert!(!shown.contains("3f1c-secret"), "{shown}");
    }
}

#[test]
fn what_is_shown_as_text_loads_again_with_the_same_meaning() {
    for config in [
        "[application]\nname = 'shop'\ntags = ['a', 'ü # \"b']\n[spool]\nretry = '7s'\n",
        "[collector]\nretention = '1d'\n",
        "[application]\nname = 'shop'\n[collector]\nretention = '1d'\n",
    ] {
        let folder = folder_with(config);
        let json = ["config", "show", "-o", "json"];
        let first = shown(&hermes(&folder, &json).output().unwrap());
        let text = hermes(&folder, &["config", "show"])
            .output()
            .unwrap()
            .stdout;
        std::fs::write(folder.path().join("hermes.toml"), text).unwrap();
        let again = shown(&hermes(&folder, &json).output().unwrap());
        assert_eq!(again["config"], first["config"], "{config}");
    }
}

#[test]
fn the_schema_is_a_schema_of_what_is_shown() {
    let folder = folder_with("[application]\nname = 'shop'\n");
    let schema = shown(&hermes(&folder, &["config", "schema"]).output().unwrap());
    let validator = jsonschema::validator_for(&schema).unwrap();
    let shown = shown(
        &hermes(&folder, &["config", "show", "-o", "json"])
            .output()
            .unwrap(),
    );
    assert!(validator.is_valid(&shown["config"]));
    assert!(!validator.is_valid(&serde_json::json!({"application": {"nam": "shop"}})));
}
