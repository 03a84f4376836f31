//! A WebSocket passes through two sidecars: every frame, at once, to the close code at its end.

use crate::support::consul::Consul;
use crate::support::peer::{self, Peer};
use crate::support::road::{AGENT, ROUTE, patient_contract, wait_known};
use crate::support::sidecar::Sidecar;
use serde_json::{Value, json};

const FRAMES: &str = "10000";

#[tokio::test]
async fn the_peers_themselves_do_what_is_expected_of_them() {
    let server = Peer::serve("websocket_server.py").await;
    let url = format!("{}/echo", server.url().replace("http", "ws"));
    went_well(&peer::run("websocket_client.py", &[&url, FRAMES]).await);
}

#[tokio::test]
async fn ten_thousand_frames_pass_two_sidecars() {
    let (server, consul) = tokio::join!(Peer::serve("websocket_server.py"), Consul::start());
    let callee = Sidecar::named("echo")
        .application(&server.url())
        .set("application.health", "/healthz")
        .contract(patient_contract(), "POST", ROUTE)
        .set("inbound.passthrough", vec!["/echo"])
        .consul(&consul.address());
    let caller = Sidecar::named("talker").consul(&consul.address());
    let (_callee, caller) = tokio::join!(callee.start(), caller.start());
    wait_known(&caller, 1).await;

    let outbound = caller.outbound_url().replace("http", "ws");
    let url = format!("{outbound}/agents/{AGENT}/echo");
    went_well(&peer::run("websocket_client.py", &[&url, FRAMES]).await);
}

fn went_well(told: &Value) {
    let expected = json!({
        "in_turn": true,
        "frames": 10_000,
        "large": true,
        "ponged": true,
        "closed": {"code": 4000, "reason": "as asked"},
    });
    assert_eq!(told, &expected);
}
