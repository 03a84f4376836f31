//! Where a request goes: one authority, one spelling of its path.

use super::frames::{Frames, Outcome};
use super::message::{GOOD, answer, post, request};
use super::wire::{Wire, ask};
use super::world::{INVOKE, Inside, Outside, at};

/// Routing, access and forwarding go by one authority: the target's where it names one.
pub async fn a_request_has_one_authority() -> String {
    let world = Outside::start().await;
    world.peer.answer("/open", answer(200, "", ""));
    let own = at("/open");
    let get = |target: &str, hosts: &str| format!("GET {target} HTTP/1.1\r\n{hosts}\r\n");
    let malformed = [
        "",
        "Host: localhost\r\nHost: localhost\r\n",
        "Host: a, b\r\n",
        "Host: a@b\r\n",
        "Host:\r\n",
        "Host: localhost/x\r\n",
        "Host: local host\r\n",
        "Host: localhost?\r\n",
    ];
    for hosts in malformed {
        let reply = ask(&world.address, get(&own, hosts)).await;
        assert_eq!(reply.status, 400, "{hosts:?}: {reply:?}");
    }
    let foreign = [
        get("http://b.example/x", "Host: a.example\r\n"),
        get("http://b.example/x", "Host: localhost\r\n"),
        get(&format!("http://b.example{own}"), "Host: localhost\r\n"),
        get(&own, "Host: b.example\r\n"),
        "CONNECT internal:22 HTTP/1.1\r\nHost: internal:22\r\n\r\n".to_owned(),
        "CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
    ];
    for sent in &foreign {
        let reply = ask(&world.address, sent).await;
        reply.problem(403, "host-refused");
    }
    // Who an authority belongs to may not be hidden behind a name before an @.
    let hidden = get(
        &format!("http://localhost@b.example{own}"),
        "Host: localhost\r\n",
    );
    ask(&world.address, hidden)
        .await
        .problem(400, "bad-request");
    let everywhere = ask(&world.address, request("OPTIONS *", "", "")).await;
    assert!(matches!(everywhere.status, 404 | 405), "{everywhere:?}");
    assert!(world.peer.news().is_empty());

    // The target wins over a Host that says another, and one authority goes on: the instance's.
    let local = get(&format!("http://localhost{own}"), "Host: b.example\r\n");
    assert_eq!(ask(&world.address, local).await.status, 200);
    let heard = world.peer.only();
    assert_eq!(heard.line(), ("GET", "/open"));
    assert_eq!(heard.value("host"), world.peer.address().to_string());

    // In front of an application as well, where the application is told the winner.
    let inside = Inside::start().await;
    inside.application.answer("/open", answer(200, "", ""));
    for hosts in malformed {
        assert_eq!(
            ask(&inside.address, get("/open", hosts)).await.status,
            400,
            "{hosts:?}"
        );
    }
    let absolute = get("http://b.example/open", "Host: a.example\r\n");
    assert_eq!(ask(&inside.address, absolute).await.status, 200);
    let heard = inside.application.only();
    assert_eq!(
        (heard.line(), &*heard.value("host")),
        (("GET", "/open"), "b.example")
    );
    let tunnel = "CONNECT internal:22 HTTP/1.1\r\nHost: internal:22\r\n\r\n";
    ask(&inside.address, tunnel)
        .await
        .problem(403, "host-refused");
    by_http2(&world, &inside).await;
    format!(
        "{} malformed hosts 400, {} foreign or tunnelled 403, a target's authority wins",
        malformed.len(),
        foreign.len()
    )
}

/// With HTTP/2 the authority wins over a `host` beside it, or the request is refused.
async fn by_http2(world: &Outside, inside: &Inside) {
    for (authority, host, status) in [
        ("b.example", "localhost", 400),
        ("b.example", "", 403),
        ("", "b.example", 403),
        ("", "", 400),
        ("localhost", "", 200),
        ("", "localhost", 200),
    ] {
        let answered = order_by_http2(&world.address, &at(INVOKE), authority, host).await;
        assert_eq!(answered, status, "{authority:?} {host:?}");
        assert_eq!(world.peer.news().len(), usize::from(status == 200));
    }
    let instance = world.peer.address().to_string();
    for (address, peer, path, authority, host, told) in [
        (
            &world.address,
            &world.peer,
            &*at(INVOKE),
            "localhost",
            "b.example",
            &*instance,
        ),
        (
            &inside.address,
            &inside.application,
            INVOKE,
            "b.example",
            "a.example",
            "b.example",
        ),
    ] {
        let answered = order_by_http2(address, path, authority, host).await;
        assert!(matches!(answered, 200 | 400), "{answered}");
        for heard in peer.news() {
            assert_eq!(heard.value("host"), told, "{}", heard.head);
        }
    }
}

/// Calls the contract by HTTP/2; what is empty is left out. A stream error counts as 400.
async fn order_by_http2(address: &str, path: &str, authority: &str, host: &str) -> u16 {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("host", host),
        ("content-type", "application/json"),
    ];
    let given = fields.into_iter().filter(|(_, value)| !value.is_empty());
    let mut frames = Frames::to(address).await;
    frames
        .ask(1, &given.collect::<Vec<_>>(), GOOD.as_bytes())
        .await;
    match frames.outcome(1).await {
        Outcome::Answer { status, .. } => status,
        Outcome::Reset(_) | Outcome::GoneAway(_) => 400,
        Outcome::Closed => panic!("closed without a word"),
    }
}

/// A path is decided on and forwarded in the one spelling it came in, or refused.
///
/// A `#` is no part of a request target. The parser leaves it and what follows out before
/// anybody reads the target, so decision and forwarding still see one string, the shorter one;
/// it is neither refused nor forwarded.
pub async fn a_path_is_forwarded_as_it_came_or_refused() -> String {
    let (inside, outside) = tokio::join!(Inside::start(), Outside::start());
    let refused = [
        "/v1/%2e%2e/admin",
        "/v1/%2E./admin",
        "/v1/./invoke",
        "/v1/../invoke",
        "/v1/%zz",
        "/v1/%",
        "/v1/%0",
        "/v1/%00",
        "/v1/..%2fadmin",
        "/v1/..%5cadmin",
        "/v1/..;x/admin",
        "/v1\\..\\admin",
    ];
    let kept = [
        "//evil.example/invoke",
        "///evil.example/x",
        "/v1/a%2Fb",
        "/v1/a%2fb",
        "/v1/a\\b",
        "/v1/;a=b/c",
        "/v1/a:b@c",
        "/v1/é/日本",
        "/v1/%C3%A9",
        "/v1/x?u=http://y//z&q=a+b%20c&q=",
        "/v1/x?",
        "/v1/x??",
        "/v1/x?q=%zz",
        "/v1/x?/../y",
        "/v1/x/",
    ];
    for (address, peer, prefix) in [
        (&inside.address, &inside.application, String::new()),
        (&outside.address, &outside.peer, at("")),
    ] {
        for path in refused {
            let mut wire = Wire::to(address).await;
            wire.send(post(&format!("{prefix}{path}"), "", GOOD)).await;
            wire.answer().await.problem(400, "bad-request");
            assert_eq!(wire.end().await, b"", "{path}");
            assert!(peer.news().is_empty(), "{path}");
        }
        for path in kept {
            let reply = ask(address, post(&format!("{prefix}{path}"), "", GOOD)).await;
            assert_eq!(reply.status, 404, "{path}: {reply:?}");
            assert_eq!(
                reply.header("content-type"),
                "",
                "the application's own 404: {reply:?}"
            );
            assert_eq!(peer.only().line(), ("POST", path));
        }
        let reply = ask(address, post(&format!("{prefix}/v1/a#b"), "", GOOD)).await;
        assert_eq!(reply.status, 404, "{reply:?}");
        assert_eq!(peer.only().line(), ("POST", "/v1/a"));
        // A contract is reached by its own spelling alone.
        for path in [
            "/invoke/",
            "//invoke",
            "/%69nvoke",
            "/INVOKE",
            "/invoke;a",
            "/x/..%2finvoke",
        ] {
            let reply = ask(address, post(&format!("{prefix}{path}"), "", "no json")).await;
            if prefix.is_empty() {
                assert!(matches!(reply.status, 404 | 400), "{path}: {reply:?}");
                assert!(peer.news().is_empty(), "{path}");
            }
            peer.news();
        }
        let query = format!("{INVOKE}?u=http://y//z&q=a+b%20c&q=");
        assert_eq!(
            ask(address, post(&format!("{prefix}{query}"), "", GOOD))
                .await
                .status,
            200
        );
        assert_eq!(peer.only().line(), ("POST", &*query));
    }
    format!(
        "{} ambiguous paths 400, {} forwarded byte for byte, in and out",
        refused.len(),
        kept.len()
    )
}
