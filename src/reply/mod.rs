//! What was answered to whom, so that work that must not be done twice is not.
//!
//! A call under a key begins with a row that says so, committed before the application is asked.
//! Whoever comes with the same key gets the same answer, or hears that it is not there yet, or
//! that nobody can say what became of it.
//!
//! - a key is known per calling application and agent; another payload under it is refused
//! - an answer that could not be kept, and a process that died on the way, leave doubt, never a
//!   second run
//! - rows end: answers after `KEPT`, doubts after `DOUBTED`, and the oldest of them when there
//!   are too many
//! - elsewhere: which calls have a key (`proxy`), the file (`store`)

mod table;

use crate::identity::Digest;
use crate::store::{Store, StoreError};
use crate::task::{Failure, Id, State, Timestamp};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

pub use table::MIGRATION;

/// How long an answer can be had again.
pub const KEPT: Duration = Duration::from_secs(3_600);
/// How long a doubt stands: whoever asks again later starts anew.
pub const DOUBTED: Duration = Duration::from_secs(24 * 3_600);

/// How much is kept at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    pub max_rows: u64,
    pub max_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_rows: 100_000,
            max_bytes: 256 << 20,
        }
    }
}

/// The record of one sidecar; cheap to clone.
#[derive(Clone, Debug)]
pub struct Replies {
    store: Store,
    /// Random per start: a row of another start was left by a process that is no more.
    boot: Arc<str>,
    config: Config,
    begun: Arc<AtomicU32>,
    room: Arc<Room>,
}

/// What may come before rows and bytes are counted again; at first nothing, since nobody has
/// counted yet.
#[derive(Debug, Default)]
struct Room {
    rows: AtomicI64,
    bytes: AtomicI64,
}

impl Room {
    /// Takes a row's place; false if it is time to count.
    fn takes_row(&self) -> bool {
        self.rows.fetch_sub(1, Ordering::Relaxed) > 0 && self.bytes.load(Ordering::Relaxed) > 0
    }

    fn takes(&self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn counted(&self, (rows, bytes): (i64, i64)) {
        self.rows.store(rows, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

/// What makes two requests the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The calling application.
    pub scope: Arc<str>,
    pub agent: Arc<str>,
    pub key: Arc<str>,
}

/// An answer as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// Names and values, in order.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    /// The end that it was.
    pub state: State,
    pub failure: Option<Failure>,
}

/// What is known of a request.
#[derive(Debug)]
pub enum Found {
    /// Nothing: it is ours to carry out, and the ticket says how that ended.
    New(Ticket),
    Answered(Answer),
    /// Somebody is at it in this very process.
    InFlight,
    /// It was begun, was left in this state, and nobody can say what became of it.
    InDoubt(State),
    /// The key is known with another payload, which came to this state.
    OtherPayload(State),
}

/// The right to carry a request out; let go of without a word it leaves a doubt.
#[derive(Debug)]
pub struct Ticket {
    replies: Replies,
    /// Names the row that we began, so that no other one is ever touched.
    run: Option<Id>,
}

impl Replies {
    pub fn new(store: Store, boot: &str, config: Config) -> Self {
        Self {
            store,
            boot: Arc::from(boot),
            config,
            begun: Arc::default(),
            room: Arc::default(),
        }
    }

    /// Looks a request up, and begins it if nothing is known; durable on return.
    pub async fn begin(&self, name: Name, payload: Digest) -> Result<Found, StoreError> {
        let run = Id::mint();
        let begun = table::Begun {
            name,
            payload,
            boot: self.boot.clone(),
            run: run.clone(),
        };
        let now = Timestamp::now();
        let before = self.begun.fetch_add(1, Ordering::Relaxed);
        let prune = before.is_multiple_of(table::PRUNE_EVERY);
        let (config, boot, room) = (self.config, self.boot.clone(), self.room.clone());
        let has_room = room.takes_row();
        // A ticket exists before the row does: if the asker goes away while the row is being
        // written, the row is taken back, since nothing was carried out.
        let mut unused = Unused(Some(Ticket {
            replies: self.clone(),
            run: Some(run),
        }));
        let row = self.store.append(move |connection| {
            if prune {
                table::prune(connection, &boot, now)?;
            }
            if !has_room {
                room.counted(table::make_room(connection, config)?);
            }
            table::begin(connection, &begun, now)
        });
        Ok(match row.await? {
            table::Row::New => match unused.0.take() {
                Some(ticket) => Found::New(ticket),
                None => Found::InFlight,
            },
            known => {
                unused.forget();
                match known {
                    table::Row::Answered(answer) => Found::Answered(answer),
                    table::Row::New | table::Row::InFlight => Found::InFlight,
                    table::Row::InDoubt(state) => Found::InDoubt(state),
                    table::Row::OtherPayload(state) => Found::OtherPayload(state),
                }
            }
        })
    }

    fn settle(&self, run: Id, end: table::End) {
        let now = Timestamp::now();
        self.room.takes(table::size(&end));
        let queued = self.store.offer(
            move |connection| table::end(connection, &run, end, now),
            |settled| {
                if let Err(error) = settled {
                    tracing::warn!(%error, "an answer could not be kept for repeated requests");
                }
            },
        );
        if let Err(error) = queued {
            tracing::warn!(%error, "an answer could not be kept for repeated requests");
        }
    }
}

impl Ticket {
    /// Keeps the answer; queued, and seen by every `begin` from now on.
    pub fn answered(mut self, answer: Answer) {
        self.settle(table::End::Answered(answer));
    }

    /// Takes the beginning back: nothing reached the application.
    pub fn undone(mut self) {
        self.settle(table::End::Undone);
    }

    /// Leaves a doubt: the application was asked, and what it did is not known.
    pub fn doubted(mut self, state: State) {
        self.settle(table::End::Doubt(state));
    }

    fn settle(&mut self, end: table::End) {
        if let Some(run) = self.run.take() {
            self.replies.settle(run, end);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.settle(table::End::Doubt(State::Executing));
    }
}

/// A ticket whose row may not be there yet.
struct Unused(Option<Ticket>);

impl Unused {
    /// The row is somebody else's.
    fn forget(&mut self) {
        if let Some(mut ticket) = self.0.take() {
            ticket.run = None;
        }
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        if let Some(ticket) = self.0.take() {
            ticket.undone();
        }
    }
}

#[cfg(test)]
mod tests;
