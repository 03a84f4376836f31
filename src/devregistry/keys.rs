//! The key/value store.
//!
//! - writing an equal value again changes nothing and wakes nobody
//! - a deleted key leaves its index behind, so that a poll on it or on a prefix above wakes

use std::collections::BTreeMap;
use std::ops::Bound;

use axum::body::Bytes;
use axum::http::StatusCode;

use super::state::Refusal;

/// Consul's limit on one value.
pub(super) const MAX_VALUE_BYTES: usize = 512 * 1024;
/// Ours; Consul's store has no bounds of its own.
const MAX_KEYS: usize = 16_384;
const MAX_TOTAL_BYTES: usize = 64 * 1024 * 1024;
const MAX_KEY_BYTES: usize = 1024;
const MAX_GRAVES: usize = 16_384;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) value: Bytes,
    pub(super) flags: u64,
    pub(super) created: u64,
    pub(super) modified: u64,
}

#[derive(Default)]
pub(super) struct Keys {
    entries: BTreeMap<String, Entry>,
    bytes: usize,
    /// Deleted keys with the index of their deletion.
    graves: BTreeMap<String, u64>,
    /// The highest index among graves that had to go.
    forgotten: u64,
    /// The last change of anything.
    touched: u64,
}

impl Keys {
    /// Writes under the next index; false: `cas` does not fit, nothing changed.
    pub(super) fn put(
        &mut self,
        index: &mut u64,
        key: &str,
        value: Bytes,
        flags: u64,
        cas: Option<u64>,
    ) -> Result<bool, Refusal> {
        let before = self.entries.get(key);
        if cas.is_some_and(|cas| cas != before.map_or(0, |entry| entry.modified)) {
            return Ok(false);
        }
        if before.is_some_and(|entry| entry.value == value && entry.flags == flags) {
            return Ok(true);
        }
        let bytes = self.bytes - before.map_or(0, |entry| entry.value.len()) + value.len();
        if value.len() > MAX_VALUE_BYTES {
            let text = format!(
                "Request body({} bytes) too large, max size: {MAX_VALUE_BYTES} bytes.",
                value.len()
            );
            return Err(Refusal(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        if key.len() > MAX_KEY_BYTES {
            return Err(Refusal::full("bytes in a key", MAX_KEY_BYTES));
        }
        if before.is_none() && self.entries.len() >= MAX_KEYS {
            return Err(Refusal::full("keys", MAX_KEYS));
        }
        if bytes > MAX_TOTAL_BYTES {
            return Err(Refusal::full("bytes of values", MAX_TOTAL_BYTES));
        }
        let created = before.map(|entry| entry.created);
        *index += 1;
        let entry = Entry {
            value,
            flags,
            created: created.unwrap_or(*index),
            modified: *index,
        };
        self.entries.insert(key.to_owned(), entry);
        self.bytes = bytes;
        self.touched = *index;
        Ok(true)
    }

    /// Deletes one key; false: `cas` does not fit. Consul takes 0 for no condition here.
    pub(super) fn delete(&mut self, index: &mut u64, key: &str, cas: Option<u64>) -> bool {
        let Some(entry) = self.entries.get(key) else {
            return cas.is_none_or(|cas| cas == 0);
        };
        if cas.is_some_and(|cas| cas != 0 && cas != entry.modified) {
            return false;
        }
        *index += 1;
        self.bury(key, *index);
        true
    }

    pub(super) fn delete_tree(&mut self, index: &mut u64, prefix: &str) {
        let keys: Vec<String> = self.below(prefix).map(|(key, _)| key.to_owned()).collect();
        if keys.is_empty() {
            return;
        }
        *index += 1;
        for key in keys {
            self.bury(&key, *index);
        }
    }

    fn bury(&mut self, key: &str, index: u64) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.value.len();
        }
        if self.graves.len() >= MAX_GRAVES {
            self.forgotten = self.graves.values().copied().max().unwrap_or(0);
            self.graves.clear();
        }
        self.graves.insert(key.to_owned(), index);
        self.touched = index;
    }

    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(super) fn below<'k>(
        &'k self,
        prefix: &'k str,
    ) -> impl Iterator<Item = (&'k str, &'k Entry)> {
        under(&self.entries, prefix).map(|(key, entry)| (key.as_str(), entry))
    }

    /// The index of a read of one key, which is also what a poll on it waits for to move.
    pub(super) fn index_of(&self, key: &str) -> u64 {
        self.entries
            .get(key)
            .map_or(self.touched, |entry| entry.modified)
    }

    /// The same for all keys below a prefix.
    pub(super) fn index_below(&self, prefix: &str) -> u64 {
        let living = self.below(prefix).map(|(_, entry)| entry.modified).max();
        let Some(living) = living else {
            return self.touched;
        };
        let dead = under(&self.graves, prefix)
            .map(|(_, index)| *index)
            .max()
            .unwrap_or(self.forgotten);
        living.max(dead)
    }
}

fn under<'m, V>(
    map: &'m BTreeMap<String, V>,
    prefix: &'m str,
) -> impl Iterator<Item = (&'m String, &'m V)> {
    map.range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
        .take_while(move |(key, _)| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_are_refused_by_name() {
        let (mut keys, mut index) = (Keys::default(), 1);
        let big = Bytes::from(vec![0; MAX_VALUE_BYTES]);
        assert!(
            keys.put(
                &mut index,
                "k",
                vec![0; MAX_VALUE_BYTES + 1].into(),
                0,
                None
            )
            .is_err()
        );
        assert!(
            keys.put(
                &mut index,
                &"k".repeat(MAX_KEY_BYTES + 1),
                Bytes::new(),
                0,
                None
            )
            .is_err()
        );
        for n in 0..MAX_TOTAL_BYTES / MAX_VALUE_BYTES {
            assert_eq!(
                keys.put(&mut index, &format!("big/{n}"), big.clone(), 0, None),
                Ok(true)
            );
        }
        assert!(
            keys.put(&mut index, "one-more", Bytes::from_static(b"x"), 0, None)
                .is_err()
        );
        keys.delete_tree(&mut index, "big/");
        assert_eq!(
            keys.put(&mut index, "one-more", Bytes::from_static(b"x"), 0, None),
            Ok(true)
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(u8, u8, Option<u64>),
        Delete(u8, Option<u64>),
        DeleteTree,
    }

    fn step() -> impl Strategy<Value = Step> {
        let cas = || proptest::option::of(0..30_u64);
        prop_oneof![
            (0..4_u8, 0..3_u8, cas()).prop_map(|(key, value, cas)| Step::Put(key, value, cas)),
            (0..4_u8, cas()).prop_map(|(key, cas)| Step::Delete(key, cas)),
            Just(Step::DeleteTree),
        ]
    }

    proptest! {
        /// A poll that holds the index of a read is woken by every change of what was read.
        #[test]
        fn no_change_below_a_prefix_goes_unnoticed(steps in proptest::collection::vec(step(), 0..40)) {
            let (mut keys, mut index) = (Keys::default(), 1);
            for step in steps {
                let look = |keys: &Keys| -> Vec<(String, Entry)> {
                    keys.below("p/").map(|(key, entry)| (key.to_owned(), entry.clone())).collect()
                };
                let (before, seen) = (look(&keys), keys.index_below("p/"));
                match step {
                    Step::Put(key, value, cas) => {
                        let _fits = keys.put(&mut index, &format!("p/{key}"), vec![value].into(), 0, cas);
                    }
                    Step::Delete(key, cas) => {
                        let _fits = keys.delete(&mut index, &format!("p/{key}"), cas);
                    }
                    Step::DeleteTree => keys.delete_tree(&mut index, "p/"),
                }
                prop_assert_eq!(look(&keys) != before, keys.index_below("p/") > seen);
                let bytes: usize = look(&keys).iter().map(|(_, entry)| entry.value.len()).sum();
                prop_assert_eq!(bytes, keys.bytes);
            }
        }
    }
}
