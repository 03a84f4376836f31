//! What a schema says of a part of a value.

use serde_json::{Map, Value};

use crate::contract::keyword;

/// Keywords that may hold of a value and not of a part of it, or cannot be judged by one.
const WHOLE: [&str; 13] = [
    "required",
    "minProperties",
    "dependentRequired",
    "dependentSchemas",
    "not",
    "if",
    "then",
    "else",
    "maxContains",
    "uniqueItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "dependencies",
];

/// Weakens a schema until it accepts every part of what it accepts: values in which members of
/// objects may be left out.
pub fn partial(schema: &Value) -> Value {
    let mut partial = schema.clone();
    keyword::edit(&mut partial, &mut weaken);
    partial
}

fn weaken(members: &mut Map<String, Value>) {
    members.retain(|name, _| !WHOLE.contains(&name.as_str()));
    // Parts of different alternatives may look alike.
    if let Some(Value::Array(alternatives)) = members.remove("oneOf") {
        let fits_one = Value::from_iter([("anyOf", Value::Array(alternatives))]);
        match members.get_mut("allOf") {
            Some(Value::Array(all)) => all.push(fits_one),
            _ => drop(members.insert("allOf".to_owned(), Value::from_iter([fits_one]))),
        }
    }
    // A part is not equal to the whole.
    if members.get("const").is_some_and(is_composed) {
        members.remove("const");
    }
    let options = members.get("enum").and_then(Value::as_array);
    if options.is_some_and(|options| options.iter().any(is_composed)) {
        members.remove("enum");
    }
}

fn is_composed(value: &Value) -> bool {
    value.is_object() || value.is_array()
}
