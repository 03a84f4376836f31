//! Members that were named and are named no more.
//!
//! An open object still lets them through, so that no value shows the difference; but nobody
//! promises anything about them any longer. A place where the new schema names no members at all
//! speaks of none in particular, and is left to the comparison of values.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use super::{
    names::speakers,
    node::{Node, is_trivial},
    report::Side,
    work::{DEEPEST, Work},
};

/// The schemas of each member by name.
type Listed<'a> = BTreeMap<&'a str, Vec<Node<'a>>>;

/// Finds where the old schema names a member that the new one does not.
pub fn removed<'a>(
    work: &Work,
    side: Side,
    old: Node<'a>,
    new: Node<'a>,
) -> Vec<(Node<'a>, String)> {
    let mut search = Search {
        work,
        side,
        seen: HashSet::new(),
        found: Vec::new(),
    };
    search.place(&[old], &[new], 0);
    search.found
}

struct Search<'a, 'w> {
    work: &'w Work,
    side: Side,
    seen: HashSet<(Vec<usize>, Vec<usize>)>,
    found: Vec<(Node<'a>, String)>,
}

impl<'a> Search<'a, '_> {
    fn place(&mut self, old: &[Node<'a>], new: &[Node<'a>], depth: usize) {
        let address = |node: &Node<'_>| node.address() as usize;
        let key = (
            old.iter().map(address).collect(),
            new.iter().map(address).collect(),
        );
        if old.is_empty() || new.is_empty() || !self.seen.insert(key) {
            return;
        }
        let speakers = (speakers(self.work, old), speakers(self.work, new));
        let (Some(old), Some(new), ..=DEEPEST) = (speakers.0, speakers.1, depth) else {
            self.work.exhaust();
            return;
        };
        let (were, are) = (listed(&old), listed(&new));
        if new.iter().any(|node| node.map("properties").is_some()) {
            for (name, parts) in &were {
                let is_gone = !are.contains_key(name) && !self.is_covered(&new, name);
                if let Some(part) = parts.first().filter(|_| is_gone) {
                    self.found.push((*part, self.message(name)));
                }
            }
        }
        for (name, parts) in &were {
            if let Some(others) = are.get(name) {
                self.place(parts, others, depth + 1);
            }
        }
        self.place(&elements(&old), &elements(&new), depth + 1);
    }

    /// Answers whether the new schemas speak of a member otherwise, or refuse it, which the
    /// comparison of values tells.
    fn is_covered(&self, new: &[Node<'a>], name: &str) -> bool {
        new.iter().any(|node| {
            let patterns = node.map("patternProperties").into_iter().flatten();
            let mut patterns = patterns.map(|(pattern, _)| pattern);
            let is_refused = |rest: Node<'_>| *rest.schema == Value::Bool(false);
            let speaks = |rest: Node<'_>| match is_refused(rest) {
                true => self.side == Side::Input,
                false => !is_trivial(rest.schema),
            };
            patterns.any(|pattern| self.work.matches(pattern, name) == Some(true))
                || node.additional().is_some_and(speaks)
        })
    }

    fn message(&self, name: &str) -> String {
        let name = super::wording::quote(&Value::from(name));
        match self.side {
            Side::Output => {
                format!("the member {name} was removed: nobody says any more that it may come")
            }
            Side::Input | Side::Constraints => {
                format!("the member {name} was removed: nobody says any more what it means")
            }
        }
    }
}

fn listed<'a>(nodes: &[Node<'a>]) -> Listed<'a> {
    let mut listed = Listed::new();
    for node in nodes {
        for (name, part) in node.map("properties").into_iter().flatten() {
            // What is excluded is not there to be removed.
            if *part != Value::Bool(false) {
                listed.entry(name).or_default().push(node.part(part));
            }
        }
    }
    listed
}

fn elements<'a>(nodes: &[Node<'a>]) -> Vec<Node<'a>> {
    let parts = nodes.iter().flat_map(|node| {
        let fixed = node.children("prefixItems");
        fixed.chain(node.items()).chain(node.child("contains"))
    });
    parts.collect()
}
