//! Where the agent is: a URL, `HOST:PORT` or a unix socket, as Consul's own variables name it.

use std::net::SocketAddr;
use std::path::PathBuf;

use reqwest::Url;

use super::error::Error;
use super::transport::Config;

/// Where to connect and what to call it.
pub(super) struct Address {
    pub(super) base: Url,
    pub(super) socket: Option<PathBuf>,
    /// Set when the name in `base` is only TLS's.
    pub(super) dial: Option<Dial>,
}

impl Address {
    /// Reads an address in any form that Consul itself takes.
    pub(super) fn parse(config: &Config) -> Result<Address, Error> {
        let text = config.address.trim();
        let unusable = |reason: String| Error::Address {
            address: text.to_owned(),
            reason,
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let socket = socket(path).map_err(unusable)?;
            // A request needs some host; through a socket none is looked up.
            let base = Url::parse("http://localhost/");
            return Ok(Address {
                base: base.map_err(|error| unusable(error.to_string()))?,
                socket: Some(socket),
                dial: None,
            });
        }
        let mut base = base(text).map_err(unusable)?;
        let mut dial = None;
        if let (Some(name), "https") = (&config.tls.server_name, base.scheme()) {
            let host = base
                .host_str()
                .unwrap_or_default()
                .trim_matches(['[', ']'])
                .to_owned();
            dial = Some(Dial { host });
            base.set_host(Some(name))
                .map_err(|error| unusable(format!("TLS server name: {error}")))?;
        }
        Ok(Address {
            base,
            socket: None,
            dial,
        })
    }
}

/// Takes the path behind `unix:`, with or without two slashes of its own.
fn socket(path: &str) -> Result<PathBuf, String> {
    let path = path.strip_prefix("//").unwrap_or(path);
    match path.starts_with('/') {
        true => Ok(PathBuf::from(path)),
        false => Err("the socket's path is not absolute".to_owned()),
    }
}

/// Reads a URL, or `HOST:PORT` for plain HTTP; says what is wrong with anything else.
fn base(text: &str) -> Result<Url, String> {
    let full = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    let base = Url::parse(&full).map_err(|error| error.to_string())?;
    let refused = if !matches!(base.scheme(), "http" | "https") {
        "it begins with neither http://, https:// nor unix:"
    } else if !matches!(base.path(), "" | "/") || base.query().is_some() {
        "it has a path; only host and port are expected"
    } else if !base.username().is_empty() || base.password().is_some() {
        "it carries credentials; use a token"
    } else {
        return Ok(base);
    };
    Err(refused.to_owned())
}

/// Connects to `host` whatever name the URL has: that one is for TLS.
pub(super) struct Dial {
    host: String,
}

impl reqwest::dns::Resolve for Dial {
    fn resolve(&self, _name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let host = self.host.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as reqwest::dns::Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_consul_reads_them() {
        let cases = [
            (
                "http://127.0.0.1:8500",
                Some("http://127.0.0.1:8500/"),
                None,
            ),
            ("https://consul:8501/", Some("https://consul:8501/"), None),
            ("127.0.0.1:8500", Some("http://127.0.0.1:8500/"), None),
            ("http://[::1]:8500", Some("http://[::1]:8500/"), None),
            (
                "unix:/run/a.sock",
                Some("http://localhost/"),
                Some("/run/a.sock"),
            ),
            (
                "unix:///run/a.sock",
                Some("http://localhost/"),
                Some("/run/a.sock"),
            ),
            ("unix:a.sock", None, None),
            ("ftp://a", None, None),
            ("http://a/path", None, None),
            ("http://me:secret@a", None, None),
            ("", None, None),
        ];
        for (text, base, socket) in cases {
            let parsed = Address::parse(&Config::at(text)).ok();
            let found = parsed.as_ref().map(|address| address.base.as_str());
            assert_eq!(found, base, "{text:?}");
            let found = parsed.and_then(|address| address.socket);
            assert_eq!(found, socket.map(PathBuf::from), "{text:?}");
        }
    }

    #[test]
    fn a_server_name_is_for_tls_alone() {
        let mut config = Config::at("https://[::1]:8501");
        config.tls.server_name = Some("server.dc1.consul".to_owned());
        let address = Address::parse(&config).expect("an address");
        assert_eq!(address.base.as_str(), "https://server.dc1.consul:8501/");
        assert_eq!(address.dial.map(|dial| dial.host).as_deref(), Some("::1"));
    }
}
