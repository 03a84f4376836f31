//! Where the programs are that tests start.

use std::io::Write;
use std::path::{Path, PathBuf};

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

/// Returns Prometheus' checker of configurations, rules and metric pages.
pub fn promtool() -> PathBuf {
    named("HERMES_TEST_PROMTOOL").unwrap_or_else(|| PathBuf::from("promtool"))
}

/// Returns the file that lists the field cases of this run, if the run keeps one.
pub fn list_of_cases() -> Option<PathBuf> {
    named("HERMES_TEST_CASES")
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
