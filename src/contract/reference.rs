//! References inside one schema: where they lead, and how far they multiply the work.
//!
//! Nothing outside the document is ever looked up, except the metaschema of draft 2020-12.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{keyword, pointer::Pointer, problem::Problem};

/// The one dialect.
pub const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// The metaschema's own documents begin like this.
const DIALECT_BASE: &str = "https://json-schema.org/draft/2020-12/";
/// How many schemas may be reached along references from the root.
const MAX_BRANCHES: u64 = 10_000;
/// How many references may follow each other; counting, compiling and checking all recurse.
const MAX_CHAIN: usize = 128;

/// Where the references of a schema may lead.
pub struct Targets<'a> {
    root: &'a Value,
    /// Embedded documents by `$id`; the root under the empty one.
    documents: HashMap<&'a str, &'a Value>,
    /// Schemas by name, with the document they are named in.
    anchors: HashMap<(*const Value, &'a str), &'a Value>,
}

/// Names every reference that leads nowhere, or else the expansion if there is too much of it.
pub fn problems(schema: &Value) -> Vec<Problem> {
    let targets = Targets::of(schema);
    let mut problems = Vec::new();
    targets.check(schema, schema, &mut Pointer::default(), &mut problems);
    if problems.is_empty() {
        let branches = targets.branches(schema, schema, 0, &mut HashMap::new());
        if branches > MAX_BRANCHES {
            let message = format!(
                "references expand to more than {MAX_BRANCHES} branches or follow each other over {MAX_CHAIN} times; checking one body could take minutes"
            );
            let remedy = "let each alternative refer to its own definition instead of sharing one through several levels of anyOf, oneOf or allOf";
            problems.push(Problem::new("branches", "", message, remedy));
        }
    }
    problems
}

/// The document a schema belongs to: itself where it has an `$id`.
pub fn document_of<'a>(schema: &'a Value, outer: &'a Value) -> &'a Value {
    match schema.get("$id") {
        Some(Value::String(_)) => schema,
        _ => outer,
    }
}

fn references(members: &Map<String, Value>) -> impl Iterator<Item = (&'static str, &str)> {
    ["$ref", "$dynamicRef"]
        .into_iter()
        .filter_map(|name| Some((name, members.get(name)?.as_str()?)))
}

impl<'a> Targets<'a> {
    pub fn of(root: &'a Value) -> Self {
        let mut targets = Self {
            root,
            documents: HashMap::from([("", root)]),
            anchors: HashMap::new(),
        };
        targets.collect(root, root);
        targets
    }

    fn collect(&mut self, schema: &'a Value, outer: &'a Value) {
        let Value::Object(members) = schema else {
            return;
        };
        let document = document_of(schema, outer);
        if let Some(Value::String(id)) = members.get("$id") {
            self.documents.insert(id.trim_end_matches('#'), schema);
        }
        for name in ["$anchor", "$dynamicAnchor"] {
            if let Some(Value::String(name)) = members.get(name) {
                self.anchors
                    .insert((std::ptr::from_ref(document), name), schema);
            }
        }
        for (name, value) in members {
            keyword::for_each_schema(name, value, |_, schema| self.collect(schema, document));
        }
    }

    /// Finds a referenced schema and the document it is in.
    pub fn resolve(&self, reference: &str, document: &'a Value) -> Option<(&'a Value, &'a Value)> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let document = match uri {
            "" => document,
            uri => self.documents.get(uri)?,
        };
        if fragment.is_empty() {
            return Some((document, document));
        }
        if !fragment.starts_with('/') {
            let key = (std::ptr::from_ref(document), fragment);
            return Some((
                *self.anchors.iter().find(|(name, _)| **name == key)?.1,
                document,
            ));
        }
        let mut target = document;
        let mut inner = document;
        for step in unescape(fragment)?.split('/').skip(1) {
            let step = step.replace("~1", "/").replace("~0", "~");
            target = match target {
                Value::Object(members) => members.get(&step)?,
                Value::Array(items) => items.get(step.parse::<usize>().ok()?)?,
                _ => return None,
            };
            inner = document_of(target, inner);
        }
        Some((target, inner))
    }

    fn check(
        &self,
        schema: &'a Value,
        outer: &'a Value,
        at: &mut Pointer,
        problems: &mut Vec<Problem>,
    ) {
        let Value::Object(members) = schema else {
            return;
        };
        let document = document_of(schema, outer);
        for (name, reference) in references(members) {
            if !is_metaschema(reference) && self.resolve(reference, document).is_none() {
                at.within(name, |at| problems.push(self.lost(reference, at)));
            }
        }
        for (name, value) in members {
            at.within(name, |at| {
                keyword::for_each_schema(name, value, |step, schema| match step {
                    None => self.check(schema, document, at, problems),
                    Some(step) => at.within(&step, |at| self.check(schema, document, at, problems)),
                });
            });
        }
    }

    fn lost(&self, reference: &str, at: &Pointer) -> Problem {
        let shown = super::pointer::shorten(reference);
        if reference.starts_with('#') {
            let message = format!("\"{shown}\" leads to nothing in this schema");
            let remedy = match old_definitions(reference, self.root) {
                Some(remedy) => remedy,
                None => "define the target under \"$defs\" of the same schema".to_owned(),
            };
            return Problem::new("unresolved-ref", at.as_str(), message, remedy);
        }
        let message = format!("\"{shown}\" lies outside the contract; nothing is ever fetched");
        let remedy = "copy the schema under \"$defs\" and refer to it as \"#/$defs/NAME\"";
        Problem::new("remote-ref", at.as_str(), message, remedy)
    }

    /// Counts the schemas reached through references; a circle counts once, since the validator
    /// remembers its verdicts there.
    fn branches(
        &self,
        schema: &'a Value,
        outer: &'a Value,
        chain: usize,
        known: &mut HashMap<*const Value, u64>,
    ) -> u64 {
        if chain > MAX_CHAIN {
            return u64::MAX;
        }
        let Value::Object(members) = schema else {
            return 0;
        };
        let key = std::ptr::from_ref(schema);
        if let Some(count) = known.get(&key) {
            return *count;
        }
        // While this schema is being counted, a way back to it adds nothing.
        known.insert(key, 0);
        let document = document_of(schema, outer);
        let mut count: u64 = 0;
        for (_, reference) in references(members) {
            if let Some((target, inner)) = self.resolve(reference, document) {
                let below = self.branches(target, inner, chain + 1, known);
                count = count.saturating_add(below).saturating_add(1);
            }
        }
        // Definitions count where they are referred to.
        let applied = members
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "$defs" | "definitions"));
        for (name, value) in applied {
            keyword::for_each_schema(name, value, |_, schema| {
                count = count.saturating_add(self.branches(schema, document, chain, known));
            });
        }
        known.insert(key, count);
        count
    }
}

fn is_metaschema(reference: &str) -> bool {
    reference.starts_with(DIALECT_BASE)
}

/// Undoes the percent encoding of a fragment.
pub fn unescape(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.bytes();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

fn old_definitions(reference: &str, root: &Value) -> Option<String> {
    let name = reference.strip_prefix("#/$defs/")?;
    root.get("definitions")?.get(name)?;
    Some(format!(
        "rename \"definitions\" to \"$defs\", or refer to \"#/definitions/{name}\""
    ))
}
