//! What a schema may cost, at most, for each byte of a body.
//!
//! Two bounds together: what is seen to be dear in the schema is refused when it is compiled, with
//! its place; whatever else it asks for, a check may take only as many steps as its body allows.
//! So no body and no schema keeps a thread for longer than `MOST_STEPS`.

use std::collections::HashSet;

use regex_automata::{
    dfa::{StartKind, dense},
    nfa::thompson::{self, WhichCaptures},
};
use serde_json::{Map, Value};

use super::{
    Problem, keyword,
    pointer::Pointer,
    reference, schema,
    tree::{Meter, Prices, TEXT, binary_places},
};

/// The largest compiled pattern, in bytes.
pub const MAX_PATTERN: usize = 256 * 1024;
/// Every member of a body is held against each of these.
const MAX_PATTERN_PROPERTIES: usize = 128;
/// How many patterns a schema may have: judging one takes up to five milliseconds.
const MAX_PATTERNS: usize = 512;
/// How large all patterns of a schema together may be, compiled: that takes about 20 milliseconds
/// for each megabyte.
const MAX_PATTERNS_SIZE: usize = 8 * 1024 * 1024;
/// How large the patterns for names may become that `unevaluatedProperties` compiles again.
const MAX_CLOSED_SIZE: u64 = 32 * 1024 * 1024;
/// What every check may take: about ten milliseconds.
const FEWEST_STEPS: usize = 1_000_000;
/// What each byte of a body may take besides. Bodies of services need about one.
const STEPS_PER_BYTE: usize = 16;
/// No check takes more: about half a second.
const MOST_STEPS: usize = 50_000_000;

/// Looks at the body that explaining one failure may take.
const EXPLAIN_STEPS: usize = 50_000;
/// Errors that explaining one failure may make, those inside alternatives included.
const EXPLAIN_ERRORS: u32 = 512;
/// As many whatever the size of the body; more than are told.
const FEWEST_ERRORS: u32 = 64;
/// Bytes of ways to places that explaining may copy.
const EXPLAIN_WAYS: usize = 128 * 1024 * 1024;

/// Up to this size, in bytes, the whole automaton of a pattern is kept while it is used, and
/// matching costs the same at each byte.
const SMALL_AUTOMATON: usize = 128 * 1024;
/// Steps for `TEXT` bytes under such a pattern.
const PRICE: usize = 8;
/// Steps for `TEXT` bytes that are held against a format.
const FORMAT: usize = 8;
/// From here on floats are whole and may stand for a neighbour.
const LARGEST_WHOLE: f64 = 9_007_199_254_740_992.0;
/// Below this compiled size any other pattern is one step a byte at worst.
const SMALL_PATTERN: usize = 1024;
/// Bytes of a compiled pattern that one step passes over.
const PATTERN_PER_STEP: usize = 32;

/// Measures how much one check may do.
pub fn meter(body: usize, prices: Prices) -> Meter {
    let steps = u32::try_from(allowance(body)).unwrap_or(u32::MAX);
    Meter::new(steps, u32::MAX, prices)
}

/// Measures how much explaining a failed check may do: few looks, each string read twice and each
/// name met once, and less than the check itself could.
pub fn explaining(body: usize, prices: Prices) -> Meter {
    let text = (body / TEXT).saturating_mul(prices.text as usize);
    let names = body.saturating_mul(prices.patterns_per_name as usize) / 2;
    let steps = EXPLAIN_STEPS.saturating_add(text.saturating_mul(2));
    let steps = steps.saturating_add(names).min(allowance(body) / 4);
    // Each error copies the way to its place, and that may be as long as the body.
    let errors = EXPLAIN_WAYS / body.max(1);
    let errors = u32::try_from(errors).unwrap_or(u32::MAX);
    let errors = errors.clamp(FEWEST_ERRORS, EXPLAIN_ERRORS);
    Meter::new(u32::try_from(steps).unwrap_or(u32::MAX), errors, prices)
}

fn allowance(body: usize) -> usize {
    let steps = FEWEST_STEPS.saturating_add(body.saturating_mul(STEPS_PER_BYTE));
    steps.min(MOST_STEPS)
}

/// Names what is seen to be dear.
pub fn problems(schema: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut patterns = 0;
    let mut size = 0;
    keyword::walk(schema, &mut |at, members| {
        patterns += patterns_of(members).count();
        problems.extend(broad(at, members));
        for pattern in patterns_of(members) {
            // Those after the bound are not even compiled.
            if size > MAX_PATTERNS_SIZE || patterns > MAX_PATTERNS {
                return;
            }
            size += places(pattern).map_or(MAX_PATTERN, |places| places.memory_usage());
            if size > MAX_PATTERNS_SIZE {
                problems.push(heavy(at, members, pattern));
            }
        }
    });
    problems.extend(closed(schema));
    if patterns > MAX_PATTERNS {
        let message =
            format!("the schema has {patterns} patterns, at most {MAX_PATTERNS} are allowed");
        let remedy = "share patterns under \"$defs\", or list values in \"enum\"";
        problems.push(Problem::new("cost", "", message, remedy));
    }
    problems
}

fn broad(at: &Pointer, members: &Map<String, Value>) -> Option<Problem> {
    let patterns = members.get("patternProperties")?.as_object()?.len();
    (patterns > MAX_PATTERN_PROPERTIES).then(|| {
        let message = format!(
            "every member would be held against {patterns} patterns, at most {MAX_PATTERN_PROPERTIES} are allowed"
        );
        let remedy = "join patterns that lead to the same schema, or name members in \"properties\"";
        Problem::new("cost", format!("{at}/patternProperties"), message, remedy)
    })
}

/// Each `unevaluatedProperties` compiles anew all patterns for names that it can see, along every
/// reference.
fn closed(schema: &Value) -> Option<Problem> {
    let (mut first, mut size) = (None, 0_usize);
    keyword::walk(schema, &mut |at, members| {
        if members.contains_key("unevaluatedProperties") {
            first.get_or_insert_with(|| format!("{at}/unevaluatedProperties"));
        }
        let names = members.get("patternProperties").and_then(Value::as_object);
        for pattern in names.into_iter().flat_map(Map::keys) {
            size += places(pattern).map_or(MAX_PATTERN, |places| places.memory_usage());
        }
    });
    if first.is_none() || size == 0 {
        return None;
    }
    let times = reference::seen_by_closed(schema);
    let work = times.saturating_mul(size as u64);
    let place = first.filter(|_| work > MAX_CLOSED_SIZE)?;
    let message = format!(
        "closed objects here and below see {times} schemas along references, and compiling would multiply {} KiB of \"patternProperties\" by that",
        size.div_ceil(1024)
    );
    let remedy = "close objects with \"additionalProperties\", or name members in \"properties\"";
    Some(Problem::new("cost", place, message, remedy))
}

/// Names the pattern with which all patterns together become too large.
fn heavy(at: &Pointer, members: &Map<String, Value>, pattern: &str) -> Problem {
    let keyword = match members.get("pattern").and_then(Value::as_str) {
        Some(own) if own == pattern => "pattern",
        _ => "patternProperties",
    };
    let message = format!(
        "with the pattern here the patterns of the schema take more than {} KiB compiled",
        MAX_PATTERNS_SIZE / 1024
    );
    let remedy = "repeat smaller classes fewer times (\\w and \\p{L} are large), or bound lengths with \"maxLength\"";
    Problem::new("cost", format!("{at}/{keyword}"), message, remedy)
}

fn patterns_of(members: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let one = members.get("pattern").and_then(Value::as_str);
    let many = members.get("patternProperties").and_then(Value::as_object);
    let many = many.into_iter().flat_map(Map::keys).map(String::as_str);
    one.into_iter().chain(many)
}

/// Finds what looks at text cost under a schema whose patterns are sound.
pub fn prices(schema: &Value) -> Prices {
    let (mut text, mut widest, mut all, mut is_closed, mut fraction) = (1, 0, 0, false, 0);
    let mut judged = HashSet::new();
    keyword::walk(schema, &mut |_, members| {
        if members.get("format").is_some_and(is_asserted) {
            text = text.max(FORMAT);
        }
        for pattern in patterns_of(members) {
            if judged.insert(pattern) {
                text = text.max(price(pattern, text));
            }
        }
        let names = members.get("patternProperties").and_then(Value::as_object);
        let many = names.map_or(0, Map::len);
        (widest, all) = (many.max(widest), many + all);
        is_closed |= members.contains_key("unevaluatedProperties");
        let divisor = members.get("multipleOf").and_then(Value::as_f64);
        if let Some(divisor) = divisor.filter(|divisor| !is_whole(*divisor)) {
            fraction = fraction.max(1 + binary_places(divisor));
        }
    });
    // It gathers the patterns of what stands beside it, and walks over the members once for all.
    let patterns = if is_closed { all } else { widest };
    Prices {
        text: u32::try_from(text).unwrap_or(u32::MAX),
        patterns_per_name: u32::try_from(patterns).unwrap_or(u32::MAX),
        fraction,
    }
}

/// Answers whether dividing by this is one instruction.
fn is_whole(divisor: f64) -> bool {
    divisor.fract() == 0.0 && divisor < LARGEST_WHOLE
}

fn is_asserted(format: &Value) -> bool {
    format
        .as_str()
        .is_some_and(|name| schema::FORMATS.contains(&name))
}

/// Most patterns read a byte in no time. Where the automaton does not fit, though, every place in
/// the pattern may have to be followed at each byte.
///
/// What could not be dearer than `known` is not judged closely, since that takes the most time.
fn price(pattern: &str, known: usize) -> usize {
    let size = places(pattern).map_or(MAX_PATTERN, |places| places.memory_usage());
    let at_worst = match size {
        0..=SMALL_PATTERN => TEXT,
        size => size * TEXT / PATTERN_PER_STEP,
    };
    if at_worst <= known {
        return known;
    }
    if is_through_soon(pattern) || has_small_automaton(pattern) {
        return PRICE;
    }
    at_worst
}

/// Compiles a pattern to the places it has, as far as it is within the bound.
fn places(pattern: &str) -> Option<thompson::NFA> {
    let translated = jsonschema_regex::to_rust_regex(pattern).ok()?;
    let places = thompson::Config::new()
        .which_captures(WhichCaptures::None)
        .nfa_size_limit(Some(MAX_PATTERN));
    let mut compiler = thompson::Compiler::new();
    compiler.configure(places).build(&translated).ok()
}

/// Answers whether a pattern is through after as many characters as it has places, whatever
/// follows: it begins at the start and nothing in it repeats without end.
fn is_through_soon(pattern: &str) -> bool {
    pattern.starts_with('^') && !pattern.contains(['*', '+', '|']) && !pattern.contains(",}")
}

fn has_small_automaton(pattern: &str) -> bool {
    let Ok(translated) = jsonschema_regex::to_rust_regex(pattern) else {
        return false;
    };
    let automaton = dense::Config::new()
        .start_kind(StartKind::Unanchored)
        .accelerate(false)
        .determinize_size_limit(Some(SMALL_AUTOMATON))
        .dfa_size_limit(Some(SMALL_AUTOMATON));
    let places = thompson::Config::new()
        .which_captures(WhichCaptures::None)
        .nfa_size_limit(Some(SMALL_AUTOMATON));
    let mut builder = dense::Builder::new();
    let builder = builder.configure(automaton).thompson(places);
    builder.build(&translated).is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::contract::{Validator, guard};

    fn checked(schema: &Value, body: &str) -> Result<(), String> {
        let validator = Validator::compile(schema).unwrap();
        let document = guard::parse(body.as_bytes(), &guard::Limits::default()).unwrap();
        let checked = validator.check(&document);
        checked.map_err(|violations| violations.to_string())
    }

    fn numbers(many: usize) -> String {
        let numbers: Vec<_> = (0..many).map(|number| number.to_string()).collect();
        format!("[{}]", numbers.join(","))
    }

    #[test]
    fn work_beyond_what_the_body_allows_is_refused() {
        let mut unevaluated = json!({"unevaluatedProperties": {"type": "integer"}});
        for _ in 0..12 {
            unevaluated =
                json!({"allOf": [unevaluated], "unevaluatedProperties": {"type": "integer"}});
        }
        let members: Vec<_> = (0..1000).map(|at| format!("\"m{at}\":1")).collect();
        let letters = "ab".repeat(20_000);
        for (schema, body) in [
            (unevaluated, format!("{{{}}}", members.join(","))),
            (
                json!({"anyOf": (0..200).map(|at| json!({"contains": {"const": -1 - at}})).collect::<Vec<_>>()}),
                numbers(20_000),
            ),
            (
                json!({"allOf": vec![json!({"uniqueItems": true}); 100]}),
                numbers(20_000),
            ),
            (
                json!({"items": {"not": {"enum": (0..5_000).map(|at| json!([at])).collect::<Vec<_>>()}}}),
                format!("[{}[-1]]", "[-1],".repeat(10_000)),
            ),
            (
                json!({"pattern": "[ab]*a[ab]{500}c"}),
                format!("\"{letters}\""),
            ),
        ] {
            let told = checked(&schema, &body).expect_err(&format!("{schema:.80}"));
            assert!(
                told.contains("too much work to be checked"),
                "{schema:.80}: {told}"
            );
        }
    }

    #[test]
    fn bodies_of_services_are_far_from_the_bound() {
        let order = json!({
            "type": "object",
            "properties": {
                "user": {"type": "string", "pattern": "^[a-z0-9._%+-]+@[a-z0-9.-]+\\.[a-z]{2,}$"},
                "photo": {"type": "string", "pattern": "^[A-Za-z0-9+/]*={0,2}$"},
                "kind": {"oneOf": (0..40).map(|at| json!({"const": format!("k{at}")})).collect::<Vec<_>>()},
                "lines": {"type": "array", "uniqueItems": true, "items": {"type": "integer"}},
            },
            "patternProperties": {"^x-[a-z]+$": {"type": "string"}, "^[0-9]+$": {"type": "number"}},
            "required": ["user", "kind"],
            "unevaluatedProperties": false,
        });
        let one = format!(
            r#"{{"user":"somebody.else@example.org","photo":"{}","kind":"k39","lines":[1,2,3],"x-a":"b","7":7}}"#,
            "QUJD".repeat(50)
        );
        let body = format!("[{}]", vec![one.as_str(); 2_000].join(","));
        let schema = json!({"items": order, "type": "array"});
        assert_eq!(checked(&schema, &body), Ok(()));
        let validator = Validator::compile(&schema).unwrap();
        let document = guard::parse(body.as_bytes(), &guard::Limits::default()).unwrap();
        // A quarter of what is allowed is enough.
        let meter = meter(body.len() / 4, prices(&schema));
        assert!(validator.is_valid(&document, &meter) && !meter.is_spent());
    }

    #[test]
    fn a_pattern_is_priced_by_its_automaton() {
        for pattern in [
            "^[0-9]{12,19}$",
            "^[a-z0-9._%+-]+@[a-z0-9.-]+\\.[a-z]{2,}$",
            "^[A-Za-z0-9+/]*={0,2}$",
            "^.{1,2000}$",
            "^\\p{L}{1,64}$",
            "^(?:[0-9]{1,3}\\.){3}[0-9]{1,3}$",
            "foo|bar",
        ] {
            assert_eq!(price(pattern, 1), PRICE, "{pattern}");
        }
        let [small, large] =
            ["[ab]*a[ab]{20}$", "[ab]*a[ab]{500}c"].map(|pattern| price(pattern, 1));
        assert!(PRICE < small && small < large, "{small} {large}");
    }

    #[test]
    fn too_many_patterns_are_refused_with_their_place() {
        let patterns = |many: usize| -> Map<String, Value> {
            (0..many)
                .map(|at| (format!("^a{at}"), json!(true)))
                .collect()
        };
        let broad = json!({"properties": {"a/b": {"patternProperties": patterns(129)}}});
        let told = problems(&broad);
        assert_eq!(told.len(), 1);
        assert_eq!(
            (told[0].rule, &*told[0].pointer),
            ("cost", "/properties/a~1b/patternProperties")
        );
        assert!(problems(&json!({"patternProperties": patterns(128)})).is_empty());
        let many = json!({"anyOf": (0..513).map(|at| json!({"pattern": format!("{at}")})).collect::<Vec<_>>()});
        assert_eq!(problems(&many)[0].rule, "cost");
    }

    fn names(many: usize, tail: &str) -> String {
        let names: Vec<_> = (0..many).map(|at| format!("\"{at:06}{tail}\":1")).collect();
        format!("{{{}}}", names.join(","))
    }

    fn shared(definition: Value, mut schema: Value) -> Value {
        schema["$defs"] = json!({"p": definition});
        schema
    }

    fn often(many: usize) -> Vec<Value> {
        vec![json!({"$ref": "#/$defs/p"}); many]
    }

    #[test]
    fn names_and_text_pay_for_all_that_looks_at_them() {
        let wide: Map<_, _> = (0..128)
            .map(|at| (format!("^[a-z]*{at}$"), json!(true)))
            .collect();
        let long = names(800, &"k".repeat(94));
        let missing = format!("{}z", "k".repeat(99));
        let dear = "\"ababababababababababababababab\",".repeat(2_000);
        for (schema, body) in [
            (
                shared(
                    json!({"maxLength": 10}),
                    json!({"propertyNames": {"allOf": often(3_000)}}),
                ),
                names(2_000, ""),
            ),
            (
                shared(
                    json!({"pattern": "^[0-9a-z]*$"}),
                    json!({"propertyNames": {"allOf": often(900)}}),
                ),
                names(1, &"a".repeat(60_000)),
            ),
            (
                shared(
                    json!({"required": [missing]}),
                    json!({"not": {"anyOf": often(5_000)}}),
                ),
                long,
            ),
            (
                json!({"patternProperties": wide, "additionalProperties": {"type": "integer"}}),
                names(5_000, ""),
            ),
            (
                shared(
                    json!({"format": "uri-reference"}),
                    json!({"allOf": often(100)}),
                ),
                format!("\"{}\"", "a.".repeat(100_000)),
            ),
            (
                shared(
                    json!({"multipleOf": 0.01}),
                    json!({"items": {"allOf": often(100)}}),
                ),
                format!("[{}1]", "12345678901.01,".repeat(2_000)),
            ),
            (
                json!({"items": {"pattern": "^[ab]*([ab]*a[ab]{500}c)?$"}}),
                format!("[{dear}1]"),
            ),
        ] {
            let told = checked(&schema, &body).expect_err(&format!("{schema:.80}"));
            assert!(
                told.contains("too much work to be checked"),
                "{schema:.80}: {told:.200}"
            );
        }
    }

    #[test]
    fn explaining_names_ends_early() {
        let schema = shared(
            json!({"const": "zz"}),
            json!({"propertyNames": {"format": "email", "anyOf": often(5_000)}}),
        );
        let validator = Validator::compile(&schema).unwrap();
        let body = names(100, "");
        let document = guard::parse(body.as_bytes(), &guard::Limits::default()).unwrap();
        assert!(!validator.is_valid(&document, &meter(body.len(), prices(&schema))));
        let told = validator.check(&document).unwrap_err();
        assert_eq!(told.as_slice()[0].keyword, "propertyNames");
    }

    #[test]
    fn large_patterns_are_refused_together() {
        let large = |at| json!({"pattern": format!("\\p{{L}}{{1,100}}{at}")});
        let some = json!({"anyOf": (0..20).map(large).collect::<Vec<_>>()});
        assert!(problems(&some).is_empty());
        let many = json!({"anyOf": (0..300).map(large).collect::<Vec<_>>()});
        let told = problems(&many);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].rule, "cost");
        assert!(
            told[0].pointer.starts_with("/anyOf/"),
            "{}",
            told[0].pointer
        );
        let closed = shared(
            json!({"patternProperties": {"^\\p{L}{1,4}$": true}}),
            json!({"allOf": often(9_000), "unevaluatedProperties": {"type": "integer"}}),
        );
        assert_eq!(problems(&closed)[0].pointer, "/unevaluatedProperties");
        let usual = shared(
            json!({"patternProperties": {"^x-": true}}),
            json!({"allOf": often(3), "unevaluatedProperties": false}),
        );
        assert!(problems(&usual).is_empty());
    }

    /// Schemas that are applied without a look at the body are bounded where they are compiled.
    #[test]
    fn work_that_no_meter_sees_is_refused() {
        for schema in [
            json!({"items": {"not": {"anyOf": vec![json!(false); 200]}}}),
            json!({"items": {"allOf": vec![json!({"$ref": "#/$defs/all"}); 200]}, "$defs": {"all": true}}),
        ] {
            let problems = Validator::compile(&schema).unwrap_err();
            assert_eq!(problems.as_slice()[0].rule, "branches");
        }
        let open: Map<_, _> = (0..500).map(|at| (format!("m{at}"), json!({}))).collect();
        Validator::compile(&json!({"properties": open})).unwrap();
    }
}
