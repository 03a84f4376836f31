//! What is wrong or doubtful in contract files, before anybody meets them at run time.
//!
//! - errors are what the sidecar itself would refuse, found by the same code, plus what only
//!   several files or a probe against its schema can show
//! - every finding of every file at once, in the order of the files
//! - an OpenAPI document is judged as the contracts it holds, at the places where it says them
//! - elsewhere: changes between versions (`compatibility`)

mod doubt;
mod expectation;
mod place;
mod render;
mod rules;
mod sarif;
mod stand_in;

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value};

use doubt::doubts;
use place::Place;
pub use render::{human, json};
pub use sarif::sarif;

use super::{
    Contract, ContractId, Problem, Profile, Validator, guard,
    guard::Limits,
    openapi::{self, Draft, Origins},
    read, schema, trust,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Error,
    Warning,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One thing to change in one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub file: String,
    pub severity: Severity,
    /// Where the file says it, counted from 1.
    pub line: usize,
    pub column: usize,
    #[serde(flatten)]
    pub problem: Problem,
}

/// Lints files, given as name and content.
pub fn lint(files: &[(String, Vec<u8>)], profile: Profile) -> Vec<Finding> {
    let mut reports: Vec<Report> = files
        .iter()
        .flat_map(|(name, body)| Report::all_of(name, body, profile))
        .collect();
    let circles = circles(&reports);
    let stand_ins = stand_in::stand_ins(&reports);
    for ((report, circle), doubts) in reports.iter_mut().zip(circles).zip(stand_ins) {
        report.errors(circle);
        report.warnings(doubts);
    }
    let mut findings: Vec<_> = reports
        .into_iter()
        .flat_map(|report| report.findings)
        .collect();
    for finding in &mut findings {
        let file = files.iter().find(|(name, _)| *name == finding.file);
        let body = file.map_or(&[][..], |(_, body)| body);
        let place = place_of(&finding.problem, body);
        (finding.line, finding.column) = (place.line, place.column);
    }
    findings
}

/// Finds where a file says what a problem is about; of text that is no JSON, where it ends to be.
fn place_of(problem: &Problem, body: &[u8]) -> Place {
    if problem.rule == "json" && problem.pointer.is_empty() {
        let refusal = guard::parse(body, &Limits::default()).err();
        let offset = refusal.and_then(|refusal| refusal.offset());
        return Place::of_offset(body, offset.unwrap_or_default());
    }
    Place::of_pointer(body, &problem.pointer)
}

/// Answers whether the findings are reason enough to fail.
pub fn has_errors(findings: &[Finding]) -> bool {
    findings
        .iter()
        .any(|finding| finding.severity == Severity::Error)
}

/// What is known about one contract.
struct Report<'a> {
    file: &'a str,
    contract: Option<Contract>,
    findings: Vec<Finding>,
    /// Where the file says what the contract says; empty where it is the contract.
    origins: Origins,
}

impl<'a> Report<'a> {
    fn all_of(file: &'a str, body: &[u8], profile: Profile) -> Vec<Self> {
        let empty = || Self {
            file,
            contract: None,
            findings: Vec::new(),
            origins: Origins::default(),
        };
        if !openapi::is_document(body) {
            let mut report = empty();
            report.judge(body, profile);
            return vec![report];
        }
        match openapi::drafts(body) {
            Ok(drafts) => {
                let drafts = drafts.into_iter();
                let reports = drafts.map(|draft| {
                    let mut report = empty();
                    report.judge_draft(draft, profile);
                    report
                });
                reports.collect()
            }
            Err(problems) => {
                let mut report = empty();
                report.errors(problems);
                vec![report]
            }
        }
    }

    fn judge_draft(&mut self, draft: Draft, profile: Profile) {
        self.warnings(draft.warnings.clone());
        match draft.text() {
            Ok(text) => {
                self.origins = draft.origins;
                self.judge(&text, profile);
            }
            Err(faults) => self.errors(faults),
        }
    }

    fn judge(&mut self, body: &[u8], profile: Profile) {
        if body.iter().all(u8::is_ascii_whitespace) {
            let remedy = "write a contract, or remove the file";
            return self.errors([Problem::new("json", "", "the file is empty", remedy)]);
        }
        let document = match read::document(body) {
            Ok(document) => document,
            Err(problems) => return self.errors(problems),
        };
        match read::contract(&document, body) {
            Ok(contract) => {
                self.signatures(&contract);
                self.contract = Some(contract);
            }
            Err(problems) => self.errors(problems),
        }
        self.errors(strict_id(&document, profile));
        let input = self.schema(&document, "input_schema");
        let output = self.schema(&document, "output_schema");
        if let Some(Value::Object(probe)) = document.get("probe") {
            self.errors(input.and_then(|schema| broken_input(&schema, probe)));
            let output = output.and(document.get("output_schema"));
            self.errors(output.and_then(|schema| broken_expectation(schema, probe)));
        }
        self.warnings(omissions(&document));
    }

    /// Verifies signatures by the keys they carry; others could be anybody's.
    fn signatures(&mut self, contract: &Contract) {
        let place = "/signatures";
        match trust::integrity(contract) {
            Err(untrusted) => {
                let remedy = "sign the file again, after its last change";
                let problem = Problem::new("signature", place, untrusted.to_string(), remedy);
                self.errors([problem]);
            }
            Ok(kids) if kids.len() < contract.signatures.len() => {
                let message = "a signature carries no key, so nothing can be said of it here";
                let remedy = "verify it with `contract verify FILE --key PUB`";
                let problem = Problem::new("unjudged-signature", place, message, remedy);
                self.warnings([problem]);
            }
            Ok(_) => {}
        }
    }

    fn add(&mut self, severity: Severity, problems: impl IntoIterator<Item = Problem>) {
        for problem in problems {
            let finding = Finding {
                file: self.file.to_owned(),
                severity,
                line: 1,
                column: 1,
                problem: self.origins.placed(problem),
            };
            if !self.is_said(&finding.problem) {
                self.findings.push(finding);
            }
        }
    }

    /// Answers whether a place was told already that nobody checks its format.
    fn is_said(&self, problem: &Problem) -> bool {
        let mut before = self.findings.iter().map(|finding| &finding.problem);
        problem.rule == "unknown-format"
            && before.any(|said| said.rule == "unchecked-format" && said.pointer == problem.pointer)
    }

    fn errors(&mut self, problems: impl IntoIterator<Item = Problem>) {
        self.add(Severity::Error, problems);
    }

    fn warnings(&mut self, problems: impl IntoIterator<Item = Problem>) {
        self.add(Severity::Warning, problems);
    }

    /// Judges one schema; a validator comes back if it is sound.
    fn schema(&mut self, document: &Map<String, Value>, name: &str) -> Option<Validator> {
        let schema = document
            .get(name)
            .filter(|schema| schema.is_object() || schema.is_boolean())?;
        let place = |mut problem: Problem| {
            problem.pointer.insert_str(0, &format!("/{name}"));
            problem
        };
        let compiled = Validator::compile(schema);
        let validator = match compiled {
            Ok(validator) => Some(validator),
            Err(problems) => {
                self.errors(problems.into_iter().map(place));
                None
            }
        };
        if validator.is_some() || schema::bare_property_map(schema).is_none() {
            self.warnings(doubts(schema).into_iter().map(place));
        }
        validator
    }
}

fn strict_id(document: &Map<String, Value>, profile: Profile) -> Option<Problem> {
    let id: ContractId = document.get("id")?.as_str()?.parse().ok()?;
    (!id.fits(profile)).then(|| {
        let message = format!("\"{id}\" does not follow the {} profile", profile.as_str());
        let remedy = "use exactly two words of lower-case letters, as in \"fraud-detection-v1.0\"";
        Problem::new("id-form", "/id", message, remedy)
    })
}

fn omissions(document: &Map<String, Value>) -> Vec<Problem> {
    let mut problems = Vec::new();
    if !document.contains_key("probe") {
        let message = "there is no probe, so admission cannot try the capability";
        let remedy = "add \"probe\": {\"input\": …} with an input that is safe to send";
        problems.push(Problem::new("no-probe", "", message, remedy));
    }
    if let Some(Value::Object(constraints)) = document.get("constraints")
        && !constraints.contains_key("max_concurrent")
    {
        let message = "there is no max_concurrent, so 1024 calls may run at once";
        let remedy = "add \"max_concurrent\" with what one instance can take";
        let place = "/constraints";
        problems.push(Problem::new("no-max-concurrent", place, message, remedy));
    }
    problems
}

fn broken_input(schema: &Validator, probe: &Map<String, Value>) -> Option<Problem> {
    let broken = violations(schema, probe.get("input")?)?;
    let message = format!("probe.input does not conform to input_schema: {broken}");
    let remedy = "correct the input, or the schema";
    Some(Problem::new("probe-input", "/probe/input", message, remedy))
}

/// Judges the members that the reply to the probe must have; those left out are left open.
fn broken_expectation(schema: &Value, probe: &Map<String, Value>) -> Option<Problem> {
    let expect = probe.get("expect")?;
    let partial = Validator::compile(&expectation::partial(schema)).ok()?;
    let broken = violations(&partial, expect)?;
    let message = format!("probe.expect does not conform to output_schema: {broken}");
    let remedy = "correct the expectation, or the schema";
    let place = "/probe/expect";
    Some(Problem::new("probe-expect", place, message, remedy))
}

fn violations(schema: &Validator, value: &Value) -> Option<String> {
    let text = value.to_string();
    let document = guard::parse(text.as_bytes(), &Limits::default()).ok()?;
    let violations = schema.check(&document).err()?;
    let told = violations.as_slice().iter();
    let texts: Vec<_> = told
        .map(|violation| format!("{} {}", violation.instance, violation.message))
        .collect();
    (!texts.is_empty()).then(|| texts.join("; ").trim_start().to_owned())
}

/// Finds, for each file, the way along fallbacks that leads back to it.
fn circles(reports: &[Report<'_>]) -> Vec<Option<Problem>> {
    let contracts = reports.iter().filter_map(|report| report.contract.as_ref());
    let fallbacks: HashMap<_, _> = contracts
        .map(|contract| (&contract.id, contract.fallback.as_slice()))
        .collect();
    let circle = |report: &Report<'_>| {
        let id = &report.contract.as_ref()?.id;
        let way = way_back(id, &fallbacks)?;
        let names: Vec<_> = way.iter().map(|id| id.as_str()).collect();
        let message = format!("fallbacks run in a circle: {}", names.join(" → "));
        let remedy = "let the last resort have no fallback";
        Some(Problem::new(
            "fallback-circle",
            "/fallback",
            message,
            remedy,
        ))
    };
    reports.iter().map(circle).collect()
}

/// Searches breadth first, so that the shortest circle is told.
fn way_back<'a>(
    start: &'a ContractId,
    fallbacks: &HashMap<&'a ContractId, &'a [ContractId]>,
) -> Option<Vec<&'a ContractId>> {
    let mut came_from: HashMap<&ContractId, &ContractId> = HashMap::new();
    let mut next = vec![start];
    while !next.is_empty() {
        let mut found = Vec::new();
        for id in next {
            for other in fallbacks.get(id).copied().unwrap_or_default() {
                if other == start {
                    let back = std::iter::successors(Some(id), |id| came_from.get(id).copied());
                    let mut way: Vec<_> = std::iter::once(start).chain(back).collect();
                    way.reverse();
                    return Some(way);
                }
                if !came_from.contains_key(other) {
                    came_from.insert(other, id);
                    found.push(other);
                }
            }
        }
        next = found;
    }
    None
}

#[cfg(test)]
mod tests;
