//! Whether two schemas say the same, word for word: in any order, through any reference.
//!
//! Answers yes only for equal meaning; what it does not know is not the same.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    node::{Node, is_asserted},
    quantity::{is_same_value, key},
    work::{DEEPEST, Work},
};
use crate::contract::keyword::{self, Holds};

/// Pairs that are being compared: two ways round a circle are the same if nothing on them differs.
type Assumed = Vec<(*const Value, *const Value)>;

pub fn is_same(work: &Work, one: Node<'_>, two: Node<'_>) -> bool {
    same(work, one, two, &mut Assumed::new())
}

/// Compares one keyword of two schemas; absent in both is the same.
pub fn is_same_keyword(work: &Work, name: &str, one: Node<'_>, two: Node<'_>) -> bool {
    same_keyword(work, name, one, two, &mut Assumed::new())
}

fn same(work: &Work, one: Node<'_>, two: Node<'_>, assumed: &mut Assumed) -> bool {
    if one.is(two) {
        return true;
    }
    if !work.step() || assumed.len() > DEEPEST {
        return false;
    }
    let (Some(ones), Some(twos)) = (one.members(), two.members()) else {
        return one.schema == two.schema;
    };
    let pair = (one.address(), two.address());
    if assumed.contains(&pair) {
        return true;
    }
    assumed.push(pair);
    let names = ones
        .keys()
        .chain(twos.keys().filter(|name| !ones.contains_key(*name)));
    let mut asserted = names.filter(|name| is_asserted(name));
    let is_same = asserted.all(|name| same_keyword(work, name, one, two, assumed));
    assumed.pop();
    is_same
}

fn same_keyword(
    work: &Work,
    name: &str,
    one: Node<'_>,
    two: Node<'_>,
    assumed: &mut Assumed,
) -> bool {
    let (ones, twos) = match (one.get(name), two.get(name)) {
        (None, None) => return true,
        (Some(ones), Some(twos)) => (ones, twos),
        _ => return false,
    };
    match name {
        // Where it leads depends on the way by which it was reached.
        "$dynamicRef" => return false,
        "$ref" => {
            let targets = one.target().zip(two.target());
            return targets.is_some_and(|(one, two)| same(work, one, two, assumed));
        }
        "enum" | "required" | "type" => {
            work.spend(ones.as_array().map_or(0, Vec::len) / 16);
            return same_members(ones, twos);
        }
        _ => {}
    }
    match (keyword::holds(name), ones, twos) {
        (Some(Holds::Schema), one_part, two_part) => {
            same(work, one.part(one_part), two.part(two_part), assumed)
        }
        (Some(Holds::Schemas), Value::Array(ones), Value::Array(twos)) => {
            let is_same = |i: &Value, j: &Value, assumed: &mut Assumed| {
                same(work, one.part(i), two.part(j), assumed)
            };
            if ones.len() != twos.len() {
                return false;
            }
            if name == "prefixItems" {
                let mut pairs = ones.iter().zip(twos);
                return pairs.all(|(i, j)| is_same(i, j, assumed));
            }
            let mut left: Vec<&Value> = twos.iter().collect();
            ones.iter().all(|i| {
                let found = left.iter().position(|j| is_same(i, j, assumed));
                found.map(|place| left.swap_remove(place)).is_some()
            })
        }
        (Some(Holds::SchemaMap), Value::Object(ones), Value::Object(twos)) => {
            ones.len() == twos.len()
                && ones.iter().all(|(name, i)| {
                    let found = twos.get(name);
                    found.is_some_and(|j| same(work, one.part(i), two.part(j), assumed))
                })
        }
        (_, Value::Object(ones), Value::Object(twos)) if name == "dependentRequired" => {
            same_lists(ones, twos)
        }
        (_, ones, twos) => is_same_value(ones, twos),
    }
}

fn same_lists(ones: &Map<String, Value>, twos: &Map<String, Value>) -> bool {
    let is_same = |(name, one)| twos.get(name).is_some_and(|two| same_members(one, two));
    ones.len() == twos.len() && ones.iter().all(is_same)
}

/// Compares lists as sets; a lone value is a list of one.
fn same_members(ones: &Value, twos: &Value) -> bool {
    let keys = |value: &Value| -> BTreeSet<String> {
        match value {
            Value::Array(items) => items.iter().map(key).collect(),
            lone => BTreeSet::from([key(lone)]),
        }
    };
    keys(ones) == keys(twos)
}
