//! Header fields: which cross, which are ours to set, and how many there may be.

use super::message::{GOOD, answer, json, post, request};
use super::peer::Heard;
use super::wire::{Wire, ask};
use super::world::{INVOKE, Inside, Outside, at};

/// Asserts that these fields came once each, with something in them.
fn has_ours(heard: &Heard) {
    for name in ["hermes-task-id", "hermes-call-id", "traceparent", "via"] {
        assert!(!heard.value(name).is_empty(), "{name} in {}", heard.head);
    }
}

/// What `Connection` names is taken off what was received, never off what we set.
///
/// The fields of one hop that do not cross are shown in `calls`.
pub async fn connection_takes_off_only_what_came_with_it() -> String {
    let world = Inside::start().await;
    let ours = "Hermes-Task-Id: forged\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\
                X-Forwarded-For: 192.0.2.1\r\nIdempotency-Key: forged\r\nX-Own: 1\r\n";
    let variants = [
        "Connection: close, Hermes-Task-Id, traceparent, X-Forwarded-For, idempotency-key, x-own\r\n",
        "Connection: HERMES-TASK-ID, TraceParent\r\nconnection: x-forwarded-FOR, Idempotency-Key,X-OWN\r\n",
        "Connection: via, hermes-call-id, hermes-task-id, traceparent, idempotency-key, x-own, x-forwarded-for\r\n",
    ];
    for named in variants {
        let reply = ask(
            &world.address,
            post(INVOKE, &format!("{named}{ours}"), GOOD),
        )
        .await;
        assert_eq!(reply.status, 200, "{named}: {reply:?}");
        let heard = world.application.only();
        has_ours(&heard);
        assert_ne!(heard.value("hermes-task-id"), "forged", "{}", heard.head);
        assert_ne!(heard.value("idempotency-key"), "forged");
        assert!(
            !heard
                .value("traceparent")
                .contains("0af7651916cd43dd8448eb211c80319c")
        );
        assert!(!heard.value("x-forwarded-for").contains("192.0.2.1"));
        for gone in ["connection", "x-own"] {
            assert!(heard.values(gone).is_empty(), "{gone} in {}", heard.head);
        }
    }
    // The message that goes on would have no media type, so it is not taken for JSON.
    for named in [
        "content-type",
        "close, Content-Type",
        "x-a\r\nConnection: CONTENT-TYPE",
    ] {
        let named = format!("Connection: {named}\r\n");
        let reply = ask(&world.address, post(INVOKE, &named, GOOD)).await;
        reply.problem(415, "unsupported-media-type");
    }
    // What frames a message and where it goes cannot be taken off it.
    let named = "Connection: content-length, host\r\n";
    for target in [INVOKE, "/open"] {
        ask(&world.address, post(target, named, GOOD)).await;
        let heard = world.application.only();
        assert_eq!(heard.body, GOOD.as_bytes(), "{target}");
        assert_eq!(heard.value("host"), "localhost", "{target}");
    }
    let said = "Content-Type: application/json\r\nX-Own: 1\r\n\
                Connection: hermes-task-id, via, content-digest, hermes-state\r\nconnection: X-OWN\r\n";
    world.application.answer(INVOKE, answer(200, said, "{}"));
    let reply = ask(&world.address, post(INVOKE, "", GOOD)).await;
    for name in ["hermes-task-id", "via", "content-digest", "hermes-state"] {
        assert!(!reply.header(name).is_empty(), "{name}: {reply:?}");
    }
    assert_eq!(reply.header("x-own"), "");
    format!(
        "{} requests and an answer that name our fields lose their own alone; a named media type is 415",
        variants.len()
    )
}

/// The context has one writer: a believed peer's sound values are kept, once each; other
/// peers' are replaced, other spellings dropped, malformed ones refused and counted.
///
/// Each malformed field is shown in `bad_input`, a peer that is not believed in `context`.
pub async fn a_forged_context_is_replaced_or_refused() -> String {
    let long = "x".repeat(10_000);
    let world = Inside::start().await;
    let malformed = [
        "Hermes-Task-Id: a\r\nHermes-Task-Id: a".to_owned(),
        "Hermes-Task-Id: a\r\nhermes-task-id: b".to_owned(),
        "Hermes-Task-Id: a, b".to_owned(),
        "Hermes-Task-Id:".to_owned(),
        format!("Hermes-Task-Id: {long}"),
        "Hermes-Sla-Level: P9".to_owned(),
    ];
    for field in &malformed {
        let reply = ask(&world.address, post(INVOKE, &format!("{field}\r\n"), GOOD)).await;
        reply.problem(400, "bad-context");
    }
    assert_eq!(world.refused("bad-context").await, malformed.len() as f64);
    assert!(world.application.news().is_empty());

    let alike = "hermes_task_id: forged\r\nHermes_Task_Id: forged\r\nHERMES-TASK_ID: forged\r\n\
                 Hermes.Task.Id: forged\r\n";
    let kept = format!("Hermes-Task-Id: t-1\r\nHermes-Sla-Level: P0\r\n{alike}");
    ask(&world.address, post(INVOKE, &kept, GOOD)).await;
    let heard = world.application.only();
    assert_eq!(heard.value("hermes-task-id"), "t-1");
    assert_eq!(heard.value("hermes-sla-level"), "P0");
    assert!(!heard.head.contains("forged"), "{}", heard.head);

    let strict = Inside::with(|setup| setup.set("inbound.trust_context", vec!["10.0.0.0/8"]));
    let strict = strict.await;
    let forged = format!(
        "Hermes-Task-Id: forged\r\nHermes-Sla-Level: P0\r\nHermes-Requester: \"forged\"\r\n\
         Hermes-Application: forged\r\nHermes-Sandbox: ?1\r\n{alike}"
    );
    for field in malformed.iter().chain([&forged]) {
        let field = field.trim_end();
        let reply = ask(&strict.address, post(INVOKE, &format!("{field}\r\n"), GOOD)).await;
        assert_eq!(reply.status, 200, "{field}: {reply:?}");
        let heard = strict.application.only();
        has_ours(&heard);
        assert!(!heard.head.contains("forged"), "{}", heard.head);
        assert!(!heard.values("hermes-sla-level").contains(&"P0".to_owned()));
    }
    format!(
        "{} malformed contexts refused and counted; 4 look-alike spellings and all of a stranger's dropped",
        malformed.len()
    )
}

/// A head that is too large is named as such, before it is anybody else's problem.
///
/// Up to twice the limits the refusal is a problem body; past the parser's own bounds it is the
/// parser's, without one.
pub async fn heads_that_are_too_large_are_refused_by_name() -> String {
    let world = Inside::start().await;
    world.application.answer("/open", answer(200, "", ""));
    let many = |count: usize| {
        (0..count)
            .map(|n| format!("x-{n}: y\r\n"))
            .collect::<String>()
    };
    let wide = |bytes: usize| format!("x: {}\r\n", "y".repeat(bytes));
    // `post` brings Host, Content-Type and Content-Length.
    let refused = [
        (many(98), "limits.max_headers"),
        (many(150), "limits.max_headers"),
        (wide(70_000), "limits.max_header_bytes"),
        (wide(30_000).repeat(3), "limits.max_header_bytes"),
    ];
    for target in [INVOKE, "/open"] {
        for (fields, limit) in &refused {
            let reply = ask(&world.address, post(target, fields, GOOD)).await;
            let problem = reply.problem(431, "headers-too-large");
            assert!(
                problem["detail"].as_str().unwrap().contains(limit),
                "{problem}"
            );
        }
        for length in [17_000, 20 * 1024] {
            let long = format!("{target}?{}", "q".repeat(length));
            let reply = ask(&world.address, post(&long, "", GOOD)).await;
            reply.problem(414, "uri-too-long");
        }
        for fields in [wide(500_000), wide(5_000).repeat(100), many(400)] {
            assert_eq!(
                ask(&world.address, post(target, &fields, GOOD))
                    .await
                    .status,
                431
            );
        }
    }
    assert_eq!(world.refused("headers-too-large").await, 8.0);
    assert_eq!(world.refused("uri-too-long").await, 4.0);
    assert!(world.application.news().is_empty());

    // What we add counts, too: the next to read the head has the same right to limits.
    for target in [INVOKE, "/open"] {
        for fields in [many(97), wide(65_400)] {
            let reply = ask(&world.address, post(target, &fields, GOOD)).await;
            let problem = reply.problem(431, "headers-too-large");
            assert!(
                problem["detail"].as_str().unwrap().contains("adds"),
                "{problem}"
            );
        }
    }
    assert!(world.application.news().is_empty());
    for target in [INVOKE, "/open"] {
        let reply = ask(&world.address, post(target, &many(80), GOOD)).await;
        assert_eq!(reply.status, 200, "{target}: {reply:?}");
        assert_eq!(world.application.only().values("x-79"), ["y"]);
    }

    let outside = Outside::start().await;
    for (address, peer, prefix) in [
        (&world.address, &world.application, String::new()),
        (&outside.address, &outside.peer, at("")),
    ] {
        for (path, method) in [("/open", "GET"), (INVOKE, "POST")] {
            let typed = format!("Content-Type: application/json\r\n{}", many(99));
            for fields in [
                typed.clone(),
                typed + &many(400),
                wide(70_000),
                wide(600_000),
            ] {
                peer.answer(path, answer(200, &fields, "{}"));
                let target = format!("{prefix}{path}");
                let sent = match method {
                    "GET" => request(&format!("GET {target}"), "", ""),
                    _ => post(&target, "", GOOD),
                };
                let problem = ask(address, sent).await.problem(502, "reply-too-large");
                let detail = problem["detail"].as_str().unwrap();
                assert!(detail.contains("limits.max_header"), "{problem}");
            }
            peer.answer(path, json("{}"));
        }
    }
    assert_eq!(world.refused("reply-too-large").await, 8.0);
    assert_eq!(outside.refused("reply-too-large").await, 8.0);
    "431 and 414 with problem bodies, with what we add counted; answers 502 naming the limit"
        .to_owned()
}

/// What a peer says of where a request came from is kept for reading and decides nothing; the
/// address that was seen stands last.
pub async fn forwarded_fields_end_with_what_was_seen() -> String {
    let world = Inside::with(|setup| setup.set("inbound.trust_context", vec!["10.0.0.0/8"])).await;
    world.application.answer("/open", answer(200, "", ""));
    let long = vec!["192.0.2.1"; 450].join(", ");
    let variants = [
        (String::new(), "127.0.0.1"),
        (
            "X-Forwarded-For: 127.0.0.1, 10.0.0.9\r\n".to_owned(),
            "127.0.0.1, 10.0.0.9, 127.0.0.1",
        ),
        (
            "X-Forwarded-For: 10.0.0.9\r\nx-forwarded-for: 10.0.0.8\r\n".to_owned(),
            "10.0.0.9, 10.0.0.8, 127.0.0.1",
        ),
        (
            "X-Forwarded-For: [2001:db8::1]:443\r\n".to_owned(),
            "[2001:db8::1]:443, 127.0.0.1",
        ),
        (
            "X-Forwarded-For: unknown\r\n".to_owned(),
            "unknown, 127.0.0.1",
        ),
        ("X-Forwarded-For: \r\n".to_owned(), "127.0.0.1"),
        (
            format!("X-Forwarded-For: {long}\r\n"),
            &*format!("{long}, 127.0.0.1"),
        ),
    ]
    .map(|(fields, seen)| (fields, seen.to_owned()));
    for target in [INVOKE, "/open"] {
        for (fields, seen) in &variants {
            // A context that is believed from 10.0.0.0/8 is not believed for a name in a field.
            let fields = format!("{fields}X-Forwarded-Proto: https\r\nHermes-Task-Id: forged\r\n");
            let reply = ask(&world.address, post(target, &fields, GOOD)).await;
            assert_eq!(reply.status, 200, "{fields:.200}: {reply:?}");
            let heard = world.application.only();
            assert_eq!(heard.value("x-forwarded-for"), *seen, "{target}");
            assert_eq!(heard.value("x-forwarded-proto"), "http", "{target}");
            assert!(!heard.head.contains("forged"), "{}", heard.head);
        }
        let forwarded = "Forwarded: for=_x;proto=https\r\n";
        ask(&world.address, post(target, forwarded, GOOD)).await;
        let heard = world.application.only();
        assert_eq!(
            heard.value("forwarded"),
            "for=_x;proto=https, for=127.0.0.1;proto=http"
        );
    }
    let mut wire = Wire::to(&world.address).await;
    wire.send(post(INVOKE, "X-Forwarded-For: \x01\r\n", GOOD))
        .await;
    assert_eq!(wire.answer().await.status, 400);
    format!(
        "{} lists and Forwarded kept, the address seen appended, no decision on them",
        variants.len()
    )
}
