//! `contract lint`: judges contract files.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::contract::{Profile, lint};

use super::exit::{Exit, Failure};
use super::output;

/// Far beyond the 256 KiB a contract may have, which the linter itself reports.
const MAX_FILE_BYTES: u64 = 4 << 20;

#[derive(Debug, Args)]
pub(super) struct LintArgs {
    /// Contract files; those of one family are also judged together.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How ids are judged.
    #[arg(long, value_enum, default_value_t = Rules::Default)]
    profile: Rules,
    /// How findings are printed; sarif is what code hosts show beside the lines.
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
    Sarif,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Rules {
    Default,
    Strict,
}

pub(super) fn lint(args: LintArgs) -> Result<Exit, Failure> {
    let profile = match args.profile {
        Rules::Default => Profile::Default,
        Rules::Strict => Profile::Strict,
    };
    let findings = lint::lint(&read(&args.files)?, profile);
    let is_fine = !lint::has_errors(&findings);
    let text = match args.output {
        Format::Text => lint::human(&findings, profile),
        Format::Json => lint::json(&findings, profile),
        Format::Sarif => lint::sarif(&within_folder(findings)),
    };
    output::line(text.trim_end());
    Ok(output::verdict(is_fine))
}

/// Names files as seen from the folder the command runs in, where they are below it.
fn within_folder(mut findings: Vec<lint::Finding>) -> Vec<lint::Finding> {
    let folder = std::env::current_dir().unwrap_or_default();
    for finding in &mut findings {
        if let Ok(within) = Path::new(&finding.file).strip_prefix(&folder) {
            finding.file = within.display().to_string();
        }
    }
    findings
}

/// Reads files whole, each with the name it was given.
pub(super) fn read(paths: &[PathBuf]) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let read = |path: &Path| {
        let mut body = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut body))?;
        Ok(body)
    };
    paths
        .iter()
        .map(|path| match read(path) {
            Ok(body) => Ok((path.display().to_string(), body)),
            Err(source) => Err(Failure::Read {
                path: path.clone(),
                source,
            }),
        })
        .collect()
}
