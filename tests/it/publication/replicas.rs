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
        let contract = signed(fraud("1.0.0"), &[20, number]);
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
    let mut all = signatures(&[0, 1, 2, 3, 20]);
    all.sort_by_key(Value::to_string);
    assert_eq!(found, all);
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

/// Consul forgets a registration, and the sidecar makes its entries whole again.
#[tokio::test]
async fn what_an_operator_did_outlives_a_registration_made_anew() {
    let consul = Consul::start().await;
    let desk = Desk::at(&consul.address());
    let application = Application::start().await;
    desk.publish(&fraud("1.0.0"), &[]).with(0);
    desk.publish(&stricter("1.0.1"), &["--allow-breaking"])
        .with(0);
    let mut callee = serving(&consul, &application.url(), stricter("1.0.1"))
        .set("application.instance", "it")
        .start()
        .await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    let mut times = 0;
    let mut registered_anew = async || {
        let path = format!("/v1/agent/service/deregister/{FRAUD}-it");
        consul.put(&path, "").await;
        times += 1;
        wait_until(WITHIN, "the registration", async || {
            let again = callee.log().matches("\"again\":true").count();
            again == times && consul.passing(FRAUD).await.len() == 1
        })
        .await;
    };

    // The lowered version stays; the index had followed.
    desk.publish(&fraud("1.0.0"), &["--current", "1.0.0"])
        .with(0);
    registered_anew().await;
    assert_eq!(pointer(&consul).await.unwrap(), "1.0.0");
    assert_eq!(index(&consul).await["version"], "1.0.0");

    // A body that is gone comes back, accepted as it once was, and is the highest again.
    let before = body(&consul, "1.0.1").await;
    let key = format!("/v1/kv/{}", body_key("1.0.1"));
    let url = format!("{}{key}", consul.address());
    crate::support::client::client()
        .delete(url)
        .send()
        .await
        .unwrap();
    assert_eq!(value(&consul, &body_key("1.0.1")).await, None);
    registered_anew().await;
    assert_eq!(body(&consul, "1.0.1").await["contract"], before["contract"]);
    assert_eq!(pointer(&consul).await.unwrap(), "1.0.1");

    // One that was changed keeps nobody from calling who knows the good one, and is told of.
    let text = value(&consul, &body_key("1.0.1")).await.unwrap();
    consul
        .put(&key, text.replace("\"high\"", "\"dangerous\""))
        .await;
    registered_anew().await;
    let contracts = format!("{}/contracts", callee.admin_url());
    wait_until(WITHIN, "the fault in /contracts", async || {
        let told = crate::support::client::get_text(&contracts).await;
        told.contains("has changed its content") && told.contains("\"registered\":true")
    })
    .await;
    // A start is another matter: what is published is not what it would serve.
    callee.terminate().await;
    let fresh = serving(&consul, &application.url(), stricter("1.0.1"));
    let fresh = fresh.start_unready().await;
    wait_until(WITHIN, "the refusal", async || {
        fresh
            .log()
            .contains("delete the key, and the contract is published anew")
    })
    .await;
    assert_eq!(consul.passing(FRAUD).await, [] as [Value; 0]);
}
