//! Which contracts are published, whether they are still what was published, and who runs them.
//!
//! Answers come from memory and never wait for Consul; only a single published body is read when
//! somebody asks for it.
//!
//! - Consul away: the last good answer stays, marked with its age
//! - a changed body is found within two rounds of the audit, and once more in every full pass
//! - three blocking polls in all, whatever is published; instances are read in turns
//! - every list is bounded; what goes beyond is named, not dropped in silence
//! - elsewhere: what a contract is and who may sign it (`contract`), the watch loop (`consul`)

mod agents;
mod auditor;
mod body;
mod index;
mod judge;
mod listing;
mod row;
mod services;
mod stored;

pub(super) use body::{Missing, Text};

use crate::consul::Client;
use crate::consul::watch::{Options, Seen, watch};
use crate::contract::trust::Trust;
use crate::telemetry::metrics;
use arc_swap::ArcSwap;
use auditor::{Auditor, Audits};
use index::Index;
use listing::Listing;
use services::{Names, Services};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Bodies that are read for askers at the same time; each has up to 512 KiB.
const READS: usize = 16;

/// What is known of contracts and who runs them; shared by `Arc`.
#[derive(Debug)]
pub(super) struct Board {
    client: Client,
    trust: Arc<Trust>,
    listing: tokio::sync::watch::Receiver<Seen<Listing>>,
    index: tokio::sync::watch::Receiver<Seen<Index>>,
    names: tokio::sync::watch::Receiver<Seen<Names>>,
    audits: ArcSwap<Audits>,
    services: ArcSwap<Services>,
    reads: Semaphore,
}

/// How old an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Age {
    pub(super) age: Duration,
    /// Consul cannot be asked for a part of it at present.
    pub(super) is_stale: bool,
}

/// Consul has not answered since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NeverRead {
    pub(super) reason: String,
}

impl Board {
    /// Begins with nothing known; the future follows Consul for as long as it is polled.
    pub(super) fn open(
        client: Client,
        trust: Arc<Trust>,
        metrics: Arc<metrics::Collector>,
    ) -> (Arc<Self>, impl Future<Output = ()> + Send + use<>) {
        let budget = client.budget();
        let asking = client.clone();
        let (listing, watch_keys) = watch(budget.clone(), Options::URGENT, move |poll| {
            let client = asking.clone();
            async move { listing::read(&client, poll).await }
        });
        let asking = client.clone();
        let (index, watch_index) = watch(budget.clone(), Options::URGENT, move |poll| {
            let client = asking.clone();
            async move { index::read(&client, poll).await }
        });
        let asking = client.clone();
        let (names, watch_names) = watch(budget.clone(), Options::URGENT, move |poll| {
            let client = asking.clone();
            async move { services::names(&client, poll).await }
        });
        let board = Arc::new(Self {
            client,
            trust,
            listing,
            index,
            names,
            audits: ArcSwap::default(),
            services: ArcSwap::default(),
            reads: Semaphore::new(READS),
        });
        let auditor = Auditor::new(board.clone(), metrics);
        let turns = services::take_turns(board.clone());
        let following = async {
            tokio::join!(
                watch_keys,
                watch_index,
                watch_names,
                Box::pin(auditor.run()),
                Box::pin(turns)
            );
        };
        (board, following)
    }

    /// Says how old what is known is; an error before Consul has said which contracts there are.
    pub(super) fn age(&self) -> Result<Age, NeverRead> {
        let (listing, index, names) = (
            Part::of(&self.listing),
            Part::of(&self.index),
            Part::of(&self.names),
        );
        let services = self.services.load();
        let parts = [listing, index, names];
        if let Some(missing) = parts.iter().find(|part| part.at.is_none()) {
            let reason = missing.error.clone();
            let reason = reason.unwrap_or_else(|| "the first answer has not come yet".to_owned());
            return Err(NeverRead { reason });
        }
        let broken = parts.iter().filter(|part| part.error.is_some());
        let oldest = broken
            .filter_map(|part| part.at)
            .chain(services.failing_since)
            .min();
        Ok(Age {
            age: oldest.map_or(Duration::ZERO, |at| at.elapsed()),
            is_stale: oldest.is_some(),
        })
    }
}

/// What matters of a watch for the age of what it has seen.
struct Part {
    at: Option<Instant>,
    error: Option<String>,
}

impl Part {
    fn of<T>(receiver: &tokio::sync::watch::Receiver<Seen<T>>) -> Self {
        let seen = receiver.borrow();
        Self {
            at: seen.at,
            error: seen.error.as_ref().map(|error| error.to_string()),
        }
    }
}
