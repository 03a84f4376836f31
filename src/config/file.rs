//! Reads TOML into the values in force, with the line of each.
//!
//! Everything that can be judged without knowing the other layers is judged here: syntax,
//! unknown keys, tables where values belong. Values themselves are checked when they are read.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::keys;
use super::origin::{Effective, Origin};
use super::problem::Problems;
use super::suggest::nearest;

/// Reads a whole file. Says whether its syntax was sound, so that what is missing can be judged.
pub(super) fn read(
    text: &str,
    path: &Path,
    effective: &mut Effective,
    problems: &mut Problems,
) -> bool {
    let path: Arc<Path> = Arc::from(path);
    let at = |span: Range<usize>| Origin::File {
        path: Arc::clone(&path),
        line: line_of(text, span.start),
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    let broken: Vec<usize> = errors
        .iter()
        .map(|error| {
            let origin = at(error.span().unwrap_or(0..0));
            let line = origin.line();
            problems.add(Some(origin), "", format!("TOML: {}", error.message()));
            line.unwrap_or_default()
        })
        .collect();
    // A line that could not be read must not be judged a second time by what was guessed of it.
    let origin = |span: Range<usize>| {
        Some(at(span)).filter(|origin| !broken.contains(&origin.line().unwrap_or_default()))
    };
    Walk {
        effective,
        problems,
        origin: &origin,
    }
    .table(table.get_ref(), "");
    errors.is_empty()
}

/// Reads one TOML value that a variable or flag gives for `path`.
pub(super) fn read_value(
    text: &str,
    path: &str,
    origin: &Origin,
    effective: &mut Effective,
    problems: &mut Problems,
) {
    match DeValue::parse(text) {
        Ok(value) => {
            let everywhere = |_: Range<usize>| Some(origin.clone());
            Walk {
                effective,
                problems,
                origin: &everywhere,
            }
            .value(value.get_ref(), value.span(), path);
        }
        Err(error) => problems.add(
            Some(origin.clone()),
            path,
            format!(
                "must be a TOML value such as 5, true or [\"a\"]: {}",
                error.message()
            ),
        ),
    }
}

/// Reads a TOML value of our own, as the table of keys holds them.
pub(super) fn literal(text: &str) -> Option<Value> {
    plain(DeValue::parse(text).ok()?.get_ref()).ok()
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// A walk over a parsed table; `origin` is `None` where nothing is to be judged.
struct Walk<'a> {
    effective: &'a mut Effective,
    problems: &'a mut Problems,
    origin: &'a dyn Fn(Range<usize>) -> Option<Origin>,
}

impl Walk<'_> {
    fn table(&mut self, table: &DeTable<'_>, path: &str) {
        for (name, value) in table {
            let below = match path {
                "" => name.get_ref().to_string(),
                path => format!("{path}.{}", name.get_ref()),
            };
            if name.get_ref().contains(['.', '[', ']']) {
                self.problem(name.span(), &below, "no such key");
            } else {
                self.value_named(value.get_ref(), name.span(), &below);
            }
        }
    }

    fn value_named(&mut self, value: &DeValue<'_>, span: Range<usize>, path: &str) {
        if keys::find(path).is_some() || keys::find_list(path).is_some() || keys::is_section(path) {
            self.value(value, span, path);
        } else {
            self.problem(span, path, unknown(path));
        }
    }

    fn value(&mut self, value: &DeValue<'_>, span: Range<usize>, path: &str) {
        if keys::find(path).is_some() {
            match (plain(value), (self.origin)(span.clone())) {
                (Ok(value), Some(origin)) => self.effective.set(path, value, origin),
                (Ok(_), None) => {}
                (Err(message), _) => self.problem(span, path, message),
            }
        } else if let Some(list) = keys::find_list(path) {
            match (list.later, value) {
                (Some(reason), _) => self.problem(span, path, reason),
                (None, DeValue::Array(items)) => {
                    self.effective.clear_list(path);
                    for (index, item) in items.iter().enumerate() {
                        self.element(item.get_ref(), item.span(), &format!("{path}[{index}]"));
                    }
                }
                (None, _) => {
                    self.problem(span, path, format!("is a list of tables: write [[{path}]]"))
                }
            }
        } else {
            match value {
                DeValue::Table(table) => self.table(table, path),
                _ => self.problem(span, path, "is a section, not a value"),
            }
        }
    }

    fn element(&mut self, value: &DeValue<'_>, span: Range<usize>, path: &str) {
        match (value, (self.origin)(span.clone())) {
            (DeValue::Table(table), origin) => {
                let origin = origin.unwrap_or(Origin::Default);
                self.effective
                    .set(path, Value::Table(toml::Table::new()), origin);
                self.table(table, path);
            }
            (_, _) => self.problem(span, path, "must be a table"),
        }
    }

    fn problem(&mut self, span: Range<usize>, path: &str, message: impl Into<String>) {
        if let Some(origin) = (self.origin)(span) {
            self.problems.add(Some(origin), path, message);
        }
    }
}

/// Says that a key is unknown, and what was probably meant.
pub(super) fn unknown(path: &str) -> String {
    let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
    let what = if section.is_empty() { "section" } else { "key" };
    if let Some(near) = nearest(name, keys::children(section)) {
        return format!("no such {what}; did you mean `{near}`?");
    }
    let elsewhere = keys::KEYS
        .iter()
        .filter_map(|key| key.path.rsplit_once('.'))
        .find(|(home, leaf)| *leaf == name && *home != section);
    match elsewhere {
        Some((home, _)) => match home.strip_suffix("[]") {
            Some(list) => format!("no such {what} here; it belongs to [[{list}]]"),
            None => format!("no such {what} here; it belongs to [{home}]"),
        },
        None => {
            let mut known: Vec<&str> = keys::children(section).collect();
            known.dedup();
            match known.as_slice() {
                [] => format!("no such {what}"),
                known => format!("no such {what}; known here: {}", known.join(", ")),
            }
        }
    }
}

fn plain(value: &DeValue<'_>) -> Result<Value, String> {
    Ok(match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .ok()
            .map(Value::Integer)
            .ok_or("is a number beyond 64 bits")?,
        DeValue::Float(number) => number
            .as_str()
            .parse()
            .ok()
            .map(Value::Float)
            .ok_or("is no number")?,
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Datetime(date) => Value::Datetime(*date),
        DeValue::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| plain(item.get_ref()))
                .collect::<Result<_, _>>()?,
        ),
        DeValue::Table(table) => Value::Table(
            table
                .iter()
                .map(|(name, value)| Ok((name.get_ref().to_string(), plain(value.get_ref())?)))
                .collect::<Result<_, String>>()?,
        ),
    })
}
