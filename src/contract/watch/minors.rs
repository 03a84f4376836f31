//! Which minors of a family there are, given what the watch has seen of the index.
//!
//! The rule is that of `members`: an answer is believed at once on an unbroken watch; for `HOLD`
//! after a break, what was known counts beside it; while Consul is silent the last good list stays.

use super::members::HOLD;
use crate::consul::Layout;
use crate::consul::watch::Seen;
use crate::contract::published::indexed;
use crate::contract::{ContractId, Range};
use tokio::time::Instant;

/// How many minors of one major are considered, the highest first.
const MOST_MINORS: usize = 16;

/// The list in use.
#[derive(Debug)]
pub struct Minors {
    layout: Layout,
    range: Range,
    /// Highest first.
    last_good: Vec<ContractId>,
}

/// One reading of the list.
#[derive(Debug, PartialEq, Eq)]
pub struct Listing {
    /// Highest first.
    pub ids: Vec<ContractId>,
    /// When to look again although nothing was heard.
    pub again: Option<Instant>,
}

impl Minors {
    /// Begins with the contracts that are known otherwise; those of other ranges are left out.
    pub fn seeded(
        layout: Layout,
        range: Range,
        known: impl IntoIterator<Item = ContractId>,
    ) -> Self {
        let last_good = sorted(&range, known);
        Self {
            layout,
            range,
            last_good,
        }
    }

    /// Takes in what the watch has seen by `now`.
    pub fn read(&mut self, seen: &Seen<Vec<String>>, now: Instant) -> Listing {
        let (Some(keys), None) = (&seen.value, &seen.error) else {
            let ids = self.last_good.clone();
            return Listing { ids, again: None };
        };
        let listed = keys.iter().filter_map(|key| indexed(&self.layout, key));
        let held_until = seen
            .broken_at
            .map(|at| at + HOLD)
            .filter(|until| now < *until);
        match held_until {
            Some(_) => {
                let held = self.last_good.drain(..);
                self.last_good = sorted(&self.range, listed.chain(held.collect::<Vec<_>>()));
            }
            None => self.last_good = sorted(&self.range, listed),
        }
        Listing {
            ids: self.last_good.clone(),
            again: held_until,
        }
    }
}

/// Keeps the highest minors of the range, each once.
fn sorted(range: &Range, ids: impl IntoIterator<Item = ContractId>) -> Vec<ContractId> {
    let mut ids: Vec<_> = ids.into_iter().filter(|id| range.holds(id)).collect();
    ids.sort_unstable_by_key(|id| std::cmp::Reverse(id.minor()));
    ids.dedup();
    ids.truncate(MOST_MINORS);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consul::Error;
    use std::sync::Arc;
    use std::time::Duration;

    fn seen(keys: Option<&[&str]>, broken_at: Option<Instant>, fails: bool) -> Seen<Vec<String>> {
        let key = |id: &&str| format!("hermes/index/{id}");
        Seen {
            value: keys.map(|keys| Arc::new(keys.iter().map(key).collect())),
            at: None,
            unbroken: broken_at.is_none(),
            broken_at,
            error: fails.then(|| {
                Arc::new(Error::BadAnswer {
                    doing: "list keys".to_owned(),
                    reason: "made up".to_owned(),
                })
            }),
            generation: 0,
        }
    }

    fn minors(known: &[&str]) -> Minors {
        let known = known.iter().map(|id| id.parse().unwrap());
        Minors::seeded(Layout::new("hermes"), "a@^1".parse().unwrap(), known)
    }

    fn ids(listing: &Listing) -> Vec<String> {
        listing.ids.iter().map(ContractId::to_string).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_highest_come_first_and_foreign_keys_not_at_all() {
        let keys = [
            "a-v1.2",
            "a-v1.10",
            "a-v1.9",
            "a-v1._keep",
            "a-v1.0/a-v1.3",
            "a-v2.0",
            "b-v1.0",
        ];
        let listing = minors(&[]).read(&seen(Some(&keys), None, false), Instant::now());
        assert_eq!(ids(&listing), ["a-v1.10", "a-v1.9", "a-v1.2"]);
        let many: Vec<String> = (0..40).map(|minor| format!("a-v1.{minor}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let listing = minors(&[]).read(&seen(Some(&many), None, false), Instant::now());
        assert_eq!(
            (listing.ids.len(), listing.ids[0].minor()),
            (MOST_MINORS, 39)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_consul_keeps_what_was_known() {
        let mut minors = minors(&["a-v1.0", "a-v1.1", "a-v2.0"]);
        let now = Instant::now();
        let silent = minors.read(&seen(None, Some(now), true), now);
        assert_eq!(ids(&silent), ["a-v1.1", "a-v1.0"]);
        let failing = minors.read(&seen(Some(&[]), Some(now), true), now + 2 * HOLD);
        assert_eq!(ids(&failing), ["a-v1.1", "a-v1.0"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_after_a_break_takes_nothing_away_for_a_while() {
        let mut minors = minors(&["a-v1.1"]);
        let now = Instant::now();
        let listing = minors.read(&seen(Some(&["a-v1.0"]), Some(now), false), now);
        assert_eq!(ids(&listing), ["a-v1.1", "a-v1.0"]);
        assert_eq!(listing.again, Some(now + HOLD));
        let soon = now + Duration::from_secs(1);
        let listing = minors.read(&seen(Some(&[]), Some(now), false), soon);
        assert_eq!(ids(&listing), ["a-v1.1", "a-v1.0"]);
        let listing = minors.read(&seen(Some(&["a-v1.0"]), Some(now), false), now + HOLD);
        assert_eq!(
            (ids(&listing), listing.again),
            (vec!["a-v1.0".to_owned()], None)
        );
        let listing = minors.read(&seen(Some(&[]), None, false), now);
        assert!(ids(&listing).is_empty());
    }
}
