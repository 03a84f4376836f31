//! The first key seen of each family, in memory and in `state.db`.

use crate::identity::key::PublicKey;
use crate::store::{Store, StoreError};
use crate::task::Timestamp;
use rusqlite::params;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::OnceCell;

/// This room's step of the state file's schema.
pub const MIGRATION: &str = "
    CREATE TABLE trust_pins (
        family TEXT PRIMARY KEY,
        kid TEXT NOT NULL,
        jwk TEXT NOT NULL,
        pinned_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;";

/// A stalled disk must not stall calls for longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Families that have a first key. None makes room for another: a family that has lost its key
/// would take anybody's next.
pub(super) const MOST_PINNED: usize = 4096;
/// Families whose missing signature was told; beyond that it is told no more.
const MOST_TOLD: usize = 4096;

/// A key that counts for a family.
#[derive(Debug)]
pub struct Pin {
    /// As the signature called it.
    pub kid: String,
    pub key: PublicKey,
    /// Set once it was tried to write it down.
    kept: OnceCell<()>,
}

/// All first keys. Whoever comes first for a family decides in memory; the disk is waited for
/// without the lock, so that a stalled one holds up no other family.
#[derive(Debug, Default)]
pub struct Pins {
    state: Option<Store>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    pins: HashMap<String, Arc<Pin>>,
    unsigned: HashSet<String>,
    is_full_told: bool,
}

/// Why a key was not kept.
#[derive(Debug, thiserror::Error)]
enum Unkept {
    #[error(transparent)]
    Store(StoreError),
    #[error("state.db did not answer within {PATIENCE:?}")]
    Silent,
}

impl Pin {
    pub fn new(kid: String, key: PublicKey) -> Self {
        let kept = OnceCell::new();
        Self { kid, key, kept }
    }

    /// One that was read back.
    fn kept(kid: String, key: PublicKey) -> Self {
        let kept = OnceCell::new_with(Some(()));
        Self { kid, key, kept }
    }
}

impl Pins {
    /// Reads what is kept.
    pub async fn load(state: Store) -> Result<Self, StoreError> {
        let rows: Vec<(String, String, String)> = state
            .read(|connection| {
                let mut query = connection.prepare("SELECT family, kid, jwk FROM trust_pins")?;
                let rows =
                    query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
                rows.collect()
            })
            .await?;
        let mut seen = Seen::default();
        for (family, kid, jwk) in rows {
            match PublicKey::from_file(jwk.as_bytes()) {
                Ok(key) => drop(seen.pins.insert(family, Arc::new(Pin::kept(kid, key)))),
                Err(error) => tracing::error!(
                    family,
                    kid,
                    %error,
                    "a remembered key cannot be read; the next key of this family will count"
                ),
            }
        }
        Ok(Self {
            state: Some(state),
            seen: Mutex::new(seen),
        })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the key that counts for a family.
    pub fn of(&self, family: &str) -> Option<Arc<Pin>> {
        self.seen().pins.get(family).cloned()
    }

    /// Says whether nobody was told yet that contracts of the family bear no signature.
    pub fn is_first_unsigned(&self, family: &str) -> bool {
        let unsigned = &mut self.seen().unsigned;
        unsigned.len() < MOST_TOLD && unsigned.insert(family.to_owned())
    }

    /// Lets a key count for a family from now on, unless one does already; returns the one that
    /// does, or nothing where there is no room for a further family.
    pub fn reserve(&self, family: &str, pin: Pin) -> Option<Arc<Pin>> {
        let mut seen = self.seen();
        if let Some(first) = seen.pins.get(family) {
            return Some(first.clone());
        }
        if seen.pins.len() >= MOST_PINNED {
            if !std::mem::replace(&mut seen.is_full_told, true) {
                tracing::error!(
                    family,
                    families = MOST_PINNED,
                    "no further family's first key is remembered; list keys as [[trust.key]]"
                );
            }
            return None;
        }
        tracing::info!(
            family,
            kid = pin.kid,
            thumbprint = pin.key.thumbprint(),
            "the first key of a contract family was seen; it alone counts from now on"
        );
        let pin = Arc::new(pin);
        seen.pins.insert(family.to_owned(), pin.clone());
        Some(pin)
    }

    /// Returns once the key survives the process. If it cannot be kept, it counts for this process.
    pub async fn keep(&self, family: &str, pin: &Pin) {
        let Some(state) = &self.state else {
            return;
        };
        // Of those who wait for the same key one writes; should it be dropped, the next does.
        let kept = pin.kept.get_or_init(async || {
            if let Err(error) = keep(state, family, pin).await {
                tracing::error!(
                    family,
                    kid = pin.kid,
                    %error,
                    "the key could not be remembered"
                );
            }
        });
        kept.await;
    }
}

async fn keep(state: &Store, family: &str, pin: &Pin) -> Result<(), Unkept> {
    let (family, kid) = (family.to_owned(), pin.kid.clone());
    let (jwk, now) = (
        pin.key.to_jwk().to_string(),
        Timestamp::now().millis() as i64,
    );
    let kept = state.append(move |connection| {
        let insert = "INSERT INTO trust_pins VALUES (?1, ?2, ?3, ?4) ON CONFLICT (family) DO UPDATE
                      SET kid = ?2, jwk = ?3, pinned_at = ?4";
        let mut insert = connection.prepare_cached(insert)?;
        insert.execute(params![family, kid, jwk, now])
    });
    match tokio::time::timeout(PATIENCE, kept).await {
        Ok(kept) => kept.map(|_rows| ()).map_err(Unkept::Store),
        Err(_elapsed) => Err(Unkept::Silent),
    }
}
