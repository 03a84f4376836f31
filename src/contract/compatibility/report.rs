//! What a comparison found, for people and for programs.

use std::{cmp::Reverse, collections::HashSet, fmt};

use serde::Serialize;

/// The most findings kept.
const MOST: usize = 200;

/// Whether the new contract may take the old one's place; the worst comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Compatible,
    /// Neither shown to be safe nor shown to break anybody.
    Undecided,
    Breaking,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compatible => "compatible",
            Self::Undecided => "undecided",
            Self::Breaking => "breaking",
        }
    }
}

/// The part of a contract a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    Input,
    Output,
    Constraints,
}

/// One difference that is not known to be safe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    pub verdict: Verdict,
    pub side: Side,
    /// JSON Pointer into the contract that draws the line: the new one for what goes in and for
    /// constraints, the old one for what comes out.
    pub pointer: String,
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            verdict,
            pointer,
            message,
            ..
        } = self;
        write!(f, "{} {pointer}: {message}", verdict.as_str())
    }
}

/// Everything two contracts differ in that is not known to be safe.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Comparison {
    /// By place, each difference once, at most 200.
    pub findings: Vec<Finding>,
    /// How many findings were left out.
    pub left_out: usize,
}

impl Comparison {
    /// Sorts findings and drops repetitions; breaking ones are never cut for undecided ones.
    pub(super) fn of(mut findings: Vec<Finding>) -> Self {
        let by_place = |finding: &Finding| {
            let Finding {
                side,
                pointer,
                message,
                ..
            } = finding;
            (*side, pointer.clone(), message.clone())
        };
        findings.sort_by_key(|finding| (Reverse(finding.verdict), by_place(finding)));
        findings.dedup();
        // Where something is sure to break, doubts about the same place say nothing more.
        let place = |finding: &Finding| (finding.side, finding.pointer.clone());
        let breaking = findings
            .iter()
            .filter(|finding| finding.verdict == Verdict::Breaking);
        let broken: HashSet<_> = breaking.map(place).collect();
        findings.retain(|finding| {
            finding.verdict == Verdict::Breaking || !broken.contains(&place(finding))
        });
        let left_out = findings.len().saturating_sub(MOST);
        findings.truncate(MOST);
        findings.sort_by_key(by_place);
        Self { findings, left_out }
    }

    /// Gives the worst verdict of all findings.
    pub fn verdict(&self) -> Verdict {
        let verdicts = self.findings.iter().map(|finding| finding.verdict);
        verdicts.max().unwrap_or(Verdict::Compatible)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            let line_end = if index == 0 { "" } else { "\n" };
            write!(f, "{line_end}{finding}")?;
        }
        if self.left_out > 0 {
            write!(f, "\nand {} more", self.left_out)?;
        }
        Ok(())
    }
}
