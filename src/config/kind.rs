//! The kinds of value a key may hold: one check for file, variable and flag alike.
//!
//! - a value that passed `parse` needs no further question
//! - messages never echo an address, which may carry a password

use std::time::Duration;

use toml::Value as Toml;

use super::address::{self, Advertise, CollectorTarget, Upstream};
use crate::collector::PostgresAddress;
use crate::identity::{Hosts, Trust};
use crate::socket::Address;

/// What a key accepts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Free text up to a length in bytes.
    Text(usize),
    /// `[a-z0-9-]{1,63}`, or empty for the default.
    Name,
    /// The same up to a shorter length, never empty.
    Prefix(usize),
    /// `[A-Za-z0-9._:~-]{1,128}`, or empty for the default.
    Id,
    /// A team without `team-`.
    Team,
    Flag,
    /// A whole number within bounds.
    Count(u64, u64),
    /// A number from 0 to 1.
    Ratio,
    /// A length of time within bounds, in milliseconds.
    Length(u64, u64),
    Choice(&'static [&'static str]),
    /// A list of these words, the first always among them.
    Choices(&'static [&'static str]),
    Texts,
    /// A path within a URL, or empty.
    UrlPath,
    /// Path prefixes of URLs.
    UrlPrefixes,
    /// Patterns of hosts.
    Hosts,
    File,
    /// `IP:PORT`.
    Listen,
    /// `IP:PORT` of the loopback interface.
    LocalListen,
    /// `IP:PORT`, or empty for none.
    OptionalListen,
    Advertise,
    Upstream,
    ConsulAddress,
    CollectorTarget,
    Store,
    TrustContext,
    /// A filter as `tracing` reads it.
    Filter,
    Table,
}

/// A value that was checked.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Text(String),
    Flag(bool),
    Count(u64),
    Ratio(f64),
    Length(Duration),
    Texts(Vec<String>),
    Listen(Option<Address>),
    Advertise(Advertise),
    Upstream(Option<Upstream>),
    CollectorTarget(Option<CollectorTarget>),
    Postgres(Box<PostgresAddress>),
    TrustContext(Trust),
    Hosts(Hosts),
    Table(toml::Table),
}

impl Kind {
    /// Checks a value and gives it its type, or says what was wanted.
    pub fn parse(self, value: &Toml) -> Result<Value, String> {
        match self {
            Kind::Flag => value
                .as_bool()
                .map(Value::Flag)
                .ok_or_else(|| wanted("true or false", value)),
            Kind::Count(min, max) => count(value, min, max).map(Value::Count),
            Kind::Ratio => ratio(value).map(Value::Ratio),
            Kind::Choices(_) | Kind::Texts | Kind::UrlPrefixes => {
                self.parse_list(value).map(Value::Texts)
            }
            Kind::TrustContext => address::trust(value).map(Value::TrustContext),
            Kind::Hosts => address::hosts(&self.parse_list(value)?).map(Value::Hosts),
            Kind::Table => value
                .as_table()
                .cloned()
                .map(Value::Table)
                .ok_or_else(|| wanted("a table", value)),
            _ => self.parse_text(
                value
                    .as_str()
                    .ok_or_else(|| wanted(self.describe().as_str(), value))?,
            ),
        }
    }

    fn parse_text(self, text: &str) -> Result<Value, String> {
        let plain = || Value::Text(text.to_owned());
        match self {
            Kind::Length(min, max) => length(text, min, max).map(Value::Length),
            Kind::Choice(choices) => choice(text, choices).map(|()| plain()),
            Kind::Name => address::check_name(text, 0, 63).map(|()| plain()),
            Kind::Prefix(max) => address::check_name(text, 1, max).map(|()| plain()),
            Kind::Id => address::check_id(text).map(|()| plain()),
            Kind::Team => team(text).map(|()| plain()),
            Kind::UrlPath => address::check_url_path(text).map(|()| plain()),
            Kind::Listen => address::listen(text).map(Some).map(Value::Listen),
            Kind::LocalListen => address::local_listen(text).map(Some).map(Value::Listen),
            Kind::OptionalListen if text.is_empty() => Ok(Value::Listen(None)),
            Kind::OptionalListen => address::listen(text).map(Some).map(Value::Listen),
            Kind::Advertise => Advertise::parse(text).map(Value::Advertise),
            Kind::Upstream => Upstream::parse(text).map(Value::Upstream),
            Kind::ConsulAddress => address::consul(text).map(Value::Text),
            Kind::CollectorTarget => CollectorTarget::parse(text).map(Value::CollectorTarget),
            Kind::Store => store(text),
            Kind::Filter => filter(text).map(|()| plain()),
            Kind::Text(max) if text.len() > max => Err(format!("is longer than {max} bytes")),
            _ if text.contains('\0') => Err("holds a NUL character".to_owned()),
            _ => Ok(plain()),
        }
    }

    fn parse_list(self, value: &Toml) -> Result<Vec<String>, String> {
        const LONGEST: usize = 256;
        let items = value
            .as_array()
            .ok_or_else(|| wanted("a list of texts", value))?;
        if items.len() > LONGEST {
            return Err(format!("has more than {LONGEST} items"));
        }
        let mut texts: Vec<String> = Vec::with_capacity(items.len());
        for item in items {
            let text = item
                .as_str()
                .ok_or_else(|| wanted("a list of texts", item))?;
            match self {
                Kind::Choices(choices) => choice(text, choices)?,
                Kind::UrlPrefixes => address::check_url_prefix(text)?,
                _ if text.is_empty() => return Err("holds an empty text".to_owned()),
                _ => {}
            }
            if texts.iter().any(|known| known == text) {
                return Err(format!("names `{text}` twice"));
            }
            texts.push(text.to_owned());
        }
        match self {
            Kind::Choices([first, ..]) if !texts.iter().any(|text| text == first) => {
                Err(format!("must hold \"{first}\""))
            }
            _ => Ok(texts),
        }
    }

    /// Reads the text of a variable or flag: numbers, flags, lists and tables as TOML, all else as it stands.
    pub(super) fn is_toml_in_variables(self) -> bool {
        matches!(
            self,
            Kind::Flag
                | Kind::Count(..)
                | Kind::Ratio
                | Kind::Choices(_)
                | Kind::Texts
                | Kind::UrlPrefixes
                | Kind::Hosts
                | Kind::Table
        )
    }

    /// Says in a few words what is accepted.
    pub fn describe(self) -> String {
        match self {
            Kind::Flag => "true or false".to_owned(),
            Kind::Count(min, max) => format!("a whole number from {min} to {max}"),
            Kind::Ratio => "a number from 0 to 1".to_owned(),
            Kind::Length(..) => "a length of time such as \"5s\"".to_owned(),
            Kind::Choice(choices) => format!("one of {}", choices.join(", ")),
            Kind::Choices(choices) => format!("a list of {}", choices.join(", ")),
            Kind::Texts | Kind::UrlPrefixes | Kind::Hosts => "a list of texts".to_owned(),
            Kind::Table => "a table".to_owned(),
            Kind::TrustContext => "\"any\", \"mtls\" or a list of networks".to_owned(),
            Kind::Listen | Kind::LocalListen | Kind::OptionalListen => {
                "a text such as \"127.0.0.1:7402\" or \"unix:/run/a.sock\"".to_owned()
            }
            _ => "a text".to_owned(),
        }
    }
}

/// Says what was wanted and what was found.
pub(super) fn wanted(what: &str, found: &Toml) -> String {
    let found = match found {
        Toml::String(_) => "a text",
        Toml::Integer(_) => "a whole number",
        Toml::Float(_) => "a fraction",
        Toml::Boolean(_) => "true or false",
        Toml::Datetime(_) => "a date",
        Toml::Array(_) => "a list",
        Toml::Table(_) => "a table",
    };
    format!("must be {what}, not {found}")
}

fn count(value: &Toml, min: u64, max: u64) -> Result<u64, String> {
    let what = format!("a whole number from {min} to {max}");
    let number = value.as_integer().ok_or_else(|| wanted(&what, value))?;
    u64::try_from(number)
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("must be {what}, not {number}"))
}

fn ratio(value: &Toml) -> Result<f64, String> {
    let number = match value {
        Toml::Float(number) => *number,
        Toml::Integer(0) => 0.0,
        Toml::Integer(1) => 1.0,
        other => return Err(wanted("a number from 0 to 1", other)),
    };
    if (0.0..=1.0).contains(&number) {
        Ok(number)
    } else {
        Err(format!("must be a number from 0 to 1, not {number}"))
    }
}

fn length(text: &str, min: u64, max: u64) -> Result<Duration, String> {
    let length = humantime::parse_duration(text)
        .map_err(|error| format!("is no length of time such as \"5s\" or \"250ms\": {error}"))?;
    let (min, max) = (Duration::from_millis(min), Duration::from_millis(max));
    if (min..=max).contains(&length) {
        return Ok(length);
    }
    Err(format!("must be from {} to {}", bound(min), bound(max)))
}

/// Writes a bound so that it reads as it was meant: days stay days, or ten years have odd minutes.
fn bound(length: Duration) -> String {
    const DAY: u64 = 86_400;
    match (length.as_secs() / DAY, length.as_secs() % DAY) {
        (days @ 2.., 0) => format!("{days}days"),
        _ => humantime::format_duration(length).to_string(),
    }
}

fn choice(text: &str, choices: &[&str]) -> Result<(), String> {
    if choices.contains(&text) {
        return Ok(());
    }
    Err(
        match super::suggest::nearest(text, choices.iter().copied()) {
            Some(near) => format!("knows no `{text}`; did you mean `{near}`?"),
            None => format!("must be one of {}, not `{text}`", choices.join(", ")),
        },
    )
}

fn team(text: &str) -> Result<(), String> {
    if let Some(rest) = text.strip_prefix("team-") {
        return Err(format!("is written without `team-`: \"{rest}\""));
    }
    address::check_name(text, 0, 58)
}

/// Reads a path or a URL. A message repeats nothing of the text: what was meant for PostgreSQL
/// may hold a password, and taken for a path it would be shown and become the name of a file.
fn store(text: &str) -> Result<Value, String> {
    const FORMS: &str = "must be a path, or postgres://USER:PASSWORD@HOST/DATABASE";
    if PostgresAddress::is_meant(text) {
        let address = PostgresAddress::parse(text)?;
        return Ok(Value::Postgres(Box::new(address)));
    }
    if is_nearly_url(text) || text.contains("://") || text.contains('\0') {
        return Err(FORMS.to_owned());
    }
    if names_libpq_keys(text) {
        return Err(format!(
            "holds libpq's KEY=VALUE, which is not read here: it {FORMS}"
        ));
    }
    Ok(Value::Text(text.to_owned()))
}

fn is_nearly_url(text: &str) -> bool {
    let text = text.trim_start().to_ascii_lowercase();
    let schemes = ["postgres:", "postgresql:"];
    schemes.iter().any(|scheme| text.starts_with(scheme))
}

/// Says whether a word before a `=` is one that libpq knows.
fn names_libpq_keys(text: &str) -> bool {
    const KEYS: [&str; 16] = [
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "passfile",
        "service",
        "options",
        "application_name",
        "connect_timeout",
        "sslmode",
        "sslcert",
        "sslkey",
        "sslpassword",
        "sslrootcert",
    ];
    let mut before: Vec<&str> = text.split('=').collect();
    // What follows the last `=` is no key.
    before.pop();
    let mut words = before
        .into_iter()
        .filter_map(|part| part.split_whitespace().next_back());
    words.any(|word| KEYS.iter().any(|key| word.eq_ignore_ascii_case(key)))
}

fn filter(text: &str) -> Result<(), String> {
    tracing_subscriber::EnvFilter::try_new(text)
        .map(|_| ())
        .map_err(|error| {
            format!("is no log filter such as \"info\" or \"info,hermes_sidecar=debug\": {error}")
        })
}
