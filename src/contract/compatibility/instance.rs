//! Whether one given value is accepted: for the members of `enum` and `const`.
//!
//! Answers nothing where the answer depends on what is not modelled here.

use std::{cmp::Ordering, collections::HashSet};

use serde_json::{Map, Value};

use super::{
    node::{Node, is_asserted},
    quantity::{Quantity, count, is_same_value, key},
    work::{DEEPEST, Work},
};
use crate::contract::schema::FORMATS;

/// Answers whether a schema accepts a value.
pub fn accepts(work: &Work, node: Node<'_>, value: &Value) -> Option<bool> {
    Judge { work, depth: 0 }.accepts(node, value)
}

/// Answers for one keyword of a schema and those it works with.
pub fn keyword_accepts(work: &Work, node: Node<'_>, name: &str, value: &Value) -> Option<bool> {
    Judge { work, depth: 0 }.keyword(node, name, value)
}

#[derive(Clone, Copy)]
struct Judge<'w> {
    work: &'w Work,
    depth: usize,
}

impl Judge<'_> {
    fn accepts(self, node: Node<'_>, value: &Value) -> Option<bool> {
        if !self.work.step() || self.depth > DEEPEST {
            return None;
        }
        let inner = Self {
            depth: self.depth + 1,
            ..self
        };
        match node.schema {
            Value::Bool(accepts) => Some(*accepts),
            Value::Object(members) => all(members
                .keys()
                .filter(|name| is_asserted(name))
                .map(|name| inner.keyword(node, name, value))),
            _ => None,
        }
    }

    fn keyword(self, node: Node<'_>, name: &str, value: &Value) -> Option<bool> {
        let said = node.get(name)?;
        match name {
            "$ref" => self.accepts(node.target()?, value),
            "allOf" => all(node.children("allOf").map(|part| self.accepts(part, value))),
            "anyOf" => {
                let nots = node.children("anyOf");
                not(all(nots.map(|part| not(self.accepts(part, value)))))
            }
            "oneOf" => self.one_of(node, value),
            "not" => not(self.accepts(node.part(said), value)),
            "if" => self.conditional(node, value),
            // Silent without the keyword they belong to.
            "then" | "else" | "minContains" | "maxContains" => Some(true),
            "type" => Some(has_type(said, value)),
            "const" => Some(is_same_value(said, value)),
            "enum" => Some(self.work.holds(said, value)),
            "contentEncoding" | "contentMediaType" | "contentSchema" => Some(true),
            _ => match value {
                Value::Number(number) => of_number(name, said, Quantity::of(number)),
                Value::String(text) => self.of_text(name, said, text),
                Value::Array(items) => self.of_array(node, name, items),
                Value::Object(members) => self.of_object(node, name, members),
                Value::Null | Value::Bool(_) => known(name),
            },
        }
    }

    fn one_of(self, node: Node<'_>, value: &Value) -> Option<bool> {
        let mut fitting = 0;
        let mut is_known = true;
        for part in node.children("oneOf") {
            match self.accepts(part, value) {
                Some(accepts) => fitting += usize::from(accepts),
                None => is_known = false,
            }
        }
        match fitting {
            0 | 1 if !is_known => None,
            fitting => Some(fitting == 1),
        }
    }

    fn conditional(self, node: Node<'_>, value: &Value) -> Option<bool> {
        let branch = if self.accepts(node.child("if")?, value)? {
            "then"
        } else {
            "else"
        };
        node.child(branch)
            .map_or(Some(true), |part| self.accepts(part, value))
    }

    fn of_text(self, name: &str, said: &Value, text: &str) -> Option<bool> {
        let length = || u64::try_from(text.chars().count()).ok();
        match name {
            "minLength" => Some(length()? >= count(said)?),
            "maxLength" => Some(length()? <= count(said)?),
            "pattern" => self.work.matches(said.as_str()?, text),
            "format" if FORMATS.contains(&said.as_str()?) => {
                self.work.has_format(said.as_str()?, text)
            }
            _ => known(name),
        }
    }

    fn of_array(self, node: Node<'_>, name: &str, items: &[Value]) -> Option<bool> {
        let length = u64::try_from(items.len()).ok()?;
        let said = node.get(name)?;
        match name {
            "minItems" => Some(length >= count(said)?),
            "maxItems" => Some(length <= count(said)?),
            "uniqueItems" => Some(*said != Value::Bool(true) || is_unique(items)),
            "prefixItems" => all(node
                .children("prefixItems")
                .zip(items)
                .map(|(part, item)| self.accepts(part, item))),
            "items" => {
                let rest = items.iter().skip(node.list("prefixItems").len());
                all(rest.map(|item| self.accepts(node.part(said), item)))
            }
            "contains" => self.contains(node, node.part(said), items),
            "unevaluatedItems" if !node.is_unevaluated() => {
                let rest = items.iter().skip(node.list("prefixItems").len());
                match node.get("items") {
                    Some(_) => Some(true),
                    None => all(rest.map(|item| self.accepts(node.part(said), item))),
                }
            }
            "unevaluatedItems" => None,
            _ => known(name),
        }
    }

    fn contains(self, node: Node<'_>, part: Node<'_>, items: &[Value]) -> Option<bool> {
        let mut fitting = 0;
        for item in items {
            fitting += u64::from(self.accepts(part, item)?);
        }
        let least = node.get("minContains").map_or(Some(1), count)?;
        let most = node.get("maxContains").map_or(Some(u64::MAX), count)?;
        Some((least..=most).contains(&fitting))
    }

    fn of_object(self, node: Node<'_>, name: &str, members: &Map<String, Value>) -> Option<bool> {
        let length = u64::try_from(members.len()).ok()?;
        let said = node.get(name)?;
        match name {
            "minProperties" => Some(length >= count(said)?),
            "maxProperties" => Some(length <= count(said)?),
            "required" => Some(has_all(said, members)),
            "dependentRequired" => {
                let mut pairs = said.as_object()?.iter();
                Some(
                    pairs.all(|(name, wanted)| {
                        !members.contains_key(name) || has_all(wanted, members)
                    }),
                )
            }
            "properties" => all(said.as_object()?.iter().map(|(name, part)| {
                members
                    .get(name)
                    .map_or(Some(true), |member| self.accepts(node.part(part), member))
            })),
            "patternProperties" => all(members.iter().map(|(name, member)| {
                let patterns = said.as_object()?.iter();
                all(
                    patterns.map(|(pattern, part)| match self.work.matches(pattern, name)? {
                        true => self.accepts(node.part(part), member),
                        false => Some(true),
                    }),
                )
            })),
            "additionalProperties" => self.rest(node, node.part(said), members),
            "unevaluatedProperties" if !node.is_unevaluated() => {
                match node.get("additionalProperties") {
                    Some(_) => Some(true),
                    None => self.rest(node, node.part(said), members),
                }
            }
            "propertyNames" => all(members
                .keys()
                .map(|name| self.accepts(node.part(said), &Value::from(name.as_str())))),
            "dependentSchemas" => {
                all(said
                    .as_object()?
                    .iter()
                    .map(|(name, part)| match members.contains_key(name) {
                        true => self.accepts(node.part(part), &Value::Object(members.clone())),
                        false => Some(true),
                    }))
            }
            "unevaluatedProperties" | "dependencies" => None,
            _ => known(name),
        }
    }

    fn rest(self, node: Node<'_>, part: Node<'_>, members: &Map<String, Value>) -> Option<bool> {
        all(members
            .iter()
            .map(|(name, member)| match is_named(self.work, node, name)? {
                true => Some(true),
                false => self.accepts(part, member),
            }))
    }
}

/// Answers whether `properties` or `patternProperties` of a schema speak of a member.
pub fn is_named(work: &Work, node: Node<'_>, name: &str) -> Option<bool> {
    let is_listed = |map: &Map<String, Value>| map.contains_key(name);
    if node.map("properties").is_some_and(is_listed) {
        return Some(true);
    }
    let patterns = node.map("patternProperties").into_iter();
    let names = patterns.flat_map(|patterns| patterns.keys());
    not(all(names.map(|pattern| not(work.matches(pattern, name)))))
}

fn of_number(name: &str, said: &Value, number: Quantity) -> Option<bool> {
    let order = || Quantity::of_value(said).map(|said| number.compare(said));
    match name {
        "minimum" => Some(order()? != Ordering::Less),
        "maximum" => Some(order()? != Ordering::Greater),
        "exclusiveMinimum" => Some(order()? == Ordering::Greater),
        "exclusiveMaximum" => Some(order()? == Ordering::Less),
        // Numbers of many digits are left undecided, where no multiple was seen.
        "multipleOf" => {
            let divisor = Quantity::of_value(said)?;
            (number.is_short() && divisor.is_short()).then(|| number.is_multiple_of(divisor))
        }
        _ => known(name),
    }
}

/// Keywords that say nothing about values of this type accept; one might.
fn known(name: &str) -> Option<bool> {
    (name != "$dynamicRef").then_some(true)
}

pub fn has_type(said: &Value, value: &Value) -> bool {
    match said {
        Value::Array(names) => names.iter().any(|name| has_type(name, value)),
        Value::String(name) => match value {
            Value::Null => name == "null",
            Value::Bool(_) => name == "boolean",
            Value::Number(number) => {
                name == "number" || (name == "integer" && Quantity::of(number).is_whole())
            }
            Value::String(_) => name == "string",
            Value::Array(_) => name == "array",
            Value::Object(_) => name == "object",
        },
        _ => false,
    }
}

fn has_all(wanted: &Value, members: &Map<String, Value>) -> bool {
    let names = wanted.as_array().into_iter().flatten();
    let mut names = names.filter_map(Value::as_str);
    names.all(|name| members.contains_key(name))
}

fn is_unique(items: &[Value]) -> bool {
    let mut seen = HashSet::new();
    items.iter().all(|item| seen.insert(key(item)))
}

/// Yes if all say yes, no if one says no; nothing in between.
fn all(answers: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut is_known = true;
    for answer in answers {
        match answer {
            Some(true) => {}
            Some(false) => return Some(false),
            None => is_known = false,
        }
    }
    is_known.then_some(true)
}

fn not(answer: Option<bool>) -> Option<bool> {
    answer.map(|answer| !answer)
}
