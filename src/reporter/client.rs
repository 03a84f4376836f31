//! One request to the collector, and what its answer means.

use crate::identity::tls::{Found, Tls};
use crate::telemetry::log::Chain;
use flate2::Compression;
use flate2::write::GzEncoder;
use reqwest::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};
use serde::Deserialize;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Smaller bodies are sent as they are.
const GZIP_FROM: usize = 1 << 10;

/// The longest receipt that is read: a thousand rejections with their reasons.
const RECEIPT_BYTES: usize = 1 << 20;

pub(super) struct Client {
    http: reqwest::Client,
    /// `None`: an `https` collector is verified against the system's roots, and not told who we are.
    secured: Option<Secured>,
    token_file: Option<PathBuf>,
}

/// What connections to the collector are made with, and when that has changed.
pub(super) struct Secured {
    tls: Arc<Tls>,
    found: Found,
    changed: watch::Receiver<u64>,
}

impl Secured {
    pub(super) fn new(tls: Arc<Tls>, found: Found) -> Self {
        let changed = tls.changed();
        Self {
            tls,
            found,
            changed,
        }
    }
}

/// What the collector did with a batch.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Receipt {
    pub(super) accepted: u64,
    pub(super) duplicates: u64,
    pub(super) conflicts: u64,
    pub(super) rejected: Vec<Rejected>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Rejected {
    pub(super) index: usize,
    pub(super) reason: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The collector speaks about each row.
    Receipt(Receipt),
    /// It will not take this request, however often it is sent.
    Refused(u16),
    /// It does not take requests from us.
    Denied(u16),
    /// It says nothing about the rows.
    Away {
        reason: String,
        wait: Option<Duration>,
    },
}

impl Client {
    pub(super) fn new(
        token_file: Option<PathBuf>,
        mut secured: Option<Secured>,
    ) -> reqwest::Result<Self> {
        Ok(Self {
            http: http(secured.as_mut())?,
            secured,
            token_file,
        })
    }

    /// Lets go of connections that were made with certificates no longer in use.
    fn renew(&mut self) -> reqwest::Result<()> {
        if let Some(secured) = &mut self.secured
            && secured.changed.has_changed().unwrap_or(false)
        {
            self.http = http(Some(secured))?;
        }
        Ok(())
    }

    /// Posts the reports as one array.
    pub(super) async fn post<'a>(
        &mut self,
        collector: &Url,
        reports: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Answer {
        let count = reports.len() as u64;
        if let Err(error) = self.renew() {
            return away(Chain(&error).to_string());
        }
        let request = self.http.post(endpoint(collector));
        let mut request = request.header(CONTENT_TYPE, "application/json");
        match self.authorization().await {
            Ok(Some(value)) => request = request.header(AUTHORIZATION, value),
            Ok(None) => {}
            Err(reason) => return Answer::Away { reason, wait: None },
        }
        let body = array(reports);
        let body = if body.len() > GZIP_FROM {
            request = request.header(CONTENT_ENCODING, "gzip");
            match tokio::task::spawn_blocking(move || gzip(&body)).await {
                Ok(packed) => packed,
                Err(_cancelled) => return away("the process is ending"),
            }
        } else {
            body
        };
        match request.body(body).send().await {
            Ok(response) => answer(response, count).await,
            Err(error) => away(Chain(&error).to_string()),
        }
    }

    /// Reads the token anew each time, so that a rotated one is used at once.
    async fn authorization(&self) -> Result<Option<HeaderValue>, String> {
        let Some(path) = &self.token_file else {
            return Ok(None);
        };
        let token = tokio::fs::read_to_string(path).await;
        let token = token.map_err(|error| format!("read {}: {error}", path.display()))?;
        let value = HeaderValue::try_from(format!("Bearer {}", token.trim()));
        let mut value = value.map_err(|error| format!("use {}: {error}", path.display()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

fn http(secured: Option<&mut Secured>) -> reqwest::Result<reqwest::Client> {
    let builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(TIMEOUT)
        // Shorter than the collector's own, so that it never closes under a request.
        .pool_idle_timeout(IDLE_TIMEOUT);
    let Some(secured) = secured else {
        return builder.build();
    };
    // Seen before it is read: a change in between is only taken twice.
    secured.changed.mark_unchanged();
    let config = secured.tls.reporter(secured.found);
    builder.tls_backend_preconfigured((*config).clone()).build()
}

fn endpoint(collector: &Url) -> Url {
    let mut url = collector.clone();
    let path = format!("{}/report-status", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url
}

fn array<'a>(reports: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut body = vec![b'['];
    for report in reports {
        if body.len() > 1 {
            body.push(b',');
        }
        body.extend_from_slice(report);
    }
    body.push(b']');
    body
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::fast());
    let packed = encoder.write_all(body).and_then(|()| encoder.finish());
    packed.expect("writing into memory does not fail")
}

async fn answer(response: Response, count: u64) -> Answer {
    let status = response.status();
    let wait = retry_after(&response);
    match status {
        StatusCode::OK => receipt(response, count).await,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Answer::Denied(status.as_u16()),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            Answer::Away {
                reason: format!("status {status}"),
                wait,
            }
        }
        _ if status.is_client_error() => Answer::Refused(status.as_u16()),
        // A redirect is not followed: reports and token go where the configuration says.
        _ => Answer::Away {
            reason: format!("status {status}"),
            wait,
        },
    }
}

async fn receipt(mut response: Response, count: u64) -> Answer {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= RECEIPT_BYTES => {
                body.extend_from_slice(&chunk);
            }
            Ok(Some(_)) => return away("its receipt is too long"),
            Ok(None) => break,
            Err(error) => return away(Chain(&error).to_string()),
        }
    }
    match serde_json::from_slice::<Receipt>(&body) {
        Ok(receipt) if receipt.total() == count => Answer::Receipt(receipt),
        // Whoever answered, it did not tell what became of our rows.
        Ok(_) => away("its receipt does not add up"),
        Err(_) => away("its answer is not that of a collector"),
    }
}

impl Receipt {
    fn total(&self) -> u64 {
        let counted = [self.accepted, self.duplicates, self.conflicts];
        let rejected = self.rejected.len() as u64;
        counted.into_iter().fold(rejected, u64::saturating_add)
    }
}

fn away(reason: impl Into<String>) -> Answer {
    Answer::Away {
        reason: reason.into(),
        wait: None,
    }
}

fn retry_after(response: &Response) -> Option<Duration> {
    let value = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    Some(Duration::from_secs(value.trim().parse().ok()?))
}
