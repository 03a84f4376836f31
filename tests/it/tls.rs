//! Certificates: what is refused at the start, who is let in, and files that change under load.

pub mod house;
mod peers;
mod renewal;

pub use renewal::renewed_under_load;

use crate::support::authority::{Authority, Leaf, Order, TlsFiles};
use crate::support::consul::Consul;
use crate::support::program;
use crate::support::road;
use crate::support::wait::wait_until;
use serde_json::Value;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(20);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Runs a command on a sidecar's config of its own with these certificates.
fn hermes(command: &[&str], leaf: &Leaf, ca: &str) -> Output {
    let directory = TempDir::with_prefix("hermes-tls-").unwrap();
    TlsFiles::write(directory.path(), leaf, ca);
    let config = "application.name = 'fraud'\nconsul.address = 'http://127.0.0.1:1'\n\
        inbound.listen = '127.0.0.1:0'\noutbound.listen = '127.0.0.1:0'\n\
        admin.listen = '127.0.0.1:0'\n\
        [tls]\nmode = 'files'\ncert = 'cert.pem'\nkey = 'key.pem'\nca = 'ca.pem'\n";
    std::fs::write(directory.path().join("hermes.toml"), config).unwrap();
    Command::new(program::hermes())
        .args(command)
        .args(["-c", "hermes.toml"])
        .env_clear()
        .env("HOME", directory.path())
        .current_dir(&directory)
        .output()
        .unwrap()
}

#[test]
fn check_reads_the_certificates() {
    let ca = Authority::new("root");
    let now = SystemTime::now();
    let soon = |days| Order::spiffe("fraud").valid(now - DAY, now + days * DAY);
    for (leaf, level, expected) in [
        (ca.spiffe("fraud"), "ok", "the certificate names \"fraud\""),
        (ca.issue(soon(8)), "ok", "the certificate expires at"),
        (ca.issue(soon(6)), "warning", "the certificate expires soon"),
        (ca.spiffe("orders"), "problem", "tls.cert names \"orders\""),
        (
            Authority::new("other").spiffe("fraud"),
            "warning",
            "would refuse the certificate",
        ),
        (
            Leaf {
                key: ca.spiffe("fraud").key,
                ..ca.spiffe("fraud")
            },
            "problem",
            "do not belong together",
        ),
    ] {
        let output = hermes(&["check", "-o", "json"], &leaf, &ca.pem());
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let told = told["findings"].as_array().unwrap();
        let found = told.iter().any(|finding| {
            finding["check"] == "tls"
                && finding["level"] == level
                && finding["message"].as_str().unwrap().contains(expected)
        });
        assert!(found, "{level} {expected}: {told:#?}");
    }
}

#[test]
fn a_process_with_unusable_certificates_does_not_start() {
    let ca = Authority::new("root");
    for (leaf, bundle, expected) in [
        (ca.spiffe("orders"), ca.pem(), "application.name is"),
        (ca.spiffe("fraud"), String::new(), "holds no certificate"),
        (
            ca.issue(Order::spiffe("fraud").uri("spiffe://a/svc/fraud")),
            ca.pem(),
            "2 URI names",
        ),
    ] {
        let output = hermes(&["run"], &leaf, &bundle);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[tokio::test]
async fn consul_is_reached_with_a_client_certificate() {
    let ca = Authority::new("consul");
    let directory = TempDir::with_prefix("hermes-tls-").unwrap();
    let server = ca.dns(&["server.dc1.consul", "localhost"]);
    let files = TlsFiles::write(directory.path(), &server, &ca.pem());
    let own = directory.path().join("own");
    std::fs::create_dir(&own).unwrap();
    let ours = TlsFiles::write(&own, &ca.dns(&["client.dc1.consul"]), &ca.pem());
    let consul = Consul::start_secured(&files).await;
    let application = road::application().await;
    let begun = || road::callee(&application).variable("CONSUL_HTTP_ADDR", consul.secure_address());
    let known = |setup: crate::support::sidecar::Setup| {
        setup
            .unset("consul.address")
            .variable("CONSUL_CACERT", ours.ca.display())
            .variable("CONSUL_TLS_SERVER_NAME", "server.dc1.consul")
    };
    // Without a certificate of ours the agent hangs up.
    let stranger = known(begun()).start_unready().await;
    wait_until(WITHIN, "word of the refusal", async || {
        stranger.log().contains("received fatal alert")
    })
    .await;
    drop(stranger);
    let sidecar = known(begun())
        .variable("CONSUL_CLIENT_CERT", ours.cert.display())
        .variable("CONSUL_CLIENT_KEY", ours.key.display())
        .start()
        .await;
    consul.wait_passing(road::AGENT, 1, WITHIN).await;
    drop(sidecar);
}
