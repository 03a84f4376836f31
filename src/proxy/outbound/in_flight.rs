//! How many calls an instance has in flight, as far as this sidecar can tell.
//!
//! Its own it counts; of the others an instance tells with every reply. What it told is soon old,
//! and counts less from moment to moment.

use crate::context::header;
use http::HeaderMap;
use sfv::{BareItem, Dictionary, ListEntry, Parser};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// After this long nothing is left of what was told.
const OLD: Duration = Duration::from_secs(1);

/// The calls at one instance.
#[derive(Debug, Default)]
pub struct InFlight {
    own: AtomicUsize,
    told: Mutex<Option<Others>>,
}

/// Calls that are not ours.
#[derive(Debug, Clone, Copy)]
struct Others {
    count: usize,
    at: Instant,
}

impl InFlight {
    /// Counts a call of ours that begins.
    pub fn begin(&self) {
        // Relaxed, as below: the count is all there is, and nothing is published by it.
        self.own.fetch_add(1, Ordering::Relaxed);
    }

    pub fn end(&self) {
        self.own.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes in what a reply tells; the call that it answers is still counted as ours.
    pub fn hear(&self, headers: &HeaderMap, now: Instant) {
        let Some(told) = told(headers) else {
            return;
        };
        // The instance no longer counts the call that it answers here.
        let ours = self.own.load(Ordering::Relaxed).saturating_sub(1);
        let others = Others {
            count: told.saturating_sub(ours),
            at: now,
        };
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(others);
    }

    /// Returns how many there are at `now`.
    pub fn at(&self, now: Instant) -> usize {
        let told = *self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let others = told.map_or(0, |others| others.left(now));
        self.own.load(Ordering::Relaxed).saturating_add(others)
    }
}

impl Others {
    fn left(self, now: Instant) -> usize {
        let age = now.saturating_duration_since(self.at);
        let left = OLD.saturating_sub(age).as_millis() as usize;
        self.count.saturating_mul(left) / OLD.as_millis() as usize
    }
}

/// Reads `inflight=12, limit=100` (RFC 9651, a dictionary); what is no such thing tells nothing.
fn told(headers: &HeaderMap) -> Option<usize> {
    let value = headers.get(header::LOAD)?;
    let load: Dictionary = Parser::new(value.as_bytes()).parse().ok()?;
    match load.get("inflight")? {
        ListEntry::Item(item) => match &item.bare_item {
            BareItem::Integer(count) => u32::try_from(i64::from(*count)).ok().map(|n| n as usize),
            _ => None,
        },
        ListEntry::InnerList(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn load(text: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::LOAD, HeaderValue::from_str(text).unwrap());
        headers
    }

    #[test]
    fn a_load_is_read_or_tells_nothing() {
        for (text, count) in [
            ("inflight=12, limit=100", Some(12)),
            ("limit=100,inflight=0", Some(0)),
            ("inflight=3;a=1", Some(3)),
            ("inflight=-1", None),
            ("inflight=1.5", None),
            ("inflight=\"3\"", None),
            ("inflight=(1 2)", None),
            ("inflight", None),
            ("limit=100", None),
            ("inflight=999999999999", None),
            ("inflight=12 limit=100", None),
            ("", None),
        ] {
            assert_eq!(told(&load(text)), count, "{text}");
        }
        assert_eq!(told(&HeaderMap::new()), None);
    }

    #[test]
    fn calls_of_others_are_added_to_ours_and_fade() {
        let (calls, now) = (InFlight::default(), Instant::now());
        for _ in 0..4 {
            calls.begin();
        }
        assert_eq!(calls.at(now), 4);
        // Three of these are ours; the fourth is the one that is answered.
        calls.hear(&load("inflight=13, limit=100"), now);
        assert_eq!(calls.at(now), 14);
        calls.end();
        assert_eq!(calls.at(now), 13);
        assert_eq!(calls.at(now + Duration::from_millis(500)), 8);
        assert_eq!(calls.at(now + OLD), 3);
        calls.hear(&load("inflight=1, limit=100"), now);
        assert_eq!(calls.at(now), 3, "an instance may lag behind");
        calls.hear(&load("nonsense"), now);
        assert_eq!(calls.at(now), 3);
    }

    proptest! {
        #[test]
        fn no_header_is_met_with_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let mut headers = HeaderMap::new();
                headers.insert(header::LOAD, value);
                let calls = InFlight::default();
                calls.begin();
                calls.hear(&headers, Instant::now());
                prop_assert!(calls.at(Instant::now()) >= 1);
            }
        }
    }
}
