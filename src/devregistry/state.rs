//! What all handlers share: the data behind one lock, and the news that it changed.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::catalog::Catalog;
use super::keys::Keys;

/// Most polls held back at a time; Consul bounds connections instead, to 200 a client.
const MAX_POLLS: usize = 1024;

pub(super) struct Shared {
    data: Mutex<Data>,
    /// Carries the index after each write.
    changed: watch::Sender<u64>,
    /// Room for polls to be held in.
    pub(super) polls: Semaphore,
    pub(super) stopping: CancellationToken,
    pub(super) address: SocketAddr,
}

/// Both halves count with one index, as in Consul's log.
pub(super) struct Data {
    pub(super) index: u64,
    pub(super) catalog: Catalog,
    pub(super) keys: Keys,
}

impl Shared {
    pub(super) fn new(address: SocketAddr) -> Shared {
        let index = 1;
        Shared {
            data: Mutex::new(Data {
                index,
                catalog: Catalog::new(address, index),
                keys: Keys::default(),
            }),
            changed: watch::channel(index).0,
            polls: Semaphore::new(MAX_POLLS),
            stopping: CancellationToken::new(),
            address,
        }
    }

    pub(super) fn read<R>(&self, look: impl FnOnce(&Data) -> R) -> R {
        look(&self.lock())
    }

    /// Changes the data and wakes whoever waits, if the index moved.
    pub(super) fn write<R>(&self, change: impl FnOnce(&mut Data) -> R) -> R {
        let mut data = self.lock();
        let before = data.index;
        let result = change(&mut data);
        let after = data.index;
        drop(data);
        if after != before {
            self.changed.send_replace(after);
        }
        result
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Data> {
        // A panic in between leaves at worst one half-made change of a throw-away registry.
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A refusal in Consul's words: a status and plain text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) StatusCode, pub(super) String);

impl Refusal {
    pub(super) fn bad(text: impl Into<String>) -> Refusal {
        Refusal(StatusCode::BAD_REQUEST, text.into())
    }

    pub(super) fn failed(text: impl Into<String>) -> Refusal {
        Refusal(StatusCode::INTERNAL_SERVER_ERROR, text.into())
    }

    /// One of our own bounds, which Consul has not.
    pub(super) fn full(what: &str, most: usize) -> Refusal {
        Refusal::failed(format!("dev-registry is full: at most {most} {what}"))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}

/// An answer of the catalogue or the key/value store, with the headers that reads carry.
pub(super) fn indexed(index: u64, body: impl IntoResponse) -> Response {
    let mut headers = HeaderMap::new();
    // An index below 1 would make a client's next poll return at once.
    headers.insert("x-consul-index", index.max(1).into());
    headers.insert(
        "x-consul-knownleader",
        header::HeaderValue::from_static("true"),
    );
    headers.insert("x-consul-lastcontact", 0.into());
    (headers, body).into_response()
}
