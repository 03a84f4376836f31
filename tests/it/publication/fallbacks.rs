//! A fallback that cannot stand in is told when the first contract is published.

use super::*;
use crate::support::application::Application;
use crate::support::wait::wait_until;

const RULES: &str = "fraud-rules-v1.0";

/// The fraud contract, which falls back on these.
fn falling_back(on: &[&str]) -> Value {
    let mut contract = fraud("1.0.0");
    contract["fallback"] = json!(on);
    contract
}

/// A fallback that wants these members.
fn rules(version: &str, required: Value) -> Value {
    let mut contract = fraud("1.0.0");
    contract["id"] = RULES.into();
    contract["version"] = version.into();
    contract["input_schema"]["required"] = required;
    contract
}

#[tokio::test]
async fn a_fallback_that_cannot_stand_in_is_told_and_refused_to_nobody() {
    let consul = Consul::start().await;
    let desk = Desk::at(&consul.address());
    // It is not there yet.
    let early = desk.publish(&falling_back(&[RULES]), &[]);
    let told = format!("warning: the fallback {RULES} may be of no use: it is not published");
    assert!(early.err.contains(&told), "{early:?}");
    early.with(0);

    // It wants more than the first is given.
    let greedy = rules("1.0.0", json!(["user_id", "device_fingerprint"]));
    let published = desk.publish(&greedy, &[]);
    assert!(!published.err.contains("may be of no use"), "{published:?}");
    published.with(0);
    let again = desk.publish(&falling_back(&[RULES]), &["-o", "json"]);
    let doubts = again.json(0)[0]["fallbacks_in_doubt"].clone();
    assert_eq!(doubts[0]["fallback"], RULES, "{doubts}");
    let why = doubts[0]["why"].as_str().unwrap();
    assert!(why.contains("1.0.0 cannot stand in"), "{why}");
    assert!(
        why.contains("/input_schema") && why.contains("device_fingerprint"),
        "{why}"
    );

    // A sidecar says so, too, and serves all the same.
    let application = Application::start().await;
    let sidecar = serving(&consul, &application.url(), falling_back(&[RULES]));
    let sidecar = sidecar.start_unready().await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    wait_until(WITHIN, "warning in the log", async || {
        sidecar.log().contains("a fallback may be of no use")
    })
    .await;

    // Its next version is content with less.
    let content = rules("1.0.1", json!(["user_id"]));
    desk.publish(&content, &[]).with(0);
    let good = desk.publish(&falling_back(&[RULES]), &["-o", "json"]);
    assert!(!good.err.contains("may be of no use"), "{good:?}");
    assert_eq!(good.json(0)[0]["fallbacks_in_doubt"], json!([]));

    // One that cannot be read says nothing of what it takes.
    let key = format!("/v1/kv/hermes/contracts/{RULES}/1.0.1");
    consul.put(&key, "torn".to_owned()).await;
    let torn = desk.publish(&falling_back(&[RULES]), &[]);
    assert!(
        torn.err.contains("its version 1.0.1 cannot be read"),
        "{torn:?}"
    );
    torn.with(0);
}
