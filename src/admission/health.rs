//! Asking the application whether it is well, and which version it runs.

use crate::backoff::Backoff;
use crate::telemetry::log::Chain;
use http::HeaderMap;
use reqwest::{StatusCode, Url};
use serde_json::Value;
use std::error::Error as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// What is read of a health reply; a longer one says neither status nor version.
const MOST_BYTES: usize = 64 * 1024;

/// The first wait for an application that does not answer yet.
const EAGER: Duration = Duration::from_millis(100);

/// Texts of `status` that mean "not well" although the code is 2xx.
const ILL: [&str; 6] = [
    "starting",
    "draining",
    "unhealthy",
    "down",
    "out_of_service",
    "error",
];

/// Whom to ask and how often.
#[derive(Debug, Clone)]
pub struct Config {
    /// `http(s)://host:port` of the application.
    pub upstream: Url,
    /// The socket to ask at instead.
    pub unix: Option<PathBuf>,
    pub tls: Option<rustls::ClientConfig>,
    /// Fields that every request carries.
    pub headers: HeaderMap,
    pub speaks: Speaks,
    /// Nothing: `/hermes/health`, then `/hermes/heartbeat`, then whether it answers at all.
    pub path: Option<String>,
    pub interval: Duration,
    pub timeout: Duration,
    /// Failures in a row before the application counts as ill.
    pub failures: u32,
}

/// What the application understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    Http1,
    /// HTTP/2 in clear, and nothing else.
    Http2,
    /// Whatever its callers speak, which may be HTTP/2 alone.
    Either,
}

impl Config {
    /// Makes a client that asks the application, with this much time for each answer.
    pub(super) fn client(&self, within: Duration) -> Result<reqwest::Client, reqwest::Error> {
        let mut builder = reqwest::Client::builder();
        if let Some(path) = &self.unix {
            builder = builder.unix_socket(path.as_path());
        }
        if let Some(tls) = &self.tls {
            builder = builder.tls_backend_preconfigured(tls.clone());
        }
        if self.speaks == Speaks::Http2 {
            builder = builder.http2_prior_knowledge();
        }
        builder
            .no_proxy()
            .default_headers(self.headers.clone())
            .redirect(reqwest::redirect::Policy::none())
            .timeout(within)
            // This machine in both families, whatever the resolver knows (RFC 6761 section 6.3);
            // the port is the URL's.
            .resolve_to_addrs(
                "localhost",
                &[
                    (Ipv4Addr::LOCALHOST, 0).into(),
                    (Ipv6Addr::LOCALHOST, 0).into(),
                ],
            )
            // An idle connection may be closed by the application at any time; asking is rare.
            .pool_max_idle_per_host(0)
            .build()
    }
}

/// What is known of the application.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Health {
    /// Not asked yet.
    #[default]
    Unknown,
    Well {
        versions: Versions,
        /// Counts how often it became well: after it was not, it may be another process.
        start: u32,
    },
    Ill {
        reason: String,
    },
}

/// The versions a health reply carries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions {
    bare: Option<String>,
    agents: Vec<(String, String)>,
}

/// Why the application does not count as well; the text ends up in `/ready`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("set up a client")]
    Client(#[source] reqwest::Error),
    #[error("ask {path}")]
    Ask {
        path: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("{path} answered {status}")]
    Status { path: String, status: u16 },
    #[error("{path} says status {text:?}")]
    Says { path: String, text: String },
    #[error("{path} answered more than {MOST_BYTES} bytes of JSON, which nobody reads; shorten it")]
    Long { path: String },
}

/// Asks again and again; a worker.
pub struct Prober {
    config: Config,
    /// What it is to be from now on.
    configs: watch::Receiver<Config>,
    client: reqwest::Client,
    health: watch::Sender<Health>,
    /// How often the application became well.
    starts: u32,
}

impl Prober {
    /// Makes the worker and the value it keeps up to date.
    pub fn new(config: Config) -> Result<(Self, watch::Receiver<Health>), Error> {
        let client = config.client(config.timeout).map_err(Error::Client)?;
        let (health, reader) = watch::channel(Health::Unknown);
        let prober = Self {
            configs: watch::Sender::new(config.clone()).subscribe(),
            config,
            client,
            health,
            starts: 0,
        };
        Ok((prober, reader))
    }

    /// Asks as the latest of these says, from its next question on.
    pub fn following(mut self, configs: watch::Receiver<Config>) -> Self {
        self.configs = configs;
        self
    }

    /// Asks once.
    pub async fn ask_once(self) -> Result<(), Error> {
        self.ask().await.map(drop)
    }

    /// Runs until nobody reads the result; asks faster while the application is still starting.
    pub async fn run(mut self) {
        let mut failures = 0;
        let mut eager = Backoff::new(EAGER, self.config.interval);
        while !self.health.is_closed() {
            let asked = Instant::now();
            match self.ask().await {
                Ok(versions) => {
                    failures = 0;
                    eager.reset();
                    self.starts += u32::from(!self.is_well());
                    let start = self.starts;
                    self.show(Health::Well { versions, start });
                }
                Err(error) => {
                    failures += 1;
                    self.fail(&error, failures);
                }
            }
            let wait = if self.is_well() {
                self.config.interval
            } else {
                eager.next_wait().max(Duration::from_millis(50))
            };
            tokio::select! {
                () = tokio::time::sleep_until(asked + wait) => {}
                // Without their sender they change no more.
                Ok(()) = self.configs.changed() => {
                    self.reconfigure();
                    eager = Backoff::new(EAGER, self.config.interval);
                }
            }
        }
    }

    fn reconfigure(&mut self) {
        let config = self.configs.borrow_and_update().clone();
        match config.client(config.timeout) {
            Ok(client) => {
                self.client = client;
                self.config = config;
            }
            Err(error) => tracing::error!(
                error = %Chain(&error),
                "the application is asked for its health as before"
            ),
        }
    }

    fn fail(&self, error: &Error, failures: u32) {
        let was_well = self.is_well();
        // A first failure of an application that never was well is believed at once.
        if was_well && failures < self.config.failures {
            return;
        }
        let reason = Chain(error).to_string();
        if was_well {
            tracing::warn!(reason, "the application is not well");
        }
        self.show(Health::Ill { reason });
    }

    fn is_well(&self) -> bool {
        matches!(*self.health.borrow(), Health::Well { .. })
    }

    fn show(&self, health: Health) {
        self.health.send_if_modified(|present| {
            let changed = *present != health;
            *present = health;
            changed
        });
    }

    async fn ask(&self) -> Result<Versions, Error> {
        if let Some(path) = &self.config.path {
            let (status, body) = self.get(path).await?;
            return judge(path, status, &body);
        }
        for path in ["/hermes/health", "/hermes/heartbeat"] {
            match self.get(path).await {
                Ok((status, body)) if !is_not_offered(status) => {
                    return judge(path, status, &body);
                }
                Err(Error::Ask { source, .. }) if self.config.speaks.answered(&source) => break,
                answer => drop(answer?),
            }
        }
        // It accepted a connection and spoke HTTP, which is more than a bare connection shows.
        Ok(Versions::default())
    }

    async fn get(&self, path: &str) -> Result<(StatusCode, Vec<u8>), Error> {
        let failed = |source| Error::Ask {
            path: path.to_owned(),
            source,
        };
        let mut url = self.config.upstream.clone();
        url.set_path(path);
        let mut response = self.client.get(url).send().await.map_err(failed)?;
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(failed)? {
            body.extend_from_slice(&piece);
            if body.len() <= MOST_BYTES {
                continue;
            }
            if body.trim_ascii_start().first() == Some(&b'{') && response.status().is_success() {
                let path = path.to_owned();
                return Err(Error::Long { path });
            }
            // A page for people says nothing but that it is there.
            body.clear();
            break;
        }
        Ok((response.status(), body))
    }
}

impl Speaks {
    /// Says whether a failed question shows all the same that the application is there: a gRPC
    /// server resets what is no call of its methods, and answers HTTP/1 with frames.
    fn answered(self, failure: &reqwest::Error) -> bool {
        let mut cause = failure.source();
        while let Some(error) = cause {
            let reset = error.downcast_ref::<h2::Error>();
            let other = error.downcast_ref::<hyper::Error>();
            let is_reset = reset.is_some_and(|e| e.is_reset() && e.is_remote());
            let is_other = other.is_some_and(hyper::Error::is_parse);
            if match self {
                Speaks::Http1 => false,
                Speaks::Http2 => is_reset,
                Speaks::Either => is_reset || is_other,
            } {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

/// A service that does not know the path, or takes no GET at all, has no health page.
fn is_not_offered(status: StatusCode) -> bool {
    matches!(status.as_u16(), 404 | 405 | 501)
}

fn judge(path: &str, status: StatusCode, body: &[u8]) -> Result<Versions, Error> {
    let path = || path.to_owned();
    if !status.is_success() {
        let status = status.as_u16();
        return Err(Error::Status {
            path: path(),
            status,
        });
    }
    let Ok(Value::Object(reply)) = serde_json::from_slice::<Value>(body) else {
        return Ok(Versions::default());
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(said) = reply.get("status").and_then(Value::as_str)
        && ILL.iter().any(|ill| ill.eq_ignore_ascii_case(said))
    {
        let text = said.to_owned();
        return Err(Error::Says { path: path(), text });
    }
    let agents = reply.get("agents").and_then(Value::as_array);
    Ok(Versions {
        bare: reply.get("version").and_then(text),
        agents: agents
            .into_iter()
            .flatten()
            .filter_map(|agent| Some((text(agent.get("id")?)?, text(agent.get("version")?)?)))
            .collect(),
    })
}

impl Versions {
    #[cfg(test)]
    pub fn bare(said: Option<&str>) -> Self {
        Self {
            bare: said.map(str::to_owned),
            agents: Vec::new(),
        }
    }

    /// Says what the reply claims to run, if it disagrees with `version` of `id`.
    ///
    /// A bare version speaks for the only contract; of several it must be one of theirs.
    pub fn conflict(
        &self,
        id: &str,
        version: &semver::Version,
        all: &[semver::Version],
    ) -> Option<String> {
        let named = self.agents.iter().find(|(agent, _)| agent == id);
        match (named, &self.bare) {
            (Some((_, said)), _) => (!agrees(said, version)).then(|| said.clone()),
            (None, Some(said)) => {
                let fits = all.iter().any(|version| agrees(said, version));
                (!fits).then(|| said.clone())
            }
            (None, None) => None,
        }
    }

    /// Returns what the reply says of `id`, by its name or as a bare version.
    pub fn said_of(&self, id: &str) -> Option<&str> {
        let named = self.agents.iter().find(|(agent, _)| agent == id);
        named
            .map(|(_, said)| said)
            .or(self.bare.as_ref())
            .map(String::as_str)
    }
}

/// Compares as versions do, missing parts being 0: `1.0` is `1.0.0`.
fn agrees(said: &str, version: &semver::Version) -> bool {
    let said = said.trim().trim_start_matches('v');
    let mut parts = [0u64; 3];
    for (at, part) in said.split('.').enumerate() {
        match (parts.get_mut(at), part.parse()) {
            (Some(slot), Ok(number)) => *slot = number,
            _ => return false,
        }
    }
    parts == [version.major, version.minor, version.patch]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(reply: &str) -> Result<Versions, String> {
        judge("/h", StatusCode::OK, reply.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn replies_and_what_they_mean() {
        for (reply, well) in [
            ("", true),
            ("ok", true),
            ("[]", true),
            (r#"{"status":"ready"}"#, true),
            (r#"{"status":"UP"}"#, true),
            (r#"{"status":7}"#, true),
            (r#"{"status":"starting"}"#, false),
            (r#"{"status":"down"}"#, false),
            (r#"{"status":"OUT_OF_SERVICE"}"#, false),
            (r#"{"status":"error","version":"1.0.0"}"#, false),
        ] {
            assert_eq!(versions(reply).is_ok(), well, "{reply}");
        }
        assert!(judge("/h", StatusCode::FOUND, b"").is_err());
    }

    #[test]
    fn versions_are_compared_per_contract() {
        let v = |text: &str| semver::Version::parse(text).unwrap();
        let all = [v("1.0.0"), v("2.1.0")];
        let conflict = |reply: &str, id, version: &str| {
            versions(reply).unwrap().conflict(id, &v(version), &all)
        };
        assert_eq!(conflict("{}", "a-v1.0", "1.0.0"), None);
        assert_eq!(conflict(r#"{"version":"1.0"}"#, "a-v1.0", "1.0.0"), None);
        assert_eq!(conflict(r#"{"version":"2.1"}"#, "a-v1.0", "1.0.0"), None);
        let old = conflict(r#"{"version":"0.9"}"#, "a-v1.0", "1.0.0");
        assert_eq!(old.as_deref(), Some("0.9"));
        let agents = r#"{"version":"9","agents":[{"id":"a-v1.0","version":"1.0.1"}]}"#;
        assert_eq!(
            conflict(agents, "a-v1.0", "1.0.0").as_deref(),
            Some("1.0.1")
        );
        assert_eq!(conflict(agents, "b-v2.1", "2.1.0").as_deref(), Some("9"));
    }
}
