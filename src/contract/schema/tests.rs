//! What is valid, and what is said where it is not.

use serde_json::json;

use super::*;
use crate::contract::guard::{self, Limits};

fn check(schema: &Value, body: &str) -> Result<(), Violations> {
    let validator = Validator::compile(schema).unwrap_or_else(|faults| panic!("{faults}"));
    let document = guard::parse(body.as_bytes(), &Limits { max_depth: 256 }).unwrap();
    validator.check(&document)
}

fn order() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "order_ref": {"type": "string", "maxLength": 40},
            "qty": {"type": "integer", "minimum": 1, "maximum": 1000},
            "price": {"type": "number", "multipleOf": 0.01},
            "card": {"type": "string", "pattern": "^[0-9]{12,19}$"},
            "due": {"type": "string", "format": "date-time"},
            "to": {"enum": ["a", "b"]},
        },
        "required": ["order_ref", "qty"],
        "additionalProperties": false,
    })
}

#[test]
fn a_violation_names_place_rule_and_bound_but_no_value() {
    for (body, instance, schema, keyword, message) in [
        (
            r#"{"order_ref":"A","qty":0}"#,
            "/qty",
            "/properties/qty/minimum",
            "minimum",
            "must be at least 1",
        ),
        (
            r#"{"order_ref":"A","qty":1.5}"#,
            "/qty",
            "/properties/qty/type",
            "type",
            "must be of type integer",
        ),
        (
            r#"{"order_ref":"A"}"#,
            "",
            "/required",
            "required",
            "must have the member \"qty\"",
        ),
        (
            r#"{"order_ref":"A","qty":1,"card":"4000-0000-0000-0002"}"#,
            "/card",
            "/properties/card/pattern",
            "pattern",
            "must match the pattern ^[0-9]{12,19}$",
        ),
        (
            r#"{"order_ref":"A","qty":1,"due":"2024-02-30T00:00:00Z"}"#,
            "/due",
            "/properties/due/format",
            "format",
            "must have the format date-time",
        ),
        (
            r#"{"order_ref":"A","qty":1,"price":1.005}"#,
            "/price",
            "/properties/price/multipleOf",
            "multipleOf",
            "must be a multiple of 0.01",
        ),
        (
            r#"{"order_ref":"A","qty":1,"to":"secret"}"#,
            "/to",
            "/properties/to/enum",
            "enum",
            "must be one of [\"a\",\"b\"]",
        ),
        (
            r#"{"order_ref":"A","qty":1,"more":1}"#,
            "",
            "/additionalProperties",
            "additionalProperties",
            "has undeclared members: \"more\"",
        ),
        ("7", "", "/type", "type", "must be of type object"),
    ] {
        let violations = check(&order(), body).unwrap_err();
        let expected = Violation {
            instance: instance.to_owned(),
            schema: schema.to_owned(),
            message: message.to_owned(),
            keyword,
        };
        assert_eq!(violations.as_slice(), [expected], "{body}");
    }
    assert_eq!(check(&order(), r#"{"order_ref":"A-17","qty":2}"#), Ok(()));
}

fn chain(levels: usize, keyword: &str) -> Value {
    let level = |at: usize| {
        let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
        json!({ keyword: [next.clone(), next] })
    };
    let mut definitions: Members = (0..levels)
        .map(|at| (format!("d{at}"), level(at)))
        .collect();
    definitions.insert(format!("d{levels}"), json!({"type": "string"}));
    json!({"$ref": "#/$defs/d0", "$defs": definitions})
}

fn fault(schema: &Value) -> &'static str {
    let problems = Validator::compile(schema).expect_err("the schema must be refused");
    problems.as_slice()[0].rule
}

#[test]
fn a_small_schema_cannot_make_exponential_work() {
    for keyword in ["anyOf", "oneOf", "allOf"] {
        assert_eq!(fault(&chain(22, keyword)), "branches");
        assert_eq!(fault(&chain(13, keyword)), "branches");
    }
    // Just under the bound: the check and its explanation come back in reasonable time.
    let violations = check(&chain(12, "anyOf"), "5").unwrap_err();
    assert_eq!(violations.as_slice().len(), 1);
    // A chain of references that would exhaust the stack.
    let links = (0..5_000).map(|at| {
        (
            format!("d{at}"),
            json!({"$ref": format!("#/$defs/d{}", at + 1)}),
        )
    });
    let mut definitions: Members = links.collect();
    definitions.insert("d5000".into(), json!(true));
    assert_eq!(
        fault(&json!({"$ref": "#/$defs/d0", "$defs": definitions})),
        "branches"
    );
}

#[test]
fn a_recursive_schema_explains_a_deep_body_within_the_bound() {
    // Each level tries both alternatives on the same child: 2^60 ways to fail.
    let alternative = |name: &str| {
        json!({
            "type": "object",
            "properties": {"op": {"const": name}, "args": {"items": {"$ref": "#/$defs/term"}}},
            "required": ["op", "args"],
        })
    };
    let schema = json!({
        "$ref": "#/$defs/term",
        "$defs": {"term": {"anyOf": [{"type": "number"}, alternative("add"), alternative("mul")]}},
    });
    let nested = |depth: usize, op: &str| {
        let level = |inner: String, _| format!("{{\"op\":\"{op}\",\"args\":[1,{inner}]}}");
        (0..depth).fold("7".to_owned(), level)
    };
    assert_eq!(check(&schema, &nested(60, "add")), Ok(()));
    for depth in [3, 60] {
        let violations = check(&schema, &nested(depth, "sub")).unwrap_err();
        let told: Vec<_> = violations
            .as_slice()
            .iter()
            .map(|violation| (violation.instance.as_str(), violation.keyword))
            .collect();
        assert_eq!(told, [("", "anyOf")]);
    }
}

#[test]
fn a_worker_thread_s_stack_carries_the_deepest_body() {
    let schema = json!({"properties": {"a": {"$ref": "#"}}, "additionalProperties": false});
    let body = |leaf: &str| {
        let depth = guard::DEEPEST - 1;
        format!("{}{leaf}{}", "{\"a\":".repeat(depth), "}".repeat(depth))
    };
    let worker = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
    let run = move || {
        (
            check(&schema, &body("{}")),
            check(&schema, &body("{\"b\":1}")),
        )
    };
    let (good, bad) = worker.spawn(run).unwrap().join().unwrap();
    assert_eq!(good, Ok(()));
    assert_eq!(bad.unwrap_err().as_slice().len(), 1);
}

#[test]
fn what_is_told_is_bounded_and_holds_no_value() {
    let secret = "4000-0000-0000-0002";
    let huge = format!("{secret}{}", "x".repeat(2 * 1024 * 1024));
    let long_name = "n".repeat(10_000);
    let options: Vec<_> = (0..5_000).map(|at| format!("option-{at}")).collect();
    let schema = json!({
        "properties": {
            "text": {"maxLength": 5, "pattern": "^[a-z]*$", "format": "uuid"},
            "one": {"enum": options},
            "items": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true},
            "any": {"anyOf": [{"type": "null"}, {"const": 1}]},
            "not": {"not": {"type": "string"}},
            "names": {"propertyNames": {"maxLength": 3}},
            "map": {"additionalProperties": {"type": "integer"}},
            "tail": {"prefixItems": [true], "unevaluatedItems": false},
        },
        "unevaluatedProperties": false,
    });
    let items = format!("[{}]", vec![format!("\"{secret}\""); 10_000].join(","));
    for body in [
        format!("{{\"text\":\"{huge}\"}}"),
        format!("{{\"one\":\"{secret}\"}}"),
        format!("{{\"items\":{items}}}"),
        format!("{{\"any\":\"{secret}\"}}"),
        format!("{{\"not\":\"{secret}\"}}"),
        format!("{{\"names\":{{\"abcdef\":\"{secret}\"}}}}"),
        format!("{{\"map\":{{\"{long_name}\":\"{secret}\"}}}}"),
        format!("{{\"tail\":[1,\"{secret}\"]}}"),
        format!("{{\"{long_name}\":\"{secret}\"}}"),
    ] {
        let violations = check(&schema, &body).unwrap_err();
        let told = format!(
            "{violations} {violations:?} {}",
            json!(violations.as_slice())
        );
        assert!(!told.contains("4000"), "{}", &told[..500]);
        assert!(violations.as_slice().len() <= violation::MOST);
        assert!(told.len() < 3 * 4_096 + 3_000, "{} bytes", told.len());
        for violation in violations.as_slice() {
            assert_ne!(violation.keyword, "other", "{violation:?}");
        }
    }
}

#[test]
fn formats_are_asserted() {
    for (format, good, bad) in [
        ("date", "2024-02-29", "2023-02-29"),
        ("date-time", "2024-12-31T23:59:60Z", "tomorrow"),
        ("duration", "P1DT2H", "1 day"),
        ("email", "a@example.org", "a at example"),
        ("hostname", "a.example.org", "-a"),
        ("ipv4", "127.0.0.1", "127.1"),
        ("ipv6", "::1", "1::2::3"),
        ("iri", "https://example.org/é", "é"),
        ("iri-reference", "é", "\\\\a"),
        ("json-pointer", "/a~1b", "a~2"),
        ("relative-json-pointer", "1/a", "/a"),
        ("time", "10:00:00Z", "25:00:00Z"),
        ("uri", "https://example.org/", "example"),
        ("uri-reference", "/a", "\\\\a"),
        ("uuid", "7C9E6679-7425-40DE-944B-E07FC1F90AE7", "7C9E6679"),
    ] {
        assert!(FORMATS.contains(&format), "{format}");
        let schema = json!({ "format": format });
        assert_eq!(check(&schema, &json!(good).to_string()), Ok(()), "{format}");
        assert!(check(&schema, &json!(bad).to_string()).is_err(), "{format}");
    }
    // Not asserted, and so not in the list: a body must not make us compile its expressions.
    for format in ["regex", "uri-template", "made-up"] {
        assert!(!FORMATS.contains(&format));
        assert_eq!(check(&json!({ "format": format }), "\"((\""), Ok(()));
    }
}

#[test]
fn numbers_are_never_rounded_into_conformance() {
    for (schema, body, conforms) in [
        (
            json!({"type": "integer"}),
            "1234567890123456789012345",
            true,
        ),
        (json!({"type": "integer"}), "-0", true),
        (json!({"type": "integer"}), "1.0", true),
        (json!({"type": "integer"}), "1.00000000000000000001", false),
        (
            json!({"maximum": 9_007_199_254_740_992_u64}),
            "9007199254740993",
            false,
        ),
        (json!({"maximum": 100}), "100.00000000000000000001", false),
        (json!({"maximum": 100}), "99.999999999999999999999", false),
        (json!({"maximum": 100}), "12.345678901234567890123", true),
        (json!({"exclusiveMinimum": 0}), "1e-400", false),
        (json!({"minimum": 0}), "-1e-400", false),
        (json!({"const": 0.1}), "0.10000000000000001", false),
        (json!({"multipleOf": 0.01}), "1.10", true),
        (json!({"multipleOf": 0.01}), "19.99", true),
        (json!({"multipleOf": 0.01}), "1.1000000000000001", false),
        (
            json!({"multipleOf": 10}),
            "1234567890123456789012345",
            false,
        ),
        (json!({"type": "number"}), "18446744073709551615", true),
        (
            json!({"properties": {"a": {"maximum": 1}}}),
            "[12345678901234567890123]",
            true,
        ),
    ] {
        let checked = check(&schema, body);
        assert_eq!(checked.is_ok(), conforms, "{schema} {body}: {checked:?}");
    }
    let refused = check(&json!({"maximum": 0.1}), "[0.1,0.10000000000000001]").unwrap_err();
    assert_eq!(refused.as_slice()[0].keyword, "number");
    assert!(
        refused
            .to_string()
            .starts_with("the number at byte 5 has more digits")
    );
}

#[test]
fn a_schema_that_says_less_than_meant_is_refused() {
    for (schema, rule) in [
        (json!({"requried": ["a"]}), "misspelt-keyword"),
        (json!({"type": "int"}), "schema"),
        (
            json!({"definitions": {"a": true}, "$ref": "#/$defs/a"}),
            "unresolved-ref",
        ),
        (json!({"items": [true]}), "schema"),
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#"}),
            "dialect",
        ),
        (
            json!({"properties": {"a": {"$schema": "urn:other"}}}),
            "dialect",
        ),
        (json!({"$ref": "#/$defs/none"}), "unresolved-ref"),
        (json!({"$ref": "#none"}), "unresolved-ref"),
        (
            json!({"$id": "https://example.org/a/", "$ref": "b.json"}),
            "remote-ref",
        ),
        (
            json!({"$ref": "http://127.0.0.1:8500/v1/agent/self"}),
            "remote-ref",
        ),
        (
            json!({"$dynamicRef": "https://example.org/#x"}),
            "remote-ref",
        ),
        (json!({"pattern": "(a)\\1"}), "pattern"),
        (json!({"pattern": "(?:a{1000}){1000}"}), "pattern"),
    ] {
        assert_eq!(fault(&schema), rule, "{schema}");
    }
}

#[test]
fn references_inside_the_schema_are_followed() {
    for (schema, good, bad) in [
        (
            json!({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "null"}}}),
            "null",
            "1",
        ),
        (
            json!({"$ref": "#x", "$defs": {"a": {"$anchor": "x", "type": "null"}}}),
            "null",
            "1",
        ),
        (
            json!({"$ref": "#/definitions/a", "definitions": {"a": {"type": "null"}}}),
            "null",
            "1",
        ),
        (
            json!({"$id": "https://example.org/root", "$ref": "https://example.org/root#/$defs/a", "$defs": {"a": {"type": "null"}}}),
            "null",
            "1",
        ),
        (
            json!({"$ref": "urn:inner", "$defs": {"a": {"$id": "urn:inner", "$ref": "#/$defs/b", "$defs": {"b": {"type": "null"}}}}}),
            "null",
            "1",
        ),
        (
            json!({"$ref": DIALECT}),
            "{\"type\":\"string\"}",
            "{\"type\":\"int\"}",
        ),
        (
            json!({"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}, "required": ["b"]}),
            "{\"b\":1,\"a\":{\"b\":1}}",
            "{\"b\":1,\"a\":{}}",
        ),
    ] {
        assert_eq!(check(&schema, good), Ok(()), "{schema}");
        assert!(check(&schema, bad).is_err(), "{schema}");
    }
}
