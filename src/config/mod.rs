//! Flags, environment and file become one typed `Settings`, or the list of everything wrong.
//!
//! - order: flag, `HERMES_SECTION__KEY`, file, Consul's own variables, default
//! - every value keeps its origin; every problem is reported at once, with place and key
//! - unknown keys are refused; a key whose feature is not built accepts only its default
//! - nothing here panics, and nothing else reads the environment
//! - elsewhere: mapping sections to the rooms' own `Config` (`app`)

mod address;
mod assemble;
mod consul_env;
mod env;
mod file;
mod keys;
mod kind;
mod origin;
mod problem;
mod reader;
mod schema;
mod settings;
mod show;
mod suggest;
#[cfg(test)]
mod tests;

pub use address::{Advertise, CollectorTarget, Network, TrustContext, Upstream};
pub use env::Source;
pub use origin::{Effective, Entry, Origin};
pub use problem::{Error, Problem};
pub use schema::schema;
pub use settings::{
    Admin, Application, Collector, Consul, ConsulTls, ContractSource, Durability, Inbound, Limits,
    Log, LogFormat, Method, Outbound, Settings, Spool, Validate,
};

use std::path::Path;

use problem::Problems;
use reader::Reader;

/// What a process is to be; decides what is required.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Sidecar,
    Collector,
    /// Whatever the file describes: a collector if it has that section, a sidecar if it has any other of its own.
    Described,
}

/// The roles in question, `Described` resolved.
#[derive(Debug, Clone, Copy)]
struct Roles {
    sidecar: bool,
    collector: bool,
}

impl Roles {
    fn has(self, role: Role) -> bool {
        match role {
            Role::Sidecar => self.sidecar,
            Role::Collector => self.collector,
            Role::Described => true,
        }
    }
}

/// A file longer than this is no config.
const LONGEST_FILE: u64 = 1 << 20;

impl Settings {
    /// Reads and checks everything; on failure tells every problem, not the first.
    pub fn load(source: &Source, role: Role) -> Result<Self, Error> {
        let mut effective = Effective::default();
        let mut problems = Problems::default();
        let variables = consul_env::read(source, &mut effective, &mut problems);
        let sound = match &source.file {
            Some(path) => read_file(path, &mut effective, &mut problems),
            None => true,
        };
        env::apply_variables(source, &mut effective, &mut problems);
        env::apply_flags(source, &mut effective, &mut problems);
        let roles = roles(&effective, role);

        let mut reader = Reader {
            effective,
            problems,
        };
        reader.fill_defaults();
        reader.check_rules();
        // What is missing from a file that could not be read to its end may well be there.
        let required = if sound {
            roles
        } else {
            Roles {
                sidecar: false,
                collector: false,
            }
        };
        let settings = assemble::settings(&mut reader, source, variables, required);
        if reader.problems.is_empty() {
            Ok(settings)
        } else {
            Err(reader.problems.into_error())
        }
    }

    /// Says which roles the settings describe: sidecar, collector.
    pub fn roles(&self) -> (bool, bool) {
        let roles = roles(&self.effective, Role::Described);
        (roles.sidecar, roles.collector)
    }
}

fn read_file(path: &Path, effective: &mut Effective, problems: &mut Problems) -> bool {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(LONGEST_FILE + 1).read_to_string(&mut text));
    let message = match read {
        Ok(length) if length as u64 <= LONGEST_FILE => {
            return file::read(&text, path, effective, problems);
        }
        Ok(_) => format!("is longer than {LONGEST_FILE} bytes"),
        Err(error) => format!("cannot read the config file: {error}"),
    };
    let origin = Origin::File {
        path: path.into(),
        line: 0,
    };
    problems.add(Some(origin), "", message);
    false
}

fn roles(effective: &Effective, role: Role) -> Roles {
    match role {
        Role::Sidecar => Roles {
            sidecar: true,
            collector: false,
        },
        Role::Collector => Roles {
            sidecar: false,
            collector: true,
        },
        Role::Described => {
            let given = |section: &str| {
                effective.iter().any(|(path, entry)| {
                    path.starts_with(section)
                        && !matches!(entry.origin, Origin::Default | Origin::Derived(_))
                })
            };
            let collector = given("collector.");
            Roles {
                sidecar: given("application.") || !collector,
                collector,
            }
        }
    }
}
