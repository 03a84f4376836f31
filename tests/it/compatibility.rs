//! Whenever two contracts are said to be compatible, no value shows otherwise.

use crate::support::instances::Instances;
use crate::support::program::hermes;
use crate::support::schemas::Schemas;
use fastrand::Rng;
use hermes_sidecar::contract::compatibility::{Finding, Side, Verdict, compare};
use hermes_sidecar::contract::guard::{self, Limits};
use hermes_sidecar::contract::{Contract, Validator};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Values tried for each pair.
const TRIED: usize = 40;

/// What became of random pairs.
#[derive(Debug, Default)]
pub struct Tally {
    compatible: usize,
    /// Compatible pairs that differ in more than definitions, and whose values were tried.
    shown: usize,
    undecided: usize,
    breaking: usize,
    /// Breaking pairs in which members were removed and nothing else, which no value can show.
    removed_only: usize,
    /// Breaking pairs for which a value was found that shows it.
    witnessed: usize,
    /// Undecided pairs for which such a value was found.
    broken_undecided: usize,
    values: usize,
}

#[test]
fn compatible_means_that_no_value_is_lost() {
    let tally = judge(400);
    assert!(tally.shown * 5 > 400, "{tally:?}");
}

/// Judges random pairs of schemas, each as input or as output of two contracts.
pub fn judge(pairs: usize) -> Tally {
    let seed = fastrand::u64(..);
    let mut tally = Tally::default();
    for pair in 0..pairs {
        judge_pair(seed.wrapping_add(pair as u64), &mut tally);
    }
    eprintln!("{pairs} pairs from seed {seed}: {tally:?}");
    tally
}

fn judge_pair(seed: u64, tally: &mut Tally) {
    let mut rng = Rng::with_seed(seed);
    let (sub, sup) = pair(&mut rng);
    let side = if rng.bool() {
        Side::Input
    } else {
        Side::Output
    };
    let comparison = match side {
        Side::Output => compare(&contract(&json!(true), &sup), &contract(&json!(true), &sub)),
        _ => compare(&contract(&sub, &json!(true)), &contract(&sup, &json!(true))),
    };
    let verdict = comparison.verdict();
    let (accepted, witness) = try_values(&sub, &sup, &mut rng);
    tally.values += accepted;
    match verdict {
        Verdict::Compatible => {
            tally.compatible += 1;
            let is_changed = without_definitions(&sub) != without_definitions(&sup);
            tally.shown += usize::from(is_changed && accepted > 0);
        }
        Verdict::Undecided => {
            tally.undecided += 1;
            tally.broken_undecided += usize::from(witness.is_some());
        }
        Verdict::Breaking => {
            tally.breaking += 1;
            // Some lie in a corner of the schema that few values reach.
            let mut more = (0..5).map(|_| try_values(&sub, &sup, &mut rng).1);
            let witness = witness.is_some() || more.any(|witness| witness.is_some());
            let is_removed = |finding: &Finding| {
                finding.verdict != Verdict::Breaking || finding.message.contains("was removed")
            };
            if witness {
                tally.witnessed += 1;
            } else if comparison.findings.iter().all(is_removed) {
                tally.removed_only += 1;
            }
            return;
        }
    }
    if let Some(witness) = witness
        && verdict == Verdict::Compatible
    {
        panic!("pair {seed}, {side:?}: {witness} fits only the first of\n{sub}\n{sup}");
    }
}

fn without_definitions(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(members) = &mut schema {
        members.remove("$defs");
    }
    schema
}

/// Draws two schemas that can be compiled, the second mostly like the first.
fn pair(rng: &mut Rng) -> (Value, Value) {
    loop {
        let mut schemas = Schemas { rng };
        let sub = schemas.root();
        let sup = schemas.successor(&sub);
        let is_sound = |schema: &Value| Validator::compile(schema).is_ok();
        if sub.is_object() && is_sound(&sub) && is_sound(&sup) {
            return (sub, sup);
        }
    }
}

/// Tries values of the first schema on the second: how many it accepted, and one that it alone did.
fn try_values(sub: &Value, sup: &Value, rng: &mut Rng) -> (usize, Option<Value>) {
    let (own, other) = (
        Validator::compile(sub).unwrap(),
        Validator::compile(sup).unwrap(),
    );
    let instances = Instances { root: sub };
    let mut accepted = 0;
    for _ in 0..TRIED {
        let value = instances.draw(rng);
        if accepts(&own, &value) != Some(true) {
            continue;
        }
        accepted += 1;
        if accepts(&other, &value) == Some(false) {
            return (accepted, Some(value));
        }
    }
    (accepted, None)
}

/// Asks the product's validator; it does not judge numbers that a float may not hold.
fn accepts(validator: &Validator, value: &Value) -> Option<bool> {
    let text = value.to_string();
    let document = guard::parse(text.as_bytes(), &Limits::default()).unwrap();
    match validator.check(&document) {
        Ok(()) => Some(true),
        Err(violations) => {
            let mut violations = violations.as_slice().iter();
            (!violations.any(|violation| violation.keyword == "number")).then_some(false)
        }
    }
}

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

#[test]
fn a_wrong_verdict_would_be_found() {
    let object =
        |schema: Value| json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
    for (sub, sup) in [
        (json!({"type": "number"}), json!({"type": "integer"})),
        (json!({"minimum": 1}), json!({"minimum": 1.5})),
        (
            json!({"type": "integer", "maximum": 3}),
            json!({"exclusiveMaximum": 3}),
        ),
        (
            json!({"type": "string", "minLength": 2}),
            json!({"minLength": 3}),
        ),
        (json!({"enum": [1, "a", null]}), json!({"enum": [1, "a"]})),
        (json!({"type": "string"}), json!({"pattern": "^a"})),
        (
            json!({"type": "string", "format": "iri"}),
            json!({"format": "uri"}),
        ),
        (json!({"type": "array"}), json!({"uniqueItems": true})),
        (json!({"type": "array"}), json!({"maxItems": 2})),
        (
            json!({"type": "array", "items": {"type": "number"}}),
            json!({"items": {"type": "integer"}}),
        ),
        (
            json!({"oneOf": [{"type": "string"}, {"type": "integer"}]}),
            json!({"oneOf": [{"type": "string"}, {"type": "integer"}, {"minimum": 0}]}),
        ),
        (
            json!({"type": "object", "properties": {"a": {}, "b": {}}}),
            json!({"dependentRequired": {"a": ["b"]}}),
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"propertyNames": {"maxLength": 2}}),
        ),
        (
            json!({"type": "object", "patternProperties": {"^x-": {"type": "string"}}}),
            json!({"additionalProperties": false}),
        ),
    ] {
        let (sub, sup) = (object(sub), object(sup));
        let mut rng = Rng::with_seed(7);
        let found = (0..10).find_map(|_| try_values(&sub, &sup, &mut rng).1);
        assert!(found.is_some(), "no value tells\n{sub}\nfrom\n{sup}");
    }
}

#[test]
fn diff_names_each_difference_and_its_exit_code_tells() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, id: &str, version: &str, minimum: f64| {
        let path = folder.path().join(name);
        let schema = json!({
            "type": "object",
            "properties": {"amount_cny": {"type": "number", "minimum": minimum}},
            "required": ["amount_cny"],
        });
        let body = json!({
            "id": id,
            "version": version,
            "input_schema": schema,
            "output_schema": {"type": "object", "properties": {"risk": {"pattern": "^[a-z]+$"}}},
            "constraints": {"timeout_ms": 500},
        });
        std::fs::write(&path, body.to_string()).unwrap();
        path
    };
    let diff = |old: &Path, new: &Path, more: &[&str]| {
        let mut command = Command::new(hermes());
        let output = command
            .args(["contract", "diff"])
            .args([old, new])
            .args(more);
        let output = output.output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        (
            output.status.code(),
            told,
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let old = file("old.json", "risk-score-v1.0", "1.0.0", 0.0);
    let narrow = file("narrow.json", "risk-score-v1.1", "1.1.0", 0.01);
    let major = file("major.json", "risk-score-v2.0", "2.0.0", 0.01);
    let foreign = file("foreign.json", "loan-score-v1.0", "1.0.0", 0.0);

    let (code, told, _) = diff(&old, &narrow, &[]);
    assert_eq!(code, Some(1));
    assert_eq!(
        told,
        "breaking /input_schema/properties/amount_cny/minimum: was 0.0, is now 0.01\n\
         risk-score-v1.0 1.0.0 to risk-score-v1.1 1.1.0: breaking (1 breaking, 0 undecided)\n"
    );
    let (code, told, _) = diff(&narrow, &old, &[]);
    assert_eq!(code, Some(0), "{told}");
    let (code, told, _) = diff(&old, &major, &["--allow-undecided"]);
    assert_eq!(code, Some(1));
    assert!(told.contains("a new major version may break"), "{told}");
    let (code, told, _) = diff(&old, &narrow, &["-o", "json"]);
    assert_eq!(code, Some(1));
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["verdict"], "breaking");
    assert_eq!(told["findings"][0]["verdict"], "breaking");
    assert_eq!(told["findings"][0]["side"], "input");
    let place = "/input_schema/properties/amount_cny/minimum";
    assert_eq!(told["findings"][0]["pointer"], place);

    let (code, _, error) = diff(&old, &foreign, &[]);
    assert_eq!(code, Some(2));
    assert!(error.contains("different families"), "{error}");
    let (code, _, error) = diff(&old, Path::new("/nowhere/new.json"), &[]);
    assert_eq!(code, Some(2));
    assert!(error.contains("cannot read /nowhere/new.json"), "{error}");
}

#[test]
fn what_diff_cannot_decide_is_allowed_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, pattern: &str| {
        let path = folder.path().join(name);
        let schema = json!({"type": "string", "pattern": pattern});
        let contract = contract(&schema, &json!(true));
        std::fs::write(&path, contract.body()).unwrap();
        path
    };
    let (old, new) = (file("old.json", "^ab"), file("new.json", "^a"));
    let code = |more: &[&str]| {
        let mut command = Command::new(hermes());
        let output = command
            .args(["contract", "diff"])
            .args([&old, &new])
            .args(more);
        output.output().unwrap().status.code()
    };
    assert_eq!(code(&[]), Some(1));
    assert_eq!(code(&["--allow-undecided"]), Some(0));
}
