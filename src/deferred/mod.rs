//! Calls whose reply is fetched later, by the call's id.
//!
//! A call is open from its acknowledgement on; its reply can be had for `KEPT`, also from a
//! process that was started meanwhile. Whatever a former process left open is in doubt.
//!
//! - the row of a call is committed before its caller hears of the acknowledgement, and the reply
//!   before anybody hears that there is one; a disk that takes longer than `WAIT` is not waited for
//! - a call is known to its side and scope alone: others hear that there is no such call
//! - while it is under way, a call's id stands for one idempotency key (`claim`)
//! - at most `MOST_OPEN` calls are open; of replies the oldest go when there are too many
//! - elsewhere: who asks for a late reply and how it is told (`proxy`), the file (`store`)

mod claim;
mod open;
mod table;

pub use open::{Open, Stage};
pub use table::MIGRATION;

use crate::store::{Bounds, Room, Store, StoreError, Urgency};
use crate::task::{Id, State, Timestamp};
use bytes::Bytes;
use claim::{Claim, Claims};
use http::{HeaderMap, HeaderValue, StatusCode};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// How long a reply can be fetched.
pub const KEPT: Duration = Duration::from_secs(3_600);
/// How many calls may be open at once on one side.
pub const MOST_OPEN: usize = 10_000;
/// How long a commit is waited for; after that the call goes on, which is counted.
const WAIT: Duration = Duration::from_millis(50);
/// Every so many calls, what has had its time goes.
const PRUNE_EVERY: u32 = 64;

/// Which listener a call came in by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Caller,
    Callee,
}

impl Side {
    fn as_str(self) -> &'static str {
        match self {
            Side::Caller => "caller",
            Side::Callee => "callee",
        }
    }
}

/// What a call is asked for by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name {
    /// Who may ask for it.
    pub scope: Arc<str>,
    pub call_id: Id,
}

/// A reply as it would have been given at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// What is known of a call.
#[derive(Debug)]
pub enum Found {
    Open(Arc<Open>),
    Ended(Arc<Reply>),
    /// It was left in this state, and nobody will say what became of it.
    InDoubt {
        task_id: Id,
        state: State,
    },
    /// There is none of that name, or its time is up.
    Unknown,
}

/// Hears that a commit took too long or failed.
pub type Degraded = Arc<dyn Fn() + Send + Sync>;

/// The late calls of one listener; cheap to clone.
#[derive(Clone)]
pub struct Deferred {
    side: Side,
    store: Store,
    /// Random per start: a row of another start was left by a process that is no more.
    boot: Arc<str>,
    /// Of both sides together.
    bounds: Bounds,
    degraded: Degraded,
    calls: Calls,
    seats: Arc<Semaphore>,
    claims: Claims,
    begun: Arc<AtomicU32>,
    room: Arc<Room>,
}

/// The calls that this process has open, or whose reply is on its way into the file.
type Calls = Arc<Mutex<HashMap<Name, Arc<Open>>>>;

/// A seat among the open calls.
#[derive(Debug)]
pub struct Seat {
    _permit: OwnedSemaphorePermit,
    claim: Option<Claim>,
}

/// An acknowledged call; let go of without a reply it leaves a doubt.
pub struct Entry {
    deferred: Deferred,
    name: Name,
    open: Arc<Open>,
    row: table::Row,
    seat: Option<Seat>,
}

impl Deferred {
    pub fn new(side: Side, store: Store, boot: &str, bounds: Bounds, degraded: Degraded) -> Self {
        Self {
            side,
            store,
            boot: Arc::from(boot),
            bounds,
            degraded,
            calls: Arc::default(),
            seats: Arc::new(Semaphore::new(MOST_OPEN)),
            claims: Claims::default(),
            begun: Arc::default(),
            room: Arc::default(),
        }
    }

    /// Takes a seat for a call, unless too many are open.
    pub fn seat(&self) -> Option<Seat> {
        let permit = self.seats.clone().try_acquire_owned().ok()?;
        Some(Seat {
            _permit: permit,
            claim: None,
        })
    }

    /// Takes a call's id for who sits here and has this key; says no where another call has it.
    pub fn claim(&self, seat: &mut Seat, name: Name, key: HeaderValue) -> bool {
        seat.claim = self.claims.take(name, key);
        seat.claim.is_some()
    }

    /// Enters an acknowledged call under `name`, in the place of an earlier attempt at it.
    pub async fn begin(&self, name: Name, open: Arc<Open>, seat: Seat) -> Entry {
        let row = table::Row {
            side: self.side.as_str(),
            name: name.clone(),
            run: Id::mint(),
            task_id: open.task_id.clone(),
            boot: self.boot.clone(),
        };
        self.lock().insert(name.clone(), open.clone());
        let entry = Entry {
            deferred: self.clone(),
            name,
            open,
            row: row.clone(),
            seat: Some(seat),
        };
        let upkeep = self.upkeep(1, 0);
        let now = Timestamp::now();
        let begun = self.store.append(move |connection| {
            upkeep.run(connection, now)?;
            table::begin(connection, &row, now)
        });
        match tokio::time::timeout(WAIT, begun).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.unrecorded(&error),
            Err(late) => self.unrecorded(&late),
        }
        entry
    }

    /// Looks a call up.
    pub async fn find(&self, name: &Name) -> Result<Found, StoreError> {
        if let Some(open) = self.lock().get(name) {
            return Ok(match open.stage() {
                Stage::Ended(reply) => Found::Ended(reply),
                _ => Found::Open(open.clone()),
            });
        }
        let (side, name, now) = (self.side.as_str(), name.clone(), Timestamp::now());
        let known = self.store.read(move |c| table::find(c, side, &name, now));
        Ok(match known.await? {
            None => Found::Unknown,
            Some(table::Known::Ended(reply)) => Found::Ended(Arc::new(reply)),
            Some(table::Known::Left { task_id, state }) => Found::InDoubt { task_id, state },
        })
    }

    /// Takes the room of what is about to be written.
    fn upkeep(&self, rows: i64, bytes: usize) -> Upkeep {
        let before = self.begun.fetch_add(1, Ordering::Relaxed);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let room = &self.room;
        Upkeep {
            is_due: before.is_multiple_of(PRUNE_EVERY),
            has_room: room.take(rows, bytes),
            coming: (rows, bytes),
            side: self.side,
            calls: self.calls.clone(),
            boot: self.boot.clone(),
            bounds: self.bounds,
            room: room.clone(),
        }
    }

    fn unrecorded(&self, error: &dyn std::error::Error) {
        (self.degraded)();
        tracing::warn!(%error, "a call that is answered later goes on unrecorded");
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Name, Arc<Open>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Keeps the reply, then lets those know that wait for it.
    pub async fn answered(mut self, reply: Reply) {
        let Some(seat) = self.seat.take() else {
            return;
        };
        let deferred = &self.deferred;
        let reply = Arc::new(reply);
        let upkeep = deferred.upkeep(0, table::size(&reply));
        let (row, kept, now) = (self.row.clone(), reply.clone(), Timestamp::now());
        let (calls, name, open) = (deferred.calls.clone(), self.name.clone(), self.open.clone());
        let (committed, heard) = oneshot::channel();
        let queued = deferred.store.submit(
            Urgency::Now,
            move |connection| {
                upkeep.run(connection, now)?;
                table::answered(connection, &row, &kept, now)
            },
            move |written| {
                // Until here the reply is in memory, and counts as an open call.
                forget(&calls, &name, &open);
                drop(seat);
                committed.send(written).ok();
            },
        );
        let written = match queued {
            Ok(()) => tokio::time::timeout(WAIT, heard).await,
            Err(refused) => {
                // Nobody will settle it; those who wait now hear the reply all the same.
                forget(&deferred.calls, &self.name, &self.open);
                Ok(Ok(Err(refused)))
            }
        };
        match written {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => deferred.unrecorded(&error),
            Ok(Err(closed)) => deferred.unrecorded(&closed),
            Err(late) => deferred.unrecorded(&late),
        }
        self.open.end(Stage::Ended(reply));
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Some(seat) = self.seat.take() else {
            return;
        };
        forget(&self.deferred.calls, &self.name, &self.open);
        drop(seat);
        let row = self.row.clone();
        let left = self.deferred.store.offer(
            move |connection| table::left(connection, &row, State::FailedExecution),
            |_written| {},
        );
        if let Err(error) = left {
            tracing::debug!(%error, "the end of a call that is answered later is not recorded");
        }
        self.open.end(Stage::Lost);
    }
}

/// Takes a call off the open ones, unless another attempt at it has come in its place.
fn forget(calls: &Calls, name: &Name, open: &Arc<Open>) {
    let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    if calls
        .get(name)
        .is_some_and(|known| Arc::ptr_eq(known, open))
    {
        calls.remove(name);
    }
}

/// What is done for the table before something is written.
struct Upkeep {
    /// What has had its time goes.
    is_due: bool,
    has_room: bool,
    coming: (i64, i64),
    side: Side,
    calls: Calls,
    boot: Arc<str>,
    bounds: Bounds,
    room: Arc<Room>,
}

impl Upkeep {
    fn run(&self, connection: &rusqlite::Connection, now: Timestamp) -> rusqlite::Result<()> {
        if self.is_due {
            table::prune(connection, now)?;
        }
        if !self.has_room {
            let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let here = table::Here {
                boot: &self.boot,
                side: self.side.as_str(),
                is_open: &|name| calls.contains_key(name),
            };
            let left = table::make_room(connection, &here, self.bounds, self.coming)?;
            self.room.counted(left);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
