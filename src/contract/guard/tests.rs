//! What the guard lets through, and what it says of the rest.

use std::thread;

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn read(bytes: &[u8]) -> Result<Document<'_>, Refusal> {
    parse(bytes, &Limits::default())
}

fn refusal(bytes: &[u8]) -> Refusal {
    read(bytes).expect_err("the body must be refused")
}

#[test]
fn what_is_not_one_json_document_is_refused_with_its_reason() {
    const GOOD: &[u8] = br#"{"order_ref":"A-17","qty":2}"#;
    let utf16: Vec<u8> = "\u{feff}{}"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let with = |before: &[u8], after: &[u8]| [before, GOOD, after].concat();
    for (body, in_text) in [
        (b"".to_vec(), "body required"),
        (b"    ".to_vec(), "white space only"),
        (b"\r\n\t".to_vec(), "white space only"),
        (with(b"\xef\xbb\xbf", b""), "byte order mark"),
        (utf16, "UTF-16"),
        (b"{\"a\":\"\xe4\"}".to_vec(), "not UTF-8 at byte 6"),
        (with(b"", GOOD), "near byte 28"),
        (with(b"", b"x"), "near byte 28"),
        (with(b"\0", b""), "NUL at byte 0"),
        (with(b"", b"\0"), "NUL at byte 28"),
        (
            b"\"a\0\"".to_vec(),
            "control character in a string at byte 2",
        ),
        (
            b"\"line\nbreak and more\"".to_vec(),
            "control character in a string at byte 5",
        ),
        (b"{\"a\":1,}".to_vec(), "near byte 7"),
        (b"{\"a\":1}//".to_vec(), "near byte 7"),
        (b"{\"a\":".to_vec(), "not complete"),
        (b"{\"a".to_vec(), "ends inside a string"),
        (b"\"\\".to_vec(), "ends inside a string"),
        (b"NaN".to_vec(), "not a single JSON document"),
        (b"[Infinity]".to_vec(), "not a single JSON document"),
        (b"01".to_vec(), "not a single JSON document"),
        (b"[.5]".to_vec(), "not a single JSON document"),
        (b"1e400".to_vec(), "number at byte 0 is too large"),
        (b"[1,-1e400]".to_vec(), "number at byte 3 is too large"),
        (b"\"\\ud800\"".to_vec(), "not a single JSON document"),
        (vec![b'7'; 1 << 20], "over 1024 characters at byte 0"),
    ] {
        let refusal = refusal(&body);
        assert!(
            refusal.message().contains(in_text),
            "{refusal} instead of {in_text}"
        );
        let expected = match body.is_empty() {
            true => RefusalKind::BodyRequired,
            false => RefusalKind::BadJson,
        };
        assert_eq!(refusal.kind(), expected);
    }
    assert!(read(GOOD).is_ok());
}

#[test]
fn a_name_that_occurs_twice_is_refused_with_its_place() {
    let many: String = (0..40).map(|at| format!("\"k{at}\":1,")).collect();
    let long = "n".repeat(500);
    for (body, pointer) in [
        (
            r#"{"order_ref":"A","qty":100000,"qty":1}"#.to_owned(),
            "/qty",
        ),
        (r#"{"qty":1,"\u0071ty":2}"#.to_owned(), "/qty"),
        (r#"{"a":[1,{"b":{"c":1,"c":2}}]}"#.to_owned(), "/a/1/b/c"),
        (r#"{"a/b":{"":1,"":2}}"#.to_owned(), "/a~1b/"),
        (format!("{{{many}\"k7\":1}}"), "/k7"),
        (
            format!("{{\"{long}\":1,\"{long}\":1}}"),
            &format!("/{}…", "n".repeat(64)),
        ),
    ] {
        let refusal = refusal(body.as_bytes());
        assert_eq!(refusal.pointer(), Some(pointer), "{body}");
        assert!(refusal.message().contains("twice"), "{refusal}");
    }
    for body in [
        format!("{{{many}\"other\":1}}"),
        r#"[{"a":1},{"a":1},{"b":{"a":{"a":1}}}]"#.to_owned(),
    ] {
        assert!(read(body.as_bytes()).is_ok(), "{body}");
    }
}

#[test]
fn depth_is_refused_before_anything_recurses() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let nested =
            |depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth)).into_bytes();
        assert!(read(&nested(64)).is_ok());
        for depth in [65, 127, 128, 10_000, 1_000_000] {
            let message = refusal(&nested(depth)).message().to_owned();
            assert!(
                message.contains("nested deeper than 64 levels"),
                "{message}"
            );
            let only_opened = open.repeat(depth);
            assert_eq!(refusal(only_opened.as_bytes()).kind(), RefusalKind::BadJson);
        }
        // No configuration lifts the last bound.
        let limits = Limits {
            max_depth: usize::MAX,
        };
        assert!(parse(&nested(DEEPEST), &limits).is_ok());
        assert!(parse(&nested(DEEPEST + 1), &limits).is_err());
    }
}

#[test]
fn brackets_in_strings_do_not_count() {
    let body = format!("[\"{}\\\"{}\"]", "[".repeat(1_000), "{".repeat(1_000));
    assert!(read(body.as_bytes()).is_ok());
}

#[test]
fn refusals_do_not_repeat_the_body() {
    for body in [
        &b"{\"card\":\"4000-0000-0000-0002\" oops}"[..],
        b"{\"card\":\"4000-0000-0000-0002\",\"card\":\"4000-0000-0000-0002\"}",
        b"4000-0000-0000-0002",
    ] {
        let refusal = refusal(body);
        let told = format!("{refusal} {refusal:?}");
        assert!(!told.contains("4000"), "{told}");
    }
    let debug = format!("{:?}", read(b"{\"card\":\"4000\"}").unwrap());
    assert_eq!(debug, "Document(15 bytes)");
}

/// Any JSON text, with odd spacing, escapes and numbers.
fn json_text() -> impl Strategy<Value = String> {
    let space = "[ \t\r\n]{0,2}";
    let number = prop_oneof![
        "-?(0|[1-9][0-9]{0,25})",
        "-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
        any::<f64>()
            .prop_filter("JSON has finite numbers only", |number| number.is_finite())
            .prop_map(|number| format!("{number:e}")),
    ];
    let string = prop_oneof![
        any::<String>().prop_map(|text| Value::from(text).to_string()),
        "\"([a-z ]|\\\\[\"\\\\/bfnrt]|\\\\u[0-9a-fA-F]{4}|é|😀){0,12}\"",
    ];
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
        number,
        string.clone(),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        let item = (space, inner.clone(), space).prop_map(|(a, b, c)| a + &b + &c);
        // Few names, so that some occur twice.
        let name = prop_oneof![string.clone(), "\"[ab]\"", "\"\\\\u006[12]\""];
        let member =
            (space, name, space, item.clone()).prop_map(|(a, b, c, d)| format!("{a}{b}{c}:{d}"));
        prop_oneof![
            prop::collection::vec(item, 0..6).prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec(member, 0..6)
                .prop_map(|members| format!("{{{}}}", members.join(","))),
        ]
    })
}

/// Any JSON text with a few bytes changed.
fn damaged_text() -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), 0..4_u8, any::<u8>());
    (json_text(), prop::collection::vec(edit, 0..4)).prop_map(|(text, edits)| {
        let mut bytes = text.into_bytes();
        for (at, kind, byte) in edits {
            let at = at.index(bytes.len().max(1)).min(bytes.len());
            match kind {
                0 => bytes.insert(at, byte),
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"{}[]\",:\\0-.e"[usize::from(byte) % 12]),
                _ => bytes.truncate(at),
            }
        }
        bytes
    })
}

/// What `serde_json` makes of the bytes, with duplicate names refused.
fn reference(bytes: &[u8]) -> Option<Value> {
    struct Strict(Value);
    impl<'de> serde::Deserialize<'de> for Strict {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Strict;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("JSON")
                }
                fn visit_unit<E>(self) -> Result<Strict, E> {
                    Ok(Strict(Value::Null))
                }
                fn visit_bool<E>(self, value: bool) -> Result<Strict, E> {
                    Ok(Strict(value.into()))
                }
                fn visit_i64<E>(self, value: i64) -> Result<Strict, E> {
                    Ok(Strict(value.into()))
                }
                fn visit_u64<E>(self, value: u64) -> Result<Strict, E> {
                    Ok(Strict(value.into()))
                }
                fn visit_f64<E>(self, value: f64) -> Result<Strict, E> {
                    Ok(Strict(value.into()))
                }
                fn visit_str<E>(self, value: &str) -> Result<Strict, E> {
                    Ok(Strict(value.into()))
                }
                fn visit_seq<A: serde::de::SeqAccess<'de>>(
                    self,
                    mut seq: A,
                ) -> Result<Strict, A::Error> {
                    let mut items = Vec::new();
                    while let Some(Strict(item)) = seq.next_element()? {
                        items.push(item);
                    }
                    Ok(Strict(items.into()))
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> Result<Strict, A::Error> {
                    let mut members = serde_json::Map::new();
                    while let Some((name, Strict(member))) = map.next_entry::<String, Strict>()? {
                        if members.insert(name, member).is_some() {
                            return Err(serde::de::Error::custom("duplicate"));
                        }
                    }
                    Ok(Strict(members.into()))
                }
            }
            deserializer.deserialize_any(Visitor)
        }
    }
    serde_json::from_slice::<Strict>(bytes)
        .ok()
        .map(|strict| strict.0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn agrees_with_serde_json_on_text(text in json_text()) {
        let ours = read(text.as_bytes()).ok().map(|document| document.tree().to_plain());
        prop_assert_eq!(ours, reference(text.as_bytes()));
    }

    #[test]
    fn agrees_with_serde_json_on_damaged_text(bytes in damaged_text()) {
        let ours = read(&bytes).ok().map(|document| document.tree().to_plain());
        prop_assert_eq!(ours, reference(&bytes));
    }

    #[test]
    fn agrees_with_serde_json_on_any_bytes(bytes: Vec<u8>) {
        let ours = read(&bytes).ok().map(|document| document.tree().to_plain());
        prop_assert_eq!(ours, reference(&bytes));
    }

    #[test]
    fn eight_bytes_are_judged_as_one_by_one(mut bytes: [u8; 8], at in 0..8_usize, byte in 0..0x80_u8) {
        bytes[at] = byte;
        let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
        let first = bytes.iter().position(is_special).unwrap_or(8);
        prop_assert_eq!(first_special(u64::from_le_bytes(bytes)), first);
    }
}

#[test]
fn a_worker_thread_s_stack_carries_the_deepest_document() {
    let body = format!("{}{}", "[".repeat(DEEPEST), "]".repeat(DEEPEST));
    let worker = thread::Builder::new().stack_size(2 * 1024 * 1024);
    let limits = Limits { max_depth: DEEPEST };
    let parsed = worker.spawn(move || parse(body.as_bytes(), &limits).is_ok());
    assert!(parsed.unwrap().join().unwrap());
}
