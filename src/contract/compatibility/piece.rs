//! The values a schema accepts, taken apart into pieces that are easy to judge.
//!
//! A piece holds values of one type for which every one of its schemas speaks; together the
//! pieces hold at least everything that was to be taken apart. A *loose* piece may hold more, and
//! so may one that meets a *rival*, a schema its values must not fit: where all of it is accepted
//! that is certain, where it is not that is no proof.

use std::{
    borrow::Cow,
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use serde_json::{Value, json};

use super::{
    instance,
    names::Names,
    node::{Node, is_asserted},
    quantity::{Quantity, count},
    work::Work,
};

/// Branches of alternatives told apart at one place.
const MOST_BRANCHES: usize = 64;
/// Schemas within schemas that are searched for a contradiction.
const DEEPEST_SEARCH: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Null,
    Boolean,
    Number,
    Text,
    Array,
    Object,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Null,
        Self::Boolean,
        Self::Number,
        Self::Text,
        Self::Array,
        Self::Object,
    ];

    pub fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Boolean,
            Value::Number(_) => Self::Number,
            Value::String(_) => Self::Text,
            Value::Array(_) => Self::Array,
            Value::Object(_) => Self::Object,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Number => "number",
            Self::Text => "string",
            Self::Array => "array",
            Self::Object => "object",
        }
    }
}

#[derive(Clone)]
pub struct Piece<'a> {
    pub nodes: Vec<Node<'a>>,
    pub kind: Kind,
    /// Numbers without a fraction only.
    pub is_whole: bool,
    /// The one value it is about, if it is.
    pub value: Option<Cow<'a, Value>>,
    /// Members declared at this place, in whatever branch.
    pub names: Rc<Names<'a>>,
    pub is_loose: bool,
    rivals: Vec<Node<'a>>,
    /// Members it must have beyond those its schemas require.
    pub required: Vec<&'a str>,
}

/// Schemas that speak together, with the alternatives still to be chosen from.
struct Branch<'a> {
    nodes: Vec<Node<'a>>,
    open: Vec<Node<'a>>,
    is_loose: bool,
    rivals: Vec<Node<'a>>,
}

/// Takes apart the values for which all schemas speak.
pub fn pieces<'a>(work: &Work, nodes: &[Node<'a>], names: &Rc<Names<'a>>) -> Vec<Piece<'a>> {
    pieces_of(work, Branch::of(nodes), names, &[], 0)
}

/// Narrows a piece down to what one more schema accepts as well.
pub fn narrowed<'a>(work: &Work, piece: &Piece<'a>, by: Node<'a>) -> Vec<Piece<'a>> {
    if let Some(value) = &piece.value {
        let accepts = instance::accepts(work, by, value);
        return match accepts {
            Some(false) => Vec::new(),
            _ => vec![piece.clone()],
        };
    }
    let branch = Branch {
        nodes: piece.nodes.clone(),
        open: vec![by.guest()],
        is_loose: piece.is_loose,
        rivals: piece.rivals.clone(),
    };
    let mut pieces = pieces_of(work, branch, &piece.names, &piece.required, 0);
    pieces.retain(|found| found.kind == piece.kind);
    pieces
}

/// Answers whether no value fits all schemas; a no means "perhaps not".
pub fn is_empty(work: &Work, nodes: &[Node<'_>]) -> bool {
    is_empty_at(work, nodes, 0)
}

fn is_empty_at(work: &Work, nodes: &[Node<'_>], depth: usize) -> bool {
    if nodes.is_empty() || depth > DEEPEST_SEARCH {
        return false;
    }
    pieces_of(work, Branch::of(nodes), &Rc::default(), &[], depth).is_empty()
}

fn pieces_of<'a>(
    work: &Work,
    start: Branch<'a>,
    names: &Rc<Names<'a>>,
    required: &[&'a str],
    depth: usize,
) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    for branch in branches(work, start) {
        let listed = branch
            .nodes
            .iter()
            .find(|node| node.get("const").is_some() || node.get("enum").is_some());
        let piece = |kind| Piece {
            nodes: branch.nodes.clone(),
            kind,
            is_whole: false,
            value: None,
            names: Rc::clone(names),
            is_loose: branch.is_loose,
            rivals: branch.rivals.clone(),
            required: required.to_vec(),
        };
        if let Some(listed) = listed {
            let one = listed.get("const").into_iter();
            for value in one.chain(listed.list("enum")) {
                pieces.extend(piece(Kind::of(value)).with_value(work, Cow::Borrowed(value)));
            }
            continue;
        }
        for kind in Kind::ALL {
            let mut piece = piece(kind);
            if !piece.has_kind() || piece.is_rivals_type() {
                continue;
            }
            match kind {
                Kind::Null => pieces.extend(piece.with_value(work, Cow::Owned(Value::Null))),
                Kind::Boolean => {
                    for value in [false, true] {
                        let value = Cow::Owned(Value::Bool(value));
                        pieces.extend(piece.clone().with_value(work, value));
                    }
                }
                _ => {
                    piece.is_whole = piece.is_integer();
                    if !piece.is_contradictory(work, depth) {
                        pieces.push(piece);
                    }
                }
            }
        }
    }
    pieces
}

/// Multiplies the alternatives out; where there are too many, they are left out, which is loose.
fn branches<'a>(work: &Work, start: Branch<'a>) -> Vec<Branch<'a>> {
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

impl<'a> Branch<'a> {
    fn of(nodes: &[Node<'a>]) -> Self {
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

impl<'a> Piece<'a> {
    /// Gives the piece of one value, unless a schema refuses it.
    fn with_value(mut self, work: &Work, value: Cow<'a, Value>) -> Option<Self> {
        let mut is_loose = false;
        for node in &self.nodes {
            match instance::accepts(work, *node, &value) {
                Some(true) => {}
                Some(false) => return None,
                None => is_loose = true,
            }
        }
        if let Value::Object(members) = value.as_ref()
            && !self.required.iter().all(|name| members.contains_key(*name))
        {
            return None;
        }
        self.is_loose = is_loose;
        self.rivals.clear();
        self.value = Some(value);
        Some(self)
    }

    /// Answers whether it may hold values that do not fit its schemas.
    pub fn may_hold_more(&self, work: &Work) -> bool {
        let mut rivals = self.rivals.iter();
        self.is_loose || rivals.any(|rival| !narrowed(work, self, *rival).is_empty())
    }

    pub fn values_of(&self, keyword: &'a str) -> impl Iterator<Item = &'a Value> {
        self.nodes.iter().filter_map(move |node| node.get(keyword))
    }

    fn has_kind(&self) -> bool {
        let mut said = self.values_of("type");
        said.all(|said| {
            names_type(said, self.kind.name())
                || (self.kind == Kind::Number && names_type(said, "integer"))
        })
    }

    /// Answers whether a rival is about nothing but types and has this one.
    fn is_rivals_type(&self) -> bool {
        self.rivals.iter().any(|rival| {
            let names = rival
                .members()
                .into_iter()
                .flat_map(|members| members.keys());
            let mut asserted = names.filter(|name| is_asserted(name));
            let has_kind = |said: &Value| names_type(said, self.kind.name());
            asserted.all(|name| name == "type") && rival.get("type").is_some_and(has_kind)
        })
    }

    fn is_integer(&self) -> bool {
        let mut said = self.values_of("type");
        self.kind == Kind::Number && said.any(|said| !names_type(said, "number"))
    }

    /// Gives the largest of the lower limits.
    pub fn most(&self, keyword: &'a str) -> u64 {
        self.values_of(keyword)
            .filter_map(count)
            .max()
            .unwrap_or_default()
    }

    /// Gives the smallest of the upper limits.
    pub fn least(&self, keyword: &'a str) -> Option<u64> {
        self.values_of(keyword).filter_map(count).min()
    }

    /// Gives the strictest lower bound, and whether the bound itself is excluded.
    pub fn lower(&self) -> Option<(Quantity, bool)> {
        self.strictest("minimum", "exclusiveMinimum", Ordering::Greater)
    }

    /// Gives the strictest upper bound, and whether the bound itself is excluded.
    pub fn upper(&self) -> Option<(Quantity, bool)> {
        self.strictest("maximum", "exclusiveMaximum", Ordering::Less)
    }

    fn strictest(
        &self,
        bound: &'a str,
        exclusive: &'a str,
        stricter: Ordering,
    ) -> Option<(Quantity, bool)> {
        let quantities = |name, is_exclusive| {
            let values = self.values_of(name).filter_map(Quantity::of_value);
            values.map(move |value| (value, is_exclusive))
        };
        let bounds = quantities(bound, false).chain(quantities(exclusive, true));
        bounds.reduce(|best, next| match next.0.compare(best.0) {
            Ordering::Equal => (best.0, best.1 || next.1),
            order if order == stricter => next,
            _ => best,
        })
    }

    /// Gives first and last of its whole numbers, if it has only those and both are bounded.
    pub fn whole_range(&self) -> Option<(i128, i128)> {
        let (lower, upper) = (self.lower()?, self.upper()?);
        let first = lower.0.ceiling(lower.1)?;
        let last = upper.0.floor(upper.1)?;
        self.is_whole.then_some((first, last))
    }

    /// Gives the pieces of each of its values, if these are few whole numbers.
    pub fn few_values(&self, work: &Work) -> Option<Vec<Self>> {
        const FEW: i128 = 64;
        let (first, last) = self.whole_range()?;
        if self.value.is_some() || last - first >= FEW {
            return None;
        }
        let values = (first..=last).map(|whole| i64::try_from(whole).map(Value::from));
        let values: Vec<Value> = values.collect::<Result<_, _>>().ok()?;
        let pieces = values.into_iter();
        Some(
            pieces
                .filter_map(|value| self.clone().with_value(work, Cow::Owned(value)))
                .collect(),
        )
    }

    /// Gives the names of members that are always there, sorted.
    pub fn all_required(&self, work: &Work) -> Vec<&'a str> {
        if work.is_spent() {
            return Vec::new();
        }
        let lists = self.values_of("required").filter_map(Value::as_array);
        let named = lists.flatten().filter_map(Value::as_str);
        let mut open: Vec<&str> = named.chain(self.required.iter().copied()).collect();
        let implied = self.implied(work);
        let mut names = BTreeSet::new();
        while let Some(name) = open.pop() {
            if names.insert(name) && work.step() {
                // One name may imply the next.
                open.extend(implied.get(name).into_iter().flatten());
            }
        }
        names.into_iter().collect()
    }

    /// Gives the names that `dependentRequired` wants beside a name.
    fn implied(&self, work: &Work) -> BTreeMap<&'a str, Vec<&'a str>> {
        let mut implied: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let maps = self.values_of("dependentRequired");
        for (name, others) in maps.filter_map(Value::as_object).flatten() {
            let others = others.as_array().into_iter().flatten();
            let wanted = implied.entry(name).or_default();
            wanted.extend(others.filter_map(Value::as_str));
        }
        work.spend(implied.len());
        implied
    }

    /// Gives the piece of those values that have a member.
    pub fn with_member(&self, name: &'a str) -> Self {
        let mut piece = self.clone();
        piece.required.push(name);
        piece
    }

    /// Gives the schemas of one member.
    pub fn member(&self, work: &Work, name: &str) -> Vec<Node<'a>> {
        let nodes = self.nodes.iter();
        nodes
            .flat_map(|node| member_of(work, *node, name, Unknown::IsLeftOut))
            .collect()
    }

    /// Answers whether a member of this name cannot occur.
    pub fn excludes(&self, work: &Work, name: &str) -> bool {
        self.excludes_at(work, name, 0)
    }

    fn excludes_at(&self, work: &Work, name: &str, depth: usize) -> bool {
        let text = Value::from(name);
        let names = self
            .nodes
            .iter()
            .filter_map(|node| node.child("propertyNames"));
        let mut names = names.map(|part| instance::accepts(work, part, &text));
        names.any(|accepts| accepts == Some(false))
            || is_empty_at(work, &self.member(work, name), depth + 1)
    }

    /// Gives the schemas of members that no schema names.
    pub fn unnamed(&self) -> Vec<Node<'a>> {
        let rest = self.nodes.iter().filter_map(|node| node.additional());
        rest.collect()
    }

    /// Gives the schemas of the element at an index.
    pub fn element(&self, index: usize) -> Vec<Node<'a>> {
        let parts = self.nodes.iter().filter_map(|node| {
            let fixed = node.list("prefixItems").get(index);
            fixed.map(|part| node.part(part)).or_else(|| node.items())
        });
        parts.collect()
    }

    /// Gives the length of the longest `prefixItems`.
    pub fn fixed_elements(&self) -> usize {
        let lists = self.nodes.iter().map(|node| node.list("prefixItems").len());
        lists.max().unwrap_or_default()
    }

    /// Gives the largest number of elements there can be.
    pub fn longest(&self, work: &Work) -> Option<u64> {
        self.longest_at(work, 0)
    }

    fn longest_at(&self, work: &Work, depth: usize) -> Option<u64> {
        let said = self.least("maxItems");
        let fixed = self.fixed_elements();
        // Where no element fits, the list ends.
        let ends = (0..=fixed)
            .find(|index| is_empty_at(work, &self.element(*index), depth + 1))
            .and_then(|index| u64::try_from(index).ok());
        said.into_iter().chain(ends).min()
    }

    fn is_contradictory(&self, work: &Work, depth: usize) -> bool {
        let more = |least: u64, most: Option<u64>| most.is_some_and(|most| least > most);
        match self.kind {
            Kind::Number => self.has_no_number(),
            Kind::Text => more(self.most("minLength"), self.least("maxLength")),
            Kind::Array => more(self.most("minItems"), self.longest_at(work, depth)),
            Kind::Object => {
                let required = self.all_required(work);
                let least = self.most("minProperties").max(required.len() as u64);
                more(least, self.least("maxProperties"))
                    || required
                        .iter()
                        .any(|name| self.excludes_at(work, name, depth))
            }
            Kind::Null | Kind::Boolean => false,
        }
    }

    fn has_no_number(&self) -> bool {
        if let Some((first, last)) = self.whole_range() {
            return first > last;
        }
        let (Some(lower), Some(upper)) = (self.lower(), self.upper()) else {
            return false;
        };
        match lower.0.compare(upper.0) {
            Ordering::Less => false,
            Ordering::Equal => lower.1 || upper.1,
            Ordering::Greater => true,
        }
    }
}

/// What becomes of schemas of which it is not known whether they speak of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    Counts,
    IsLeftOut,
}

/// Gives the schemas that one schema has for a member.
pub fn member_of<'a>(work: &Work, node: Node<'a>, name: &str, unknown: Unknown) -> Vec<Node<'a>> {
    let listed = node.map("properties").and_then(|map| map.get(name));
    let mut found: Vec<_> = listed.into_iter().map(|part| node.part(part)).collect();
    let mut is_known = true;
    for (pattern, part) in node.map("patternProperties").into_iter().flatten() {
        let matches = work.matches(pattern, name);
        is_known &= matches.is_some();
        if matches.unwrap_or(unknown == Unknown::Counts) {
            found.push(node.part(part));
        }
    }
    let is_named = !found.is_empty();
    if (!is_named && is_known) || (!is_known && unknown == Unknown::Counts) {
        found.extend(node.additional());
    }
    found
}

fn names_type(said: &Value, name: &str) -> bool {
    match said {
        Value::Array(names) => names.contains(&json!(name)),
        said => said == name,
    }
}
