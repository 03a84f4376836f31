//! Which calls are tried on canaries.
//!
//! A contract has a ratio, in ten thousandths. A call draws a lot from the text that pins it; lots
//! below the ratio are of the canary cohort. The lot of a text never changes, so a task stays in
//! its cohort over retries, restarts and sidecars, and a larger ratio only adds tasks.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Ratios and lots are counted in parts of this many.
const PARTS: u64 = 10_000;
/// Makes lots independent of the scores of `rank`, which are drawn from the same text: otherwise
/// the canary cohort would not be spread over the instances like all tasks are. Spells "canary".
const SEED: u64 = 0x63_61_6e_61_72_79;

/// Who a call is served by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cohort {
    #[default]
    Stable,
    Canary,
}

impl Cohort {
    pub fn as_str(self) -> &'static str {
        match self {
            Cohort::Stable => "stable",
            Cohort::Canary => "canary",
        }
    }
}

/// The place of a call among 10 000, drawn from what pins it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lot(u16);

impl Lot {
    pub(super) fn of(text: &str) -> Self {
        // The remainder is below 10 000.
        Self((xxh3_64_with_seed(text.as_bytes(), SEED) % PARTS) as u16)
    }

    pub fn number(self) -> u16 {
        self.0
    }

    /// Decides the cohort where `ratio` of 10 000 calls are tried on canaries.
    pub fn cohort(self, ratio: u16) -> Cohort {
        if self.0 < ratio {
            Cohort::Canary
        } else {
            Cohort::Stable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{Key, best};
    use proptest::prelude::*;

    const TASKS: u32 = 100_000;

    fn picked(ratio: u16) -> impl Iterator<Item = Key> {
        let keys = (0..TASKS).map(|n| Key::of(&format!("order-{n}")));
        keys.filter(move |key| key.lot.cohort(ratio) == Cohort::Canary)
    }

    #[test]
    fn a_ratio_picks_its_share_of_tasks() {
        for (ratio, share, within) in [
            (0, 0.0, 0.0),
            (1, 0.0001, 0.0001),
            (1_000, 0.1, 0.005),
            (5_000, 0.5, 0.005),
            (9_999, 0.9999, 0.0001),
            (10_000, 1.0, 0.0),
        ] {
            let found = picked(ratio).count() as f64 / f64::from(TASKS);
            assert!((found - share).abs() <= within, "{ratio}: {found}");
        }
    }

    #[test]
    fn ids_minted_in_a_row_are_picked_alike() {
        let minted = (0..TASKS).map(|_| Key::of(crate::task::Id::mint().as_str()));
        let picked = minted.filter(|key| key.lot.cohort(1_000) == Cohort::Canary);
        let share = picked.count() as f64 / f64::from(TASKS);
        assert!((share - 0.1).abs() < 0.005, "{share}");
    }

    #[test]
    fn the_canary_cohort_is_spread_evenly_over_instances() {
        let ids: Vec<String> = (0..5).map(|n| format!("fraud-v1.0-host-{n}")).collect();
        let mut counts = [0_u32; 5];
        for key in picked(1_000) {
            let instances = ids.iter().map(|id| (id.as_str(), 100));
            counts[best(key, instances).unwrap()] += 1;
        }
        let all: u32 = counts.iter().sum();
        for count in counts {
            let share = f64::from(count) / f64::from(all);
            // Some 10 000 draws: 0.2 with a standard deviation of 0.004.
            assert!((share - 0.2).abs() < 0.02, "{counts:?}");
        }
    }

    proptest! {
        #[test]
        fn a_larger_ratio_only_adds_tasks(task in "\\PC{1,40}", ratio in 0u16..=10_000, more in 0u16..=10_000) {
            let lot = Lot::of(&task);
            if lot.cohort(ratio) == Cohort::Canary {
                prop_assert_eq!(lot.cohort(ratio.max(more)), Cohort::Canary);
            }
            prop_assert_eq!(lot, Lot::of(&task));
        }
    }

    /// Tasks must not change their cohort with a new version of this program.
    #[test]
    fn lots_are_the_same_for_ever() {
        let lots = ["order-17", "", "é", "0197b0de-7d3c-7e11-a5f8-2f0f6f1f3b7a"];
        let lots = lots.map(|task| Lot::of(task).number());
        assert_eq!(lots, [7_222, 9_715, 8_864, 8_872]);
    }
}
