//! Requests that ask for another protocol.

use super::message::{answer, request, values};
use super::peer::Step;
use super::wire::Wire;
use super::world::{INVOKE, Inside};
use std::time::Duration;

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
    // Asked for and granted with the right name, it is a tunnel, from the 101 on.
    let steps = |said: &str| {
        let said = format!("HTTP/1.1 101 Switching Protocols\r\n{said}\r\n");
        let quiet = Duration::from_millis(200);
        vec![
            Step::After(quiet),
            Step::Send(said.into_bytes()),
            Step::Echo,
        ]
    };
    let granted = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    world.application.does("/switch", steps(granted));
    let mut wire = Wire::to(&world.address).await;
    wire.send(request("GET /switch", websocket, "") + "first bytes")
        .await;
    let head = wire.head().await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert_eq!(values(&head, "upgrade"), ["websocket"]);
    wire.until(b"first bytes").await;
    assert_eq!(world.application.early(), b"", "bytes before the 101");
    wire.send("more").await;
    wire.until(b"more").await;
    drop(wire);

    // A switch that nobody asked for, or to something else, is an answer gone wrong.
    for (fields, said) in [
        (websocket, "Connection: Upgrade\r\nUpgrade: other\r\n"),
        (websocket, "Connection: Upgrade\r\n"),
        ("", granted),
        (h2c, "Connection: Upgrade\r\nUpgrade: h2c\r\n"),
    ] {
        world.application.does("/switch", steps(said));
        let mut wire = Wire::to(&world.address).await;
        wire.send(request("GET /switch", fields, "")).await;
        wire.answer().await.problem(502, "upstream-reset");
    }
    assert_eq!(world.application.early(), b"");
    "a granted switch is a tunnel from its 101 on, other 101s are 502; websocket refused, h2c not forwarded; the bytes behind were read as a request".to_owned()
}
