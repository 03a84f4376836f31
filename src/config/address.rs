//! Names, addresses and networks as the settings write them.
//!
//! A URL here is scheme, host and port; whatever else one may hold (a password, a path, a
//! query) is refused, so that a value can be shown and logged as it stands.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use toml::Value as Toml;

use crate::identity::{Hosts, Network, Pattern, Trust};
use crate::socket::Address;

/// Where our application listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// A host name or an address, IPv6 without brackets.
    Http {
        host: String,
        port: u16,
    },
    /// Somebody else's service, which shows a certificate.
    Https {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

impl Upstream {
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return socket_path(path).map(Self::Unix).map(Some);
        }
        if let Some(rest) = text.strip_prefix("https://") {
            let (host, port) = host_and_port(rest)?;
            let port = port.unwrap_or(443);
            return Ok(Some(Self::Https { host, port }));
        }
        let rest = text.strip_prefix("http://").ok_or(
            "must begin with http://, https:// or unix:, for example http://127.0.0.1:5000",
        )?;
        let (host, port) = host_and_port(rest)?;
        let port = port.unwrap_or(80);
        Ok(Some(Self::Http { host, port }))
    }

    /// Returns `host:port` with an IPv6 address in brackets; a unix socket has none.
    pub fn authority(&self) -> Option<String> {
        match self {
            Self::Http { host, port } | Self::Https { host, port } => {
                Some(match host.contains(':') {
                    true => format!("[{host}]:{port}"),
                    false => format!("{host}:{port}"),
                })
            }
            Self::Unix(_) => None,
        }
    }
}

/// Reads the path behind `unix:`.
fn socket_path(path: &str) -> Result<PathBuf, String> {
    let path = path.strip_prefix("//").unwrap_or(path);
    if !path.starts_with('/') {
        return Err("must name an absolute path after unix:".to_owned());
    }
    // The size of `sun_path` in Linux's sockaddr_un, less the closing NUL.
    if path.len() > 107 {
        return Err("names a unix socket of more than 107 bytes, which no system takes".to_owned());
    }
    Ok(PathBuf::from(path))
}

/// The address we give to others; what is missing is found out at start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advertise {
    pub host: Option<String>,
    pub port: Option<u16>,
}

impl Advertise {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let digits = text.strip_prefix(':').unwrap_or(text);
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Self {
                host: None,
                port: Some(port_number(digits)?),
            });
        }
        let (host, port) = match text.parse::<IpAddr>() {
            Ok(address) => (address.to_string(), None),
            Err(_) => host_and_port(text)?,
        };
        if host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_unspecified())
        {
            return Err("must be an address that others can reach".to_owned());
        }
        Ok(Self {
            host: Some(host),
            port,
        })
    }
}

/// Where status reports go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectorTarget {
    /// `http://HOST:PORT`, without a slash at the end.
    Url(String),
    /// A service looked up in Consul.
    Consul(String),
}

impl CollectorTarget {
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        if let Some(service) = text.strip_prefix("consul:") {
            check_name(service, 1, 63)?;
            return Ok(Some(Self::Consul(service.to_owned())));
        }
        url(text).map(Self::Url).map(Some)
    }
}

/// Reads whose `Hermes-*` headers are believed.
pub(super) fn trust(value: &Toml) -> Result<Trust, String> {
    let network = |item: &Toml| {
        let text = item.as_str().ok_or("must be a list of texts")?;
        text.parse::<Network>()
            .map_err(|error| format!("knows no network `{text}`: {error}"))
    };
    match value {
        Toml::String(word) if word == "any" => Ok(Trust::Any),
        Toml::String(word) if word == "mtls" => Ok(Trust::Mtls),
        Toml::Array(items) => items
            .iter()
            .map(network)
            .collect::<Result<_, _>>()
            .map(Trust::Networks),
        other => Err(super::kind::wanted(
            "\"any\", \"mtls\" or a list of networks such as [\"10.0.0.0/8\"]",
            other,
        )),
    }
}

/// Reads the hosts that may be asked for beside agents.
pub(super) fn hosts(texts: &[String]) -> Result<Hosts, String> {
    let pattern = |text: &String| {
        text.parse::<Pattern>()
            .map_err(|error| format!("holds `{}`, which {error}", text.escape_debug()))
    };
    let patterns = texts.iter().map(pattern).collect::<Result<_, _>>()?;
    Ok(Hosts::new(patterns))
}

/// Reads `IP:PORT`, where `localhost` stands for 127.0.0.1, or `unix:/PATH`.
pub(super) fn listen(text: &str) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(Address::Unix);
    }
    if let Some(port) = text.strip_prefix("localhost:") {
        let port = port
            .parse()
            .ok()
            .ok_or("must be IP:PORT with a port from 0 to 65535")?;
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into());
    }
    let address = text.parse().ok().map(Address::Tcp);
    address.ok_or_else(|| {
        format!("must be IP:PORT or unix:/PATH, for example 127.0.0.1:7402, not `{text}`")
    })
}

/// Reads the address of a listener that only this machine may reach.
pub(super) fn local_listen(text: &str) -> Result<Address, String> {
    let address = listen(text)?;
    match address {
        Address::Tcp(tcp) if !tcp.ip().to_canonical().is_loopback() => Err(format!(
            "must be a loopback address such as 127.0.0.1:{}, or unix:/PATH",
            tcp.port()
        )),
        _ => Ok(address),
    }
}

/// Reads the address of Consul: a URL, `HOST:PORT` or, as its tools have it, `unix:/PATH`.
pub(super) fn consul(text: &str) -> Result<String, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(|path| format!("unix:{}", path.display()));
    }
    if text.contains("://") {
        url(text)
    } else {
        url(&format!("http://{text}"))
    }
}

/// Checks `http(s)://HOST[:PORT]` and gives it back without a slash at the end.
pub(super) fn url(text: &str) -> Result<String, String> {
    let (scheme, rest) = text
        .split_once("://")
        .filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
        .ok_or("must begin with http:// or https://")?;
    let (host, port) = host_and_port(rest)?;
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host
    };
    Ok(match port {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    })
}

fn host_and_port(text: &str) -> Result<(String, Option<u16>), String> {
    let text = text.strip_suffix('/').unwrap_or(text);
    if text.contains('@') {
        return Err("must not hold a user or password; use a token file".to_owned());
    }
    if text.contains(['/', '?', '#']) {
        return Err("must end after host and port".to_owned());
    }
    if let Some((address, rest)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        let address: std::net::Ipv6Addr = address
            .parse()
            .ok()
            .ok_or("holds no IPv6 address in its brackets")?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(port_number(port)?),
            None if rest.is_empty() => None,
            None => return Err("must end after host and port".to_owned()),
        };
        return Ok((address.to_string(), port));
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port_number(port)?)),
        None => (text, None),
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if host.is_empty() || host.len() > 253 || !host.bytes().all(is_host) {
        return Err("names no host".to_owned());
    }
    Ok((host.to_ascii_lowercase(), port))
}

fn port_number(text: &str) -> Result<u16, String> {
    text.parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| "must have a port from 1 to 65535".to_owned())
}

/// Checks `[a-z0-9-]` and the length.
pub(super) fn check_name(text: &str, min: usize, max: usize) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (min..=max).contains(&text.len()) && text.bytes().all(fits) {
        Ok(())
    } else {
        Err(format!(
            "must be 1 to {max} of a-z, 0-9 and -, not `{}`",
            text.escape_debug()
        ))
    }
}

/// Checks the grammar of ids; empty stands for the default.
pub(super) fn check_id(text: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._:~-".contains(&byte);
    if text.len() <= 128 && text.bytes().all(fits) {
        Ok(())
    } else {
        Err("must be at most 128 of A-Z, a-z, 0-9 and . _ : ~ -".to_owned())
    }
}

/// Checks the path of a URL; empty stands for none.
pub(super) fn check_url_path(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    if !text.starts_with('/') {
        return Err(format!("must begin with /, not `{}`", text.escape_debug()));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) || text.contains(['?', '#', '\\']) {
        return Err("must be a plain path: no query, no fragment, no blanks".to_owned());
    }
    if text.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err("must not hold `.` or `..`".to_owned());
    }
    if text.len() > 1024 {
        return Err("is longer than 1024 bytes".to_owned());
    }
    Ok(())
}

/// Checks a prefix that is passed through; `/hermes/` is ours.
pub(super) fn check_url_prefix(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("holds an empty text".to_owned());
    }
    check_url_path(text)?;
    if is_reserved(text) {
        return Err("must leave out /hermes/, which the sidecar answers itself".to_owned());
    }
    Ok(())
}

/// Says whether a path is one the sidecar answers itself.
pub(super) fn is_reserved(path: &str) -> bool {
    path == "/hermes" || path.starts_with("/hermes/")
}
