//! How Consul is reached, for commands that work on what is published there.
//!
//! A file that would not start a sidecar still tells where its registry is: only problems with
//! these keys, or with the file as a whole, are reported.

use super::origin::Origin;
use super::problem::Error;
use super::settings::Consul;
use super::{Source, assemble, layers};

/// What publishing from a command line needs to know.
#[derive(Debug, Clone)]
pub struct Registry {
    pub consul: Consul,
    /// Without `team-`; empty for none.
    pub team: String,
    /// Who is at the terminal: `USER@HOST`.
    pub person: String,
}

impl Registry {
    pub fn load(source: &Source) -> Result<Self, Error> {
        let (mut reader, read) = layers(source);
        let earlier = std::mem::take(&mut reader.problems);
        let registry = Self {
            consul: assemble::consul(&mut reader, read.consul),
            team: reader.text("application.team"),
            person: person(source),
        };
        let mut problems = std::mem::take(&mut reader.problems);
        problems.extend(earlier.into_iter().filter(|problem| {
            let whole_file =
                problem.key.is_empty() && matches!(problem.origin, Some(Origin::File { .. }));
            let variable = matches!(&problem.origin, Some(Origin::Variable(name)) if name.starts_with("CONSUL_"));
            whole_file
                || variable
                || problem.key.starts_with("consul.")
                || problem.key == "application.team"
        }));
        match problems.is_empty() {
            true => Ok(registry),
            false => Err(problems.into_error()),
        }
    }
}

fn person(source: &Source) -> String {
    let user = source.variable("USER").or(source.variable("LOGNAME"));
    format!("{}@{}", user.unwrap_or("unknown"), source.host_name)
}
