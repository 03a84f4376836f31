//! One HTTP conversation with a process of ours, on a small runtime of its own.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::{RequestBuilder, StatusCode, redirect};
use tokio::time::Instant;

use crate::config::{Addresses, Source};
use crate::identity::tls::{self, Found, Tls};
use crate::telemetry::log::Chain;

use super::exit::Failure;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const UNIX: &str = "unix:";
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

/// Runs a command's one future. A name lookup that still hangs then is left behind: it cannot be
/// called off, and the command has its answer.
pub(super) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| Failure::bug(&error))?;
    let done = runtime.block_on(future);
    runtime.shutdown_background();
    done
}

/// Makes a client for `base`, which may be `unix:PATH`. It never goes through a proxy, which may be
/// the sidecar itself, and follows nobody.
pub(super) fn http(base: &str, timeout: Duration) -> Result<reqwest::Client, Failure> {
    let built = builder(base, timeout).build();
    built.map_err(|error| Failure::bug(&error))
}

/// Makes a client, as `http` does, for a collector, which may want to be shown our certificate.
pub(super) fn collector(
    base: &str,
    timeout: Duration,
    tls: Option<tls::Config>,
) -> Result<reqwest::Client, Failure> {
    let Some(config) = tls else {
        return http(base, timeout);
    };
    let tls = Tls::open(config).map_err(|error| Failure::Usage(Chain(&error).to_string()))?;
    let config = (*tls.reporter(Found::ByUrl)).clone();
    builder(base, timeout)
        .tls_backend_preconfigured(config)
        .build()
        .map_err(|error| Failure::bug(&error))
}

fn builder(base: &str, timeout: Duration) -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(timeout);
    match base.strip_prefix(UNIX) {
        Some(socket) => builder.unix_socket(socket),
        None => builder,
    }
}

/// Writes the URL of a path below `base`; through a unix socket it needs some host all the same.
pub(super) fn url(base: &str, path: &str) -> String {
    match base.starts_with(UNIX) {
        true => format!("http://localhost{path}"),
        false => format!("{base}{path}"),
    }
}

/// Sends a request and reads the whole answer.
pub(super) async fn send(
    what: &'static str,
    url: &str,
    request: RequestBuilder,
) -> Result<Answer, Failure> {
    let begun = Instant::now();
    let failed = |source: reqwest::Error| {
        let url = url.to_owned();
        // A connection that cannot be made in time is as far away as one that is refused.
        if source.is_timeout() && !source.is_connect() {
            let within = Duration::from_millis(begun.elapsed().as_millis() as u64);
            Failure::Timeout { what, url, within }
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

/// Decides where a listener is: as the flag says, else as the sidecar says that we run beside
/// (unless a file is named), else as the settings say.
pub(super) fn base(
    flag: Option<String>,
    name: &'static str,
    config: Option<PathBuf>,
    pick: fn(&Addresses) -> Option<String>,
) -> Result<String, Failure> {
    let ours = match &config {
        None => Source::of_process(None, Vec::new()).beside(name),
        Some(_) => None,
    };
    if let Some(url) = flag.or(ours) {
        let read = given(&url).map_err(|told| Failure::Usage(format!("--{name}: {told}")));
        return Ok(read?.to_owned());
    }
    let addresses = Addresses::load(&Source::of_process(config, Vec::new()))?;
    pick(&addresses).ok_or_else(|| {
        Failure::Usage(format!(
            "the port is only known to the process: give --{name} URL"
        ))
    })
}

/// Reads the base URL that a flag or a variable gives; whatever is wrong with it is said without it.
fn given(url: &str) -> Result<&str, &'static str> {
    let base = url.trim_end_matches('/');
    if url.starts_with(UNIX) {
        return Ok(base);
    }
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    let rest = rest.ok_or("must begin with http://, https:// or unix:")?;
    // Messages name the URL. A password may hold a slash; a path of ours holds no `@`.
    match rest.contains('@') {
        true => Err("must not hold a user or password"),
        false => Ok(base),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_refused_and_not_repeated() {
        for (url, read) in [
            ("http://127.0.0.1:7410/", Ok("http://127.0.0.1:7410")),
            ("unix:/run/a@b", Ok("unix:/run/a@b")),
            (
                "ftp://u:secret@h",
                Err("must begin with http://, https:// or unix:"),
            ),
            (
                "http://u:secret@h:1",
                Err("must not hold a user or password"),
            ),
            (
                "https://u:se/cret@h:1",
                Err("must not hold a user or password"),
            ),
        ] {
            assert_eq!(given(url), read, "{url}");
        }
    }

    #[test]
    fn a_lookup_that_hangs_does_not_hold_the_command_up() {
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let done = block_on(async move {
            // Lookups run like this; it ends when the test lets it go.
            let hanging = tokio::task::spawn_blocking(move || held.recv());
            drop(tokio::time::timeout(Duration::from_millis(10), hanging).await);
            Ok(7)
        });
        assert!(matches!(done, Ok(7)));
        drop(let_go);
    }
}
