//! Where a value came from, and the values in force with their origins.
//!
//! - a later layer replaces an earlier one key by key; a list of tables is replaced as a whole
//! - paths are written as in the file: `limits.header_timeout`, `application.contract[0].file`

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Value;

use crate::identity::Secret;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// `--set KEY=VALUE` or a flag of its own.
    Flag,
    /// An environment variable.
    Variable(String),
    /// A line of the config file, counted from 1; 0 for the file as a whole.
    File {
        path: Arc<Path>,
        line: usize,
    },
    /// Found out at start, for example from the first contract.
    Derived(&'static str),
    Default,
}

impl Origin {
    pub(super) fn line(&self) -> Option<usize> {
        match self {
            Origin::File { line, .. } => Some(*line),
            _ => None,
        }
    }

    /// Resolves a path against the place it was written in: the file's folder, else the working folder.
    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        match self {
            Origin::File { path: file, .. } => match file.parent() {
                Some(folder) => folder.join(path),
                None => PathBuf::from(path),
            },
            _ => PathBuf::from(path),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("flag"),
            Origin::Variable(name) => f.write_str(name),
            Origin::File { path, line: 0 } => write!(f, "{}", path.display()),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Derived(from) => f.write_str(from),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// One value in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub value: Value,
    pub origin: Origin,
    /// The value itself, where it holds a secret that `value` does not show.
    pub(super) masked: Option<Secret>,
}

/// Every value in force, by path.
#[derive(Debug, Clone, Default)]
pub struct Effective {
    entries: BTreeMap<String, Entry>,
}

impl Effective {
    /// Sets a value, over whatever an earlier layer said.
    pub(super) fn set(&mut self, path: &str, value: Value, origin: Origin) {
        let entry = Entry {
            value,
            origin,
            masked: None,
        };
        self.put(path, entry);
    }

    pub(super) fn put(&mut self, path: &str, entry: Entry) {
        self.entries.insert(path.to_owned(), entry);
    }

    /// Forgets the elements of a list of tables, which a later layer gives anew.
    pub(super) fn clear_list(&mut self, path: &str) {
        let head = format!("{path}[");
        self.entries.retain(|key, _| !key.starts_with(&head));
    }

    /// Keeps the values whose paths `wanted` says yes to.
    pub(super) fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.entries.retain(|path, _| wanted(path));
    }

    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// Counts the elements of a list of tables.
    pub(super) fn list_length(&self, path: &str) -> usize {
        (0..)
            .take_while(|index| self.entries.contains_key(&format!("{path}[{index}]")))
            .count()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries
            .iter()
            .map(|(path, entry)| (path.as_str(), entry))
    }
}
