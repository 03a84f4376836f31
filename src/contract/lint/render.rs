//! Findings as text for people and as JSON for programs.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Finding, Profile, Severity};
use crate::contract::FORMATS;

/// Writes findings for a terminal. Control characters from the files are escaped.
pub fn human(findings: &[Finding], profile: Profile) -> String {
    let mut text = String::new();
    for finding in findings {
        let Finding {
            file,
            severity,
            line,
            column,
            problem,
        } = finding;
        let place = match problem.pointer.as_str() {
            "" => "(document)",
            pointer => pointer,
        };
        let told = format!(
            "{file}:{line}:{column}: {}[{}] {place}: {}",
            severity.as_str(),
            problem.rule,
            problem.message
        );
        push_line(&mut text, &told);
        if !problem.remedy.is_empty() {
            push_line(&mut text, &format!("    {}", problem.remedy));
        }
    }
    let (errors, warnings) = count(findings);
    let summary = format!(
        "{errors} error{}, {warnings} warning{} (profile {})",
        plural(errors),
        plural(warnings),
        profile.as_str()
    );
    push_line(&mut text, &summary);
    text
}

/// Writes findings as one JSON object; members are added, never changed.
pub fn json(findings: &[Finding], profile: Profile) -> String {
    #[derive(Serialize)]
    struct Output<'a> {
        profile: &'static str,
        formats: &'static [&'static str],
        errors: usize,
        warnings: usize,
        findings: &'a [Finding],
    }
    let (errors, warnings) = count(findings);
    let output = Output {
        profile: profile.as_str(),
        formats: &FORMATS,
        errors,
        warnings,
        findings,
    };
    serde_json::to_string_pretty(&output).expect("strings and numbers always serialise")
}

fn count(findings: &[Finding]) -> (usize, usize) {
    let errors = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .count();
    (errors, findings.len() - errors)
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn push_line(text: &mut String, line: &str) {
    for letter in line.chars() {
        if letter.is_control() {
            write!(text, "{}", letter.escape_default()).expect("writing to a String succeeds");
        } else {
            text.push(letter);
        }
    }
    text.push('\n');
}
