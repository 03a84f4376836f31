//! Databases that a collector does not use, and what it says then.

use super::super::support::command;
use super::super::support::postgres::Postgres;
use super::{collector, post, tale};
use std::fs;
use tempfile::TempDir;

/// Starts a collector that is to refuse its database, and returns its exit code and its log.
async fn refused(store: &str) -> (Option<i32>, String) {
    let directory = TempDir::with_prefix("hermes-refused-").unwrap();
    let config = directory.path().join("collector.toml");
    let text = format!(
        "[collector]\nlisten = '127.0.0.1:0'\nconsul = false\nstore = '{store}'\n\
         [log]\nformat = 'text'\n"
    );
    fs::write(&config, text).unwrap();
    let state = format!("STATE_DIRECTORY={}", directory.path().display());
    let mut process = std::process::Command::new("env");
    process
        .env_clear()
        .arg(state)
        .arg(super::super::support::program::hermes())
        .args(["collector", "-c"])
        .arg(&config);
    let ran = tokio::task::spawn_blocking(move || process.output().unwrap());
    let ran = ran.await.unwrap();
    let said =
        String::from_utf8_lossy(&ran.stderr).into_owned() + &String::from_utf8_lossy(&ran.stdout);
    (ran.status.code(), said)
}

#[tokio::test]
async fn a_database_that_refuses_ends_the_start_and_says_why() {
    let mut postgres = Postgres::start().await;
    let url = postgres.url();
    drop(collector(&url).await);
    postgres
        .run("INSERT INTO hermes.versions (version) VALUES (99)")
        .await;
    postgres
        .run(
            "CREATE ROLE stranger LOGIN PASSWORD 'x'; GRANT CONNECT ON DATABASE hermes TO stranger",
        )
        .await;
    let client = postgres.client("postgres").await;
    let latin =
        "CREATE DATABASE latin OWNER hermes ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0";
    client.batch_execute(latin).await.unwrap();
    let stranger = postgres.url_to("postgres").replace("hermes:", "stranger:");
    let stranger = stranger.replace("s3cret%3Aof%2Ftests", "x");
    for (store, reason) in [
        (url.clone(), "newer release (version 99"),
        (postgres.url_to("nowhere"), "does not exist"),
        (postgres.url_to("latin"), "encoded as LATIN1"),
        (
            url.replace("s3cret", "guess"),
            "password authentication failed",
        ),
        (stranger, "permission denied"),
    ] {
        let (code, said) = refused(&store).await;
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(reason), "{reason}: {said}");
        for secret in ["s3cret", "guess", "%2Ftests"] {
            assert!(!said.contains(secret), "{said}");
        }
    }
    // Nothing of it was changed.
    assert_eq!(
        postgres
            .number("SELECT max(version)::bigint FROM hermes.versions")
            .await,
        99
    );
}

#[tokio::test]
async fn a_schema_made_for_the_role_is_enough_and_a_socket_needs_no_password() {
    let mut postgres = Postgres::start().await;
    postgres
        .run(
            "ALTER DATABASE hermes OWNER TO postgres; REVOKE CREATE ON DATABASE hermes FROM hermes;
             CREATE SCHEMA hermes AUTHORIZATION hermes",
        )
        .await;
    let there = collector(&postgres.socket_url()).await;
    let told = tale::report(
        "task",
        "step",
        1,
        "caller",
        &[("pending", 1), ("completed", 2)],
    );
    assert_eq!(post(&there.url(), &[told]).await["accepted"], 1);
    // The server's default here is not to wait for the disk; sessions of collectors do.
    let waits = "SELECT count(*) FROM pg_stat_activity
                 WHERE application_name = 'hermes-collector' AND usename = 'hermes'";
    assert!(postgres.number(waits).await >= 1);
}

#[tokio::test]
async fn a_password_is_shown_nowhere() {
    let directory = TempDir::with_prefix("hermes-shown-").unwrap();
    let config = directory.path().join("collector.toml");
    let store = "postgres://hermes:s3cret@127.0.0.1:1/tasks";
    fs::write(&config, format!("[collector]\nstore = '{store}'\n")).unwrap();
    let config = config.to_str().unwrap();
    for args in [
        &["config", "show", "-c", config][..],
        &["config", "show", "-o", "json", "-c", config],
        &["check", "-c", config],
    ] {
        let ran = command::hermes(args).await;
        assert!(!format!("{ran:?}").contains("s3cret"), "{ran:?}");
    }
    let shown = command::hermes(&["config", "show", "-c", config]).await;
    assert!(
        shown
            .stdout
            .contains("postgres://hermes:***@127.0.0.1:1/tasks"),
        "{shown:?}"
    );
    for (store, reason) in [
        ("postgres://hermes:s3cret@db/tasks", "sslmode=verify-full"),
        ("postgres://hermes:s3@cret@127.0.0.1/tasks", "%40"),
        (
            "mysql://hermes:s3cret@127.0.0.1/tasks",
            "must be a path, or postgres://",
        ),
    ] {
        fs::write(config, format!("[collector]\nstore = '{store}'\n")).unwrap();
        let ran = command::hermes(&["check", "-c", config]).await;
        assert!(format!("{ran:?}").contains(reason), "{ran:?}");
        assert!(!format!("{ran:?}").contains("cret"), "{ran:?}");
    }
}
