//! The process's surroundings: environment variables, host name, working folder.
//!
//! This is the one place that reads the environment. Everything after takes a `Source`,
//! so a test states its own surroundings.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::file;
use super::keys;
use super::origin::{Effective, Origin};
use super::problem::Problems;
use super::suggest::nearest;

/// The file read when none is named and it exists.
const USUAL_FILE: &str = "hermes.toml";

/// Everything settings are made of.
#[derive(Clone, Default)]
pub struct Source {
    pub file: Option<PathBuf>,
    pub variables: Vec<(OsString, OsString)>,
    /// `KEY=VALUE` from flags, strongest.
    pub flags: Vec<(String, String)>,
    pub host_name: String,
}

/// Shows where settings come from, and no value: variables hold tokens.
impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// Takes the surroundings of this process; without a named file, `hermes.toml` if it is here.
    pub fn of_process(file: Option<PathBuf>, flags: Vec<(String, String)>) -> Self {
        let usual = || Some(PathBuf::from(USUAL_FILE)).filter(|path| path.is_file());
        Self {
            file: file.or_else(usual),
            variables: std::env::vars_os().collect(),
            flags,
            host_name: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
        }
    }

    /// Looks up a variable that is set, not empty and UTF-8.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let (_, value) = self.variables.iter().find(|(known, _)| known == name)?;
        value.to_str().filter(|value| !value.is_empty())
    }

    /// Returns the listener that a sidecar tells the command it runs: `HERMES_ADMIN`,
    /// `HERMES_OUTBOUND`.
    pub fn beside(&self, listener: &str) -> Option<String> {
        let variable = match listener {
            "admin" => self.variable("HERMES_ADMIN"),
            "outbound" => self.variable("HERMES_OUTBOUND"),
            _ => None,
        };
        variable.map(str::to_owned)
    }

    /// Finds the folder that databases live in by default.
    pub(super) fn state_folder(&self, name: &str) -> Option<PathBuf> {
        if let Some(given) = self.variable("STATE_DIRECTORY") {
            // systemd joins several with colons; ours is the first.
            return given.split(':').next().map(PathBuf::from);
        }
        let system = Path::new("/var/lib/hermes").join(name);
        if is_writable(&system) {
            return Some(system);
        }
        let home = self.variable("HOME")?;
        Some(Path::new(home).join(".local/state/hermes").join(name))
    }
}

/// Says whether the person at the terminal asked for no colours.
pub fn refuses_colour() -> bool {
    std::env::vars_os().any(|(name, value)| name == "NO_COLOR" && !value.is_empty())
}

/// Says whether a folder may be written to, or, where it is missing, be made.
pub fn is_writable(folder: &Path) -> bool {
    use rustix::fs::{Access, access};
    let nearest = folder.ancestors().find(|ancestor| ancestor.exists());
    nearest.is_some_and(|nearest| {
        nearest.is_dir() && access(nearest, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    })
}

/// Applies `HERMES_SECTION__KEY` over the file; two underscores make a name ours, known or not. Other
/// names that begin with `HERMES_` may be anybody's (Kubernetes sets `HERMES_COLLECTOR_PORT`) and
/// are left alone, unless they look like a slip.
pub(super) fn apply_variables(source: &Source, effective: &mut Effective, problems: &mut Problems) {
    for (name, value) in &source.variables {
        let Some(name) = name.to_str() else { continue };
        let Some(rest) = name.strip_prefix("HERMES_") else {
            continue;
        };
        if rest.starts_with("TEST_") {
            continue;
        }
        let origin = Origin::Variable(name.to_owned());
        match (key_of(rest), value.to_str()) {
            (Named::Key(path), Some(value)) => apply(&path, value, &origin, effective, problems),
            (Named::Key(path), None) => problems.add(Some(origin), &path, "is not UTF-8"),
            (Named::Slip(message), _) => problems.add(Some(origin), "", message),
            (Named::Foreign, _) => {}
        }
    }
}

/// Applies `KEY=VALUE` flags over everything.
pub(super) fn apply_flags(source: &Source, effective: &mut Effective, problems: &mut Problems) {
    for (path, value) in &source.flags {
        if keys::find(path).is_some() || keys::find_list(path).is_some() {
            apply(path, value, &Origin::Flag, effective, problems);
        } else {
            problems.add(Some(Origin::Flag), path, file::unknown(path));
        }
    }
}

fn apply(
    path: &str,
    value: &str,
    origin: &Origin,
    effective: &mut Effective,
    problems: &mut Problems,
) {
    let takes_list = |key: &keys::Key| {
        key.kind == super::kind::Kind::TrustContext && value.trim_start().starts_with('[')
    };
    match keys::find(path) {
        Some(key) if !key.kind.is_toml_in_variables() && !takes_list(key) => {
            effective.set(path, toml::Value::String(value.to_owned()), origin.clone());
        }
        _ => file::read_value(value, path, origin, effective, problems),
    }
}

enum Named {
    Key(String),
    Slip(String),
    Foreign,
}

fn key_of(rest: &str) -> Named {
    let path = rest.to_ascii_lowercase().replace("__", ".");
    if keys::find(&path).is_some() || keys::find_list(&path).is_some() {
        return Named::Key(path);
    }
    let variable = |path: &str| format!("HERMES_{}", path.replace('.', "__").to_ascii_uppercase());
    let Some((section, _)) = path.split_once('.') else {
        let slip = keys::KEYS
            .iter()
            .find(|key| key.path.replace('.', "_") == path);
        return match slip {
            Some(key) => Named::Slip(format!(
                "has one underscore too few; did you mean {}?",
                variable(key.path)
            )),
            None => Named::Foreign,
        };
    };
    if keys::is_section(section) {
        let meant = nearest(&path, keys::KEYS.iter().map(|key| key.path));
        return Named::Slip(match meant {
            Some(meant) => format!("names no key; did you mean {}?", variable(meant)),
            None => format!("names no key of [{section}]"),
        });
    }
    Named::Slip(match nearest(section, keys::children("")) {
        Some(near) => format!(
            "names no section; did you mean HERMES_{}__…?",
            near.to_ascii_uppercase()
        ),
        None => {
            let mut sections: Vec<&str> = keys::children("").collect();
            sections.sort_unstable();
            sections.dedup();
            format!("names no section; there are {}", sections.join(", "))
        }
    })
}
