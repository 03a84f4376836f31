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
