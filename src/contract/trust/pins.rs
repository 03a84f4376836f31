//! The first key seen of each family, in memory and in `state.db`.

use crate::identity::key::PublicKey;
use crate::store::{Store, StoreError};
use crate::task::Timestamp;
use rusqlite::params;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

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
/// Families whose missing signature was told; beyond that it is told no more.
const MOST_TOLD: usize = 4096;

/// A key that counts for a family.
#[derive(Debug, Clone)]
pub struct Pin {
    /// As the signature called it.
    pub kid: String,
    pub key: PublicKey,
}

/// All first keys; whoever holds the lock sees no other judgement of the family in between.
#[derive(Debug, Default)]
pub struct Pins(Mutex<Seen>);

#[derive(Debug, Default)]
pub struct Seen {
    state: Option<Store>,
    pins: HashMap<String, Pin>,
    unsigned: HashSet<String>,
}

impl Pin {
    pub fn new(kid: String, key: PublicKey) -> Self {
        Self { kid, key }
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
        let mut pins = HashMap::new();
        for (family, kid, jwk) in rows {
            match PublicKey::from_file(jwk.as_bytes()) {
                Ok(key) => drop(pins.insert(family, Pin { kid, key })),
                Err(error) => tracing::error!(
                    family,
                    kid,
                    %error,
                    "a remembered key cannot be read; the next key of this family will count"
                ),
            }
        }
        let state = Some(state);
        let unsigned = HashSet::new();
        Ok(Self(Mutex::new(Seen {
            state,
            pins,
            unsigned,
        })))
    }

    pub async fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().await
    }
}

impl Seen {
    pub fn of(&self, family: &str) -> Option<&Pin> {
        self.pins.get(family)
    }

    /// Says whether nobody was told yet that contracts of the family bear no signature.
    pub fn is_first_unsigned(&mut self, family: &str) -> bool {
        self.unsigned.len() < MOST_TOLD && self.unsigned.insert(family.to_owned())
    }

    /// Lets a key count for a family from now on; returns once that survives the process. If it
    /// cannot be kept, it counts for this process.
    pub async fn add(&mut self, family: &str, pin: Pin) {
        tracing::info!(
            family,
            kid = pin.kid,
            thumbprint = pin.key.thumbprint(),
            "the first key of a contract family was seen; it alone counts from now on"
        );
        if let Some(state) = &self.state
            && let Err(error) = keep(state, family, &pin).await
        {
            tracing::error!(
                family,
                kid = pin.kid,
                error,
                "the key could not be remembered"
            );
        }
        self.pins.insert(family.to_owned(), pin);
    }
}

async fn keep(state: &Store, family: &str, pin: &Pin) -> Result<(), String> {
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
        Ok(Ok(_rows)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_elapsed) => Err(format!("state.db did not answer within {PATIENCE:?}")),
    }
}
