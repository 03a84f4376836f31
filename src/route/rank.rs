//! Weighted rendezvous hashing.
//!
//! Every instance draws a score from the call's key and its own id; the highest wins. Scores do
//! not depend on who else is there, so an instance that goes moves only its own keys, and a key's
//! share of an instance is its weight over the sum (the logarithmic method: weight / -ln u).

use super::cohort::Lot;
use std::cmp::Ordering;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// What a call is pinned by: drawn once, from its task id or its own idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    seed: u64,
    /// Decides whether the call is tried on canaries.
    pub lot: Lot,
}

impl Key {
    pub fn of(text: &str) -> Self {
        Self {
            seed: xxh3_64(text.as_bytes()),
            lot: Lot::of(text),
        }
    }
}

/// One instance's draw; the least is the first in rank.
struct Draw<'a> {
    score: f64,
    id: &'a str,
    position: usize,
}

impl<'a> Draw<'a> {
    fn of(key: Key, (position, (id, weight)): (usize, (&'a str, u32))) -> Self {
        let hash = xxh3_64_with_seed(id.as_bytes(), key.seed);
        // The upper 53 bits make a float strictly between 0 and 1, so the logarithm is finite.
        let uniform = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let score = f64::from(weight) / -uniform.ln();
        Self {
            score,
            id,
            position,
        }
    }

    /// Ties go to the smaller id, so that the order in which instances are listed never matters.
    fn order(&self, other: &Self) -> Ordering {
        let scores = other.score.total_cmp(&self.score);
        scores.then_with(|| self.id.cmp(other.id))
    }
}

/// Returns the position of the instance with the highest score, if there is any.
pub fn best<'a>(key: Key, instances: impl Iterator<Item = (&'a str, u32)>) -> Option<usize> {
    let draws = instances.enumerate().map(|one| Draw::of(key, one));
    let best = draws.min_by(Draw::order);
    best.map(|draw| draw.position)
}

/// Returns the positions of all instances in rank; the first is the one that `best` returns.
pub fn ranking<'a>(key: Key, instances: impl Iterator<Item = (&'a str, u32)>) -> Vec<usize> {
    let draws = instances.enumerate().map(|one| Draw::of(key, one));
    let mut draws: Vec<Draw<'_>> = draws.collect();
    draws.sort_by(Draw::order);
    draws.into_iter().map(|draw| draw.position).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chosen(task: &str, instances: &[(String, u32)]) -> Option<String> {
        let pairs = instances.iter().map(|(id, weight)| (id.as_str(), *weight));
        best(Key::of(task), pairs).map(|position| instances[position].0.clone())
    }

    fn ten() -> Vec<(String, u32)> {
        (0..10)
            .map(|n| (format!("fraud-detection-v1.0-host-{n}"), 50 + 25 * n))
            .collect()
    }

    #[test]
    fn shares_follow_the_weights() {
        let instances = ten();
        let sum: u32 = instances.iter().map(|(_, weight)| weight).sum();
        let mut counts = std::collections::HashMap::new();
        let tasks = 100_000;
        for n in 0..tasks {
            *counts
                .entry(chosen(&format!("task-{n}"), &instances).unwrap())
                .or_insert(0) += 1;
        }
        for (id, weight) in &instances {
            let share = f64::from(counts[id]) / f64::from(tasks);
            let wanted = f64::from(*weight) / f64::from(sum);
            assert!((share - wanted).abs() < 0.005, "{id}: {share} for {wanted}");
        }
    }

    proptest! {
        #[test]
        fn the_order_of_instances_does_not_matter(task in "\\PC{1,40}", turn in 0usize..10) {
            let instances = ten();
            let mut turned = instances.clone();
            turned.rotate_left(turn);
            turned.swap(0, 9 - turn);
            prop_assert_eq!(chosen(&task, &instances), chosen(&task, &turned));
        }

        #[test]
        fn the_first_in_rank_is_the_best_and_each_next_the_best_without_it(task in "\\PC{1,40}") {
            let mut left = ten();
            let key = Key::of(&task);
            let all = left.clone();
            let ranked = ranking(key, all.iter().map(|(id, weight)| (id.as_str(), *weight)));
            prop_assert_eq!(ranked.len(), all.len());
            for position in ranked {
                prop_assert_eq!(chosen(&task, &left), Some(all[position].0.clone()));
                left.retain(|(id, _)| *id != all[position].0);
            }
        }

        #[test]
        fn removing_an_instance_moves_only_its_own_tasks(task in "\\PC{1,40}", gone in 0usize..10) {
            let instances = ten();
            let before = chosen(&task, &instances).unwrap();
            let mut fewer = instances.clone();
            let removed = fewer.remove(gone).0;
            if before != removed {
                prop_assert_eq!(chosen(&task, &fewer), Some(before));
            }
        }
    }
}
