//! Asking the collector, from wherever its address and its token are known.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use reqwest::{StatusCode, Url};
use serde_json::Value;

use crate::config::{Addresses, Source};

use super::OutputArgs;
use super::client::{self, Answer};
use super::exit::{Exit, Failure};
use super::output;

const TIMEOUT: Duration = Duration::from_secs(15);
const NAME: &str = "the collector";

#[derive(Debug, Args)]
pub(super) struct CollectorPlace {
    /// Base URL of the collector; default: as the settings say.
    #[arg(long, value_name = "URL")]
    collector: Option<String>,
    /// File with the token to show; default: that of the settings, if they name the collector.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Config file that names the collector.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A collector that can be asked, as often as wanted.
pub(super) struct Asking {
    base: String,
    client: reqwest::Client,
    token: Option<String>,
    /// The settings have a token, but for another collector.
    withholds: bool,
}

impl Asking {
    pub fn at(place: CollectorPlace) -> Result<Self, Failure> {
        let addresses = Addresses::load(&Source::of_process(place.config.clone(), Vec::new()))?;
        let base = client::base(place.collector, "collector", place.config, |addresses| {
            addresses.collector.clone()
        })?;
        let is_theirs = is_same(&base, addresses.collector.as_deref());
        let settled = addresses.collector_token_file;
        let withholds = !is_theirs && settled.is_some() && place.token_file.is_none();
        let token = token(place.token_file.or(settled.filter(|_| is_theirs)))?;
        let client = client::collector(&base, TIMEOUT, addresses.tls)?;
        Ok(Self {
            base,
            client,
            token,
            withholds,
        })
    }

    /// Asks for what is at a path; `is_ours` says whether an answer's JSON is what a collector
    /// tells there.
    pub async fn get(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        is_ours: fn(&Value) -> bool,
    ) -> Result<Answer, Failure> {
        let mut url = Url::parse(&client::url(&self.base, ""))
            .map_err(|error| Failure::Usage(format!("--collector: {error}")))?;
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.client.get(url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let answer = client::send(NAME, &self.base, request).await?;
        if self.withholds && answer.status == StatusCode::UNAUTHORIZED {
            output::talk(
                "the token of the settings is for the collector that they name; give --token-file \
                 to show it to this one",
            );
        }
        match recognise(&answer, is_ours) {
            Ok(()) => Ok(answer),
            Err(told) => Err(self.stranger(told)),
        }
    }

    /// Says that whoever answers is no collector.
    pub fn stranger(&self, told: String) -> Failure {
        Failure::Stranger {
            what: NAME,
            url: self.base.clone(),
            told,
        }
    }
}

/// Says why there is nothing to show: what was asked is at fault, or nothing is known of it, or
/// the collector does not serve us.
pub(super) fn refusal(answer: &Answer) -> Failure {
    let told = output::detail(&answer.body);
    let exit = match answer.status {
        StatusCode::BAD_REQUEST => return Failure::Usage(told),
        StatusCode::NOT_FOUND => Exit::Negative,
        _ => Exit::Unreachable,
    };
    let text = format!("the collector says {}: {told}", answer.status);
    Failure::Collector { text, exit }
}

/// Ends a command whose answer is a refusal, which programs read as it came.
pub(super) fn refused(answer: &Answer, output: OutputArgs) -> Result<Exit, Failure> {
    let failure = refusal(answer);
    if !output.is_json() {
        return Err(failure);
    }
    pass_on(answer);
    Ok(failure.exit())
}

/// Prints an answer as it came.
pub(super) fn pass_on(answer: &Answer) {
    output::data(&answer.body);
    if !answer.body.ends_with(b"\n") {
        output::line("");
    }
}

/// Any web server answers 200 or 404; only a collector tells of tasks, or of a problem.
fn recognise(answer: &Answer, is_ours: fn(&Value) -> bool) -> Result<(), String> {
    let told: Value = serde_json::from_slice(&answer.body)
        .map_err(|error| format!("{} with a body that is no JSON: {error}", answer.status))?;
    let is_there = match answer.status.is_success() {
        true => is_ours(&told),
        false => told["detail"].is_string(),
    };
    match is_there {
        true => Ok(()),
        false => Err(format!("{} with another kind of JSON", answer.status)),
    }
}

/// Says whether a URL is that of the settings' collector, whichever way it is written.
fn is_same(base: &str, settled: Option<&str>) -> bool {
    let read = |url: &str| Url::parse(url.trim_end_matches('/')).ok();
    settled.is_some_and(|settled| read(base).is_some_and(|url| Some(url) == read(settled)))
}

/// Reads a token from its file, if there is one.
fn token(file: Option<PathBuf>) -> Result<Option<String>, Failure> {
    let Some(path) = file else {
        return Ok(None);
    };
    match std::fs::read_to_string(&path) {
        Ok(token) => Ok(Some(token.trim().to_owned())),
        Err(source) => Err(Failure::Read { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_collector_of_the_settings_is_shown_their_token() {
        let settled = Some("http://127.0.0.1:7600");
        for (base, same) in [
            ("http://127.0.0.1:7600", true),
            ("HTTP://127.0.0.1:7600/", true),
            ("http://127.0.0.1:7601", false),
            ("https://127.0.0.1:7600", false),
            ("http://127.0.0.1:7600.example", false),
            ("http://127.0.0.1:7600@elsewhere", false),
        ] {
            assert_eq!(is_same(base, settled), same, "{base}");
        }
        assert!(is_same("unix:/run/c.sock", Some("unix:/run/c.sock")));
        assert!(!is_same("http://127.0.0.1:7600", None));
    }

    #[test]
    fn a_refusal_tells_its_detail() {
        for (status, body, told, exit) in [
            (
                404,
                r#"{"status":404,"detail":"no report has arrived"}"#,
                "the collector says 404 Not Found: no report has arrived",
                Exit::Negative,
            ),
            (
                503,
                "<h1>who?</h1>\n",
                "the collector says 503 Service Unavailable: <h1>who?</h1>",
                Exit::Unreachable,
            ),
            (
                401,
                r#"{"detail":"a token is missing"}"#,
                "the collector says 401 Unauthorized: a token is missing",
                Exit::Unreachable,
            ),
            (
                400,
                r#"{"detail":"limit: 1 to 1000"}"#,
                "limit: 1 to 1000",
                Exit::Usage,
            ),
        ] {
            let answer = Answer {
                status: StatusCode::from_u16(status).unwrap(),
                headers: Default::default(),
                body: body.into(),
            };
            let refusal = refusal(&answer);
            assert_eq!(
                (refusal.to_string(), refusal.exit()),
                (told.to_owned(), exit)
            );
        }
    }
}
