//! What passes between others, and where they are.

use super::message::{GOOD, answer, json, post, request};
use super::peer::{Heard, Peer};
use super::wire::{Wire, ask};
use super::world::{INVOKE, Inside, Outside, at, register};
use crate::support::client::client;
use crate::support::wait::wait_until;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::time::Duration;
use tokio::time::Instant;

/// What the sidecar adds to every request that it passes on.
const ADDED: [&str; 6] = [
    "via",
    "traceparent",
    "hermes-task-id",
    "hermes-step-id",
    "hermes-agent",
    "hermes-application",
];

fn names(heard: &Heard) -> Vec<String> {
    let fields = heard
        .head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(':'));
    fields.map(|(name, _)| name.to_ascii_lowercase()).collect()
}

/// What a client library does for its user is done by nobody here: no redirect is followed, no
/// body unpacked, no cookie kept, no field of a library's own added.
pub async fn nothing_is_done_for_convenience() -> String {
    let world = Outside::start().await;
    let mut coder = GzEncoder::new(Vec::new(), Compression::best());
    coder.write_all(GOOD.as_bytes()).unwrap();
    let packed = coder.finish().unwrap();
    let mut coded = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        packed.len()
    )
    .into_bytes();
    coded.extend_from_slice(&packed);

    for status in [301, 302, 303, 307, 308] {
        let away = answer(status, "Location: http://169.254.169.254/x\r\n", "moved");
        for (path, sent) in [
            ("/open", request(&format!("GET {}", at("/open")), "", "")),
            (INVOKE, post(&at(INVOKE), "", GOOD)),
        ] {
            world.peer.answer(path, away.as_slice());
            let began = Instant::now();
            let reply = ask(&world.address, sent).await;
            assert_eq!(reply.status, status, "{reply:?}");
            assert_eq!(reply.header("location"), "http://169.254.169.254/x");
            assert_eq!(&reply.body[..], b"moved");
            assert!(began.elapsed() < Duration::from_secs(2));
            world.peer.only();
        }
    }
    world.peer.answer("/open", coded);
    let get = request(&format!("GET {}", at("/open")), "", "");
    let reply = ask(&world.address, &get).await;
    assert_eq!(reply.header("content-encoding"), "gzip");
    assert_eq!(reply.header("content-length"), packed.len().to_string());
    assert_eq!(&reply.body[..], &packed[..]);
    world.peer.only();

    world.peer.answer(
        "/open",
        answer(200, "Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n", ""),
    );
    let mut wire = Wire::to(&world.address).await;
    for _ in 0..2 {
        wire.send(&get).await;
        let reply = wire.answer().await;
        assert_eq!(reply.headers.get_all("set-cookie").iter().count(), 2);
    }
    for heard in world.peer.news() {
        assert!(heard.values("cookie").is_empty(), "{}", heard.head);
    }
    // Fields arrive as they were sent; between names no order means anything. The sidecar adds its own and no other.
    let own = ["accept", "cookie", "x-a", "x-b"];
    let fields = "X-B: 1\r\nAccept: */*;q=0.1\r\nX-A: \" two  words \"\r\nCookie: a=1; b=2\r\n";
    world.peer.answer(INVOKE, json("{}"));
    for sent in [
        request(&format!("GET {}", at("/open")), fields, ""),
        post(&at(INVOKE), fields, GOOD),
    ] {
        ask(&world.address, &sent).await;
        let heard = world.peer.only();
        let names = names(&heard);
        let mut kept: Vec<_> = names
            .iter()
            .filter(|name| own.contains(&name.as_str()))
            .collect();
        kept.sort();
        assert_eq!(kept, own, "{}", heard.head);
        assert_eq!(heard.value("x-a"), "\" two  words \"");
        for name in names {
            let known = own.contains(&name.as_str())
                || ADDED.contains(&name.as_str())
                || name.starts_with("hermes-")
                || [
                    "host",
                    "content-type",
                    "content-length",
                    "content-digest",
                    "idempotency-key",
                ]
                .contains(&name.as_str());
            assert!(known, "{name} in {}", heard.head);
        }
        for absent in ["user-agent", "accept-encoding", "referer"] {
            assert!(heard.values(absent).is_empty(), "{}", heard.head);
        }
    }
    "5 redirects, a gzip body and cookies pass as they are; no field of a library's own".to_owned()
}

/// A name is dialled at every address it has, and an address is written as the place asks.
pub async fn a_name_is_tried_at_every_address() -> String {
    let mut tried = 0;
    for bound in ["127.0.0.1:0", "[::1]:0"] {
        let application = Peer::on(bound).await;
        let port = application.address().port();
        let world = Inside::before(application, |setup| {
            setup.application(&format!("http://localhost:{port}"))
        })
        .await;
        let reply = ask(&world.address, post(INVOKE, "", GOOD)).await;
        assert_eq!(reply.status, 200, "{bound}: {reply:?}");
        let log = world.sidecar.log();
        assert!(
            log.contains(&format!("\"inbound\":\"{}\"", world.address)),
            "{log}"
        );
        tried += 1;
    }
    for (address, host) in [
        ("::1", "[::1]"),
        ("[::1]", "[::1]"),
        ("localhost", "localhost"),
    ] {
        let outside = Outside::start().await;
        let six = Peer::on("[::1]:0").await;
        six.answer("/open", answer(200, "", ""));
        let port = six.address().port();
        register(&outside.consul, address, port).await;
        let url = format!("http://{}{}", outside.address, at("/open"));
        let client = client();
        wait_until(Duration::from_secs(10), "new address", async || {
            client.get(&url).send().await.unwrap();
            !six.heard().is_empty()
        })
        .await;
        let heard = six.news().pop().unwrap();
        assert_eq!(heard.value("host"), format!("{host}:{port}"), "{address}");
        tried += 1;
    }
    // A zone means nothing on another machine: the instance cannot be reached, and that is said.
    let outside = Outside::start().await;
    register(&outside.consul, "fe80::1%lo", outside.peer.address().port()).await;
    let get = request(&format!("GET {}", at("/known")), "", "");
    wait_until(Duration::from_secs(10), "refusal", async || {
        ask(&outside.address, &get).await.status == 502
    })
    .await;
    ask(&outside.address, &get)
        .await
        .problem(502, "upstream-unreachable");
    format!("{tried} places reached by IPv4, IPv6 and name; a zone is unreachable and said so")
}
