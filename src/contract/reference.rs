//! References inside one schema: where they lead, and how far they multiply the work.
//!
//! Nothing outside the document is ever looked up, except the metaschema of draft 2020-12.

use std::collections::HashMap;

use jsonschema::{Uri, uri};
use serde_json::{Map, Value};

use super::{keyword, pointer::Pointer, problem::Problem};

/// The one dialect.
pub const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// The metaschema's own documents begin like this.
const DIALECT_BASE: &str = "https://json-schema.org/draft/2020-12/";
/// What the `$id` and references of a contract are relative to; nobody else can name it.
const ROOT: &str = "contract:///schema";
/// How many schemas may be reached along references from the root.
const MAX_BRANCHES: u64 = 10_000;
/// How many references may follow each other; counting, compiling and checking all recurse.
const MAX_CHAIN: usize = 128;
/// What a schema counts that is applied without a look at the body, as `false` is: the work it
/// makes is not seen by who counts looks.
const BLIND: u64 = 64;

/// Where the references of a schema may lead.
pub struct Targets<'a> {
    root: &'a Value,
    /// The root and the embedded documents by the URI they have, without fragment.
    documents: HashMap<String, &'a Value>,
    /// The same the other way: what the references of a document are relative to.
    bases: HashMap<*const Value, Uri<String>>,
    /// Named schemas, by the document they are named in.
    anchors: HashMap<*const Value, HashMap<&'a str, &'a Value>>,
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

fn references(members: &Map<String, Value>) -> impl Iterator<Item = (&'static str, &str)> {
    ["$ref", "$dynamicRef"]
        .into_iter()
        .filter_map(|name| Some((name, members.get(name)?.as_str()?)))
}

impl<'a> Targets<'a> {
    pub fn of(root: &'a Value) -> Self {
        let base = uri::from_str(ROOT).expect("a constant");
        let mut targets = Self {
            root,
            documents: HashMap::from([(ROOT.to_owned(), root)]),
            bases: HashMap::from([(std::ptr::from_ref(root), base)]),
            anchors: HashMap::new(),
        };
        targets.collect(root, root);
        targets
    }

    fn collect(&mut self, schema: &'a Value, outer: &'a Value) {
        let Value::Object(members) = schema else {
            return;
        };
        if let Some(Value::String(id)) = members.get("$id")
            && let Some(base) = self.absolute(id, outer)
        {
            self.documents.insert(base.as_str().to_owned(), schema);
            self.bases.insert(std::ptr::from_ref(schema), base);
        }
        let document = self.document_of(schema, outer);
        for name in ["$anchor", "$dynamicAnchor"] {
            if let Some(Value::String(name)) = members.get(name) {
                let named = self.anchors.entry(std::ptr::from_ref(document));
                named.or_default().insert(name, schema);
            }
        }
        for (name, value) in members {
            keyword::for_each_schema(name, value, |_, schema| self.collect(schema, document));
        }
    }

    /// The document a schema belongs to: itself where it has an `$id`.
    pub fn document_of(&self, schema: &'a Value, outer: &'a Value) -> &'a Value {
        match self.bases.contains_key(&std::ptr::from_ref(schema)) {
            true => schema,
            false => outer,
        }
    }

    /// Makes a reference absolute, and takes its fragment off.
    fn absolute(&self, reference: &str, document: &Value) -> Option<Uri<String>> {
        let base = self.bases.get(&std::ptr::from_ref(document))?;
        let mut absolute = uri::resolve_against(&base.borrow(), reference).ok()?;
        absolute.set_fragment(None);
        Some(absolute)
    }

    /// Finds a referenced schema and the document it is in.
    pub fn resolve(&self, reference: &str, document: &'a Value) -> Option<(&'a Value, &'a Value)> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let document = match uri {
            "" => document,
            uri => self.documents.get(self.absolute(uri, document)?.as_str())?,
        };
        if fragment.is_empty() {
            return Some((document, document));
        }
        if !fragment.starts_with('/') {
            let named = self.anchors.get(&std::ptr::from_ref(document))?;
            return Some((*named.get(fragment)?, document));
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
            inner = self.document_of(target, inner);
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
        let document = self.document_of(schema, outer);
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
        if is_blind(schema) {
            return BLIND;
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
        let document = self.document_of(schema, outer);
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
            let is_in_place = APPLIED_IN_PLACE.contains(&name.as_str());
            keyword::for_each_schema(name, value, |_, schema| {
                if !is_in_place && is_blind(schema) {
                    return;
                }
                count = count.saturating_add(self.branches(schema, document, chain, known));
            });
        }
        known.insert(key, count);
        count
    }
}

/// Keywords whose schemas are held against the same value as the schema they stand in.
const APPLIED_IN_PLACE: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];

fn is_blind(schema: &Value) -> bool {
    schema
        .as_object()
        .map_or(schema.is_boolean(), Map::is_empty)
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
