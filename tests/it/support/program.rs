//! Where the programs are that tests start.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns our binary: the one `tests/run` names, else the one cargo built for this test.
pub fn hermes() -> PathBuf {
    named("HERMES_TEST_BIN").unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_hermes-sidecar")))
}

/// Returns Consul's binary.
pub fn consul() -> PathBuf {
    named("HERMES_TEST_CONSUL").unwrap_or_else(|| PathBuf::from("consul"))
}

/// Returns the Prometheus server's binary.
pub fn prometheus() -> PathBuf {
    named("HERMES_TEST_PROMETHEUS").unwrap_or_else(|| PathBuf::from("prometheus"))
}

/// Returns one of PostgreSQL's programs: from the folder that `tests/run` names, else the one on PATH.
pub fn postgres(name: &str) -> PathBuf {
    let folder = named("HERMES_TEST_POSTGRES");
    folder.map_or_else(|| PathBuf::from(name), |folder| folder.join(name))
}

/// Returns Prometheus' checker of configurations, rules and metric pages.
pub fn promtool() -> PathBuf {
    named("HERMES_TEST_PROMTOOL").unwrap_or_else(|| PathBuf::from("promtool"))
}

/// Returns the file that lists the field cases of this run, if the run keeps one.
pub fn list_of_cases() -> Option<PathBuf> {
    named("HERMES_TEST_CASES")
}

/// Returns the folder of the JSON Schema test suite; says aloud that it is left out if none is named.
pub fn schema_suite() -> Option<PathBuf> {
    let suite = named("HERMES_TEST_SCHEMA_SUITE");
    if suite.is_none() {
        let mut terminal = std::io::stderr();
        writeln!(
            terminal,
            "LEFT OUT: the JSON Schema test suite (tests/run fetches it)"
        )
        .unwrap();
    }
    suite
}

/// Returns the variables by which Python, Node and Cargo find what examples and test peers need:
/// the packages that `tests/run` fetched, else the machine's own, and a place to build in.
pub fn packages() -> Vec<(&'static str, PathBuf)> {
    let fetched = [
        ("PYTHONPATH", "HERMES_TEST_PYTHON_PACKAGES"),
        ("NODE_PATH", "HERMES_TEST_NODE_PACKAGES"),
    ];
    let fetched = fetched.map(|(told, variable)| Some((told, named(variable)?)));
    let target = Path::new(env!("CARGO_BIN_EXE_hermes-sidecar")).ancestors();
    let built = target.skip(2).map(|folder| folder.join("examples")).next();
    let mut all: Vec<_> = fetched.into_iter().flatten().collect();
    all.extend(built.map(|folder| ("CARGO_TARGET_DIR", folder)));
    all
}

/// Says whether the machine has all of these; says aloud what is left out for want of one.
pub fn has(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|name| !is_on_path(name));
    if let Some(name) = missing {
        // Past the capture of a passing test's output: what is left out is always shown.
        let mut terminal = std::io::stderr();
        writeln!(terminal, "skipped: no {name} on PATH").unwrap();
    }
    missing.is_none()
}

/// Says whether the shell would find this program.
pub fn is_on_path(name: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {name}")])
        .output();
    found.unwrap().status.success()
}

/// Returns the checkout's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Says whether the long shows are asked for; says aloud that one is left out if not.
pub fn is_long() -> bool {
    let long = named("HERMES_TEST_LONG").is_some();
    if !long {
        let mut terminal = std::io::stderr();
        writeln!(terminal, "LEFT OUT: a long show (tests/run --long)").unwrap();
    }
    long
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests are told their programs by `tests/run`"
)]
fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}
