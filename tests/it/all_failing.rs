//! When nobody can serve, retries must not make it worse.

use crate::support::application::Answer;
use crate::support::consul::Consul;
use crate::support::contract;
use crate::support::fleet::{Caller, Member};
use crate::support::load::Load;
use crate::support::pair::{FRAUD, RISK};
use serde_json::json;
use std::time::Duration;

const NAMES: [&str; 3] = ["fraud-1", "fraud-2", "fraud-3"];

#[tokio::test]
async fn failing_instances_get_little_more_than_what_is_offered() {
    offered_to_failing(100, Duration::from_secs(5)).await;
}

/// Makes `rate` calls a second to three instances of which none can serve, and counts what they get.
pub async fn offered_to_failing(rate: u32, length: Duration) {
    let consul = Consul::start().await;
    let mut body = contract::fraud_detection();
    body["constraints"] = json!({"timeout_ms": 2_000, "max_concurrent": 1000});
    // Otherwise there would be no retry: the work was begun.
    body["idempotent"] = true.into();
    let mut members = Vec::new();
    for name in NAMES {
        let member = Member::start(&consul, name, body.clone(), |setup| setup).await;
        member
            .application
            .answer(RISK, Answer::bytes(500, "text/plain", "no"));
        members.push(member);
    }
    let caller = Caller::start(&consul, "payment", |setup| setup).await;
    caller.knows(FRAUD, NAMES.len()).await;
    let urls = [caller.sidecar.outbound_url()];
    let load = Load::start(rate, &urls, FRAUD, &contract::fraud_input());
    tokio::time::sleep(length).await;
    let record = load.stop().await;

    let received: usize = members
        .iter()
        .map(|member| member.application.calls(RISK))
        .sum();
    let offered = record.0.len();
    let factor = received as f64 / offered as f64;
    eprintln!("{offered} calls offered, {received} requests received: {factor:.3} times");
    assert_eq!(record.failed().len(), offered, "somebody served");
    assert!(factor <= 1.2, "{received} of {offered}");
    // Otherwise nothing was tried again, and nothing was shown.
    assert!(received > offered, "{received} of {offered}");
}
