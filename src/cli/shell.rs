//! `completions` and `man`: this command line, as shells and `man` know one.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::exit::{Exit, Failure};
use super::{Cli, output};

const PROGRAM: &str = "hermes-sidecar";

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hermes-sidecar completions bash > ~/.local/share/bash-completion/completions/hermes-sidecar
  hermes-sidecar completions fish > ~/.config/fish/completions/hermes-sidecar.fish
  hermes-sidecar completions zsh > \"${fpath[1]}/_hermes-sidecar\"")]
pub(super) struct CompletionsArgs {
    /// The shell that shall complete.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hermes-sidecar man | man -l -
  hermes-sidecar man --dir ~/.local/share/man/man1")]
pub(super) struct ManArgs {
    /// Write one page per command into this folder instead, which is made if it is missing.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn completions(args: CompletionsArgs) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), PROGRAM, &mut script);
    output::data(&script);
    Exit::Fine
}

pub(super) fn man(args: ManArgs) -> Result<Exit, Failure> {
    let mut command = Cli::command().disable_help_subcommand(true);
    // Gives each command below its full name, `hermes-sidecar config show`.
    command.build();
    let mut pages = Vec::new();
    collect(&command, &mut pages);
    let Some(folder) = args.dir else {
        for page in &pages {
            output::data(&render(page)?);
        }
        return Ok(Exit::Fine);
    };
    let write = |path: &Path, source| Failure::Write {
        path: path.to_owned(),
        source,
    };
    std::fs::create_dir_all(&folder).map_err(|error| write(&folder, error))?;
    for page in &pages {
        let path = folder.join(page.get_filename());
        std::fs::write(&path, render(page)?).map_err(|error| write(&path, error))?;
        output::line(&path.display().to_string());
    }
    Ok(Exit::Fine)
}

/// Collects the page of a command and those of all below it.
fn collect(command: &clap::Command, pages: &mut Vec<Man>) {
    pages.push(Man::new(command.clone()));
    for below in command.get_subcommands() {
        collect(below, pages);
    }
}

fn render(page: &Man) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    page.render(&mut text)
        .map_err(|error| Failure::bug(&error))?;
    Ok(text)
}
