//! A body made up from its schema: an input for trials of contracts without a probe, and bodies to
//! time checks with.
//!
//! An input for a trial has been checked against the schema, so that a keyword that is not
//! understood here costs an answer and never a wrong one, and holds only what is required.
//!
//! - what the author wrote comes first: `const`, `examples`, `default`, `enum`
//! - where there are alternatives each is tried, up to a bound
//! - no value is random: one schema, one input

use serde_json::{Map, Number, Value, json};

use super::guard::{self, Limits};
use super::{Compiled, Violations};

/// Alternatives of `anyOf` and `oneOf`, and values of `enum`, that are tried.
const TRIES: usize = 16;
/// Deeper than this nothing is made up.
const DEEPEST: usize = 32;
/// The most values and schemas that making one input may take.
const MOST: usize = 2_000;
/// The longest text made up, in characters.
const LONGEST: u64 = 4_096;

/// Why nothing could be made up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Underivable {
    #[error("what input_schema requires is too deep or too much")]
    TooLarge,
    #[error("what can be made up for input_schema does not conform to it: {0}")]
    Violates(Violations),
}

/// Makes up an input that a contract accepts.
pub fn input(contract: &Compiled) -> Result<Value, Underivable> {
    let schema = &contract.contract.input_schema;
    let mut fault = Underivable::TooLarge;
    for choice in 0..TRIES {
        let mut maker = Maker {
            root: schema,
            choice,
            is_whole: false,
            left: MOST,
        };
        let Some(made) = maker.make(schema, 0) else {
            continue;
        };
        match conforms(contract, &made) {
            Ok(()) => return Ok(made),
            // The first try is the plainest, so its fault tells most.
            Err(violations) if fault == Underivable::TooLarge => {
                fault = Underivable::Violates(violations);
            }
            Err(_) => {}
        }
    }
    Err(fault)
}

/// Makes up a body with every declared property and an entry in each list; what cannot be made up is
/// left out, so it may not conform.
pub fn whole(schema: &Value) -> Value {
    let mut maker = Maker {
        root: schema,
        choice: 0,
        is_whole: true,
        left: MOST,
    };
    maker.make(schema, 0).unwrap_or_default()
}

/// Holds a value against the input schema of a contract.
pub fn conforms(contract: &Compiled, input: &Value) -> Result<(), Violations> {
    let text = input.to_string();
    let limits = Limits {
        max_depth: guard::DEEPEST,
    };
    match guard::parse(text.as_bytes(), &limits) {
        Ok(document) => contract.input.check(&document),
        Err(refusal) => {
            let message = refusal.message().to_owned();
            Err(super::Violation::of_body("other", message).into())
        }
    }
}

/// One try.
struct Maker<'a> {
    root: &'a Value,
    /// Which alternative is taken wherever there are some.
    choice: usize,
    /// What is not required is made up, too.
    is_whole: bool,
    /// Values and schemas that may still be looked at.
    left: usize,
}

type Members = Map<String, Value>;

impl<'a> Maker<'a> {
    fn make(&mut self, schema: &Value, depth: usize) -> Option<Value> {
        self.left = self.left.checked_sub(1)?;
        if depth > DEEPEST {
            return None;
        }
        let schema = self.flat(schema, 0)?;
        if let Some(written) = self.written(&schema) {
            return Some(written);
        }
        match kind(&schema) {
            "null" => Some(Value::Null),
            "boolean" => Some(Value::Bool(false)),
            "integer" => number(&schema, true),
            "number" => number(&schema, false),
            "array" => self.array(&schema, depth),
            "object" => self.object(&schema, depth),
            _ => text(&schema),
        }
    }

    /// Takes what the author wrote down as a value.
    fn written(&self, schema: &Members) -> Option<Value> {
        if let Some(value) = schema.get("const") {
            return Some(value.clone());
        }
        let examples = schema.get("examples").and_then(Value::as_array);
        let examples = examples.into_iter().flatten().chain(schema.get("default"));
        let values = schema.get("enum").and_then(Value::as_array);
        let all: Vec<&Value> = examples.chain(values.into_iter().flatten()).collect();
        let picked = all.get(self.choice % all.len().max(1))?;
        Some((*picked).clone())
    }

    /// Lays a schema, what it refers to, all of `allOf` and one alternative over each other.
    fn flat(&mut self, schema: &Value, depth: usize) -> Option<Members> {
        self.left = self.left.checked_sub(1)?;
        if depth > DEEPEST {
            return None;
        }
        let Value::Object(members) = schema else {
            return Some(Members::new());
        };
        let mut flat = Members::new();
        if let Some(Value::String(reference)) = members.get("$ref") {
            let referred = self.referred(reference)?;
            overlay(&mut flat, self.flat(referred, depth + 1)?);
        }
        for part in list(members, "allOf") {
            overlay(&mut flat, self.flat(part, depth + 1)?);
        }
        for name in ["anyOf", "oneOf"] {
            let alternatives = list(members, name);
            if let Some(part) = alternatives.get(self.choice % alternatives.len().max(1)) {
                overlay(&mut flat, self.flat(part, depth + 1)?);
            }
        }
        let mut own = members.clone();
        for taken in ["$ref", "allOf", "anyOf", "oneOf"] {
            own.remove(taken);
        }
        overlay(&mut flat, own);
        Some(flat)
    }

    /// Follows a reference into the schema itself, by pointer; others are left to whoever writes
    /// a probe.
    fn referred(&self, reference: &str) -> Option<&'a Value> {
        self.root.pointer(reference.strip_prefix('#')?)
    }

    fn array(&mut self, schema: &Members, depth: usize) -> Option<Value> {
        let least = count(schema, "minItems").max(u64::from(schema.contains_key("contains")));
        let first = list(schema, "prefixItems");
        let rest = schema.get("items").or(schema.get("contains"));
        let mut wanted = usize::try_from(least).ok()?;
        if self.is_whole {
            let most = schema.get("maxItems").and_then(Value::as_u64);
            let shown = first.len().max(usize::from(rest.is_some()));
            wanted = wanted.max(shown.min(most.unwrap_or(MOST as u64) as usize));
        }
        let mut items = Vec::new();
        for at in 0..wanted {
            let item = first.get(at).or(rest).unwrap_or(&Value::Bool(true));
            match self.make(item, depth + 1) {
                Some(item) => items.push(item),
                None if self.is_whole => break,
                None => return None,
            }
        }
        if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
            tell_apart(&mut items);
        }
        Some(Value::Array(items))
    }

    fn object(&mut self, schema: &Members, depth: usize) -> Option<Value> {
        let empty = Members::new();
        let declared = schema.get("properties").and_then(Value::as_object);
        let declared = declared.unwrap_or(&empty);
        let required = list(schema, "required").iter().filter_map(Value::as_str);
        let mut wanted: Vec<String> = required.map(str::to_owned).collect();
        let least = usize::try_from(count(schema, "minProperties")).ok()?;
        let optional = declared.keys().filter(|name| !list_has(schema, name));
        let missing = match self.is_whole {
            true => declared.len(),
            false => least.saturating_sub(wanted.len()),
        };
        wanted.extend(optional.take(missing).cloned());
        let others = schema.get("additionalProperties");
        let others = others.unwrap_or(&Value::Bool(true));
        let mut made = Members::new();
        for name in wanted {
            let property = declared.get(&name).unwrap_or(others);
            match self.make(property, depth + 1) {
                Some(value) => made.insert(name, value),
                None if self.is_whole => continue,
                None => return None,
            };
        }
        for at in 1.. {
            if made.len() >= least {
                break;
            }
            let value = self.make(others, depth + 1)?;
            made.insert(format!("member-{at}"), value);
        }
        Some(Value::Object(made))
    }
}

/// Lays one schema over another: properties and required names add up, bounds get narrower.
fn overlay(under: &mut Members, over: Members) {
    for (name, value) in over {
        let Some(there) = under.get_mut(&name) else {
            under.insert(name, value);
            continue;
        };
        match (name.as_str(), there, value) {
            ("required", Value::Array(names), Value::Array(more)) => {
                for name in more {
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
            }
            ("properties", Value::Object(properties), Value::Object(more)) => {
                for (name, schema) in more {
                    let both = match properties.remove(&name) {
                        Some(there) => json!({"allOf": [there, schema]}),
                        None => schema,
                    };
                    properties.insert(name, both);
                }
            }
            (name, there, value) if name.starts_with("min") || name.contains("Minimum") => {
                if value.as_f64() > there.as_f64() {
                    *there = value;
                }
            }
            (name, there, value) if name.starts_with("max") || name.contains("Maximum") => {
                if value.as_f64() < there.as_f64() {
                    *there = value;
                }
            }
            (_, there, value) => *there = value,
        }
    }
}

/// The type to make: as declared, else as the keywords suggest.
fn kind(schema: &Members) -> &str {
    let declared = match schema.get("type") {
        Some(Value::String(kind)) => Some(kind.as_str()),
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).next(),
        _ => None,
    };
    let suggests = [
        ("object", &["properties", "required", "minProperties"][..]),
        ("array", &["items", "prefixItems", "minItems", "contains"]),
        (
            "number",
            &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
        ),
        ("number", &["multipleOf"]),
    ];
    let mut suggested = suggests
        .iter()
        .filter(|(_, names)| names.iter().any(|name| schema.contains_key(*name)));
    declared
        .or_else(|| suggested.next().map(|(kind, _)| *kind))
        .unwrap_or("string")
}

fn list<'a>(schema: &'a Members, name: &str) -> &'a [Value] {
    match schema.get(name) {
        Some(Value::Array(items)) => items,
        _ => &[],
    }
}

fn list_has(schema: &Members, name: &str) -> bool {
    list(schema, "required").iter().any(|known| known == name)
}

fn count(schema: &Members, name: &str) -> u64 {
    let number = schema.get(name).and_then(Value::as_f64).unwrap_or_default();
    number.max(0.0).ceil() as u64
}

/// The number nearest to zero that the bounds allow.
fn number(schema: &Members, is_whole: bool) -> Option<Value> {
    let bound = |name| schema.get(name).and_then(Value::as_f64);
    let step = bound("multipleOf").filter(|step| *step > 0.0);
    let grain = step.unwrap_or(1.0);
    let past = |at: Option<f64>, by: f64| at.map(|at| (at / grain).round() * grain + by);
    let least = bound("minimum").into_iter();
    let least = least.chain(past(bound("exclusiveMinimum"), grain));
    let most = bound("maximum").into_iter();
    let most = most.chain(past(bound("exclusiveMaximum"), -grain));
    let (least, most) = (
        least.fold(f64::NEG_INFINITY, f64::max),
        most.fold(f64::INFINITY, f64::min),
    );
    let near = 0.0_f64.max(least).min(most);
    let whole = match near < 0.0 {
        false => (near / grain).ceil() * grain,
        true => (near / grain).floor() * grain,
    };
    let fits = |number: f64| number >= least && number <= most;
    let number = match (is_whole || step.is_some(), fits(whole)) {
        (_, true) => whole,
        // Between two open bounds closer than a whole step.
        (false, false) => between(schema).unwrap_or(near),
        (true, false) => near,
    };
    if number.fract() == 0.0 && number.abs() < 9e15 {
        return Some(Value::from(number as i64));
    }
    Number::from_f64(number).map(Value::Number)
}

/// The middle of two bounds, for numbers that must lie strictly within.
fn between(schema: &Members) -> Option<f64> {
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    let least = bound("minimum").or(bound("exclusiveMinimum"))?;
    let most = bound("maximum").or(bound("exclusiveMaximum"))?;
    Some(least + (most - least) / 2.0)
}

fn text(schema: &Members) -> Option<Value> {
    let least = count(schema, "minLength");
    if least > LONGEST {
        return None;
    }
    let known = match schema.get("format").and_then(Value::as_str) {
        Some("date") => "2000-01-01",
        Some("date-time") => "2000-01-01T00:00:00Z",
        Some("time") => "00:00:00Z",
        Some("duration") => "PT1S",
        Some("email" | "idn-email") => "probe@example.com",
        Some("hostname" | "idn-hostname") => "example.com",
        Some("ipv4") => "192.0.2.1",
        Some("ipv6") => "2001:db8::1",
        Some("uri" | "iri") => "https://example.com/",
        Some("uri-reference" | "iri-reference") => "/",
        Some("uuid") => "00000000-0000-4000-8000-000000000000",
        Some("json-pointer") => "/probe",
        Some("relative-json-pointer") => "0",
        _ => "",
    };
    if !known.is_empty() {
        return Some(known.into());
    }
    let most = schema.get("maxLength").map(|_| count(schema, "maxLength"));
    let word = "probe";
    let length = least.max(most.map_or(word.len() as u64, |most| most.min(word.len() as u64)));
    let letters = word.chars().chain(std::iter::repeat('x'));
    let made: String = letters.take(usize::try_from(length).ok()?).collect();
    Some(made.into())
}

/// Makes equal numbers and texts differ.
fn tell_apart(items: &mut [Value]) {
    for at in 1..items.len() {
        let (before, rest) = items.split_at_mut(at);
        if !before.contains(&rest[0]) {
            continue;
        }
        rest[0] = match &rest[0] {
            Value::Number(number) => match number.as_i64() {
                Some(number) => Value::from(number.saturating_add(at as i64)),
                None => continue,
            },
            Value::String(text) => Value::from(format!("{text}{at}")),
            _ => continue,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Contract;

    fn compiled(input_schema: Value) -> Compiled {
        let contract = json!({
            "id": "a-b-v1.0",
            "version": "1.0.0",
            "input_schema": input_schema,
            "output_schema": {"type": "object"},
            "constraints": {"timeout_ms": 500},
        });
        Compiled::new(Contract::from_slice(contract.to_string().as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn inputs_are_the_least_that_a_schema_wants() {
        for (schema, made) in [
            (json!({"type": "object"}), json!({})),
            (
                json!({"type": "object", "required": ["n"], "properties": {
                    "n": {"type": "number", "minimum": 0.01}, "left_out": {"type": "string"}}}),
                json!({"n": 1}),
            ),
            (json!({"type": "integer", "exclusiveMinimum": 3}), json!(4)),
            (json!({"type": "integer", "maximum": -7}), json!(-7)),
            (
                json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
                json!(0.5),
            ),
            (
                json!({"type": "number", "minimum": 0.1, "maximum": 0.4}),
                json!(0.25),
            ),
            (
                json!({"type": "integer", "minimum": 5, "multipleOf": 4}),
                json!(8),
            ),
            (json!({"type": "string"}), json!("probe")),
            (json!({"type": "string", "maxLength": 2}), json!("pr")),
            (json!({"type": "string", "minLength": 7}), json!("probexx")),
            (
                json!({"type": "string", "format": "ipv4"}),
                json!("192.0.2.1"),
            ),
            (json!({"const": {"a": 1}}), json!({"a": 1})),
            (json!({"enum": ["low", "high"]}), json!("low")),
            (
                json!({"type": "string", "examples": ["e"], "default": "d"}),
                json!("e"),
            ),
            // A default that does not conform is passed over.
            (
                json!({"type": "string", "default": 7, "enum": ["a"]}),
                json!("a"),
            ),
            (json!({"type": ["string", "null"]}), json!("probe")),
            (
                json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "boolean"}}}),
                json!(false),
            ),
            (
                json!({"allOf": [{"required": ["a"]}, {"required": ["b"]}],
                    "properties": {"a": {"type": "null"}, "b": {"minimum": 2}}}),
                json!({"a": null, "b": 2}),
            ),
            // The first alternative can never be met.
            (
                json!({"oneOf": [{"type": "string", "pattern": "^[0-9]+$"}, {"type": "null"}]}),
                json!(null),
            ),
            (
                json!({"type": "array", "minItems": 2, "uniqueItems": true,
                    "items": {"type": "integer"}}),
                json!([0, 1]),
            ),
            (
                json!({"type": "object", "minProperties": 2,
                    "properties": {"a": {"type": "integer"}},
                    "additionalProperties": {"type": "string"}}),
                json!({"a": 0, "member-1": "probe"}),
            ),
        ] {
            assert_eq!(input(&compiled(schema.clone())), Ok(made), "{schema}");
        }
    }

    #[test]
    fn formats_that_are_asserted_have_a_value() {
        for format in crate::contract::FORMATS {
            let schema = json!({"type": "string", "format": format});
            assert!(input(&compiled(schema)).is_ok(), "{format}");
        }
    }

    #[test]
    fn what_cannot_be_made_up_says_so() {
        let pattern = json!({"type": "object", "required": ["plate"], "properties": {
            "plate": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}}});
        let fault = input(&compiled(pattern)).unwrap_err().to_string();
        assert!(fault.contains("/plate must match the pattern"), "{fault}");
        let endless = json!({"type": "object", "required": ["next"],
            "properties": {"next": {"$ref": "#"}}});
        assert_eq!(input(&compiled(endless)), Err(Underivable::TooLarge));
        for huge in [
            json!({"type": "array", "minItems": 4_000_000_000_u64}),
            json!({"type": "string", "minLength": 4_000_000_000_u64}),
            json!({"type": "object", "minProperties": 4_000_000_000_u64}),
        ] {
            assert_eq!(input(&compiled(huge)), Err(Underivable::TooLarge));
        }
        assert!(input(&compiled(json!(false))).is_err());
    }

    #[test]
    fn an_input_is_the_same_every_time() {
        let schema = json!({"type": "object", "required": ["b", "a"]});
        let made = input(&compiled(schema.clone()));
        assert_eq!(made, input(&compiled(schema)));
    }

    #[test]
    fn a_whole_body_has_what_is_declared_and_conforms_to_usual_schemas() {
        for (schema, shown) in [
            (
                json!({"type": "object", "required": ["user", "amount"], "properties": {
                    "user": {"type": "string", "minLength": 3},
                    "when": {"format": "date-time", "type": "string"},
                    "amount": {"type": "number", "exclusiveMinimum": 0},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "note": {"type": ["null", "string"]}
                }}),
                vec!["/user", "/when", "/amount", "/tags/0", "/note"],
            ),
            (
                json!({"oneOf": [{"type": "string", "format": "ipv4"}, {"type": "null"}]}),
                vec![""],
            ),
            (
                json!({"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}]}),
                vec!["/0", "/1"],
            ),
            (json!({"type": "array", "items": {}, "maxItems": 0}), vec![]),
            (json!({}), vec![]),
        ] {
            let body = whole(&schema);
            for place in shown {
                assert!(body.pointer(place).is_some(), "{place}: {body}");
            }
            conforms(&compiled(schema), &body).unwrap();
        }
    }

    #[test]
    fn a_whole_body_of_a_schema_without_end_ends() {
        let tree = json!({"type": "object", "properties": {
            "left": {"$ref": "#"}, "right": {"$ref": "#"}
        }});
        assert!(whole(&tree).to_string().len() < 100_000);
        let wide = json!({"type": "array", "items": {"type": "string"}, "minItems": 1_000_000});
        assert!((1..=MOST).contains(&whole(&wide).as_array().unwrap().len()));
    }
}
