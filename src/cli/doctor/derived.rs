//! A body that a schema asks for, where nobody has given one: every property present, each list
//! with an entry, each text as short as allowed.
//!
//! It serves to time a check. It does not always conform (patterns, conditions); whoever uses it
//! checks that.

use serde_json::{Map, Value, json};

/// References and nesting are followed so far.
const DEEPEST: usize = 16;
/// A list that wants more entries than this is not filled further.
const MOST_ENTRIES: u64 = 100;
const LONGEST_TEXT: u64 = 1000;

/// Makes a body for `schema`.
pub(super) fn body(schema: &Value) -> Value {
    Maker { root: schema }.value(schema, 0)
}

struct Maker<'a> {
    root: &'a Value,
}

impl Maker<'_> {
    fn value(&self, schema: &Value, depth: usize) -> Value {
        let Some(members) = schema.as_object().filter(|_| depth < DEEPEST) else {
            return Value::Null;
        };
        if let Some(given) = given(members) {
            return given;
        }
        let target = members.get("$ref").and_then(Value::as_str);
        if let Some(target) = target.and_then(|target| self.resolve(target)) {
            return self.value(target, depth + 1);
        }
        for choice in ["oneOf", "anyOf", "allOf"] {
            let first = members.get(choice).and_then(|of| of.get(0));
            // An object's own properties come before an alternative that only adds to them.
            if let Some(first) = first.filter(|_| !members.contains_key("properties")) {
                return self.value(first, depth + 1);
            }
        }
        match kind(members) {
            "object" => self.object(members, depth),
            "array" => self.array(members, depth),
            "string" => text(members).into(),
            "integer" | "number" => number(members),
            "boolean" => true.into(),
            _ => Value::Null,
        }
    }

    /// Follows a reference within the document.
    fn resolve(&self, target: &str) -> Option<&Value> {
        self.root.pointer(target.strip_prefix('#')?)
    }

    fn object(&self, members: &Map<String, Value>, depth: usize) -> Value {
        let properties = members.get("properties").and_then(Value::as_object);
        let properties = properties.into_iter().flatten();
        let made = properties.map(|(name, schema)| (name.clone(), self.value(schema, depth + 1)));
        Value::Object(made.collect())
    }

    fn array(&self, members: &Map<String, Value>, depth: usize) -> Value {
        let fixed = members.get("prefixItems").and_then(Value::as_array);
        let mut made: Vec<Value> = fixed
            .into_iter()
            .flatten()
            .map(|schema| self.value(schema, depth + 1))
            .collect();
        let least = natural(members, "minItems").unwrap_or(1).min(MOST_ENTRIES);
        if let Some(items) = members.get("items").filter(|items| items.is_object()) {
            let entry = self.value(items, depth + 1);
            while (made.len() as u64) < least {
                made.push(entry.clone());
            }
        }
        made.into()
    }
}

/// Returns what the schema itself shows.
fn given(members: &Map<String, Value>) -> Option<Value> {
    let first = |name: &str| members.get(name)?.get(0);
    let given = members.get("const").or_else(|| first("enum"));
    let given = given
        .or_else(|| first("examples"))
        .or_else(|| members.get("default"));
    given.cloned()
}

fn kind(members: &Map<String, Value>) -> &str {
    match members.get("type") {
        Some(Value::String(kind)) => kind,
        Some(Value::Array(kinds)) => {
            let kinds = kinds.iter().filter_map(Value::as_str);
            let mut kinds = kinds.filter(|kind| *kind != "null");
            kinds.next().unwrap_or("null")
        }
        _ if members.contains_key("properties") => "object",
        _ if members.contains_key("items") => "array",
        _ => "null",
    }
}

fn natural(members: &Map<String, Value>, name: &str) -> Option<u64> {
    members.get(name).and_then(Value::as_u64)
}

fn text(members: &Map<String, Value>) -> String {
    let format = members.get("format").and_then(Value::as_str);
    let shown = match format.unwrap_or_default() {
        "date" => "2026-01-31",
        "date-time" => "2026-01-31T12:00:00Z",
        "time" => "12:00:00Z",
        "duration" => "PT1S",
        "email" => "a@example.com",
        "hostname" => "example.com",
        "ipv4" => "192.0.2.1",
        "ipv6" => "2001:db8::1",
        "uri" | "iri" | "uri-reference" | "iri-reference" => "https://example.com/",
        "json-pointer" => "/a",
        "relative-json-pointer" => "0",
        "uuid" => "00000000-0000-4000-8000-000000000000",
        _ => {
            let least = natural(members, "minLength").unwrap_or(1);
            let most = natural(members, "maxLength").unwrap_or(LONGEST_TEXT);
            return "a".repeat(least.min(most).min(LONGEST_TEXT) as usize);
        }
    };
    shown.to_owned()
}

fn number(members: &Map<String, Value>) -> Value {
    if let Some(least) = members.get("minimum") {
        return least.clone();
    }
    let above = members.get("exclusiveMinimum").and_then(Value::as_f64);
    match above {
        Some(above) if above.abs() < 1e15 => json!(above.floor() as i64 + 1),
        _ => members.get("maximum").cloned().unwrap_or(json!(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Validator, guard};

    #[test]
    fn a_derived_body_conforms_to_usual_schemas() {
        for schema in [
            json!({"type": "object", "required": ["user", "when", "amount", "tags"], "properties": {
                "user": {"type": "string", "minLength": 3}, "when": {"format": "date-time", "type": "string"},
                "amount": {"type": "number", "exclusiveMinimum": 0}, "level": {"enum": ["low", "high"]},
                "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
                "note": {"type": ["null", "string"]}
            }}),
            json!({"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer", "minimum": 5}}}),
            json!({"oneOf": [{"type": "string", "format": "ipv4"}, {"type": "null"}]}),
            json!({"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}]}),
            json!({}),
        ] {
            let body = body(&schema).to_string();
            let document = guard::parse(body.as_bytes(), &guard::Limits::default()).unwrap();
            let validator = Validator::compile(&schema).unwrap();
            assert!(validator.check(&document).is_ok(), "{schema}: {body}");
        }
    }

    #[test]
    fn a_schema_that_holds_itself_ends() {
        let schema = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
        assert!(body(&schema).to_string().len() < 1000);
        let wide = json!({"type": "array", "items": {"type": "string"}, "minItems": 1_000_000});
        assert_eq!(body(&wide).as_array().unwrap().len(), 100);
    }
}
