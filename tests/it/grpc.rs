//! gRPC passes through two sidecars as it would without them: every kind of method, trailers,
//! status, deadline and cancellation.

use crate::support::consul::Consul;
use crate::support::peer::{self, Peer};
use crate::support::road::{AGENT, ROUTE, patient_contract, wait_known};
use crate::support::sidecar::Sidecar;
use crate::support::wait::wait_until;
use serde_json::{Value, json};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(10);

#[tokio::test]
async fn the_peers_themselves_do_what_is_expected_of_them() {
    let server = Peer::serve("grpc_server.py").await;
    let target = server.url().replace("http://", "");
    went_well(&peer::run("grpc_client.py", &[&target, "echo"]).await);
    heard_of_leaving(&server).await;
}

#[tokio::test]
async fn every_kind_of_method_passes_two_sidecars_as_it_came() {
    passes("same").await;
}

#[tokio::test]
async fn every_kind_of_method_passes_to_an_application_that_speaks_only_http2() {
    passes("h2c").await;
}

async fn passes(protocol: &str) {
    let (server, consul) = tokio::join!(Peer::serve("grpc_server.py"), Consul::start());
    let callee = Sidecar::named("echo")
        .application(&server.url())
        .set("application.protocol", protocol)
        // An address is known by its contract; no call of this test is made to it.
        .contract(patient_contract(), "POST", ROUTE)
        .set("inbound.passthrough", vec!["/"])
        .consul(&consul.address());
    let caller = Sidecar::named("talker").consul(&consul.address());
    let (callee, caller) = tokio::join!(callee.start(), caller.start());
    wait_known(&caller, 1).await;

    let target = caller.outbound_url().replace("http://", "");
    let authority = format!("{AGENT}.hermes");
    went_well(&peer::run("grpc_client.py", &[&target, &authority]).await);
    heard_of_leaving(&server).await;
    for sidecar in [callee, caller] {
        assert!(!sidecar.log().contains("panicked"), "{}", sidecar.log());
    }
}

fn went_well(told: &Value) {
    let refused = json!({
        "code": "FAILED_PRECONDITION", "details": "not today: é", "reason": "on purpose"
    });
    assert_eq!(
        told["unary"],
        json!({"same": true, "word_back": "hello", "bytes": [0, 1, 2, 3]})
    );
    assert_eq!(told["refused"], refused);
    assert_eq!(told["unknown"]["code"], "UNIMPLEMENTED", "{told}");
    assert_eq!(told["download"], json!({"count": 2000, "in_order": true}));
    assert_eq!(told["upload"], json!({"same": true}));
    assert_eq!(told["chat"], json!({"in_turn": true, "ended": true}));
    let late = json!({"first": "waiting", "code": "DEADLINE_EXCEEDED"});
    assert_eq!(told["late"], late);
    assert_eq!(told["left"], json!({"first": "waiting"}));
}

/// The call whose deadline passed and the one that was cancelled are heard of at the server.
async fn heard_of_leaving(server: &Peer) {
    wait_until(WITHIN, "word of both callers that left", async || {
        server.log().matches("a caller left").count() == 2
    })
    .await;
}
