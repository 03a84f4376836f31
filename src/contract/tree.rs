//! A parsed body that the validator reads in place.
//!
//! The only module that names `sonic_rs`. Callers hand in text that the guard has already
//! scanned (UTF-8, bounded depth), so that the recursion here and in the parser is bounded.
//!
//! - nothing is copied out of the tree except where `uniqueItems` compares
//! - an error never carries the value it is about
//! - a `Meter` bounds the work of a check and of explaining a failure, whatever the schema

use std::{
    borrow::Cow,
    collections::HashSet,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use jsonschema::{
    JsonType, ValidationError,
    json::{self, Json, JsonNumber, NodeIdentity},
};
use serde_json::Value as Plain;
use sonic_rs::{JsonContainerTrait, JsonNumberTrait, JsonValueTrait, Value};

/// One JSON document in one arena.
pub struct Tree(Value);

impl Tree {
    /// Parses exactly one document, or tells about where the text stopped being JSON.
    pub fn parse(text: &str) -> Result<Self, usize> {
        sonic_rs::from_str(text)
            .map(Self)
            .map_err(|error| error.offset())
    }

    /// Gives the root to a validator that may spend only what the meter holds.
    pub fn metered<'a>(&'a self, meter: &'a Meter) -> Node<'a> {
        Node {
            value: &self.0,
            meter: Some(meter),
        }
    }

    /// Finds a member whose name occurs twice in its object: the names on the way, root first.
    pub fn duplicate(&self) -> Option<Vec<Cow<'_, str>>> {
        let mut path = duplicate_below(&self.0, &mut HashSet::new())?;
        path.reverse();
        Some(path)
    }

    #[cfg(test)]
    pub fn to_plain(&self) -> Plain {
        plain(&self.0)
    }
}

/// Finds the first duplicate under `value`; the path comes innermost name first.
fn duplicate_below<'a>(value: &'a Value, seen: &mut HashSet<&'a str>) -> Option<Vec<Cow<'a, str>>> {
    if let Some(items) = value.as_array() {
        for (index, item) in items.iter().enumerate() {
            if let Some(mut path) = duplicate_below(item, seen) {
                path.push(index.to_string().into());
                return Some(path);
            }
        }
    } else if let Some(members) = value.as_object() {
        if let Some(name) = duplicate_name(members, seen) {
            return Some(vec![name.into()]);
        }
        for (name, member) in members {
            if let Some(mut path) = duplicate_below(member, seen) {
                path.push(name.into());
                return Some(path);
            }
        }
    }
    None
}

fn duplicate_name<'a>(
    members: &'a sonic_rs::Object,
    seen: &mut HashSet<&'a str>,
) -> Option<&'a str> {
    seen.clear();
    let mut names = members.iter().map(|(name, _)| name);
    names.find(|name| !seen.insert(name))
}

/// What checking one body, or explaining its failure, may cost.
///
/// A step is about ten nanoseconds of work. When they have run out, nodes look like empty leaves
/// without siblings, so that the validator comes back at once, and errors made from then on are
/// marked. A verdict reached with a spent meter says nothing.
pub struct Meter {
    steps: AtomicU32,
    errors: AtomicU32,
    /// Steps for reading `TEXT` bytes of a string.
    per_text: u32,
}

/// How many bytes of a string are read for the price of one step, where no pattern makes it dearer.
pub const TEXT: usize = 32;

impl Meter {
    pub fn new(steps: u32, errors: u32, per_text: u32) -> Self {
        Self {
            steps: steps.into(),
            errors: errors.into(),
            per_text,
        }
    }

    /// Takes so many; answers whether there were as many, and leaves nothing if not. One thread
    /// only, hence no read-modify-write.
    fn spend(counter: &AtomicU32, many: u32) -> bool {
        let left = counter.load(Relaxed);
        counter.store(left.saturating_sub(many), Relaxed);
        left > 0 && left >= many
    }

    /// Pays for this many looks at once.
    fn pay(&self, steps: usize) -> bool {
        Self::spend(&self.steps, u32::try_from(steps).unwrap_or(u32::MAX))
    }

    /// Pays for reading a string: by a keyword or, which may cost much more, by a pattern.
    fn pay_for_text(&self, text: &str) -> bool {
        text.len() < TEXT || self.pay((text.len() / TEXT).saturating_mul(self.per_text as usize))
    }

    pub fn is_spent(&self) -> bool {
        self.steps.load(Relaxed) == 0 || self.errors.load(Relaxed) == 0
    }

    /// Leaves the errors that can be believed: those made while the meter ran and, if it was
    /// errors that ran out, the one that was then being made. That one is of alternatives none
    /// of which fits, as was known before their own errors were gathered.
    pub fn believable<'a>(
        &self,
        errors: impl Iterator<Item = ValidationError<'a>>,
    ) -> impl Iterator<Item = ValidationError<'a>> {
        let mut marked_left = usize::from(self.steps.load(Relaxed) > 0);
        errors.take_while(move |error| {
            if **error.instance() != SPENT {
                return true;
            }
            let is_left = marked_left > 0;
            marked_left = marked_left.saturating_sub(1);
            is_left
        })
    }
}

/// The instance of an error made after its meter ran out.
const SPENT: Plain = Plain::Bool(false);

/// A place in a tree.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    value: &'a Value,
    meter: Option<&'a Meter>,
}

impl<'a> Node<'a> {
    /// Counts a look at this node; a node nobody pays for any more hides its content.
    fn look(&self) -> Option<&'a Value> {
        match self.meter {
            None => Some(self.value),
            Some(meter) => (!meter.is_spent() && meter.pay(1)).then_some(self.value),
        }
    }

    /// Counts a look at text, which costs by its length.
    fn look_at_text(&self) -> Option<&'a str> {
        let text = self.look()?.as_str()?;
        let is_paid = self.meter.is_none_or(|meter| meter.pay_for_text(text));
        is_paid.then_some(text)
    }

    fn may_pay(&self, steps: usize) -> bool {
        self.meter.is_none_or(|meter| meter.pay(steps))
    }
}

impl<'a> json::Node<'a, Tree> for Node<'a> {
    type Object = Members<'a>;
    type Array = Elements<'a>;
    type Number = Number;

    fn as_object(&self) -> Option<Members<'a>> {
        let members = self.look()?.as_object()?;
        Some(Members {
            members,
            meter: self.meter,
        })
    }

    fn as_array(&self) -> Option<Elements<'a>> {
        let elements = self.look()?.as_array()?.as_slice();
        Some(Elements {
            elements,
            meter: self.meter,
        })
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        self.look_at_text().map(Cow::Borrowed)
    }

    fn as_number(&self) -> Option<Number> {
        self.look()?.as_number().map(Number)
    }

    fn as_boolean(&self) -> Option<bool> {
        self.look()?.as_bool()
    }

    fn is_null(&self) -> bool {
        self.look().is_none_or(|value| value.is_null())
    }

    fn is_number(&self) -> bool {
        self.look().is_some_and(|value| value.is_number())
    }

    fn json_type(&self) -> JsonType {
        match self.look().map(JsonValueTrait::get_type) {
            None | Some(sonic_rs::JsonType::Null) => JsonType::Null,
            Some(sonic_rs::JsonType::Boolean) => JsonType::Boolean,
            Some(sonic_rs::JsonType::Number) => JsonType::Number,
            Some(sonic_rs::JsonType::String) => JsonType::String,
            Some(sonic_rs::JsonType::Array) => JsonType::Array,
            Some(sonic_rs::JsonType::Object) => JsonType::Object,
        }
    }

    fn string_length_within(&self, min: u64, max: u64) -> Option<bool> {
        let text = self.look_at_text()?;
        let (bytes, fewest) = (text.len() as u64, (text.len() as u64).div_ceil(4));
        if bytes < min || fewest > max {
            return Some(false);
        }
        if min <= fewest && bytes <= max {
            return Some(true);
        }
        Some((min..=max).contains(&(text.chars().count() as u64)))
    }

    fn equals_value(&self, expected: &Plain) -> bool {
        self.look().is_some_and(|value| self.equal(value, expected))
    }

    /// Gives an error its instance: not the value, which must not leave, but a mark that says
    /// whether the meter still ran. `const`, `enum` and `uniqueItems` do not come here.
    fn to_value(&self) -> Cow<'a, Plain> {
        let spent = self
            .meter
            .is_some_and(|meter| meter.is_spent() || !Meter::spend(&meter.errors, 1));
        Cow::Owned(if spent { SPENT } else { Plain::Null })
    }

    fn identity(&self) -> Option<NodeIdentity> {
        Some(NodeIdentity::new(std::ptr::from_ref(self.value).addr()))
    }
}

impl Node<'_> {
    /// Compares without a copy. What is spent is bounded by the smaller of the two.
    fn equal(&self, value: &Value, expected: &Plain) -> bool {
        if !self.may_pay(1) {
            return false;
        }
        match expected {
            Plain::String(expected) => value.as_str() == Some(expected),
            Plain::Array(expected) => value.as_array().is_some_and(|items| {
                items.len() == expected.len()
                    && (items.iter().zip(expected)).all(|(item, other)| self.equal(item, other))
            }),
            Plain::Object(expected) => value.as_object().is_some_and(|members| {
                members.len() == expected.len() && self.may_pay(members.len() / 2) && {
                    let mut members = members.iter();
                    members.all(|(name, member)| {
                        let other = expected.get(name);
                        other.is_some_and(|other| self.equal(member, other))
                    })
                }
            }),
            _ if value.is_str() || value.is_array() || value.is_object() => false,
            _ => json::cmp::equal(&plain(value), expected),
        }
    }
}

/// The members of an object.
pub struct Members<'a> {
    members: &'a sonic_rs::Object,
    meter: Option<&'a Meter>,
}

impl<'a> json::Object<'a, Tree> for Members<'a> {
    type Node = Node<'a>;
    type MemberName = &'a str;
    type MembersIter = MembersIter<'a>;

    fn len(&self) -> usize {
        self.members.len()
    }

    fn get(&self, name: &String) -> Option<Node<'a>> {
        // A lookup walks the members.
        if self
            .meter
            .is_some_and(|meter| !meter.pay(1 + self.members.len() / 8))
        {
            return None;
        }
        let value = self.members.get(name)?;
        Some(Node {
            value,
            meter: self.meter,
        })
    }

    fn members(&self) -> MembersIter<'a> {
        MembersIter {
            members: self.members.iter(),
            meter: self.meter,
        }
    }
}

pub struct MembersIter<'a> {
    members: <&'a sonic_rs::Object as IntoIterator>::IntoIter,
    meter: Option<&'a Meter>,
}

impl<'a> Iterator for MembersIter<'a> {
    type Item = (&'a str, Node<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let meter = self.meter;
        let (name, value) = self.members.next()?;
        if meter.is_some_and(|meter| meter.is_spent() || !meter.pay(1) || !meter.pay_for_text(name))
        {
            return None;
        }
        Some((name, Node { value, meter }))
    }
}

/// The elements of an array.
pub struct Elements<'a> {
    elements: &'a [Value],
    meter: Option<&'a Meter>,
}

impl<'a> json::Array<'a, Tree> for Elements<'a> {
    type Node = Node<'a>;
    type ElementsIter = ElementsIter<'a>;

    fn len(&self) -> usize {
        self.elements.len()
    }

    fn elements(&self) -> ElementsIter<'a> {
        ElementsIter {
            elements: self.elements.iter(),
            meter: self.meter,
        }
    }

    fn is_unique(&self) -> bool {
        if let Some(meter) = self.meter
            && !self.elements.iter().all(|item| pay_for_copy(meter, item))
        {
            return true;
        }
        let values: Vec<_> = self.elements.iter().map(plain).collect();
        json::unique::is_unique(&values)
    }
}

pub struct ElementsIter<'a> {
    elements: std::slice::Iter<'a, Value>,
    meter: Option<&'a Meter>,
}

impl<'a> Iterator for ElementsIter<'a> {
    type Item = Node<'a>;

    fn next(&mut self) -> Option<Node<'a>> {
        let meter = self.meter;
        let value = self.elements.next()?;
        if meter.is_some_and(|meter| meter.is_spent() || !meter.pay(1)) {
            return None;
        }
        Some(Node { value, meter })
    }
}

/// A number as the parser read it.
pub struct Number(sonic_rs::Number);

impl JsonNumber for Number {
    fn as_u64(&self) -> Option<u64> {
        self.0.as_u64()
    }

    fn as_i64(&self) -> Option<i64> {
        self.0.as_i64()
    }

    fn as_f64(&self) -> Option<f64> {
        self.0.as_f64()
    }

    fn as_str(&self) -> Cow<'_, str> {
        Cow::Owned(plain_number(&self.0).to_string())
    }

    fn to_number(&self) -> Cow<'_, serde_json::Number> {
        Cow::Owned(plain_number(&self.0))
    }

    fn is_integer(&self) -> bool {
        !self.0.is_f64() || self.0.as_f64().is_some_and(|number| number.fract() == 0.0)
    }

    fn is_written_as_integer(&self) -> bool {
        !self.0.is_f64()
    }
}

impl Json for Tree {
    type Node<'a> = Node<'a>;
    type PreparedKey = String;
    type StringBuffer = ();
    // A lookup walks the members, so up to here one walk for all of them is cheaper.
    const KEYS_PER_LOOKUP: usize = 2;
    const ACYCLIC: bool = true;

    fn prepare_key(name: &str) -> String {
        name.to_owned()
    }

    fn with_string_node<T>(_: &mut (), text: &str, read: impl FnOnce(Node<'_>) -> T) -> T {
        read(Node {
            value: &Value::from(text),
            meter: None,
        })
    }
}

/// Pays for a copy of a subtree and for hashing it.
fn pay_for_copy(meter: &Meter, value: &Value) -> bool {
    const COPY: usize = 6;
    if !meter.pay(COPY) {
        return false;
    }
    if let Some(items) = value.as_array() {
        return items.iter().all(|item| pay_for_copy(meter, item));
    }
    if let Some(members) = value.as_object() {
        let mut members = members.iter();
        return members.all(|(name, member)| {
            meter.pay(COPY + name.len() / TEXT) && pay_for_copy(meter, member)
        });
    }
    let text = value.as_str().unwrap_or_default();
    meter.pay(text.len() / TEXT)
}

fn plain_number(number: &sonic_rs::Number) -> serde_json::Number {
    if let Some(number) = number.as_u64() {
        return number.into();
    }
    if let Some(number) = number.as_i64() {
        return number.into();
    }
    number
        .as_f64()
        .and_then(serde_json::Number::from_f64)
        .expect("the parser yields integers and finite floats only")
}

/// Copies a subtree, for the keywords that compare whole values.
fn plain(value: &Value) -> Plain {
    if let Some(items) = value.as_array() {
        return items.iter().map(plain).collect();
    }
    if let Some(members) = value.as_object() {
        let members = members.iter();
        return members
            .map(|(name, member)| (name.to_owned(), plain(member)))
            .collect();
    }
    if let Some(text) = value.as_str() {
        return text.into();
    }
    if let Some(number) = value.as_number() {
        return Plain::Number(plain_number(&number));
    }
    value.as_bool().map_or(Plain::Null, Plain::Bool)
}
