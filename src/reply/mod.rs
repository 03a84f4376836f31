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
//!   are too many; a wall clock that is set while the process runs moves none of this
//! - a slow disk is not waited for long: what is under way here is known from memory, what has ended
//!   is read past the writer
//! - elsewhere: which calls have a key (`proxy`), the file (`store`)

mod live;
mod table;

use crate::identity::Digest;
use crate::store::{Bounds, Room, Store, StoreError};
use crate::task::{Failure, Id, State, Timestamp};
use bytes::Bytes;
use live::Live;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::Instant;

pub use table::MIGRATION;

/// How long an answer can be had again.
pub const KEPT: Duration = Duration::from_secs(3_600);
/// How long a doubt stands: whoever asks again later starts anew.
pub const DOUBTED: Duration = Duration::from_secs(24 * 3_600);

/// The record of one sidecar; cheap to clone.
#[derive(Clone, Debug)]
pub struct Replies {
    store: Store,
    /// Random per start: a row of another start was left by a process that is no more.
    boot: Arc<str>,
    bounds: Bounds,
    begun: Arc<AtomicU32>,
    room: Arc<Room>,
    live: Arc<Live>,
    /// One moment by both clocks.
    started: (Timestamp, Instant),
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
    /// Nothing, and the row is not written: it may be later, or it cannot be.
    Unrecorded(Ticket, Unrecorded),
    Answered(Answer),
    /// Somebody is at it in this very process.
    InFlight,
    /// It was begun, was left in this state, and nobody can say what became of it.
    InDoubt(State),
    /// The key is known with another payload, which came to this state.
    OtherPayload(State),
}

/// Why a row is not written.
#[derive(Debug, thiserror::Error)]
pub enum Unrecorded {
    /// It is on its way. Nothing else can be known of the request.
    #[error("the row of a call is not written yet")]
    Late,
    /// No row of an earlier request is there; but it, too, may have failed.
    #[error("write the row of a call")]
    Failed(#[source] StoreError),
    /// Nor could it be read whether there is one already.
    #[error("look a call up")]
    Unread(#[source] StoreError),
    #[error("a call was not looked up in time")]
    ReadLate,
}

/// The right to carry a request out; let go of without a word it leaves a doubt.
#[derive(Debug)]
pub struct Ticket {
    replies: Replies,
    /// Names the row that we began, so that no other one is ever touched.
    run: Option<Id>,
}

impl Replies {
    pub fn new(store: Store, boot: &str, bounds: Bounds) -> Self {
        Self {
            store,
            boot: Arc::from(boot),
            bounds,
            begun: Arc::default(),
            room: Arc::default(),
            live: Arc::default(),
            started: (Timestamp::now(), Instant::now()),
        }
    }

    /// Looks a request up, and begins it if nothing is known; durable on return, unless that is
    /// not so within `wait`. Then memory and the rows that are written say what is known.
    pub async fn begin(&self, name: Name, payload: Digest, wait: Duration) -> Found {
        let begun = table::Begun {
            name,
            payload,
            boot: self.boot.clone(),
            run: Id::mint(),
        };
        self.live.enter(&begun.run, begun.name.clone(), payload);
        // A ticket exists before the row does: if the asker goes away while the row is being
        // written, the row is taken back, since nothing was carried out.
        let mut unused = Unused(Some(Ticket {
            replies: self.clone(),
            run: Some(begun.run.clone()),
        }));
        let written = tokio::time::timeout(wait, self.write(begun.clone())).await;
        let unrecorded = match written {
            Ok(Ok(row)) => return unused.turn(row),
            Ok(Err(error)) => Unrecorded::Failed(error),
            Err(_late) => Unrecorded::Late,
        };
        match self.look_up(begun, wait).await {
            // The row that is still to come is taken back.
            Ok(Some(known)) => known.into_found(),
            Ok(None) => unused.unrecorded(unrecorded),
            Err(unread) => unused.unrecorded(unread),
        }
    }

    fn write(
        &self,
        begun: table::Begun,
    ) -> impl Future<Output = Result<table::Row, StoreError>> + Send + use<> {
        let now = self.now();
        let before = self.begun.fetch_add(1, Ordering::Relaxed);
        let prune = before.is_multiple_of(table::PRUNE_EVERY);
        let (bounds, room, live) = (self.bounds, self.room.clone(), self.live.clone());
        let has_room = room.take(1, 0);
        self.store.append(move |connection| {
            if prune {
                table::prune(connection, &begun.boot, &live, now)?;
            }
            if !has_room {
                room.counted(table::make_room(connection, bounds)?);
            }
            table::begin(connection, &begun, &live, now)
        })
    }

    /// Says what is known of a request without its row, past the writer.
    async fn look_up(
        &self,
        begun: table::Begun,
        wait: Duration,
    ) -> Result<Option<table::Row>, Unrecorded> {
        // Memory first: a run leaves it only after its end is in the file.
        if let Some(payload) = self.live.earlier(&begun.run) {
            return Ok(Some(match payload == begun.payload {
                true => table::Row::InFlight,
                false => table::Row::OtherPayload(State::Executing),
            }));
        }
        let (live, now) = (self.live.clone(), self.now());
        let read = self
            .store
            .read(move |connection| table::known(connection, &begun, &live, now));
        match tokio::time::timeout(wait, read).await {
            Ok(Ok(known)) => Ok(known),
            Ok(Err(error)) => Err(Unrecorded::Unread(error)),
            Err(_late) => Err(Unrecorded::ReadLate),
        }
    }

    /// Tells the time by a clock that nobody sets: rows must not end because the wall clock jumps.
    fn now(&self) -> Timestamp {
        let (then, instant) = self.started;
        let passed = u64::try_from(instant.elapsed().as_millis()).unwrap_or(u64::MAX);
        Timestamp::from_millis(then.millis().saturating_add(passed))
    }

    fn settle(&self, run: Id, end: table::End) {
        let now = self.now();
        let size = i64::try_from(table::size(&end)).unwrap_or(i64::MAX);
        self.room.take(0, size);
        let (live, left, refused) = (self.live.clone(), run.clone(), run.clone());
        let queued = self.store.offer(
            move |connection| table::end(connection, &run, end, now),
            move |settled| {
                live.leave(&left);
                if let Err(error) = settled {
                    not_kept(&error);
                }
            },
        );
        if let Err(error) = queued {
            self.live.leave(&refused);
            not_kept(&error);
        }
    }
}

/// Whoever comes with the same key hears of a doubt.
fn not_kept(error: &StoreError) {
    tracing::warn!(%error, "an answer could not be kept for repeated requests");
}

impl table::Row {
    /// Says what a row means that is somebody else's.
    fn into_found(self) -> Found {
        match self {
            table::Row::Answered(answer) => Found::Answered(answer),
            table::Row::New | table::Row::InFlight => Found::InFlight,
            table::Row::InDoubt(state) => Found::InDoubt(state),
            table::Row::OtherPayload(state) => Found::OtherPayload(state),
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
    /// Hands the ticket out if the row is ours; else it is worth nothing.
    fn turn(&mut self, row: table::Row) -> Found {
        let Some(mut ticket) = self.0.take() else {
            return row.into_found();
        };
        if let table::Row::New = row {
            return Found::New(ticket);
        }
        if let Some(run) = ticket.run.take() {
            ticket.replies.live.leave(&run);
        }
        row.into_found()
    }

    /// Hands the ticket out although there is no row yet.
    fn unrecorded(&mut self, why: Unrecorded) -> Found {
        match self.0.take() {
            Some(ticket) => Found::Unrecorded(ticket, why),
            None => Found::InFlight,
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
