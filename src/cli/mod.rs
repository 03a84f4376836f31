//! The command line: what may be asked, and what the shell is told.
//!
//! - data on standard output, talk on standard error
//! - exit codes: 0 fine, 1 negative finding, 2 usage or config, 3 unreachable, 4 timeout, 70 bug
//! - `-o json` is stable; text is for people and may change
//! - elsewhere: what a running process does (`app`), what settings mean (`config`)

mod check;
mod client;
mod collector;
mod diff;
mod doctor;
mod exit;
mod explain;
mod file;
mod gate;
mod invoke;
mod keygen;
mod lint;
mod local;
mod openapi;
mod output;
mod published;
mod quantile;
mod running;
mod serve;
mod settings;
mod shell;
mod sign;
mod task;
mod tasks;

use std::ffi::OsString;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::Source;
use exit::{Exit, Failure};

/// Contracts, routing, traceable tasks and durable status beside an unchanged service.
#[derive(Debug, Parser)]
#[command(
    name = "hermes-sidecar",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    after_help = "\
Data goes to standard output, talk to standard error; -o json is stable.
Exit codes: 0 fine, 1 a negative finding, 2 usage or config, 3 something is unreachable,
4 timeout, 70 a fault of this program, 128 and more: ended by that signal.

Examples:
  hermes-sidecar demo                        everything on this machine, nothing to set up
  hermes-sidecar run -c hermes.toml          a sidecar beside a service
  hermes-sidecar run -- ./nightly-import     a batch job with a sidecar that ends with it
  hermes-sidecar task order-17               what became of a task"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the sidecar beside an application, or a command beside a sidecar.
    Run(serve::RunArgs),
    /// Run the collector of status reports, with the task API.
    Collector(ConfigArgs),
    /// Show everything on one machine: registry, collector, example applications, traffic.
    Demo(serve::DemoArgs),
    /// Run an in-memory stand-in for a Consul agent, for laptops and tests.
    DevRegistry(serve::DevRegistryArgs),
    /// Check config, ports, files, Consul, contracts, application, clock and disk in one run.
    Check {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show the settings in force or the schema of the file.
    #[command(subcommand)]
    Config(settings::ConfigCommand),
    /// Work with contract files.
    #[command(subcommand)]
    Contract(ContractCommand),
    /// Make an Ed25519 key pair that signs contracts: PATH for its owner alone, and PATH.pub.
    Keygen(keygen::KeygenArgs),
    /// Make one call through the local sidecar and print the reply.
    Invoke(invoke::InvokeArgs),
    /// Make many calls of one contract and hold them against its limits; exit 1 if not met.
    Verify(gate::VerifyArgs),
    /// Look for what makes tasks slow: the registry, validation, the network; exit 1 if found.
    Doctor(doctor::DoctorArgs),
    /// Print a task's steps and states from the collector.
    Task(task::TaskArgs),
    /// List the tasks that the collector knows.
    Tasks(tasks::TasksArgs),
    /// Tell where a task's calls to an agent go, and why not elsewhere.
    Explain(explain::ExplainArgs),
    /// Let the local sidecar leave: unready, deregistered, still serving.
    Drain(local::AdminArgs),
    /// Make the local sidecar read its settings again, and tell what took effect.
    Reload(local::AdminArgs),
    /// Stop the local sidecar as soon as nothing runs; with `run -- CMD`, the command first.
    Quit(local::AdminArgs),
    /// Print the log filter of the local sidecar, or set it.
    LogLevel(local::LogLevelArgs),
    /// Ask the local sidecar whether it is ready.
    Healthcheck(local::AdminArgs),
    /// Print the completion script of a shell.
    Completions(shell::CompletionsArgs),
    /// Print the manual page of this program and of each command.
    Man(shell::ManArgs),
}

#[derive(Debug, Subcommand)]
enum ContractCommand {
    /// Judge contract files; exit 1 if one has errors.
    Lint(lint::LintArgs),
    /// Tell whether a new contract may take an old one's place; exit 1 if that breaks somebody.
    Diff(diff::DiffArgs),
    /// Turn OpenAPI documents into contracts, and contracts into an OpenAPI document.
    Openapi(openapi::OpenapiArgs),
    /// Publish a contract in Consul; exit 1 if it is refused.
    Publish(published::PublishArgs),
    /// List the published contracts with their current versions.
    List(published::ListArgs),
    /// Print a published contract as it stands.
    Get(published::GetArgs),
    /// Sign a contract file: a signature is added, the rest of the file stays as it is.
    Sign(sign::SignArgs),
    /// Verify the signatures of a contract file; exit 1 if they are not good.
    Verify(sign::VerifyArgs),
}

/// Where settings come from.
#[derive(Debug, Args)]
struct ConfigArgs {
    /// Config file; default: hermes.toml, if it is here.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override one key, e.g. `--set log.filter=debug`; stronger than file and environment.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_and_value)]
    set: Vec<(String, String)>,
}

impl ConfigArgs {
    fn source(self) -> Source {
        Source::of_process(self.config, self.set)
    }
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.trim().to_owned(), value.to_owned())),
        None => Err("write KEY=VALUE".to_owned()),
    }
}

/// Beyond it a length is a slip of the pen, and no instant may be so far away.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Reads a length of time from the command line.
fn length(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(length) if length <= LONGEST => Ok(length),
        Ok(_) => Err("write a length of at most a year".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[derive(Debug, Clone, Copy, Args)]
struct OutputArgs {
    /// How results are printed.
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

impl OutputArgs {
    fn is_json(self) -> bool {
        self.output == Format::Json
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

type Work = dyn FnOnce() -> Result<Exit, Failure>;

/// Runs one command; a panic anywhere below is a bug and says so.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    // Not for people, and so in no help or completion: `run -- CMD` starts its command by it.
    let parsed = match words.get(1) {
        Some(word) if word == serve::BECOME => {
            let parsed = serve::Become::try_parse_from(&words[1..]);
            parsed.map(|args| Box::new(|| serve::become_command(args)) as Box<Work>)
        }
        _ => {
            let parsed = Cli::try_parse_from(words);
            parsed.map(|cli| Box::new(|| run(cli.command)) as Box<Work>)
        }
    };
    let work = match parsed {
        Ok(work) => work,
        Err(error) => return usage(&error),
    };
    match std::panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(exit)) => output::settle(exit).into(),
        Ok(Err(failure)) => {
            output::talk(&failure.to_string());
            failure.exit().into()
        }
        Err(_) => {
            output::talk("this is a bug in hermes-sidecar; please report the lines above");
            Exit::Bug.into()
        }
    }
}

fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if error.use_stderr() {
        output::talk(text.trim_end());
        Exit::Usage.into()
    } else {
        output::data(text.as_bytes());
        output::settle(Exit::Fine).into()
    }
}

fn run(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Run(args) => serve::sidecar(args),
        Command::Collector(config) => serve::collector(config),
        Command::Demo(args) => serve::demo(args),
        Command::DevRegistry(args) => serve::dev_registry(args),
        Command::Check { config, output } => check::check(config, output),
        Command::Config(command) => settings::run(command),
        Command::Contract(ContractCommand::Lint(args)) => lint::lint(args),
        Command::Contract(ContractCommand::Diff(args)) => diff::diff(args),
        Command::Contract(ContractCommand::Openapi(args)) => openapi::openapi(args),
        Command::Contract(ContractCommand::Publish(args)) => published::publish(args),
        Command::Contract(ContractCommand::List(args)) => published::list(args),
        Command::Contract(ContractCommand::Get(args)) => published::get(args),
        Command::Contract(ContractCommand::Sign(args)) => sign::sign(args),
        Command::Contract(ContractCommand::Verify(args)) => sign::verify(args),
        Command::Keygen(args) => keygen::keygen(args),
        Command::Invoke(args) => invoke::invoke(args),
        Command::Verify(args) => gate::verify(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Task(args) => task::task(args),
        Command::Tasks(args) => tasks::tasks(args),
        Command::Explain(args) => explain::explain(args),
        Command::Drain(args) => local::drain(args),
        Command::Reload(args) => local::reload(args),
        Command::Quit(args) => local::quit(args),
        Command::LogLevel(args) => local::log_level(args),
        Command::Healthcheck(args) => local::healthcheck(args),
        Command::Completions(args) => Ok(shell::completions(args)),
        Command::Man(args) => shell::man(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
