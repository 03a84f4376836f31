//! Numbers whose text says more than a 64-bit float can hold.
//!
//! The validator compares numbers as `u64`, `i64` or `f64`. A text is *kept* when the shortest
//! decimal of its float is the number that was written: two kept numbers compare as floats
//! exactly as they compare on paper. Any other text can be misjudged only where a keyword
//! draws its line at the very float the text was rounded to.

use std::ops::Range;

use serde_json::Value;

use super::keyword;

/// The longest number accepted, in characters.
pub const MAX_LENGTH: usize = 1_024;

/// Digits that every float keeps.
const KEPT_DIGITS: usize = 15;
/// From here on floats are whole and may stand for a neighbour.
const LARGEST_SAFE: f64 = 9_007_199_254_740_992.0;

/// Finds the end of the number that starts at `start`, and whether it may not be kept.
pub fn scan(bytes: &[u8], start: usize) -> (Range<usize>, bool) {
    let (mut digits, mut exponent, mut is_float) = (0_usize, None, false);
    let mut end = start;
    while let Some(byte) = bytes.get(end) {
        match (byte, &mut exponent) {
            (b'0'..=b'9', None) => digits += 1,
            (b'0'..=b'9', Some(length)) => *length += 1,
            (b'.', _) => is_float = true,
            (b'e' | b'E', _) => (exponent, is_float) = (Some(0_usize), true),
            (b'+' | b'-', _) => {}
            _ => break,
        }
        end += 1;
    }
    let is_long = match exponent {
        None if is_float => digits > KEPT_DIGITS,
        None => digits > 18,
        Some(length) => digits > KEPT_DIGITS || length > 1,
    };
    (start..end, is_long)
}

/// What the validator makes of a number's text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reading {
    /// Taken as the number that was written.
    Exact,
    /// Taken as the number that was written, but too large for `multipleOf`.
    Large,
    /// Taken as another number.
    Rounded { to: f64, became_whole: bool },
    /// Larger than every float.
    Overflow,
}

/// Reads the text of a number.
pub fn read(text: &str) -> Reading {
    if text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() {
        return Reading::Exact;
    }
    let Ok(value) = text.parse::<f64>() else {
        return Reading::Overflow;
    };
    if !value.is_finite() {
        return Reading::Overflow;
    }
    let written = Decimal::read(text);
    if written == Decimal::read(&format!("{value:e}")) {
        return if value.abs() < LARGEST_SAFE {
            Reading::Exact
        } else {
            Reading::Large
        };
    }
    Reading::Rounded {
        to: value,
        became_whole: value.fract() == 0.0 && !written.is_some_and(|decimal| decimal.is_whole()),
    }
}

/// A number as significant digits and a power of ten.
#[derive(PartialEq)]
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// Reads digits without leading or trailing zeros; nothing if the exponent is beyond `i64`.
    fn read(text: &str) -> Option<Self> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let mut exponent: i64 = exponent.parse().ok()?;
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut digits: Vec<u8> = whole
            .bytes()
            .chain(fraction.bytes())
            .filter(u8::is_ascii_digit)
            .skip_while(|digit| *digit == b'0')
            .collect();
        exponent = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?;
        while digits.last() == Some(&b'0') {
            digits.pop();
            exponent = exponent.checked_add(1)?;
        }
        let is_zero = digits.is_empty();
        Some(Self {
            negative: text.starts_with('-') && !is_zero,
            digits,
            exponent: if is_zero { 0 } else { exponent },
        })
    }

    fn is_whole(&self) -> bool {
        self.exponent >= 0
    }
}

/// Where a schema's keywords draw lines between numbers.
#[derive(Debug, Default)]
pub struct Lines {
    /// Every number a keyword compares with, sorted.
    at: Vec<f64>,
    wants_multiple: bool,
    wants_integer: bool,
}

impl Lines {
    pub fn of(schema: &Value) -> Self {
        let mut lines = Self::default();
        keyword::walk(schema, &mut |_, members| {
            for (name, value) in members {
                match name.as_str() {
                    "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "const"
                    | "enum" => lines.collect(value),
                    "multipleOf" => lines.wants_multiple = true,
                    "type" => lines.wants_integer |= names_integer(value),
                    _ => {}
                }
            }
        });
        lines.at.sort_by(f64::total_cmp);
        lines.at.dedup();
        lines
    }

    /// Answers whether a keyword could take this number for another one and be wrong.
    pub fn may_misjudge(&self, text: &str) -> bool {
        let Ok(value) = text.parse::<f64>() else {
            return true;
        };
        // Most long numbers are printed floats far from every line: do not read them digit by digit.
        let is_near = self.wants_multiple
            || (self.wants_integer && value.fract() == 0.0)
            || self.is_at(value);
        is_near
            && match read(text) {
                Reading::Exact => false,
                Reading::Large => self.wants_multiple,
                Reading::Overflow => true,
                Reading::Rounded { to, became_whole } => {
                    self.wants_multiple || (self.wants_integer && became_whole) || self.is_at(to)
                }
            }
    }

    fn is_at(&self, value: f64) -> bool {
        let value = unsigned_zero(value);
        let found = self.at.binary_search_by(|line| line.total_cmp(&value));
        found.is_ok()
    }

    fn collect(&mut self, value: &Value) {
        match value {
            Value::Number(number) => self.at.extend(number.as_f64().map(unsigned_zero)),
            Value::Array(items) => items.iter().for_each(|item| self.collect(item)),
            Value::Object(members) => members.values().for_each(|member| self.collect(member)),
            _ => {}
        }
    }
}

/// Makes the two zeros one, so that they sort as the equal numbers they are.
fn unsigned_zero(value: f64) -> f64 {
    value + 0.0
}

fn names_integer(value: &Value) -> bool {
    match value {
        Value::Array(names) => names.iter().any(names_integer),
        name => name == "integer",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn readings() {
        let rounded = |to, became_whole| Reading::Rounded { to, became_whole };
        for (text, expected) in [
            ("0", Reading::Exact),
            ("-0", Reading::Exact),
            ("-0.0", Reading::Exact),
            ("1.10", Reading::Exact),
            ("0.30000000000000004", Reading::Exact),
            ("9007199254740993", Reading::Exact),
            ("18446744073709551615", Reading::Exact),
            (
                "18446744073709551616",
                rounded(18446744073709551616.0, false),
            ),
            ("1e25", Reading::Large),
            ("10000000000000000000000000", Reading::Large),
            ("0.10000000000000001", rounded(0.1, false)),
            ("1.00000000000000000001", rounded(1.0, true)),
            ("1e-400", rounded(0.0, true)),
            ("1e400", Reading::Overflow),
            ("-1e400", Reading::Overflow),
            ("1e99999999999999999999", Reading::Overflow),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn only_a_line_at_the_rounded_value_matters() {
        for (schema, text, misjudged) in [
            (json!({"maximum": 0.1}), "0.10000000000000001", true),
            (json!({"maximum": 0.2}), "0.10000000000000001", false),
            (
                json!({"properties": {"a": {"exclusiveMinimum": 0}}}),
                "1e-400",
                true,
            ),
            (json!({"enum": [{"a": [0.1]}]}), "0.10000000000000001", true),
            (json!({"multipleOf": 0.01}), "1.1000000000000001", true),
            (json!({"multipleOf": 0.01}), "0.30000000000000004", false),
            (json!({"multipleOf": 7}), "1e25", true),
            (
                json!({"type": ["string", "integer"]}),
                "1.00000000000000000001",
                true,
            ),
            (json!({"type": "number"}), "1.00000000000000000001", false),
            (json!(true), "1234567890123456789012345", false),
        ] {
            let lines = Lines::of(&schema);
            assert_eq!(lines.may_misjudge(text), misjudged, "{schema} {text}");
        }
    }

    proptest! {
        #[test]
        fn short_texts_are_kept(text in "-?(0|[1-9][0-9]{0,6})(\\.[0-9]{1,8})?([eE][+-]?[0-9])?") {
            let (range, is_long) = scan(text.as_bytes(), 0);
            prop_assert_eq!(range, 0..text.len());
            prop_assert!(!is_long);
            let reading = read(&text);
            prop_assert!(matches!(reading, Reading::Exact | Reading::Large), "{:?}", reading);
        }

        #[test]
        fn printed_floats_are_kept(value: f64) {
            prop_assume!(value.is_finite());
            let reading = read(&format!("{value:e}"));
            prop_assert!(matches!(reading, Reading::Exact | Reading::Large), "{:?}", reading);
        }
    }
}
