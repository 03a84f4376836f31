//! Every rule of the lint, with place and remedy.

use serde_json::json;

use super::*;

/// A contract without findings, to break one thing at a time.
fn sound() -> Value {
    json!({
        "id": "fraud-detection-v1.0",
        "version": "1.0.3",
        "description": "rule-based fraud risk score",
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "user_id": {"type": "string", "minLength": 1},
                "ip_address": {"type": "string", "format": "ipv4"},
                "amount_cny": {"type": "number", "minimum": 0.01},
            },
            "required": ["user_id", "amount_cny"],
        },
        "output_schema": {
            "type": "object",
            "properties": {
                "risk_score": {"type": "number", "minimum": 0, "maximum": 100},
                "risk_level": {"enum": ["low", "medium", "high"]},
            },
            "required": ["risk_score", "risk_level"],
        },
        "constraints": {"timeout_ms": 500, "region_support": ["cn-east-1"], "max_concurrent": 100},
        "tags": ["team-finance"],
        "probe": {
            "input": {"user_id": "u", "amount_cny": 1},
            "expect": {"risk_level": "low"},
        },
        "x-note": {"anything": 1},
    })
}

fn with(pointer: &str, value: Value) -> Value {
    let mut contract = sound();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = contract.pointer_mut(parent).unwrap();
    parent.as_object_mut().unwrap().insert(name.into(), value);
    contract
}

fn without(pointer: &str) -> Value {
    let mut contract = sound();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = contract.pointer_mut(parent).unwrap();
    parent.as_object_mut().unwrap().remove(name).unwrap();
    contract
}

fn findings(contract: &Value, profile: Profile) -> Vec<Finding> {
    let body = contract.to_string().into_bytes();
    lint(&[("c.json".to_owned(), body)], profile)
}

#[test]
fn a_sound_contract_has_no_findings() {
    assert_eq!(findings(&sound(), Profile::Strict), []);
}

#[test]
fn each_fault_is_named_with_place_and_remedy() {
    let exponential = {
        let two = |next: usize| {
            let reference = json!({"$ref": format!("#/$defs/d{next}")});
            json!({"anyOf": [reference.clone(), reference]})
        };
        let mut definitions: Map<String, Value> =
            (0..22).map(|at| (format!("d{at}"), two(at + 1))).collect();
        definitions.insert("d22".into(), json!({"type": "string"}));
        json!({"$ref": "#/$defs/d0", "$defs": definitions})
    };
    for (contract, rule, pointer, in_text) in [
        (
            with("/input_schema/properties/user_id/type", json!("int")),
            "schema",
            "/input_schema/properties/user_id/type",
            "did you mean \"integer\"?",
        ),
        (
            with("/input_schema/required", json!(true)),
            "schema",
            "/input_schema/required",
            "list the names",
        ),
        (
            with(
                "/input_schema",
                json!({"user_id": {"type": "string"}, "amount": {"type": "number"}}),
            ),
            "bare-properties",
            "/input_schema",
            r#"{"properties":{"amount":{"type":"number"},"user_id":{"type":"string"}},"required":["amount","user_id"],"type":"object"}"#,
        ),
        (
            with("/output_schema/requried", json!(["risk_score"])),
            "misspelt-keyword",
            "/output_schema/requried",
            "\"required\"",
        ),
        (
            with(
                "/output_schema/$schema",
                json!("http://json-schema.org/draft-07/schema#"),
            ),
            "dialect",
            "/output_schema/$schema",
            "draft 2020-12",
        ),
        (
            with(
                "/output_schema/properties/a",
                json!({"$ref": "http://169.254.169.254/x"}),
            ),
            "remote-ref",
            "/output_schema/properties/a/$ref",
            "nothing is ever fetched",
        ),
        (
            with(
                "/output_schema/properties/a",
                json!({"$ref": "file:///etc/hostname"}),
            ),
            "remote-ref",
            "/output_schema/properties/a/$ref",
            "$defs",
        ),
        (
            with(
                "/output_schema/properties/a",
                json!({"$dynamicRef": "other.json#x"}),
            ),
            "remote-ref",
            "/output_schema/properties/a/$dynamicRef",
            "$defs",
        ),
        (
            with(
                "/output_schema/properties/a",
                json!({"$ref": "#/$defs/none"}),
            ),
            "unresolved-ref",
            "/output_schema/properties/a/$ref",
            "leads to nothing",
        ),
        (
            with("/input_schema/properties/user_id/pattern", json!("^(?=a)b")),
            "pattern",
            "/input_schema/properties/user_id/pattern",
            "linear-time",
        ),
        (
            with("/input_schema/patternProperties", json!({"(a)\\1": true})),
            "pattern",
            "/input_schema/patternProperties",
            "linear-time",
        ),
        (
            with("/input_schema", exponential),
            "branches",
            "/input_schema",
            "10000 branches",
        ),
        (
            with("/constraints/timeout_ms", json!(0)),
            "timeout",
            "/constraints/timeout_ms",
            "from 1 to",
        ),
        (
            with("/constraints/timeout_ms", json!("500")),
            "timeout",
            "/constraints/timeout_ms",
            "without quotes",
        ),
        (
            with("/constraints/timeout_ms", json!(86_400_001)),
            "timeout",
            "/constraints/timeout_ms",
            "from 1 to",
        ),
        (
            without("/constraints/timeout_ms"),
            "timeout",
            "/constraints/timeout_ms",
            "required",
        ),
        (
            without("/constraints"),
            "missing-field",
            "/constraints",
            "timeout_ms",
        ),
        (
            without("/output_schema"),
            "missing-field",
            "/output_schema",
            "required",
        ),
        (
            with("/id", json!("Fraud_Detection-v1")),
            "id-form",
            "/id",
            "\"fraud-detection-v1.0\"",
        ),
        (
            with("/id", json!("fraud-detection-v2.0")),
            "id-version",
            "/version",
            "2.0.3",
        ),
        (
            with("/version", json!("1.0.0-rc1")),
            "version-form",
            "/version",
            "without suffixes",
        ),
        (
            with("/version", json!(1)),
            "version-form",
            "/version",
            "1.0.0",
        ),
        (
            with("/idempotant", json!(true)),
            "unknown-field",
            "/idempotant",
            "\"idempotent\"",
        ),
        (
            with("/constraints/cpu", json!(1)),
            "unknown-field",
            "/constraints/cpu",
            "x-",
        ),
        (
            with("/constraints/max_concurrent", json!(0)),
            "field-range",
            "/constraints/max_concurrent",
            "from 1",
        ),
        (
            with("/constraints/utc_offsets", json!(["8"])),
            "field-type",
            "/constraints/utc_offsets",
            "+08:00",
        ),
        (
            with("/retry_policy", json!({"max_retries": 3})),
            "field-range",
            "/retry_policy/max_retries",
            "from 0 to 2",
        ),
        (
            with("/fallback", json!(["fraud-detection-v1.0"])),
            "fallback-circle",
            "/fallback",
            "itself",
        ),
        (
            with("/probe/input", json!({"user_id": "u"})),
            "probe-input",
            "/probe/input",
            "amount_cny",
        ),
        (
            with("/probe/expect", json!({"risk_level": "none"})),
            "probe-expect",
            "/probe/expect",
            "risk_level",
        ),
        (
            with("/probe/calls", json!(1001)),
            "field-range",
            "/probe/calls",
            "1000",
        ),
        (
            with("/x-big", json!(9_007_199_254_740_993_u64)),
            "large-integer",
            "/x-big",
            "2^53",
        ),
        (
            with("/x-long", json!("a".repeat(256 * 1024))),
            "oversize",
            "",
            "at most 262144",
        ),
    ] {
        let findings = findings(&contract, Profile::Default);
        let errors: Vec<_> = findings
            .iter()
            .filter(|finding| finding.severity == Severity::Error)
            .collect();
        assert_eq!(errors.len(), 1, "{rule} {pointer}: {findings:#?}");
        let problem = &errors[0].problem;
        assert_eq!((problem.rule, problem.pointer.as_str()), (rule, pointer));
        assert!(problem.to_string().contains(in_text), "{problem}");
        assert_ne!(problem.remedy, "", "{problem}");
    }
}

#[test]
fn each_doubt_is_a_warning() {
    for (contract, rule, pointer) in [
        (without("/probe"), "no-probe", ""),
        (
            without("/constraints/max_concurrent"),
            "no-max-concurrent",
            "/constraints",
        ),
        (
            without("/input_schema/required"),
            "no-required",
            "/input_schema",
        ),
        (
            with("/output_schema/required", json!([])),
            "no-required",
            "/output_schema",
        ),
        (
            with("/input_schema", json!(true)),
            "no-required",
            "/input_schema",
        ),
        (
            with("/input_schema/properties/user_id/nullable", json!(true)),
            "unknown-keyword",
            "/input_schema/properties/user_id/nullable",
        ),
        (
            with("/input_schema/properties/user_id/format", json!("date-tme")),
            "unknown-format",
            "/input_schema/properties/user_id/format",
        ),
        (
            with("/input_schema/properties/user_id/format", json!("regex")),
            "unknown-format",
            "/input_schema/properties/user_id/format",
        ),
        (
            with(
                "/input_schema/definitions",
                json!({"a": {"type": "string"}}),
            ),
            "old-keyword",
            "/input_schema/definitions",
        ),
        (
            with("/input_schema/dependencies", json!({"a": ["b"]})),
            "old-keyword",
            "/input_schema/dependencies",
        ),
        (
            with(
                "/output_schema",
                closed(json!({"allOf": [{"$ref": "#/$defs/base"}]})),
            ),
            "closed-combination",
            "/output_schema/additionalProperties",
        ),
        (
            with("/output_schema", closed(json!({"$ref": "#/$defs/base"}))),
            "closed-combination",
            "/output_schema/additionalProperties",
        ),
    ] {
        let findings = findings(&contract, Profile::Default);
        let found: Vec<_> = findings
            .iter()
            .filter(|finding| finding.problem.rule != "probe-input")
            .map(|finding| {
                (
                    finding.severity,
                    finding.problem.rule,
                    finding.problem.pointer.as_str(),
                )
            })
            .collect();
        assert_eq!(found, [(Severity::Warning, rule, pointer)]);
    }
}

/// A schema that adds one member to another, and closes itself.
fn closed(combined: Value) -> Value {
    let mut schema = json!({
        "type": "object",
        "properties": {"risk_level": {"type": "string"}},
        "required": ["risk_level"],
        "additionalProperties": false,
        "$defs": {"base": {"properties": {"risk_score": {"type": "number"}}}},
    });
    let members = schema.as_object_mut().unwrap();
    members.extend(combined.as_object().unwrap().clone());
    schema
}

#[test]
fn a_closed_schema_that_repeats_what_it_combines_is_sound() {
    let mut schema = closed(json!({"allOf": [{"$ref": "#/$defs/base"}]}));
    schema["properties"]["risk_score"] = json!(true);
    let contract = with("/output_schema", schema);
    assert_eq!(findings(&contract, Profile::Default), []);
}

#[test]
fn an_expectation_is_judged_as_a_part() {
    let output = json!({
        "type": "object",
        "oneOf": [
            {"properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]},
            {"properties": {"kind": {"const": "b"}, "m": {"enum": [{"x": 1, "y": 2}]}}, "required": ["kind", "m"]},
        ],
        "properties": {"inner": {"type": "object", "minProperties": 2}},
        "not": {"properties": {"kind": {"const": "a"}}, "required": ["n"], "maxProperties": 1},
        "additionalProperties": true,
    });
    let with_expect = |expect: Value| {
        let mut contract = with("/output_schema", output.clone());
        contract["probe"]["expect"] = expect;
        findings(&contract, Profile::Default)
    };
    for open in [
        json!({}),
        json!({"kind": "a"}),
        json!({"n": 3}),
        json!({"m": {"x": 1}}),
        json!({"inner": {"a": 1}}),
    ] {
        assert_eq!(with_expect(open.clone()), [], "{open}");
    }
    for wrong in [json!({"kind": "c"}), json!({"inner": 1}), json!([])] {
        let found = with_expect(wrong.clone());
        assert_eq!(found.len(), 1, "{wrong}");
        assert_eq!(found[0].problem.rule, "probe-expect");
    }
}

#[test]
fn every_rule_has_a_meaning() {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/contract");
    let mut folders = vec![sources];
    let mut rules = std::collections::BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for call in ["Problem::new(", ".fault(", " fault("] {
                    let begins = text.split(call).skip(1);
                    let named = begins.filter_map(|rest| rest.trim_start().strip_prefix('"'));
                    rules.extend(named.map(|rest| rest.split('"').next().unwrap().to_owned()));
                }
            }
        }
    }
    assert!(rules.len() > 40, "{rules:?}");
    let unknown: Vec<_> = rules
        .iter()
        .filter(|rule| rules::meaning(rule).is_none())
        .collect();
    assert_eq!(unknown, [] as [&String; 0]);
}

#[test]
fn sarif_points_into_the_file() {
    let mut contract = with("/constraints/timeout_ms", json!(0));
    contract.as_object_mut().unwrap().remove("probe");
    let text = serde_json::to_string_pretty(&contract).unwrap();
    let line = 1 + text
        .lines()
        .position(|line| line.contains("timeout_ms"))
        .unwrap();
    let found = lint(
        &[("./con tracts/a.json".to_owned(), text.into_bytes())],
        Profile::Default,
    );
    let log: Value = serde_json::from_str(&sarif(&found)).unwrap();
    assert_eq!(log["version"], "2.1.0");
    assert!(log["$schema"].as_str().unwrap().contains("sarif-2.1.0"));
    let run = &log["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    assert!(
        rules
            .iter()
            .all(|rule| rule["shortDescription"]["text"] != rule["id"])
    );
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    for result in results {
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(rules[index]["id"], result["ruleId"]);
        assert_ne!(result["message"]["text"], "");
    }
    let timeout = results
        .iter()
        .find(|result| result["ruleId"] == "timeout")
        .unwrap();
    assert_eq!(timeout["level"], "error");
    let place = &timeout["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "con%20tracts/a.json");
    assert_eq!(place["region"]["startLine"], line);
    assert_eq!(place["region"]["startColumn"], 5);
}

#[test]
fn text_that_is_no_json_is_shown_where_it_breaks() {
    let broken = b"{\n  \"id\": \"a-v1.0\",\n  \"version\" 1\n}".to_vec();
    let found = lint(&[("c.json".to_owned(), broken)], Profile::Default);
    assert_eq!((found[0].problem.rule, found[0].line), ("json", 3));
}

#[test]
fn all_faults_of_a_file_are_told_at_once() {
    let contract = json!({
        "id": "fraud-detection-v1.0",
        "version": "2.0.0",
        "input_schema": {"user_id": {"type": "string"}},
        "output_schema": {"type": "object", "properties": {"score": {"type": "int"}}, "required": ["score"]},
        "constraints": {},
    });
    let findings = findings(&contract, Profile::Default);
    let mut rules: Vec<_> = findings
        .iter()
        .map(|finding| finding.problem.rule)
        .collect();
    rules.sort_unstable();
    assert_eq!(
        rules,
        [
            "bare-properties",
            "id-version",
            "no-max-concurrent",
            "no-probe",
            "schema",
            "timeout"
        ]
    );
}

#[test]
fn the_strict_profile_asks_for_two_words() {
    let contract = with("/id", json!("kyc-doc-ocr-v1.0"));
    assert_eq!(findings(&contract, Profile::Default), []);
    let strict = findings(&contract, Profile::Strict);
    assert_eq!(strict.len(), 1);
    assert_eq!(strict[0].problem.rule, "id-form");
}

#[test]
fn text_that_is_no_contract_is_one_finding() {
    for (body, in_text) in [
        (&b""[..], "the file is empty"),
        (b"{\"id\":1,\"id\":2}", "/id occurs twice"),
        (b"[]", "JSON object"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"{\"x-a\":0.10000000000000001}", "held exactly"),
        (b"{\"x-a\":1e400}", "too large"),
    ] {
        let findings = lint(&[("c.json".to_owned(), body.to_vec())], Profile::Default);
        assert_eq!(findings.len(), 1, "{findings:?}");
        let text = findings[0].problem.to_string();
        assert!(text.contains(in_text), "{text}");
    }
}

#[test]
fn a_circle_of_fallbacks_is_shown_in_each_of_its_files() {
    let file = |id: &str, fallback: &[&str]| {
        let mut contract = with("/id", json!(id));
        contract["fallback"] = json!(fallback);
        (format!("{id}.json"), contract.to_string().into_bytes())
    };
    let files = [
        file("a-v1.0", &["b-v1.0", "d-v1.0"]),
        file("b-v1.0", &["c-v1.0"]),
        file("c-v1.0", &["a-v1.0"]),
        file("d-v1.0", &["b-v1.0", "elsewhere-v1.0"]),
        file("e-v1.0", &["a-v1.0"]),
    ];
    let findings = lint(&files, Profile::Default);
    let told: Vec<_> = findings
        .iter()
        .map(|finding| (finding.file.as_str(), finding.problem.message.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (
                "a-v1.0.json",
                "fallbacks run in a circle: a-v1.0 → b-v1.0 → c-v1.0 → a-v1.0"
            ),
            (
                "b-v1.0.json",
                "fallbacks run in a circle: b-v1.0 → c-v1.0 → a-v1.0 → b-v1.0"
            ),
            (
                "c-v1.0.json",
                "fallbacks run in a circle: c-v1.0 → a-v1.0 → b-v1.0 → c-v1.0"
            ),
            (
                "d-v1.0.json",
                "fallbacks run in a circle: d-v1.0 → b-v1.0 → c-v1.0 → a-v1.0 → d-v1.0"
            ),
        ]
    );
}

#[test]
fn both_renderings_tell_the_same() {
    let contract = with("/constraints/cpu\u{1b}[2J", json!(1));
    let findings = findings(&contract, Profile::Strict);
    let human = human(&findings, Profile::Strict);
    assert_eq!(
        human,
        "c.json:1:17: error[unknown-field] /constraints/cpu\\u{1b}[2J: unknown field\n    \
         remove it, or let its name begin with \"x-\"\n\
         1 error, 0 warnings (profile strict)\n"
    );
    let json: Value = serde_json::from_str(&json(&findings, Profile::Strict)).unwrap();
    assert_eq!((&json["errors"], &json["warnings"]), (&json!(1), &json!(0)));
    assert_eq!(json["profile"], "strict");
    let finding = &json["findings"][0];
    assert_eq!(finding["file"], "c.json");
    assert_eq!(finding["severity"], "error");
    assert_eq!(finding["rule"], "unknown-field");
    assert_eq!(finding["pointer"], "/constraints/cpu\u{1b}[2J");
}

#[test]
fn a_fallback_that_cannot_stand_in_is_told_where_both_are_judged() {
    let first = with("/fallback", json!(["elsewhere-v1.0", "fraud-rules-v1.0"]));
    let second = |patch: u32, required: Value| {
        let mut contract = with("/input_schema/required", required);
        contract["id"] = "fraud-rules-v1.0".into();
        contract["version"] = format!("1.0.{patch}").into();
        (
            format!("second-{patch}.json"),
            contract.to_string().into_bytes(),
        )
    };
    let sound = second(2, json!(["user_id"]));
    let greedy = second(1, json!(["user_id", "amount_cny", "ip_address"]));
    let first = ("first.json".to_owned(), first.to_string().into_bytes());

    assert_eq!(lint(&[first.clone(), sound.clone()], Profile::Default), []);
    let mut found = lint(&[first.clone(), greedy.clone()], Profile::Default);
    // Its own probe is too short for what it asks.
    found.retain(|finding| finding.file == "first.json");
    let [finding] = found.as_slice() else {
        panic!("{found:#?}");
    };
    assert_eq!(finding.severity, Severity::Warning);
    assert_eq!(
        (finding.file.as_str(), finding.problem.rule),
        ("first.json", "fallback-schema")
    );
    assert_eq!(finding.problem.pointer, "/fallback/1");
    let message = &finding.problem.message;
    assert!(
        message.contains("cannot stand in: its /input_schema"),
        "{message}"
    );
    // The highest version is the one that will be called.
    let mut found = lint(&[first, greedy, sound], Profile::Default);
    found.retain(|finding| finding.file == "first.json");
    assert_eq!(found, []);
}
