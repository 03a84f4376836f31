//! Bounds and divisors of numbers.

use std::cmp::Ordering;

use serde_json::Value;

use super::{
    node::Node,
    piece::{Kind, Piece},
    quantity::Quantity,
    subset::{Issue, Subset},
    wording::{self, quote},
};

impl<'a> Piece<'a> {
    /// Answers whether a divisor leaves no fractions.
    pub(super) fn is_multiple_of_one(&self) -> bool {
        let mut divisors = self.values_of("multipleOf").filter_map(Quantity::of_value);
        self.kind == Kind::Number && divisors.any(Quantity::is_whole)
    }
}

impl Subset {
    pub(super) fn number<'a>(&mut self, piece: &Piece<'a>, sup: Node<'a>) -> Vec<Issue<'a>> {
        let mut issues = Vec::new();
        for name in ["minimum", "exclusiveMinimum"] {
            issues.extend(self.bound(piece, sup, name, true));
        }
        for name in ["maximum", "exclusiveMaximum"] {
            issues.extend(self.bound(piece, sup, name, false));
        }
        issues.extend(self.divisor(piece, sup));
        issues
    }

    fn bound<'a>(
        &self,
        piece: &Piece<'a>,
        sup: Node<'a>,
        name: &'static str,
        is_lower: bool,
    ) -> Option<Issue<'a>> {
        let said = sup.get(name)?;
        let wanted = Quantity::of_value(said)?;
        let is_exclusive = name.starts_with("exclusive");
        let (own, stricter) = if is_lower {
            (piece.lower(), Ordering::Greater)
        } else {
            (piece.upper(), Ordering::Less)
        };
        let is_kept = own.is_some_and(|(own, own_excludes)| {
            // Whole numbers begin at the first one within the bound.
            let first = match is_lower {
                true => own.ceiling(own_excludes),
                false => own.floor(own_excludes),
            };
            let (own, own_excludes) = match first.filter(|_| piece.is_whole) {
                Some(first) => (Quantity::Whole(first), false),
                None => (own, own_excludes),
            };
            match own.compare(wanted) {
                Ordering::Equal => own_excludes || !is_exclusive,
                order => order == stricter,
            }
        });
        if is_kept {
            return None;
        }
        let names: &[&'static str] = match is_lower {
            true => &["minimum", "exclusiveMinimum"],
            false => &["maximum", "exclusiveMaximum"],
        };
        let own = bounds(piece, names, name);
        let message = wording::changed(self.side, own.as_deref(), &quote(said));
        Some(self.breaking(sup, &[name], message))
    }

    fn divisor<'a>(&self, piece: &Piece<'a>, sup: Node<'a>) -> Option<Issue<'a>> {
        let said = sup.get("multipleOf")?;
        let wanted = Quantity::of_value(said)?;
        let own: Vec<&Value> = piece.values_of("multipleOf").collect();
        let mut quantities = own.iter().filter_map(|own| Quantity::of_value(own));
        let is_kept = quantities
            .any(|own| own.compare(wanted) == Ordering::Equal || own.is_multiple_of(wanted));
        // Whole numbers so large that they may stand for others are refused where a divisor is.
        let is_safe = |bound: Option<(Quantity, bool)>| bound.is_some_and(|(q, _)| q.is_safe());
        let is_small = is_safe(piece.lower()) && is_safe(piece.upper());
        let divides_one = piece.is_whole && Quantity::Whole(1).is_multiple_of(wanted);
        if is_kept || (divides_one && (is_small || !own.is_empty())) {
            return None;
        }
        let old = own.first().map(|own| quote(own));
        let message = wording::changed(self.side, old.as_deref(), &quote(said));
        let is_short = wanted.is_short()
            && own
                .iter()
                .all(|own| Quantity::of_value(own).is_some_and(Quantity::is_short));
        Some(if divides_one {
            self.undecided(
                sup,
                &["multipleOf"],
                "very large numbers are refused where it stands",
            )
        } else if is_short {
            self.breaking(sup, &["multipleOf"], message)
        } else {
            self.undecided(sup, &["multipleOf"], "the numbers have too many digits")
        })
    }
}

/// Tells the bounds that a piece has on one side.
fn bounds(piece: &Piece<'_>, names: &[&'static str], wanted: &str) -> Option<String> {
    let told = names.iter().flat_map(|name| {
        let values = piece.values_of(name);
        values.map(move |value| match *name == wanted {
            true => quote(value),
            false => format!("{name} {}", quote(value)),
        })
    });
    told.reduce(|all, next| format!("{all} and {next}"))
}
