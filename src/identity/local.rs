//! Who may use a listener that is meant for this machine alone, and what it is asked for.
//!
//! A loopback address keeps other machines out but not the browser of somebody on this one: a
//! foreign page may make it send requests, or point its own name at 127.0.0.1. So the Host must be
//! one of ours or a listed one, and requests that a browser marks as coming from another site are
//! refused.

use super::{Authority, Hosts};
use http::header::{HOST, HeaderName, ORIGIN};
use http::{HeaderMap, Uri};
use std::net::SocketAddr;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The suffix under which agents are addressed by name.
const AGENTS: &str = ".hermes";

/// Why a request may not use a local listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error(
        "the Host is neither localhost, a loopback address, this listener's own, NAME.hermes, nor \
         one listed in outbound.allow_hosts"
    )]
    ForeignHost,
    #[error("the request comes from a page of another site")]
    CrossSite,
}

/// A listener for this machine alone, and the foreign names that it may be asked for.
#[derive(Debug, Clone)]
pub struct Local {
    /// Where it is bound; a unix socket has no address.
    pub own: Option<SocketAddr>,
    pub allowed: Hosts,
}

/// What the authority of a request stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked<'a> {
    /// The listener itself.
    Us,
    /// The part of `NAME.hermes` before the suffix, in lower case.
    Agent(String),
    /// A listed host.
    Allowed(Authority<'a>),
}

impl Local {
    /// Checks a request: its host, and that no page of another site makes it.
    pub fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Refused> {
        self.asked(headers, uri)?;
        let site = headers.get(FETCH_SITE).map(|site| site.as_bytes());
        if site.is_some_and(|site| !matches!(site, b"same-origin" | b"same-site" | b"none")) {
            return Err(Refused::CrossSite);
        }
        match headers.get(ORIGIN) {
            Some(origin) if !self.is_own_origin(origin.as_bytes(), named(headers, uri)) => {
                Err(Refused::CrossSite)
            }
            _ => Ok(()),
        }
    }

    /// Reads whom a request is for. With an absolute target that one decides, not the Host
    /// (RFC 9112 section 3.2.2); it is also what makes a loopback name mean another listener.
    pub fn asked<'a>(&self, headers: &'a HeaderMap, uri: &'a Uri) -> Result<Asked<'a>, Refused> {
        // HTTP/1.0 may come without a Host, and no browser speaks it.
        let Some(text) = named(headers, uri) else {
            return match headers.contains_key(HOST) {
                true => Err(Refused::ForeignHost),
                false => Ok(Asked::Us),
            };
        };
        let authority = Authority::parse(text).ok_or(Refused::ForeignHost)?;
        if let Some(agent) = agent(authority.host) {
            return Ok(Asked::Agent(agent));
        }
        let is_ours = self.is_ours(&authority);
        let own_port = self.own.map(|own| own.port());
        let is_elsewhere = uri.authority().is_some() && authority.port != own_port;
        if self.allowed.cover(&authority) && (!is_ours || is_elsewhere) {
            return Ok(Asked::Allowed(authority));
        }
        is_ours.then_some(Asked::Us).ok_or(Refused::ForeignHost)
    }

    /// Says whether an origin is ours, an agent's, or the one that the request asks for.
    fn is_own_origin(&self, origin: &[u8], asked: Option<&str>) -> bool {
        let origin = std::str::from_utf8(origin).unwrap_or_default();
        let host = origin.strip_prefix("http://");
        let host = host.or_else(|| origin.strip_prefix("https://"));
        let authority = host.and_then(Authority::parse);
        let is_asked = |host: &str| asked.is_some_and(|asked| asked.eq_ignore_ascii_case(host));
        host.is_some_and(is_asked)
            || authority.is_some_and(|a| self.is_ours(&a) || agent(a.host).is_some())
    }

    fn is_ours(&self, authority: &Authority<'_>) -> bool {
        let by_address = authority.address().is_some_and(|address| {
            address.to_canonical().is_loopback() || self.own.is_some_and(|own| own.ip() == address)
        });
        by_address || authority.host.eq_ignore_ascii_case("localhost")
    }
}

/// The one authority that counts: the target's, else the Host.
fn named<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let target = uri.authority().map(|authority| authority.as_str());
    target.or_else(|| headers.get(HOST)?.to_str().ok())
}

/// Cuts the suffix off an agent's host name; host names compare without case.
fn agent(host: &str) -> Option<String> {
    let at = host.len().checked_sub(AGENTS.len()).filter(|at| *at > 0)?;
    let (name, suffix) = host.split_at_checked(at)?;
    let is_agent = suffix.eq_ignore_ascii_case(AGENTS);
    is_agent.then(|| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn local() -> Local {
        let allowed = ["api.example", "localhost:5000", "127.0.0.1"];
        Local {
            own: Some("127.0.0.1:7402".parse().unwrap()),
            allowed: Hosts::new(allowed.map(|text| text.parse().unwrap()).to_vec()),
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn verdict(pairs: &[(&'static str, &'static str)], uri: &str) -> Result<(), Refused> {
        local().check(&headers(pairs), &uri.parse().unwrap())
    }

    fn asked(host: &'static str, uri: &str) -> String {
        let headers = headers(&[("host", host)]);
        let uri = uri.parse().unwrap();
        match local().asked(&headers, &uri) {
            Ok(Asked::Us) => "us".to_owned(),
            Ok(Asked::Agent(name)) => format!("agent {name}"),
            Ok(Asked::Allowed(authority)) => format!("to {authority}"),
            Err(refused) => format!("{refused:?}"),
        }
    }

    #[test]
    fn one_authority_says_what_is_asked_for() {
        for (host, uri, meant) in [
            ("localhost", "/x", "us"),
            ("LOCALHOST:7402", "/x", "us"),
            ("127.0.0.1:7402", "/x", "us"),
            ("127.8.9.1", "/x", "us"),
            ("[::1]:7402", "/x", "us"),
            ("localhost:5000", "/x", "us"),
            (
                "fraud-detection-v1.0.hermes",
                "/x",
                "agent fraud-detection-v1.0",
            ),
            (
                "Fraud-Detection-V1.HERMES:80",
                "/x",
                "agent fraud-detection-v1",
            ),
            ("api.example", "/x", "to api.example"),
            ("evil.example", "/x", "ForeignHost"),
            ("192.0.2.7:7402", "/x", "ForeignHost"),
            ("localhost.evil.example", "/x", "ForeignHost"),
            ("hermes", "/x", "ForeignHost"),
            (".hermes", "/x", "ForeignHost"),
            ("[::1", "/x", "ForeignHost"),
            ("::1]", "/x", "ForeignHost"),
            ("[localhost]", "/x", "ForeignHost"),
            // The target wins, for good and for bad.
            ("evil.example", "http://a-v1.0.hermes/x", "agent a-v1.0"),
            ("localhost", "http://evil.example/x", "ForeignHost"),
            (
                "a-v1.0.hermes",
                "http://api.example:81/x",
                "to api.example:81",
            ),
            ("localhost", "http://localhost:7402/x", "us"),
            ("localhost", "http://localhost/x", "us"),
            ("localhost", "http://127.0.0.1:7402/x", "us"),
            // Listed by its very name, another listener of this machine is meant.
            ("localhost", "http://localhost:5000/x", "to localhost:5000"),
            ("localhost", "http://127.0.0.1:6000/x", "to 127.0.0.1:6000"),
            ("localhost", "http://[::1]:5000/x", "us"),
        ] {
            assert_eq!(asked(host, uri), meant, "{host} {uri}");
        }
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let with = |name, value| verdict(&[("host", "localhost"), (name, value)], "/x");
        assert_eq!(
            with("sec-fetch-site", "cross-site"),
            Err(Refused::CrossSite)
        );
        assert_eq!(with("sec-fetch-site", "same-origin"), Ok(()));
        for origin in [
            "https://evil.example",
            "null",
            "http://[::1",
            "http://api.example",
        ] {
            assert_eq!(with("origin", origin), Err(Refused::CrossSite), "{origin}");
        }
        for origin in [
            "http://localhost:7402",
            "http://[::1]:3000",
            "http://a-v1.0.hermes",
        ] {
            assert_eq!(with("origin", origin), Ok(()), "{origin}");
        }
        let own = [("host", "api.example"), ("origin", "http://api.example")];
        assert_eq!(verdict(&own, "/x"), Ok(()));
    }
}
