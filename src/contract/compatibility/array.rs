//! Elements of arrays: how many, which, and where.

use serde_json::Value;

use super::{
    node::Node,
    piece::Piece,
    quantity::count,
    same::is_same,
    subset::{Issue, Subset, doubt},
    wording,
};

impl Subset {
    pub(super) fn array<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        let mut issues = Vec::new();
        let longest = piece.longest(&self.work);
        issues.extend(self.least_count(piece, sup, "minItems", piece.most("minItems")));
        issues.extend(self.most_count(piece, sup, "maxItems", longest));
        issues.extend(self.unique(piece, sup, longest));
        issues.extend(self.elements(piece, sup, longest));
        issues.extend(self.contained(piece, sup, longest));
        issues
    }

    fn unique<'a>(
        &self,
        piece: &Piece<'a>,
        sup: Node<'a>,
        longest: Option<u64>,
    ) -> Option<Issue<'a>> {
        let is_unique = |said: &Value| *said == Value::Bool(true);
        let is_kept = piece.values_of("uniqueItems").any(is_unique)
            || longest.is_some_and(|longest| longest < 2);
        if is_kept || !sup.get("uniqueItems").is_some_and(is_unique) {
            return None;
        }
        let message = wording::changed(self.side, Some("false"), "true");
        Some(self.breaking(sup, &["uniqueItems"], message))
    }

    fn elements<'a>(
        &mut self,
        piece: &Piece<'a>,
        sup: Node<'a>,
        longest: Option<u64>,
    ) -> Vec<Issue<'a>> {
        let can_have = |index: usize| longest.is_none_or(|longest| (index as u64) < longest);
        let mut issues = Vec::new();
        let fixed = sup.list("prefixItems").len();
        for (index, part) in sup.children("prefixItems").enumerate() {
            if can_have(index) {
                issues.extend(self.element(piece, index, &[], part));
            }
        }
        if let Some(part) = sup.items() {
            // From the longer of both lists on, all elements are alike.
            for index in fixed..=piece.fixed_elements().max(fixed) {
                if can_have(index) {
                    issues.extend(self.element(piece, index, &[], part));
                }
            }
        }
        issues
    }

    /// Judges the element at an index, of which more may be known.
    fn element<'a>(
        &mut self,
        piece: &Piece<'a>,
        index: usize,
        known: &[Node<'a>],
        sup: Node<'a>,
    ) -> Vec<Issue<'a>> {
        let mut nodes = piece.element(index);
        nodes.extend(known);
        // Elements may be there for `contains` alone, with the members it declares.
        let wanted = piece.nodes.iter().filter_map(|node| node.child("contains"));
        let beside: Vec<_> = wanted.collect();
        self.below_beside(&nodes, &beside, sup)
    }

    fn contained<'a>(
        &mut self,
        piece: &Piece<'a>,
        sup: Node<'a>,
        longest: Option<u64>,
    ) -> Vec<Issue<'a>> {
        let Some(part) = sup.child("contains") else {
            return Vec::new();
        };
        let limit = |node: Node<'_>, name| node.get(name).and_then(count);
        let least = limit(sup, "minContains").unwrap_or(1);
        let mut same = piece.nodes.iter().filter(|node| {
            let own = node.child("contains");
            own.is_some_and(|own| is_same(&self.work, own, part))
        });
        let kept: Option<(u64, Option<u64>)> = same.next().map(|node| {
            let least = limit(*node, "minContains").unwrap_or(1);
            (least, limit(*node, "maxContains"))
        });
        let mut issues = Vec::new();
        if least > 0 && kept.is_none_or(|(own, _)| own < least) {
            issues.extend(self.enough(piece, sup, part, least));
        }
        if let Some(most) = limit(sup, "maxContains") {
            let own = kept.and_then(|(_, most)| most);
            let is_kept = own.or(longest).is_some_and(|own| own <= most)
                || longest.is_some_and(|longest| longest <= most);
            if !is_kept {
                let why = "more elements may fit than it allows";
                issues.push(self.undecided(sup, &["maxContains"], why));
            }
        }
        issues
    }

    /// Judges whether enough elements are sure to fit: another list contains them, or all do.
    fn enough<'a>(
        &mut self,
        piece: &Piece<'a>,
        sup: Node<'a>,
        part: Node<'a>,
        least: u64,
    ) -> Vec<Issue<'a>> {
        let owns: Vec<_> = piece
            .nodes
            .iter()
            .filter(|node| {
                let own = node.get("minContains").and_then(count).unwrap_or(1);
                own >= least
            })
            .filter_map(|node| node.child("contains"))
            .collect();
        for own in &owns {
            let mut indexes = 0..=piece.fixed_elements();
            if indexes.all(|index| self.element(piece, index, &[*own], part).is_empty()) {
                return Vec::new();
            }
        }
        let own_least = piece.most("minItems");
        if own_least < least {
            let message = wording::lost(self.side, "an array with too few such elements");
            let mut issue = self.breaking(sup, &["contains"], message);
            if piece.values_of("contains").next().is_some() {
                doubt(&mut issue);
            }
            return vec![issue];
        }
        let first = 0..=piece.fixed_elements();
        let issues: Vec<_> = first
            .flat_map(|index| self.element(piece, index, &[], part))
            .collect();
        if issues.is_empty() {
            return issues;
        }
        vec![self.undecided(sup, &["contains"], "not every element is sure to fit")]
    }
}
