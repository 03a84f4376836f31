//! Who is passed over because it has too much to do already.
//!
//! The first in rank serves unless its calls in flight reach the bound; then the next below its
//! own does. Loads only pass over: nobody is preferred for having little to do, so a key stays
//! with its instance as long as that can take it.

/// What one instance has to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    pub in_flight: usize,
    /// The most calls it takes at once, by its contract.
    pub max_concurrent: usize,
}

/// So few calls in flight never burden an instance.
const FEW: usize = 8;

impl Load {
    /// Says whether it is below what any instance may have, whatever the others have.
    pub fn is_light(self) -> bool {
        // Up to a tenth of what it takes at once.
        self.in_flight < FEW || self.in_flight.saturating_mul(10) < self.max_concurrent
    }

    /// Says whether it is below five quarters of the average of `many` that have `sum` in all.
    fn is_average(self, sum: usize, many: usize) -> bool {
        let own = self.in_flight.saturating_mul(4).saturating_mul(many);
        own < sum.saturating_mul(5)
    }
}

/// Returns the first in `order` that is not burdened, else the first; `loads` are those of all
/// that `order` lists.
pub fn first_free(order: &[usize], loads: &[Load]) -> Option<usize> {
    let sum = loads.iter().map(|load| load.in_flight).sum();
    let is_free = |at: &&usize| {
        let load = loads[**at];
        load.is_light() || load.is_average(sum, loads.len())
    };
    order.iter().find(is_free).or(order.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn loads(in_flight: &[usize], max_concurrent: usize) -> Vec<Load> {
        let load = |&in_flight| Load {
            in_flight,
            max_concurrent,
        };
        in_flight.iter().map(load).collect()
    }

    #[test]
    fn the_bound_is_the_largest_of_three() {
        for (in_flight, max_concurrent, chosen) in [
            // Below eight nobody is passed over.
            (&[7, 0, 0][..], 10, 0),
            (&[8, 0, 0], 10, 1),
            // A tenth of what it takes.
            (&[99, 0, 0], 1000, 0),
            (&[100, 0, 0], 1000, 1),
            // Five quarters of the average: 24 of an average of 20.
            (&[24, 18, 18], 10, 0),
            (&[25, 18, 17], 10, 1),
            (&[30, 40, 20], 10, 0),
            // The next in rank may be burdened, too.
            (&[90, 80, 10], 10, 2),
            (&[50, 50, 50], 10, 0),
            (&[1000], 10, 0),
        ] {
            let loads = loads(in_flight, max_concurrent);
            let order: Vec<_> = (0..loads.len()).collect();
            assert_eq!(
                first_free(&order, &loads),
                Some(chosen),
                "{in_flight:?} of {max_concurrent}"
            );
        }
        assert_eq!(first_free(&[], &[]), None);
    }

    proptest! {
        #[test]
        fn whoever_is_chosen_stands_behind_burdened_ones_alone(
            in_flight in proptest::collection::vec(0usize..200, 1..12),
            max_concurrent in 1usize..2000,
        ) {
            let loads = loads(&in_flight, max_concurrent);
            let order: Vec<_> = (0..loads.len()).rev().collect();
            let chosen = first_free(&order, &loads).unwrap();
            let average = in_flight.iter().sum::<usize>() as f64 / in_flight.len() as f64;
            let bound = (1.25 * average).max(8.0).max(max_concurrent as f64 / 10.0);
            let is_free = |at: &usize| (in_flight[*at] as f64) < bound;
            let expected = order.iter().find(|at| is_free(at)).unwrap_or(&order[0]);
            prop_assert_eq!(chosen, *expected);
            prop_assert!(is_free(&chosen), "somebody is never above the average");
        }

        #[test]
        fn burdened_instances_alone_lose_calls(
            in_flight in proptest::collection::vec(0usize..200, 1..12),
        ) {
            let loads = loads(&in_flight, 100);
            let order: Vec<_> = (0..loads.len()).collect();
            if loads[0].is_light() {
                prop_assert_eq!(first_free(&order, &loads), Some(0));
            }
        }
    }
}
