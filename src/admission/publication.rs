//! Publishing a contract in Consul: body, version, index.
//!
//! A body is written once; afterwards only signatures are added to it. A sidecar raises the version
//! pointer and never lowers it; the index entry follows the pointer. Every write is a
//! compare-and-set, so that replicas that start together do not undo each other.
//!
//! - a body that is not there yet is held against its neighbours of the same major first, and one
//!   that breaks what they promise is not written
//! - two that are written at one moment are compared once more, and taken back if they break each
//!   other
//! - fallbacks that cannot stand in are told, and no reason to refuse
//! - a neighbour that cannot be read leaves open whether a contract breaks its promises, so a
//!   person has to repair it or say that it may

mod body;
mod fallbacks;
mod index;
mod neighbours;
mod pointer;
mod shelf;
mod signatures;

pub use body::{Change, Publication, check_version, publish};
pub use fallbacks::{Doubt, doubts};
pub use index::{Team, follow};
pub use neighbours::{Conflict, Neighbours};
pub use pointer::{Pointed, Raise, current, point, raise};
pub use shelf::{Book, Shelf, list, read, versions};

use crate::apart::Panicked;
use crate::consul::{self, ErrorKind};
use crate::contract::published;
use crate::contract::trust::MOST_SIGNATURES;
use crate::identity::Digest;
use semver::Version;
use std::time::Duration;

/// How often a compare-and-set is tried when others write too.
const TRIES: usize = 12;

/// Why a contract could not be published.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("publish the contract")]
    Consul(#[from] consul::Error),
    #[error(
        "{key} already holds another contract under this version (digest {published}, ours is \
         {ours}); raise the version"
    )]
    VersionTaken {
        key: String,
        published: Digest,
        ours: Digest,
    },
    #[error(
        "{key} was published with our digest {ours}, but somebody has changed its content since; \
         delete the key, and the contract is published anew"
    )]
    Altered { key: String, ours: Digest },
    #[error("{key} holds something that is no published contract; remove it")]
    Foreign { key: String },
    #[error("read what {key} holds")]
    Unread { key: String, source: Panicked },
    #[error("{key} is being changed by others all the time; publish again once they are done")]
    Contended { key: String },
    #[error(
        "{}; raise the major, or publish with `contract publish --allow-breaking`",
        neighbours::told(.0)
    )]
    Breaking(Vec<Conflict>),
    #[error(
        "it cannot be compared with its neighbours: {}; repair or delete them, or publish with \
         `contract publish --allow-breaking`",
        .0.join("; ")
    )]
    Incomparable(Vec<String>),
    #[error("{id} {version} is not published; {}", published::told(.known))]
    Unpublished {
        id: String,
        version: Version,
        known: Vec<Version>,
    },
    #[error(
        "{key} holds {found:?}, which is no version of {id}; `contract publish` replaces it, with \
         --current VERSION by a version of your choice"
    )]
    Pointer {
        key: String,
        id: String,
        found: String,
    },
    #[error("the contract cannot be written as JSON; find out why with `contract lint`")]
    Unwritable(#[from] serde_json::Error),
}

impl Error {
    /// Says whether trying again soon cannot help.
    pub fn is_permanent(&self) -> bool {
        match self {
            Error::VersionTaken { .. }
            | Error::Altered { .. }
            | Error::Foreign { .. }
            | Error::Breaking(_)
            | Error::Incomparable(_)
            | Error::Unpublished { .. }
            | Error::Unwritable(_) => true,
            Error::Consul(error) => {
                matches!(error.kind(), ErrorKind::Denied | ErrorKind::Invalid)
            }
            // Whoever registers or publishes replaces the pointer.
            Error::Pointer { .. } | Error::Unread { .. } | Error::Contended { .. } => false,
        }
    }
}

/// Signatures that are not published: those that are there take all the room.
#[derive(Debug, thiserror::Error)]
#[error(
    "{left_out} of our signatures are not published: a contract bears {MOST_SIGNATURES} at the most, \
     and none that is published is ever dropped; raise the version"
)]
pub struct Crowded {
    pub left_out: usize,
}

/// Lets others who write the same key go first, in some order.
async fn step_back() {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(2..40))).await;
}
