//! JSON as text: what is checked is what goes on, and what two readers could read in two ways
//! goes nowhere.

use super::message::{GOOD, answer, chunked, json, post, request};
use super::wire::ask;
use super::world::{INVOKE, Inside, Outside, at, order_contract};
use crate::support::digest::content_digest;
use crate::support::program;
use serde_json::{Value, json as value};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;

/// What the sidecar may have resident, whatever it is sent.
const MEMORY: u64 = 80 << 20;

/// A contract that takes any object, at `/free`.
fn free() -> Value {
    let mut free = order_contract();
    free["id"] = "order-free-v1.0".into();
    free["input_schema"] = value!({"type": "object", "properties": {"n": {"type": "number"}}});
    free
}

async fn with_free() -> Inside {
    let world = Inside::with(|setup| setup.contract(free(), "POST", "/free")).await;
    world.application.answer("/free", json("{}"));
    world
}

/// The application receives the bytes that were sent, so digest and signature over them hold.
///
/// `calls` shows the same through two sidecars.
pub async fn what_was_checked_is_what_goes_on() -> String {
    let (world, outside) = tokio::join!(with_free(), Outside::start());
    let order = r#"{ "qty":2, "order_ref":"A\u002d17", "price":1.10 }"#;
    let signature =
        "Signature-Input: sig=(\"content-digest\");keyid=\"k\"\r\nSignature: sig=:AAAA:\r\n";
    let signed = |body: &str| {
        let digest = content_digest(body.as_bytes());
        format!("Content-Digest: {digest}\r\n{signature}")
    };
    for (address, peer, prefix) in [
        (&world.address, &world.application, String::new()),
        (&outside.address, &outside.peer, at("")),
    ] {
        let target = format!("{prefix}{INVOKE}");
        let reply = ask(address, post(&target, &signed(order), order)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let heard = peer.only();
        assert_eq!(heard.body, order.as_bytes());
        assert_eq!(
            heard.value("content-digest"),
            content_digest(order.as_bytes())
        );
        assert_eq!(heard.value("signature"), "sig=:AAAA:");
        assert_eq!(
            heard.value("signature-input"),
            "sig=(\"content-digest\");keyid=\"k\""
        );
        // Made for other bytes, it is refused.
        let other = ask(address, post(&target, &signed(GOOD), order)).await;
        other.problem(400, "digest-mismatch");
        assert!(peer.news().is_empty());
    }
    let kept = [
        r#"{"n":1234567890123456789012345}"#,
        "\n{\t\"b\" : 1 ,\r\n\"a\":\"\\u00e9\\/\"}  ",
        r#"{"n":1.10,"m":-0,"e":1E+2,"":"\ud83d\ude00"}"#,
    ];
    for body in kept {
        let reply = ask(&world.address, post("/free", &signed(body), body)).await;
        assert_eq!(reply.status, 200, "{body}: {reply:?}");
        assert_eq!(world.application.only().body, body.as_bytes());
        // And back, whatever pieces it came in.
        let coded = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        let said = [coded.as_bytes(), &chunked(body.as_bytes(), 3)].concat();
        world.application.answer("/free", said);
        let reply = ask(&world.address, post("/free", "", "{}")).await;
        assert_eq!(&reply.body[..], body.as_bytes());
        assert_eq!(
            reply.header("content-digest"),
            content_digest(body.as_bytes())
        );
        world.application.news();
        world.application.answer("/free", json("{}"));
    }
    format!(
        "{} bodies cross byte for byte with digest and signature, a digest of other bytes is 400",
        kept.len() + 1
    )
}

/// Only one UTF-8 document passes; what is before or behind it is named.
pub async fn what_is_not_one_utf8_document_is_refused_by_its_fault() -> String {
    let world = Inside::start().await;
    let wide: Vec<u8> = GOOD.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let marked = |mark: &[u8], body: &[u8]| [mark, body].concat();
    let good = GOOD.as_bytes();
    let latin = b"{\"order_ref\":\"\xe9\",\"qty\":2}".to_vec();
    let cases: [(Vec<u8>, &str); 16] = [
        (wide.clone(), ""),
        (marked(b"\xff\xfe", &wide), "UTF-16"),
        (latin, "UTF-8"),
        (marked(b"\xef\xbb\xbf", good), "byte order mark"),
        ([good, good].concat(), "single"),
        ([good, b" ", good].concat(), "single"),
        (marked(good, b"x"), "single"),
        (marked(good, b"\0"), ""),
        (marked(b"\0", good), ""),
        (br#"{"order_ref":"A-17","qty":2,}"#.to_vec(), ""),
        (br#"{"order_ref":"A-17","qty":2 /* two */}"#.to_vec(), ""),
        (marked(good, b"// two"), ""),
        (br#"{'order_ref':'A-17','qty':2}"#.to_vec(), ""),
        (
            b"{\"order_ref\":\"A\n17\",\"qty\":2}".to_vec(),
            "control character",
        ),
        (
            b"{\"order_ref\":\"\xed\xa0\x80\",\"qty\":2}".to_vec(),
            "UTF-8",
        ),
        (b"{\"order_ref\":\"\xc0\xaf\",\"qty\":2}".to_vec(), "UTF-8"),
    ];
    for charset in ["", "; charset=iso-8859-1", "; charset=utf-16"] {
        for (body, told) in &cases {
            let fields = format!(
                "Content-Type: application/json{charset}\r\nContent-Length: {}\r\n",
                body.len()
            );
            let mut bytes = request(&format!("POST {INVOKE}"), &fields, "").into_bytes();
            bytes.extend_from_slice(body);
            let problem = ask(&world.address, bytes).await.problem(400, "bad-json");
            let detail = problem["detail"].as_str().unwrap();
            assert!(
                detail.contains(told),
                "{:?}: {detail}",
                String::from_utf8_lossy(body)
            );
        }
        // The parameter changes nothing.
        let fields = format!("Content-Type: application/json{charset}\r\nContent-Length: 28\r\n");
        let reply = ask(
            &world.address,
            request(&format!("POST {INVOKE}"), &fields, GOOD),
        )
        .await;
        assert_eq!(reply.status, 200, "{charset}: {reply:?}");
        assert_eq!(world.application.only().body, good);
    }
    // An answer is held to the same.
    for (body, _) in &cases {
        let mut said = answer(
            200,
            "Content-Type: application/json\r\n",
            &"x".repeat(body.len()),
        );
        said.truncate(said.len() - body.len());
        said.extend_from_slice(body);
        world.application.answer(INVOKE, said);
        let reply = ask(&world.address, post(INVOKE, "", GOOD)).await;
        reply.problem(502, "output-invalid");
    }
    format!(
        "{} texts refused whatever the charset says, and as answers",
        cases.len()
    )
}

/// Two members of one name are refused with a pointer to it, in bodies, wrappers and contracts.
pub async fn a_name_that_occurs_twice_is_refused_with_its_place() -> String {
    let world = with_free().await;
    let cases = [
        (
            INVOKE,
            r#"{"order_ref":"A","qty":100000,"qty":1}"#.to_owned(),
            "/qty",
        ),
        (
            INVOKE,
            r#"{"order_ref":"A","qty":100000,"\u0071ty":1}"#.to_owned(),
            "/qty",
        ),
        (
            "/free",
            r#"{"a":{"b":{"c":1,"d":2,"c":1}}}"#.to_owned(),
            "/a/b/c",
        ),
        ("/free", r#"{"a":[0,{"x":1,"x":1}]}"#.to_owned(), "/a/1/x"),
        ("/free", r#"{"":1,"":2}"#.to_owned(), "/"),
        ("/free", r#"{"\ud83d\ude00":1,"😀":2}"#.to_owned(), "/😀"),
        ("/free", r#"{"a/b":1,"a\/b":2}"#.to_owned(), "/a~1b"),
        (
            "/free",
            {
                let many: String = (0..500).map(|n| format!("\"m{n}\":{n},")).collect();
                format!("{{{many}\"m7\":1}}")
            },
            "/m7",
        ),
    ];
    for (target, body, place) in &cases {
        let problem = ask(&world.address, post(target, "", body))
            .await
            .problem(400, "bad-json");
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.contains(&format!("at {place} occurs twice")),
            "{body:.80}: {detail}"
        );
    }
    assert!(world.application.news().is_empty());
    // Equal names in different objects are no fault.
    let apart = r#"{"a":{"n":1},"b":{"n":1},"n":1,"c":[{"n":1},{"n":1}]}"#;
    assert_eq!(
        ask(&world.address, post("/free", "", apart)).await.status,
        200
    );
    world
        .application
        .answer(INVOKE, json(r#"{"ok":true,"ok":false}"#));
    let problem = ask(&world.address, post(INVOKE, "", GOOD))
        .await
        .problem(502, "output-invalid");
    assert!(
        problem["detail"].as_str().unwrap().contains("/ok"),
        "{problem}"
    );

    let folder = TempDir::new().unwrap();
    let text = order_contract().to_string();
    for (twice, place) in [
        (
            text.replacen("\"id\":", "\"id\":\"other-thing-v1.0\",\"id\":", 1),
            "/id",
        ),
        (
            text.replacen("\"maximum\":1000", "\"maximum\":1,\"maximum\":1000", 1),
            "/maximum",
        ),
    ] {
        assert_ne!(twice, text);
        let told = faults_of(&folder.path().join("twice.json"), &twice);
        assert!(told.contains(place) && told.contains("twice"), "{told}");
    }
    format!(
        "{} bodies, an answer and 2 contracts, each with its place",
        cases.len()
    )
}

/// A number's text goes on untouched; what a check could not hold exactly is refused, never
/// rounded and then accepted.
pub async fn numbers_are_exact_or_refused() -> String {
    let mut bounded = free();
    bounded["id"] = "order-bounded-v1.0".into();
    bounded["input_schema"] = value!({"type": "object", "properties": {
        "n": {"type": "number", "maximum": 9007199254740992u64},
        "i": {"type": "integer", "exclusiveMaximum": 9007199254740991u64},
        "c": {"const": 0.1}, "p": {"type": "number", "multipleOf": 0.01}
    }});
    let free = free();
    let world = Inside::with(|setup| {
        setup
            .contract(free, "POST", "/free")
            .contract(bounded, "POST", "/bounded")
    })
    .await;
    for path in ["/free", "/bounded"] {
        world.application.answer(path, json("{}"));
    }
    let nines = "9".repeat(39);
    let kept = [
        "9007199254740993",
        "18446744073709551616",
        &nines,
        "1e-400",
        "-0",
        "-0.0",
        "1.10",
        "1E400000".get(..3).unwrap(),
        "0.1",
        "123456789.123456789123456789",
        "1e308",
    ];
    for number in kept {
        let body = format!("{{\"n\":{number}}}");
        let reply = ask(&world.address, post("/free", "", &body)).await;
        assert_eq!(reply.status, 200, "{number}: {reply:?}");
        assert_eq!(world.application.only().body, body.as_bytes());
    }
    let million = "1".repeat(1_000_000);
    let refused = [
        "1e400",
        "-1e400",
        "NaN",
        "Infinity",
        "-Infinity",
        "01",
        ".5",
        "5.",
        "+1",
        "0x10",
        "1e",
        "1_000",
        "--1",
        "1e99999999999999999999",
        &million,
    ];
    for number in refused {
        let body = format!("{{\"n\":{number}}}");
        let problem = ask(&world.address, post("/free", "", &body))
            .await
            .problem(400, "bad-json");
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
    for (body, taken) in [
        (r#"{"n":9007199254740992}"#, true),
        // As floats these two are the bound itself.
        (r#"{"n":9007199254740993}"#, false),
        (r#"{"n":9007199254740992.5}"#, false),
        (r#"{"i":9007199254740990}"#, true),
        (r#"{"i":9007199254740991}"#, false),
        (r#"{"i":18446744073709551616}"#, false),
        (r#"{"c":0.1}"#, true),
        (r#"{"c":0.10}"#, true),
        (r#"{"c":0.1000000000000000055511151231257827}"#, false),
        (r#"{"p":0.29}"#, true),
        (r#"{"p":1.10}"#, true),
        (r#"{"p":0.295}"#, false),
    ] {
        let reply = ask(&world.address, post("/bounded", "", body)).await;
        if taken {
            assert_eq!(reply.status, 200, "{body}: {reply:?}");
            assert_eq!(
                world.application.news().pop().unwrap().body,
                body.as_bytes()
            );
        } else {
            reply.problem(400, "input-invalid");
        }
        world.application.news();
    }
    format!(
        "{} spellings forwarded as written, {} refused; none rounded past a bound",
        kept.len(),
        refused.len()
    )
}

/// Depth has one limit, wherever JSON is read; the process stays and its memory does not grow.
pub async fn deep_nesting_is_refused_wherever_json_is_read() -> String {
    let mut tree = free();
    tree["id"] = "order-tree-v1.0".into();
    tree["input_schema"] = value!({
        "$defs": {"node": {"type": "object", "additionalProperties": {"$ref": "#/$defs/node"}}},
        "$ref": "#/$defs/node"
    });
    let wide = free();
    let mut world = Inside::with(|setup| {
        setup
            .set("limits.max_json_depth", 128)
            .contract(wide, "POST", "/free")
            .contract(tree, "POST", "/tree")
    })
    .await;
    for path in ["/free", "/tree"] {
        world.application.answer(path, json("{}"));
    }
    let brackets = |deep: usize| format!("{{\"a\":{}{}}}", "[".repeat(deep), "]".repeat(deep));
    let objects = |deep: usize| format!("{}1{}", "{\"a\":".repeat(deep), "}".repeat(deep));
    let nodes = |deep: usize| format!("{}{{}}{}", "{\"a\":".repeat(deep), "}".repeat(deep));
    for body in [brackets(127), objects(128), nodes(127)] {
        let reply = ask(&world.address, post("/free", "", &body)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        world.application.only();
    }
    let reply = ask(&world.address, post("/tree", "", &nodes(100))).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    world.application.only();
    let mut count = 0;
    for deep in [128, 10_000, 500_000] {
        let open = "[".repeat(deep);
        for body in [brackets(deep), objects(deep + 1), nodes(deep), open] {
            for path in ["/free", "/tree", INVOKE] {
                let problem = ask(&world.address, post(path, "", &body)).await;
                let problem = problem.problem(400, "bad-json");
                let detail = problem["detail"].as_str().unwrap();
                assert!(detail.contains("128 levels") || deep == 128, "{detail}");
                count += 1;
            }
            world.application.answer("/free", json(&body));
            let reply = ask(&world.address, post("/free", "", "{}")).await;
            reply.problem(502, "output-invalid");
            world.application.only();
            let wrapper = format!("{{\"agent\":\"order-free-v1.0\",\"input\":{body}}}");
            let reply = ask(&world.address, post("/hermes/invoke", "", &wrapper)).await;
            reply.problem(400, "bad-json");
            count += 2;
        }
    }
    let began = Instant::now();
    world.application.answer("/free", json("{}"));
    assert_eq!(
        ask(&world.address, post("/free", "", "{}")).await.status,
        200
    );
    assert!(began.elapsed() < Duration::from_secs(5));
    let peak = world.sidecar.process().peak_memory();
    assert!(peak < MEMORY, "{} MB", peak >> 20);

    let folder = TempDir::new().unwrap();
    let file = folder.path().join("deep.json");
    for deep in [10_000, 60_000] {
        let text = order_contract().to_string();
        let nested = format!(
            "{}{{}}{}",
            "{\"not\":".repeat(deep / 2),
            "}".repeat(deep / 2)
        );
        let text = text.replacen(
            "\"output_schema\":{\"type\":\"object\"}",
            &format!("\"output_schema\":{nested}"),
            1,
        );
        assert!(text.contains("not"));
        let told = faults_of(&file, &text);
        assert!(
            told.contains("nested deeper") || told.contains("KiB"),
            "{told:.300}"
        );
    }
    format!(
        "{count} bodies, wrappers and answers and 2 contracts refused, 100 levels of a recursive schema taken"
    )
}

/// Returns what `contract lint` says of a contract that has faults.
fn faults_of(file: &Path, contract: &str) -> String {
    std::fs::write(file, contract).unwrap();
    let mut lint = Command::new(program::hermes());
    let output = lint.args(["contract", "lint"]).arg(file).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
