//! Alternatives, exclusions and conditions of the schema that has to accept.

use super::{
    node::Node,
    piece::{Piece, narrowed},
    same::is_same_keyword,
    subset::{Issue, Subset, doubt},
    wording,
};

impl Subset {
    pub(super) fn any_of<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        self.alternatives(piece, sup, "anyOf")
    }

    /// Judges `oneOf`: one alternative takes all of the piece, and no other takes any of it.
    pub(super) fn one_of<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        if self.keeps(piece, sup, &["oneOf"]) {
            return Vec::new();
        }
        let parts: Vec<_> = sup.children("oneOf").collect();
        let meeting = parts
            .iter()
            .filter(|part| !narrowed(&self.work, piece, **part).is_empty())
            .count();
        let issues = self.alternatives(piece, sup, "oneOf");
        if issues.is_empty() && meeting > 1 {
            if let Some(few) = piece.few_values(&self.work) {
                return few.iter().flat_map(|few| self.check(few, sup)).collect();
            }
            let why = "several alternatives may fit the same value";
            return vec![self.undecided(sup, &["oneOf"], why)];
        }
        issues
    }

    fn alternatives<'a>(
        &mut self,
        piece: &Piece<'a>,
        sup: Node<'a>,
        name: &'static str,
    ) -> Vec<Issue<'a>> {
        if self.keeps(piece, sup, &[name]) {
            return Vec::new();
        }
        let mut met = Vec::new();
        for part in sup.children(name) {
            if narrowed(&self.work, piece, part).is_empty() {
                continue;
            }
            let issues = self.check(piece, part);
            if issues.is_empty() {
                return issues;
            }
            met.push(issues);
        }
        if let Some(few) = piece.few_values(&self.work) {
            return few.iter().flat_map(|few| self.check(few, sup)).collect();
        }
        match met.len() {
            0 => {
                let what = "a value that fits none of the alternatives";
                vec![self.breaking(sup, &[name], wording::lost(self.side, what))]
            }
            // Nothing but this alternative can take the piece: its reasons are the reasons.
            1 => met.remove(0),
            _ => {
                let why = "no single alternative takes all that one of the other side allows";
                vec![self.undecided(sup, &[name], why)]
            }
        }
    }

    pub(super) fn not<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        let Some(excluded) = sup.child("not") else {
            return Vec::new();
        };
        let is_apart = narrowed(&self.work, piece, excluded).is_empty();
        if is_apart || self.keeps(piece, sup, &["not"]) {
            return Vec::new();
        }
        if self.check(piece, excluded).is_empty() {
            let what = "a value that fits what is excluded";
            return vec![self.breaking(sup, &["not"], wording::lost(self.side, what))];
        }
        vec![self.undecided(sup, &["not"], "some values may fit what is excluded")]
    }

    pub(super) fn conditional<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        let Some(condition) = sup.child("if") else {
            return Vec::new();
        };
        if self.keeps(piece, sup, &["if", "then", "else"]) {
            return Vec::new();
        }
        let mut issues = Vec::new();
        if let Some(yes) = sup.child("then") {
            for met in narrowed(&self.work, piece, condition) {
                issues.extend(self.check(&met, yes));
            }
        }
        if let Some(no) = sup.child("else")
            && !self.check(piece, condition).is_empty()
        {
            let is_apart = narrowed(&self.work, piece, condition).is_empty();
            let mut others = self.check(piece, no);
            if !is_apart {
                // Some of these may be of values that meet the condition.
                others.iter_mut().for_each(doubt);
            }
            issues.extend(others);
        }
        issues
    }

    /// Answers whether a schema of the piece says the same in these keywords together.
    pub(super) fn keeps<'a>(&self, piece: &Piece<'a>, sup: Node<'a>, names: &[&str]) -> bool {
        piece.nodes.iter().any(|node| {
            let mut names = names.iter();
            names.all(|name| is_same_keyword(&self.work, name, *node, sup))
        })
    }
}
