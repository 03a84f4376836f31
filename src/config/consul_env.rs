//! Consul's own variables, as its tools read them; weaker than the file.

use toml::Value;

use crate::identity::Secret;

use super::env::Source;
use super::origin::{Effective, Origin};
use super::problem::Problems;
use super::settings::ConsulTls;

/// What Consul's variables say beyond keys of the file.
#[derive(Debug, Default)]
pub(super) struct ConsulVariables {
    pub token: Option<Secret>,
    pub tls: ConsulTls,
}

/// Applies those that stand for a key of the file, gives back the rest.
pub(super) fn read(
    source: &Source,
    effective: &mut Effective,
    problems: &mut Problems,
) -> ConsulVariables {
    address(source, effective, problems);
    if let Some(path) = source.variable("CONSUL_HTTP_TOKEN_FILE") {
        let origin = Origin::Variable("CONSUL_HTTP_TOKEN_FILE".to_owned());
        effective.set("consul.token_file", Value::String(path.to_owned()), origin);
    }
    let path = |name| source.variable(name).map(Into::into);
    let tls = ConsulTls {
        ca_file: path("CONSUL_CACERT"),
        cert_file: path("CONSUL_CLIENT_CERT"),
        key_file: path("CONSUL_CLIENT_KEY"),
        server_name: source.variable("CONSUL_TLS_SERVER_NAME").map(str::to_owned),
        verify: flag(source, "CONSUL_HTTP_SSL_VERIFY", problems).unwrap_or(true),
    };
    if tls.cert_file.is_some() != tls.key_file.is_some() {
        let origin = Origin::Variable("CONSUL_CLIENT_CERT".to_owned());
        problems.add(
            Some(origin),
            "",
            "CONSUL_CLIENT_CERT and CONSUL_CLIENT_KEY belong together",
        );
    }
    ConsulVariables {
        token: source.variable("CONSUL_HTTP_TOKEN").map(Secret::new),
        tls,
    }
}

fn address(source: &Source, effective: &mut Effective, problems: &mut Problems) {
    let encrypted = flag(source, "CONSUL_HTTP_SSL", problems).unwrap_or(false);
    let (name, address) = match source.variable("CONSUL_HTTP_ADDR") {
        Some(address) => ("CONSUL_HTTP_ADDR", address),
        None if encrypted => ("CONSUL_HTTP_SSL", "127.0.0.1:8500"),
        None => return,
    };
    let scheme = if encrypted { "https" } else { "http" };
    let address = if address.contains(":/") {
        address.to_owned()
    } else {
        format!("{scheme}://{address}")
    };
    effective.set(
        "consul.address",
        Value::String(address),
        Origin::Variable(name.to_owned()),
    );
}

fn flag(source: &Source, name: &str, problems: &mut Problems) -> Option<bool> {
    match source.variable(name)? {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => {
            problems.add(
                Some(Origin::Variable(name.to_owned())),
                "",
                "must be true or false",
            );
            None
        }
    }
}
