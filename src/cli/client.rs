//! One HTTP conversation with a process of ours, on a small runtime of its own.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::{RequestBuilder, StatusCode, redirect};

use crate::config::{Addresses, Source};
use crate::identity::tls::{self, Found, Tls};

use super::exit::{Failure, chain};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Beyond it an answer is not ours.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// An answer read to its end.
pub(super) struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Runs a command's one future.
pub(super) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|error| Failure::bug(&error))?
        .block_on(future)
}

/// Makes a client that never goes through a proxy, which may be the sidecar itself, and follows nobody.
pub(super) fn http(timeout: Duration) -> Result<reqwest::Client, Failure> {
    let built = builder(timeout).build();
    built.map_err(|error| Failure::bug(&error))
}

fn builder(timeout: Duration) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(timeout)
}

/// The same for the collector: with `tls` an `https` one is shown our certificate.
pub(super) fn collector(
    timeout: Duration,
    tls: Option<tls::Config>,
) -> Result<reqwest::Client, Failure> {
    let Some(config) = tls else {
        return http(timeout);
    };
    let tls = Tls::open(config).map_err(|error| Failure::Usage(chain(&error)))?;
    let config = (*tls.reporter(Found::ByUrl)).clone();
    builder(timeout)
        .tls_backend_preconfigured(config)
        .build()
        .map_err(|error| Failure::bug(&error))
}

/// Sends a request and reads the whole answer.
pub(super) async fn send(
    what: &'static str,
    url: &str,
    request: RequestBuilder,
) -> Result<Answer, Failure> {
    let failed = |source: reqwest::Error| {
        let url = url.to_owned();
        // A connection that cannot be made in time is as far away as one that is refused.
        if source.is_timeout() && !source.is_connect() {
            Failure::Timeout { what, url }
        } else {
            Failure::Unreachable {
                what,
                url,
                source: source.without_url(),
            }
        }
    };
    let mut response = request.send().await.map_err(failed)?;
    let (status, headers) = (response.status(), response.headers().clone());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(Failure::Answer(format!(
                "{what} at {url} sent more than {MAX_ANSWER_BYTES} bytes"
            )));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Answer {
        status,
        headers,
        body,
    })
}

/// Decides where a listener is: as the flag says, else as the settings say.
pub(super) fn base(
    flag: Option<String>,
    name: &'static str,
    config: Option<PathBuf>,
    pick: fn(&Addresses) -> Option<String>,
) -> Result<String, Failure> {
    if let Some(url) = flag {
        let known = url.starts_with("http://") || url.starts_with("https://");
        return match known {
            true => Ok(url.trim_end_matches('/').to_owned()),
            false => Err(Failure::Usage(format!(
                "--{name}: must begin with http:// or https://"
            ))),
        };
    }
    let addresses = Addresses::load(&Source::of_process(config, Vec::new()))?;
    pick(&addresses).ok_or_else(|| {
        Failure::Usage(format!(
            "the port is only known to the process: give --{name} URL"
        ))
    })
}
