//! Flags, environment and file become one typed `Settings`, or the list of everything wrong.
//!
//! - order: flag, `HERMES_SECTION__KEY`, file, Consul's own variables, default
//! - every value keeps its origin; every problem is reported at once, with place and key
//! - unknown keys are refused; a key whose feature is not built accepts only its default
//! - nothing here panics, and nothing else reads the environment
//! - elsewhere: mapping sections to the rooms' own `Config` (`app`)

mod address;
mod addresses;
mod again;
mod assemble;
mod consul_env;
mod contracts;
mod env;
mod file;
mod keys;
mod kind;
mod origin;
mod problem;
mod reader;
mod registry;
mod schema;
mod secure;
mod settings;
mod show;
mod suggest;
#[cfg(test)]
mod tests;
mod trust;

pub use address::{Advertise, CollectorTarget, Upstream};
pub use addresses::Addresses;
pub use again::Differences;
pub use env::{Source, is_writable, refuses_colour};
pub use origin::{Effective, Entry, Origin};
pub use problem::{Error, Problem};
pub use registry::Registry;
pub use schema::schema;
pub use settings::{
    Admin, Application, Collector, Consul, ConsulTls, ContractOrigin, ContractSource, Durability,
    Ejection, Inbound, Limits, Log, LogFormat, Method, Outbound, Protocol, Retry, Settings, Spool,
    Style, Validate,
};

use std::path::Path;

use consul_env::ConsulVariables;
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

/// Settings that may have problems; where one has, a harmless value stands in.
#[derive(Debug)]
pub struct Examined {
    pub settings: Settings,
    /// In the order of the file.
    pub problems: Vec<Problem>,
    /// False: parts of the file could not be read, so that the values mean little.
    pub is_whole: bool,
}

impl Examined {
    /// Says whether a key, or one below it, has a problem.
    pub fn is_faulty(&self, key: &str) -> bool {
        let below = |problem: &Problem| {
            let rest = problem.key.strip_prefix(key);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.problems.iter().any(below)
    }
}

/// A file longer than this is no config.
const LONGEST_FILE: u64 = 1 << 20;

impl Settings {
    /// Reads and checks everything; on failure tells every problem, not the first.
    pub fn load(source: &Source, role: Role) -> Result<Self, Error> {
        let (settings, problems, _) = Self::read(source, role);
        if problems.is_empty() {
            Ok(settings)
        } else {
            Err(problems.into_error())
        }
    }

    /// Reads what can be read, for whoever goes on looking after a problem; nothing may be run
    /// with these.
    pub fn examine(source: &Source, role: Role) -> Examined {
        let (settings, problems, is_whole) = Self::read(source, role);
        Examined {
            settings,
            problems: problems.into_error().problems().to_vec(),
            is_whole,
        }
    }

    fn read(source: &Source, role: Role) -> (Self, Problems, bool) {
        let (mut reader, read) = layers(source);
        let roles = roles(&reader.effective, role);
        reader.check_rules();
        // What is missing from a file that could not be read to its end may well be there.
        let required = if read.is_sound {
            roles
        } else {
            Roles {
                sidecar: false,
                collector: false,
            }
        };
        let mut settings = assemble::settings(&mut reader, source, read.consul, required);
        settings.role = role;
        (settings, reader.problems, read.is_sound)
    }

    /// Says which roles the settings describe: sidecar, collector.
    pub fn roles(&self) -> (bool, bool) {
        let roles = roles(&self.effective, Role::Described);
        (roles.sidecar, roles.collector)
    }
}

/// What the layers give beside values.
struct Layers {
    consul: ConsulVariables,
    /// False: the file has lines that could not be read.
    is_sound: bool,
}

/// Lays flags over variables over the file over Consul's variables over defaults.
fn layers(source: &Source) -> (Reader, Layers) {
    let mut effective = Effective::default();
    let mut problems = Problems::default();
    let consul = consul_env::read(source, &mut effective, &mut problems);
    let is_sound = match &source.file {
        Some(path) => read_file(path, &mut effective, &mut problems),
        None => true,
    };
    env::apply_variables(source, &mut effective, &mut problems);
    env::apply_flags(source, &mut effective, &mut problems);
    let mut reader = Reader {
        effective,
        problems,
    };
    reader.fill_defaults();
    (reader, Layers { consul, is_sound })
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
