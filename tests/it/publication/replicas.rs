//! Replicas that start together, each with its own signatures.

use super::*;
use crate::support::application::Application;
use crate::support::wait::wait_until;

#[tokio::test]
async fn replicas_that_start_together_leave_the_signatures_of_all() {
    let consul = Consul::start().await;
    let application = Application::start().await;
    let start = |number: usize| {
        // One in common, one of its own.
        let contract = signed(fraud("1.0.0"), &[100, number]);
        let setup = serving(&consul, &application.url(), contract);
        setup
            .set("application.instance", format!("copy-{number}"))
            .start()
    };
    let (_zero, _one, _two, mut last) = tokio::join!(start(0), start(1), start(2), start(3));
    consul.wait_passing(FRAUD, 4, WITHIN).await;
    let there = body(&consul, "1.0.0").await;
    let mut found: Vec<_> = there["contract"]["signatures"].as_array().unwrap().clone();
    found.sort_by_key(Value::to_string);
    let all = signed(fraud("1.0.0"), &[0, 1, 100, 2, 3]);
    assert_eq!(json!(found), all["signatures"]);
    let digest = &there["digest"];
    for instance in consul.passing(FRAUD).await {
        assert_eq!(instance["Service"]["Meta"]["hermes_digest"], *digest);
    }

    // A renewed signature is added at the next start; an operator's removal of the body is undone.
    last.terminate().await;
    let renewed = serving(&consul, &application.url(), signed(fraud("1.0.0"), &[7]));
    let _renewed = renewed.set("application.instance", "copy-9").start().await;
    wait_until(WITHIN, "the renewed signature", async || {
        let there = body(&consul, "1.0.0").await;
        there["contract"]["signatures"].as_array().unwrap().len() == 6
    })
    .await;
}

#[tokio::test]
async fn another_body_under_a_used_version_is_not_registered() {
    let consul = Consul::start().await;
    let application = Application::start().await;
    let _first = serving(&consul, &application.url(), fraud("1.0.0"))
        .start()
        .await;
    let before = value(&consul, &body_key("1.0.0")).await;
    let mut other = fraud("1.0.0");
    other["description"] = "another one".into();
    let second = serving(&consul, &application.url(), other).set("application.instance", "other");
    let second = second.start_unready().await;
    wait_until(WITHIN, "the refusal", async || {
        second.log().contains("raise the version")
    })
    .await;
    assert_eq!(consul.passing(FRAUD).await.len(), 1);
    assert_eq!(value(&consul, &body_key("1.0.0")).await, before);
}
