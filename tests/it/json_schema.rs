//! The official JSON Schema test suite, draft 2020-12, on the way that bodies take.
//!
//! Each schema goes through the compiler of contracts and each instance, as text, through the
//! guard and the check. The required part counts, and `optional/format` for the formats claimed.
//! Where we differ on purpose, `json_schema/exceptions.toml` says so, each with its reason: a
//! difference that is not listed fails, and so does a listed one that is none.

use crate::support::program;
use hermes_sidecar::contract::guard::{self, Limits};
use hermes_sidecar::contract::{FORMATS, Validator};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

const EXCEPTIONS: &str = include_str!("json_schema/exceptions.toml");

/// One schema of the suite with its instances.
#[derive(Deserialize)]
struct Group {
    description: String,
    schema: Value,
    tests: Vec<Instance>,
}

#[derive(Deserialize)]
struct Instance {
    description: String,
    /// As it is written: numbers must not be rounded before the guard sees them.
    data: Box<RawValue>,
    valid: bool,
}

/// Where we differ, and why.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    /// Below the draft's folder, without `.json`.
    file: String,
    /// The schema's description.
    schema: String,
    /// Descriptions of instances; none: the schema itself is refused, for this rule.
    #[serde(default)]
    instances: Vec<String>,
    rule: Option<String>,
    reason: String,
}

#[derive(Deserialize)]
struct Exceptions {
    exception: Vec<Exception>,
}

/// What differs from the suite, by file, schema and then instance or, where the schema was
/// refused, rule.
type Differences = BTreeSet<(String, String, String)>;

/// What has been held against the suite.
#[derive(Default)]
struct Tally {
    agreed: usize,
    differed: usize,
    refused: usize,
    differences: Differences,
}

#[test]
fn verdicts_are_those_of_the_official_test_suite() {
    let Some(suite) = program::schema_suite() else {
        return;
    };
    let draft = suite.join("tests/draft2020-12");
    let mut files = files_of(&draft, "");
    files.extend(FORMATS.map(|format| format!("optional/format/{format}")));
    files.sort_unstable();
    let mut tally = Tally::default();
    for file in &files {
        let text = std::fs::read(draft.join(format!("{file}.json"))).unwrap();
        let groups: Vec<Group> = serde_json::from_slice(&text).unwrap();
        for group in &groups {
            tally.hold(file, group);
        }
    }
    let report = format!(
        "JSON Schema test suite: {} files, {} tests: {} verdicts agree, {} differ as listed, {} are of schemas refused as listed\n",
        files.len(),
        tally.agreed + tally.differed + tally.refused,
        tally.agreed,
        tally.differed,
        tally.refused,
    );
    // Past the capture of a passing test's output: the counts are always shown.
    std::io::stderr().write_all(report.as_bytes()).unwrap();
    // Fewer would mean that the suite was not found whole.
    assert!(files.len() >= 60 && tally.agreed > 1_500, "{report}");

    let listed = listed();
    let told = |differences: BTreeSet<&(String, String, String)>| {
        let mut text = String::new();
        for (file, schema, what) in differences {
            writeln!(text, "  {file}: {schema}: {what}").unwrap();
        }
        text
    };
    let unlisted = told(tally.differences.difference(&listed).collect());
    let stale = told(listed.difference(&tally.differences).collect());
    assert!(
        unlisted.is_empty() && stale.is_empty(),
        "not listed:\n{unlisted}\nlisted, but no difference:\n{stale}"
    );
}

impl Tally {
    fn hold(&mut self, file: &str, group: &Group) {
        let mut differs = |what: &str| {
            let place = (file.to_owned(), group.description.clone(), what.to_owned());
            self.differences.insert(place);
        };
        let validator = match Validator::compile(&group.schema) {
            Ok(validator) => validator,
            Err(problems) => {
                let rules: BTreeSet<_> = problems.into_iter().map(|problem| problem.rule).collect();
                for rule in rules {
                    differs(&format!("refused ({rule})"));
                }
                self.refused += group.tests.len();
                return;
            }
        };
        for instance in &group.tests {
            let body = instance.data.get().as_bytes();
            let is_valid = guard::parse(body, &Limits::default())
                .is_ok_and(|document| validator.check(&document).is_ok());
            if is_valid == instance.valid {
                self.agreed += 1;
            } else {
                differs(&instance.description);
                self.differed += 1;
            }
        }
    }
}

/// Lists the files of one folder, without `.json`.
fn files_of(draft: &Path, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(draft.join(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files = names.filter_map(|name| Some(name.strip_suffix(".json")?.to_owned()));
    files.collect()
}

fn listed() -> Differences {
    let exceptions: Exceptions = toml::from_str(EXCEPTIONS).unwrap();
    let mut listed = BTreeSet::new();
    for exception in exceptions.exception {
        assert!(!exception.reason.trim().is_empty(), "{}", exception.schema);
        let refused = exception.rule.map(|rule| format!("refused ({rule})"));
        for what in exception.instances.into_iter().chain(refused) {
            let place = (exception.file.clone(), exception.schema.clone(), what);
            assert!(listed.insert(place.clone()), "listed twice: {place:?}");
        }
    }
    listed
}
