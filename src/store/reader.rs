//! The second connection: queries, and the checkpoints that must not run on the writer.
//!
//! Each query is its own read transaction, so none keeps the log from being reset.

use rusqlite::Connection;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The longest time that committed pages stay in the log alone.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(1);

pub(super) type Query = Box<dyn FnOnce(&Connection) + Send>;

pub(super) enum Request {
    Query(Query),
    Checkpoint,
    Stop,
}

/// Runs until it is told to stop or nobody can ask any more.
pub(super) fn run(connection: &Connection, requests: &Receiver<Request>, dirty: &Weak<AtomicBool>) {
    loop {
        match requests.recv_timeout(CHECKPOINT_EVERY) {
            Ok(Request::Query(query)) => query(connection),
            Ok(Request::Checkpoint) => checkpoint(connection),
            Ok(Request::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let dirty = dirty.upgrade();
                if dirty.is_some_and(|dirty: Arc<AtomicBool>| dirty.swap(false, Ordering::Relaxed))
                {
                    checkpoint(connection);
                }
            }
        }
    }
}

fn checkpoint(connection: &Connection) {
    let result = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    if let Err(error) = result {
        tracing::warn!(%error, "the database log could not be checkpointed, will be tried again");
    }
}
