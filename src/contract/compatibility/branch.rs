//! Alternatives multiplied out: which schemas speak together, and which then must not fit.
//!
//! A branch with nothing open is one way in which a value can be accepted. It is *loose* where
//! something was left out, so that it may accept more.

use serde_json::Value;

use super::{node::Node, work::Work};

/// Branches of alternatives told apart at one place.
const MOST_BRANCHES: usize = 64;

/// Schemas that speak together, with the alternatives still to be chosen from.
pub struct Branch<'a> {
    pub nodes: Vec<Node<'a>>,
    pub open: Vec<Node<'a>>,
    pub is_loose: bool,
    pub rivals: Vec<Node<'a>>,
}

impl<'a> Branch<'a> {
    pub fn of(nodes: &[Node<'a>]) -> Self {
        Self {
            nodes: Vec::new(),
            open: nodes.iter().rev().copied().collect(),
            is_loose: false,
            rivals: Vec::new(),
        }
    }

    fn with(&self, way: &Way<'a>) -> Self {
        let grown = |own: &[Node<'a>], more: &[Node<'a>]| [own, more].concat();
        Self {
            nodes: self.nodes.clone(),
            open: grown(&self.open, &way.parts),
            is_loose: self.is_loose,
            rivals: grown(&self.rivals, &way.rivals),
        }
    }
}

/// Multiplies the alternatives out; where there are too many, they are left out, which is loose.
pub fn branches<'a>(work: &Work, start: Branch<'a>) -> Vec<Branch<'a>> {
    let mut done = Vec::new();
    let mut open = vec![start];
    while let Some(mut branch) = open.pop() {
        if !work.step() {
            break;
        }
        let Some(node) = branch.open.pop() else {
            done.push(branch);
            continue;
        };
        let seen = |other: &Node<'_>| other.is(node) && other.is_guest == node.is_guest;
        let is_done = branch.nodes.iter().any(seen) || *node.schema == Value::Bool(true);
        if is_done {
            open.push(branch);
            continue;
        }
        if node.members().is_none() {
            // `false`, or no schema: nothing fits.
            continue;
        }
        branch.nodes.push(node);
        let target = node.target();
        branch.is_loose |= is_more_than_modelled(node, target.is_some());
        branch.rivals.extend(node.child("not"));
        branch.open.extend(target);
        branch.open.extend(node.children("allOf"));
        let mut grown = vec![branch];
        for choice in choices(node) {
            let many = grown.len() * choice.len() + done.len() + open.len();
            if !work.step() || many > MOST_BRANCHES {
                grown.iter_mut().for_each(|branch| branch.is_loose = true);
                continue;
            }
            let ways = choice.iter();
            grown = ways
                .flat_map(|way| grown.iter().map(|branch| branch.with(way)))
                .collect();
        }
        open.extend(grown);
    }
    done
}

/// One of several alternatives: schemas that then speak, and schemas that then must not fit.
struct Way<'a> {
    parts: Vec<Node<'a>>,
    rivals: Vec<Node<'a>>,
}

fn choices(node: Node<'_>) -> Vec<Vec<Way<'_>>> {
    let mut choices = Vec::new();
    for name in ["anyOf", "oneOf"] {
        if node.get(name).is_none() {
            continue;
        }
        let parts: Vec<_> = node.children(name).collect();
        let mut ways = Vec::new();
        for part in &parts {
            let others = parts.iter().filter(|other| !other.is(*part));
            ways.push(Way {
                parts: vec![*part],
                rivals: others.filter(|_| name == "oneOf").copied().collect(),
            });
        }
        choices.push(ways);
    }
    if let Some(condition) = node.child("if") {
        let (yes, no) = (node.child("then"), node.child("else"));
        if yes.is_some() || no.is_some() {
            let met = Way {
                parts: std::iter::once(condition).chain(yes).collect(),
                rivals: Vec::new(),
            };
            let unmet = Way {
                parts: no.into_iter().collect(),
                rivals: vec![condition],
            };
            choices.push(vec![met, unmet]);
        }
    }
    choices
}

/// Answers whether a schema has keywords that pieces do not follow.
fn is_more_than_modelled(node: Node<'_>, has_target: bool) -> bool {
    let has = |name| node.get(name).is_some();
    has("$dynamicRef")
        || has("dependentSchemas")
        || has("dependencies")
        || (has("$ref") && !has_target)
        || node.is_unevaluated()
}
