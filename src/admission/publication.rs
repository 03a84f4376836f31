//! Publishing a contract in Consul: body, version, index.
//!
//! A body is written once; afterwards only signatures are added to it. A sidecar raises the version
//! pointer and never lowers it; the index entry follows the pointer. Every write is a
//! compare-and-set, so that replicas that start together do not undo each other.
//!
//! - a body that is not there yet is held against its neighbours of the same major first, and one
//!   that breaks what they promise is not written
//! - a neighbour that cannot be read is named and passed over: garbage must not block for ever

mod body;
mod index;
mod neighbours;
mod pointer;
mod shelf;
mod signatures;

pub use body::{Change, Publication, check_version, publish};
pub use index::{Team, follow};
pub use neighbours::{Conflict, Neighbours};
pub use pointer::{Raise, current, point, raise};
pub use shelf::{Book, Shelf, Unusable, list, read, told, versions};

use crate::consul::{self, ErrorKind};
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
    #[error("{key} is being changed by others all the time")]
    Contended { key: String },
    #[error(
        "{}; raise the major, or publish with `contract publish --allow-breaking`",
        neighbours::told(.0)
    )]
    Breaking(Vec<Conflict>),
    #[error("{id} {version} is not published; {}", shelf::told(.known))]
    Unpublished {
        id: String,
        version: Version,
        known: Vec<Version>,
    },
    #[error("the contract cannot be written as JSON")]
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
            | Error::Unpublished { .. }
            | Error::Unwritable(_) => true,
            Error::Consul(error) => {
                matches!(error.kind(), ErrorKind::Denied | ErrorKind::Invalid)
            }
            Error::Contended { .. } => false,
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
