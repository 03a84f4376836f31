//! Weighted rendezvous hashing.
//!
//! Every instance draws a score from the call's key and its own id; the highest wins. Scores do
//! not depend on who else is there, so an instance that goes moves only its own keys, and a key's
//! share of an instance is its weight over the sum (the logarithmic method: weight / -ln u).

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The hash of what a call is pinned by: its task id, or its own idempotency key.
pub fn key(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// Returns the position of the instance with the highest score, if there is any.
///
/// Ties go to the smaller id, so that the order in which instances are listed never matters.
pub fn best<'a>(key: u64, instances: impl Iterator<Item = (&'a str, u32)>) -> Option<usize> {
    let mut best: Option<(f64, &str, usize)> = None;
    for (position, (id, weight)) in instances.enumerate() {
        let score = score(key, id, weight);
        let wins = best
            .is_none_or(|(other, other_id, _)| score > other || (score == other && id < other_id));
        if wins {
            best = Some((score, id, position));
        }
    }
    best.map(|(_, _, position)| position)
}

fn score(key: u64, id: &str, weight: u32) -> f64 {
    let hash = xxh3_64_with_seed(id.as_bytes(), key);
    // The upper 53 bits make a float strictly between 0 and 1, so the logarithm is finite.
    let uniform = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    f64::from(weight) / -uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chosen(task: &str, instances: &[(String, u32)]) -> Option<String> {
        let pairs = instances.iter().map(|(id, weight)| (id.as_str(), *weight));
        best(key(task), pairs).map(|position| instances[position].0.clone())
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
