//! What happens by itself: TTLs run out, HTTP checks run, services critical for long go.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Error;
use super::catalog::Probe;
use super::decode::Status;
use super::state::Shared;

/// Most HTTP checks under way at a time.
const MAX_PROBES: usize = 32;
/// How much of an answer an HTTP check shows.
const MAX_SHOWN_BYTES: usize = 1024;
const MAX_REDIRECTS: usize = 10;
const WHEN_FULL: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(3600);

/// Makes the future that does it, for as long as it is polled.
pub(super) fn run(shared: Arc<Shared>) -> Result<impl Future<Output = ()> + Send, Error> {
    let http = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::limited(MAX_REDIRECTS))
        .user_agent("Consul Health Check")
        .build()
        .map_err(Error::Probe)?;
    Ok(async move {
        let mut changes = shared.changes();
        let mut probes: JoinSet<()> = JoinSet::new();
        loop {
            changes.mark_unchanged();
            let mut due = shared
                .read(|data| data.catalog.next_due())
                .unwrap_or_else(|| Instant::now() + LONG);
            if probes.len() >= MAX_PROBES {
                // A probe that is due must wait for a place; TTLs must not wait with it.
                due = due.max(Instant::now() + WHEN_FULL);
            }
            tokio::select! {
                () = sleep_until(due) => {}
                _moved = changes.changed() => {}
                Some(_ended) = probes.join_next() => {}
            }
            let free = MAX_PROBES - probes.len().min(MAX_PROBES);
            let ready = shared.write(|data| {
                data.catalog.expire(&mut data.index);
                data.catalog.due_probes(free)
            });
            for probe in ready {
                probes.spawn(check(shared.clone(), http.clone(), probe));
            }
        }
    })
}

async fn check(shared: Arc<Shared>, http: reqwest::Client, probe: Probe) {
    let (status, output) = match ask(&http, &probe).await {
        Ok((code, shown)) => {
            let status = match code.as_u16() {
                200..=299 => Status::Passing,
                429 => Status::Warning,
                _ => Status::Critical,
            };
            (
                status,
                format!(
                    "HTTP {} {}: {code} Output: {shown}",
                    probe.method, probe.url
                ),
            )
        }
        Err(error) => (Status::Critical, error.to_string()),
    };
    shared.write(|data| {
        data.catalog
            .probed(&mut data.index, &probe.check_id, status, &output)
    });
}

async fn ask(
    http: &reqwest::Client,
    probe: &Probe,
) -> Result<(reqwest::StatusCode, String), reqwest::Error> {
    let method =
        reqwest::Method::from_bytes(probe.method.as_bytes()).unwrap_or(reqwest::Method::GET);
    let mut response = http
        .request(method, &probe.url)
        .timeout(probe.timeout)
        .send()
        .await?;
    let mut shown = Vec::new();
    while shown.len() < MAX_SHOWN_BYTES {
        let Some(chunk) = response.chunk().await? else {
            break;
        };
        shown.extend_from_slice(&chunk);
    }
    shown.truncate(MAX_SHOWN_BYTES);
    Ok((
        response.status(),
        String::from_utf8_lossy(&shown).into_owned(),
    ))
}
