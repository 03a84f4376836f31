//! One watch: asks Consul again and again, and shows the last good answer.
//!
//! Never ends because of an error: the last good value stays, with the time it was seen.
//!
//! - an index that is lower than before starts over without one; it is never below 1
//! - errors carry an index too (1): it is not looked at
//! - "returned" is not "changed": an equal value makes no event
//! - a token bucket bounds the questions even where Consul answers each at once
//! - a poll that was sent runs out: one that is given up keeps its connection slot in the agent
//! - elsewhere: what to do while nothing good is known (`route`, `contract`)

mod pace;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::answer::{Answer, Poll};
use super::client::Client;
use super::error::Error;
use super::instance::Instance;
use super::kv::KvEntry;
use crate::backoff::Backoff;
use pace::{Bucket, random_up_to};

pub use pace::{Budget, Slot};

const WAIT: Duration = Duration::from_secs(55);
/// How often a watch reads while it has no part of the budget.
const POLL_EVERY: Duration = Duration::from_secs(10);
/// Between an answer and the next question, so that a burst of changes is read once.
const COALESCE: Duration = Duration::from_millis(100);
/// An answer from a server that heard from no leader for longer is asked for again at the leader.
const MAX_LAST_CONTACT: Duration = Duration::from_secs(10);
const BACKOFF_FIRST: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The first question waits for a random time up to this, so that a fleet that starts
    /// together does not ask together. Zero where somebody waits for the answer.
    pub spread: Duration,
    /// Longest pause after repeated errors.
    pub max_backoff: Duration,
}

impl Options {
    /// For what calls depend on: asks at once, is back within 5 s.
    pub const URGENT: Options = Options {
        spread: Duration::ZERO,
        max_backoff: Duration::from_secs(5),
    };
}

/// What a watch has seen so far.
///
/// Receivers are woken when the value changes, when errors begin or end, and when `unbroken`
/// changes; `at` and `error` are otherwise kept up to date silently.
#[derive(Debug)]
pub struct Seen<T> {
    /// The last good answer; `None`: there was none yet.
    pub value: Option<Arc<T>>,
    /// When that answer, or an equal one after it, came.
    pub at: Option<Instant>,
    /// False from an error, lower index or ACL mark on, up to and with the next good answer: that
    /// one may be of a Consul that has forgotten everything. The answer after it makes it true.
    pub unbroken: bool,
    /// The latest error, lower index or ACL mark.
    pub broken_at: Option<Instant>,
    /// Set from the first failure until the next good answer.
    pub error: Option<Arc<Error>>,
    /// Counts changes of `value`.
    pub generation: u64,
}

impl<T> Clone for Seen<T> {
    fn clone(&self) -> Seen<T> {
        Seen {
            value: self.value.clone(),
            at: self.at,
            unbroken: self.unbroken,
            broken_at: self.broken_at,
            error: self.error.clone(),
            generation: self.generation,
        }
    }
}

impl<T> Seen<T> {
    fn nothing() -> Seen<T> {
        Seen {
            value: None,
            at: None,
            unbroken: true,
            broken_at: None,
            error: None,
            generation: 0,
        }
    }
}

impl Client {
    /// Watches all instances of a service.
    pub fn watch_health(
        &self,
        service: &str,
        options: Options,
    ) -> (
        watch::Receiver<Seen<Vec<Instance>>>,
        impl Future<Output = ()> + Send + use<>,
    ) {
        let (client, service) = (self.clone(), service.to_owned());
        watch(self.budget().clone(), options, move |poll| {
            let (client, service) = (client.clone(), service.clone());
            async move { client.health(&service, poll).await }
        })
    }

    /// Watches the keys below a prefix, without their values.
    pub fn watch_keys(
        &self,
        prefix: &str,
        options: Options,
    ) -> (
        watch::Receiver<Seen<Vec<String>>>,
        impl Future<Output = ()> + Send + use<>,
    ) {
        let (client, prefix) = (self.clone(), prefix.to_owned());
        watch(self.budget().clone(), options, move |poll| {
            let (client, prefix) = (client.clone(), prefix.clone());
            async move { client.kv_keys(&prefix, poll).await }
        })
    }

    /// Watches the keys below a prefix with their values; for few and small ones, since all are
    /// sent again whenever one changes.
    pub fn watch_entries(
        &self,
        prefix: &str,
        options: Options,
    ) -> (
        watch::Receiver<Seen<Vec<KvEntry>>>,
        impl Future<Output = ()> + Send + use<>,
    ) {
        let (client, prefix) = (self.clone(), prefix.to_owned());
        watch(self.budget().clone(), options, move |poll| {
            let (client, prefix) = (client.clone(), prefix.clone());
            async move { client.kv_list(&prefix, poll).await }
        })
    }
}

/// Makes a watch out of any read that can block.
///
/// The future is the watch; its owner spawns it. It ends when every receiver is gone and the
/// poll then in flight has run out; dropping it ends it at once.
pub fn watch<T, F, Fut>(
    budget: Budget,
    options: Options,
    fetch: F,
) -> (
    watch::Receiver<Seen<T>>,
    impl Future<Output = ()> + Send + use<T, F, Fut>,
)
where
    T: PartialEq + Send + Sync + 'static,
    F: Fn(Poll) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Answer<T>, Error>> + Send,
{
    let (seen, receiver) = watch::channel(Seen::nothing());
    let watcher = Watcher {
        seen,
        budget,
        slot: None,
        options,
        fetch,
        index: None,
        backoff: Backoff::new(BACKOFF_FIRST, options.max_backoff),
        broken: None,
    };
    (receiver, watcher.run())
}

struct Watcher<T, F> {
    seen: watch::Sender<Seen<T>>,
    budget: Budget,
    slot: Option<Slot>,
    options: Options,
    fetch: F,
    /// Where the next poll goes on from; `None` asks at once.
    index: Option<u64>,
    backoff: Backoff,
    /// The last break since the last good answer.
    broken: Option<Instant>,
}

/// What to do before the next question.
enum Next {
    AtOnce,
    Pause(Duration),
}

impl<T, F, Fut> Watcher<T, F>
where
    T: PartialEq + Send + Sync,
    F: Fn(Poll) -> Fut + Send,
    Fut: Future<Output = Result<Answer<T>, Error>> + Send,
{
    async fn run(mut self) {
        let mut bucket = Bucket::full();
        let mut next = Next::Pause(random_up_to(self.options.spread));
        loop {
            let pause = match next {
                Next::AtOnce => Duration::ZERO,
                Next::Pause(pause) => pause,
            };
            let go = Instant::now() + pause;
            tokio::select! {
                () = self.seen.closed() => return,
                () = async { sleep_until(go).await; bucket.take().await } => {}
            }
            next = self.ask(&mut bucket).await;
        }
    }

    /// Asks once and takes in the answer.
    async fn ask(&mut self, bucket: &mut Bucket) -> Next {
        if self.slot.is_none() {
            self.slot = self.budget.take();
        }
        let poll = match (self.index, &self.slot) {
            (Some(index), Some(_)) => Poll::after(index, WAIT),
            _ => Poll::NOW,
        };
        let mut answer = (self.fetch)(poll).await;
        if answer.as_ref().is_ok_and(is_out_of_touch) {
            bucket.take().await;
            answer = (self.fetch)(Poll::CONSISTENT).await;
        }
        match answer {
            Ok(answer) => self.take_in(answer),
            Err(error) => self.fail(error),
        }
    }

    fn take_in(&mut self, answer: Answer<T>) -> Next {
        let index = answer.index.max(1);
        if self.index.is_some_and(|before| index < before) {
            // The store was rolled back or the answer is from another one, and this very answer
            // may still be the old data: only a read without an index tells.
            self.index = None;
            self.mark_broken(None);
            return Next::AtOnce;
        }
        self.index = Some(index);
        self.backoff.reset();
        if answer.filtered_by_acls {
            self.broken = Some(Instant::now());
        }
        self.show(answer.value);
        match self.slot {
            Some(_) => Next::Pause(COALESCE),
            None => Next::Pause(POLL_EVERY),
        }
    }

    fn show(&mut self, value: T) {
        let broken = self.broken.take();
        self.seen.send_if_modified(|seen| {
            let is_new = seen.value.as_deref() != Some(&value);
            let unbroken = broken.is_none();
            let wakes = is_new || seen.error.is_some() || seen.unbroken != unbroken;
            if is_new {
                seen.value = Some(Arc::new(value));
                seen.generation += 1;
            }
            seen.at = Some(Instant::now());
            seen.unbroken = unbroken;
            seen.broken_at = broken.or(seen.broken_at);
            seen.error = None;
            wakes
        });
    }

    fn fail(&mut self, error: Error) -> Next {
        self.index = None;
        self.mark_broken(Some(Arc::new(error)));
        Next::Pause(self.backoff.next_wait())
    }

    fn mark_broken(&mut self, error: Option<Arc<Error>>) {
        let now = Instant::now();
        self.broken = Some(now);
        self.seen.send_if_modified(|seen| {
            let wakes = seen.unbroken || (error.is_some() && seen.error.is_none());
            seen.unbroken = false;
            seen.broken_at = Some(now);
            seen.error = error.or(seen.error.take());
            wakes
        });
    }
}

fn is_out_of_touch<T>(answer: &Answer<T>) -> bool {
    answer.known_leader
        && answer
            .last_contact
            .is_some_and(|ago| ago > MAX_LAST_CONTACT)
}

#[cfg(test)]
mod tests;
