//! What happens on one connection, for whoever decides when it ends.

use super::held::{Held, Shelf};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How many requests a peer may let go before they are answered, and more only where they are not
/// most of its requests: opening and resetting streams costs it little and us much.
const MOST_LET_GO: usize = 500;

/// Counts the requests being answered on a connection.
#[derive(Debug)]
pub struct Traffic {
    since: Instant,
    active: AtomicUsize,
    /// Milliseconds from `since` to the end of the last request.
    last: AtomicU64,
    http2: AtomicBool,
    switched: AtomicBool,
    farewell: AtomicBool,
    begun: Notify,
    /// Requests that were answered, and those that their peer let go before.
    answered: AtomicUsize,
    let_go: AtomicUsize,
    flooded: Notify,
    /// Answers that may be let go one by one.
    shelf: Shelf,
}

impl Traffic {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            since: Instant::now(),
            active: AtomicUsize::new(0),
            last: AtomicU64::new(0),
            http2: AtomicBool::new(false),
            switched: AtomicBool::new(false),
            farewell: AtomicBool::new(false),
            begun: Notify::new(),
            answered: AtomicUsize::new(0),
            let_go: AtomicUsize::new(0),
            flooded: Notify::new(),
            shelf: Shelf::default(),
        })
    }

    /// Lets go, again and again, of answers of which the peer has taken nothing for `limit`.
    pub async fn let_go_stalled(&self, limit: Duration) {
        loop {
            tokio::time::sleep((limit / 4).max(Duration::from_millis(50))).await;
            let count = self.shelf.let_go_stalled(limit);
            if count > 0 {
                tracing::info!(
                    count,
                    "answers were let go: their peer took nothing of them"
                );
            }
        }
    }

    /// Says whether a request is being answered.
    pub fn is_busy(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// Says whether the connection speaks HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Notes that the connection has begun as HTTP/2 does.
    pub fn speaks_http2(&self) {
        self.http2.store(true, Ordering::Relaxed);
    }

    /// Says whether it carries another protocol from now on.
    pub fn has_switched(&self) -> bool {
        self.switched.load(Ordering::Relaxed)
    }

    /// Notes that the peer will hear that it may switch to another protocol.
    pub fn switches(&self) {
        self.switched.store(true, Ordering::Relaxed);
    }

    /// Says whether the peer has been told to end the connection.
    pub fn said_farewell(&self) -> bool {
        self.farewell.load(Ordering::Relaxed)
    }

    /// Notes that the peer is being told.
    pub fn says_farewell(&self) {
        self.farewell.store(true, Ordering::Relaxed);
    }

    /// Completes with the next request.
    pub async fn request(&self) {
        self.begun.notified().await;
    }

    /// Completes once the peer has let go too many of its requests unanswered.
    pub async fn flooded(&self) {
        self.flooded.notified().await;
    }

    fn count_let_go(&self) {
        let let_go = self.let_go.fetch_add(1, Ordering::Relaxed) + 1;
        if let_go > MOST_LET_GO && let_go > self.answered.load(Ordering::Relaxed) {
            self.flooded.notify_one();
        }
    }

    /// Completes once no request has been answered for `limit`.
    pub async fn idle(&self, limit: Duration) {
        loop {
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            let until = match self.is_busy() {
                true => Instant::now() + limit,
                false => self.since + last + limit,
            };
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// A request being answered on a connection, until dropped.
#[derive(Debug)]
pub struct Busy {
    traffic: Arc<Traffic>,
    is_answered: bool,
}

impl Busy {
    pub fn new(traffic: Arc<Traffic>) -> Self {
        traffic.active.fetch_add(1, Ordering::Relaxed);
        traffic.begun.notify_one();
        Self {
            traffic,
            is_answered: false,
        }
    }

    /// Holds the connection busy until an answer's body has ended or was let go.
    pub fn until_end_of<B: Send + fmt::Debug + 'static>(mut self, body: B) -> Held<B> {
        self.is_answered = true;
        let traffic = self.traffic.clone();
        traffic.answered.fetch_add(1, Ordering::Relaxed);
        match traffic.is_http2() {
            true => Held::shared(body, self, &traffic.shelf),
            false => Held::own(body, self),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let last = self.traffic.since.elapsed().as_millis() as u64;
        self.traffic.last.store(last, Ordering::Relaxed);
        self.traffic.active.fetch_sub(1, Ordering::Relaxed);
        if !self.is_answered {
            self.traffic.count_let_go();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn most_requests_let_go_are_a_flood() {
        let traffic = Traffic::new();
        let is_flood = async || {
            let flooded = tokio::time::timeout(Duration::from_secs(1), traffic.flooded());
            flooded.await.is_ok()
        };
        for _ in 0..MOST_LET_GO {
            drop(Busy::new(traffic.clone()));
        }
        assert!(!is_flood().await);
        for _ in 0..=MOST_LET_GO {
            drop(Busy::new(traffic.clone()).until_end_of(()));
        }
        drop(Busy::new(traffic.clone()));
        assert!(!is_flood().await, "most were answered");
        drop(Busy::new(traffic.clone()));
        assert!(is_flood().await);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_counts_from_the_end_of_the_last_request() {
        let traffic = Traffic::new();
        let limit = Duration::from_secs(10);
        let busy = Busy::new(traffic.clone());
        let began = Instant::now();
        let idle = tokio::time::timeout(Duration::from_secs(25), traffic.idle(limit));
        assert!(idle.await.is_err(), "a busy connection is not idle");
        drop(busy);
        traffic.idle(limit).await;
        assert_eq!(began.elapsed().as_secs(), 35);
    }
}
