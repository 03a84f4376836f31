//! What kind of body it is: media type, coding, none at all.

use super::message::{GOOD, answer, post, request};
use super::wire::{Wire, ask};
use super::world::{INVOKE, Inside, Outside, at, order_contract};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;

/// An order that breaks the contract.
const BAD: &str = r#"{"order_ref":"A-17","qty":0}"#;
/// What the sidecar may have resident, whatever it is sent.
const MEMORY: u64 = 80 << 20;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut coder = GzEncoder::new(Vec::new(), Compression::best());
    coder.write_all(bytes).unwrap();
    coder.finish().unwrap()
}

/// Writes a POST to the contract with this type line and body.
fn typed(target: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let length = format!("{fields}Content-Length: {}\r\n", body.len());
    let mut bytes = request(&format!("POST {target}"), &length, "").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A coded body is refused as such, so nothing is unpacked and nothing passes unchecked; coded
/// answers break their contract.
pub async fn a_coded_body_is_refused_and_never_unpacked() -> String {
    let mut world = Inside::start().await;
    let outside = Outside::start().await;
    let packed = gzip(&vec![b' '; 128 << 20]);
    assert!(packed.len() < 200_000, "{}", packed.len());
    let two = [gzip(GOOD.as_bytes()), gzip(BAD.as_bytes())].concat();
    let whole = gzip(BAD.as_bytes());
    let cut = &whole[..whole.len() / 2];
    let coded: [(&str, &[u8]); 12] = [
        ("gzip", &whole),
        ("GZIP", &whole),
        ("x-gzip", &whole),
        ("br", BAD.as_bytes()),
        ("gzip, gzip", &whole),
        ("gzip\r\nContent-Encoding: identity", &whole),
        ("identity, gzip", &whole),
        ("x-unknown", BAD.as_bytes()),
        ("gzip", &packed),
        ("gzip", cut),
        ("gzip", GOOD.as_bytes()),
        ("gzip", &two),
    ];
    for (address, prefix) in [(&world.address, String::new()), (&outside.address, at(""))] {
        let target = format!("{prefix}{INVOKE}");
        for (coding, body) in coded {
            let fields =
                format!("Content-Type: application/json\r\nContent-Encoding: {coding}\r\n");
            let reply = ask(address, typed(&target, &fields, body)).await;
            reply.problem(415, "unsupported-media-type");
            assert_eq!(reply.header("accept-encoding"), "identity", "{reply:?}");
        }
        // Coded bytes that do not say so are no JSON, and `identity` is no coding.
        let plain = "Content-Type: application/json\r\n";
        let reply = ask(address, typed(&target, plain, &packed)).await;
        reply.problem(400, "bad-json");
        let same = format!("{plain}Content-Encoding: identity\r\n");
        let reply = ask(address, typed(&target, &same, GOOD.as_bytes())).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let reply = ask(address, typed(&target, &same, BAD.as_bytes())).await;
        reply.problem(400, "input-invalid");
    }
    assert_eq!(world.application.only().body, GOOD.as_bytes());
    assert_eq!(outside.peer.only().body, GOOD.as_bytes());

    let mut said =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n".to_vec();
    said.extend_from_slice(format!("Content-Length: {}\r\n\r\n", packed.len()).as_bytes());
    said.extend_from_slice(&packed);
    world.application.answer(INVOKE, said);
    let reply = ask(&world.address, post(INVOKE, "", GOOD)).await;
    reply.problem(502, "output-invalid");
    let peak = world.sidecar.process().peak_memory();
    assert!(peak < MEMORY, "{} MB", peak >> 20);
    format!(
        "{} coded bodies 415, in and out, 130 KB for 128 MB never unpacked; a coded answer 502",
        coded.len()
    )
}

/// What is no JSON by its type is refused; however JSON is spelt, it is checked.
pub async fn no_spelling_of_the_media_type_passes_unchecked() -> String {
    let (world, outside) = tokio::join!(Inside::start(), Outside::start());
    let json = [
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "application/json;",
        "application/json ;charset=latin-1",
        "application/vnd.x+json",
        "application/vnd.x+JSON; v=1",
        "Application/Problem+Json",
    ];
    let other = [
        "text/json",
        "text/plain",
        "application/json, text/plain",
        "text/plain, application/json",
        "application/jsonx",
        "application/x-json",
        "application",
        "application/",
        "+json",
        "/json",
        "",
        "application/json\r\nContent-Type: application/json",
        "application/json\r\nContent-Type: text/plain",
        "application/json/x",
        "application /json",
        "application/json+xml",
        "multipart/form-data; boundary=application/json",
    ];
    for (address, peer, prefix) in [
        (&world.address, &world.application, String::new()),
        (&outside.address, &outside.peer, at("")),
    ] {
        let target = format!("{prefix}{INVOKE}");
        for kind in json {
            let fields = format!("Content-Type: {kind}\r\n");
            let reply = ask(address, typed(&target, &fields, BAD.as_bytes())).await;
            reply.problem(400, "input-invalid");
            assert!(peer.news().is_empty(), "{kind}");
            let reply = ask(address, typed(&target, &fields, GOOD.as_bytes())).await;
            assert_eq!(reply.status, 200, "{kind}: {reply:?}");
            assert_eq!(peer.only().value("content-type"), kind);
        }
        for kind in other {
            let fields = format!("Content-Type: {kind}\r\n");
            let reply = ask(address, typed(&target, &fields, BAD.as_bytes())).await;
            reply.problem(415, "unsupported-media-type");
        }
        let reply = ask(address, typed(&target, "", BAD.as_bytes())).await;
        reply.problem(415, "unsupported-media-type");
        assert!(peer.news().is_empty());
    }
    format!(
        "{} spellings of JSON checked, {} others 415, in and out",
        json.len(),
        other.len() + 1
    )
}

/// Whether there is a body follows from the framing, not from the method or the media type.
pub async fn bodies_go_by_framing_and_not_by_method() -> String {
    let world = Inside::start().await;
    world.application.answer("/open", answer(200, "", ""));
    let json = "Content-Type: application/json\r\n";
    for method in ["DELETE", "GET"] {
        let line = format!("{method} /open");
        let length = format!("{json}Content-Length: {}\r\n", GOOD.len());
        assert_eq!(
            ask(&world.address, request(&line, &length, GOOD))
                .await
                .status,
            200
        );
        assert_eq!(world.application.only().body, GOOD.as_bytes(), "{method}");
        // A declared type without a body is not broken JSON.
        assert_eq!(
            ask(&world.address, request(&line, json, "")).await.status,
            200
        );
        let heard = world.application.only();
        assert!(heard.is_unframed, "{}", heard.head);
    }
    for (body, kind) in [
        ("    ", "bad-json"),
        ("\r\n\t ", "bad-json"),
        ("", "body-required"),
    ] {
        let problem = ask(&world.address, post(INVOKE, "", body))
            .await
            .problem(400, kind);
        let told = problem["detail"].as_str().unwrap();
        assert!(
            told.contains(if kind == "bad-json" {
                "white space"
            } else {
                "body required"
            }),
            "{told}"
        );
    }
    let untyped = format!("Content-Length: {}\r\n", GOOD.len());
    let reply = ask(
        &world.address,
        request(&format!("POST {INVOKE}"), &untyped, GOOD),
    )
    .await;
    reply.problem(415, "unsupported-media-type");
    // The contract is called by its own method; another one's body is not looked at.
    for method in ["DELETE", "GET", "PUT"] {
        let mut wire = Wire::to(&world.address).await;
        let fields = format!("{json}Content-Length: {}\r\n", GOOD.len());
        wire.send(request(&format!("{method} {INVOKE}"), &fields, GOOD))
            .await;
        wire.answer().await.problem(405, "method-not-allowed");
    }
    assert!(world.application.news().is_empty());

    // A contract that takes anything takes no body for null, and none is still said so.
    let mut any = order_contract();
    any["id"] = "order-any-v1.0".into();
    any["input_schema"] = serde_json::json!({"$comment": "anything"});
    let world = Inside::with(|setup| setup.contract(any, "POST", "/any")).await;
    ask(&world.address, post("/any", "", ""))
        .await
        .problem(400, "body-required");
    "DELETE and GET with and without bodies pass as they are; absent, blank and untyped bodies named".to_owned()
}
