//! Where the middle and the tail of measured times lie.

use std::time::Duration;

/// Times in order, shortest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Times(Vec<Duration>);

impl Times {
    pub fn of(times: impl IntoIterator<Item = Duration>) -> Self {
        let mut times: Vec<Duration> = times.into_iter().collect();
        times.sort_unstable();
        Self(times)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the time that `percent` of all did not exceed, by nearest rank: always one that was
    /// measured. Nothing of none.
    pub fn percentile(&self, percent: u32) -> Option<Duration> {
        let rank = (self.0.len() * percent.min(100) as usize).div_ceil(100);
        self.0.get(rank.saturating_sub(1)).copied()
    }

    pub fn median(&self) -> Option<Duration> {
        self.percentile(50)
    }

    pub fn max(&self) -> Option<Duration> {
        self.0.last().copied()
    }
}

/// Gives a time as milliseconds for `-o json`.
pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

/// Writes a time for people: `0.4 µs`, `0.420 ms`, `3.1 ms`, `612 ms`, `2.50 s`.
pub(super) fn shown(time: Duration) -> String {
    match milliseconds(time) {
        tiny if tiny < 0.1 => format!("{:.1} µs", tiny * 1000.0),
        small if small < 1.0 => format!("{small:.3} ms"),
        few if few < 100.0 => format!("{few:.1} ms"),
        many if many < 1000.0 => format!("{many:.0} ms"),
        long => format!("{:.2} s", long / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(times: impl IntoIterator<Item = u64>) -> Times {
        Times::of(times.into_iter().map(Duration::from_millis))
    }

    #[test]
    fn a_percentile_is_a_time_that_was_measured() {
        for (times, percent, expected) in [
            (ms([]), 99, None),
            (ms([7]), 0, Some(7)),
            (ms([7]), 99, Some(7)),
            (ms([30, 10, 20]), 50, Some(20)),
            (ms([4, 3, 2, 1]), 50, Some(2)),
            // Of a hundred, one may be slower than the 99th percentile; of a thousand, ten.
            (ms(1..=100), 99, Some(99)),
            (ms(1..=101), 99, Some(100)),
            (ms(1..=1000), 99, Some(990)),
            (ms(1..=10), 99, Some(10)),
            (ms(1..=10), 100, Some(10)),
        ] {
            let expected = expected.map(Duration::from_millis);
            assert_eq!(
                times.percentile(percent),
                expected,
                "{percent} of {times:?}"
            );
        }
    }

    #[test]
    fn times_are_written_in_a_unit_that_fits() {
        for (micros, expected) in [
            (42, "42.0 µs"),
            (420, "0.420 ms"),
            (3_140, "3.1 ms"),
            (612_400, "612 ms"),
            (2_500_000, "2.50 s"),
        ] {
            assert_eq!(shown(Duration::from_micros(micros)), expected);
        }
    }
}
