//! Calls go by what each instance names, whatever the pointer says.

use super::*;
use crate::support::application::{Answer, Application};
use crate::support::client::client;
use crate::support::contract::{fraud_input, fraud_output};
use crate::support::pair::wrapped;
use crate::support::reply::Reply;
use crate::support::wait::{wait_for, wait_until};

async fn call(caller: &Sidecar, input: &Value, context: Value) -> Reply {
    let request = client().post(format!("{}/hermes/invoke", caller.outbound_url()));
    let request = request.header("content-type", "application/json");
    Reply::to(request.body(wrapped(FRAUD, input, context))).await
}

#[tokio::test]
async fn each_instance_is_checked_by_the_contract_it_names() {
    let consul = Consul::start().await;
    let desk = Desk::at(&consul.address());
    // Each application answers what its own contract alone allows.
    let (old_application, new_application) =
        (Application::start().await, Application::start().await);
    let with_reason = json!({"risk_score": 12, "risk_level": "none"});
    old_application.answer(RISK, Answer::json(&fraud_output()));
    new_application.answer(RISK, Answer::json(&with_reason));
    let mut new = fraud("1.0.1");
    new["output_schema"]["properties"]["risk_level"] = json!({"enum": ["none"]});
    new["input_schema"]["properties"]["amount_cny"]["minimum"] = json!(0);
    desk.publish(&fraud("1.0.0"), &[]).with(0);
    desk.publish(&new, &["--allow-breaking"]).with(0);
    let start = |application: &Application, contract: Value, name: &str| {
        let setup = serving(&consul, &application.url(), contract);
        setup.set("application.instance", name).start()
    };
    let (_old, _new) = tokio::join!(
        start(&old_application, fraud("1.0.0"), "old"),
        start(&new_application, new, "new")
    );
    consul.wait_passing(FRAUD, 2, WITHIN).await;
    let caller = Sidecar::named("shop")
        .consul(&consul.address())
        .start()
        .await;
    wait_until(WITHIN, "both to be known", async || {
        let task = format!("warm-{:x}", fastrand::u64(..));
        call(&caller, &fraud_input(), json!({"task_id": task})).await;
        old_application.calls(RISK) > 0 && new_application.calls(RISK) > 0
    })
    .await;

    // A pointer that lags, leads or says nothing changes no call.
    for pointer in ["1.0.0", "1.0.1", "1.0.9", "nonsense"] {
        let key = format!("/v1/kv/hermes/contracts/{FRAUD}/version");
        consul.put(&key, pointer).await;
        for refresh in [false, true] {
            let (mut levels, mut refused) = (Vec::new(), 0);
            for number in 0..24 {
                let context = json!({"task_id": format!("t-{number}"), "force_refresh": refresh});
                let reply = call(&caller, &fraud_input(), context.clone()).await;
                assert_eq!(reply.status, 200, "{pointer}: {reply:?}");
                let level = reply.json()["risk_level"].as_str().unwrap().to_owned();
                // Nothing is below the minimum of the new one.
                let mut input = fraud_input();
                input["amount_cny"] = json!(0);
                let reply = call(&caller, &input, context).await;
                let status = if level == "none" { 200 } else { 400 };
                assert_eq!(reply.status, status, "{pointer}, {level}: {reply:?}");
                refused += usize::from(status == 400);
                levels.push(level);
            }
            assert!(refused > 0 && refused < 24, "{pointer}: {levels:?}");
        }
    }
}

#[tokio::test]
async fn a_forced_refresh_reads_version_and_body_before_the_call() {
    let consul = Consul::start().await;
    let application = Application::start().await;
    application.answer(RISK, Answer::json(&fraud_output()));
    let _callee = serving(&consul, &application.url(), fraud("1.0.0"))
        .start()
        .await;
    consul.wait_passing(FRAUD, 1, WITHIN).await;
    let caller = || Sidecar::named("shop").consul(&consul.address()).start();
    let first = caller().await;
    let reads = async |caller: &Sidecar| {
        let labels = [("operation", "kv_read")];
        caller.metric("consul_requests_total", &labels).await
    };
    let refreshed = json!({"force_refresh": true});
    wait_until(WITHIN, "an answer", async || {
        call(&first, &fraud_input(), json!({})).await.status == 200
    })
    .await;
    let before = reads(&first).await;
    assert_eq!(call(&first, &fraud_input(), json!({})).await.status, 200);
    assert_eq!(reads(&first).await, before, "a plain call reads nothing");
    assert_eq!(
        call(&first, &fraud_input(), refreshed.clone()).await.status,
        200
    );
    assert_eq!(reads(&first).await, before + 2.0, "version and body");
    let by_header = client().post(format!("{}/agents/{FRAUD}{RISK}", first.outbound_url()));
    let by_header = by_header
        .header("content-type", "application/json")
        .header("hermes-force-refresh", "?1");
    assert_eq!(
        Reply::to(by_header.body(fraud_input().to_string()))
            .await
            .status,
        200
    );
    assert_eq!(reads(&first).await, before + 4.0);

    // Somebody changes the body by hand: who knows the good one goes on with it and says so.
    let good = value(&consul, &body_key("1.0.0")).await.unwrap();
    let key = format!("/v1/kv/{}", body_key("1.0.0"));
    consul
        .put(&key, good.replace("\"high\"", "\"dangerous\""))
        .await;
    for _ in 0..3 {
        assert_eq!(
            call(&first, &fraud_input(), refreshed.clone()).await.status,
            200
        );
    }
    let log = first.log();
    assert_eq!(log.matches("the copy in use stays").count(), 1, "{log}");
    let digest = serde_json::from_str::<Value>(&good).unwrap()["digest"].clone();
    let line = log
        .lines()
        .find(|line| line.contains("the copy in use stays"));
    assert!(line.unwrap().contains(digest.as_str().unwrap()), "{log}");

    // Who never saw it refuses, until the body is in order; then a refresh finds that at once.
    let second = caller().await;
    wait_for(WITHIN, "a refusal", async || {
        let reply = call(&second, &fraud_input(), json!({})).await;
        (reply.status == 503 && reply.json()["type"] == "urn:hermes:problem:untrusted-contract")
            .then_some(())
    })
    .await;
    consul.put(&key, good).await;
    assert_eq!(call(&second, &fraud_input(), refreshed).await.status, 200);
}
