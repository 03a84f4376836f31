//! One OpenAPI document: which version it follows, and what its references lead to.
//!
//! Only `#/…` is followed. Nothing is read from files or the network, whatever a reference says.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::contract::{
    Problem, Problems,
    guard::Limits,
    pointer::{Pointer, shorten},
    read,
    reference::{self, DIALECT},
};

/// A contract may be nested 64 levels deep; in a document its schemas lie six levels deeper.
const MAX_DEPTH: usize = 72;
/// How many references may follow each other where an object of OpenAPI is expected.
const MAX_HOPS: usize = 16;
/// The dialects that OpenAPI 3.1 has named as its own begin like this.
const OAS_DIALECT: &str = "https://spec.openapis.org/oas/3.1/dialect/";

/// How the schemas of a document are to be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAPI 3.0, which has its own.
    V30,
    /// OpenAPI 3.1 as it comes: draft 2020-12 with a few words more.
    V31,
    /// OpenAPI 3.1 that names draft 2020-12 and nothing else.
    Plain,
}

/// A document that was read whole.
pub struct Document {
    root: Value,
    pub dialect: Dialect,
    /// Component schemas that bear an `$id`, with the pointer to each.
    named: HashMap<String, String>,
}

impl Document {
    /// Reads the bytes; duplicate names, depth, size and unknown versions are refused.
    pub fn read(body: &[u8]) -> Result<Self, Problems> {
        let limits = Limits {
            max_depth: MAX_DEPTH,
        };
        let root = read::text(body, &limits)?;
        let dialect = dialect(&root)?;
        let schemas = root.pointer("/components/schemas");
        let schemas = schemas.and_then(Value::as_object).into_iter().flatten();
        let named = schemas.filter_map(|(name, schema)| {
            let id = schema.get("$id")?.as_str()?.trim_end_matches('#');
            Some((id.to_owned(), format!("/components/schemas/{}", step(name))))
        });
        Ok(Self {
            dialect,
            named: named.collect(),
            root,
        })
    }

    /// Looks a member of the document up.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.root.get(name)
    }

    pub fn info(&self, name: &str) -> Option<&Value> {
        self.get("info")?.get(name)
    }

    /// Finds the component schema that bears an `$id`.
    pub fn named(&self, id: &str) -> Option<&str> {
        self.named.get(id).map(String::as_str)
    }

    /// Follows the fragment of a `#/…` reference to a value and the fragment's plain spelling.
    pub fn resolve(&self, fragment: &str) -> Option<(&Value, String)> {
        let plain = reference::unescape(fragment)?;
        Some((self.root.pointer(&plain)?, plain))
    }

    /// Answers whether the way to a value leads into a schema with a base of its own, where
    /// `#/…` would mean something else.
    pub fn crosses_base(&self, plain: &str) -> bool {
        let ends = plain.match_indices('/').map(|(at, _)| at).skip(1);
        let mut above = ends.filter_map(|end| self.root.pointer(&plain[..end]));
        above.any(|value| value.get("$id").is_some_and(Value::is_string))
    }

    /// Takes an object of OpenAPI, behind references if need be, with the place where it stands.
    pub fn object<'a>(
        &'a self,
        value: &'a Value,
        at: &str,
    ) -> Result<(&'a Map<String, Value>, String), Problem> {
        let (mut value, mut at) = (value, at.to_owned());
        for _ in 0..MAX_HOPS {
            let Value::Object(members) = value else {
                let remedy = "write an object, or a reference to one";
                return Err(Problem::new(
                    "openapi",
                    at,
                    "an object is expected here",
                    remedy,
                ));
            };
            let Some(Value::String(reference)) = members.get("$ref") else {
                return Ok((members, at));
            };
            let fragment = reference.strip_prefix('#');
            match fragment.and_then(|fragment| self.resolve(fragment)) {
                Some((target, place)) => (value, at) = (target, place),
                None => return Err(lost(reference, &format!("{at}/$ref"))),
            }
        }
        let remedy = "let the reference lead to the object itself";
        Err(Problem::new(
            "ref-circle",
            at,
            "references lead nowhere but to references",
            remedy,
        ))
    }
}

/// Says that a reference leads nowhere, or to where nobody goes.
pub fn lost(reference: &str, at: &str) -> Problem {
    let shown = shorten(reference);
    if reference.starts_with('#') {
        let message = format!("\"{shown}\" leads to nothing in this document");
        let remedy =
            "\"#/…\" starts at the root of the document; put the target under \"components\"";
        return Problem::new("unresolved-ref", at, message, remedy);
    }
    let message = format!("\"{shown}\" lies outside the document; nothing is ever fetched");
    let remedy = "bundle the document into one file first";
    Problem::new("remote-ref", at, message, remedy)
}

/// Writes a name as a step of a pointer.
pub fn step(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn dialect(root: &Value) -> Result<Dialect, Problem> {
    let remedy = "convert the document to OpenAPI 3.1 (3.0 is read too)";
    if root.get("swagger").is_some() {
        let message = "this is Swagger 2.0, which is not read";
        return Err(Problem::new("openapi-version", "/swagger", message, remedy));
    }
    let version = root.get("openapi").and_then(Value::as_str);
    let version = version.unwrap_or_default();
    let is_patch = |patch: &str| !patch.is_empty() && patch.bytes().all(|b| b.is_ascii_digit());
    if version.strip_prefix("3.0.").is_some_and(is_patch) {
        return Ok(Dialect::V30);
    }
    if !version.strip_prefix("3.1.").is_some_and(is_patch) {
        let message = format!("OpenAPI \"{}\" is not read", shorten(version));
        return Err(Problem::new("openapi-version", "/openapi", message, remedy));
    }
    let mut at = Pointer::default();
    at.push("jsonSchemaDialect");
    match root.get("jsonSchemaDialect").map(Value::as_str) {
        None => Ok(Dialect::V31),
        Some(Some(named)) if is_oas(named) => Ok(Dialect::V31),
        Some(Some(named)) if named.trim_end_matches('#') == DIALECT => Ok(Dialect::Plain),
        Some(named) => {
            let named = shorten(named.unwrap_or("(no string)"));
            let message = format!("schemas in the dialect {named} are not read");
            let remedy = format!("write them for draft 2020-12 and say \"{DIALECT}\"");
            Err(Problem::new("dialect", at.as_str(), message, remedy))
        }
    }
}

/// Answers whether a dialect is OpenAPI 3.1's own.
pub fn is_oas(dialect: &str) -> bool {
    dialect.starts_with(OAS_DIALECT)
}
