//! Members of objects: which are there, and what they hold.

use std::{collections::BTreeSet, sync::LazyLock};

use serde_json::{Value, json};

use super::{
    instance,
    node::{Node, is_trivial},
    piece::{Piece, Unknown, is_empty, member_of},
    same::is_same,
    subset::{Issue, Subset, doubt},
    wording::{self, quote},
};

/// What every name of a member is.
static NAME: LazyLock<Value> = LazyLock::new(|| json!({"type": "string"}));

impl Subset {
    pub(super) fn object<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        let names = self.possible(piece, sup);
        let mut issues = self.required(piece, sup);
        issues.extend(self.number_of_members(piece, sup, names.len()));
        issues.extend(self.members(piece, sup, &names));
        issues.extend(self.unlisted(piece, sup));
        issues.extend(self.names(piece, sup, &names));
        issues.extend(self.implied(piece, sup));
        issues.extend(self.implied_schemas(piece, sup));
        issues
    }

    /// Lists the names, declared or spoken of by `sup`, that members may have.
    fn possible<'a>(&self, piece: &Piece<'a>, sup: Node<'a>) -> BTreeSet<&'a str> {
        let spoken = sup.map("properties").into_iter().flat_map(|map| map.keys());
        let spoken = spoken.map(String::as_str);
        let names = piece.names.listed.iter().copied().chain(spoken);
        names.filter(|name| self.may_have(piece, name)).collect()
    }

    fn may_have<'a>(&self, piece: &Piece<'a>, name: &str) -> bool {
        let names = &piece.names;
        let mut patterns = names.patterns.iter();
        let is_declared = names.is_any
            || names.listed.contains(name)
            || patterns.any(|pattern| self.work.matches(pattern, name) != Some(false));
        is_declared && !piece.excludes(&self.work, name)
    }

    /// Answers whether there may be more names than those listed.
    fn is_open_ended<'a>(&self, piece: &Piece<'a>) -> bool {
        !piece.names.patterns.is_empty()
            || (piece.names.is_any && !is_empty(&self.work, &piece.unnamed()))
    }

    fn required<'a>(&self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        let own = piece.all_required(&self.work);
        let wanted = sup.list("required").iter().filter_map(Value::as_str);
        let missing = wanted.filter(|name| own.binary_search(name).is_err());
        missing
            .map(|name| self.breaking(sup, &["required"], wording::required(self.side, name)))
            .collect()
    }

    fn number_of_members<'a>(
        &self,
        piece: &Piece<'a>,
        sup: Node<'a>,
        possible: usize,
    ) -> Vec<Issue<'a>> {
        let least = piece.most("minProperties");
        let least = least.max(piece.all_required(&self.work).len() as u64);
        let all = (!self.is_open_ended(piece)).then_some(possible as u64);
        let most = piece.least("maxProperties").into_iter().chain(all).min();
        let least = self.least_count(piece, sup, "minProperties", least);
        let most = self.most_count(piece, sup, "maxProperties", most);
        least.into_iter().chain(most).collect()
    }

    fn members<'a>(
        &mut self,
        piece: &Piece<'a>,
        sup: Node<'a>,
        names: &BTreeSet<&'a str>,
    ) -> Vec<Issue<'a>> {
        let mut issues = Vec::new();
        for name in names {
            let own = piece.member(&self.work, name);
            for part in member_of(&self.work, sup, name, Unknown::Counts) {
                if *part.schema == Value::Bool(false) {
                    let what = format!("the member {}", quote(&Value::from(*name)));
                    issues.push(self.breaking(part, &[], wording::lost(self.side, &what)));
                } else {
                    issues.extend(self.below(&own, part));
                }
            }
        }
        issues
    }

    /// Judges members that are not listed by name.
    fn unlisted<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        let own: Vec<(&str, Node<'a>)> = piece
            .nodes
            .iter()
            .flat_map(|node| {
                let patterns = node.map("patternProperties").into_iter().flatten();
                patterns.map(|(pattern, part)| (pattern.as_str(), node.part(part)))
            })
            .collect();
        let mut issues = Vec::new();
        for (pattern, part) in &own {
            if self.work.is_spent() {
                break;
            }
            issues.extend(self.named_like(&own, Some(pattern), &[*part], sup));
        }
        let mut declared = piece.names.patterns.iter();
        let is_foreign = |pattern: &&str| !own.iter().any(|(other, _)| other == pattern);
        if piece.names.is_any || declared.any(is_foreign) {
            issues.extend(self.named_like(&own, None, &piece.unnamed(), sup));
        }
        issues
    }

    /// Judges members whose names match one pattern, or else none of the piece's.
    fn named_like<'a>(
        &mut self,
        own: &[(&str, Node<'a>)],
        pattern: Option<&str>,
        parts: &[Node<'a>],
        sup: Node<'a>,
    ) -> Vec<Issue<'a>> {
        if is_empty(&self.work, parts) {
            return Vec::new();
        }
        let is_own = |name: &str| own.iter().any(|(other, _)| *other == name);
        let mut issues = Vec::new();
        let patterns = sup.map("patternProperties");
        // Names of one pattern may or may not match another.
        let mut may_overlap = false;
        for (other, part) in patterns.into_iter().flatten() {
            if pattern.is_none() && is_own(other) {
                continue;
            }
            let mut found = self.below(parts, sup.part(part));
            if pattern != Some(other) {
                found.iter_mut().for_each(doubt);
                may_overlap = true;
            }
            issues.extend(found);
        }
        let is_covered =
            pattern.is_some_and(|own| patterns.is_some_and(|map| map.contains_key(own)));
        let rest = sup.additional().filter(|rest| !is_trivial(rest.schema));
        let Some(rest) = rest.filter(|_| !is_covered) else {
            return issues;
        };
        let mut found = if *rest.schema == Value::Bool(false) {
            let what = match pattern {
                Some(pattern) => format!("a member whose name matches {pattern}"),
                None => "a member of another name".to_owned(),
            };
            vec![self.breaking(rest, &[], wording::lost(self.side, &what))]
        } else {
            self.below(parts, rest)
        };
        if may_overlap {
            found.iter_mut().for_each(doubt);
        }
        issues.extend(found);
        issues
    }

    fn names<'a>(
        &mut self,
        piece: &Piece<'a>,
        sup: Node<'a>,
        names: &BTreeSet<&'a str>,
    ) -> Vec<Issue<'a>> {
        let Some(part) = sup.child("propertyNames") else {
            return Vec::new();
        };
        let own: Vec<Node<'a>> = piece
            .nodes
            .iter()
            .filter_map(|node| node.child("propertyNames"))
            .collect();
        if own.iter().any(|own| is_same(&self.work, *own, part)) {
            return Vec::new();
        }
        let mut issues = Vec::new();
        for name in names {
            let name = Value::from(*name);
            let what = format!("the member name {}", quote(&name));
            match instance::accepts(&self.work, part, &name) {
                Some(true) => {}
                Some(false) => {
                    issues.push(self.breaking(part, &[], wording::lost(self.side, &what)));
                }
                None => issues.push(self.undecided(part, &[], &what)),
            }
        }
        if self.is_open_ended(piece) {
            let mut nodes = own;
            nodes.push(sup.part(&NAME));
            issues.extend(self.below(&nodes, part));
        }
        issues
    }

    /// Judges `dependentRequired`.
    fn implied<'a>(&self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        let mut issues = Vec::new();
        for (name, wanted) in sup.map("dependentRequired").into_iter().flatten() {
            if self.work.is_spent() {
                break;
            }
            if !self.may_have(piece, name) {
                continue;
            }
            let own = piece.with_member(name).all_required(&self.work);
            let wanted = wanted.as_array().into_iter().flatten();
            let missing = wanted
                .filter_map(Value::as_str)
                .filter(|other| own.binary_search(other).is_err());
            for other in missing {
                let message = wording::required(self.side, other);
                let message = format!("{message} beside {}", quote(&Value::from(name.as_str())));
                issues.push(self.breaking(sup, &["dependentRequired", name], message));
            }
        }
        issues
    }

    fn implied_schemas<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        let mut issues = Vec::new();
        for (name, part) in sup.map("dependentSchemas").into_iter().flatten() {
            let part = sup.part(part);
            let is_kept = piece.nodes.iter().any(|node| {
                let own = node.map("dependentSchemas").and_then(|map| map.get(name));
                own.is_some_and(|own| is_same(&self.work, node.part(own), part))
            });
            if is_kept || !self.may_have(piece, name) {
                continue;
            }
            issues.extend(self.check(&piece.with_member(name), part));
        }
        issues
    }
}
