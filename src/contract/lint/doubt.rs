//! What a schema leaves open, says to nobody, or says less by than its author may think.

use serde_json::{Map, Value};
use strsim::osa_distance;

use crate::contract::{FORMATS, Problem, keyword, pointer::Pointer};

/// Keywords that other drafts or OpenAPI have, and what draft 2020-12 says instead.
const OLD: [(&str, &str); 8] = [
    ("additionalItems", "\"items\" beside \"prefixItems\""),
    ("definitions", "\"$defs\""),
    (
        "dependencies",
        "\"dependentRequired\" or \"dependentSchemas\"",
    ),
    ("$recursiveRef", "\"$dynamicRef\""),
    ("$recursiveAnchor", "\"$dynamicAnchor\""),
    ("nullable", "a \"type\" with \"null\" among its names"),
    ("discriminator", "\"oneOf\" with a \"const\" in each schema"),
    ("example", "\"examples\""),
];

/// What a schema leaves open, or says to nobody.
pub fn doubts(schema: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(nothing_required(schema));
    keyword::walk(schema, &mut |at, members| {
        for name in members.keys() {
            if keyword::is_unknown(name) && keyword::likely(name).is_none() {
                problems.push(unknown(at, name));
            }
        }
        problems.extend(old_keywords(at, members));
        problems.extend(closed_combination(schema, at, members));
        let format = members.get("format").and_then(Value::as_str);
        if let Some(format) = format.filter(|format| !FORMATS.contains(format)) {
            let near = FORMATS
                .iter()
                .find(|known| osa_distance(known, format) <= 2);
            let remedy = match near {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("use one of {}, or a pattern", FORMATS.join(", ")),
            };
            let message = format!("the format \"{format}\" is not checked");
            let place = format!("{at}/format");
            problems.push(Problem::new("unknown-format", place, message, remedy));
        }
    });
    problems
}

fn nothing_required(schema: &Value) -> Option<Problem> {
    const DECIDERS: [&str; 9] = [
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "const",
        "enum",
        "$dynamicRef",
    ];
    let is_open = match schema {
        Value::Object(members) => {
            let is_object = members.get("type").is_none_or(|name| name == "object");
            let required = members.get("required").and_then(Value::as_array);
            let is_decided = DECIDERS.iter().any(|name| members.contains_key(*name));
            is_object && !is_decided && required.is_none_or(|names| names.is_empty())
        }
        other => *other == Value::Bool(true),
    };
    is_open.then(|| {
        let message = "nothing is required: an empty object conforms";
        let remedy = "list the members every body must have in \"required\"";
        Problem::new("no-required", "", message, remedy)
    })
}

fn unknown(at: &Pointer, name: &str) -> Problem {
    let message = format!("\"{name}\" is no keyword and checks nothing");
    let old = OLD.iter().find(|(old, _)| *old == name);
    let remedy = match old {
        Some((_, instead)) => format!("use {instead}"),
        None => "remove it, or let its name begin with \"x-\"".to_owned(),
    };
    Problem::new("unknown-keyword", format!("{at}/{name}"), message, remedy)
}

/// Keywords that the metaschema still lets pass.
fn old_keywords(at: &Pointer, members: &Map<String, Value>) -> Vec<Problem> {
    let old = OLD.iter().filter(|(name, _)| members.contains_key(*name));
    let old = old.filter(|(name, _)| !keyword::is_unknown(name));
    let problem = |(name, instead): &(&str, &str)| {
        let message = match *name {
            "definitions" => "\"definitions\" is of an older draft and only a place for schemas",
            _ => "\"dependencies\" is of an older draft and checks nothing",
        };
        let remedy = format!("use {instead}");
        Problem::new("old-keyword", format!("{at}/{name}"), message, remedy)
    };
    old.map(problem).collect()
}

/// Finds members that a combined schema declares and the schema around it forbids.
fn closed_combination(root: &Value, at: &Pointer, members: &Map<String, Value>) -> Option<Problem> {
    if members.get("additionalProperties") != Some(&Value::Bool(false)) {
        return None;
    }
    let own = |name: &str| members.get(name).and_then(Value::as_object);
    if own("patternProperties").is_some() {
        return None;
    }
    let is_own = |name: &str| own("properties").is_some_and(|known| known.contains_key(name));
    let combined = ["allOf", "anyOf", "oneOf", "then", "else", "$ref"];
    let parts = combined
        .iter()
        .filter_map(|keyword| Some((keyword, members.get(*keyword)?)));
    let mut lost = parts.flat_map(|(keyword, value)| {
        let schemas = match value {
            Value::Array(schemas) => schemas.iter().collect(),
            other => vec![other],
        };
        let schemas = schemas.into_iter().map(|schema| target(root, schema));
        let declared = schemas.filter_map(|schema| schema.get("properties")?.as_object());
        let names = declared.flat_map(Map::keys).filter(|name| !is_own(name));
        names.map(move |name| (*keyword, name))
    });
    let (keyword, name) = lost.next()?;
    let message = format!(
        "\"additionalProperties\": false forbids the member {}, which \"{keyword}\" declares: it sees the properties beside it only",
        Value::from(crate::contract::pointer::shorten(name))
    );
    let remedy = "use \"unevaluatedProperties\": false";
    let place = format!("{at}/additionalProperties");
    Some(Problem::new("closed-combination", place, message, remedy))
}

/// Follows one reference within the schema; a bare one is its own text.
fn target<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema.as_str().or_else(|| schema.get("$ref")?.as_str());
    let found = reference.and_then(|text| root.pointer(text.strip_prefix('#')?));
    found.unwrap_or(schema)
}
