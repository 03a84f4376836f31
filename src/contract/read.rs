//! From bytes to a `Contract`, with every fault on the way.

use std::{num::NonZeroU32, time::Duration};

use bytes::Bytes;
use semver::Version;
use serde_json::{Map, Value};

use super::{
    Constraints, Contract, ContractId, MAX_CANONICAL, Probe, Problem, Problems,
    guard::{self, Limits},
    number::{self, Reading},
    pointer::{Pointer, shorten},
    section::Section,
};
use crate::identity::Digest;

/// The largest text, in bytes: the canonical form with room for layout and signatures.
const MAX_TEXT: usize = 4 * MAX_CANONICAL;
/// Integers that every reader of JSON holds exactly end here.
const LARGEST_INTEGER: u64 = 1 << 53;
/// A call longer than a day is not a call.
const MAX_TIMEOUT_MS: u64 = 86_400_000;
const DEFAULT_CONCURRENT: u64 = 1_024;
const MAX_CONCURRENT: u64 = 1_000_000;
const MAX_RETRIES: u64 = 2;
pub const DEFAULT_CALLS: u32 = 8;
pub const DEFAULT_CONCURRENCY: u32 = 1;
const MAX_CALLS: u64 = 1_000;
const MAX_PROBE_CONCURRENCY: u64 = 8;
const MAX_LABEL: usize = 128;
const MAX_DESCRIPTION: usize = 4_096;

const TOP: &[&str] = &[
    "id",
    "version",
    "description",
    "input_schema",
    "output_schema",
    "constraints",
    "tags",
    "idempotent",
    "retry_policy",
    "fallback",
    "compensate",
    "probe",
    "signatures",
];
const CONSTRAINTS: &[&str] = &[
    "timeout_ms",
    "region_support",
    "max_concurrent",
    "utc_offsets",
];
const RETRY_POLICY: &[&str] = &["max_retries"];
const PROBE: &[&str] = &["input", "expect", "timeout_ms", "calls", "concurrency"];

/// Reads the bytes as one JSON object that survives every other JSON reader unchanged.
pub fn document(body: &[u8]) -> Result<Map<String, Value>, Problems> {
    let document = text(body, &Limits::default())?;
    let mut problems = Problems::default();
    large_integers(&document, &mut Pointer::default(), &mut problems);
    match document {
        Value::Object(members) => problems.or(members),
        _ => {
            let remedy = "wrap it in an object with id, version, input_schema, output_schema and constraints";
            problems.push(Problem::new(
                "json",
                "",
                "a contract is a JSON object",
                remedy,
            ));
            Err(problems)
        }
    }
}

/// Reads the bytes as one JSON document of bounded size and depth, without duplicate names and
/// without numbers that would be taken for others.
pub fn text(body: &[u8], limits: &Limits) -> Result<Value, Problems> {
    if body.len() > MAX_TEXT {
        return Err(oversize(body.len(), "text", MAX_TEXT).into());
    }
    let guarded = guard::parse(body, limits).map_err(|refusal| {
        let pointer = refusal.pointer().unwrap_or_default();
        let remedy = "write one UTF-8 JSON document in which every member name is unique";
        Problem::new("json", pointer, refusal.message(), remedy)
    })?;
    let mut problems = Problems::default();
    for (offset, text) in guarded.long_numbers() {
        if matches!(
            number::read(text),
            Reading::Overflow | Reading::Rounded { .. }
        ) {
            let message = format!("the number at byte {offset} cannot be held exactly");
            let remedy = "write a number with at most 17 significant digits";
            problems.push(Problem::new("inexact-number", "", message, remedy));
        }
    }
    let document: Value = serde_json::from_slice(body).map_err(|error| {
        let remedy = "write one UTF-8 JSON document";
        Problem::new("json", "", error.to_string(), remedy)
    })?;
    problems.or(document)
}

fn oversize(length: usize, what: &str, most: usize) -> Problem {
    let message = format!("the {what} has {length} bytes, at most {most} are allowed");
    let remedy = "move examples and prose out of the schemas, or split the capability";
    Problem::new("oversize", "", message, remedy)
}

fn large_integers(value: &Value, at: &mut Pointer, problems: &mut Problems) {
    match value {
        Value::Number(number) => {
            // Not as a float: 2^53 + 1 would be rounded to the bound.
            let integer = number.as_i64().map(i64::unsigned_abs).or(number.as_u64());
            let is_large = match integer {
                Some(integer) => integer > LARGEST_INTEGER,
                None => number
                    .as_f64()
                    .is_none_or(|float| float.abs() > LARGEST_INTEGER as f64),
            };
            if is_large {
                let message = "integers beyond ±2^53 read differently in different programs";
                let remedy = "use a smaller number, or a string";
                problems.push(Problem::new("large-integer", at.as_str(), message, remedy));
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                at.within(&index.to_string(), |at| large_integers(item, at, problems));
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                at.within(name, |at| large_integers(member, at, problems));
            }
        }
        _ => {}
    }
}

/// Reads the fields of a contract; `body` is what `document` was read from.
pub fn contract(document: &Map<String, Value>, body: &[u8]) -> Result<Contract, Problems> {
    let mut problems = Problems::default();
    let mut top = Section::new("", document, TOP, &mut problems);
    let id = top
        .id("id")
        .or_else(|| top.missing("id", "\"fraud-detection-v1.0\""));
    let version = top.version(id.as_ref());
    let input_schema = top.schema("input_schema");
    let output_schema = top.schema("output_schema");
    let description = top.text("description", MAX_DESCRIPTION).unwrap_or_default();
    let tags = top.labels("tags");
    let idempotent = top.flag("idempotent");
    let fallback = top.fallback(id.as_ref());
    let compensate = top.id("compensate");
    let signatures = top.signatures();
    let constraints = top.object("constraints");
    let retry_policy = top.object("retry_policy");
    let probe = top.object("probe");
    if !document.contains_key("constraints") {
        top.missing::<()>("constraints", "{\"timeout_ms\": 500}");
    }
    let constraints = constraints.and_then(|members| read_constraints(members, &mut problems));
    let max_retries = retry_policy.map_or(MAX_RETRIES, |members| {
        let mut section = Section::new("/retry_policy", members, RETRY_POLICY, &mut problems);
        section
            .integer("max_retries", 0, MAX_RETRIES)
            .unwrap_or(MAX_RETRIES)
    });
    let probe = probe.and_then(|members| read_probe(members, &mut problems));
    let canonical = canonical(document, &mut problems);
    let read = (
        id,
        version,
        input_schema,
        output_schema,
        constraints,
        canonical,
    );
    let (Some(id), Some(version), Some(input), Some(output), Some(constraints), Some(canonical)) =
        read
    else {
        return Err(problems);
    };
    let extensions = document.iter().filter(|(name, _)| name.starts_with("x-"));
    problems.or(Contract {
        id,
        version,
        description: description.to_owned(),
        input_schema: input.clone(),
        output_schema: output.clone(),
        constraints,
        tags,
        idempotent,
        max_retries: u32::try_from(max_retries).unwrap_or_default(),
        fallback,
        compensate,
        probe,
        signatures,
        extensions: extensions
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        digest: Digest::of(&canonical),
        canonical: canonical.into(),
        body: Bytes::copy_from_slice(body),
    })
}

/// Writes the RFC 8785 form without `signatures`.
fn canonical(document: &Map<String, Value>, problems: &mut Problems) -> Option<Vec<u8>> {
    let mut unsigned = document.clone();
    unsigned.remove("signatures");
    match serde_json_canonicalizer::to_vec(&unsigned) {
        Ok(canonical) if canonical.len() <= MAX_CANONICAL => Some(canonical),
        Ok(canonical) => {
            problems.push(oversize(canonical.len(), "canonical form", MAX_CANONICAL));
            None
        }
        Err(error) => {
            let message = format!("there is no canonical form (RFC 8785): {error}");
            problems.push(Problem::new("json", "", message, "write plain JSON values"));
            None
        }
    }
}

fn read_constraints(members: &Map<String, Value>, problems: &mut Problems) -> Option<Constraints> {
    let mut section = Section::new("/constraints", members, CONSTRAINTS, problems);
    let timeout_ms = match section.members.get("timeout_ms") {
        None => section.missing("timeout_ms", "500"),
        Some(_) => section.integer("timeout_ms", 1, MAX_TIMEOUT_MS),
    };
    let region_support = section.labels("region_support");
    let utc_offsets = section.utc_offsets();
    let max_concurrent = section
        .integer("max_concurrent", 1, MAX_CONCURRENT)
        .unwrap_or(DEFAULT_CONCURRENT);
    Some(Constraints {
        timeout: Duration::from_millis(timeout_ms?),
        region_support,
        max_concurrent: NonZeroU32::new(u32::try_from(max_concurrent).ok()?)?,
        utc_offsets,
    })
}

fn read_probe(members: &Map<String, Value>, problems: &mut Problems) -> Option<Probe> {
    let mut section = Section::new("/probe", members, PROBE, problems);
    let timeout = section.integer("timeout_ms", 1, MAX_TIMEOUT_MS);
    let calls = section.integer("calls", 1, MAX_CALLS);
    let concurrency = section.integer("concurrency", 1, MAX_PROBE_CONCURRENCY);
    let input = match section.members.get("input") {
        None => section.missing("input", "an input the trial call may send")?,
        Some(input) => input.clone(),
    };
    Some(Probe {
        input,
        expect: section.members.get("expect").cloned(),
        timeout: timeout.map(Duration::from_millis),
        calls: u32::try_from(calls.unwrap_or(DEFAULT_CALLS.into())).ok()?,
        concurrency: u32::try_from(concurrency.unwrap_or(DEFAULT_CONCURRENCY.into())).ok()?,
    })
}

/// The fields that only contracts have.
impl<'a> Section<'a, '_> {
    fn labels(&mut self, name: &str) -> Vec<String> {
        let what = "a string of 1 to 128 characters without control characters";
        self.strings(name, what, |text| {
            !text.is_empty() && text.len() <= MAX_LABEL && !text.contains(char::is_control)
        })
    }

    fn utc_offsets(&mut self) -> Vec<String> {
        self.strings("utc_offsets", "an offset such as \"+08:00\"", is_utc_offset)
    }

    fn id(&mut self, name: &str) -> Option<ContractId> {
        let text = match self.members.get(name)? {
            Value::String(text) => text.as_str(),
            _ => "",
        };
        self.parse_id(name, text)
    }

    fn parse_id(&mut self, name: &str, text: &str) -> Option<ContractId> {
        let id = text.parse();
        if let Err(bad) = &id {
            let bad: &super::BadId = bad;
            let remedy = match id_like(text) {
                Some(near) => format!("for example \"{near}\""),
                None => "for example \"fraud-detection-v1.0\"".to_owned(),
            };
            let message = format!("\"{}\" is no contract id: {bad}", shorten(text));
            self.fault("id-form", name, &message, &remedy);
        }
        id.ok()
    }

    fn version(&mut self, id: Option<&ContractId>) -> Option<Version> {
        if !self.members.contains_key("version") {
            return self.missing("version", "\"1.0.0\"");
        }
        let text = self.members.get("version").and_then(Value::as_str);
        let version = text.and_then(|text| Version::parse(text).ok());
        let Some(version) =
            version.filter(|version| version.pre.is_empty() && version.build.is_empty())
        else {
            let message = "must be a string MAJOR.MINOR.PATCH without suffixes";
            self.fault("version-form", "version", message, "for example \"1.0.0\"");
            return None;
        };
        if let Some(id) = id {
            let of_id = (u64::from(id.major()), u64::from(id.minor()));
            if of_id != (version.major, version.minor) {
                let message = format!(
                    "version {version} disagrees with the id, which says {}.{}",
                    id.major(),
                    id.minor()
                );
                let family = id.family();
                let remedy = format!(
                    "set the version to {}.{}.{}, or the id to \"{family}-v{}.{}\"",
                    id.major(),
                    id.minor(),
                    version.patch,
                    version.major,
                    version.minor
                );
                self.fault("id-version", "version", &message, &remedy);
                return None;
            }
        }
        Some(version)
    }

    fn schema(&mut self, name: &str) -> Option<&'a Value> {
        match self.members.get(name) {
            None => self.missing(
                name,
                "{\"type\": \"object\", \"properties\": {}, \"required\": []}",
            ),
            Some(schema @ (Value::Object(_) | Value::Bool(_))) => Some(schema),
            Some(_) => {
                self.fault(
                    "field-type",
                    name,
                    "must be a JSON Schema",
                    "write an object",
                );
                None
            }
        }
    }

    fn fallback(&mut self, id: Option<&ContractId>) -> Vec<ContractId> {
        let mut ids = Vec::new();
        for item in self.list("fallback") {
            let Some(other) = self.parse_id("fallback", item.as_str().unwrap_or_default()) else {
                continue;
            };
            if id == Some(&other) {
                let message = "the contract falls back to itself";
                self.fault("fallback-circle", "fallback", message, "remove the entry");
            } else if ids.contains(&other) {
                let message = format!("{other} is named twice");
                self.fault(
                    "field-type",
                    "fallback",
                    &message,
                    "remove one of the entries",
                );
            } else {
                ids.push(other);
            }
        }
        ids
    }

    fn signatures(&mut self) -> Vec<Value> {
        let signatures = self.list("signatures");
        if !signatures.iter().all(Value::is_object) {
            let message = "every signature must be an object with \"protected\" and \"signature\"";
            let remedy = "sign the file again";
            self.fault("field-type", "signatures", message, remedy);
        }
        signatures.to_vec()
    }
}

/// Rewrites what looks like an id into the right form.
fn id_like(text: &str) -> Option<String> {
    let lower: String = text
        .chars()
        .map(|letter| match letter {
            '_' | ' ' => '-',
            letter => letter.to_ascii_lowercase(),
        })
        .collect();
    let with_minor = format!("{lower}.0");
    let with_version = format!("{lower}-v1.0");
    let candidates = [lower, with_minor, with_version];
    let mut fitting = candidates
        .into_iter()
        .filter(|text| text.parse::<ContractId>().is_ok());
    fitting.next()
}

fn is_utc_offset(text: &str) -> bool {
    let Some((hours, minutes)) = text
        .strip_prefix(['+', '-'])
        .and_then(|offset| offset.split_once(':'))
    else {
        return false;
    };
    let number = |text: &str, most: u32| {
        text.len() == 2
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && text.parse::<u32>().is_ok_and(|number| number <= most)
    };
    number(hours, 14) && number(minutes, 59)
}
