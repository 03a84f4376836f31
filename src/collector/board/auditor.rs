//! The audit of all published bodies.
//!
//! - a pass when keys or index have changed, at most every `EVERY`, and without a change every
//!   `FULL`; bodies that are new are read before, at most every `NEW_EVERY`
//! - one read at a time; what a failed read would have told stays as it was
//! - what is found wrong is logged when it begins, when it changes and when it ends, not each time

use super::Board;
use super::index::{Entry, Index};
use super::judge::{Judged, judge};
use super::listing::Listing;
use super::stored::read;
use crate::backoff::Backoff;
use crate::consul;
use crate::contract::ContractId;
use crate::identity::Digest;
use crate::task::Timestamp;
use crate::telemetry::metrics::{self, Audit};
use bytes::Bytes;
use semver::Version;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

const EVERY: Duration = Duration::from_secs(30);
const NEW_EVERY: Duration = Duration::from_secs(2);
const FULL: Duration = Duration::from_secs(180);
/// How long the first pass waits for the index, which comes about when the keys do.
const INDEX_WITHIN: Duration = Duration::from_secs(5);
/// A pass that takes longer is cut off; the next begins with what this one did not reach.
const PASS_TIMEOUT: Duration = Duration::from_secs(120);
/// Reads that fail one after the other before a pass gives up.
const MOST_FAILURES: usize = 3;
/// Findings that one pass logs each by itself.
const MOST_LINES: usize = 50;
/// Contracts that are kept for the time when Consul is away.
const MOST_KEPT_BYTES: usize = 64 * 1024 * 1024;

type Key = (ContractId, Version);

/// What the passes so far have found.
#[derive(Debug, Default, Clone)]
pub(super) struct Audits {
    pub(super) bodies: HashMap<Key, Arc<Judged>>,
    /// What stands at each contract's version key.
    pub(super) pointers: HashMap<ContractId, Version>,
}

pub(super) struct Auditor {
    board: Arc<Board>,
    metrics: Arc<metrics::Collector>,
    /// The digest that each body had when it was first found sound: it may have no other.
    first: HashMap<Key, Digest>,
    /// The listing's index in the last pass.
    index: u64,
    foreign: Vec<String>,
    left_out: usize,
}

/// Which bodies a pass reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    /// Those that no pass has judged yet.
    New,
}

/// What one pass was about.
struct Seen {
    listing: Arc<Listing>,
    index: Arc<Index>,
}

impl Auditor {
    pub(super) fn new(board: Arc<Board>, metrics: Arc<metrics::Collector>) -> Self {
        Self {
            board,
            metrics,
            first: HashMap::new(),
            index: 0,
            foreign: Vec::new(),
            left_out: 0,
        }
    }

    /// Audits until it is dropped.
    pub(super) async fn run(mut self) {
        let (mut listing, mut index) = (self.board.listing.clone(), self.board.index.clone());
        let mut retry = Backoff::new(Duration::from_secs(1), EVERY);
        known(&mut listing).await;
        timeout(INDEX_WITHIN, known(&mut index)).await.ok();
        loop {
            let began = Instant::now();
            let generations = (generation(&mut listing), generation(&mut index));
            if self.pass(Which::All).await {
                retry.reset();
            } else {
                sleep(retry.next_wait()).await;
                continue;
            }
            self.read_new(&mut listing, began + EVERY).await;
            let changed = async {
                while (generation(&mut listing), generation(&mut index)) == generations {
                    tokio::select! {
                        // The watches live as long as this does.
                        Ok(()) = listing.changed() => {}
                        Ok(()) = index.changed() => {}
                        else => std::future::pending().await,
                    }
                }
            };
            timeout_at(began + FULL, changed).await.ok();
        }
    }

    /// Reads bodies as they are published, until it is time for all of them.
    async fn read_new(
        &mut self,
        listing: &mut watch::Receiver<consul::watch::Seen<Listing>>,
        until: Instant,
    ) {
        while let Ok(Ok(())) = timeout_at(until, listing.changed()).await {
            self.pass(Which::New).await;
            sleep_until(until.min(Instant::now() + NEW_EVERY)).await;
        }
        sleep_until(until).await;
    }

    /// Reads and judges bodies once each; says whether it got through.
    async fn pass(&mut self, which: Which) -> bool {
        let Some(listing) = self.board.listing.borrow().value.clone() else {
            return false;
        };
        let index = self.board.index.borrow().value.clone();
        let seen = Seen {
            listing,
            index: index.unwrap_or_default(),
        };
        if seen.listing.index < self.index {
            // Another store, or one that was rolled back: what it holds may be older.
            self.first.clear();
        }
        self.index = seen.listing.index;
        let (audits, is_whole) = self.read(&seen, which).await;
        let alive = |key: &Key, _: &mut Digest| audits.bodies.contains_key(key);
        self.first.retain(alive);
        let (_, beyond) = seen.listing.audited();
        self.tell(&audits, &seen.listing, beyond);
        self.board.audits.store(Arc::new(audits));
        is_whole
    }

    async fn read(&mut self, seen: &Seen, which: Which) -> (Audits, bool) {
        let former = self.board.audits.load_full();
        let until = Instant::now() + PASS_TIMEOUT;
        let (chosen, _) = seen.listing.audited();
        let (mut audits, mut failures, mut is_whole) = (Audits::default(), 0, true);
        let mut kept = match which {
            Which::All => 0,
            Which::New => former.kept_bytes(),
        };
        for (id, mut versions) in oldest_first(chosen, &former) {
            if which == Which::New {
                audits.keep(&former, id, &versions);
                versions.retain(|version| !former.knows(id, version));
                if versions.is_empty() {
                    continue;
                }
            }
            let may_go_on = failures < MOST_FAILURES && Instant::now() < until;
            let read = match may_go_on {
                true => {
                    let all = seen.listing.contracts.get(id).map_or(0, Vec::len);
                    Some(read(&self.board.client, id, &versions, all).await)
                }
                false => None,
            };
            let Some(Ok(mut found)) = read else {
                if let Some(Err(error)) = read {
                    tracing::warn!(contract = %id, error, "published bodies could not be read");
                    failures += 1;
                }
                is_whole = false;
                audits.keep(&former, id, &versions);
                continue;
            };
            failures = 0;
            if let Some(pointer) = found.pointer.take() {
                audits.pointers.insert(id.clone(), pointer);
            }
            for version in versions {
                let Some(value) = found.bodies.remove(version) else {
                    continue;
                };
                let judged = self.judge(seen, id, version, value, &mut kept).await;
                audits
                    .bodies
                    .insert((id.clone(), version.clone()), Arc::new(judged));
            }
        }
        (audits, is_whole)
    }

    async fn judge(
        &mut self,
        seen: &Seen,
        id: &ContractId,
        version: &Version,
        value: Bytes,
        kept: &mut usize,
    ) -> Judged {
        let judged = judge(&self.board.trust, id, version, value, Timestamp::now()).await;
        let mut judged = held_against(judged, seen.index.get(id), version);
        let Some(digest) = judged.digest.filter(|_| judged.is_usable()) else {
            return judged;
        };
        let first = self.first.entry((id.clone(), version.clone()));
        let first = *first.or_insert(digest);
        if first != digest {
            let detail = format!(
                "its digest is {digest}, but was {first} when first read here, and a published \
                 version never changes"
            );
            return judged.worse(Audit::Mismatch, detail);
        }
        *kept += judged.contract.as_ref().map_or(0, Bytes::len);
        if *kept > MOST_KEPT_BYTES {
            judged.contract = None;
        }
        judged
    }

    /// Logs what differs from the pass before, and counts all there is.
    fn tell(&mut self, audits: &Audits, listing: &Listing, beyond: usize) {
        let former = self.board.audits.load();
        let mut lines = 0;
        let mut counts = [0; Audit::ALL.len()];
        for (key, judged) in &audits.bodies {
            counts[judged.state as usize] += 1;
            let before = former.bodies.get(key);
            let is_new = before.is_none_or(|before| {
                (before.state, &before.detail) != (judged.state, &judged.detail)
            });
            if is_new
                && say(
                    key,
                    judged,
                    before.map(|before| before.state),
                    lines < MOST_LINES,
                )
            {
                lines += 1;
            }
        }
        if lines > MOST_LINES {
            let more = lines - MOST_LINES;
            tracing::error!(more, "further published bodies are not as they should be");
        }
        counts[Audit::Unaudited as usize] += beyond;
        self.metrics.audited(counts);
        if beyond > self.left_out {
            tracing::warn!(
                bodies = beyond,
                "more bodies are published than are audited"
            );
        }
        if listing.foreign != self.foreign && !listing.foreign.is_empty() {
            tracing::warn!(
                keys = listing.foreign.join(" "),
                "keys among the published contracts belong to none; remove them"
            );
        }
        (self.left_out, self.foreign) = (beyond, listing.foreign.clone());
    }
}

impl Audits {
    fn knows(&self, id: &ContractId, version: &Version) -> bool {
        self.bodies.contains_key(&(id.clone(), version.clone()))
    }

    fn kept_bytes(&self) -> usize {
        let kept = self
            .bodies
            .values()
            .filter_map(|judged| judged.contract.as_ref());
        kept.map(Bytes::len).sum()
    }

    /// Takes over what was known of a contract.
    fn keep(&mut self, former: &Self, id: &ContractId, versions: &[&Version]) {
        for version in versions {
            let key = (id.clone(), (*version).clone());
            if let Some(judged) = former.bodies.get(&key) {
                self.bodies.insert(key, judged.clone());
            }
        }
        if let Some(pointer) = former.pointers.get(id) {
            self.pointers.insert(id.clone(), pointer.clone());
        }
    }
}

/// Puts those that were judged longest ago in front, so that passes that are cut off get to all.
fn oldest_first<'l>(
    chosen: BTreeMap<&'l ContractId, Vec<&'l Version>>,
    former: &Audits,
) -> Vec<(&'l ContractId, Vec<&'l Version>)> {
    let mut checked: HashMap<&ContractId, Timestamp> = HashMap::new();
    for ((id, _), judged) in &former.bodies {
        let at = checked.entry(id).or_insert(judged.checked_at);
        *at = (*at).min(judged.checked_at);
    }
    let mut chosen: Vec<_> = chosen.into_iter().collect();
    chosen.sort_by_key(|(id, _)| checked.get(id).copied());
    chosen
}

/// Logs one finding; says whether it is one that counts as a line.
fn say((id, version): &Key, judged: &Judged, before: Option<Audit>, may_log: bool) -> bool {
    let digest = judged.digest.map(|digest| digest.to_string());
    let noted = judged.noted.digest.map(|digest| digest.to_string());
    let kid = judged.kid.as_deref().unwrap_or("none");
    if !judged.state.is_wrong() {
        if before.is_some_and(Audit::is_wrong) {
            tracing::info!(
                contract = %id, %version, digest, kid,
                "the published body is as it should be again"
            );
        }
        return false;
    }
    if may_log {
        tracing::error!(
            contract = %id, %version, digest, noted, kid,
            state = judged.state.as_str(), detail = judged.detail,
            "the published body is not as it should be"
        );
    }
    true
}

/// Compares with the index, which names the digest of the current version.
fn held_against(
    judged: Judged,
    entry: Option<&Result<Entry, String>>,
    version: &Version,
) -> Judged {
    let (Some(Ok(entry)), Some(digest)) = (entry, judged.digest) else {
        return judged;
    };
    if entry.version != *version || entry.digest == digest || judged.state.is_wrong() {
        return judged;
    }
    let detail = format!(
        "its digest is {digest}, but the index names {} for this version",
        entry.digest
    );
    judged.worse(Audit::Mismatch, detail)
}

/// Waits for the first good answer.
async fn known<T>(seen: &mut watch::Receiver<consul::watch::Seen<T>>) {
    let known = seen.wait_for(|seen| seen.value.is_some());
    if known.await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn generation<T>(seen: &mut watch::Receiver<consul::watch::Seen<T>>) -> u64 {
    seen.borrow_and_update().generation
}
