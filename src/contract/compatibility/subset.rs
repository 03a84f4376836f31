//! Whether every value of one side is accepted by a schema of the other.
//!
//! `sub` is a list of schemas that speak together for the values in question; `sup` is the
//! schema that has to accept them. Each keyword of `sup` is asked by itself, so that an answer
//! names the keyword. No issue means yes; yes is said only where it holds for certain.
//!
//! Schemas may refer to themselves: a question that comes back one value deeper is answered yes,
//! since it then holds if everything else on the way does.

use std::{collections::HashSet, rc::Rc};

use serde_json::Value;

use super::{
    instance,
    names::Names,
    node::{Node, is_asserted, is_trivial},
    piece::{self, Kind, Piece},
    report::{Side, Verdict},
    same::{is_same, is_same_keyword},
    wording,
    work::{DEEPEST, Work},
};

/// One reason why values may not be accepted.
#[derive(Clone)]
pub struct Issue<'a> {
    pub verdict: Verdict,
    /// The schema that draws the line, and the way from it to the place.
    pub at: Node<'a>,
    pub steps: Vec<String>,
    pub message: String,
}

/// What is asked: piece and schema by address.
#[derive(PartialEq, Eq, Hash)]
struct Question {
    nodes: Vec<(usize, bool)>,
    beside: Vec<usize>,
    kind: Kind,
    value: Option<String>,
    required: Vec<String>,
    sup: usize,
}

/// A question under way.
struct Open {
    question: Question,
    /// How deep in the value it was asked.
    depth: usize,
}

/// The comparison of one side of two contracts.
pub struct Subset {
    pub work: Work,
    pub side: Side,
    depth: usize,
    nested: usize,
    open: Vec<Open>,
    /// The outermost open question whose answer was assumed since the last look.
    assumed: usize,
    /// Questions answered yes without assumptions.
    settled: HashSet<Question>,
}

impl Subset {
    pub fn new(side: Side) -> Self {
        Self {
            work: Work::new(),
            side,
            depth: 0,
            nested: 0,
            open: Vec::new(),
            assumed: usize::MAX,
            settled: HashSet::new(),
        }
    }

    /// Judges all values for which `sub` speaks, with the members it declares.
    pub fn subset<'a>(&mut self, sub: &[Node<'a>], sup: Node<'a>) -> Vec<Issue<'a>> {
        self.subset_beside(sub, &[], sup)
    }

    /// Judges the same where other schemas, which speak for some values only, declare members too.
    fn subset_beside<'a>(
        &mut self,
        sub: &[Node<'a>],
        beside: &[Node<'a>],
        sup: Node<'a>,
    ) -> Vec<Issue<'a>> {
        if self.work.is_spent() {
            // Said once, for the whole comparison.
            return Vec::new();
        }
        if is_trivial(sup.schema) || sub.iter().any(|node| is_same(&self.work, *node, sup)) {
            return Vec::new();
        }
        let names = Rc::new(Names::of(&self.work, sub, beside));
        let mut issues = Vec::new();
        for piece in piece::pieces(&self.work, sub, &names) {
            issues.extend(self.check(&piece, sup));
        }
        issues
    }

    /// Judges the same one step deeper in the value.
    pub fn below<'a>(&mut self, sub: &[Node<'a>], sup: Node<'a>) -> Vec<Issue<'a>> {
        self.below_beside(sub, &[], sup)
    }

    pub fn below_beside<'a>(
        &mut self,
        sub: &[Node<'a>],
        beside: &[Node<'a>],
        sup: Node<'a>,
    ) -> Vec<Issue<'a>> {
        self.depth += 1;
        let issues = self.subset_beside(sub, beside, sup);
        self.depth -= 1;
        issues
    }

    /// Judges one piece; what is loose proves nothing.
    pub fn check<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        if !self.work.step() || self.nested > DEEPEST {
            return vec![self.undecided(sup, &[], "it is too large to compare")];
        }
        let question = question(piece, sup);
        if self.settled.contains(&question) {
            return Vec::new();
        }
        if let Some(place) = self.open.iter().position(|open| open.question == question) {
            if self.open[place].depth < self.depth {
                self.assumed = self.assumed.min(place);
                return Vec::new();
            }
            return vec![self.undecided(sup, &[], "it refers to itself")];
        }
        let place = self.open.len();
        self.open.push(Open {
            question,
            depth: self.depth,
        });
        self.nested += 1;
        let outer = std::mem::replace(&mut self.assumed, usize::MAX);
        let mut issues = self.keywords(piece, sup);
        self.nested -= 1;
        if !issues.is_empty() && piece.may_hold_more(&self.work) {
            issues.iter_mut().for_each(doubt);
        }
        if let Some(open) = self.open.pop()
            && issues.is_empty()
            && self.assumed >= place
        {
            self.settled.insert(open.question);
        }
        // An assumption about this very question is settled with it.
        let kept = if self.assumed < place {
            self.assumed
        } else {
            usize::MAX
        };
        self.assumed = outer.min(kept);
        issues
    }

    fn keywords<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        let members = match sup.schema {
            Value::Object(members) => members,
            Value::Bool(true) => return Vec::new(),
            _ => return vec![self.breaking(sup, &[], wording::nothing(self.side))],
        };
        if piece.value.is_some() {
            return self.value(piece, sup);
        }
        let mut nodes = piece.nodes.iter();
        if nodes.any(|node| is_same(&self.work, *node, sup)) {
            return Vec::new();
        }
        if let Some(issue) = self.wrong_type(piece, sup) {
            return vec![issue];
        }
        let mut issues = Vec::new();
        for name in members.keys().filter(|name| is_asserted(name)) {
            issues.extend(self.keyword(piece, sup, name));
        }
        issues.extend(match piece.kind {
            Kind::Number => self.number(piece, sup),
            Kind::Text => self.text(piece, sup),
            Kind::Array => self.array(piece, sup),
            Kind::Object => self.object(piece, sup),
            Kind::Null | Kind::Boolean => Vec::new(),
        });
        issues
    }

    /// Judges keywords that speak of values of every type.
    fn keyword<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>, name: &str) -> Vec<Issue<'a>> {
        match name {
            "$ref" => match sup.target() {
                Some(target) => self.check(piece, target),
                None => vec![self.undecided(sup, &["$ref"], "the reference is not followed")],
            },
            "allOf" => {
                let parts = sup.children("allOf");
                parts.flat_map(|part| self.check(piece, part)).collect()
            }
            "anyOf" => self.any_of(piece, sup),
            "oneOf" => self.one_of(piece, sup),
            "not" => self.not(piece, sup),
            "if" => self.conditional(piece, sup),
            "const" | "enum" => self.listed(piece, sup, name),
            "$dynamicRef" => vec![self.undecided(sup, &[name], "it is resolved while checking")],
            "unevaluatedItems" | "unevaluatedProperties" if sup.is_unevaluated() => {
                vec![self.undecided(
                    sup,
                    &[name],
                    "what is left over depends on the whole schema",
                )]
            }
            "contentEncoding" | "contentMediaType" | "contentSchema" | "dependencies" => {
                let mut nodes = piece.nodes.iter();
                let is_kept = nodes.any(|node| is_same_keyword(&self.work, name, *node, sup));
                let applies = name == "dependencies" || piece.kind == Kind::Text;
                match is_kept || !applies {
                    true => Vec::new(),
                    false => vec![self.undecided(sup, &[name], "it changed and is not checked")],
                }
            }
            _ => Vec::new(),
        }
    }

    fn wrong_type<'a>(&self, piece: &Piece<'a>, sup: Node<'a>) -> Option<Issue<'a>> {
        let said = sup.get("type")?;
        let sample = |text: &str| -> Value { serde_json::from_str(text).unwrap_or_default() };
        let (sample, name) = match (piece.kind, piece.is_whole) {
            (Kind::Null, _) => (Value::Null, "null"),
            (Kind::Boolean, _) => (sample("true"), "a boolean"),
            (Kind::Number, true) => (sample("1"), "an integer"),
            (Kind::Number, false) => (sample("1.5"), "a number with a fraction"),
            (Kind::Text, _) => (sample("\"\""), "a string"),
            (Kind::Array, _) => (sample("[]"), "an array"),
            (Kind::Object, _) => (sample("{}"), "an object"),
        };
        if instance::has_type(said, &sample) {
            return None;
        }
        // Numbers that are multiples of a whole number have no fraction either.
        if piece.is_multiple_of_one() && instance::has_type(said, &Value::from(1)) {
            return None;
        }
        let name = match said.as_str() {
            Some("number" | "integer") | None => name,
            Some(_) if piece.kind == Kind::Number => "a number",
            Some(_) => name,
        };
        Some(self.breaking(sup, &["type"], wording::lost(self.side, name)))
    }

    /// Judges `const` and `enum` where the other side has no such list.
    fn listed<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>, name: &str) -> Vec<Issue<'a>> {
        if let Some(few) = piece.few_values(&self.work) {
            return few.iter().flat_map(|few| self.value(few, sup)).collect();
        }
        let said = sup.get(name).unwrap_or(&Value::Null);
        let message = wording::changed(self.side, None, &wording::quote(said));
        vec![self.breaking(sup, &[name], message)]
    }

    /// Judges one value, and finds the keyword that refuses it.
    fn value<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        let Some(value) = &piece.value else {
            return Vec::new();
        };
        match instance::accepts(&self.work, sup, value) {
            Some(true) => return Vec::new(),
            Some(false) => {}
            None => {
                let message = format!("whether it accepts {} is not known", wording::quote(value));
                return vec![self.undecided(sup, &[], &message)];
            }
        }
        let names = sup.members().into_iter().flat_map(|members| members.keys());
        let mut names: Vec<&String> = names.filter(|name| is_asserted(name)).collect();
        // The plainest reason first.
        names.sort_by_key(|name| !matches!(name.as_str(), "type" | "enum" | "const"));
        let work = &self.work;
        let refusal = names
            .into_iter()
            .find(|name| instance::keyword_accepts(work, sup, name, value) == Some(false));
        let issues: Vec<Issue<'a>> = match refusal.map(String::as_str) {
            Some("$ref") => {
                let target = sup.target().into_iter();
                target.flat_map(|part| self.check(piece, part)).collect()
            }
            Some("allOf") => {
                let parts = sup.children("allOf");
                parts.flat_map(|part| self.check(piece, part)).collect()
            }
            Some("type") => self.wrong_type(piece, sup).into_iter().collect(),
            _ => Vec::new(),
        };
        if !issues.is_empty() {
            return issues;
        }
        let steps: Vec<&str> = refusal.map(String::as_str).into_iter().collect();
        let message = wording::lost(self.side, &wording::quote(value));
        vec![self.breaking(sup, &steps, message)]
    }

    pub fn breaking<'a>(&self, at: Node<'a>, steps: &[&str], message: String) -> Issue<'a> {
        self.issue(Verdict::Breaking, at, steps, message)
    }

    pub fn undecided<'a>(&self, at: Node<'a>, steps: &[&str], why: &str) -> Issue<'a> {
        let message = format!("cannot be decided: {why}");
        self.issue(Verdict::Undecided, at, steps, message)
    }

    pub fn issue<'a>(
        &self,
        verdict: Verdict,
        at: Node<'a>,
        steps: &[&str],
        message: String,
    ) -> Issue<'a> {
        Issue {
            verdict,
            at,
            steps: steps.iter().map(|step| (*step).to_owned()).collect(),
            message,
        }
    }
}

/// Takes back what a proof would have needed.
pub fn doubt(issue: &mut Issue<'_>) {
    if issue.verdict == Verdict::Breaking {
        issue.verdict = Verdict::Undecided;
        issue.message = format!("perhaps breaking: {}", issue.message);
    }
}

fn question(piece: &Piece<'_>, sup: Node<'_>) -> Question {
    let address = |node: &Node<'_>| (node.address() as usize, node.is_guest);
    let mut nodes: Vec<_> = piece.nodes.iter().map(address).collect();
    nodes.sort_unstable();
    Question {
        nodes,
        beside: piece.names.beside.clone(),
        kind: piece.kind,
        value: piece.value.as_ref().map(|value| value.to_string()),
        required: piece
            .required
            .iter()
            .map(|name| (*name).to_owned())
            .collect(),
        sup: sup.address() as usize,
    }
}
