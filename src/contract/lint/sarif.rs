//! Findings as a SARIF 2.1.0 log, which code hosts show beside the lines they are about.

use serde_json::{Value, json};

use super::{Finding, rules};

/// Writes the log; file names are taken for paths below the folder the run is about.
pub fn sarif(findings: &[Finding]) -> String {
    let mut names: Vec<&str> = findings
        .iter()
        .map(|finding| finding.problem.rule)
        .collect();
    names.sort_unstable();
    names.dedup();
    let rules: Vec<Value> = names.iter().map(|name| rule(name)).collect();
    let results = findings.iter().map(|finding| result(finding, &names));
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "hermes-sidecar contract lint",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "results": results.collect::<Vec<_>>(),
        }],
    });
    format!("{log:#}")
}

fn rule(name: &str) -> Value {
    let meaning = rules::meaning(name).unwrap_or(name);
    json!({"id": name, "shortDescription": {"text": meaning}})
}

fn result(finding: &Finding, rules: &[&str]) -> Value {
    let problem = &finding.problem;
    let text = match problem.remedy.as_str() {
        "" => problem.message.clone(),
        remedy => format!("{}; {remedy}", problem.message),
    };
    json!({
        "ruleId": problem.rule,
        "ruleIndex": rules.binary_search(&problem.rule).ok(),
        "level": finding.severity.as_str(),
        "message": {"text": text},
        "locations": [{
            "physicalLocation": {
                "artifactLocation": {"uri": relative(&finding.file), "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": finding.line, "startColumn": finding.column},
            },
            "logicalLocations": [{"fullyQualifiedName": problem.pointer}],
        }],
    })
}

/// Writes a path as a relative URI reference.
fn relative(path: &str) -> String {
    let steps = path.split('/').filter(|step| !matches!(*step, "" | "."));
    let steps: Vec<String> = steps.map(encoded).collect();
    steps.join("/")
}

fn encoded(step: &str) -> String {
    let mut text = String::with_capacity(step.len());
    for byte in step.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte));
            }
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}
