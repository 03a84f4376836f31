//! `contract diff`: whether a new contract may take the place of an old one.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::contract::compatibility::{Comparison, Verdict, compare};
use crate::contract::{Compiled, Contract, openapi};

use super::exit::{Exit, Failure};
use super::{OutputArgs, lint, output};

#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// The contract that is in use.
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The contract that is to take its place, of the same family.
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// End with 0 unless something is sure to break.
    #[arg(long)]
    allow_undecided: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Tells what the new contract takes away. A new major version is judged like any other: it may
/// break its predecessor, which is said, but whoever asks for the difference gets the exit code.
pub(super) fn diff(args: DiffArgs) -> Result<Exit, Failure> {
    let (old, new) = pair(read(&args.old)?, read(&args.new)?, &args)?;
    let comparison = compare(&old, &new);
    let verdict = comparison.verdict();
    if args.output.is_json() {
        output::json(&json!({
            "old": {"id": old.id.as_str(), "version": old.version.to_string()},
            "new": {"id": new.id.as_str(), "version": new.version.to_string()},
            "verdict": verdict,
            "findings": comparison.findings,
            "left_out": comparison.left_out,
        }));
    } else {
        output::line(&human(&old, &new, &comparison));
    }
    let is_fine = match verdict {
        Verdict::Compatible => true,
        Verdict::Undecided => args.allow_undecided,
        Verdict::Breaking => false,
    };
    Ok(output::verdict(is_fine))
}

fn human(old: &Contract, new: &Contract, comparison: &Comparison) -> String {
    let mut lines: Vec<String> = Vec::new();
    let found = comparison.to_string();
    lines.extend(found.lines().map(|line| output::plain(line).into_owned()));
    let count = |verdict| {
        let findings = comparison.findings.iter();
        findings
            .filter(|finding| finding.verdict == verdict)
            .count()
    };
    let names = if old.id == new.id {
        format!("{} {} to {}", old.id, old.version, new.version)
    } else {
        format!("{} {} to {} {}", old.id, old.version, new.id, new.version)
    };
    let verdict = comparison.verdict();
    let counted = match verdict {
        Verdict::Compatible => String::new(),
        _ => format!(
            " ({} breaking, {} undecided{})",
            count(Verdict::Breaking),
            count(Verdict::Undecided),
            match comparison.left_out {
                0 => String::new(),
                more => format!(", {more} more"),
            }
        ),
    };
    let major = match verdict != Verdict::Compatible && old.id.major() != new.id.major() {
        true => "; a new major version may break its predecessor",
        false => "",
    };
    lines.push(format!("{names}: {}{counted}{major}", verdict.as_str()));
    lines.join("\n")
}

/// Reads every contract of a file.
fn read(path: &PathBuf) -> Result<Vec<Contract>, Failure> {
    let files = lint::read(std::slice::from_ref(path))?;
    let mut contracts = Vec::new();
    for (name, body) in &files {
        let read = match openapi::is_document(body) {
            true => {
                openapi::read(body).map(|all| all.into_iter().map(|one| one.contract).collect())
            }
            false => Contract::from_slice(body)
                .and_then(Compiled::new)
                .map(|one| vec![one.contract]),
        };
        let unreadable = |problems| Failure::Usage(format!("{name} is no contract: {problems}"));
        contracts.extend(read.map_err(unreadable)?);
    }
    Ok(contracts)
}

/// Picks the two that belong together: a document may hold contracts of several families.
fn pair(
    olds: Vec<Contract>,
    news: Vec<Contract>,
    args: &DiffArgs,
) -> Result<(Contract, Contract), Failure> {
    let mut pairs = olds.iter().flat_map(|old| {
        let news = news.iter().filter(|new| new.id.family() == old.id.family());
        news.map(move |new| (old, new))
    });
    match (pairs.next(), pairs.next()) {
        (Some((old, new)), None) => Ok((old.clone(), new.clone())),
        (None, _) => Err(Failure::Usage(format!(
            "{} and {} are of different families; only versions of one family replace each other",
            told(&args.old, &olds),
            told(&args.new, &news),
        ))),
        (Some(_), Some(_)) => Err(Failure::Usage(format!(
            "{} and {} have several pairs of one family; put the two to compare into files of their own",
            told(&args.old, &olds),
            told(&args.new, &news),
        ))),
    }
}

fn told(path: &Path, contracts: &[Contract]) -> String {
    let ids: Vec<_> = contracts.iter().map(|one| one.id.as_str()).collect();
    format!("{} ({})", path.display(), ids.join(", "))
}
