//! What a schema may cost, at most, for each byte of a body.
//!
//! Two bounds together: what is seen to be dear in the schema is refused when it is compiled, with
//! its place; whatever else it asks for, a check may take only as many steps as its body allows.
//! So no body and no schema keeps a thread for longer than `MOST_STEPS`.

use jsonschema::PatternOptions;
use regex_automata::{
    dfa::{StartKind, dense},
    nfa::thompson::{self, WhichCaptures},
};
use serde_json::{Map, Value, json};

use super::{Problem, keyword, pointer::Pointer, schema, tree::Meter, tree::TEXT};

/// The largest compiled pattern, in bytes.
pub const MAX_PATTERN: usize = 256 * 1024;
/// Every member of a body is held against each of these.
const MAX_PATTERN_PROPERTIES: usize = 128;
/// How many patterns a schema may have: judging one takes up to five milliseconds.
const MAX_PATTERNS: usize = 512;
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

/// Up to this size, in bytes, the whole automaton of a pattern is kept while it is used, and
/// matching costs the same at each byte.
const SMALL_AUTOMATON: usize = 128 * 1024;
/// Steps for `TEXT` bytes under such a pattern.
const PRICE: usize = 8;
/// Below this compiled size any other pattern is one step a byte at worst.
const SMALL_PATTERN: usize = 1024;
/// Bytes of a compiled pattern that one step passes over.
const PATTERN_PER_STEP: usize = 32;

/// Measures how much one check may do.
pub fn meter(body: usize, per_text: u32) -> Meter {
    let steps = FEWEST_STEPS.saturating_add(body.saturating_mul(STEPS_PER_BYTE));
    let steps = u32::try_from(steps.min(MOST_STEPS)).unwrap_or(u32::MAX);
    Meter::new(steps, u32::MAX, per_text)
}

/// Measures how much explaining a failed check may do: few looks, and each string read twice.
pub fn explaining(body: usize, per_text: u32) -> Meter {
    let text = (body / TEXT).saturating_mul(per_text as usize);
    let steps = EXPLAIN_STEPS.saturating_add(text.saturating_mul(2));
    let steps = u32::try_from(steps.min(MOST_STEPS)).unwrap_or(u32::MAX);
    Meter::new(steps, EXPLAIN_ERRORS, per_text)
}

/// Names what is seen to be dear.
pub fn problems(schema: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut patterns = 0;
    keyword::walk(schema, &mut |at, members| {
        patterns += patterns_of(members).count();
        problems.extend(broad(at, members));
    });
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

fn patterns_of(members: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let one = members.get("pattern").and_then(Value::as_str);
    let many = members.get("patternProperties").and_then(Value::as_object);
    let many = many.into_iter().flat_map(Map::keys).map(String::as_str);
    one.into_iter().chain(many)
}

/// Finds the steps that `TEXT` bytes of a string cost under the dearest pattern of a schema whose
/// patterns are sound.
pub fn per_text(schema: &Value) -> u32 {
    let mut dearest = 1;
    keyword::walk(schema, &mut |_, members| {
        for pattern in patterns_of(members) {
            dearest = dearest.max(price(pattern));
        }
    });
    u32::try_from(dearest).unwrap_or(u32::MAX)
}

/// Most patterns read a byte in no time. Where the automaton does not fit, though, every place in
/// the pattern may have to be followed at each byte.
fn price(pattern: &str) -> usize {
    if is_through_soon(pattern) || has_small_automaton(pattern) {
        return PRICE;
    }
    let probe = json!({ "pattern": pattern });
    let fits = |size: &usize| {
        let limited = PatternOptions::regex().size_limit(*size);
        let options = schema::options().with_pattern_options(limited);
        options.build(&probe).is_ok()
    };
    let sizes = std::iter::successors(Some(SMALL_PATTERN), |size| Some(size * 4));
    let size = sizes.take_while(|size| *size < MAX_PATTERN).find(fits);
    match size.unwrap_or(MAX_PATTERN) {
        SMALL_PATTERN => TEXT,
        size => size * TEXT / PATTERN_PER_STEP,
    }
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
        let meter = meter(body.len() / 4, per_text(&schema));
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
            assert_eq!(price(pattern), PRICE, "{pattern}");
        }
        let [small, large] = ["[ab]*a[ab]{20}$", "[ab]*a[ab]{500}c"].map(price);
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
