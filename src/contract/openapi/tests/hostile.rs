//! Documents of strangers: deep, circular, changed at random; and any contract, there and back.

use super::*;

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
