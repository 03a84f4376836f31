//! Lengths, patterns and formats of strings.

use serde_json::Value;

use super::{
    instance,
    node::Node,
    piece::Piece,
    quantity::count,
    subset::{Issue, Subset},
    wording::{self, quote},
};
use crate::contract::schema::FORMATS;

/// Every text of the first format is one of the second.
const IMPLIED: [(&str, &str); 4] = [
    ("uri", "uri-reference"),
    ("uri", "iri"),
    ("iri", "iri-reference"),
    ("uri-reference", "iri-reference"),
];

/// Texts of many kinds; one that is allowed here and refused there proves a difference.
const SAMPLES: [&str; 28] = [
    "",
    "a",
    "Z",
    "0",
    "-",
    " ",
    "é",
    "\n",
    "abc",
    "ABC",
    "123",
    "a b",
    "2024-02-29",
    "2024-02-29T12:30:00Z",
    "12:30:00Z",
    "P1D",
    "a@example.com",
    "example.com",
    "10.0.0.1",
    "::1",
    "https://example.com/a",
    "/a/b",
    "0/a",
    "https://example.com/é",
    "/é",
    "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
    "\u{10ffff}",
    "%",
];

impl Subset {
    pub(super) fn text<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        let mut issues = Vec::new();
        let shortest = piece.most("minLength");
        let longest = piece.least("maxLength");
        issues.extend(self.least_count(piece, sup, "minLength", shortest));
        issues.extend(self.most_count(piece, sup, "maxLength", longest));
        issues.extend(self.form(piece, sup, "pattern"));
        issues.extend(self.form(piece, sup, "format"));
        issues
    }

    /// Judges a lower limit of lengths or numbers of elements.
    pub(super) fn least_count<'a>(
        &self,
        piece: &Piece<'a>,
        sup: Node<'a>,
        name: &'static str,
        own: u64,
    ) -> Option<Issue<'a>> {
        let said = sup.get(name)?;
        if own >= count(said)? {
            return None;
        }
        let old = piece.values_of(name).next().map(quote);
        let message = wording::changed(self.side, old.as_deref(), &quote(said));
        Some(self.breaking(sup, &[name], message))
    }

    /// Judges an upper limit of lengths or numbers of elements.
    pub(super) fn most_count<'a>(
        &self,
        piece: &Piece<'a>,
        sup: Node<'a>,
        name: &'static str,
        own: Option<u64>,
    ) -> Option<Issue<'a>> {
        let said = sup.get(name)?;
        let most = count(said)?;
        if own.is_some_and(|own| own <= most) {
            return None;
        }
        let old = piece.values_of(name).next().map(quote);
        let message = wording::changed(self.side, old.as_deref(), &quote(said));
        Some(self.breaking(sup, &[name], message))
    }

    /// Judges a pattern or a format: kept word for word, or shown to refuse something.
    fn form<'a>(
        &mut self,
        piece: &Piece<'a>,
        sup: Node<'a>,
        name: &'static str,
    ) -> Option<Issue<'a>> {
        let said = sup.get(name)?;
        let own: Vec<&Value> = piece.values_of(name).collect();
        let implies = |own: &Value| {
            let pair = own.as_str().zip(said.as_str());
            name == "format" && pair.is_some_and(|pair| IMPLIED.contains(&pair))
        };
        if own.iter().any(|own| *own == said || implies(own)) {
            return None;
        }
        let message = wording::changed(
            self.side,
            own.first().map(|own| quote(own)).as_deref(),
            &quote(said),
        );
        let is_checked = name == "pattern" || FORMATS.iter().any(|known| said == known);
        if is_checked && self.refuses_a_sample(piece, sup, name) {
            return Some(self.breaking(sup, &[name], message));
        }
        let why = match is_checked {
            true => format!("it {message}, and not all texts can be tried"),
            false => format!("it {message}, and nobody checks this format"),
        };
        Some(self.undecided(sup, &[name], &why))
    }

    fn refuses_a_sample<'a>(&self, piece: &Piece<'a>, sup: Node<'a>, name: &str) -> bool {
        let shortest = piece.most("minLength").min(256) as usize;
        SAMPLES.iter().any(|sample| {
            let missing = shortest.saturating_sub(sample.chars().count());
            let padded = Value::from(format!("{sample}{}", "a".repeat(missing)));
            let mut nodes = piece.nodes.iter();
            instance::keyword_accepts(&self.work, sup, name, &padded) == Some(false)
                && nodes.all(|node| instance::accepts(&self.work, *node, &padded) == Some(true))
        })
    }
}
