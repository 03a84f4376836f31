//! Takes checked values out of the layers, key by key, and notes what is wrong with them.
//!
//! - a key that was given nowhere has the default of the table
//! - after a problem a harmless value stands in, so that reading goes on and finds the next one;
//!   no settings leave the room while there is a problem

use crate::socket::Address;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use toml::Value as Toml;

use super::address::{Advertise, CollectorTarget, Upstream};
use super::keys::{self, Key, Rule};
use super::kind::Value;
use super::origin::{Effective, Entry, Origin};
use super::problem::Problems;
use crate::collector::PostgresAddress;
use crate::identity::{Hosts, Secret, Trust};

pub(super) struct Reader {
    pub effective: Effective,
    pub problems: Problems,
}

impl Reader {
    /// Fills in the default of every key that no layer gave.
    pub fn fill_defaults(&mut self) {
        for key in keys::KEYS {
            match key.path.split_once("[]") {
                None => self.fill_default(key.path, key),
                Some((list, rest)) => {
                    for index in 0..self.effective.list_length(list) {
                        self.fill_default(&format!("{list}[{index}]{rest}"), key);
                    }
                }
            }
        }
    }

    fn fill_default(&mut self, path: &str, key: &Key) {
        if self.effective.get(path).is_none() {
            self.effective
                .set(path, key.default_value(), Origin::Default);
        }
    }

    /// Holds keys of features that are not built to their defaults, and all others to what is built.
    pub fn check_rules(&mut self) {
        let mut refused = Vec::new();
        for (path, entry) in self.effective.iter() {
            let Some(key) = keys::find(path) else {
                continue;
            };
            let fault = match key.rule {
                Rule::Built => continue,
                Rule::Later(reason) => match key.kind.parse(&entry.value) {
                    Err(message) => message,
                    Ok(value) if Ok(&value) == key.kind.parse(&key.default_value()).as_ref() => {
                        continue;
                    }
                    Ok(_) => format!("{reason}; leave it at {}", key.default),
                },
                Rule::Except(words, reason) => match entry.value.as_str() {
                    Some(word) if words.contains(&word) => format!("\"{word}\": {reason}"),
                    _ => match key.kind.parse(&entry.value) {
                        Err(message) => message,
                        Ok(_) => continue,
                    },
                },
            };
            refused.push((path.to_owned(), fault));
        }
        for (path, fault) in refused {
            self.problem(&path, fault);
        }
    }

    /// Notes a problem at the place a value came from.
    pub fn problem(&mut self, path: &str, message: impl Into<String>) {
        let origin = self.effective.get(path).map(|entry| entry.origin.clone());
        let origin = origin.filter(|origin| *origin != Origin::Default);
        self.problems.add(origin, path, message);
    }

    fn take<T>(&mut self, path: &str, instead: T, pick: impl FnOnce(Value) -> Option<T>) -> T {
        let parsed = match (keys::find(path), self.effective.get(path)) {
            (Some(key), Some(entry)) => key.kind.parse(&entry.value),
            _ => Err("is read but not declared".to_owned()),
        };
        let picked = parsed.and_then(|value| {
            pick(value).ok_or_else(|| "is read as another kind than declared".to_owned())
        });
        picked.unwrap_or_else(|message| {
            self.problem(path, message);
            instead
        })
    }

    pub fn text(&mut self, path: &str) -> String {
        self.take(path, String::new(), |value| match value {
            Value::Text(text) => Some(text),
            _ => None,
        })
    }

    /// Takes a text where empty stands for none.
    pub fn optional(&mut self, path: &str) -> Option<String> {
        Some(self.text(path)).filter(|text| !text.is_empty())
    }

    /// Takes a path, resolved against the place it was written in; empty stands for none.
    pub fn file(&mut self, path: &str) -> Option<PathBuf> {
        let text = self.optional(path)?;
        self.effective
            .get(path)
            .map(|entry| entry.origin.resolve(&text))
    }

    /// Takes one of the words of a choice as what it stands for.
    pub fn word<T: Copy>(&mut self, path: &str, words: &[(&str, T)], instead: T) -> T {
        self.take(path, instead, |value| match value {
            Value::Text(text) => words
                .iter()
                .find(|(word, _)| *word == text)
                .map(|(_, meaning)| *meaning),
            _ => None,
        })
    }

    pub fn flag(&mut self, path: &str) -> bool {
        self.take(path, false, |value| match value {
            Value::Flag(flag) => Some(flag),
            _ => None,
        })
    }

    pub fn count<T: TryFrom<u64> + Default>(&mut self, path: &str) -> T {
        self.take(path, T::default(), |value| match value {
            Value::Count(number) => T::try_from(number).ok(),
            _ => None,
        })
    }

    pub fn length(&mut self, path: &str) -> Duration {
        self.take(path, Duration::ZERO, |value| match value {
            Value::Length(length) => Some(length),
            _ => None,
        })
    }

    pub fn ratio(&mut self, path: &str) -> f64 {
        self.take(path, 0.0, |value| match value {
            Value::Ratio(ratio) => Some(ratio),
            _ => None,
        })
    }

    pub fn texts(&mut self, path: &str) -> Vec<String> {
        self.take(path, Vec::new(), |value| match value {
            Value::Texts(texts) => Some(texts),
            _ => None,
        })
    }

    pub fn optional_listen(&mut self, path: &str) -> Option<Address> {
        self.take(path, None, |value| match value {
            Value::Listen(address) => Some(address),
            _ => None,
        })
    }

    pub fn listen(&mut self, path: &str) -> Address {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        self.optional_listen(path).unwrap_or(nowhere.into())
    }

    pub fn advertise(&mut self, path: &str) -> Advertise {
        self.take(path, Advertise::default(), |value| match value {
            Value::Advertise(advertise) => Some(advertise),
            _ => None,
        })
    }

    pub fn upstream(&mut self, path: &str) -> Option<Upstream> {
        self.take(path, None, |value| match value {
            Value::Upstream(upstream) => Some(upstream),
            _ => None,
        })
    }

    pub fn collector_target(&mut self, path: &str) -> Option<CollectorTarget> {
        self.take(path, None, |value| match value {
            Value::CollectorTarget(target) => Some(target),
            _ => None,
        })
    }

    /// Takes the address of a shared database, and masks its password wherever the value is shown.
    pub fn postgres(&mut self, path: &str) -> Option<Box<PostgresAddress>> {
        let Entry {
            value,
            origin,
            masked,
        } = self.effective.get(path)?.clone();
        // Settings that are read out of others hold what those were given.
        let given = match &masked {
            Some(secret) => secret.reveal(),
            None => value.as_str()?,
        };
        if !PostgresAddress::is_meant(given) {
            return None;
        }
        let given = given.to_owned();
        let whole = Toml::String(given.clone());
        self.effective.set(path, whole, origin.clone());
        let address = self.take(path, None, |value| match value {
            Value::Postgres(address) => Some(Some(address)),
            _ => None,
        })?;
        let shown = Entry {
            value: Toml::String(address.masked()),
            origin,
            masked: Some(Secret::new(given)),
        };
        self.effective.put(path, shown);
        Some(address)
    }

    pub fn trust_context(&mut self, path: &str) -> Trust {
        self.take(path, Trust::Any, |value| match value {
            Value::TrustContext(trust) => Some(trust),
            _ => None,
        })
    }

    pub fn hosts(&mut self, path: &str) -> Hosts {
        self.take(path, Hosts::default(), |value| match value {
            Value::Hosts(hosts) => Some(hosts),
            _ => None,
        })
    }

    /// Puts a value that was found out in place of an empty default, so that it is shown.
    pub fn derive(&mut self, path: &str, value: &str, from: &'static str) {
        self.effective
            .set(path, Toml::String(value.to_owned()), Origin::Derived(from));
    }
}
