//! Where one message ends and the next begins.

use super::message::{GOOD, answer, chunked, post, request};
use super::peer::Peer;
use super::wire::{Wire, ask};
use super::world::{INVOKE, Inside, Outside, at};

/// Sends a request that hides another in its body, in every variant, to the contract and to
/// what is passed through. The application may see the first, with one framing; never the second.
pub async fn a_length_beside_a_transfer_coding_never_splits_a_request() -> String {
    let world = Inside::start().await;
    let body = String::from_utf8(chunked(GOOD.as_bytes(), 64)).unwrap();
    let smuggled = request("GET /probe", "", "");
    let variants = [
        (
            "1.1",
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            true,
        ),
        (
            "1.1",
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
            true,
        ),
        ("1.1", "Transfer-Encoding: gzip, chunked\r\n", false),
        ("1.1", "Transfer-Encoding: chunked, identity\r\n", false),
        (
            "1.1",
            "Transfer-Encoding : chunked\r\nContent-Length: 4\r\n",
            false,
        ),
        (
            "1.1",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            false,
        ),
        (
            "1.1",
            "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
            false,
        ),
        (
            "1.1",
            "Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n",
            false,
        ),
        ("1.0", "Transfer-Encoding: chunked\r\n", false),
        (
            "1.0",
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
            false,
        ),
    ];
    for target in [INVOKE, "/open"] {
        for (version, fields, may_pass) in variants {
            let mut wire = Wire::to(&world.address).await;
            let head = format!(
                "POST {target} HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n{fields}\r\n"
            );
            wire.send(format!("{head}{body}{smuggled}")).await;
            let reply = wire.answer().await;
            // Whatever was made of it, nothing after it is read on this connection.
            assert_eq!(wire.end().await, b"", "{head}");
            let heard = world.application.news();
            if reply.status == 400 || reply.status == 501 {
                assert!(heard.is_empty(), "{head}: {heard:?}");
                continue;
            }
            assert!(may_pass, "{head}: {reply:?}");
            assert_eq!(heard.len(), 1, "{head}: {heard:?}");
            assert_eq!(heard[0].body, GOOD.as_bytes());
            let (lengths, codings) = (
                heard[0].values("content-length"),
                heard[0].values("transfer-encoding"),
            );
            assert_eq!(lengths.len() + codings.len(), 1, "{}", heard[0].head);
        }
    }
    format!(
        "{} variants refused, or taken as chunked alone and closed",
        variants.len()
    )
}

/// Lengths that are no number or contradict each other are refused, as a request and as an
/// answer; equal ones become one.
pub async fn a_length_said_twice_is_one_length_or_an_error() -> String {
    let world = Inside::start().await;
    let digits = "2".repeat(30);
    let refused = [
        "28\r\nContent-Length: 29",
        "28, 29",
        "+28",
        "0x1c",
        "28 28",
        "-28",
        "",
        &digits,
    ];
    let folded = ["28\r\nContent-Length: 28", "28, 28"];
    for target in [INVOKE, "/open"] {
        world.application.answer("/open", answer(200, "", ""));
        for length in refused {
            let head = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
            let mut wire = Wire::to(&world.address).await;
            wire.send(request(&format!("POST {target}"), &head, GOOD))
                .await;
            assert_eq!(wire.answer().await.status, 400, "{target} {length:?}");
            assert_eq!(wire.end().await, b"", "{length:?}");
            assert!(world.application.news().is_empty(), "{target} {length:?}");
        }
        for length in folded {
            let head = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
            let reply = ask(
                &world.address,
                request(&format!("POST {target}"), &head, GOOD),
            )
            .await;
            let heard = world.application.news();
            if reply.status == 400 {
                assert!(heard.is_empty(), "{target} {length:?}");
                continue;
            }
            assert_eq!(reply.status, 200, "{target} {length:?}: {reply:?}");
            assert_eq!(
                heard[0].value("content-length"),
                "28",
                "{target} {length:?}"
            );
            assert_eq!(heard[0].body, GOOD.as_bytes());
        }
    }
    answers_with_two_lengths(&world.application, &world.address, "/open").await;
    let world = Outside::start().await;
    answers_with_two_lengths(&world.peer, &world.address, &at("/open")).await;
    format!(
        "{} requests refused, {} folded; of answers, two equal ones folded, two unlike ones 502",
        refused.len(),
        folded.len()
    )
}

/// Asks `target`, which leads to `/open` at `peer`, for answers whose length is given twice.
async fn answers_with_two_lengths(peer: &Peer, address: &str, target: &str) {
    let get = request(&format!("GET {target}"), "", "");
    let told = |length: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nfive!");
    for length in ["5\r\nContent-Length: 5", "5, 5"] {
        peer.answer("/open", told(length));
        let reply = ask(address, &get).await;
        assert_eq!(reply.status, 200, "{length:?}: {reply:?}");
        assert_eq!(reply.header("content-length"), "5", "{length:?}");
        assert_eq!(&reply.body[..], b"five!");
    }
    for length in ["5\r\nContent-Length: 6", "5, 6", "+5", "0x5", "five"] {
        peer.answer("/open", told(length));
        ask(address, &get).await.problem(502, "upstream-reset");
        let broken = peer.news().pop().unwrap().connection;
        peer.answer("/open", answer(200, "", ""));
        assert_eq!(ask(address, &get).await.status, 200);
        assert_ne!(peer.news().pop().unwrap().connection, broken, "{length:?}");
    }
}

/// Messages that cannot have content are not waited for, and both connections stay in step.
///
/// A 204 of a contract's application is an answer that broke its contract, which asks for JSON.
pub async fn answers_without_content_leave_the_connection_in_step() -> String {
    let world = Inside::start().await;
    let application = &world.application;
    application.answer("/after", answer(200, "", "in step"));
    let mut wire = Wire::to(&world.address).await;
    let bare = |status: &str| format!("HTTP/1.1 {status}\r\n\r\n");
    let cases = [
        (
            "GET",
            204,
            bare("204 No Content\r\nContent-Length: 0"),
            &[][..],
        ),
        ("GET", 204, bare("204 No Content\r\nContent-Length: 5"), &[]),
        (
            "POST",
            204,
            bare("204 No Content\r\nTransfer-Encoding: chunked"),
            &[],
        ),
        (
            "GET",
            304,
            bare("304 Not Modified\r\nContent-Length: 500\r\nETag: \"a\""),
            &["500"],
        ),
        (
            "HEAD",
            200,
            bare("200 OK\r\nContent-Length: 1234"),
            &["1234"],
        ),
        (
            "HEAD",
            404,
            bare("404 Not Found\r\nContent-Length: 0"),
            &["0"],
        ),
        (
            "HEAD",
            200,
            bare("200 OK\r\nTransfer-Encoding: chunked"),
            &[],
        ),
    ];
    for (method, status, said, length) in &cases {
        application.answer("/bare", said.as_bytes());
        wire.send(request(&format!("{method} /bare"), "", "")).await;
        let reply = wire.answer_to(method).await;
        assert_eq!(reply.status, *status, "{said}: {reply:?}");
        let lengths: Vec<_> = reply.headers.get_all("content-length").iter().collect();
        if *status != 304 {
            assert_eq!(lengths, *length, "{said}: {reply:?}");
        } else {
            // A 304 may keep the length that a 200 would have had, or leave it out.
            assert!(
                lengths.is_empty() || lengths == *length,
                "{said}: {reply:?}"
            );
        }
        wire.send(request("GET /after", "", "")).await;
        let reply = wire.answer().await;
        assert_eq!(
            (reply.status, &reply.body[..]),
            (200, &b"in step"[..]),
            "{said}"
        );
    }
    let mut connections: Vec<_> = application.news().iter().map(|h| h.connection).collect();
    connections.dedup();
    assert_eq!(connections.len(), 1, "{connections:?}");

    application.answer(INVOKE, bare("204 No Content\r\nContent-Length: 5"));
    wire.send(post(INVOKE, "", GOOD)).await;
    wire.answer().await.problem(502, "output-invalid");
    application.answer(INVOKE, super::message::json("{}"));
    wire.send(post(INVOKE, "", GOOD)).await;
    assert_eq!(wire.answer().await.status, 200);
    format!(
        "{} answers without content on kept connections, 204 at a contract 502",
        cases.len()
    )
}

/// What was sent without a body arrives without one, and an empty body arrives as one.
pub async fn bodies_that_are_empty_keep_their_framing() -> String {
    let (inside, outside) = tokio::join!(Inside::start(), Outside::start());
    for (address, peer, prefix) in [
        (&inside.address, &inside.application, String::new()),
        (&outside.address, &outside.peer, at("")),
    ] {
        peer.answer("/open", answer(200, "", ""));
        let open = format!("{prefix}/open");
        for method in ["GET", "DELETE", "OPTIONS", "POST"] {
            let reply = ask(address, request(&format!("{method} {open}"), "", "")).await;
            assert_eq!(reply.status, 200, "{method}: {reply:?}");
            let heard = peer.only();
            // An origin may answer 411 to a POST that says nothing of its length.
            let says_nothing = heard.is_unframed || method == "POST";
            assert!(says_nothing, "{}", heard.head);
        }
        for method in ["POST", "PUT", "DELETE", "GET"] {
            let line = format!("{method} {open}");
            ask(address, request(&line, "Content-Length: 0\r\n", "")).await;
            assert_eq!(peer.only().value("content-length"), "0", "{method}");

            let coded = "Transfer-Encoding: chunked\r\n";
            ask(address, request(&line, coded, "0\r\n\r\n")).await;
            let heard = peer.only();
            assert!(
                !heard.is_unframed && heard.body.is_empty(),
                "{}",
                heard.head
            );

            let body = String::from_utf8(chunked(GOOD.as_bytes(), 9)).unwrap();
            ask(address, request(&line, coded, &body)).await;
            assert_eq!(peer.only().body, GOOD.as_bytes(), "{method}");
        }
        // A contract asks for a body and says so.
        let json = "Content-Type: application/json\r\n";
        for (fields, body) in [
            ("", ""),
            ("Content-Length: 0\r\n", ""),
            ("Transfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ] {
            let line = format!("POST {prefix}{INVOKE}");
            let reply = ask(address, request(&line, &format!("{json}{fields}"), body)).await;
            let problem = reply.problem(400, "body-required");
            assert!(
                problem["detail"]
                    .as_str()
                    .unwrap()
                    .contains("body required"),
                "{problem}"
            );
        }
        assert!(peer.news().is_empty());
    }
    "GET, DELETE, POST and PUT without, with empty and with chunked bodies, in and out".to_owned()
}
