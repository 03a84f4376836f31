//! Which changes break whom, and what is said about them.

use serde_json::json;

use super::*;

fn contract(input: &Value, output: &Value) -> Contract {
    let body = json!({
        "id": "risk-score-v1.0",
        "version": "1.0.0",
        "input_schema": input,
        "output_schema": output,
        "constraints": {"timeout_ms": 500},
    });
    Contract::from_slice(body.to_string().as_bytes()).unwrap()
}

/// Compares two input schemas: what the first accepts, the second has to accept.
fn input(old: &Value, new: &Value) -> Comparison {
    let open = json!(true);
    compare(&contract(old, &open), &contract(new, &open))
}

/// Counts the steps that it takes to find that the second does not accept everything; nothing
/// if it is given up.
fn steps(old: &Value, new: &Value) -> Option<u32> {
    let mut subset = Subset::new(Side::Input);
    let (old, new) = (Source::of(old), Source::of(new));
    let issues = subset.subset(&[old.root()], new.root());
    if subset.work.is_spent() {
        return None;
    }
    assert!(!issues.is_empty());
    Some(subset.work.taken())
}

fn lines(comparison: &Comparison) -> Vec<String> {
    let text = comparison.to_string();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn schemas_of_one_type() {
    use Verdict::{Breaking, Compatible, Undecided};
    for (old, new, expected) in [
        // Types.
        (
            json!({"type": "integer"}),
            json!({"type": "number"}),
            Compatible,
        ),
        (
            json!({"type": "number"}),
            json!({"type": "integer"}),
            Breaking,
        ),
        (
            json!({"type": "number", "multipleOf": 2}),
            json!({"type": "integer"}),
            Compatible,
        ),
        (
            json!({"type": ["string", "null"]}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
            Compatible,
        ),
        (json!({}), json!({"type": "string"}), Breaking),
        (json!(true), json!({}), Compatible),
        (json!(false), json!({"type": "string"}), Compatible),
        (json!({"type": "string"}), json!(false), Breaking),
        (json!({"type": "string"}), json!({"minimum": 5}), Compatible),
        (json!({"minimum": 5}), json!({"type": "number"}), Breaking),
        // Values.
        (
            json!({"enum": ["a", 1, 2.0]}),
            json!({"enum": ["a", 1.0, 2, 3]}),
            Compatible,
        ),
        (
            json!({"enum": ["a", "b"]}),
            json!({"enum": ["a"]}),
            Breaking,
        ),
        (
            json!({"enum": ["a", 7], "type": "string"}),
            json!({"const": "a"}),
            Compatible,
        ),
        (json!({"const": "a"}), json!({"type": "string"}), Compatible),
        (
            json!({"type": "boolean"}),
            json!({"enum": [true, false]}),
            Compatible,
        ),
        (
            json!({"type": "integer", "minimum": 1, "maximum": 3}),
            json!({"enum": [1, 2, 3]}),
            Compatible,
        ),
        // Numbers.
        (json!({"minimum": 1}), json!({"minimum": 0}), Compatible),
        (
            json!({"type": "number", "minimum": 1}),
            json!({"minimum": 2}),
            Breaking,
        ),
        (
            json!({"type": "integer", "exclusiveMinimum": 1}),
            json!({"minimum": 2}),
            Compatible,
        ),
        (
            json!({"type": "number", "exclusiveMinimum": 1}),
            json!({"minimum": 2}),
            Breaking,
        ),
        (
            json!({"type": "number", "minimum": 1}),
            json!({"exclusiveMinimum": 1}),
            Breaking,
        ),
        (
            json!({"type": "number", "minimum": 3, "maximum": 2}),
            json!(false),
            Compatible,
        ),
        (
            json!({"type": "number", "multipleOf": 0.1}),
            json!({"multipleOf": 0.01}),
            Compatible,
        ),
        (
            json!({"type": "number", "multipleOf": 3}),
            json!({"multipleOf": 2}),
            Breaking,
        ),
        (
            json!({"type": "integer"}),
            json!({"multipleOf": 1}),
            Undecided,
        ),
        // Texts.
        (
            json!({"type": "string", "minLength": 2, "maxLength": 3}),
            json!({"minLength": 1, "maxLength": 4}),
            Compatible,
        ),
        (json!({"type": "string"}), json!({"maxLength": 4}), Breaking),
        (
            json!({"type": "string", "pattern": "^a"}),
            json!({"pattern": "^a"}),
            Compatible,
        ),
        (
            json!({"type": "string", "pattern": "^ab"}),
            json!({"pattern": "^a"}),
            Undecided,
        ),
        (
            json!({"type": "string"}),
            json!({"pattern": "^a"}),
            Breaking,
        ),
        (
            json!({"type": "string", "format": "uri"}),
            json!({"format": "uri-reference"}),
            Compatible,
        ),
        (
            json!({"type": "string", "format": "date"}),
            json!({"format": "date-time"}),
            Breaking,
        ),
        (
            json!({"type": "string"}),
            json!({"type": "string", "format": "colour"}),
            Undecided,
        ),
        // Arrays.
        (
            json!({"type": "array", "items": {"type": "integer"}, "maxItems": 2}),
            json!({"items": {"type": "number"}, "maxItems": 3}),
            Compatible,
        ),
        (
            json!({"type": "array"}),
            json!({"items": {"type": "number"}}),
            Breaking,
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "string"}], "items": false}),
            json!({"items": {"type": "string"}, "maxItems": 1}),
            Compatible,
        ),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            json!({"uniqueItems": true}),
            Breaking,
        ),
        (
            json!({"type": "array", "items": {"const": 1}, "minItems": 1}),
            json!({"contains": {"type": "integer"}}),
            Compatible,
        ),
        (
            json!({"type": "array", "contains": {"const": 1}}),
            json!({"contains": {"type": "integer"}}),
            Compatible,
        ),
        (
            json!({"type": "array"}),
            json!({"contains": {"type": "integer"}}),
            Breaking,
        ),
    ] {
        let comparison = input(&old, &new);
        assert_eq!(comparison.verdict(), expected, "{old} {new}\n{comparison}");
    }
}

#[test]
fn objects() {
    use Verdict::{Breaking, Compatible};
    let object = |rest: Value| {
        let mut schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        for (name, value) in rest.as_object().unwrap() {
            schema[name] = value.clone();
        }
        schema
    };
    for (old, new, expected) in [
        // A new optional member hurts nobody, even where the old schema was open.
        (
            object(json!({})),
            object(json!({"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}})),
            Compatible,
        ),
        (
            object(json!({})),
            object(json!({"required": ["a"]})),
            Breaking,
        ),
        (
            object(json!({"required": ["a"]})),
            object(json!({})),
            Compatible,
        ),
        (
            object(json!({"required": ["a"], "dependentRequired": {"a": ["b"]}})),
            object(json!({"required": ["a", "b"]})),
            Compatible,
        ),
        // Closing an object changes nothing for those who use what it declares.
        (
            object(json!({})),
            object(json!({"additionalProperties": false})),
            Compatible,
        ),
        (
            object(json!({"patternProperties": {"^x-": {}}})),
            object(json!({"additionalProperties": false})),
            Breaking,
        ),
        (
            object(json!({})),
            json!({"type": "object", "properties": {}, "additionalProperties": false}),
            Breaking,
        ),
        // Nothing listed: any member may be there.
        (json!({"type": "object"}), object(json!({})), Breaking),
        (object(json!({})), json!({"type": "object"}), Compatible),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"additionalProperties": {"type": "number"}}),
            Compatible,
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"additionalProperties": {"type": "string"}}),
            Breaking,
        ),
        (
            object(json!({})),
            object(json!({"properties": {"a": {"type": "string", "maxLength": 5}}})),
            Breaking,
        ),
        (
            object(json!({})),
            object(json!({"maxProperties": 1})),
            Compatible,
        ),
        (
            object(json!({})),
            object(json!({"minProperties": 1})),
            Breaking,
        ),
        (
            object(json!({"required": ["a"]})),
            object(json!({"minProperties": 1})),
            Compatible,
        ),
        (
            object(json!({})),
            object(json!({"propertyNames": {"maxLength": 1}})),
            Compatible,
        ),
        (
            object(json!({})),
            object(json!({"propertyNames": {"minLength": 2}})),
            Breaking,
        ),
        (
            object(json!({"properties": {"a": {}, "b": {}}})),
            object(json!({"properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}})),
            Breaking,
        ),
        (
            object(json!({"properties": {"a": false}, "required": ["a"]})),
            object(json!({"properties": {"a": {}}, "maxProperties": 0})),
            Compatible,
        ),
        (
            object(json!({"unevaluatedProperties": false})),
            object(json!({"additionalProperties": false})),
            Compatible,
        ),
    ] {
        let comparison = input(&old, &new);
        assert_eq!(comparison.verdict(), expected, "{old} {new}\n{comparison}");
    }
}

#[test]
fn combinations_and_references() {
    use Verdict::{Breaking, Compatible, Undecided};
    let card = json!({"properties": {"kind": {"const": "card"}, "number": {"type": "string"}}, "required": ["kind"]});
    let bank = json!({"properties": {"kind": {"const": "bank"}, "iban": {"type": "string"}}, "required": ["kind"]});
    let cash = json!({"properties": {"kind": {"const": "cash"}}, "required": ["kind"]});
    let list = |item: Value| {
        json!({
            "$ref": "#/$defs/list",
            "$defs": {"list": {
                "type": "object",
                "properties": {"value": item, "next": {"$ref": "#/$defs/list"}},
            }},
        })
    };
    for (old, new, expected) in [
        (
            json!({"type": "object", "oneOf": [card, bank]}),
            json!({"oneOf": [cash, bank, card]}),
            Compatible,
        ),
        (
            json!({"type": "object", "oneOf": [card, bank, cash]}),
            json!({"oneOf": [bank, card]}),
            Breaking,
        ),
        (
            json!({"type": "integer", "minimum": 0, "maximum": 9}),
            json!({"anyOf": [{"maximum": 5}, {"minimum": 6}]}),
            Compatible,
        ),
        (
            json!({"type": "string"}),
            json!({"not": {"type": "integer"}}),
            Compatible,
        ),
        (
            json!({"type": "integer"}),
            json!({"not": {"type": "integer"}}),
            Breaking,
        ),
        (
            json!({"type": "string"}),
            json!({"if": {"type": "integer"}, "then": false, "else": {"type": "string"}}),
            Compatible,
        ),
        (
            json!({"type": "integer", "not": {"minimum": 5}}),
            json!({"maximum": 5}),
            Undecided,
        ),
        (
            json!({"type": "string", "not": {"type": "integer"}}),
            json!({"type": "string", "maxLength": 5}),
            Breaking,
        ),
        (
            json!({"allOf": [{"type": "string"}, {"maxLength": 3}]}),
            json!({"type": "string", "maxLength": 3}),
            Compatible,
        ),
        (
            list(json!({"type": "integer"})),
            list(json!({"type": "number"})),
            Compatible,
        ),
        (
            list(json!({"type": "number"})),
            list(json!({"type": "integer"})),
            Breaking,
        ),
        (
            json!({"$ref": "#money", "$defs": {"m": {"$anchor": "money", "type": "integer"}}}),
            json!({"type": "integer"}),
            Compatible,
        ),
        (
            json!({"$ref": "urn:a", "$defs": {"m": {"$id": "urn:a", "type": "integer"}}}),
            json!({"$ref": "urn:b", "$defs": {"m": {"$id": "urn:b", "type": "number"}}}),
            Compatible,
        ),
        // A schema that is nothing but itself accepts what validators make of it.
        (
            json!({"type": "number"}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}}),
            Undecided,
        ),
        (
            json!({"type": "string"}),
            json!({"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}}),
            Undecided,
        ),
        (
            json!({"type": "object", "allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false}),
            json!({"type": "object", "allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": {"type": "string"}}),
            Undecided,
        ),
    ] {
        let comparison = input(&old, &new);
        assert_eq!(comparison.verdict(), expected, "{old} {new}\n{comparison}");
    }
}

#[test]
fn findings_name_place_and_both_values() {
    let old = json!({
        "type": "object",
        "properties": {
            "amount_cny": {"type": "number", "minimum": 0},
            "channel": {"enum": ["web", "app"]},
            "note": {"type": "string"},
        },
    });
    let new = json!({
        "type": "object",
        "properties": {
            "amount_cny": {"$ref": "#/$defs/amount"},
            "channel": {"enum": ["web"]},
        },
        "required": ["amount_cny"],
        "$defs": {"amount": {"type": "number", "minimum": 0.01}},
    });
    let asked = compare(&contract(&old, &json!(true)), &contract(&new, &json!(true)));
    assert_eq!(
        lines(&asked),
        [
            "breaking /input_schema/$defs/amount/minimum: was 0, is now 0.01",
            "breaking /input_schema/properties/channel/enum: \"app\" is no longer accepted",
            "breaking /input_schema/properties/note: the member \"note\" was removed: nobody says any more what it means",
            "breaking /input_schema/required: the member \"amount_cny\" is now required",
        ]
    );
    let told = compare(&contract(&json!(true), &new), &contract(&json!(true), &old));
    assert_eq!(
        lines(&told),
        [
            "breaking /output_schema/$defs/amount/minimum: was 0.01, is now 0",
            "breaking /output_schema/properties/channel/enum: \"app\" may now come",
            "breaking /output_schema/required: the member \"amount_cny\" is no longer guaranteed",
        ]
    );
}

#[test]
fn a_contract_may_take_its_own_place() {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"$dynamicRef": "#x"}, "b": {"pattern": "^a+$"}},
        "unevaluatedProperties": false,
        "$defs": {"x": {"$dynamicAnchor": "x", "not": {"type": "string"}}},
    });
    let one = contract(&schema, &schema);
    assert_eq!(compare(&one, &one), Comparison::default());
}

#[test]
fn long_lists_are_cut_and_say_so() {
    let properties = |schema: Value| {
        let members = (0..300).map(|index| (format!("p{index}"), schema.clone()));
        json!({"type": "object", "properties": members.collect::<serde_json::Map<_, _>>()})
    };
    let comparison = input(
        &properties(json!({"type": "number"})),
        &properties(json!({"type": "string"})),
    );
    assert_eq!(comparison.findings.len(), 200);
    assert_eq!(lines(&comparison).last().unwrap(), "and 100 more");
}

#[test]
fn too_much_work_is_undecided() {
    // Every level doubles the ways to its two ends.
    let tower = |end: Value| {
        let mut levels = serde_json::Map::new();
        levels.insert("l0".to_owned(), end);
        for level in 1..24 {
            let below = json!({"$ref": format!("#/$defs/l{}", level - 1)});
            let part = json!({"anyOf": [
                {"properties": {"a": below}, "required": ["a"]},
                {"properties": {"b": below}, "required": ["b"]},
            ]});
            levels.insert(format!("l{level}"), part);
        }
        json!({"$ref": "#/$defs/l23", "$defs": levels})
    };
    let comparison = input(
        &tower(json!({"type": "integer"})),
        &tower(json!({"type": "number"})),
    );
    assert_eq!(comparison.verdict(), Verdict::Undecided, "{comparison}");
}

/// What a comparison may take, with a debug build on a busy machine in mind.
#[test]
fn the_largest_schemas_take_work_that_is_bounded() {
    let count = 9_000;
    let object = |name: &str, value: &dyn Fn(usize) -> Value| {
        let members = (0..count).map(|index| (format!("p{index}"), value(index)));
        let members: serde_json::Map<_, _> = members.collect();
        json!({"type": "object", "properties": {"p1": {}}, name: members})
    };
    let names = |prefix: &str| -> Vec<Value> {
        let names = (0..count).map(|index| json!(format!("{prefix}{index}")));
        names.collect()
    };
    let chain = |step: usize| {
        object("dependentRequired", &|index| {
            json!([format!("p{}", index + step)])
        })
    };
    let patterns = |end: &str| {
        object(
            "patternProperties",
            &|index| json!({"const": format!("{index}{end}")}),
        )
    };
    let linear = |factor: u32| Some(factor * count as u32);
    for (old, new, most) in [
        (
            object("properties", &|_| json!({"type": "integer"})),
            object("properties", &|_| json!({"type": "string"})),
            linear(12),
        ),
        (
            json!({"enum": names("a")}),
            json!({"enum": names("b")}),
            linear(4),
        ),
        (
            json!({"required": names("a")}),
            json!({"required": names("b")}),
            linear(4),
        ),
        (chain(1), chain(2), None),
        (patterns("a"), patterns("b"), None),
        (
            json!({"const": names("a")}),
            json!({"items": {"enum": names("b")}, "uniqueItems": true}),
            Some(100),
        ),
    ] {
        let steps = steps(&old, &new);
        let (old, new) = (old.to_string(), new.to_string());
        match most {
            Some(most) => assert!(
                steps.is_some_and(|steps| steps <= most),
                "{steps:?}: {old:.80} {new:.80}"
            ),
            None => assert_eq!(steps, None, "{old:.80} {new:.80}"),
        }
    }
}

#[test]
fn deep_schemas_are_compared_or_undecided() {
    let nested = |end: Value| {
        (0..28).fold(end, |inner, level| match level % 2 {
            0 => json!({"type": "object", "properties": {"a": inner}}),
            _ => json!({"allOf": [inner]}),
        })
    };
    let (old, new) = (json!({"type": "integer"}), json!({"type": "number"}));
    let verdict = input(&nested(old.clone()), &nested(new.clone())).verdict();
    assert_eq!(verdict, Verdict::Compatible);
    let chain = |end: Value| {
        let mut definitions = serde_json::Map::new();
        definitions.insert("d0".to_owned(), end);
        for level in 1..120 {
            let below = json!({"$ref": format!("#/$defs/d{}", level - 1)});
            let part = json!({"type": "object", "properties": {"a": below}});
            definitions.insert(format!("d{level}"), part);
        }
        json!({"$ref": "#/$defs/d119", "$defs": definitions})
    };
    assert_eq!(
        input(&chain(old), &chain(new)).verdict(),
        Verdict::Undecided
    );
}

#[test]
fn a_fallback_takes_every_input_and_gives_no_other_output() {
    use Verdict::{Breaking, Compatible};
    let input = json!({
        "type": "object",
        "properties": {"user": {"type": "string"}, "note": {"type": "string"}},
        "required": ["user"],
    });
    let output = json!({
        "type": "object",
        "properties": {"score": {"type": "integer"}, "rules": {"type": "array"}},
        "required": ["score"],
    });
    let first = contract(&input, &output);
    let with = |schema: &Value, pointer: &str, value: Value| {
        let mut schema = schema.clone();
        *schema.pointer_mut(pointer).unwrap() = value;
        schema
    };
    for (taken, given, expected) in [
        (input.clone(), output.clone(), Compatible),
        (json!(true), output.clone(), Compatible),
        // It need not look at all that the first may be given, nor give all it may give.
        (
            with(&input, "/properties", json!({"user": {"type": "string"}})),
            with(
                &output,
                "/properties",
                json!({"score": {"type": "integer"}}),
            ),
            Compatible,
        ),
        (
            with(&input, "/required", json!(["user", "note"])),
            output.clone(),
            Breaking,
        ),
        (
            with(&input, "/properties/user", json!({"type": "integer"})),
            output.clone(),
            Breaking,
        ),
        (
            input.clone(),
            with(&output, "/properties/score", json!({"type": "number"})),
            Breaking,
        ),
        (
            input.clone(),
            with(&output, "/required", json!([])),
            Breaking,
        ),
    ] {
        let found = stand_in(&first, &contract(&taken, &given));
        assert_eq!(found.verdict(), expected, "{taken} {given}: {found}");
    }
}
