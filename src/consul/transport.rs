//! The HTTP exchange with the agent: address, TLS, token, limits, what is observed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use tokio::time::Instant;

use crate::identity::Secret;

use super::error::Error;
use super::observe::{Observe, Operation, Outcome};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Past the ~7 s for which an agent without a leader holds a call, and past several such calls
/// of other processes queued before ours.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const POOL_IDLE: Duration = Duration::from_secs(90);
/// Idle connections count against the agent's 200 per host, so few are kept.
const POOL_MAX_IDLE: usize = 4;
/// Largest answer we read: a prefix of 64 contracts of the largest size, in base64.
const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;
const MAX_TOKEN_BYTES: u64 = 4096;
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-consul-token");

#[derive(Clone, Debug)]
pub struct Config {
    /// `http://host:port`, `https://host:port`, `unix:/path`, or bare `host:port` for http.
    pub address: String,
    pub token: Option<Secret>,
    /// Goes before `token`; read again whenever it changes.
    pub token_file: Option<PathBuf>,
    pub tls: TlsOptions,
    /// What our keys and, if not `hermes`, our service names begin with.
    pub prefix: String,
    /// Most blocking polls at a time; what goes beyond reads every 10 s.
    pub watches: usize,
}

#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// PEM bundle that replaces the system's roots.
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// The name to ask for and to check, where it is not the address's.
    pub server_name: Option<String>,
    pub verify: bool,
}

impl Default for TlsOptions {
    fn default() -> Self {
        TlsOptions {
            ca: None,
            cert: None,
            key: None,
            server_name: None,
            verify: true,
        }
    }
}

/// Returns the token as a header shows it, or nothing where it is empty.
fn header(token: &Secret) -> Result<Option<HeaderValue>, Error> {
    let text = token.reveal().trim();
    if text.is_empty() {
        return Ok(None);
    }
    let mut value = HeaderValue::from_str(text).map_err(|_error| Error::Invalid {
        what: "the token".to_owned(),
        problems: vec!["it holds characters that a header cannot carry".to_owned()],
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// What came back, whatever the status.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// One call to make.
pub(super) struct Call<'a> {
    pub(super) operation: Operation,
    /// For errors: "register fraud-v1.0-a".
    pub(super) doing: &'a str,
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) body: Bytes,
    pub(super) timeout: Duration,
    /// Also a good answer: 404 where it means "there is none".
    pub(super) may_miss: bool,
}

pub(super) struct Transport {
    http: reqwest::Client,
    base: Url,
    token: TokenSource,
    observe: Observe,
}

impl Transport {
    pub(super) fn new(config: &Config, observe: Observe) -> Result<Transport, Error> {
        let address = Address::parse(config)?;
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(POOL_MAX_IDLE)
            .user_agent(concat!("hermes-sidecar/", env!("CARGO_PKG_VERSION")));
        if let Some(path) = &address.socket {
            builder = builder.unix_socket(path.as_path());
        }
        if let Some(dial) = address.dial {
            builder = builder.dns_resolver(dial);
        }
        builder = with_tls(builder, &config.tls)?;
        let http = builder.build().map_err(|source| Error::Setup {
            what: "the HTTP client",
            source,
        })?;
        Ok(Transport {
            http,
            base: address.base,
            token: TokenSource::new(config)?,
            observe,
        })
    }

    /// Builds `/v1/...` out of segments, each percent-encoded.
    pub(super) fn url<'s>(&self, segments: impl IntoIterator<Item = &'s str>) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.clear().push("v1").extend(segments);
        }
        url
    }

    /// Makes the call and tells the observer how it ended.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Reply, Error> {
        let operation = call.operation;
        let began = Instant::now();
        let result = self.exchange(call).await;
        let outcome = match &result {
            Ok(_) => Outcome::Ok,
            Err(error) => Outcome::Failed(error.kind()),
        };
        (self.observe)(operation, outcome, began.elapsed());
        result
    }

    async fn exchange(&self, call: Call<'_>) -> Result<Reply, Error> {
        let mut request = self
            .http
            .request(call.method, call.url)
            .timeout(call.timeout)
            .body(call.body);
        if let Some(token) = self.token.current().await? {
            request = request.header(TOKEN_HEADER, token);
        }
        let failed = |source| Error::exchange(call.doing, source);
        let mut response = request.send().await.map_err(failed)?;
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(Error::BadAnswer {
                    doing: call.doing.to_owned(),
                    reason: format!("it is longer than {MAX_ANSWER_BYTES} bytes"),
                });
            }
            body.extend_from_slice(&chunk);
        }
        let status = response.status();
        let refused = Error::status(call.doing, status, &body);
        // 404 is also how later versions refuse a token they do not know.
        let is_miss = status == StatusCode::NOT_FOUND
            && call.may_miss
            && refused.kind() == super::ErrorKind::Refused;
        if !status.is_success() && !is_miss {
            return Err(refused);
        }
        Ok(Reply {
            status,
            headers: std::mem::take(response.headers_mut()),
            body: body.freeze(),
        })
    }
}

/// Where to connect and what to call it.
struct Address {
    base: Url,
    socket: Option<PathBuf>,
    /// Set when the name in `base` is only TLS's.
    dial: Option<Dial>,
}

impl Address {
    fn parse(config: &Config) -> Result<Address, Error> {
        let text = config.address.trim();
        let unusable = |reason: &str| Error::Address {
            address: text.to_owned(),
            reason: reason.to_owned(),
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(unusable("the socket's path is not absolute"));
            }
            let base =
                Url::parse("http://localhost/").map_err(|error| unusable(&error.to_string()))?;
            return Ok(Address {
                base,
                socket: Some(PathBuf::from(path)),
                dial: None,
            });
        }
        let full = if text.contains("://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        let mut base = Url::parse(&full).map_err(|error| unusable(&error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(unusable(
                "it begins with neither http://, https:// nor unix:",
            ));
        }
        if !matches!(base.path(), "" | "/") || base.query().is_some() {
            return Err(unusable("it has a path; only host and port are expected"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(unusable("it carries credentials; use a token"));
        }
        let mut dial = None;
        if let (Some(name), "https") = (&config.tls.server_name, base.scheme()) {
            let host = base
                .host_str()
                .unwrap_or_default()
                .trim_matches(['[', ']'])
                .to_owned();
            dial = Some(Dial { host });
            base.set_host(Some(name))
                .map_err(|error| unusable(&format!("TLS server name: {error}")))?;
        }
        Ok(Address {
            base,
            socket: None,
            dial,
        })
    }
}

/// Connects to `host` whatever name the URL has: that one is for TLS.
struct Dial {
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

fn with_tls(
    mut builder: reqwest::ClientBuilder,
    tls: &TlsOptions,
) -> Result<reqwest::ClientBuilder, Error> {
    if !tls.verify {
        builder = builder.tls_danger_accept_invalid_certs(true);
    }
    if let Some(path) = &tls.ca {
        let pem = read("CA file", path)?;
        let certs = reqwest::Certificate::from_pem_bundle(&pem).map_err(|source| Error::Setup {
            what: "the CA file holds no certificate",
            source,
        })?;
        builder = builder.tls_certs_only(certs);
    }
    match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => {
            let mut pem = read("client certificate", cert)?;
            pem.push(b'\n');
            pem.extend(read("client key", key)?);
            let identity = reqwest::Identity::from_pem(&pem).map_err(|source| Error::Setup {
                what: "the client certificate and key",
                source,
            })?;
            Ok(builder.identity(identity))
        }
        (None, None) => Ok(builder),
        _ => Err(Error::Invalid {
            what: "the TLS configuration".to_owned(),
            problems: vec![
                "a client certificate needs its key, and the other way round".to_owned(),
            ],
        }),
    }
}

fn read(what: &'static str, path: &PathBuf) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::File {
        what,
        path: path.clone(),
        source,
    })
}

/// The token for the next call.
enum TokenSource {
    Fixed(Option<HeaderValue>),
    File {
        path: PathBuf,
        seen: Mutex<TokenFile>,
    },
}

#[derive(Clone)]
struct TokenFile {
    stamp: Option<(SystemTime, u64)>,
    header: Option<HeaderValue>,
}

impl TokenSource {
    fn new(config: &Config) -> Result<TokenSource, Error> {
        let Some(path) = config.token_file.clone() else {
            let fixed = config.token.as_ref().map(header).transpose()?;
            return Ok(TokenSource::Fixed(fixed.flatten()));
        };
        let text = read("token file", &path)?;
        let header = token_of(&text)?;
        // No stamp yet: the first call looks again, so nothing written in between is missed.
        let seen = Mutex::new(TokenFile {
            stamp: None,
            header,
        });
        Ok(TokenSource::File { path, seen })
    }

    /// Gives the present token; a file that cannot be read leaves the last one in use, since a
    /// rotation may replace it by unlinking first.
    async fn current(&self) -> Result<Option<HeaderValue>, Error> {
        let (path, seen) = match self {
            TokenSource::Fixed(header) => return Ok(header.clone()),
            TokenSource::File { path, seen } => (path, seen),
        };
        let last = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Ok(stat) = tokio::fs::metadata(path).await else {
            return Ok(last.header);
        };
        let stamp = stat.modified().ok().map(|modified| (modified, stat.len()));
        if stamp == last.stamp || stat.len() > MAX_TOKEN_BYTES {
            return Ok(last.header);
        }
        let Ok(text) = tokio::fs::read(path).await else {
            return Ok(last.header);
        };
        let header = token_of(&text)?;
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = TokenFile {
            stamp,
            header: header.clone(),
        };
        Ok(header)
    }
}

fn token_of(text: &[u8]) -> Result<Option<HeaderValue>, Error> {
    header(&Secret::new(String::from_utf8_lossy(text)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::ErrorKind;
    use super::*;

    fn config(address: &str) -> Config {
        Config {
            address: address.to_owned(),
            token: None,
            token_file: None,
            tls: TlsOptions::default(),
            prefix: "hermes".to_owned(),
            watches: 1,
        }
    }

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
            let parsed = Address::parse(&config(text)).ok();
            let found = parsed.as_ref().map(|address| address.base.as_str());
            assert_eq!(found, base, "{text:?}");
            let found = parsed.and_then(|address| address.socket);
            assert_eq!(found, socket.map(PathBuf::from), "{text:?}");
        }
    }

    #[test]
    fn a_server_name_is_for_tls_alone() {
        let mut config = config("https://[::1]:8501");
        config.tls.server_name = Some("server.dc1.consul".to_owned());
        let address = Address::parse(&config).expect("an address");
        assert_eq!(address.base.as_str(), "https://server.dc1.consul:8501/");
        assert_eq!(address.dial.map(|dial| dial.host).as_deref(), Some("::1"));
    }

    #[test]
    fn segments_are_encoded() {
        let transport =
            Transport::new(&config("http://a"), Arc::new(|_, _, _| {})).expect("a client");
        let url = transport.url(["agent", "service", "a/b ?ü"]);
        assert_eq!(url.path(), "/v1/agent/service/a%2Fb%20%3F%C3%BC");
    }

    #[test]
    fn a_token_never_shows_itself() {
        let mut config = config("http://a");
        config.token = Some(Secret::new("s3cret"));
        assert!(!format!("{config:?}").contains("s3cret"));
        config.token = Some(Secret::new("s3c\nret"));
        let error = Transport::new(&config, Arc::new(|_, _, _| {}))
            .err()
            .expect("refused");
        assert!(!format!("{error:?}").contains("s3c"), "{error:?}");
    }

    /// What is said to one connection, whatever it asks, and how a call then ends.
    async fn ends(answer: Vec<u8>, timeout: Duration) -> Result<(), (ErrorKind, Outcome)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let observed = Arc::new(Mutex::new(None));
        let seen = observed.clone();
        let observe: Observe = Arc::new(move |_, outcome, _| {
            *seen.lock().expect("no panic") = Some(outcome);
        });
        let transport = Transport::new(&config(&address.to_string()), observe).expect("a client");
        let serve = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut asked = [0; 1024];
            let _length = stream.read(&mut asked).await.expect("a request");
            // The client may hang up on an answer that is too long.
            let _sent = stream.write_all(&answer).await;
            std::future::pending::<()>().await;
        };
        let call = transport.call(Call {
            operation: Operation::Status,
            doing: "test",
            method: Method::GET,
            url: transport.url(["status", "leader"]),
            body: Bytes::new(),
            timeout,
            may_miss: true,
        });
        let result = tokio::select! {
            result = call => result,
            () = serve => unreachable!("it serves for ever"),
        };
        let outcome = observed.lock().expect("no panic").expect("observed");
        result
            .map(|_reply| ())
            .map_err(|error| (error.kind(), outcome))
    }

    #[tokio::test]
    async fn every_end_has_its_kind_and_is_observed() {
        let long = Duration::from_secs(10);
        let answer = |head: &str, body: &str| {
            format!(
                "HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let mut endless = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n".to_vec();
        endless.resize(MAX_ANSWER_BYTES + 1024, b' ');
        let cases = [
            (answer("200 OK", "\"\"").into_bytes(), long, None),
            (answer("404 Not Found", "").into_bytes(), long, None),
            (
                answer("404 Not Found", "ACL not found").into_bytes(),
                long,
                Some(ErrorKind::Denied),
            ),
            (
                answer("301 Moved Permanently", "").into_bytes(),
                long,
                Some(ErrorKind::Refused),
            ),
            (
                answer("500 Internal Server Error", "No cluster leader").into_bytes(),
                long,
                Some(ErrorKind::NoLeader),
            ),
            (
                b"nonsense\r\n\r\n".to_vec(),
                long,
                Some(ErrorKind::Unreachable),
            ),
            (endless, long, Some(ErrorKind::BadAnswer)),
            (
                Vec::new(),
                Duration::from_millis(50),
                Some(ErrorKind::Timeout),
            ),
            (
                b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab".to_vec(),
                Duration::from_millis(50),
                Some(ErrorKind::Timeout),
            ),
        ];
        for (nth, (answer, timeout, kind)) in cases.into_iter().enumerate() {
            let expected = kind.map_or(Ok(()), |kind| Err((kind, Outcome::Failed(kind))));
            assert_eq!(ends(answer, timeout).await, expected, "case {nth}");
        }
    }
}
