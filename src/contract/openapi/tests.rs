use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::contract::guard;

/// A document with one contract whose request and reply have these schemas.
fn document(version: &str, input: Value, components: Value) -> Value {
    json!({
        "openapi": version,
        "info": {"title": "risk", "version": "1.0.3"},
        "paths": {"/risk": {"post": {
            "x-hermes": {"id": "fraud-detection-v1.0", "constraints": {"timeout_ms": 500}},
            "requestBody": {"required": true, "content": {"application/json": {"schema": input}}},
            "responses": {"200": {"description": "", "content": {"application/json": {"schema": {"type": "object", "required": ["score"]}}}}},
        }}},
        "components": {"schemas": components},
    })
}

fn bytes(document: &Value) -> Vec<u8> {
    document.to_string().into_bytes()
}

fn imported(document: &Value) -> Imported {
    let all = read(&bytes(document));
    let mut all = all.unwrap_or_else(|problems| panic!("{document:#}\n{problems}"));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn refused(document: &Value) -> Vec<(&'static str, String)> {
    let problems = read(&bytes(document)).err();
    let problems = problems.unwrap_or_else(|| panic!("accepted: {document:#}"));
    told(&problems)
}

fn told(problems: &Problems) -> Vec<(&'static str, String)> {
    let all = problems.as_slice().iter();
    all.map(|problem| (problem.rule, problem.pointer.clone()))
        .collect()
}

/// Where the schema of `document` stands.
const SCHEMA: &str = "/paths/~1risk/post/requestBody/content/application~1json/schema";

/// Converts one input schema, and tells the rules of the warnings with their places in it.
fn converted(version: &str, schema: Value) -> (Value, Vec<(&'static str, String)>) {
    let one = imported(&document(version, schema, json!({})));
    let warnings = told(&one.warnings).into_iter();
    let warnings = warnings.map(|(rule, at)| (rule, at.replace(SCHEMA, "")));
    (one.contract.input_schema, warnings.collect())
}

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
fn faults_found_by_the_native_rules_are_told_where_the_document_has_them() {
    let in_component = |schema: Value| {
        document(
            "3.1.0",
            json!({"items": {"$ref": "#/components/schemas/A"}}),
            json!({"A": schema}),
        )
    };
    for (schema, rule, rest) in [
        (json!({"type": "int"}), "schema", "/type"),
        (
            json!({"$ref": "https://example.com/x"}),
            "remote-ref",
            "/$ref",
        ),
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#"}),
            "dialect",
            "/$schema",
        ),
        (json!({"pattern": "(?=a)"}), "pattern", "/pattern"),
        (
            json!({"exclusiveMinimum": true}),
            "schema",
            "/exclusiveMinimum",
        ),
    ] {
        let place = format!("/components/schemas/A{rest}");
        assert_eq!(
            refused(&in_component(schema.clone())),
            [(rule, place)],
            "{schema}"
        );
    }
    let mut document = document("3.1.0", json!({}), json!({}));
    document["info"]["version"] = json!("2.0.0");
    assert_eq!(
        refused(&document),
        [("id-version", "/info/version".to_owned())]
    );
    document["info"]["version"] = json!("1.0.0");
    let operation = &mut document["paths"]["/risk"]["post"];
    operation["x-hermes"] =
        json!({"id": "fraud-detection-v1.0", "timeout_ms": 5, "input_schema": {}});
    let at = "/paths/~1risk/post/x-hermes";
    assert_eq!(
        refused(&document),
        [("field-type", format!("{at}/input_schema"))]
    );
    document["paths"]["/risk"]["post"]["x-hermes"] =
        json!({"id": "fraud-detection-v1.0", "timeout_ms": 5});
    let expected = [
        ("unknown-field", format!("{at}/timeout_ms")),
        ("missing-field", format!("{at}/constraints")),
    ];
    assert_eq!(refused(&document), expected);
}

/// Changes one place of a sound document.
fn changed(version: &str, pointer: &str, value: Value) -> Value {
    let mut document = document(version, json!({"type": "object"}), json!({}));
    let (above, name) = pointer.rsplit_once('/').unwrap();
    document.pointer_mut(above).unwrap()[name] = value;
    document
}

#[test]
fn operations_that_cannot_be_carried_are_refused() {
    let post = "/paths/~1risk/post";
    let request = json!({"content": {"text/plain": {"schema": {}}}, "required": true});
    for (pointer, value, rule, place) in [
        ("/openapi", json!("3.2.0"), "openapi-version", "/openapi"),
        ("/openapi", json!("3.1"), "openapi-version", "/openapi"),
        ("/openapi", json!(3), "openapi-version", "/openapi"),
        ("/swagger", json!("2.0"), "openapi-version", "/swagger"),
        (
            "/jsonSchemaDialect",
            json!("http://json-schema.org/draft-07/schema#"),
            "dialect",
            "/jsonSchemaDialect",
        ),
        ("/paths", json!([]), "openapi", "/paths"),
        (
            "/paths",
            json!({"/a": {"post": {}}}),
            "no-contract",
            "/paths",
        ),
        (
            "/paths",
            json!({"/a": {"get": {"x-hermes": {}}}}),
            "method",
            "/paths/~1a/get",
        ),
        (
            "/paths/~1risk/post/x-hermes",
            json!([]),
            "shared-route",
            "/paths/~1risk/post/x-hermes",
        ),
        (
            "/paths/~1risk/post/x-hermes",
            json!("x"),
            "field-type",
            "/paths/~1risk/post/x-hermes",
        ),
        (
            "/paths/~1risk/post/requestBody",
            request,
            "no-input",
            "/paths/~1risk/post/requestBody",
        ),
        (
            "/paths/~1risk/post/requestBody",
            json!({"$ref": "other.json"}),
            "remote-ref",
            "/paths/~1risk/post/requestBody/$ref",
        ),
        (
            "/paths/~1risk/post/requestBody",
            json!({"$ref": "#/paths/~1risk/post/requestBody"}),
            "ref-circle",
            "/paths/~1risk/post/requestBody",
        ),
        (
            "/paths/~1risk/post/responses",
            json!({"404": {}}),
            "no-output",
            "/paths/~1risk/post/responses",
        ),
        (
            "/paths/~1risk/post/parameters",
            json!([{"name": "tenant", "in": "query", "required": true}]),
            "parameter",
            "/paths/~1risk/post/parameters/0",
        ),
    ] {
        let document = changed("3.1.0", pointer, value.clone());
        assert_eq!(
            refused(&document),
            [(rule, place.to_owned())],
            "{pointer}: {value}"
        );
    }
    let mut document = document("3.1.0", json!({}), json!({}));
    let item = document["paths"]["/risk"].take();
    document["paths"] = json!({"/risk/{id}": item.clone()});
    assert_eq!(
        refused(&document),
        [("path", post.replace("risk", "risk~1{id}"))]
    );
    document["paths"] = json!({"/a": item, "/b": item});
    assert_eq!(
        refused(&document),
        [("id-twice", "/paths/~1b/post/x-hermes/id".to_owned())]
    );
}

#[test]
fn what_a_contract_does_not_hold_is_said() {
    let at = "/paths/~1risk/post";
    let json_of = |schema: Value| json!({"application/json": {"schema": schema}});
    for (pointer, value, rule, place) in [
        (
            "parameters",
            json!([{"name": "verbose", "in": "query"}]),
            "parameter",
            "/parameters/0",
        ),
        ("security", json!([{"key": []}]), "security", "/security"),
        ("callbacks", json!({}), "callbacks", "/callbacks"),
        (
            "servers",
            json!([{"url": "https://example.com/v1/"}]),
            "base-path",
            "",
        ),
        (
            "requestBody",
            json!({"content": json_of(json!({}))}),
            "optional-body",
            "/requestBody",
        ),
        (
            "requestBody",
            json!({"required": true, "content": {"application/json": {"schema": {}}, "text/plain": {}}}),
            "media-type",
            "/requestBody/content/text~1plain",
        ),
        (
            "responses",
            json!({"200": {"content": {"*/*": {"schema": {}}}}}),
            "media-type",
            "/responses/200/content/*~1*",
        ),
        (
            "responses",
            json!({"default": {"content": json_of(json!({}))}}),
            "default-reply",
            "/responses/default",
        ),
        ("responses", json!({"204": {}}), "empty-reply", "/responses"),
        (
            "responses",
            json!({"200": {"content": json_of(json!({"type": "object"}))}, "201": {"content": json_of(json!({"type": "array"}))}}),
            "several-replies",
            "/responses",
        ),
        (
            "description",
            json!("x".repeat(5_000)),
            "description",
            "/description",
        ),
    ] {
        let document = changed("3.1.0", &format!("{at}/{pointer}"), value.clone());
        let said = told(&imported(&document).warnings);
        assert_eq!(said, [(rule, format!("{at}{place}"))], "{pointer}: {value}");
    }
    // What sidecars themselves send, and what lets anybody in, needs no word.
    let quiet = json!([{"name": "hermes-task-id", "in": "header"}, {"name": "Idempotency-Key", "in": "header", "required": true}]);
    for (pointer, value) in [
        ("parameters", quiet),
        ("security", json!([])),
        ("security", json!([{"key": []}, {}])),
        (
            "servers",
            json!([{"url": "https://example.com"}, {"url": "/"}]),
        ),
        ("summary", json!("scores")),
    ] {
        let document = changed("3.1.0", &format!("{at}/{pointer}"), value.clone());
        assert_eq!(
            told(&imported(&document).warnings),
            [],
            "{pointer}: {value}"
        );
    }
}

#[test]
fn replies_of_success_are_alternatives_and_share_their_definitions() {
    let node = json!({"$ref": "#/components/schemas/Node"});
    let content = |schema: &Value| json!({"content": {"application/json": {"schema": schema}}});
    let responses = json!({
        "200": content(&json!({"items": node})),
        "201": content(&json!({"items": node})),
        "202": content(&node),
        "204": {"description": "nothing"},
        "404": content(&json!({"type": "string"})),
    });
    let mut document = changed("3.1.0", "/paths/~1risk/post/responses", responses);
    document["components"]["schemas"]["Node"] = json!({"type": "object"});
    let one = imported(&document);
    let expected = json!({
        "anyOf": [{"items": {"$ref": "#/$defs/Node"}}, {"$ref": "#/$defs/Node"}, {"type": "null"}],
        "$defs": {"Node": {"type": "object"}},
    });
    assert_eq!(one.contract.output_schema, expected);
}

#[test]
fn the_nearest_extension_wins_member_by_member() {
    let mut document = document("3.1.0", json!({}), json!({}));
    document["x-hermes"] = json!({"tags": ["root"], "idempotent": true, "x-owner": "root"});
    document["paths"]["/risk"]["x-hermes"] = json!({"tags": ["path"], "version": "1.0.9"});
    document["paths"]["/risk"]["post"]["description"] = json!("longer");
    document["paths"]["/risk"]["post"]["summary"] = json!("short");
    document["paths"]["/health"] = json!({"get": {}, "put": {}});
    let contract = imported(&document).contract;
    assert_eq!(contract.tags, ["path"]);
    assert!(contract.idempotent);
    assert_eq!(contract.version.to_string(), "1.0.9");
    assert_eq!(contract.extensions["x-owner"], "root");
    assert_eq!(contract.description, "longer");

    // At the root alone it means the only operation with a body.
    let own = document["paths"]["/risk"]["post"]["x-hermes"].take();
    document["x-hermes"] = own;
    for members in [&mut document["paths"]["/risk"], &mut Value::Null] {
        members
            .as_object_mut()
            .map(|members| members.remove("x-hermes"));
    }
    let post = document["paths"]["/risk"]["post"].as_object_mut().unwrap();
    post.remove("x-hermes");
    assert_eq!(
        refused(&document),
        [("no-contract", "/x-hermes".to_owned())]
    );
    document["paths"]["/health"]["put"] = Value::Null;
    let contract = imported(&document).contract;
    assert_eq!(
        (contract.version.to_string().as_str(), contract.id.as_str()),
        ("1.0.3", "fraud-detection-v1.0")
    );
}

#[test]
fn the_document_that_is_changed_at_random_is_sound() {
    let one = imported(&full());
    let rules: Vec<_> = one
        .warnings
        .as_slice()
        .iter()
        .map(|warning| warning.rule)
        .collect();
    for rule in [
        "base-path",
        "parameter",
        "security",
        "read-only",
        "empty-reply",
        "several-replies",
    ] {
        assert!(rules.contains(&rule), "{rule}: {rules:?}");
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
fn a_reply_is_read_in_either_form() {
    let mut document = document("3.1.0", json!({}), json!({}));
    document["servers"] = json!([{"url": "/api"}]);
    let (post, put) = ("POST", "PUT");
    let wanted = |agent, method, path| Wanted {
        agent,
        method,
        path,
    };
    let ask = |document: &Value, wanted: Wanted<'_>| {
        let reply = super::super::from_reply(&bytes(document), &wanted);
        reply
            .map(|(contract, warnings)| (contract.id.to_string(), told(&warnings)))
            .map_err(|problems| told(&problems))
    };
    let based = ("base-path", "/paths/~1risk/post".to_owned());
    let risk = |more: Vec<(&'static str, String)>| {
        let mut all = vec![based.clone()];
        all.extend(more);
        Ok(("fraud-detection-v1.0".to_owned(), all))
    };
    assert_eq!(ask(&document, wanted(None, post, "/risk")), risk(vec![]));
    assert_eq!(
        ask(&document, wanted(None, post, "/api/risk")),
        risk(vec![])
    );
    let strange = ("route", "/paths/~1risk/post".to_owned());
    assert_eq!(
        ask(&document, wanted(None, put, "/risk")),
        risk(vec![strange])
    );

    let mut other = document["paths"]["/risk"].clone();
    other["post"]["x-hermes"]["id"] = json!("fraud-rules-v1.0");
    // A fault of the other one is no concern of ours.
    other["post"]["x-hermes"]["constraints"] = json!({});
    document["paths"]["/rules"] = other;
    assert_eq!(ask(&document, wanted(None, post, "/risk")), risk(vec![]));
    assert_eq!(
        ask(&document, wanted(Some("fraud-detection-v1.0"), put, "/x")),
        risk(vec![])
    );
    let nothing = Err(vec![("no-contract", "/paths".to_owned())]);
    assert_eq!(ask(&document, wanted(None, post, "/x")), nothing);
    assert_eq!(
        ask(&document, wanted(Some("x-v1.0"), post, "/risk")),
        nothing
    );

    let mut native: Value = serde_json::from_slice(
        imported(&self::document("3.1.0", json!({}), json!({})))
            .contract
            .body(),
    )
    .unwrap();
    let id = "fraud-detection-v1.0".to_owned();
    assert_eq!(
        ask(&native, wanted(None, post, "/")),
        Ok((id.clone(), vec![]))
    );
    native["signature"] = json!("0123456789abcdef");
    let hash = vec![("signature-hash", "/signature".to_owned())];
    assert_eq!(ask(&native, wanted(None, post, "/")), Ok((id, hash)));
    let wrong = Err(vec![("no-contract", "/id".to_owned())]);
    assert_eq!(ask(&native, wanted(Some("x-v1.0"), post, "/")), wrong);
}

#[test]
fn hostile_documents_end_early() {
    // Deep.
    let deep = |levels: usize| {
        let text = document("3.1.0", json!({"x-deep": "HERE"}), json!({})).to_string();
        let nest = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        text.replace("\"HERE\"", &nest)
    };
    assert!(read(deep(60).as_bytes()).is_ok());
    assert_eq!(told(&read(deep(70).as_bytes()).unwrap_err())[0].0, "json");
    assert_eq!(
        told(&read(deep(100_000).as_bytes()).unwrap_err())[0].0,
        "json"
    );
    // Huge.
    let huge = document(
        "3.1.0",
        json!({"description": "x".repeat(1 << 20)}),
        json!({}),
    );
    assert_eq!(refused(&huge), [("oversize", String::new())]);
    // Twice the same name.
    let twice = r#"{"openapi": "3.1.0", "paths": {"/a": {}, "/a": {}}}"#;
    assert!(is_document(twice.as_bytes()));
    assert_eq!(
        told(&read(twice.as_bytes()).unwrap_err()),
        [("json", "/paths/~1a".to_owned())]
    );
    assert!(!is_document(br#"{"openapi": "3.1.0", "openapi": "3.1.0"}"#));
    // A small document that would become a large one.
    let mut many = document(
        "3.1.0",
        json!({"$ref": "#/components/schemas/Big"}),
        json!({}),
    );
    many["components"]["schemas"]["Big"] = json!({"enum": (0..20_000).collect::<Vec<_>>()});
    let item = many["paths"]["/risk"].take();
    let mut paths = Map::new();
    for number in 0..200 {
        let mut item = item.clone();
        item["post"]["x-hermes"]["id"] = json!(format!("c{number}-v1.0"));
        paths.insert(format!("/{number}"), item);
    }
    many["paths"] = Value::Object(paths.clone());
    let refusals = refused(&many);
    assert!(
        refusals.iter().all(|(rule, _)| *rule == "oversize"),
        "{refusals:?}"
    );
    // References that lead to references, walked anew for every contract.
    let schemas = &mut many["components"]["schemas"];
    for number in 0..5_000 {
        let next = format!("#/components/schemas/s{}", number + 1);
        schemas[format!("s{number}")] = json!({"$ref": next});
    }
    schemas["Big"] = json!({"$ref": "#/components/schemas/s0"});
    schemas["s5000"] = json!({"type": "object"});
    assert_eq!(refused(&many)[0].0, "oversize");
    // More contracts than anybody has.
    for number in 200..300 {
        let mut item = item.clone();
        item["post"]["x-hermes"]["id"] = json!(format!("c{number}-v1.0"));
        paths.insert(format!("/{number}"), item);
    }
    many["paths"] = Value::Object(paths);
    assert_eq!(refused(&many), [("oversize", "/paths".to_owned())]);
    // References that follow each other without end in sight.
    let mut chain = Map::new();
    for number in 0..3_000 {
        let next = format!("#/components/schemas/s{}", number + 1);
        chain.insert(format!("s{number}"), json!({"items": {"$ref": next}}));
    }
    chain.insert("s3000".to_owned(), json!({"type": "null"}));
    let chain = document(
        "3.1.0",
        json!({"$ref": "#/components/schemas/s0"}),
        Value::Object(chain),
    );
    assert_eq!(refused(&chain)[0].0, "branches");
}

/// Schemas with what makes embedding hard: own names, definitions, references, foreign words.
fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(true)),
        Just(json!({"type": "string", "nullable": true, "x-example": "x"})),
        Just(json!({"type": "number", "minimum": 0.1, "exclusiveMaximum": 1e3})),
        Just(json!({"$ref": "#"})),
        Just(json!({"const": {"$ref": "#/nowhere", "$id": "x"}})),
        Just(json!({"xml": {}, "discriminator": 1, "externalDocs": []})),
        Just(json!({"format": "int32", "readOnly": true, "x-hermes-id": "y"})),
    ];
    let names = prop::sample::select(vec![
        None,
        Some("https://example.com/a"),
        Some("https://example.com/b#"),
        Some("c"),
        Some("urn:hermes:schema:x@1.0.0:input"),
        Some("urn:hermes:schema:odd"),
    ]);
    (prop::collection::vec(leaf, 1..4), names, any::<bool>()).prop_map(|(leaves, name, refers)| {
        let mut schema =
            json!({"type": "object", "properties": {}, "$defs": {"d": {"type": "null"}}});
        for (index, leaf) in leaves.into_iter().enumerate() {
            schema["properties"][format!("p{index}")] = leaf;
        }
        if refers {
            schema["properties"]["local"] = json!({"$ref": "#/$defs/d"});
        }
        if let Some(name) = name {
            schema["$id"] = json!(name);
            let name = name.trim_end_matches('#');
            schema["properties"]["named"] = json!({"$ref": format!("{name}#/$defs/d")});
        }
        schema
    })
}

fn contracts() -> impl Strategy<Value = Value> {
    let description = prop::option::of("\\PC{0,20}");
    (
        schemas(),
        schemas(),
        description,
        any::<bool>(),
        1_u64..9_999,
    )
        .prop_map(|(input, output, description, is_long, timeout)| {
            let mut contract = json!({
                "id": "fraud-detection-v1.0", "version": "1.0.7",
                "input_schema": input, "output_schema": output,
                "constraints": {"timeout_ms": timeout},
            });
            if let Some(text) = description {
                contract["description"] = json!(text);
            }
            if is_long {
                contract["tags"] = json!(["a", "b"]);
                contract["retry_policy"] = json!({"max_retries": 0});
                contract["fallback"] = json!(["other-v1.0"]);
                contract["probe"] = json!({"input": {"p0": 0.30}, "expect": {}});
                contract["signatures"] = json!([{"protected": "e30", "signature": "AA"}]);
                contract["x-note"] = json!({"deep": [1, 2.5, null]});
            }
            contract
        })
}

/// Every place in a value.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                places(member, &format!("{at}/{}", document::step(name)), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                places(item, &format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

/// A document in which everything this room reads occurs.
fn full() -> Value {
    let mut full = document(
        "3.0.0",
        json!({"allOf": [{"$ref": "#/components/schemas/A"}], "properties": {"b": {"$ref": "#/components/schemas/B"}}}),
        json!({
            "A": {"type": "object", "required": ["r"], "properties": {"r": {"type": "string", "readOnly": true, "nullable": true}}},
            "B": {"$id": "https://example.com/b", "items": {"$ref": "#/$defs/c"}, "$defs": {"c": {"minimum": 1, "exclusiveMinimum": true}}},
        }),
    );
    full["servers"] = json!([{"url": "/v1"}]);
    full["security"] = json!([{"key": []}]);
    full["x-hermes"] = json!({"tags": ["a"]});
    full["components"]["parameters"] = json!({"P": {"name": "p", "in": "query"}});
    let post = &mut full["paths"]["/risk"]["post"];
    post["parameters"] = json!([{"$ref": "#/components/parameters/P"}]);
    post["responses"]["204"] = json!({"description": ""});
    post["responses"]["201"] =
        json!({"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}});
    full
}

fn odd_values() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!(""),
        json!("3.1.0"),
        json!([]),
        json!([{}]),
        json!({}),
        json!("https://json-schema.org/draft/2020-12/schema"),
        json!({"$ref": "#"}),
        json!({"$ref": "#/"}),
        json!({"$ref": "#/paths"}),
        json!({"$ref": "%%"}),
        json!({"$ref": "#/%ff"}),
        json!({"$ref": "#/components/schemas/A"}),
        json!({"$ref": "https://example.com/b#/$defs/c"}),
        json!({"$id": "x", "$ref": "#x"}),
        json!({"properties": [], "items": 1, "allOf": {}, "required": "x", "type": 1, "$defs": 1}),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_change_of_a_document_ends_in_a_panic(
        version in prop::sample::select(vec!["3.0.1", "3.1.0"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), odd_values()), 1..4),
    ) {
        let mut document = full();
        document["openapi"] = json!(version);
        for (place, value) in changes {
            let mut all = Vec::new();
            places(&document, "", &mut all);
            let place = place.get(&all);
            *document.pointer_mut(place).unwrap() = value;
        }
        if let Ok(all) = read(&bytes(&document)) {
            for one in all {
                let again = Contract::from_slice(one.contract.body()).unwrap();
                prop_assert_eq!(again.digest(), one.contract.digest());
            }
        }
    }

    #[test]
    fn a_contract_written_and_read_back_is_the_same(first in contracts(), second in contracts()) {
        let mut second = second;
        second["id"] = json!("fraud-rules-v1.0");
        let originals: Vec<Contract> = [&first, &second]
            .into_iter()
            .map(|text| Contract::from_slice(&bytes(text)).unwrap())
            .collect();
        let mut description = Description::new("risk");
        for original in &originals {
            description.contract(original, &Method::PUT, &format!("/{}", original.id));
        }
        let text = description.to_bytes();
        let back = read(&text).unwrap_or_else(|problems| panic!("{problems}"));
        prop_assert_eq!(back.len(), 2);
        for (original, back) in originals.iter().zip(&back) {
            prop_assert_eq!(original.digest(), back.contract.digest());
            prop_assert_eq!(&original.signatures, &back.contract.signatures);
            prop_assert_eq!(&back.path, &format!("/{}", original.id));
            prop_assert_eq!(&back.method, &Method::PUT);
            prop_assert!(back.warnings.is_empty(), "{}", back.warnings);
        }
    }
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

#[test]
fn contracts_that_share_a_route_stand_side_by_side() {
    let mut description = Description::new("a");
    for id in ["a-v1.0", "b-v1.0"] {
        let contract = json!({
            "id": id, "version": "1.0.0", "input_schema": {"type": "object", "title": id},
            "output_schema": {"type": "object"}, "constraints": {"timeout_ms": 1},
        });
        let contract = Contract::from_slice(&bytes(&contract)).unwrap();
        description.contract(&contract, &Method::POST, "/{odd}");
    }
    let document = description.to_json();
    let post = &document["paths"]["/%7Bodd%7D"]["post"];
    let schema = &post["requestBody"]["content"]["application/json"]["schema"];
    let titles: Vec<_> = schema["anyOf"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["title"])
        .collect();
    assert_eq!(titles, ["a-v1.0", "b-v1.0"]);
    assert_eq!(post["x-hermes"][1]["id"], "b-v1.0");
    let at = "/paths/~1%7Bodd%7D/post/x-hermes".to_owned();
    assert_eq!(refused(&document), [("shared-route", at)]);
}
