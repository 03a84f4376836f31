//! Schemas in their document: what they say, and where their references lead.

use std::{
    collections::{HashMap, HashSet},
    ptr,
};

use serde_json::{Map, Value};

use crate::contract::{keyword, pointer::Pointer, reference::Targets};

/// Keywords that apply other schemas to the same value, `allOf` and `$ref` aside.
const IN_PLACE: [&str; 9] = [
    "$ref",
    "$dynamicRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "dependentSchemas",
    "contains",
];

/// One whole schema with the table of its references.
pub struct Source<'a> {
    root: &'a Value,
    targets: Targets<'a>,
    /// Embedded documents have names that depend on others; references to documents are not followed.
    has_relative: bool,
}

impl<'a> Source<'a> {
    pub fn of(root: &'a Value) -> Self {
        let mut has_relative = false;
        keyword::walk(root, &mut |at, members| {
            let id = members.get("$id").and_then(Value::as_str);
            has_relative |= id.is_some_and(|id| !at.as_str().is_empty() && !id.contains(':'));
        });
        Self {
            root,
            targets: Targets::of(root),
            has_relative,
        }
    }

    pub fn root(&'a self) -> Node<'a> {
        Node {
            schema: self.root,
            document: self.root,
            source: self,
            is_guest: false,
        }
    }
}

/// A schema, or a part of one.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    pub schema: &'a Value,
    document: &'a Value,
    source: &'a Source<'a>,
    /// Borrowed from the other side to narrow values down; declares no properties.
    pub is_guest: bool,
}

impl<'a> Node<'a> {
    pub fn members(self) -> Option<&'a Map<String, Value>> {
        self.schema.as_object()
    }

    pub fn get(self, keyword: &str) -> Option<&'a Value> {
        self.schema.get(keyword)
    }

    pub fn map(self, keyword: &str) -> Option<&'a Map<String, Value>> {
        self.get(keyword)?.as_object()
    }

    pub fn list(self, keyword: &str) -> &'a [Value] {
        let list = self.get(keyword).and_then(Value::as_array);
        list.map(Vec::as_slice).unwrap_or_default()
    }

    /// Steps into a schema that is a part of this one.
    pub fn part(self, schema: &'a Value) -> Self {
        Self {
            schema,
            document: self.source.targets.document_of(schema, self.document),
            ..self
        }
    }

    pub fn child(self, keyword: &str) -> Option<Self> {
        self.get(keyword).map(|schema| self.part(schema))
    }

    pub fn children(self, keyword: &str) -> impl Iterator<Item = Self> {
        self.list(keyword)
            .iter()
            .map(move |schema| self.part(schema))
    }

    pub fn guest(self) -> Self {
        Self {
            is_guest: true,
            ..self
        }
    }

    /// Follows `$ref`.
    pub fn target(self) -> Option<Self> {
        let reference = self.get("$ref")?.as_str()?;
        if self.source.has_relative && !reference.starts_with('#') {
            return None;
        }
        let (schema, document) = self.source.targets.resolve(reference, self.document)?;
        Some(Self {
            schema,
            document,
            ..self
        })
    }

    pub fn is(self, other: Self) -> bool {
        ptr::eq(self.schema, other.schema)
    }

    pub fn address(self) -> *const Value {
        ptr::from_ref(self.schema)
    }

    /// Answers whether members or elements it has not seen are simply those its own keywords leave.
    fn is_plain(self) -> bool {
        !IN_PLACE.iter().any(|name| self.get(name).is_some())
    }

    /// Gives the schema of members that neither `properties` nor `patternProperties` name.
    pub fn additional(self) -> Option<Self> {
        let unevaluated = || self.child("unevaluatedProperties");
        let plain = || self.is_plain().then(unevaluated).flatten();
        self.child("additionalProperties").or_else(plain)
    }

    /// Gives the schema of elements after `prefixItems`.
    pub fn items(self) -> Option<Self> {
        let unevaluated = || self.child("unevaluatedItems");
        let plain = || self.is_plain().then(unevaluated).flatten();
        self.child("items").or_else(plain)
    }

    /// Answers whether it judges what parts of it left over, in a way `additional` and `items`
    /// do not tell.
    pub fn is_unevaluated(self) -> bool {
        let has = |name| self.get(name).is_some();
        !self.is_plain() && (has("unevaluatedProperties") || has("unevaluatedItems"))
    }

    /// Goes on from the place of this schema, which `places` has to know.
    pub fn pointer(self, places: &Places, steps: &[String]) -> String {
        let place = places.get(&self.address());
        let mut at = place.cloned().unwrap_or_default();
        steps.iter().for_each(|step| at.push(step));
        at.to_string()
    }
}

/// Where schemas stand in their documents, by address.
pub type Places = HashMap<*const Value, Pointer>;

/// Looks for all schemas at once.
pub fn places(nodes: &[Node<'_>]) -> Places {
    let wanted: HashSet<_> = nodes.iter().map(|node| node.address()).collect();
    let mut roots: Vec<&Value> = Vec::new();
    for node in nodes {
        if !roots.iter().any(|root| ptr::eq(*root, node.source.root)) {
            roots.push(node.source.root);
        }
    }
    let mut found = Places::new();
    for root in roots {
        find(root, &wanted, &mut Pointer::default(), &mut found);
    }
    found
}

fn find(within: &Value, wanted: &HashSet<*const Value>, at: &mut Pointer, found: &mut Places) {
    let address = ptr::from_ref(within);
    if wanted.contains(&address) {
        found.insert(address, at.clone());
    }
    match within {
        Value::Object(members) => {
            for (name, part) in members {
                at.within(name, |at| find(part, wanted, at, found));
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                at.within(&index.to_string(), |at| find(item, wanted, at, found));
            }
        }
        _ => {}
    }
}

/// Answers whether a schema accepts everything, whatever it says about it.
pub fn is_trivial(schema: &Value) -> bool {
    match schema {
        Value::Bool(accepts) => *accepts,
        Value::Object(members) => !members.keys().any(|name| is_asserted(name)),
        _ => false,
    }
}

/// Answers whether a keyword can make a difference to what is accepted, or to how it is read.
pub fn is_asserted(name: &str) -> bool {
    const SILENT: [&str; 15] = [
        "$anchor",
        "$comment",
        "$defs",
        "$dynamicAnchor",
        "$id",
        "$schema",
        "$vocabulary",
        "default",
        "definitions",
        "deprecated",
        "description",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    ];
    keyword::holds(name).is_some() && !SILENT.contains(&name)
}
