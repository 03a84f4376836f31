//! `config show` and `config schema`.

use clap::Subcommand;

use crate::config::{self, Role, Settings};

use super::exit::{Exit, Failure};
use super::{ConfigArgs, OutputArgs, output};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Show the values in force with their origins; secrets are masked.
    Show {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Print the JSON Schema of the file.
    Schema,
}

pub(super) fn run(command: ConfigCommand) -> Result<Exit, Failure> {
    match command {
        ConfigCommand::Show { config, output } => {
            let settings = Settings::load(&config.source(), Role::Described)?;
            if output.is_json() {
                output::json(&settings.to_json());
            } else {
                output::data(settings.to_text().as_bytes());
            }
        }
        ConfigCommand::Schema => output::json(&config::schema()),
    }
    Ok(Exit::Fine)
}
