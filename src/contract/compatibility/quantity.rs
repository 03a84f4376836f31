//! Numbers of schemas, compared as they stand on paper.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// Whole floats are exact up to here, and neighbours from here on may be rounded to them.
const LARGEST_SAFE: f64 = 9_007_199_254_740_992.0;
/// Fractions with more digits than this are not divided.
const MOST_DECIMALS: u32 = 6;
/// Neither are numbers whose digits make more than this.
const LARGEST_DIVIDED: i128 = 1_000_000_000_000;

/// The value of a JSON number, exactly.
#[derive(Debug, Clone, Copy)]
pub enum Quantity {
    Whole(i128),
    /// Has a fraction, or is beyond `i128`.
    Float(f64),
}

impl Quantity {
    pub fn of(number: &Number) -> Self {
        let whole = number.as_i64().map(i128::from);
        let whole = whole.or_else(|| number.as_u64().map(i128::from));
        match whole {
            Some(whole) => Self::Whole(whole),
            None => Self::of_float(number.as_f64().unwrap_or(f64::NAN)),
        }
    }

    fn of_float(float: f64) -> Self {
        // Below 2^100 every whole float is an `i128`.
        if float.fract() == 0.0 && float.abs() < 2_f64.powi(100) {
            Self::Whole(float as i128)
        } else {
            Self::Float(float)
        }
    }

    pub fn of_value(value: &Value) -> Option<Self> {
        value.as_number().map(Self::of)
    }

    pub fn is_whole(self) -> bool {
        match self {
            Self::Whole(_) => true,
            // Beyond `i128` floats have no fractions.
            Self::Float(float) => float.fract() == 0.0,
        }
    }

    /// Gives the smallest whole number that is not below, or above if `is_exclusive`.
    pub fn ceiling(self, is_exclusive: bool) -> Option<i128> {
        match self {
            Self::Whole(whole) => Some(whole + i128::from(is_exclusive)),
            Self::Float(float) => whole(float.ceil()),
        }
    }

    /// Gives the largest whole number that is not above, or below if `is_exclusive`.
    pub fn floor(self, is_exclusive: bool) -> Option<i128> {
        match self {
            Self::Whole(whole) => Some(whole - i128::from(is_exclusive)),
            Self::Float(float) => whole(float.floor()),
        }
    }

    /// Compares exactly; a number that is none equals everything, and so decides nothing.
    pub fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Whole(one), Self::Whole(two)) => one.cmp(&two),
            (Self::Float(one), Self::Float(two)) => {
                one.partial_cmp(&two).unwrap_or(Ordering::Equal)
            }
            (Self::Whole(one), Self::Float(two)) => whole_to_float(one, two),
            (Self::Float(one), Self::Whole(two)) => whole_to_float(two, one).reverse(),
        }
    }

    /// Answers whether every multiple of this is a multiple of `divisor`; only for numbers of few
    /// digits, where the validator divides exactly as well.
    pub fn is_multiple_of(self, divisor: Self) -> bool {
        let (Some((one, one_scale)), Some((two, two_scale))) = (self.decimal(), divisor.decimal())
        else {
            return false;
        };
        let scale = one_scale.max(two_scale);
        let one = one * 10_i128.pow(scale - one_scale);
        let two = two * 10_i128.pow(scale - two_scale);
        two != 0 && one % two == 0
    }

    /// Answers whether this has so few digits that it can be divided.
    pub fn is_short(self) -> bool {
        self.decimal().is_some()
    }

    /// Gives digits and the number of decimals, if there are few of them.
    fn decimal(self) -> Option<(i128, u32)> {
        let (digits, scale) = match self {
            Self::Whole(whole) => (whole, 0),
            Self::Float(float) => {
                let text = format!("{float}");
                let (whole, fraction) = text.split_once('.')?;
                let digits = format!("{whole}{fraction}").parse().ok()?;
                (digits, u32::try_from(fraction.len()).ok()?)
            }
        };
        let is_short = scale <= MOST_DECIMALS && digits.abs() <= LARGEST_DIVIDED;
        is_short.then_some((digits, scale))
    }

    /// Answers whether whole numbers of this size are never taken for their neighbours.
    pub fn is_safe(self) -> bool {
        match self {
            Self::Whole(whole) => (whole.abs() as f64) < LARGEST_SAFE,
            Self::Float(float) => float.abs() < LARGEST_SAFE,
        }
    }
}

fn whole(float: f64) -> Option<i128> {
    (float.abs() < 2_f64.powi(100)).then_some(float as i128)
}

/// Compares a whole number with a float that has a fraction or is larger than every `i128`.
fn whole_to_float(one: i128, two: f64) -> Ordering {
    match whole(two.floor()) {
        // The float lies above its floor.
        Some(floor) => one.cmp(&floor).then(Ordering::Less),
        None if two > 0.0 => Ordering::Less,
        None => Ordering::Greater,
    }
}

/// Writes a value so that two texts are equal where JSON Schema calls the values equal: `1` is
/// `1.0`, members have no order.
pub fn key(value: &Value) -> String {
    match value {
        Value::Number(number) => match Quantity::of(number) {
            Quantity::Whole(whole) => whole.to_string(),
            Quantity::Float(float) => format!("{float:e}"),
        },
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(key).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(members) => {
            let members = members.iter();
            let mut members: Vec<_> = members
                .map(|(name, member)| format!("{}:{}", Value::from(name.as_str()), key(member)))
                .collect();
            members.sort_unstable();
            format!("{{{}}}", members.join(","))
        }
        plain => plain.to_string(),
    }
}

/// Compares JSON values as JSON Schema does.
pub fn is_same_value(one: &Value, two: &Value) -> bool {
    key(one) == key(two)
}

/// Reads a length or a number of elements, which may be written as `2.0`.
pub fn count(value: &Value) -> Option<u64> {
    match Quantity::of_value(value)? {
        Quantity::Whole(whole) if whole < 0 => None,
        Quantity::Whole(whole) => Some(u64::try_from(whole).unwrap_or(u64::MAX)),
        Quantity::Float(float) => (float > 0.0 && float.fract() == 0.0).then_some(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn quantity(text: &str) -> Quantity {
        Quantity::of_value(&serde_json::from_str(text).unwrap()).unwrap()
    }

    #[test]
    fn numbers_compare_as_on_paper() {
        let ascending = [
            "-1e300",
            "-18446744073709551615",
            "-2.5",
            "-2",
            "-0.5",
            "0",
            "0.1",
            "1",
            "1.5",
            "9007199254740992",
            "9007199254740993",
            "18446744073709551615",
            "1e25",
            "1e300",
        ];
        for (place, one) in ascending.iter().enumerate() {
            for (other, two) in ascending.iter().enumerate() {
                let order = quantity(one).compare(quantity(two));
                assert_eq!(order, place.cmp(&other), "{one} and {two}");
            }
        }
    }

    #[test]
    fn multiples() {
        for (one, two, expected) in [
            ("6", "3", true),
            ("6", "4", false),
            ("0.1", "0.01", true),
            ("0.3", "0.1", true),
            ("1", "0.25", true),
            ("0.5", "1", false),
            ("3", "3.0", true),
            ("1e300", "3", false),
        ] {
            let is_multiple = quantity(one).is_multiple_of(quantity(two));
            assert_eq!(is_multiple, expected, "{one} of {two}");
        }
    }

    #[test]
    fn whole_floats_are_whole_numbers() {
        assert!(is_same_value(&json!({"a": [1]}), &json!({"a": [1.0]})));
        assert!(!is_same_value(&json!([true]), &json!([1])));
        assert_eq!(count(&json!(2.0)), Some(2));
        assert_eq!(quantity("1.5").ceiling(true), Some(2));
        assert_eq!(quantity("1").ceiling(true), Some(2));
        assert_eq!(quantity("-1.5").floor(false), Some(-2));
    }
}
