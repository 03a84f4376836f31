//! Making one schema whole: what it refers to in the document moves into its `$defs`.
//!
//! - only what is used moves, each once; a circle stays a circle of references
//! - inside a schema with its own `$id`, `#/…` means that schema and stays as it is
//! - elsewhere: how much all operations together may hold (`budget`)

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value, json};

use super::{
    budget::Budget,
    convert::{Conversion, Said},
    document::{Dialect, Document, lost},
    embed,
    origin::Origins,
};
use crate::contract::{
    keyword::{self, Holds},
    pointer::Pointer,
};

/// Which way bodies of a schema travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Input,
    Output,
}

/// Where in the document a schema is.
pub type Found<'d> = (&'d Value, String);

/// A schema on its way out of a document.
pub struct Gather<'d, 's> {
    pub document: &'d Document,
    pub direction: Direction,
    pub said: &'s mut Said,
    pub origins: &'s mut Origins,
    pub budget: &'s mut Budget,
    pub moved: Moved,
}

/// What has moved into `$defs` so far, and what is still to come.
#[derive(Debug, Default)]
pub struct Moved {
    /// References by the place they lead to.
    references: HashMap<String, String>,
    names: HashSet<String>,
    /// How often a name was wanted.
    wanted: HashMap<String, usize>,
    waiting: VecDeque<(String, String)>,
}

impl<'d> Gather<'d, '_> {
    /// Takes a schema, which will stand at `here` in the contract.
    pub fn one(mut self, found: Found<'d>, here: &str) -> Value {
        let Some((schema, at)) = self.behind_all(found) else {
            return Value::Bool(true);
        };
        if let Some(Value::Object(own)) = schema.get("$defs") {
            self.moved.names.extend(own.keys().cloned());
        }
        self.origins.add(here, at.as_str());
        let root = self.convert(schema, &mut at_place(&at), false);
        let whole = self.complete(root, here);
        match self.document.dialect {
            Dialect::Plain => embed::extract(whole),
            _ => whole,
        }
    }

    /// Takes several schemas, of which a body has to fit one.
    pub fn any(mut self, all: Vec<Found<'d>>, or_null: bool, here: &str) -> Value {
        let mut alternatives = Vec::new();
        for (index, (schema, at)) in all.into_iter().enumerate() {
            self.origins
                .add(format!("{here}/anyOf/{index}"), at.as_str());
            alternatives.push(self.convert(schema, &mut at_place(&at), false));
        }
        if or_null {
            alternatives.push(json!({"type": "null"}));
        }
        self.complete(json!({ "anyOf": alternatives }), here)
    }

    /// Adds the definitions, and those that these refer to.
    fn complete(&mut self, mut root: Value, here: &str) -> Value {
        let mut definitions = Map::new();
        while let Some((place, name)) = self.moved.waiting.pop_front() {
            let document = self.document;
            if let Some((target, _)) = document.resolve(&place) {
                let definition = self.convert(target, &mut at_place(&place), false);
                self.origins.add(format!("{here}/$defs/{name}"), place);
                definitions.insert(name, definition);
            }
        }
        if let Value::Object(members) = &mut root
            && !definitions.is_empty()
        {
            match members.get_mut("$defs") {
                Some(Value::Object(own)) => own.extend(definitions),
                _ => drop(members.insert("$defs".to_owned(), Value::Object(definitions))),
            }
        }
        root
    }

    /// Goes through references to the schema that is meant, so that it becomes the root itself.
    fn behind_all(&mut self, (mut schema, mut at): Found<'d>) -> Option<Found<'d>> {
        let is_30 = self.document.dialect == Dialect::V30;
        loop {
            let members = schema.as_object();
            let members = members.filter(|members| members.len() == 1 || is_30);
            let reference = members.and_then(|members| members.get("$ref")?.as_str());
            let fragment = reference.and_then(|reference| reference.strip_prefix('#'));
            let Some(fragment) = fragment.filter(|fragment| fragment.starts_with('/')) else {
                return Some((schema, at));
            };
            if let Some(members) = members {
                let (mut members, mut at) = (members.clone(), at_place(&at));
                self.conversion(&mut members, &mut at).lone_reference();
            }
            let place = format!("{at}/$ref");
            if !self.budget.take(1, &place, self.said) {
                return None;
            }
            (schema, at) = self.target(fragment, &place)?;
            let references = &mut self.moved.references;
            if references.insert(at.clone(), "#".to_owned()).is_some() {
                let what = "references lead nowhere but to references";
                let remedy = "let one of them be a schema";
                self.said.fault("ref-circle", place, what, remedy);
                return None;
            }
        }
    }

    fn conversion<'a>(
        &'a mut self,
        members: &'a mut Map<String, Value>,
        at: &'a mut Pointer,
    ) -> Conversion<'a> {
        Conversion {
            members,
            at,
            said: self.said,
        }
    }

    /// Converts a schema and all inside it; `is_own` within one that has its own base.
    fn convert(&mut self, schema: &Value, at: &mut Pointer, is_own: bool) -> Value {
        let Value::Object(members) = schema else {
            return self.copy(schema, at);
        };
        if !self.budget.take(1, at.as_str(), self.said) {
            return Value::Bool(true);
        }
        let is_own = is_own || members.get("$id").is_some_and(Value::is_string);
        let is_30 = self.document.dialect == Dialect::V30;
        let is_lone = is_30 && members.contains_key("$ref");
        let mut converted = Map::new();
        for (name, value) in members {
            let value = match (keyword::holds(name), value) {
                _ if is_lone && name != "$ref" => Value::Null,
                (_, Value::String(text)) if name == "$ref" || name == "$dynamicRef" => {
                    let place = at.within(name, |at| at.to_string());
                    self.reference(text, &place, is_own).into()
                }
                (Some(Holds::Value) | None, value) => self.copy(value, at),
                (Some(Holds::Schema), value) => {
                    at.within(name, |at| self.convert(value, at, is_own))
                }
                (Some(Holds::Schemas | Holds::SchemaMap), value) => {
                    at.within(name, |at| self.each(value, at, is_own))
                }
            };
            converted.insert(name.clone(), value);
        }
        if is_lone {
            self.conversion(&mut converted, at).lone_reference();
            return Value::Object(converted);
        }
        if is_30 {
            self.relax(members, &mut converted, at);
        }
        let dialect = self.document.dialect;
        self.conversion(&mut converted, at).run(dialect);
        Value::Object(converted)
    }

    fn each(&mut self, value: &Value, at: &mut Pointer, is_own: bool) -> Value {
        match value {
            Value::Array(schemas) => {
                let schemas = schemas.iter().enumerate().map(|(index, schema)| {
                    at.within(&index.to_string(), |at| self.convert(schema, at, is_own))
                });
                schemas.collect()
            }
            Value::Object(schemas) => {
                let schemas = schemas.iter().map(|(name, schema)| {
                    let schema = at.within(name, |at| self.convert(schema, at, is_own));
                    (name.clone(), schema)
                });
                Value::Object(schemas.collect())
            }
            other => self.copy(other, at),
        }
    }

    /// Lets a reference lead to where its target will be.
    fn reference(&mut self, text: &str, at: &str, is_own: bool) -> String {
        let Some(fragment) = text.strip_prefix('#') else {
            // By the `$id` of a component; any other name is judged with the whole schema.
            let uri = text.split('#').next().unwrap_or_default();
            if let Some(place) = self.document.named(uri) {
                self.moved.name(place);
            }
            return text.to_owned();
        };
        if is_own || !(fragment.is_empty() || fragment.starts_with('/')) {
            return text.to_owned();
        }
        match self.target(fragment, at) {
            Some((_, place)) => self.moved.name(&place),
            None => text.to_owned(),
        }
    }

    /// Finds the schema a fragment leads to, or says why there is none.
    fn target(&mut self, fragment: &str, at: &str) -> Option<Found<'d>> {
        let document = self.document;
        let Some((target, plain)) = document.resolve(fragment) else {
            let problem = lost(&format!("#{fragment}"), at);
            self.said.faults.push(problem);
            return None;
        };
        let is_schema = !plain.is_empty() && (target.is_object() || target.is_boolean());
        if !is_schema || document.crosses_base(&plain) {
            let what = "the reference does not lead to a schema of this document";
            let remedy = "refer to \"#/components/schemas/NAME\"";
            self.said.fault("unresolved-ref", at, what, remedy);
            return None;
        }
        Some((target, plain))
    }

    /// In OpenAPI 3.0 what is only read is not required in requests, and what is only written not
    /// in replies.
    fn relax(
        &mut self,
        members: &Map<String, Value>,
        converted: &mut Map<String, Value>,
        at: &mut Pointer,
    ) {
        let word = match self.direction {
            Direction::Input => "readOnly",
            Direction::Output => "writeOnly",
        };
        let Some(Value::Array(required)) = converted.get_mut("required") else {
            return;
        };
        let document = self.document;
        let is_other_way = |name: &Value| {
            let property = members
                .get("properties")
                .and_then(|all| all.get(name.as_str()?));
            property.is_some_and(|schema| behind(document, schema).get(word) == Some(&true.into()))
        };
        let (gone, kept): (Vec<_>, Vec<_>) =
            std::mem::take(required).into_iter().partition(is_other_way);
        *required = kept;
        for name in gone.iter().filter_map(Value::as_str) {
            let place = at.within("properties", |at| at.within(name, |at| at.to_string()));
            let what = format!("\"{word}\": the member is not required this way");
            let remedy = "nothing needs to be done; whether it is there is not checked";
            self.said.warn("read-only", place, &what, remedy);
        }
    }

    fn copy(&mut self, value: &Value, at: &Pointer) -> Value {
        let copied = self.budget.copy(value, at.as_str(), self.said);
        copied.unwrap_or_default()
    }
}

impl Moved {
    /// Returns the reference to a place's definition, and has it moved if it is not yet.
    fn name(&mut self, place: &str) -> String {
        if let Some(reference) = self.references.get(place) {
            return reference.clone();
        }
        let last = place.rsplit('/').next().unwrap_or_default();
        let letters = last.chars().map(|letter| match letter {
            letter if letter.is_ascii_alphanumeric() || "._-".contains(letter) => letter,
            _ => '_',
        });
        let plain: String = letters.collect();
        let wanted = self.wanted.entry(plain.clone()).or_default();
        let name = loop {
            *wanted += 1;
            let name = match *wanted {
                1 => plain.clone(),
                count => format!("{plain}_{count}"),
            };
            if self.names.insert(name.clone()) {
                break name;
            }
        };
        let reference = format!("#/$defs/{name}");
        self.references.insert(place.to_owned(), reference.clone());
        self.waiting.push_back((place.to_owned(), name));
        reference
    }
}

fn behind<'d>(document: &'d Document, schema: &'d Value) -> &'d Value {
    let reference = schema.get("$ref").and_then(Value::as_str);
    let fragment = reference.and_then(|reference| reference.strip_prefix('#'));
    let target = fragment.and_then(|fragment| document.resolve(fragment));
    target.map_or(schema, |(target, _)| target)
}

/// Makes a pointer of one that is already written.
fn at_place(place: &str) -> Pointer {
    let mut at = Pointer::default();
    for name in place.split('/').skip(1) {
        at.push(&name.replace("~1", "/").replace("~0", "~"));
    }
    at
}
