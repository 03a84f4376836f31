//! JSON Schema of the config file, for editors and for checks before a roll-out.

use serde_json::{Value, json};

use super::keys::{self, Key, Rule};
use super::kind::Kind;

const NAME: &str = "^[a-z0-9-]*$";
const ID: &str = "^[A-Za-z0-9._:~-]{0,128}$";
const LENGTH: &str = "^ *([0-9]+ *[a-zA-Zµ]+ *)+$";

/// Describes the whole file.
pub fn schema() -> Value {
    let mut schema = section("");
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("hermes.toml");
    schema
}

fn section(path: &str) -> Value {
    let mut properties = serde_json::Map::new();
    for name in keys::children(path) {
        let below = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        if properties.contains_key(name) {
            continue;
        }
        let described = if let Some(key) = keys::find(&below) {
            of_key(key)
        } else if let Some(list) = keys::find_list(&below) {
            let longest = list.later.map(|_| 0);
            let mut items = json!({"type": "array", "description": list.help, "items": section(&format!("{below}[]"))});
            if let Some(longest) = longest {
                items["maxItems"] = json!(longest);
            }
            items
        } else {
            section(&below)
        };
        properties.insert(name.to_owned(), described);
    }
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

fn of_key(key: &Key) -> Value {
    let mut schema = of_kind(key.kind);
    schema["description"] = json!(key.help);
    schema["default"] = json!(key.default_value());
    match key.rule {
        Rule::Built => {}
        Rule::Later(reason) => {
            schema["const"] = json!(key.default_value());
            schema["$comment"] = json!(reason);
        }
        Rule::Except(words, reason) => {
            schema["not"] = json!({"enum": words});
            schema["$comment"] = json!(reason);
        }
    }
    schema
}

fn of_kind(kind: Kind) -> Value {
    match kind {
        Kind::Flag => json!({"type": "boolean"}),
        Kind::Count(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
        Kind::Ratio => json!({"type": "number", "minimum": 0, "maximum": 1}),
        Kind::Length(..) => json!({"type": "string", "pattern": LENGTH}),
        Kind::Choice(words) => json!({"enum": words}),
        Kind::Choices([first, ..]) => of_words(kind, json!({"contains": {"const": first}})),
        Kind::Choices([]) | Kind::Texts | Kind::UrlPrefixes | Kind::Hosts => {
            of_words(kind, json!({}))
        }
        Kind::TrustContext => {
            json!({"anyOf": [{"enum": ["any", "mtls"]}, {"type": "array", "items": {"type": "string"}}]})
        }
        Kind::Table => json!({"type": "object"}),
        Kind::Name | Kind::Team => json!({"type": "string", "pattern": NAME, "maxLength": 63}),
        Kind::Prefix(longest) => {
            json!({"type": "string", "pattern": NAME, "minLength": 1, "maxLength": longest})
        }
        Kind::Id => json!({"type": "string", "pattern": ID}),
        Kind::Text(longest) => json!({"type": "string", "maxLength": longest}),
        Kind::UrlPath => json!({"type": "string", "pattern": "^(/|$)"}),
        _ => json!({"type": "string"}),
    }
}

fn of_words(kind: Kind, mut schema: Value) -> Value {
    schema["type"] = json!("array");
    schema["uniqueItems"] = json!(true);
    schema["items"] = match kind {
        Kind::Choices(words) => json!({"enum": words}),
        Kind::UrlPrefixes => json!({"type": "string", "pattern": "^/"}),
        _ => json!({"type": "string", "minLength": 1}),
    };
    schema
}
