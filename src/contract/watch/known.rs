//! The last known good view of each contract, kept in `state.db` for a start without Consul.

use super::View;
use crate::consul::Instance;
use crate::contract::trust::Trust;
use crate::contract::{Cache, Compiled, Contract};
use crate::store::{Store, StoreError};
use crate::task::Timestamp;
use rusqlite::params;
use std::collections::HashMap;
use std::sync::Arc;

/// This room's step of the state file's schema.
pub const MIGRATION: &str = "
    CREATE TABLE known_agents (
        id TEXT PRIMARY KEY,
        instances TEXT NOT NULL,
        bodies TEXT NOT NULL,
        updated_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;";

/// How many contracts are kept; the ones updated longest ago go first.
const MOST: i64 = 1024;

/// Keeps what `view` knows; a full queue only means that a later start knows less.
pub fn keep(store: &Store, id: &Arc<str>, view: &View) {
    let instances: Vec<&Instance> = view.offers.iter().map(|o| &*o.instance).collect();
    let mut bodies: Vec<&str> = view
        .offers
        .iter()
        .filter_map(|offer| std::str::from_utf8(offer.contract.contract.body()).ok())
        .collect();
    bodies.sort_unstable();
    bodies.dedup();
    let (Ok(instances), Ok(bodies)) = (
        serde_json::to_string(&instances),
        serde_json::to_string(&bodies),
    ) else {
        return;
    };
    let (id, now) = (id.clone(), Timestamp::now().millis() as i64);
    let kept = store.offer(
        move |connection| {
            connection
                .prepare_cached(
                    "INSERT INTO known_agents VALUES (?1, ?2, ?3, ?4) ON CONFLICT (id) DO UPDATE
                     SET instances = ?2, bodies = ?3, updated_at = ?4",
                )?
                .execute(params![&*id, instances, bodies, now])?;
            connection
                .prepare_cached(
                    "DELETE FROM known_agents WHERE id IN
                     (SELECT id FROM known_agents ORDER BY updated_at DESC LIMIT -1 OFFSET ?1)",
                )?
                .execute([MOST])
        },
        |kept| {
            if let Err(error) = kept {
                tracing::warn!(%error, "the last known good instances could not be kept");
            }
        },
    );
    if let Err(error) = kept {
        tracing::warn!(%error, "the last known good instances could not be kept");
    }
}

/// What was known of one contract.
#[derive(Debug, Default)]
pub struct Known {
    pub instances: Vec<Arc<Instance>>,
    pub contracts: Vec<Arc<Compiled>>,
}

/// Reads all that is kept by contract id, and the contracts also into `cache`.
///
/// A contract is judged again, for the settings may have changed. What an older version wrote and
/// this one cannot read is passed over.
pub async fn load(
    store: &Store,
    cache: &Cache,
    trust: &Trust,
) -> Result<HashMap<Arc<str>, Known>, StoreError> {
    let rows: Vec<(String, String, String)> = store
        .read(|connection| {
            let mut query = connection.prepare("SELECT id, instances, bodies FROM known_agents")?;
            let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            rows.collect()
        })
        .await?;
    let mut known = HashMap::new();
    for (id, instances, bodies) in rows {
        let bodies: Vec<String> = serde_json::from_str(&bodies).unwrap_or_default();
        let mut contracts = Vec::with_capacity(bodies.len());
        for body in bodies {
            contracts.extend(usable(&body, cache, trust).await);
        }
        let instances: Vec<Instance> = serde_json::from_str(&instances).unwrap_or_default();
        let instances = instances.into_iter().map(Arc::new).collect();
        let remembered = Known {
            instances,
            contracts,
        };
        known.insert(Arc::from(id), remembered);
    }
    Ok(known)
}

async fn usable(body: &str, cache: &Cache, trust: &Trust) -> Option<Arc<Compiled>> {
    let contract = Contract::from_slice(body.as_bytes()).ok()?;
    if let Err(untrusted) = trust.judge(&contract).await {
        tracing::warn!(%untrusted, "a contract known from before is not used");
        return None;
    }
    // A contract that no longer compiles is met again, and named, when it is used.
    cache.compiled_apart(contract).await.ok()
}
