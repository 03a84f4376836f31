//! Random schemas, and others that differ from them a little.
//!
//! Values are drawn from small pools, so that changes meet and often allow just as much.

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// Names of members.
pub const NAMES: [&str; 5] = ["a", "b", "ab", "c", "x-1"];
pub const PATTERNS: [&str; 5] = ["^a", "b$", "^[a-c]*$", "^x-", "^.{2,}$"];
const FORMATS: [&str; 9] = [
    "date",
    "date-time",
    "uuid",
    "ipv4",
    "uri",
    "uri-reference",
    "iri",
    "iri-reference",
    "colour",
];
const TYPES: [&str; 7] = [
    "null", "boolean", "integer", "number", "string", "array", "object",
];
/// Definitions every schema has, and may refer to, itself included.
const DEFINITIONS: [&str; 2] = ["one", "two"];

/// Draws schemas.
pub struct Schemas<'r> {
    pub rng: &'r mut Rng,
}

impl Schemas<'_> {
    /// Draws a schema with its definitions.
    pub fn root(&mut self) -> Value {
        let mut root = match self.rng.u8(..10) {
            0..7 => self.object(3),
            _ => self.schema(3),
        };
        let mut definitions = Map::new();
        for name in DEFINITIONS {
            let mut definition = self.schema(1);
            if let Value::Object(members) = &mut definition {
                members.insert("$anchor".to_owned(), json!(name));
            }
            definitions.insert(name.to_owned(), definition);
        }
        if let Value::Object(members) = &mut root {
            members.insert("$defs".to_owned(), Value::Object(definitions));
        }
        root
    }

    /// Draws a schema of at most this many levels.
    pub fn schema(&mut self, depth: u32) -> Value {
        if depth == 0 || self.rng.u8(..4) == 0 {
            return self.leaf();
        }
        match self.rng.u8(..16) {
            0..6 => self.object(depth),
            6..9 => self.array(depth),
            9 => json!({"$ref": self.reference()}),
            10 => json!({"allOf": self.several(depth)}),
            11 => json!({"anyOf": self.several(depth)}),
            12 => json!({"oneOf": self.several(depth)}),
            13 => self.union(depth),
            14 => {
                let mut schema = self.leaf();
                self.put(&mut schema, "not", |own| own.leaf());
                schema
            }
            _ => json!({
                "if": self.leaf(),
                "then": self.schema(depth - 1),
                "else": self.schema(depth - 1),
            }),
        }
    }

    fn put(&mut self, schema: &mut Value, name: &str, draw: impl FnOnce(&mut Self) -> Value) {
        let value = draw(self);
        if let Value::Object(members) = schema {
            members.insert(name.to_owned(), value);
        }
    }

    fn several(&mut self, depth: u32) -> Value {
        let count = self.rng.usize(1..4);
        (0..count).map(|_| self.schema(depth - 1)).collect()
    }

    /// Draws objects told apart by a constant.
    fn union(&mut self, depth: u32) -> Value {
        let count = self.rng.usize(1..4);
        let parts = (0..count).map(|index| {
            let name = NAMES[self.rng.usize(..NAMES.len())];
            json!({
                "properties": {"kind": {"const": index}, name: self.schema(depth - 1)},
                "required": ["kind"],
            })
        });
        let parts: Vec<_> = parts.collect();
        json!({"type": "object", "oneOf": parts})
    }

    fn reference(&mut self) -> String {
        let name = DEFINITIONS[self.rng.usize(..DEFINITIONS.len())];
        match self.rng.bool() {
            true => format!("#/$defs/{name}"),
            false => format!("#{name}"),
        }
    }

    fn leaf(&mut self) -> Value {
        let kind = TYPES[self.rng.usize(..TYPES.len())];
        match self.rng.u8(..12) {
            0 => json!(self.rng.u8(..4) > 0),
            1 => json!({}),
            2 => {
                let count = self.rng.usize(1..4);
                let values: Vec<_> = (0..count).map(|_| self.value(1)).collect();
                json!({ "enum": values })
            }
            3 => json!({"const": self.value(1)}),
            4 => {
                let mut types = vec![kind];
                let other = TYPES[self.rng.usize(..TYPES.len())];
                if other != kind {
                    types.push(other);
                }
                json!({ "type": types })
            }
            _ => {
                let mut schema = json!({});
                if self.rng.u8(..8) > 0 {
                    schema["type"] = json!(kind);
                }
                for _ in 0..self.rng.usize(..3) {
                    self.add_keyword(&mut schema, kind, 0);
                }
                schema
            }
        }
    }

    pub fn object(&mut self, depth: u32) -> Value {
        let mut schema = json!({"type": "object"});
        let mut properties = Map::new();
        for _ in 0..self.rng.usize(1..4) {
            let name = NAMES[self.rng.usize(..NAMES.len())];
            properties.insert(name.to_owned(), self.schema(depth - 1));
        }
        schema["properties"] = Value::Object(properties);
        for _ in 0..self.rng.usize(..4) {
            self.add_keyword(&mut schema, "object", depth - 1);
        }
        schema
    }

    fn array(&mut self, depth: u32) -> Value {
        let mut schema = json!({"type": "array"});
        for _ in 0..self.rng.usize(1..4) {
            self.add_keyword(&mut schema, "array", depth - 1);
        }
        schema
    }

    /// Adds or replaces one keyword that speaks of a type.
    fn add_keyword(&mut self, schema: &mut Value, kind: &str, depth: u32) {
        let (name, value) = match kind {
            "integer" | "number" => {
                let names = [
                    "minimum",
                    "maximum",
                    "exclusiveMinimum",
                    "exclusiveMaximum",
                    "multipleOf",
                ];
                let name = names[self.rng.usize(..names.len())];
                let value = match name {
                    "multipleOf" => {
                        let divisors = [
                            json!(1),
                            json!(2),
                            json!(3),
                            json!(6),
                            json!(0.5),
                            json!(0.01),
                        ];
                        divisors[self.rng.usize(..divisors.len())].clone()
                    }
                    _ => self.number(),
                };
                (name, value)
            }
            "string" => match self.rng.u8(..4) {
                0 => ("minLength", json!(self.rng.u8(..4))),
                1 => ("maxLength", json!(self.rng.u8(..6))),
                2 => ("pattern", json!(PATTERNS[self.rng.usize(..PATTERNS.len())])),
                _ => ("format", json!(FORMATS[self.rng.usize(..FORMATS.len())])),
            },
            "array" => self.array_keyword(depth),
            "object" => self.object_keyword(depth),
            _ => return,
        };
        if let Value::Object(members) = schema {
            members.insert(name.to_owned(), value);
        }
    }

    fn array_keyword(&mut self, depth: u32) -> (&'static str, Value) {
        match self.rng.u8(..10) {
            0..4 => ("items", self.schema(depth.min(1))),
            4 => ("minItems", json!(self.rng.u8(..3))),
            5 => ("maxItems", json!(self.rng.u8(..5))),
            6 => ("uniqueItems", json!(self.rng.bool())),
            7 => {
                let count = self.rng.usize(1..3);
                let parts: Vec<_> = (0..count).map(|_| self.schema(depth.min(1))).collect();
                ("prefixItems", json!(parts))
            }
            8 => ("contains", self.leaf()),
            _ => match self.rng.u8(..3) {
                0 => ("minContains", json!(self.rng.u8(..3))),
                1 => ("maxContains", json!(self.rng.u8(..3))),
                _ => ("unevaluatedItems", json!(self.rng.bool())),
            },
        }
    }

    fn object_keyword(&mut self, depth: u32) -> (&'static str, Value) {
        let name = NAMES[self.rng.usize(..NAMES.len())];
        let other = NAMES[self.rng.usize(..NAMES.len())];
        let pattern = PATTERNS[self.rng.usize(..PATTERNS.len())];
        match self.rng.u8(..16) {
            0..4 => (
                "required",
                if name == other {
                    json!([name])
                } else {
                    json!([name, other])
                },
            ),
            4..6 => ("additionalProperties", json!(false)),
            6 => ("additionalProperties", self.schema(depth.min(1))),
            7 => (
                "patternProperties",
                json!({ pattern: self.schema(depth.min(1)) }),
            ),
            8 => ("propertyNames", json!({ "pattern": pattern })),
            9 => ("propertyNames", json!({"maxLength": self.rng.u8(..4)})),
            10 => ("minProperties", json!(self.rng.u8(..3))),
            11 => ("maxProperties", json!(self.rng.u8(..4))),
            12 => ("dependentRequired", json!({ name: [other] })),
            13 => ("dependentSchemas", json!({ name: self.leaf() })),
            14 => ("unevaluatedProperties", json!(false)),
            _ => ("not", json!({ "required": [name] })),
        }
    }

    pub fn number(&mut self) -> Value {
        match self.rng.u8(..12) {
            0 => json!(2.5),
            1 => json!(3.0),
            2 => json!(0.1),
            3 => json!(9_007_199_254_740_992_u64),
            _ => json!(self.rng.i32(-3..8)),
        }
    }

    /// Draws any value of at most this many levels.
    pub fn value(&mut self, depth: u32) -> Value {
        const TEXTS: [&str; 14] = [
            "",
            "a",
            "b",
            "ab",
            "abc",
            "é",
            "zzzz",
            "0",
            "x-1",
            "2024-02-29",
            "2024-02-29T12:30:00Z",
            "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "10.0.0.1",
            "https://example.com/a",
        ];
        match self.rng.u8(..if depth == 0 { 8 } else { 12 }) {
            0 => Value::Null,
            1 => json!(self.rng.bool()),
            2..5 => self.number(),
            5..8 => json!(TEXTS[self.rng.usize(..TEXTS.len())]),
            8..10 => (0..self.rng.usize(..3))
                .map(|_| self.value(depth - 1))
                .collect(),
            _ => {
                let mut members = Map::new();
                for _ in 0..self.rng.usize(..3) {
                    let name = NAMES[self.rng.usize(..NAMES.len())];
                    members.insert(name.to_owned(), self.value(depth - 1));
                }
                Value::Object(members)
            }
        }
    }

    /// Draws what may come after a schema: mostly itself with a few changes.
    pub fn successor(&mut self, old: &Value) -> Value {
        if self.rng.u8(..12) == 0 {
            return self.root();
        }
        let mut new = old.clone();
        for _ in 0..self.rng.usize(1..4) {
            let mut places = places(&new);
            if self.rng.u8(..4) > 0 {
                // Most definitions are referred to by nobody.
                places.retain(|place| !place.starts_with("/$defs"));
            }
            let place = &places[self.rng.usize(..places.len())];
            if let Some(part) = new.pointer_mut(place) {
                self.change(part, place.is_empty());
            }
        }
        new
    }

    fn change(&mut self, part: &mut Value, is_root: bool) {
        let Value::Object(members) = part else {
            *part = self.schema(1);
            return;
        };
        let names: Vec<String> = members
            .keys()
            .filter(|name| *name != "$defs")
            .cloned()
            .collect();
        let some = names.get(self.rng.usize(..names.len().max(1))).cloned();
        match (self.rng.u8(..16), some) {
            // Nothing is said of something any more.
            (0..2, Some(name)) if name != "properties" => {
                members.remove(&name);
            }
            (2..8, Some(name)) => self.move_limit(members, &name),
            (8, _) => {
                let name = NAMES[self.rng.usize(..NAMES.len())];
                let properties = members.entry("properties").or_insert_with(|| json!({}));
                properties[name] = self.schema(1);
            }
            (9, Some(_)) if members.contains_key("enum") => {
                let value = self.value(1);
                if let Some(Value::Array(values)) = members.get_mut("enum") {
                    values.push(value);
                }
            }
            (10, _) => {
                let kind = members
                    .get("type")
                    .and_then(Value::as_str)
                    .unwrap_or("number");
                let kind = kind.to_owned();
                self.add_keyword(part, &kind, 1);
            }
            (11, _) if !is_root => *part = json!({"anyOf": [part.take(), self.schema(1)]}),
            (12, _) if !is_root => *part = json!({"allOf": [part.take()]}),
            (13, _) if !is_root => *part = self.schema(1),
            (14, _) if members.get("type") == Some(&json!("integer")) => {
                members.insert("type".to_owned(), json!("number"));
            }
            (_, Some(name)) => self.shuffle(members, &name),
            _ => {}
        }
    }

    /// Moves a limit a little, to where more or less is allowed.
    fn move_limit(&mut self, members: &mut Map<String, Value>, name: &str) {
        let step = if self.rng.bool() { 1 } else { -1 };
        let Some(value) = members.get_mut(name) else {
            return;
        };
        match (name, value) {
            ("minLength" | "minItems" | "minProperties" | "minContains", value) => {
                let moved = value.as_i64().unwrap_or_default() - step;
                *value = json!(moved.max(0));
            }
            ("maxLength" | "maxItems" | "maxProperties" | "maxContains", value) => {
                let moved = value.as_i64().unwrap_or_default() + step;
                *value = json!(moved.max(0));
            }
            ("minimum" | "exclusiveMinimum", value) => {
                *value = json!(value.as_f64().unwrap_or_default() - step as f64);
            }
            ("maximum" | "exclusiveMaximum", value) => {
                *value = json!(value.as_f64().unwrap_or_default() + step as f64);
            }
            ("type", value) => {
                let mut types: Vec<Value> = match value.take() {
                    Value::Array(types) => types,
                    lone => vec![lone],
                };
                let more = json!(TYPES[self.rng.usize(..TYPES.len())]);
                if !types.contains(&more) {
                    types.push(more);
                }
                *value = json!(types);
            }
            ("required" | "enum", Value::Array(values)) if step > 0 => {
                if name == "required" || self.rng.u8(..3) == 0 {
                    values.pop();
                }
                if values.is_empty() {
                    members.remove(name);
                }
            }
            _ => {}
        }
    }

    /// Says the same in another order.
    fn shuffle(&mut self, members: &mut Map<String, Value>, name: &str) {
        if !matches!(name, "required" | "enum" | "anyOf" | "oneOf" | "allOf") {
            return;
        }
        if let Some(Value::Array(parts)) = members.get_mut(name) {
            self.rng.shuffle(parts);
        }
    }
}

/// Lists the places of all schemas within a schema.
fn places(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect(schema, "", &mut found);
    found
}

fn collect(schema: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    for (name, value) in schema.as_object().into_iter().flatten() {
        let at = format!("{at}/{name}");
        match (name.as_str(), value) {
            ("properties" | "patternProperties" | "dependentSchemas" | "$defs", value) => {
                for (name, part) in value.as_object().into_iter().flatten() {
                    collect(part, &format!("{at}/{name}"), found);
                }
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(parts)) => {
                for (index, part) in parts.iter().enumerate() {
                    collect(part, &format!("{at}/{index}"), found);
                }
            }
            (
                "items"
                | "contains"
                | "additionalProperties"
                | "propertyNames"
                | "not"
                | "if"
                | "then"
                | "else",
                part,
            ) => collect(part, &at, found),
            _ => {}
        }
    }
}
