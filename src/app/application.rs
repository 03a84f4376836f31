//! How the application is reached: in clear, by a unix socket, or behind https with credentials.

use super::Error;
use crate::admission::{HealthConfig, HealthSpeaks};
use crate::config::{Application, Protocol, Upstream};
use crate::identity::web;
use crate::socket::{ClientTls, Endpoint, Place, Speaks};
use http::{HeaderMap, HeaderName, HeaderValue};
use rustls::pki_types::ServerName;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most that is read of a file with header fields.
const MOST_BYTES: usize = 16 * 1024;

/// Why header fields for the upstream cannot be taken from their file.
#[derive(Debug, thiserror::Error)]
pub enum HeadersError {
    #[error("read the file")]
    Read(#[source] std::io::Error),
    #[error("the file is longer than {MOST_BYTES} bytes")]
    TooLong,
    #[error("line {0} is not `Name: value`")]
    NoField(usize),
    #[error("line {line}: {name} is set by the sidecar itself")]
    Ours { line: usize, name: String },
}

/// Returns where the application's connections go and how they are secured.
pub fn endpoint(application: &Application, upstream: &Upstream) -> Result<Endpoint, Error> {
    let place = match upstream {
        Upstream::Unix(path) => Place::Unix(path.clone()),
        Upstream::Http { .. } | Upstream::Https { .. } => {
            Place::Tcp(upstream.authority().unwrap_or_default())
        }
    };
    let tls = match upstream {
        Upstream::Https { host, .. } => Some(tls(host, application)?),
        Upstream::Http { .. } | Upstream::Unix(_) => None,
    };
    Ok(Endpoint { place, tls })
}

fn tls(host: &str, application: &Application) -> Result<ClientTls, Error> {
    let client = |source: Box<dyn std::error::Error + Send + Sync>| Error::Client(source);
    let name = ServerName::try_from(host.to_owned()).map_err(|e| client(e.into()))?;
    let plain = web::client(application.upstream_ca.as_deref()).map_err(|e| client(e.into()))?;
    let with = |protocols: &[&[u8]]| {
        let mut config = plain.clone();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    };
    let (http1, http2) = (with(&[b"http/1.1"]), with(&[b"h2"]));
    let either = with(&[b"h2", b"http/1.1"]);
    Ok(ClientTls {
        name,
        config: Arc::new(move |speaks| match speaks {
            Speaks::Http1 => http1.clone(),
            Speaks::Http2 => http2.clone(),
            Speaks::Either => either.clone(),
        }),
        // Its roots are read once.
        generation: Arc::new(|| 0),
    })
}

/// Reads the fields that every request to the upstream carries.
pub fn headers(application: &Application) -> Result<HeaderMap, Error> {
    let Some(path) = &application.upstream_headers_file else {
        return Ok(HeaderMap::new());
    };
    read(path).map_err(|source| Error::UpstreamHeaders {
        path: path.clone(),
        source,
    })
}

fn read(path: &PathBuf) -> Result<HeaderMap, HeadersError> {
    let text = std::fs::read_to_string(path).map_err(HeadersError::Read)?;
    let mode = std::fs::metadata(path).map_err(HeadersError::Read)?;
    if mode.permissions().mode() & 0o004 != 0 {
        tracing::warn!(
            file = %path.display(),
            "application.upstream_headers_file can be read by every user of this machine"
        );
    }
    if text.len() > MOST_BYTES {
        return Err(HeadersError::TooLong);
    }
    parse(&text)
}

/// Reads one field a line; empty lines and those that begin with `#` are passed over.
fn parse(text: &str) -> Result<HeaderMap, HeadersError> {
    let mut headers = HeaderMap::new();
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once(':').ok_or(HeadersError::NoField(number))?;
        let name: HeaderName = name.parse().or(Err(HeadersError::NoField(number)))?;
        let value: HeaderValue = value
            .trim()
            .parse()
            .or(Err(HeadersError::NoField(number)))?;
        if is_ours(&name) {
            let name = name.to_string();
            return Err(HeadersError::Ours { line: number, name });
        }
        let mut value = value;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

fn is_ours(name: &HeaderName) -> bool {
    let framing = [
        "connection",
        "content-length",
        "content-type",
        "host",
        "te",
        "transfer-encoding",
        "upgrade",
    ];
    framing.contains(&name.as_str()) || name.as_str().starts_with("hermes-")
}

/// Returns how the application's health is asked for.
pub fn health(application: &Application, upstream: &Upstream) -> Result<HealthConfig, Error> {
    let (scheme, authority) = match upstream {
        Upstream::Http { .. } => ("http", upstream.authority()),
        Upstream::Https { .. } => ("https", upstream.authority()),
        Upstream::Unix(_) => ("http", None),
    };
    let authority = authority.unwrap_or_else(|| "localhost".to_owned());
    let url = format!("{scheme}://{authority}").parse();
    let secured = match upstream {
        Upstream::Https { .. } => {
            let client = web::client(application.upstream_ca.as_deref());
            Some(client.map_err(|e| Error::Client(Box::new(e)))?)
        }
        Upstream::Http { .. } | Upstream::Unix(_) => None,
    };
    Ok(HealthConfig {
        upstream: url.map_err(|e| Error::Client(Box::new(e)))?,
        unix: socket(upstream).map(Path::to_owned),
        tls: secured,
        headers: headers(application)?,
        speaks: match application.protocol {
            Protocol::Http1 => HealthSpeaks::Http1,
            Protocol::H2c => HealthSpeaks::Http2,
            Protocol::Same => HealthSpeaks::Either,
        },
        path: application.health.clone(),
        interval: application.health_interval,
        timeout: application.health_timeout,
        failures: application.health_failures,
    })
}

fn socket(upstream: &Upstream) -> Option<&Path> {
    match upstream {
        Upstream::Unix(path) => Some(path),
        Upstream::Http { .. } | Upstream::Https { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_line_by_line() {
        let read = parse("# vendor\nAuthorization: Bearer a:b\n\nX-Api-Key:  k \n").unwrap();
        assert_eq!(read["authorization"], "Bearer a:b");
        assert!(read["authorization"].is_sensitive());
        assert_eq!(read["x-api-key"], "k");
    }

    #[test]
    fn a_line_that_cannot_be_meant_is_named() {
        assert!(matches!(
            parse("a: b\nnonsense"),
            Err(HeadersError::NoField(2))
        ));
        assert!(matches!(
            parse("Host: evil"),
            Err(HeadersError::Ours { line: 1, .. })
        ));
        assert!(matches!(
            parse("Hermes-Task-Id: t"),
            Err(HeadersError::Ours { line: 1, .. })
        ));
    }
}
