//! Requests that ask for another protocol.

use super::message::{answer, request};
use super::wire::Wire;
use super::world::{INVOKE, Inside};

/// What follows a request to switch is read as requests until the switch is granted.
pub async fn nothing_is_tunnelled_before_the_switch_is_granted() -> String {
    let world = Inside::start().await;
    world
        .application
        .answer("/open", answer(200, "", "refused to switch"));
    let websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAA\r\nSec-WebSocket-Version: 13\r\n";
    let h2c = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n";
    let both = "Connection: upgrade\r\nUpgrade: h2c, websocket\r\n";
    for fields in [websocket, h2c, both] {
        let mut wire = Wire::to(&world.address).await;
        let forbidden = request(&format!("GET {INVOKE}/"), "", "");
        wire.send(request("GET /open", fields, "") + &forbidden)
            .await;
        let reply = wire.answer().await;
        assert_eq!(
            (reply.status, &reply.body[..]),
            (200, &b"refused to switch"[..])
        );
        // The second is a request like any other: refused here, unseen there.
        wire.answer().await.problem(404, "not-found");
        let heard = world.application.only();
        if fields != websocket {
            for gone in ["upgrade", "http2-settings", "connection"] {
                assert!(heard.values(gone).is_empty(), "{gone} in {}", heard.head);
            }
        }
    }
    "websocket refused, h2c not forwarded; the bytes behind were read as a request".to_owned()
}
