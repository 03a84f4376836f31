//! Who may use a listener that is meant for this machine alone.
//!
//! A loopback address keeps other machines out but not the browser of somebody on this one: a
//! foreign page may make it send requests, or point its own name at 127.0.0.1. So the Host must be
//! one of ours, and requests that a browser marks as coming from another site are refused.

use http::header::{HOST, HeaderName, ORIGIN};
use http::{HeaderMap, Uri};
use std::net::IpAddr;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The suffix under which agents are addressed by name.
const AGENTS: &str = ".hermes";

/// Why a request may not use a local listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error(
        "the Host is neither localhost, a loopback address, this listener's own, nor NAME.hermes"
    )]
    ForeignHost,
    #[error("the request comes from a page of another site")]
    CrossSite,
}

/// Checks a request to a listener bound to `own`; a unix socket has no address.
pub fn check(headers: &HeaderMap, uri: &Uri, own: Option<IpAddr>) -> Result<(), Refused> {
    let named = uri.authority().map(|authority| authority.as_str());
    let host = named.or_else(|| headers.get(HOST)?.to_str().ok());
    // HTTP/1.0 may come without a Host, and no browser speaks it.
    if host.is_some_and(|host| !is_ours(host, own)) {
        return Err(Refused::ForeignHost);
    }
    let site = headers.get(FETCH_SITE).map(|site| site.as_bytes());
    if site.is_some_and(|site| !matches!(site, b"same-origin" | b"same-site" | b"none")) {
        return Err(Refused::CrossSite);
    }
    match headers.get(ORIGIN) {
        Some(origin) if !is_own_origin(origin.as_bytes(), own) => Err(Refused::CrossSite),
        _ => Ok(()),
    }
}

fn is_own_origin(origin: &[u8], own: Option<IpAddr>) -> bool {
    let origin = std::str::from_utf8(origin).unwrap_or_default();
    let host = origin.strip_prefix("http://");
    let host = host.or_else(|| origin.strip_prefix("https://"));
    host.is_some_and(|host| is_ours(host, own))
}

fn is_ours(authority: &str, own: Option<IpAddr>) -> bool {
    let host = host_of(authority);
    let by_name =
        host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(AGENTS);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let by_address = bare
        .parse::<IpAddr>()
        .is_ok_and(|address| address.to_canonical().is_loopback() || Some(address) == own);
    by_name || by_address
}

/// Cuts the port off, also behind a bracketed address.
fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn verdict(pairs: &[(&'static str, &'static str)], uri: &str) -> Result<(), Refused> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        let own = "127.0.0.1".parse().unwrap();
        check(&headers, &uri.parse().unwrap(), Some(own))
    }

    #[test]
    fn hosts_of_this_machine_only() {
        for host in [
            "localhost",
            "LOCALHOST:7402",
            "127.0.0.1:7402",
            "127.8.9.1",
            "[::1]:7402",
            "fraud-detection-v1.0.hermes",
        ] {
            assert_eq!(verdict(&[("host", host)], "/x"), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "192.0.2.7:7402",
            "localhost.evil.example",
            "hermes",
        ] {
            assert_eq!(
                verdict(&[("host", host)], "/x"),
                Err(Refused::ForeignHost),
                "{host}"
            );
        }
        let absolute = verdict(&[("host", "localhost")], "http://evil.example/x");
        assert_eq!(absolute, Err(Refused::ForeignHost));
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let with = |name, value| verdict(&[("host", "localhost"), (name, value)], "/x");
        assert_eq!(
            with("sec-fetch-site", "cross-site"),
            Err(Refused::CrossSite)
        );
        assert_eq!(with("sec-fetch-site", "same-origin"), Ok(()));
        assert_eq!(
            with("origin", "https://evil.example"),
            Err(Refused::CrossSite)
        );
        assert_eq!(with("origin", "null"), Err(Refused::CrossSite));
        assert_eq!(with("origin", "http://localhost:7402"), Ok(()));
    }
}
