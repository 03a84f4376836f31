//! Where PostgreSQL is, from a `postgres://` URL.
//!
//! - a message never quotes the URL: it may carry a password
//! - off the machine, going in clear must be asked for; TLS always verifies the server

use crate::identity::Secret;
use std::fmt;
use std::path::PathBuf;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// What may stand behind the `?`, beside what is about TLS.
const OPTIONS: [&str; 4] = [
    "host",
    "application_name",
    "load_balance_hosts",
    "tcp_user_timeout",
];

/// A checked URL.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    url: Secret,
    pub(super) config: Config,
    /// Who signs for the server; nothing for the machine's own authorities.
    pub(super) authorities: Option<PathBuf>,
}

impl Address {
    /// Says whether a text is meant as such a URL.
    pub fn is_meant(text: &str) -> bool {
        SCHEMES.iter().any(|scheme| text.starts_with(scheme))
    }

    /// Reads a URL; an error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme));
        let rest = rest.ok_or("must begin with postgres://")?;
        let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = before.split('/').next().unwrap_or_default();
        let ats = rest.matches('@').count();
        if ats > 1 || ats == 1 && !authority.contains('@') {
            return Err(
                "has a character in its user or password that must be written as %40 (@), \
                 %2F (/) or %3F (?)"
                    .to_owned(),
            );
        }
        let mut plain = format!("postgres://{before}");
        let (mut mode, mut authorities) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "sslmode" => mode = Some(tls(value)?),
                "sslrootcert" => authorities = Some(file(value)?),
                // What holds anyway may be said.
                "target_session_attrs" if value == "read-write" => {}
                "channel_binding" if matches!(value, "prefer" | "disable") => {}
                "target_session_attrs" => {
                    return Err(
                        "has another `target_session_attrs` than read-write: reports are \
                                written, and a standby could not take them"
                            .to_owned(),
                    );
                }
                "channel_binding" => {
                    return Err(
                        "has another `channel_binding` than prefer or disable: it is not \
                                supported, the server is known by its certificate"
                            .to_owned(),
                    );
                }
                name if OPTIONS.contains(&name) => {
                    plain.push(if plain.contains('?') { '&' } else { '?' });
                    plain.push_str(pair);
                }
                _ => {
                    return Err(format!(
                        "has an option that is not known; there are sslmode, sslrootcert, {}",
                        OPTIONS.join(", ")
                    ));
                }
            }
        }
        let mut config: Config = plain.parse().map_err(|error| reason(&error))?;
        check(&config)?;
        config.ssl_mode(match mode {
            Some(mode) => mode,
            None if is_near(&config) => SslMode::Disable,
            None => {
                return Err(
                    "needs ?sslmode=verify-full, or ?sslmode=disable to go in clear".to_owned(),
                );
            }
        });
        if authorities.is_some() && config.get_ssl_mode() == SslMode::Disable {
            return Err("has sslrootcert, which needs sslmode=verify-full".to_owned());
        }
        // Reports are written; a standby could not take them.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_application_name().is_none() {
            config.application_name("hermes-collector");
        }
        Ok(Self {
            url: Secret::new(text),
            config,
            authorities,
        })
    }

    /// Returns the URL with its password masked.
    pub fn masked(&self) -> String {
        let url = self.url.reveal();
        let masked = || {
            let (scheme, rest) = url.split_once("://")?;
            let (person, place) = rest.split_once('@')?;
            let (user, _password) = person.split_once(':')?;
            Some(format!("{scheme}://{user}:***@{place}"))
        };
        masked().unwrap_or_else(|| url.to_owned())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.masked()).finish()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.masked())
    }
}

fn tls(mode: &str) -> Result<SslMode, String> {
    match mode {
        "disable" => Ok(SslMode::Disable),
        // Encrypted for whoever answers would be of little use: both verify.
        "require" | "verify-full" => Ok(SslMode::Require),
        "prefer" | "allow" | "verify-ca" => {
            Err("must have verify-full or disable as its sslmode".to_owned())
        }
        _ => Err("has no sslmode that there is: verify-full, require or disable".to_owned()),
    }
}

/// Reads a path, which may be percent-encoded.
fn file(value: &str) -> Result<PathBuf, String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let digits = [rest.next(), rest.next()];
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                match digits.map(digit) {
                    [Some(high), Some(low)] => (high * 16 + low) as u8,
                    _ => return Err("has a broken % in sslrootcert".to_owned()),
                }
            }
            byte => byte,
        };
        bytes.push(byte);
    }
    match String::from_utf8(bytes) {
        Ok(path) if path.starts_with('/') => Ok(PathBuf::from(path)),
        _ => Err("must have a path from the root as its sslrootcert".to_owned()),
    }
}

fn check(config: &Config) -> Result<(), String> {
    let hosts = config.get_hosts();
    let is_empty = |host: &Host| matches!(host, Host::Tcp(name) if name.is_empty());
    if hosts.is_empty() || hosts.iter().any(is_empty) {
        return Err(
            "names no host: postgres://USER@HOST/DATABASE, or ?host=/run/postgresql for a socket"
                .to_owned(),
        );
    }
    if config.get_ports().len() > 1 && config.get_ports().len() != hosts.len() {
        return Err("has another number of ports than of hosts".to_owned());
    }
    if config.get_ports().contains(&0) {
        return Err("has port 0".to_owned());
    }
    if config.get_user().is_none_or(str::is_empty) {
        return Err("names no user: postgres://USER@HOST/DATABASE".to_owned());
    }
    if config.get_dbname().is_none_or(str::is_empty) {
        return Err("names no database: postgres://USER@HOST/DATABASE".to_owned());
    }
    let texts = [
        config.get_user(),
        config.get_dbname(),
        config.get_application_name(),
    ];
    let has_nul = |text: &str| text.contains('\0');
    if texts.into_iter().flatten().any(has_nul)
        || config
            .get_password()
            .is_some_and(|bytes| bytes.contains(&0))
    {
        return Err("holds a NUL character".to_owned());
    }
    Ok(())
}

/// Says whether no byte leaves this machine.
fn is_near(config: &Config) -> bool {
    config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            let ip = name.parse::<std::net::IpAddr>();
            name == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
        }
    })
}

fn reason(error: &tokio_postgres::Error) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string);
    // These name options and say which is wrong; none quotes a value.
    match source.filter(|reason| reason.starts_with("invalid value for option")) {
        Some(reason) => format!("has an {reason}"),
        None => "is no URL like postgres://USER:PASSWORD@HOST:5432/DATABASE".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_urls_are_read_and_masked() {
        for (url, masked, mode) in [
            (
                "postgres://hermes:s3cret@127.0.0.1:5433/tasks",
                "postgres://hermes:***@127.0.0.1:5433/tasks",
                SslMode::Disable,
            ),
            (
                "postgresql://hermes:a%40b@db1,db2/tasks?sslmode=verify-full&sslrootcert=/etc/ca.pem",
                "postgresql://hermes:***@db1,db2/tasks?sslmode=verify-full&sslrootcert=/etc/ca.pem",
                SslMode::Require,
            ),
            (
                "postgres://hermes@/tasks?host=/run/postgresql",
                "postgres://hermes@/tasks?host=/run/postgresql",
                SslMode::Disable,
            ),
            (
                "postgres://u:p@[::1]:5432/t?sslmode=require",
                "postgres://u:***@[::1]:5432/t?sslmode=require",
                SslMode::Require,
            ),
            (
                "postgres://u:p@db/t?sslmode=disable",
                "postgres://u:***@db/t?sslmode=disable",
                SslMode::Disable,
            ),
            (
                "postgres://u:p@localhost/t?target_session_attrs=read-write&channel_binding=prefer",
                "postgres://u:***@localhost/t?target_session_attrs=read-write&channel_binding=prefer",
                SslMode::Disable,
            ),
        ] {
            let address = Address::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(address.masked(), masked);
            assert_eq!(address.config.get_ssl_mode(), mode, "{url}");
            assert!(!format!("{address:?} {:?}", address.config).contains("s3cret"));
        }
        let address = Address::parse("postgres://u:a%40b@localhost/t").unwrap();
        assert_eq!(address.config.get_password(), Some(&b"a@b"[..]));
    }

    #[test]
    fn bad_urls_say_what_is_wrong_without_the_password() {
        for (url, wrong) in [
            ("postgres://", "no host"),
            ("postgres:///tasks", "no host"),
            ("postgres://u:s3cret@/tasks", "no host"),
            ("postgres://:s3cret@localhost/tasks", "no user"),
            ("postgres://localhost/tasks", "no user"),
            ("postgres://u:s3cret@localhost", "no database"),
            ("postgres://u:s3cret@localhost:x/tasks", "`port`"),
            ("postgres://u:s3cret@localhost:0/tasks", "port 0"),
            ("postgres://u:s3cret@[::1/tasks", "`host`"),
            ("postgres://u:s3cret@db/tasks", "sslmode=verify-full"),
            (
                "postgres://u:s3cret@db/tasks?sslmode=prefer",
                "verify-full or disable",
            ),
            ("postgres://u:s3cret@db/tasks?sslmode=on", "no sslmode"),
            ("postgres://u:s3@cret@db/tasks?sslmode=disable", "%40"),
            ("postgres://u:s3/cret@db/tasks", "%2F"),
            ("postgres://u:s3?cret@db/tasks", "%3F"),
            (
                "postgres://u:s3cret@localhost/tasks?password=x",
                "not known",
            ),
            (
                "postgres://u:s3cret@localhost/t?sslrootcert=/ca.pem",
                "needs sslmode",
            ),
            (
                "postgres://u:s3cret@localhost/t?sslmode=require&sslrootcert=ca.pem",
                "root",
            ),
            ("postgres://u:%ff@localhost/%ff", "is no URL"),
            ("postgres://u%00:x@localhost/t", "NUL"),
            (
                "postgres://u:x@localhost/t?target_session_attrs=no",
                "`target_session_attrs`",
            ),
            (
                "postgres://u:s3cret@localhost/t?target_session_attrs=any",
                "than read-write",
            ),
            (
                "postgres://u:s3cret@localhost/t?channel_binding=require",
                "`channel_binding`",
            ),
        ] {
            let error = Address::parse(url).unwrap_err();
            assert!(error.contains(wrong), "{url}: {error}");
            assert!(!error.contains("cret"), "{url}: {error}");
        }
    }
}
