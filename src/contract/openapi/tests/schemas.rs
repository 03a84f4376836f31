//! What becomes of a document's schemas.

use super::*;

#[test]
fn schemas_of_3_0_become_2020_12() {
    let cases = [
        (
            json!({"type": "string", "nullable": true}),
            json!({"type": ["string", "null"]}),
            vec![],
        ),
        (
            json!({"type": "string", "nullable": false}),
            json!({"type": "string"}),
            vec![],
        ),
        (
            json!({"nullable": true, "minLength": 1}),
            json!({"minLength": 1}),
            vec![("nullable", "/nullable")],
        ),
        (
            json!({"type": "string", "nullable": true, "enum": ["a"]}),
            json!({"type": ["string", "null"], "enum": ["a"]}),
            vec![("nullable", "/enum")],
        ),
        (
            json!({"type": "string", "nullable": true, "enum": ["a", null]}),
            json!({"type": ["string", "null"], "enum": ["a", null]}),
            vec![],
        ),
        (
            json!({"minimum": 1, "exclusiveMinimum": true}),
            json!({"exclusiveMinimum": 1}),
            vec![],
        ),
        (
            json!({"maximum": 1, "exclusiveMaximum": true}),
            json!({"exclusiveMaximum": 1}),
            vec![],
        ),
        (
            json!({"maximum": 1, "exclusiveMaximum": false}),
            json!({"maximum": 1}),
            vec![],
        ),
        (
            json!({"exclusiveMaximum": true}),
            json!({}),
            vec![("exclusive-bound", "/exclusiveMaximum")],
        ),
        (
            json!({"exclusiveMinimum": 0}),
            json!({"exclusiveMinimum": 0}),
            vec![("exclusive-bound", "/exclusiveMinimum")],
        ),
        (
            json!({"type": "string", "example": "a"}),
            json!({"type": "string", "examples": ["a"]}),
            vec![],
        ),
        (
            json!({"type": "string", "format": "byte"}),
            json!({"type": "string", "contentEncoding": "base64"}),
            vec![("byte-format", "/format")],
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!({"type": "integer", "format": "int32"}),
            vec![("unchecked-format", "/format")],
        ),
        (
            json!({"type": "number", "format": "double"}),
            json!({"type": "number", "format": "double"}),
            vec![("unchecked-format", "/format")],
        ),
        (
            json!({"type": "string", "format": "ipv4"}),
            json!({"type": "string", "format": "ipv4"}),
            vec![],
        ),
        (
            json!({"oneOf": [{"type": "string"}], "discriminator": {"propertyName": "kind"}}),
            json!({"oneOf": [{"type": "string"}]}),
            vec![("discriminator", "/discriminator")],
        ),
        (
            json!({"type": "string", "xml": {"name": "x"}}),
            json!({"type": "string"}),
            vec![("xml", "/xml")],
        ),
        (
            json!({"type": "string", "externalDocs": {"url": "x"}}),
            json!({"type": "string"}),
            vec![("external-docs", "/externalDocs")],
        ),
        (
            json!({"type": "string", "const": "a"}),
            json!({"type": "string", "const": "a"}),
            vec![("beyond-3.0", "/const")],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string", "nullable": true}}),
            json!({"type": "object", "additionalProperties": {"type": ["string", "null"]}}),
            vec![],
        ),
        (
            json!({"type": "object", "additionalProperties": false}),
            json!({"type": "object", "additionalProperties": false}),
            vec![],
        ),
        (
            json!({"type": "object", "properties": {"nullable": {"type": "string", "example": 1}}, "default": {"nullable": true}}),
            json!({"type": "object", "properties": {"nullable": {"type": "string", "examples": [1]}}, "default": {"nullable": true}}),
            vec![],
        ),
        (
            json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"readOnly": true}, "b": {"writeOnly": true}}}),
            json!({"type": "object", "required": ["b"], "properties": {"a": {"readOnly": true}, "b": {"writeOnly": true}}}),
            vec![("read-only", "/properties/a")],
        ),
    ];
    for (schema, expected, warnings) in cases {
        let (found, said) = converted("3.0.3", schema.clone());
        assert_eq!(found, expected, "{schema}");
        let said: Vec<_> = said.iter().map(|(rule, at)| (*rule, at.as_str())).collect();
        assert_eq!(said, warnings, "{schema}");
    }
}

#[test]
fn schemas_of_3_1_stay_but_for_the_words_of_openapi() {
    let cases = [
        (
            json!({"type": ["string", "null"]}),
            json!({"type": ["string", "null"]}),
            vec![],
        ),
        (
            json!({"type": "string", "nullable": true}),
            json!({"type": "string"}),
            vec![("nullable", "/nullable")],
        ),
        (
            json!({"type": "string", "example": "a"}),
            json!({"type": "string", "examples": ["a"]}),
            vec![],
        ),
        (
            json!({"example": 1, "examples": [2]}),
            json!({"examples": [2]}),
            vec![],
        ),
        (
            json!({"exclusiveMinimum": 0, "const": 1}),
            json!({"exclusiveMinimum": 0, "const": 1}),
            vec![],
        ),
        (
            json!({"oneOf": [{}], "discriminator": {}}),
            json!({"oneOf": [{}]}),
            vec![("discriminator", "/discriminator")],
        ),
        (
            json!({"$schema": "https://spec.openapis.org/oas/3.1/dialect/base", "type": "string"}),
            json!({"type": "string"}),
            vec![],
        ),
        (
            json!({"required": ["a"], "properties": {"a": {"readOnly": true}}}),
            json!({"required": ["a"], "properties": {"a": {"readOnly": true}}}),
            vec![],
        ),
    ];
    for (schema, expected, warnings) in cases {
        let (found, said) = converted("3.1.0", schema.clone());
        assert_eq!(found, expected, "{schema}");
        let said: Vec<_> = said.iter().map(|(rule, at)| (*rule, at.as_str())).collect();
        assert_eq!(said, warnings, "{schema}");
    }
}

#[test]
fn what_a_schema_uses_moves_with_it_and_nothing_else() {
    let node =
        json!({"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}}});
    for (version, schema, components, expected) in [
        (
            "3.0.0",
            json!({"type": "object", "properties": {"a": {"$ref": "#/components/schemas/A"}}}),
            json!({"A": {"type": "string", "nullable": true}, "Unused": {"$ref": "https://example.com"}}),
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": ["string", "null"]}}}),
        ),
        // A lone reference becomes the schema it leads to; a circle leads back to the root.
        (
            "3.1.0",
            json!({"$ref": "#/components/schemas/Node"}),
            json!({"Node": node}),
            json!({"type": "object", "properties": {"next": {"$ref": "#"}}}),
        ),
        (
            "3.1.0",
            json!({"items": {"$ref": "#/components/schemas/Node"}}),
            json!({"Node": node}),
            json!({
                "items": {"$ref": "#/$defs/Node"},
                "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
            }),
        ),
        // Definitions over two steps, and two places that end in the same name.
        (
            "3.1.0",
            json!({"anyOf": [{"$ref": "#/components/schemas/A"}, {"$ref": "#/components/schemas/B/properties/A"}]}),
            json!({"A": {"$ref": "#/components/schemas/C"}, "B": {"properties": {"A": {"type": "null"}}}, "C": {"type": "string"}}),
            json!({
                "anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A_2"}],
                "$defs": {"A": {"$ref": "#/$defs/C"}, "A_2": {"type": "null"}, "C": {"type": "string"}},
            }),
        ),
        // A definition of the schema's own is not overwritten.
        (
            "3.1.0",
            json!({"anyOf": [{"$ref": "#/components/schemas/A"}], "$defs": {"A": {"type": "null"}}}),
            json!({"A": {"type": "string"}}),
            json!({"anyOf": [{"$ref": "#/$defs/A_2"}], "$defs": {"A": {"type": "null"}, "A_2": {"type": "string"}}}),
        ),
        // Inside a schema with its own base `#` is that schema.
        (
            "3.1.0",
            json!({"items": {"$ref": "#/components/schemas/A"}}),
            json!({"A": {"$id": "https://example.com/a", "items": {"$ref": "#/$defs/b"}, "$defs": {"b": {"type": "null"}}}}),
            json!({
                "items": {"$ref": "#/$defs/A"},
                "$defs": {"A": {"$id": "https://example.com/a", "items": {"$ref": "#/$defs/b"}, "$defs": {"b": {"type": "null"}}}},
            }),
        ),
        // By name instead of place.
        (
            "3.1.0",
            json!({"items": {"$ref": "https://example.com/a"}}),
            json!({"A": {"$id": "https://example.com/a", "type": "null"}}),
            json!({"items": {"$ref": "https://example.com/a"}, "$defs": {"A": {"$id": "https://example.com/a", "type": "null"}}}),
        ),
        // Names that a pointer has to escape.
        (
            "3.1.0",
            json!({"items": {"$ref": "#/components/schemas/a~1b%20c"}}),
            json!({"a/b c": {"type": "null"}}),
            json!({"items": {"$ref": "#/$defs/a_1b_c"}, "$defs": {"a_1b_c": {"type": "null"}}}),
        ),
        ("3.1.0", json!(true), json!({}), json!(true)),
    ] {
        let one = imported(&document(version, schema.clone(), components));
        assert_eq!(one.contract.input_schema, expected, "{schema}");
    }
}

#[test]
fn schemas_that_cannot_be_carried_are_refused_with_their_place() {
    let at = |rest: &str| format!("{SCHEMA}{rest}");
    let component = |rest: &str| format!("/components/schemas/A{rest}");
    for (version, schema, components, rule, place) in [
        (
            "3.0.3",
            json!({"type": "file"}),
            json!({}),
            "binary",
            at("/type"),
        ),
        (
            "3.0.3",
            json!({"type": "string", "format": "binary"}),
            json!({}),
            "binary",
            at("/format"),
        ),
        (
            "3.0.3",
            json!({"type": "string", "nullable": "yes"}),
            json!({}),
            "nullable",
            at("/nullable"),
        ),
        (
            "3.1.0",
            json!({"items": {"$ref": "#/components/schemas/A"}}),
            json!({}),
            "unresolved-ref",
            at("/items/$ref"),
        ),
        (
            "3.1.0",
            json!({"items": {"$ref": "#/$defs/A"}, "$defs": {"A": {}}}),
            json!({}),
            "unresolved-ref",
            at("/items/$ref"),
        ),
        (
            "3.1.0",
            json!({"items": {"$ref": "#"}}),
            json!({}),
            "unresolved-ref",
            at("/items/$ref"),
        ),
        (
            "3.1.0",
            json!({"items": {"$ref": "#/info/title"}}),
            json!({}),
            "unresolved-ref",
            at("/items/$ref"),
        ),
        (
            "3.1.0",
            json!({"items": {"$ref": "#/components/schemas/A/$defs/b"}}),
            json!({"A": {"$id": "https://example.com/a", "$defs": {"b": {}}}}),
            "unresolved-ref",
            at("/items/$ref"),
        ),
        (
            "3.1.0",
            json!({"$ref": "#/components/schemas/A"}),
            json!({"A": {"$ref": "#/components/schemas/A"}}),
            "ref-circle",
            component("/$ref"),
        ),
    ] {
        let refusals = refused(&document(version, schema.clone(), components));
        assert_eq!(refusals, [(rule, place)], "{schema}");
    }
}

#[test]
fn base64_is_said_and_not_checked() {
    let one = imported(&document(
        "3.0.3",
        json!({"type": "string", "format": "byte"}),
        json!({}),
    ));
    let validator = crate::contract::Validator::compile(&one.contract.input_schema).unwrap();
    let body = guard::parse(br#""no base64!""#, &guard::Limits::default()).unwrap();
    assert!(validator.check(&body).is_ok());
}

#[test]
fn an_embedded_schema_checks_what_the_contracts_own_does() {
    let schema = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "string"}}});
    let contract = json!({
        "id": "a-v1.0", "version": "1.0.0", "input_schema": schema, "output_schema": schema,
        "constraints": {"timeout_ms": 1},
    });
    let contract = Contract::from_slice(&bytes(&contract)).unwrap();
    let mut description = Description::new("a");
    description.contract(&contract, &Method::POST, "/a");
    let document = description.to_json();
    let embedded = document.pointer("/paths/~1a/post/requestBody/content/application~1json/schema");
    let embedded = embedded.unwrap();
    let validator = crate::contract::Validator::compile(embedded).unwrap();
    for (body, fits) in [(r#"{"a": "x"}"#, true), (r#"{"a": 1}"#, false)] {
        let body = guard::parse(body.as_bytes(), &guard::Limits::default()).unwrap();
        assert_eq!(validator.check(&body).is_ok(), fits);
    }
    assert_eq!(embedded["$id"], "urn:hermes:schema:a-v1.0@1.0.0:input");
}
