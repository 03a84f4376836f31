//! The keywords of JSON Schema draft 2020-12, and the walk over a schema they define.

use serde_json::{Map, Value};
use strsim::osa_distance;

use super::pointer::Pointer;

/// What the value of a keyword holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    Value,
    Schema,
    Schemas,
    SchemaMap,
}

use Holds::{Schema, SchemaMap, Schemas, Value as Plain};

/// Every keyword of the 2020-12 vocabularies.
const KEYWORDS: [(&str, Holds); 61] = [
    ("$anchor", Plain),
    ("$comment", Plain),
    ("$defs", SchemaMap),
    ("$dynamicAnchor", Plain),
    ("$dynamicRef", Plain),
    ("$id", Plain),
    ("$ref", Plain),
    ("$schema", Plain),
    ("$vocabulary", Plain),
    ("additionalProperties", Schema),
    ("allOf", Schemas),
    ("anyOf", Schemas),
    ("const", Plain),
    ("contains", Schema),
    ("contentEncoding", Plain),
    ("contentMediaType", Plain),
    ("contentSchema", Plain),
    ("default", Plain),
    // The next two are of older drafts; the metaschema still knows them.
    ("definitions", SchemaMap),
    ("dependencies", Plain),
    ("dependentRequired", Plain),
    ("dependentSchemas", SchemaMap),
    ("deprecated", Plain),
    ("description", Plain),
    ("else", Schema),
    ("enum", Plain),
    ("examples", Plain),
    ("exclusiveMaximum", Plain),
    ("exclusiveMinimum", Plain),
    ("format", Plain),
    ("if", Schema),
    ("items", Schema),
    ("maxContains", Plain),
    ("maxItems", Plain),
    ("maxLength", Plain),
    ("maxProperties", Plain),
    ("maximum", Plain),
    ("minContains", Plain),
    ("minItems", Plain),
    ("minLength", Plain),
    ("minProperties", Plain),
    ("minimum", Plain),
    ("multipleOf", Plain),
    ("not", Schema),
    ("oneOf", Schemas),
    ("pattern", Plain),
    ("patternProperties", SchemaMap),
    ("prefixItems", Schemas),
    ("properties", SchemaMap),
    ("propertyNames", Schema),
    ("readOnly", Plain),
    ("required", Plain),
    ("then", Schema),
    ("title", Plain),
    ("type", Plain),
    ("unevaluatedItems", Schema),
    ("unevaluatedProperties", Schema),
    ("uniqueItems", Plain),
    ("writeOnly", Plain),
    // Not keywords of ours, but names under which violations are counted.
    ("falseSchema", Plain),
    ("number", Plain),
];
/// The last entries of `KEYWORDS` that no schema may use.
const COUNTED_ONLY: usize = 2;

const TYPES: [&str; 7] = [
    "array", "boolean", "integer", "null", "number", "object", "string",
];

/// Looks a keyword up.
pub fn holds(name: &str) -> Option<Holds> {
    let known = &KEYWORDS[..KEYWORDS.len() - COUNTED_ONLY];
    let found = known.iter().find(|(known, _)| *known == name)?;
    Some(found.1)
}

/// Answers whether a member of a schema means nothing to anybody.
pub fn is_unknown(name: &str) -> bool {
    holds(name).is_none() && !name.starts_with("x-")
}

/// Gives a keyword the static name that metrics may use.
pub fn counted(name: &str) -> &'static str {
    let found = KEYWORDS.iter().find(|(known, _)| *known == name);
    found.map_or("other", |(known, _)| known)
}

/// Finds the keyword that was probably meant: one edit away, or the same but for case.
pub fn likely(name: &str) -> Option<&'static str> {
    let known = KEYWORDS[..KEYWORDS.len() - COUNTED_ONLY].iter();
    let mut names = known.map(|(known, _)| *known);
    names.find(|known| known.eq_ignore_ascii_case(name) || osa_distance(known, name) <= 1)
}

/// Finds the type that was probably meant.
pub fn likely_type(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    match lower.as_str() {
        "int" | "int32" | "int64" | "long" | "uint" => return Some("integer"),
        "float" | "double" | "decimal" | "numeric" | "num" => return Some("number"),
        "str" | "text" | "char" | "uuid" | "date" | "datetime" => return Some("string"),
        "bool" => return Some("boolean"),
        "list" | "tuple" | "set" => return Some("array"),
        "dict" | "map" | "struct" | "obj" => return Some("object"),
        "none" | "nil" | "undefined" => return Some("null"),
        _ => {}
    }
    let near = TYPES
        .iter()
        .find(|known| osa_distance(known, &lower) <= 2)?;
    Some(near)
}

/// Visits every object schema, outermost first, with its place.
pub fn walk<'a>(schema: &'a Value, visit: &mut dyn FnMut(&Pointer, &'a Map<String, Value>)) {
    walk_at(schema, &mut Pointer::default(), visit);
}

fn walk_at<'a>(
    schema: &'a Value,
    at: &mut Pointer,
    visit: &mut dyn FnMut(&Pointer, &'a Map<String, Value>),
) {
    let Value::Object(members) = schema else {
        return;
    };
    visit(at, members);
    for (name, value) in members {
        at.within(name, |at| {
            for_each_schema(name, value, |step, schema| match step {
                None => walk_at(schema, at, visit),
                Some(step) => at.within(&step, |at| walk_at(schema, at, visit)),
            });
        });
    }
}

/// Hands over the schemas directly under a keyword, with the step that leads to each.
pub fn for_each_schema<'a>(
    name: &str,
    value: &'a Value,
    mut each: impl FnMut(Option<String>, &'a Value),
) {
    match (holds(name), value) {
        (Some(Schema), schema) => each(None, schema),
        (Some(Schemas), Value::Array(schemas)) => {
            for (index, schema) in schemas.iter().enumerate() {
                each(Some(index.to_string()), schema);
            }
        }
        (Some(SchemaMap), Value::Object(schemas)) => {
            for (name, schema) in schemas {
                each(Some(name.clone()), schema);
            }
        }
        _ => {}
    }
}

/// Changes every object schema in place, outermost first.
pub fn edit(schema: &mut Value, change: &mut dyn FnMut(&mut Map<String, Value>)) {
    let Value::Object(members) = schema else {
        return;
    };
    change(members);
    for (name, value) in members {
        match (holds(name), value) {
            (Some(Schema), schema) => edit(schema, change),
            (Some(Schemas), Value::Array(schemas)) => {
                schemas.iter_mut().for_each(|schema| edit(schema, change));
            }
            (Some(SchemaMap), Value::Object(schemas)) => {
                schemas.values_mut().for_each(|schema| edit(schema, change));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn likely_spellings() {
        for (written, meant) in [
            ("requried", Some("required")),
            ("propertys", None),
            ("propertie", Some("properties")),
            ("additionalproperties", Some("additionalProperties")),
            ("minLenght", Some("minLength")),
            ("id", Some("$id")),
            ("x-note", None),
            ("nullable", None),
        ] {
            assert_eq!(likely(written), meant, "{written}");
        }
        for (written, meant) in [
            ("int", Some("integer")),
            ("Integer", Some("integer")),
            ("sting", Some("string")),
            ("float", Some("number")),
            ("banana", None),
        ] {
            assert_eq!(likely_type(written), meant, "{written}");
        }
    }

    #[test]
    fn the_walk_meets_schemas_and_nothing_else() {
        let schema = json!({
            "properties": {"a/b": {"items": {"title": "x"}}, "properties": true},
            "anyOf": [{"const": {"properties": {"no": {}}}}],
            "examples": [{"items": {}}],
            "x-note": {"items": {}},
        });
        let mut places = Vec::new();
        walk(&schema, &mut |at, _| places.push(at.to_string()));
        places.sort();
        assert_eq!(
            places,
            ["", "/anyOf/0", "/properties/a~1b", "/properties/a~1b/items"]
        );
    }
}
