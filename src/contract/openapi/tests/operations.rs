//! What an operation says beyond its schemas, and where its faults are told.

use super::*;

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
        let reply = crate::contract::from_reply(&bytes(document), &wanted);
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
