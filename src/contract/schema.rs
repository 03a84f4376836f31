//! From a schema to a validator that cannot be made slow.
//!
//! - draft 2020-12 only; nothing is fetched; patterns run in linear time
//! - `format` is asserted for the names in `FORMATS`, on both sides of a call alike
//! - a body is first checked yes or no; only a failure is explained; both within a bound (`cost`)

use std::fmt;

use jsonschema::{Draft, PatternOptions, ValidationOptions};
use serde_json::Value;

use super::{
    Problem, Problems, Violation, Violations, cost,
    guard::Document,
    keyword,
    number::Lines,
    reference::{self, DIALECT},
    tree::{Meter, Tree},
    violation,
};

/// The formats that are asserted. Others, `regex` among them (a body must not make us compile
/// one), say nothing about a value, and the linter warns of them.
pub const FORMATS: [&str; 15] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "iri",
    "iri-reference",
    "json-pointer",
    "relative-json-pointer",
    "time",
    "uri",
    "uri-reference",
    "uuid",
];

/// A compiled schema.
pub struct Validator {
    inner: jsonschema::Validator<Tree>,
    lines: Lines,
    /// What text costs under the dearest pattern.
    per_text: u32,
}

impl Validator {
    /// Compiles a schema, or tells every fault it has.
    pub fn compile(schema: &Value) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        problems.extend(faults(schema));
        problems.or(())?;
        let inner = options().build(schema).map_err(|error| {
            let place = error.schema_path().as_str();
            let message = format!("the schema cannot be compiled: {}", error.masked());
            Problem::new("schema", place, message, "correct or simplify the schema")
        })?;
        Ok(Self {
            inner,
            lines: Lines::of(schema),
            per_text: cost::per_text(schema),
        })
    }

    /// Checks a body; only a body that fails costs more than a look.
    pub fn check(&self, document: &Document<'_>) -> Result<(), Violations> {
        for (offset, text) in document.long_numbers() {
            if self.lines.may_misjudge(text) {
                let message = format!(
                    "the number at byte {offset} has more digits than can be compared exactly"
                );
                return Err(Violation::of_body("number", message).into());
            }
        }
        let meter = cost::meter(document.length(), self.per_text);
        let is_valid = self.is_valid(document, &meter);
        if meter.is_spent() {
            let message = "the body takes too much work to be checked against this schema";
            return Err(Violation::of_body("other", message.to_owned()).into());
        }
        if is_valid {
            return Ok(());
        }
        Err(self.explain(document))
    }

    /// Answers yes or no; with a spent meter the answer means nothing.
    pub(super) fn is_valid(&self, document: &Document<'_>, meter: &Meter) -> bool {
        self.inner.is_valid(document.tree().metered(meter))
    }

    #[cold]
    fn explain(&self, document: &Document<'_>) -> Violations {
        let meter = cost::explaining(document.length(), self.per_text);
        let errors = self.inner.iter_errors(document.tree().metered(&meter));
        let found = meter.believable(errors).map(|error| Violation::of(&error));
        Violations::gather(found).unwrap_or_else(|| {
            let message = "the body does not conform; it takes too much work to say where";
            Violation::of_body("other", message.to_owned()).into()
        })
    }
}

impl fmt::Debug for Validator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Validator")
    }
}

pub fn options() -> ValidationOptions<'static, std::sync::Arc<dyn jsonschema::Retrieve>, Tree> {
    jsonschema::options_for::<Tree>()
        .with_draft(Draft::Draft202012)
        .offline()
        .should_validate_formats(true)
        .with_format("regex", |_: &str| true)
        .with_format("uri-template", |_: &str| true)
        .with_pattern_options(PatternOptions::regex().size_limit(cost::MAX_PATTERN))
}

/// Finds everything that keeps a schema from being used; places are relative to the schema.
pub fn faults(schema: &Value) -> Vec<Problem> {
    if let Some(problem) = bare_property_map(schema) {
        return vec![problem];
    }
    // What is too dear is not even tried.
    let mut problems = cost::problems(schema);
    if !problems.is_empty() {
        return problems;
    }
    keyword::walk(schema, &mut |at, members| {
        problems.extend(foreign_dialect(at.as_str(), members));
        problems.extend(misspelt(at.as_str(), members));
        problems.extend(broken_patterns(at.as_str(), members));
    });
    // Judged against our dialect whatever the schema claims to be.
    let metaschema = jsonschema::draft202012::meta::validator();
    let errors = metaschema.iter_errors(schema).take(violation::MOST);
    problems.extend(errors.map(|error| not_a_schema(schema, &error)));
    problems.extend(reference::problems(schema));
    problems
}

type Members = serde_json::Map<String, Value>;

fn foreign_dialect(at: &str, members: &Members) -> Option<Problem> {
    let dialect = members.get("$schema")?;
    let known = dialect.as_str().map(|uri| uri.trim_end_matches('#')) == Some(DIALECT);
    (!known).then(|| {
        let message = format!("{} is not the dialect used here", violation::quote(dialect));
        let remedy = format!("write the schema for draft 2020-12 and say \"{DIALECT}\"");
        Problem::new("dialect", format!("{at}/$schema"), message, remedy)
    })
}

fn misspelt(at: &str, members: &Members) -> Vec<Problem> {
    let unknown = members.keys().filter(|name| keyword::is_unknown(name));
    let near = unknown.filter_map(|name| Some((name, keyword::likely(name)?)));
    let problem = |(name, meant): (&String, &str)| {
        let message = format!("\"{name}\" is no keyword and checks nothing");
        let remedy = format!("did you mean \"{meant}\"?");
        Problem::new("misspelt-keyword", format!("{at}/{name}"), message, remedy)
    };
    near.map(problem).collect()
}

fn broken_patterns(at: &str, members: &Members) -> Vec<Problem> {
    let one = members.get("pattern").and_then(Value::as_str);
    let one = one.map(|pattern| (format!("{at}/pattern"), pattern));
    let names = members.get("patternProperties").and_then(Value::as_object);
    let many = names.into_iter().flat_map(|members| members.keys());
    let many = many.map(|pattern| (format!("{at}/patternProperties"), pattern.as_str()));
    let mut problems = Vec::new();
    for (place, pattern) in one.into_iter().chain(many) {
        let probe = serde_json::json!({ "pattern": pattern });
        if options().build(&probe).is_err() {
            let message = format!(
                "the pattern {} is not in the linear-time subset of regular expressions",
                violation::quote(&pattern.into())
            );
            let remedy =
                "write it without look-around and backreferences, and with small repetition counts";
            problems.push(Problem::new("pattern", place, message, remedy));
        }
    }
    problems
}

fn not_a_schema(schema: &Value, error: &jsonschema::ValidationError<'_>) -> Problem {
    let place = error.instance_path().as_str();
    let name = place
        .rsplit('/')
        .find(|name| name.parse::<usize>().is_err());
    let name = name.unwrap_or_default();
    let value = schema.pointer(place);
    let shown = value.map(violation::quote).unwrap_or_default();
    let message = format!("{shown} is not valid for \"{name}\" in draft 2020-12");
    let meant = value.and_then(Value::as_str).and_then(keyword::likely_type);
    let remedy = match (name, meant, value) {
        ("type", Some(meant), _) => format!("did you mean \"{meant}\"?"),
        ("type", None, _) => {
            "use array, boolean, integer, null, number, object or string".to_owned()
        }
        ("required", _, Some(Value::Bool(_))) => {
            "list the names of required members in the object's own \"required\"".to_owned()
        }
        ("items", _, Some(Value::Array(_))) => {
            "use \"prefixItems\" for a list of schemas by position".to_owned()
        }
        _ => format!("it {}", Violation::of(error).message),
    };
    Problem::new("schema", place, message, remedy)
}

/// Recognises `{"user_id": {"type": "string"}}`, which accepts everything, and corrects it.
pub fn bare_property_map(schema: &Value) -> Option<Problem> {
    let members = schema.as_object().filter(|members| !members.is_empty())?;
    let is_schema = |value: &Value| {
        let members = value.as_object();
        members.is_some_and(|members| members.keys().any(|name| keyword::holds(name).is_some()))
    };
    let is_property = |(name, value): (&String, &Value)| {
        let takes_object = keyword::holds(name).is_some_and(|holds| holds != keyword::Holds::Value);
        is_schema(value) && !takes_object && !name.starts_with('$')
    };
    if !members.iter().all(is_property) {
        return None;
    }
    let names: Vec<_> = members.keys().collect();
    let corrected = serde_json::json!({
        "type": "object",
        "properties": members,
        "required": names,
    });
    Some(Problem::new(
        "bare-properties",
        "",
        "this is a map of properties, which as a schema accepts everything",
        format!("write {corrected}"),
    ))
}

#[cfg(test)]
mod tests;
