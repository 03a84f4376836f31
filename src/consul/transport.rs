//! The HTTP exchange with the agent: TLS, limits, what is observed.

use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{HeaderMap, HeaderName};
use reqwest::{Method, StatusCode, Url};
use tokio::time::Instant;

use crate::identity::Secret;

use super::address::Address;
use super::error::Error;
use super::observe::{Observe, Operation, Outcome};
use super::token::TokenSource;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Past the ~7 s for which an agent without a leader holds a call, and past several such calls
/// of other processes queued before ours.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const POOL_IDLE: Duration = Duration::from_secs(90);
/// Idle connections count against the agent's 200 per host, so few are kept.
const POOL_MAX_IDLE: usize = 4;
/// Largest answer we read: a prefix of 64 contracts of the largest size, in base64.
const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-consul-token");

/// Which agent is asked, and how.
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

#[cfg(test)]
impl Config {
    /// Makes a configuration that tests change to their needs.
    pub fn at(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            token: None,
            token_file: None,
            tls: TlsOptions::default(),
            prefix: "hermes".to_owned(),
            watches: 1,
        }
    }
}

/// What an `https` agent is verified by and shown.
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

pub(super) fn read(what: &'static str, path: &PathBuf) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::File {
        what,
        path: path.clone(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::ErrorKind;
    use super::*;

    #[test]
    fn segments_are_encoded() {
        let transport =
            Transport::new(&Config::at("http://a"), Arc::new(|_, _, _| {})).expect("a client");
        let url = transport.url(["agent", "service", "a/b ?ü"]);
        assert_eq!(url.path(), "/v1/agent/service/a%2Fb%20%3F%C3%BC");
    }

    #[test]
    fn a_token_never_shows_itself() {
        let mut config = Config::at("http://a");
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
        let transport =
            Transport::new(&Config::at(&address.to_string()), observe).expect("a client");
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
