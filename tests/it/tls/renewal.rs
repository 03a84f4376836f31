//! Certificates and roots that change while calls go on.

use super::house::{House, client_of, leaf};
use crate::support::authority::{Authority, Order, replace};
use crate::support::client::{client, secure_client};
use crate::support::contract::fraud_input;
use crate::support::load::Load;
use crate::support::reply::Reply;
use crate::support::road::AGENT;
use crate::support::wait::wait_until;
use serde_json::json;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep_until};

const WITHIN: Duration = Duration::from_secs(20);

#[tokio::test]
async fn certificates_are_renewed_under_load() {
    renewed_under_load(50, Duration::from_secs(6)).await;
}

/// Renews every certificate each two seconds; no call may fail, no report be lost.
pub async fn renewed_under_load(rate: u32, length: Duration) {
    let house = House::start().await;
    let urls = [house.caller.outbound_url()];
    let load = Load::start(rate, &urls, AGENT, &fraud_input());
    load.more(20).await;
    let began = Instant::now();
    let mut times = 0;
    while began.elapsed() < length {
        for (name, files) in house.all_files() {
            files.renew(&leaf(&house.ca, name));
        }
        times += 1;
        // The pace is what is tested, whenever the new ones are taken.
        sleep_until(began + times * Duration::from_secs(2)).await;
    }
    house.taken("own", times as usize / 2).await;
    load.more(20).await;
    let record = load.stop().await;
    let failed = record.failed();
    assert!(failed.is_empty(), "{failed:#?}\n{}", house.warnings());
    for task in record.tasks() {
        house.collector.wait_task(&task, "completed", WITHIN).await;
    }
}

#[tokio::test]
async fn roots_are_exchanged_without_a_failed_call() {
    let house = House::start().await;
    let new = Authority::new("new");
    let urls = [house.caller.outbound_url()];
    let load = Load::start(20, &urls, AGENT, &fraud_input());
    let old = client_of(&house.ca, "shop");
    let health = format!("{}/hermes/health", house.callee.secure_inbound_url());
    assert!(old.get(&health).send().await.is_ok());

    for (_, files) in house.all_files() {
        replace(&files.ca, &(house.ca.pem() + &new.pem()));
    }
    house.taken("ca", 1).await;
    let fresh = || {
        secure_client(&new, Some(&new.spiffe("shop")))
            .build()
            .unwrap()
    };
    for (name, files) in house.all_files() {
        files.renew(&leaf(&new, name));
    }
    house.taken("own", 1).await;
    assert!(fresh().get(&health).send().await.is_ok());
    for (_, files) in house.all_files() {
        replace(&files.ca, &new.pem());
    }
    house.taken("ca", 2).await;
    load.more(20).await;
    let record = load.stop().await;
    let failed = record.failed();
    assert!(failed.is_empty(), "{failed:#?}\n{}", house.warnings());

    // Whoever still shows a certificate of the old root is refused from the next handshake on.
    let trusts_new = secure_client(&new, Some(&house.ca.spiffe("shop"))).build();
    assert!(trusts_new.unwrap().get(&health).send().await.is_err());
    assert!(fresh().get(&health).send().await.is_ok());
}

#[tokio::test]
async fn an_expired_certificate_ends_the_connections_that_were_opened_with_it() {
    let house = House::start().await;
    let health = format!("{}/hermes/health", house.callee.secure_inbound_url());
    let now = SystemTime::now();
    let order = || Order::spiffe("shop").valid(now, now + Duration::from_secs(5));
    let shop = || secure_client(&house.ca, Some(&house.ca.issue(order())));
    for shop in [shop(), shop().http1_only()] {
        let shop = shop.build().unwrap();
        assert!(shop.get(&health).send().await.is_ok());
        // Never idle, and still it has to show a certificate anew.
        let refused = async || {
            // A session that is resumed shows no certificate anew and is told so.
            let answered = shop.get(&health).send().await;
            !answered.is_ok_and(|reply| reply.status() == 200)
        };
        wait_until(WITHIN, "refusal of an expired certificate", refused).await;
    }
}

#[tokio::test]
async fn a_broken_renewal_is_counted_and_changes_nothing() {
    let house = House::start().await;
    let call = async || {
        let url = format!("{}/hermes/invoke", house.caller.outbound_url());
        let body = json!({"agent": AGENT, "input": fraud_input()});
        Reply::to(client().post(url).json(&body)).await.status
    };
    let refused = async |certificate: &str| {
        let labels = [("certificate", certificate), ("result", "refused")];
        house.callee.metric("tls_reloads_total", &labels).await
    };
    let files = &house.files.callee;
    // The key first, the certificate later.
    let renewed = leaf(&house.ca, "fraud");
    replace(&files.key, &renewed.key);
    wait_until(WITHIN, "count of the mismatch", async || {
        refused("own").await == 1.0
    })
    .await;
    assert_eq!(call().await, 200);
    replace(&files.cert, &renewed.chain);
    wait_until(WITHIN, "use of the pair", async || {
        let labels = [("certificate", "own"), ("result", "taken")];
        house.callee.metric("tls_reloads_total", &labels).await == 1.0
    })
    .await;
    assert_eq!(call().await, 200);
    replace(&files.ca, "");
    wait_until(WITHIN, "count of the empty bundle", async || {
        refused("ca").await == 1.0
    })
    .await;
    assert_eq!(call().await, 200);
    assert_eq!(refused("own").await, 1.0);
}
