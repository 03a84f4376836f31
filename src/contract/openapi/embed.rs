//! A schema inside a document that is not its own.
//!
//! `#/$defs/x` means "from the root of the document", which in an OpenAPI document is no longer
//! the schema. So each schema gets a base of its own: an `$id`, which leaves its text and every
//! reference in it as they were. Rewriting the references instead would also have to move anchors
//! and could not be undone.
//!
//! - an `$id` that is already used in the document, or that is relative to it, is renamed; the new
//!   name holds the old one
//! - what `embed` did, `extract` undoes

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value};

use crate::contract::{keyword, reference::unescape};

/// Names that `embed` gives begin like this.
const PREFIX: &str = "urn:hermes:schema:";

/// Prepares a schema for a document; `taken` are the `$id`s the document has already.
pub fn embed(schema: &Value, name: &str, taken: &mut HashSet<String>) -> Value {
    let mut schema = schema.clone();
    let mut ids = BTreeSet::new();
    keyword::walk(&schema, &mut |_, members| {
        ids.extend(id_of(members).map(str::to_owned));
    });
    let base = format!("{PREFIX}{name}");
    let mut renamed = HashMap::new();
    for id in ids {
        if id.starts_with(PREFIX) || !is_absolute(&id) || taken.contains(&id) {
            let other = format!("{base}/{}", escape(&id));
            renamed.insert(id, other);
        } else {
            taken.insert(id);
        }
    }
    if !renamed.is_empty() {
        keyword::edit(&mut schema, &mut |members| {
            if let Some(other) = id_of(members).and_then(|id| renamed.get(id)) {
                // An empty fragment at the end is part of the text, though not of the name.
                let fragment = if ends_in_fragment(members) { "#" } else { "" };
                members.insert("$id".to_owned(), format!("{other}{fragment}").into());
            }
            lead_to(&renamed, members);
        });
    }
    if let Value::Object(members) = &mut schema
        && id_of(members).is_none()
    {
        members.insert("$id".to_owned(), base.into());
    }
    schema
}

/// Gives a schema its own text back.
pub fn extract(mut schema: Value) -> Value {
    let mut restored = HashMap::new();
    keyword::edit(&mut schema, &mut |members| {
        let Some(given) = id_of(members).map(str::to_owned) else {
            return;
        };
        let Some(name) = given.strip_prefix(PREFIX) else {
            return;
        };
        match name.split_once('/') {
            None => drop(members.remove("$id")),
            Some((_, old)) => {
                let Some(old) = unescape(old) else {
                    return;
                };
                let fragment = if ends_in_fragment(members) { "#" } else { "" };
                members.insert("$id".to_owned(), format!("{old}{fragment}").into());
                restored.insert(given, old);
            }
        }
    });
    if !restored.is_empty() {
        keyword::edit(&mut schema, &mut |members| lead_to(&restored, members));
    }
    schema
}

fn id_of(members: &Map<String, Value>) -> Option<&str> {
    let id = members.get("$id")?.as_str()?;
    Some(id.trim_end_matches('#'))
}

fn ends_in_fragment(members: &Map<String, Value>) -> bool {
    let id = members.get("$id").and_then(Value::as_str);
    id.is_some_and(|id| id.ends_with('#'))
}

/// Changes references to documents that bear another name now.
fn lead_to(names: &HashMap<String, String>, members: &mut Map<String, Value>) {
    for keyword in ["$ref", "$dynamicRef"] {
        if let Some(Value::String(reference)) = members.get_mut(keyword) {
            let uri = reference.split('#').next().unwrap_or_default();
            if let Some(name) = names.get(uri) {
                *reference = format!("{name}{}", &reference[uri.len()..]);
            }
        }
    }
}

/// Answers whether a name begins with a scheme, and so means the same everywhere.
fn is_absolute(id: &str) -> bool {
    let scheme = id.split_once(':').map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| {
        scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && scheme
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    })
}

/// Writes a name so that it can be the last step of another.
fn escape(id: &str) -> String {
    let mut escaped = String::with_capacity(id.len());
    for byte in id.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                escaped.push(char::from(byte));
            }
            byte => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::contract::{Validator, guard};

    fn accepts(schema: &Value, body: &Value) -> bool {
        let validator = Validator::compile(schema).unwrap_or_else(|p| panic!("{schema:#}: {p}"));
        let text = body.to_string();
        let document = guard::parse(text.as_bytes(), &guard::Limits::default()).unwrap();
        validator.check(&document).is_ok()
    }

    #[test]
    fn what_was_embedded_means_the_same_and_comes_out_as_it_was() {
        let node =
            json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["v"]});
        for schema in [
            json!(true),
            json!({}),
            json!({"$ref": "#/$defs/n", "$defs": {"n": node}}),
            json!({"$id": "https://example.com/n", "$ref": "#/$defs/n", "$defs": {"n": node}}),
            json!({"$id": "https://example.com/n#", "allOf": [{"$ref": "https://example.com/n#/$defs/n"}], "$defs": {"n": node}}),
            json!({"$ref": "node", "$defs": {"n": {"$id": "node", "type": "object", "required": ["v"]}}}),
            json!({"$ref": "/a/node", "$defs": {"n": {"$id": "/a/node", "type": "object", "required": ["v"]}}}),
            json!({"$ref": "#here", "$defs": {"n": {"$anchor": "here", "type": "object", "required": ["v"]}}}),
            json!({"$id": "urn:hermes:schema:x:input/", "type": "object", "required": ["v"]}),
            json!({"type": "object", "required": ["v"], "nullable": true, "x-hermes-id": "mine"}),
            json!({"type": "object", "const": {"v": 1, "$id": "urn:hermes:schema:no"}}),
        ] {
            let mut taken = HashSet::new();
            for name in ["one", "other"] {
                let embedded = embed(&schema, name, &mut taken);
                assert_eq!(extract(embedded.clone()), schema, "{name}");
                for body in [
                    json!({}),
                    json!({"v": 1}),
                    json!({"v": 1, "next": {}}),
                    json!(7),
                ] {
                    let (before, after) = (accepts(&schema, &body), accepts(&embedded, &body));
                    assert_eq!(before, after, "{body} in {embedded:#}");
                }
            }
        }
    }

    #[test]
    fn no_two_schemas_of_a_document_bear_one_name() {
        let name = "https://example.com/s";
        let schema = json!({"$id": name, "$defs": {"a": {"$id": "a"}, "b": {"$ref": "a"}}});
        let mut taken = HashSet::new();
        for (document, expected) in [
            ("one", [name, "urn:hermes:schema:one/a"]),
            (
                "two",
                [
                    "urn:hermes:schema:two/https%3A%2F%2Fexample.com%2Fs",
                    "urn:hermes:schema:two/a",
                ],
            ),
        ] {
            let embedded = embed(&schema, document, &mut taken);
            let mut ids = Vec::new();
            keyword::walk(&embedded, &mut |_, members| {
                ids.extend(id_of(members).map(str::to_owned));
            });
            assert_eq!(ids, expected);
            assert_eq!(embedded["$defs"]["b"]["$ref"], expected[1]);
        }
    }
}
