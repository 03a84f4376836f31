//! Which key a call's id stands for while it is under way.
//!
//! Attempts at one call share its id and its key, and the newest takes the place of the others.
//! Another call under the same id would take it, too, and the first one's reply would be lost.

use super::Name;
use http::HeaderValue;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The ids that are taken; each belongs to a seat, so there are no more than those.
#[derive(Debug, Clone, Default)]
pub struct Claims(Arc<Mutex<HashMap<Name, Held>>>);

#[derive(Debug)]
struct Held {
    key: HeaderValue,
    attempts: usize,
}

/// An id that is taken until this is dropped.
#[derive(Debug)]
pub struct Claim {
    claims: Claims,
    name: Name,
}

impl Claims {
    /// Takes the id for an attempt under `key`, unless it stands for another key.
    pub fn take(&self, name: Name, key: HeaderValue) -> Option<Claim> {
        match self.lock().entry(name.clone()) {
            Entry::Occupied(held) if held.get().key != key => return None,
            Entry::Occupied(mut held) => held.get_mut().attempts += 1,
            Entry::Vacant(free) => {
                free.insert(Held { key, attempts: 1 });
            }
        }
        let claims = self.clone();
        Some(Claim { claims, name })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut held = self.claims.lock();
        if let Some(one) = held.get_mut(&self.name) {
            one.attempts -= 1;
            if one.attempts == 0 {
                held.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Id;

    #[test]
    fn an_id_stands_for_one_key_at_a_time() {
        let claims = Claims::default();
        let take = |scope: &str, key: &'static str| {
            let name = Name {
                scope: Arc::from(scope),
                call_id: Id::parse("c").unwrap(),
            };
            claims.take(name, HeaderValue::from_static(key))
        };
        let first = take("shop", "k-1").unwrap();
        let again = take("shop", "k-1").unwrap();
        assert!(take("shop", "k-2").is_none());
        let _other = take("bank", "k-2").unwrap();
        drop(first);
        assert!(take("shop", "k-2").is_none());
        drop(again);
        let _free = take("shop", "k-2").unwrap();
        assert_eq!(claims.lock().len(), 2);
    }
}
