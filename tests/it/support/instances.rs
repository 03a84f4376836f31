//! Values made for a schema: mostly accepted, with limits met exactly, declared members only.
//!
//! Made without any of the product's code; what is not accepted after all is sorted out by
//! whoever asked.

use std::collections::BTreeSet;

use fastrand::Rng;
use serde_json::{Map, Value, json};

use super::schemas::Schemas;

/// Texts to begin with; each pattern of the random schemas matches some.
const TEXTS: [&str; 22] = [
    "",
    "a",
    "b",
    "ab",
    "abc",
    "cb",
    "aé",
    "zz",
    "x-1",
    "x-b",
    "0",
    "aaaaaa",
    "é",
    "2024-02-29",
    "2024-02-29T12:30:00Z",
    "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
    "10.0.0.1",
    "https://example.com/a",
    "https://example.com/é",
    "/é",
    "/a",
    "%",
];
const DEEPEST: usize = 8;

/// Makes values for one schema with its definitions.
pub struct Instances<'a> {
    pub root: &'a Value,
}

impl<'a> Instances<'a> {
    pub fn draw(&self, rng: &mut Rng) -> Value {
        self.value(&[self.root], rng, 0)
    }

    /// Makes a value that all these schemas should accept.
    fn value(&self, schemas: &[&'a Value], rng: &mut Rng, depth: usize) -> Value {
        let names = self.declared(schemas);
        let speaking = self.speaking(schemas, rng);
        if speaking.is_empty() || depth > DEEPEST {
            return Schemas { rng }.value(2);
        }
        let listed: Vec<&Value> = speaking
            .iter()
            .flat_map(|schema| {
                let many = schema.get("enum").and_then(Value::as_array);
                schema
                    .get("const")
                    .into_iter()
                    .chain(many.into_iter().flatten())
            })
            .collect();
        if !listed.is_empty() {
            return listed[rng.usize(..listed.len())].clone();
        }
        let kinds = kinds(&speaking);
        if kinds.is_empty() {
            return Value::Null;
        }
        match kinds[rng.usize(..kinds.len())] {
            "boolean" => json!(rng.bool()),
            "integer" => number(&speaking, true, rng),
            "number" => number(&speaking, false, rng),
            "string" => json!(text(&speaking, rng)),
            "array" => self.array(&speaking, rng, depth),
            "object" => self.object(&speaking, &names, rng, depth),
            _ => Value::Null,
        }
    }

    /// Follows references and chooses alternatives.
    fn speaking(&self, schemas: &[&'a Value], rng: &mut Rng) -> Vec<&'a Value> {
        let mut found: Vec<&Value> = Vec::new();
        let mut open = schemas.to_vec();
        while let Some(schema) = open.pop() {
            if !schema.is_object() || found.iter().any(|other| std::ptr::eq(*other, schema)) {
                continue;
            }
            found.push(schema);
            open.extend(self.target(schema));
            open.extend(
                schema
                    .get("allOf")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten(),
            );
            for name in ["anyOf", "oneOf"] {
                if let Some(Value::Array(parts)) = schema.get(name) {
                    open.push(&parts[rng.usize(..parts.len())]);
                }
            }
            match rng.bool() {
                true => open.extend(["if", "then"].iter().filter_map(|name| schema.get(name))),
                false => open.extend(schema.get("else").filter(|_| schema.get("if").is_some())),
            }
        }
        found
    }

    fn target(&self, schema: &'a Value) -> Option<&'a Value> {
        let reference = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
        match reference.starts_with('/') {
            true => self.root.pointer(reference),
            false => self.root.get("$defs")?.get(reference),
        }
    }

    /// Lists declared names, and whether any name may be used.
    fn declared(&self, schemas: &[&'a Value]) -> (BTreeSet<String>, bool) {
        let mut names = BTreeSet::new();
        let (mut is_any, mut is_list) = (false, false);
        let mut seen: Vec<&Value> = Vec::new();
        let mut open = schemas.to_vec();
        while let Some(schema) = open.pop() {
            let Value::Object(members) = schema else {
                continue;
            };
            if seen.iter().any(|other| std::ptr::eq(*other, schema)) {
                continue;
            }
            seen.push(schema);
            open.extend(self.target(schema));
            for (name, value) in members {
                match (name.as_str(), value) {
                    ("allOf" | "anyOf" | "oneOf", Value::Array(parts)) => open.extend(parts),
                    ("if" | "then" | "else", part) => open.push(part),
                    ("properties", Value::Object(parts)) => {
                        is_list |= !parts.is_empty();
                        names.extend(parts.keys().cloned());
                    }
                    ("patternProperties", Value::Object(parts)) => {
                        is_list |= !parts.is_empty();
                        // Texts that match none are refused by nobody, but not declared either.
                        names.extend(parts.keys().flat_map(|pattern| matching(pattern)));
                    }
                    ("required", Value::Array(list)) => {
                        names.extend(list.iter().filter_map(Value::as_str).map(str::to_owned));
                    }
                    ("dependentRequired", Value::Object(lists)) => {
                        names.extend(lists.keys().cloned());
                        let list = lists.values().filter_map(Value::as_array).flatten();
                        names.extend(list.filter_map(Value::as_str).map(str::to_owned));
                    }
                    ("dependentSchemas", Value::Object(parts)) => {
                        names.extend(parts.keys().cloned());
                        open.extend(parts.values());
                    }
                    ("additionalProperties", part) => {
                        let says = |members: &Map<String, Value>| !members.is_empty();
                        is_any |= part.as_object().is_some_and(says);
                    }
                    _ => {}
                }
            }
        }
        (names, is_any || !is_list)
    }

    fn object(
        &self,
        speaking: &[&'a Value],
        (declared, is_any): &(BTreeSet<String>, bool),
        rng: &mut Rng,
        depth: usize,
    ) -> Value {
        let required = speaking.iter().filter_map(|schema| schema.get("required"));
        let required = required.filter_map(Value::as_array).flatten();
        let mut names: BTreeSet<String> = required
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        let eagerness = rng.u8(..4);
        names.extend(declared.iter().filter(|_| rng.u8(..4) < eagerness).cloned());
        if *is_any {
            let more = ["a", "b", "ab", "c", "x-1", "z", "zzz"];
            names.extend(
                more.iter()
                    .filter(|_| rng.u8(..5) == 0)
                    .map(|name| (*name).to_owned()),
            );
        }
        let implied = speaking
            .iter()
            .filter_map(|schema| schema.get("dependentRequired"));
        for (name, others) in implied.filter_map(Value::as_object).flatten() {
            if names.contains(name) {
                let others = others.as_array().into_iter().flatten();
                names.extend(others.filter_map(Value::as_str).map(str::to_owned));
            }
        }
        let mut members = Map::new();
        for name in names {
            let parts: Vec<_> = speaking
                .iter()
                .flat_map(|schema| of_member(schema, &name))
                .collect();
            if parts.iter().any(|part| **part == json!(false)) {
                continue;
            }
            let value = self.value(&parts, rng, depth + 1);
            members.insert(name, value);
        }
        Value::Object(members)
    }

    fn array(&self, speaking: &[&'a Value], rng: &mut Rng, depth: usize) -> Value {
        let least = limit(speaking, "minItems").max().unwrap_or(0);
        let most = limit(speaking, "maxItems").min().unwrap_or(least + 3);
        let wanted = match rng.u8(..4) {
            0 => least,
            1 => most.min(6),
            _ => least + rng.u64(..3),
        };
        let contained: Vec<&Value> = speaking
            .iter()
            .filter_map(|schema| schema.get("contains"))
            .collect();
        let mut items = Vec::new();
        for index in 0..wanted as usize {
            let mut parts: Vec<&Value> = speaking
                .iter()
                .filter_map(|schema| {
                    let fixed = schema.get("prefixItems").and_then(|parts| parts.get(index));
                    fixed.or_else(|| schema.get("items"))
                })
                .collect();
            if rng.bool() {
                parts.extend(&contained);
            }
            items.push(self.value(&parts, rng, depth + 1));
        }
        Value::Array(items)
    }
}

fn of_member<'a>(schema: &'a Value, name: &str) -> Vec<&'a Value> {
    let listed = schema.get("properties").and_then(|parts| parts.get(name));
    let mut found: Vec<&Value> = listed.into_iter().collect();
    let patterns = schema.get("patternProperties").and_then(Value::as_object);
    for (pattern, part) in patterns.into_iter().flatten() {
        if is_match(pattern, name) {
            found.push(part);
        }
    }
    if found.is_empty() {
        found.extend(schema.get("additionalProperties"));
    }
    found
}

/// Matches the few patterns that random schemas have.
fn is_match(pattern: &str, text: &str) -> bool {
    match pattern {
        "^a" => text.starts_with('a'),
        "b$" => text.ends_with('b'),
        "^[a-c]*$" => text.chars().all(|letter| ('a'..='c').contains(&letter)),
        "^x-" => text.starts_with("x-"),
        "^.{2,}$" => text.chars().count() >= 2,
        other => unreachable!("no random schema has the pattern {other}"),
    }
}

fn matching(pattern: &str) -> impl Iterator<Item = String> {
    let texts = TEXTS.iter().filter(|text| text.len() < 5);
    let matching = texts.filter(move |text| is_match(pattern, text));
    matching.map(|text| (*text).to_owned())
}

fn kinds(speaking: &[&Value]) -> Vec<&'static str> {
    let all = [
        "null", "boolean", "integer", "number", "string", "array", "object",
    ];
    let is_named = |schema: &Value, kind: &str| match schema.get("type") {
        None => true,
        Some(Value::Array(names)) => names.contains(&json!(kind)),
        Some(name) => name == kind,
    };
    let fits = |kind: &&'static str| {
        speaking.iter().all(|schema| {
            is_named(schema, kind) || (*kind == "integer" && is_named(schema, "number"))
        })
    };
    all.into_iter().filter(fits).collect()
}

fn limit(speaking: &[&Value], name: &str) -> impl Iterator<Item = u64> {
    let limits: Vec<u64> = speaking
        .iter()
        .filter_map(|schema| schema.get(name)?.as_u64())
        .collect();
    limits.into_iter()
}

/// Makes a number at, just within or somewhere between the limits.
fn number(speaking: &[&Value], is_whole: bool, rng: &mut Rng) -> Value {
    let bounds = |names: [&str; 2]| -> Vec<f64> {
        let named = names.into_iter().flat_map(|name| {
            speaking
                .iter()
                .filter_map(move |schema| schema.get(name)?.as_f64())
        });
        named.collect()
    };
    let lower = bounds(["minimum", "exclusiveMinimum"])
        .into_iter()
        .reduce(f64::max);
    let upper = bounds(["maximum", "exclusiveMaximum"])
        .into_iter()
        .reduce(f64::min);
    let divisor = speaking
        .iter()
        .filter_map(|schema| schema.get("multipleOf")?.as_f64())
        .reduce(f64::max);
    let steps = [0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 7.0, 40.0];
    let step = steps[rng.usize(..steps.len())];
    let mut value = match (lower, upper, rng.u8(..3)) {
        (Some(lower), _, 0) | (Some(lower), None, _) => lower + step,
        (_, Some(upper), 1) | (None, Some(upper), _) => upper - step,
        (Some(lower), Some(upper), _) => (lower + upper) / 2.0,
        (None, None, _) => step * f64::from(rng.i8(-9..9)),
    };
    if let Some(divisor) = divisor.filter(|_| rng.u8(..6) > 0) {
        value = (value / divisor).ceil() * divisor;
    }
    if is_whole {
        value = value.ceil();
    }
    match value.fract() == 0.0 && value.abs() < 9e15 && rng.u8(..4) > 0 {
        true => json!(value as i64),
        false => json!(value),
    }
}

/// Takes a text and stretches or cuts it to a length at or within the limits.
fn text(speaking: &[&Value], rng: &mut Rng) -> String {
    let text = TEXTS[rng.usize(..TEXTS.len())];
    let least = limit(speaking, "minLength").max().unwrap_or(0) as usize;
    let most = limit(speaking, "maxLength").min().unwrap_or(64) as usize;
    let mut text: String = text.chars().take(most).collect();
    while text.chars().count() < least || (rng.u8(..12) == 0 && text.chars().count() < most) {
        text.push('b');
    }
    text
}
