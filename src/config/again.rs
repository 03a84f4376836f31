//! Settings read a second time, and what of them can be taken over.
//!
//! - keys marked `live` are taken over together, as the very settings that a start would make of
//!   them beside those that stay; a problem between the two refuses all

use super::keys;
use super::origin::{Entry, Origin};
use super::problem::Problems;
use super::reader::Reader;
use super::{Error, Settings, assemble, consul_env, roles};
use crate::identity::Secret;
use std::collections::BTreeSet;

/// The keys in which settings differ, in order; a table of a list that came or went stands for
/// its keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Those that can change while the process runs.
    pub live: Vec<String>,
    pub waiting: Vec<String>,
}

impl Settings {
    /// Reads the same sources again, as they are now.
    pub fn again(&self) -> Result<Self, Error> {
        Self::load(&self.source, self.role)
    }

    /// Compares with settings that were read later.
    pub fn differences(&self, read: &Self) -> Differences {
        let (here, there) = (&self.effective, &read.effective);
        let all = here.iter().chain(there.iter());
        let keys: BTreeSet<&str> = all.map(|(key, _)| key).collect();
        let mut differences = Differences::default();
        let mut table = "";
        for key in keys {
            let (before, after) = (here.get(key), there.get(key));
            if before.map(of_entry) == after.map(of_entry) {
                continue;
            }
            let below = key
                .strip_prefix(table)
                .is_some_and(|rest| rest.starts_with('.'));
            if !table.is_empty() && below {
                continue;
            }
            if key.ends_with(']') {
                table = key;
            }
            match keys::is_live(key) {
                true => differences.live.push(key.to_owned()),
                false => differences.waiting.push(key.to_owned()),
            }
        }
        differences
    }

    /// Makes the settings that are in force once what can change has changed to what `read` says.
    pub fn adopt(&self, read: &Self) -> Result<Self, Error> {
        let mut reader = Reader {
            effective: self.effective.clone(),
            problems: Problems::default(),
        };
        reader.effective.retain(|path| !keys::is_live(path));
        for (path, entry) in read
            .effective
            .iter()
            .filter(|(path, _)| keys::is_live(path))
        {
            match (&entry.origin, keys::find(path)) {
                // What follows from others follows from those in force.
                (Origin::Derived(_), Some(key)) => {
                    reader
                        .effective
                        .set(path, key.default_value(), Origin::Default);
                }
                _ => reader.effective.put(path, entry.clone()),
            }
        }
        // The environment does not change; what it says of keys is among the values already.
        let (mut seen, mut told) = Default::default();
        let consul = consul_env::read(&self.source, &mut seen, &mut told);
        let roles = roles(&reader.effective, self.role);
        let mut settings = assemble::settings(&mut reader, &self.source, consul, roles);
        settings.role = self.role;
        match reader.problems.is_empty() {
            true => Ok(settings),
            false => Err(reader.problems.into_error()),
        }
    }
}

/// What makes a value another: also what is not shown of it, but not where it stands.
fn of_entry(entry: &Entry) -> (&toml::Value, &Option<Secret>) {
    (&entry.value, &entry.masked)
}

#[cfg(test)]
mod tests {
    use crate::config::{Role, Settings, Source};

    fn settings(folder: &std::path::Path, text: &str) -> Settings {
        let file = folder.join("hermes.toml");
        std::fs::write(&file, text).unwrap();
        let source = Source {
            file: Some(file),
            host_name: "host".to_owned(),
            ..Source::default()
        };
        Settings::load(&source, Role::Collector).unwrap()
    }

    #[test]
    fn what_can_change_does_and_the_rest_waits() {
        let folder = tempfile::tempdir().unwrap();
        let store = "store = \"/tmp/a.db\"\n";
        let first = settings(folder.path(), &format!("[collector]\n{store}"));
        let text = "[collector]\nstore = \"/tmp/b.db\"\nretention = \"1d\"\n";
        let read = settings(folder.path(), text);
        let differences = first.differences(&read);
        assert_eq!(differences.live, ["collector.retention"]);
        assert_eq!(differences.waiting, ["collector.store"]);
        let adopted = first.adopt(&read).unwrap();
        assert_eq!(adopted.collector.retention.as_secs(), 24 * 3600);
        let kept = crate::collector::Place::File("/tmp/a.db".into());
        assert_eq!(adopted.collector.store, kept);
        assert!(first.differences(&first).live.is_empty());
        let left = adopted.differences(&read);
        assert_eq!((left.live.len(), left.waiting.len()), (0, 1));
    }

    #[test]
    fn another_password_of_the_database_waits_and_is_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let store = |password: &str, retention: &str| {
            let url = format!("postgres://hermes:{password}@127.0.0.1/hermes");
            let text = format!("[collector]\nstore = \"{url}\"\nretention = \"{retention}\"\n");
            settings(folder.path(), &text)
        };
        let place = |password: &str| {
            let url = format!("postgres://hermes:{password}@127.0.0.1/hermes");
            crate::collector::Place::Postgres(Box::new(
                crate::collector::PostgresAddress::parse(&url).unwrap(),
            ))
        };
        let (first, read) = (store("first", "1d"), store("second", "2d"));
        let differences = first.differences(&read);
        assert_eq!(differences.live, ["collector.retention"]);
        assert_eq!(differences.waiting, ["collector.store"]);
        let adopted = first.adopt(&read).unwrap();
        assert_eq!(adopted.collector.store, place("first"));
        let again = adopted.adopt(&read).unwrap();
        assert_eq!(again.collector.store, place("first"));
        assert_eq!(again.differences(&read).waiting, ["collector.store"]);
        assert!(again.differences(&first).waiting.is_empty());
        let shown = format!("{again:?}");
        assert!(
            shown.contains("hermes:***@") && !shown.contains("first@"),
            "{shown}"
        );
    }

    #[test]
    fn a_table_that_comes_stands_for_its_keys() {
        let folder = tempfile::tempdir().unwrap();
        let collector = "[collector]\nstore = \"/tmp/a.db\"\n";
        let key = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";
        std::fs::write(folder.path().join("a.pub"), key).unwrap();
        let first = settings(folder.path(), collector);
        let trust = "[[trust.key]]\nfile = \"a.pub\"\nids = [\"a-*\"]\n";
        let read = settings(folder.path(), &format!("{collector}{trust}"));
        assert_eq!(first.differences(&read).live, ["trust.key[0]"]);
        assert_eq!(read.differences(&first).live, ["trust.key[0]"]);
        assert_eq!(first.adopt(&read).unwrap().trust.keys.len(), 1);
        assert!(read.adopt(&first).unwrap().trust.keys.is_empty());
    }
}
