//! Where the local listeners are, for commands that talk to them.
//!
//! A file that would not start a sidecar still tells a client where one listens: only
//! problems with these keys, or with the file as a whole, are reported.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use super::address::CollectorTarget;
use super::origin::Origin;
use super::problem::Error;
use super::{Source, layers, secure};
use crate::identity::tls;
use crate::socket::Address;

/// Base URLs without a slash at the end, or `unix:/PATH`; `None` where the port is only known to
/// the process itself.
#[derive(Debug, Clone)]
pub struct Addresses {
    pub admin: Option<String>,
    pub outbound: Option<String>,
    pub collector: Option<String>,
    /// What the collector wants to be shown.
    pub collector_token_file: Option<PathBuf>,
    /// What an `https` collector is shown and judged by.
    pub tls: Option<tls::Config>,
}

const KEYS: [&str; 10] = [
    "admin.listen",
    "outbound.listen",
    "collector.listen",
    "collector.token_file",
    "spool.collector",
    "spool.token_file",
    "tls.mode",
    "tls.cert",
    "tls.key",
    "tls.ca",
];

impl Addresses {
    pub fn load(source: &Source) -> Result<Self, Error> {
        let (mut reader, _) = layers(source);
        let earlier = std::mem::take(&mut reader.problems);
        let here = reader.listen("collector.listen");
        let told = reader.collector_target("spool.collector");
        let shown = reader.file("spool.token_file");
        let wanted = reader.file("collector.token_file");
        let tls = secure::tls(&mut reader);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let addresses = Self {
            admin: url("http", reader.listen("admin.listen")),
            outbound: url("http", reader.listen("outbound.listen")),
            collector: match told {
                Some(CollectorTarget::Url(url)) => Some(url),
                Some(CollectorTarget::Consul(_)) | None => url(scheme, here),
            },
            collector_token_file: shown.or(wanted),
            tls,
        };
        let mut problems = std::mem::take(&mut reader.problems);
        problems.extend(earlier.into_iter().filter(|problem| {
            let whole_file =
                problem.key.is_empty() && matches!(problem.origin, Some(Origin::File { .. }));
            whole_file || KEYS.contains(&problem.key.as_str())
        }));
        if problems.is_empty() {
            Ok(addresses)
        } else {
            Err(problems.into_error())
        }
    }
}

/// Writes the address a client on this machine uses.
fn url(scheme: &str, listen: Address) -> Option<String> {
    let listen = match listen {
        Address::Tcp(listen) => listen,
        Address::Unix(_) => return Some(listen.to_string()),
    };
    let host = match listen.ip() {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        address => address,
    };
    (listen.port() != 0).then(|| format!("{scheme}://{}", SocketAddr::new(host, listen.port())))
}
