//! Host names as requests give them, and the list of foreign ones that may be asked for.
//!
//! Matching is on the name as given: nothing is resolved, decoded or completed here.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// The longest host name (RFC 1035 section 2.3.4).
const LONGEST: usize = 253;

/// `host`, `host:port` or `[address]:port`, without user information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authority<'a> {
    /// Without brackets.
    pub host: &'a str,
    pub port: Option<u16>,
}

impl<'a> Authority<'a> {
    /// Splits an authority; `None` for what is none, such as a bracket that is never closed.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(inner) => {
                let (address, rest) = inner.split_once(']')?;
                address.parse::<Ipv6Addr>().ok()?;
                let port = match rest {
                    "" => None,
                    rest => Some(rest.strip_prefix(':')?),
                };
                (address, port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(&byte);
        let is_name = !host.is_empty() && host.bytes().all(fits);
        let is_bracketed = text.starts_with('[');
        (is_name || is_bracketed).then_some(())?;
        // An empty port is the default one (RFC 3986 section 3.2.3).
        let port = match port {
            None | Some("") => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse().ok()?)
            }
            Some(_) => return None,
        };
        Some(Self { host, port })
    }

    /// Returns the address, where the host is one.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

/// Foreign hosts that may be asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts(Vec<Pattern>);

impl Hosts {
    /// Takes the patterns of a list.
    pub fn new(patterns: Vec<Pattern>) -> Self {
        Self(patterns)
    }

    /// Says whether one of them covers `authority`; without a port it is asked for at 80.
    pub fn cover(&self, authority: &Authority<'_>) -> bool {
        self.0.iter().any(|pattern| pattern.covers(authority))
    }
}

/// One of the list: `HOST` (any port), `HOST:PORT`, or `*.SUFFIX` with or without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Lower case; begins with a dot where it stands for every name below it.
    name: String,
    port: Option<u16>,
}

impl Pattern {
    fn covers(&self, authority: &Authority<'_>) -> bool {
        let asked = authority.port.unwrap_or(80);
        if self.port.is_some_and(|port| port != asked) {
            return false;
        }
        let host = authority.host;
        if !self.name.starts_with('.') {
            return host.eq_ignore_ascii_case(&self.name);
        }
        let at = host.len().checked_sub(self.name.len());
        let suffix = at.filter(|at| *at > 0).and_then(|at| host.get(at..));
        suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case(&self.name))
    }
}

/// A text that is no pattern of hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is no HOST, HOST:PORT or *.SUFFIX: {why}")]
pub struct BadPattern {
    why: &'static str,
}

impl FromStr for Pattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Self, BadPattern> {
        let bad = |why| BadPattern { why };
        if text.contains("://") || text.contains('/') {
            return Err(bad("leave out scheme and path"));
        }
        let (below, rest) = match text.strip_prefix("*.") {
            Some(suffix) => (".", suffix),
            None => ("", text),
        };
        let authority = Authority::parse(rest).ok_or(bad("the host or port is malformed"))?;
        let host = authority.host.to_ascii_lowercase();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if host.len() > LONGEST || !host.bytes().all(fits) {
            return Err(bad("the host holds characters that no host name has"));
        }
        if format!("{below}{host}").ends_with(".hermes") {
            return Err(bad("names below .hermes are agents"));
        }
        let last = host.rsplit('.').next().unwrap_or_default();
        if !below.is_empty() && (last.is_empty() || last.bytes().all(|b| b.is_ascii_digit())) {
            return Err(bad("a suffix ends in a name, not in a number"));
        }
        Ok(Self {
            name: format!("{below}{host}"),
            port: authority.port,
        })
    }
}

impl fmt::Display for Authority<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(self.host)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn authorities_and_what_is_none() {
        for (text, parts) in [
            ("a.example", Some(("a.example", None))),
            ("a.example:80", Some(("a.example", Some(80)))),
            ("a.example:", Some(("a.example", None))),
            ("127.0.0.1:7402", Some(("127.0.0.1", Some(7402)))),
            ("[::1]", Some(("::1", None))),
            ("[::1]:7402", Some(("::1", Some(7402)))),
            ("[::1", None),
            ("::1]", None),
            ("[::1]x", None),
            ("[localhost]", None),
            ("[127.0.0.1]", None),
            ("[]", None),
            ("::1", None),
            ("", None),
            (":80", None),
            ("a:b", None),
            ("a:+80", None),
            ("a:99999", None),
            ("a:80:80", None),
            ("a, b", None),
            ("a@b", None),
            ("a/b", None),
        ] {
            let parsed = Authority::parse(text);
            assert_eq!(parsed.map(|a| (a.host, a.port)), parts, "{text:?}");
        }
        let shown = |text| Authority::parse(text).unwrap().to_string();
        assert_eq!(shown("[::1]:80"), "[::1]:80");
        assert_eq!(shown("a:80"), "a:80");
    }

    proptest! {
        #[test]
        fn what_parses_prints_and_parses_back(text in "(\\[?[0-9a-fA-F:.]{0,9}\\]?|[a-zA-Z0-9._%@ é-]{0,9})(:[0-9+]{0,6})?") {
            if let Some(authority) = Authority::parse(&text) {
                let shown = authority.to_string();
                prop_assert_eq!(Authority::parse(&shown), Some(authority));
            }
            drop(text.parse::<Pattern>());
        }
    }

    #[test]
    fn a_list_covers_names_as_they_are_given() {
        let list = [
            "api.example",
            "Pay.Example:8080",
            "*.internal.example",
            "[fd00::1]:81",
        ];
        let hosts = Hosts::new(list.map(|text| text.parse().unwrap()).to_vec());
        for (authority, covered) in [
            ("api.example", true),
            ("API.example:9000", true),
            ("api.example.", false),
            ("xapi.example", false),
            ("x.api.example", false),
            ("pay.example:8080", true),
            ("pay.example", false),
            ("pay.example:80", false),
            ("a.internal.example", true),
            ("a.b.internal.example:81", true),
            ("internal.example", false),
            (".internal.example", false),
            ("ainternal.example", false),
            ("a.internal.example.evil.example", false),
            ("[fd00::1]:81", true),
            ("[fd00::1]", false),
            ("169.254.169.254", false),
        ] {
            let asked = Authority::parse(authority).unwrap();
            assert_eq!(hosts.cover(&asked), covered, "{authority}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in [
            "",
            "*",
            "*.",
            "**.example",
            "a.*.example",
            "http://a.example",
            "a.example/x",
            "a.example:x",
            "a b",
            "u@a.example",
            "*.254",
            "*.169.254",
            "fraud-detection-v1.0.hermes",
            "*.hermes",
            "[::1",
        ] {
            assert!(text.parse::<Pattern>().is_err(), "{text:?}");
        }
        for text in [
            "localhost",
            "127.0.0.1:5000",
            "*.example",
            "*.example:81",
            "a_b",
        ] {
            assert!(text.parse::<Pattern>().is_ok(), "{text:?}");
        }
    }
}
