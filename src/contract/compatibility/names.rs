//! Which members an object is said to have.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    node::{Node, is_trivial},
    quantity::count,
    work::Work,
};

/// Schemas that may speak for one value.
const MOST_SPEAKERS: usize = 1_000;

/// The members that schemas of one place declare, in any of their branches.
#[derive(Debug, Clone, Default)]
pub struct Names<'a> {
    /// By name: listed, required or implied by another.
    pub listed: BTreeSet<&'a str>,
    pub patterns: BTreeSet<&'a str>,
    /// Any name may occur: the members have a schema of their own, or none is listed at all.
    pub is_any: bool,
    /// Addresses of schemas that declare members here without speaking for every value.
    pub beside: Vec<usize>,
}

impl<'a> Names<'a> {
    /// Collects what `nodes` declare, and schemas `beside` them that speak for some values only.
    pub fn of(work: &Work, nodes: &[Node<'a>], beside: &[Node<'a>]) -> Self {
        let mut names = Self {
            beside: beside.iter().map(|node| node.address() as usize).collect(),
            ..Self::default()
        };
        let all = nodes.iter().chain(beside).filter(|node| !node.is_guest);
        let all: Vec<_> = all.copied().collect();
        let Some(speakers) = speakers(work, &all) else {
            names.is_any = true;
            return names;
        };
        let is_list = |node: &Node<'_>| {
            let has = |name| node.map(name).is_some_and(|map| !map.is_empty());
            has("properties") || has("patternProperties")
        };
        names.is_any = !speakers.iter().any(is_list);
        speakers.iter().for_each(|node| names.own(*node));
        names
    }

    /// Collects what the schema's own keywords name.
    fn own(&mut self, node: Node<'a>) {
        let keys = |name| node.map(name).into_iter().flat_map(|map| map.keys());
        let implied = node.map("dependentRequired").into_iter();
        let implied = implied.flat_map(|map| map.values().filter_map(Value::as_array).flatten());
        let required = node.list("required").iter().chain(implied);
        self.listed.extend(required.filter_map(Value::as_str));
        for name in ["properties", "dependentRequired", "dependentSchemas"] {
            self.listed.extend(keys(name).map(String::as_str));
        }
        let patterns = keys("patternProperties").map(String::as_str);
        self.patterns.extend(patterns);
        for rest in ["additionalProperties", "unevaluatedProperties"] {
            let rest = node.get(rest);
            self.is_any |=
                rest.is_some_and(|rest| !is_trivial(rest) && *rest != Value::Bool(false));
        }
        let least = node.get("minProperties").and_then(count).unwrap_or(0);
        self.is_any |= least > self.listed.len() as u64;
        self.is_any |= node.get("$dynamicRef").is_some();
        self.is_any |= node.get("$ref").is_some() && node.target().is_none();
    }
}

/// Lists the schemas that speak for a value in some branch, each once; nothing if too many.
pub fn speakers<'a>(work: &Work, nodes: &[Node<'a>]) -> Option<Vec<Node<'a>>> {
    let mut found: Vec<Node<'a>> = Vec::new();
    let mut open: Vec<Node<'a>> = nodes.iter().rev().copied().collect();
    while let Some(node) = open.pop() {
        if node.members().is_none() || found.iter().any(|other| other.is(node)) {
            continue;
        }
        if !work.step() || found.len() > MOST_SPEAKERS {
            return None;
        }
        found.push(node);
        open.extend(node.target());
        for name in ["allOf", "anyOf", "oneOf"] {
            open.extend(node.children(name));
        }
        for name in ["if", "then", "else"] {
            open.extend(node.child(name));
        }
        let dependent = node.map("dependentSchemas").into_iter();
        open.extend(dependent.flat_map(|map| map.values().map(|schema| node.part(schema))));
    }
    Some(found)
}
