//! Families in use by a range: which of their minors are published, followed in Consul's index.
//!
//! A range is a family and a major version. What it stands for at one moment is decided by who
//! asks, from the contracts named here: the highest minor that somebody can serve.
//!
//! - the index is watched only while a range is in use, as one watch of Consul's budget
//! - at most `MOST_FAMILIES` are followed; a further one is refused, not watched

use super::minors::Minors;
use super::usage::Usage;
use super::{Directory, FIRST_USE, Refused, UNUSED, UNUSED_ABSENT};
use crate::consul::watch::{Options, Seen};
use crate::contract::{ContractId, Range};
use arc_swap::ArcSwap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How many ranges one sidecar follows.
pub(super) const MOST_FAMILIES: usize = 256;

/// One range in use.
pub struct Family {
    range: Range,
    ids: ArcSwap<Vec<ContractId>>,
    heard: watch::Receiver<Heard>,
    usage: Usage,
}

/// What Consul has said so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    /// It cannot be asked at present, and what was known before serves.
    Silence,
    /// Which contracts there are.
    Answer,
}

impl Directory {
    /// Returns a range, beginning to follow it at the first call.
    pub fn family(self: &Arc<Self>, range: &Range) -> Result<Arc<Family>, Refused> {
        let mut families = self.families.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(family) = families.get(range) {
            family.usage.touch();
            return Ok(family.clone());
        }
        if families.len() >= MOST_FAMILIES {
            return Err(Refused::FullOfRanges);
        }
        let family = self.follow_family(range);
        families.insert(range.clone(), family.clone());
        Ok(family)
    }

    fn follow_family(self: &Arc<Self>, range: &Range) -> Arc<Family> {
        let prefix = self.client.layout().minors(range.family(), range.major());
        let (seen, watching) = self.client.watch_keys(&prefix, Options::URGENT);
        let (hear, heard) = watch::channel(Heard::Nothing);
        let family = Arc::new(Family {
            range: range.clone(),
            ids: ArcSwap::default(),
            heard,
            usage: Usage::begin(),
        });
        let mut follower = Follower {
            directory: self.clone(),
            family: family.clone(),
            minors: Minors::seeded(range.clone(), self.remembered()),
            seen,
            hear,
        };
        // What an earlier process knew serves at once, should Consul be away.
        follower.take_in();
        let closing = self.closing.clone();
        self.workers.spawn(async move {
            tokio::select! {
                () = watching => {}
                () = follower.run() => {}
                () = closing.cancelled() => {}
            }
        });
        family
    }

    /// Names the contracts that are in use or were in use lately with somebody to serve them.
    fn remembered(&self) -> Vec<ContractId> {
        let served = |agent: &Arc<super::Agent>| !agent.view().offers.is_empty();
        let agents = self.agents();
        let mut ids: Vec<ContractId> = agents
            .iter()
            .filter(|agent| served(agent))
            .map(|agent| agent.id.clone())
            .collect();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        ids.extend(known.keys().filter_map(|id| id.parse().ok()));
        ids
    }
}

impl Family {
    /// Returns the contracts of the range, the highest minor first.
    pub fn ids(&self) -> Arc<Vec<ContractId>> {
        self.ids.load_full()
    }

    /// Says whether Consul has ever answered which contracts there are.
    pub fn is_answered(&self) -> bool {
        *self.heard.borrow() == Heard::Answer
    }

    /// Waits until something is known: at most until `until`, and only while the range is new.
    pub async fn settled(&self, until: Instant) {
        let mut heard = self.heard.clone();
        if *heard.borrow() != Heard::Nothing {
            return;
        }
        let until = until.min(self.usage.first() + FIRST_USE);
        let something = heard.wait_for(|heard| *heard != Heard::Nothing);
        // Late or given up: the caller looks at the list either way.
        drop(tokio::time::timeout_at(until, something).await);
    }
}

/// Keeps one range's list in step with its watch.
struct Follower {
    directory: Arc<Directory>,
    family: Arc<Family>,
    minors: Minors,
    seen: watch::Receiver<Seen<Vec<String>>>,
    hear: watch::Sender<Heard>,
}

impl Follower {
    async fn run(mut self) {
        loop {
            let again = self.take_in();
            // A range that nobody publishes is let go sooner: it is likely a misspelling.
            let is_absent = self.family.is_answered() && self.family.ids().is_empty();
            let patience = if is_absent { UNUSED_ABSENT } else { UNUSED };
            let Some(left) = patience.checked_sub(self.family.usage.unused_for()) else {
                break;
            };
            let doubtful = Instant::now() + left + Duration::from_secs(1);
            let until = again.map_or(doubtful, |again| again.min(doubtful));
            tokio::select! {
                changed = self.seen.changed() => if changed.is_err() { break },
                () = tokio::time::sleep_until(until) => {}
            }
        }
        let families = &self.directory.families;
        let mut families = families.lock().unwrap_or_else(PoisonError::into_inner);
        families.remove(&self.family.range);
    }

    /// Reads the watch; returns when to look again although nothing was heard.
    fn take_in(&mut self) -> Option<Instant> {
        let seen = self.seen.borrow_and_update().clone();
        let listing = self.minors.read(&seen, Instant::now());
        let heard = match (seen.value.is_some(), seen.error.is_some()) {
            (true, _) => Heard::Answer,
            (false, true) if !listing.ids.is_empty() => Heard::Silence,
            (false, _) => Heard::Nothing,
        };
        self.family.ids.store(Arc::new(listing.ids));
        self.hear.send_replace(heard);
        listing.again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consul::{Client, Config};
    use crate::contract::trust::Trust;
    use crate::telemetry::metrics::Sidecar;
    use tokio::time::sleep;
    use tokio_util::task::TaskTracker;

    /// A directory whose Consul is not there: nothing listens at port 1.
    async fn alone() -> Arc<Directory> {
        let client = Client::new(Config::at("http://127.0.0.1:1"), Arc::new(|_, _, _| {})).unwrap();
        let metrics = Arc::new(Sidecar::new("test"));
        Directory::open(client, metrics, None, TaskTracker::new(), Trust::off()).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_use_waits_two_seconds_and_no_later_one() {
        let directory = alone().await;
        let family = directory.family(&"a@^1".parse().unwrap()).unwrap();
        let began = Instant::now();
        let long = began + Duration::from_secs(60);
        family.settled(long).await;
        assert!(began.elapsed() >= FIRST_USE, "{:?}", began.elapsed());
        assert!(began.elapsed() < FIRST_USE + Duration::from_secs(1));
        let again = Instant::now();
        family.settled(long).await;
        assert!(again.elapsed() < Duration::from_millis(10));
        assert!(!family.is_answered() && family.ids().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_range_that_nobody_asks_for_is_let_go() {
        let directory = alone().await;
        let range: Range = "a@^1".parse().unwrap();
        let followed = || directory.families.lock().unwrap().len();
        let first = directory.family(&range).unwrap();
        for _ in 0..3 {
            sleep(UNUSED - Duration::from_secs(60)).await;
            assert!(Arc::ptr_eq(&first, &directory.family(&range).unwrap()));
        }
        // It takes its part of `consul.watches`, here the only one.
        assert_eq!((followed(), directory.client.budget().free()), (1, 0));
        sleep(UNUSED + Duration::from_secs(60)).await;
        assert_eq!((followed(), directory.client.budget().free()), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bounded_number_of_ranges_is_followed() {
        let directory = alone().await;
        let range = |n: usize| format!("a{n}@^1").parse().unwrap();
        for n in 0..MOST_FAMILIES {
            directory.family(&range(n)).unwrap();
        }
        let refused = directory.family(&range(MOST_FAMILIES)).err();
        assert_eq!(refused, Some(Refused::FullOfRanges));
        assert!(directory.family(&range(0)).is_ok());
        directory.close();
    }
}
