//! The bounded queue in front of the writer thread.
//!
//! - a push never waits: it succeeds or is refused
//! - an urgent item is taken at once with everything before it; others wait for company
//! - the writer is woken once per group, not once per item: a wake-up costs more than a row

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Items that nobody waits for are taken in groups of at least this many, or after the linger.
const COMPANY: usize = 256;

/// How long the writer sleeps before it tidies up.
const IDLE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    bell: Condvar,
    capacity: usize,
}

#[derive(Debug)]
struct State<T> {
    items: Vec<T>,
    /// Whether somebody waits for one of the items.
    urgent: bool,
    /// Whether the writer sleeps, so that a bell has an effect.
    asleep: bool,
    end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Take what is queued, then stop.
    Finish,
    /// Stop now.
    Abandon,
}

/// Why an item was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Closed,
}

/// What the writer has to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Work,
    Idle,
    Finish,
    Abandon,
}

impl<T> Queue<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            state: Mutex::new(State {
                items: Vec::new(),
                urgent: false,
                asleep: false,
                end: None,
            }),
            bell: Condvar::new(),
            capacity,
        }
    }

    pub(super) fn push(&self, item: T, urgent: bool) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.end.is_some() {
            return Err(Refused::Closed);
        }
        if state.items.len() >= self.capacity {
            return Err(Refused::Full);
        }
        let first = state.items.is_empty();
        state.items.push(item);
        state.urgent |= urgent;
        let ring = state.asleep && (first || urgent || state.items.len() == COMPANY);
        drop(state);
        if ring {
            self.bell.notify_one();
        }
        Ok(())
    }

    /// Waits for work and moves all of it into `group`, which must be empty.
    pub(super) fn take(&self, group: &mut Vec<T>, linger: Duration) -> Next {
        let mut state = self.lock();
        let mut lingers_until = None;
        loop {
            if state.end == Some(End::Abandon) {
                return Next::Abandon;
            }
            let wait = if state.items.is_empty() {
                if state.end.is_some() {
                    return Next::Finish;
                }
                IDLE
            } else {
                let now = Instant::now();
                let until = *lingers_until.get_or_insert(now + linger);
                let crowded = state.items.len() >= COMPANY;
                if state.urgent || crowded || state.end.is_some() || now >= until {
                    std::mem::swap(&mut state.items, group);
                    state.urgent = false;
                    return Next::Work;
                }
                until - now
            };
            state.asleep = true;
            let waited = self.bell.wait_timeout(state, wait);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.asleep = false;
            if timeout.timed_out() && state.items.is_empty() && state.end.is_none() {
                return Next::Idle;
            }
        }
    }

    /// Takes nothing new; what is queued is still handed out.
    pub(super) fn finish(&self) {
        self.end(End::Finish);
    }

    /// Takes nothing new and drops what is queued.
    pub(super) fn abandon(&self) {
        self.end(End::Abandon);
        let dropped = std::mem::take(&mut self.lock().items);
        // Outside the lock: dropping an item may wake whoever waits for it.
        drop(dropped);
    }

    fn end(&self, end: End) {
        let mut state = self.lock();
        if state.end != Some(End::Abandon) {
            state.end = Some(end);
        }
        drop(state);
        self.bell.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code that could panic runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_urgent_item_takes_the_others_along() {
        let queue = Queue::new(8);
        queue.push(1, false).unwrap();
        queue.push(2, true).unwrap();
        let mut group = Vec::new();
        assert_eq!(queue.take(&mut group, LONG), Next::Work);
        assert_eq!(group, [1, 2]);
    }

    #[test]
    fn others_wait_for_company_at_most_for_the_linger() {
        let queue = Queue::new(1024);
        let mut group = Vec::new();
        queue.push(0, false).unwrap();
        let linger = Duration::from_millis(5);
        let started = Instant::now();
        assert_eq!(queue.take(&mut group, linger), Next::Work);
        assert!(started.elapsed() >= linger);

        group.clear();
        for item in 0..COMPANY {
            queue.push(item, false).unwrap();
        }
        assert_eq!(queue.take(&mut group, LONG), Next::Work);
        assert_eq!(group.len(), COMPANY);
    }

    #[test]
    fn an_urgent_push_wakes_a_lingering_writer() {
        let queue = std::sync::Arc::new(Queue::new(8));
        queue.push(1, false).unwrap();
        let writer = {
            let queue = queue.clone();
            std::thread::spawn(move || {
                let mut group = Vec::new();
                assert_eq!(queue.take(&mut group, LONG), Next::Work);
                group
            })
        };
        queue.push(2, true).unwrap();
        assert_eq!(writer.join().unwrap(), [1, 2]);
    }

    #[test]
    fn full_and_closed_refuse() {
        let queue = Queue::new(1);
        queue.push(1, false).unwrap();
        assert_eq!(queue.push(2, true), Err(Refused::Full));
        queue.finish();
        assert_eq!(queue.push(3, true), Err(Refused::Closed));
        let mut group = Vec::new();
        assert_eq!(queue.take(&mut group, LONG), Next::Work);
        assert_eq!(group, [1]);
        assert_eq!(queue.take(&mut Vec::new(), LONG), Next::Finish);
        queue.abandon();
        assert_eq!(queue.take(&mut Vec::new(), LONG), Next::Abandon);
    }
}
