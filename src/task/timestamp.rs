//! A wall-clock instant, for display and for ages only; deadlines use the monotonic clock.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch, written as RFC 3339 in UTC with milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The last instant that RFC 3339 can write: the end of the year 9999.
    const MAX_MILLIS: u64 = 253_402_300_799_999;

    /// Reads the wall clock.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        // A clock before 1970 reads as the epoch; ages are clamped anyway.
        Self::from_millis(since.map_or(0, |d| d.as_millis() as u64))
    }

    /// Takes milliseconds since the epoch; later than the year 9999 is clamped.
    pub fn from_millis(millis: u64) -> Self {
        Self(millis.min(Self::MAX_MILLIS))
    }

    /// Returns milliseconds since the epoch.
    pub fn millis(self) -> u64 {
        self.0
    }

    /// Returns how long ago this was at `now`; zero when the clock went back.
    pub fn age(self, now: Self) -> Duration {
        Duration::from_millis(now.0.saturating_sub(self.0))
    }

    /// Returns the instant `wait` later.
    pub fn plus(self, wait: Duration) -> Self {
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Self::from_millis(self.0.saturating_add(millis))
    }

    /// Returns the instant `ago` earlier.
    pub fn minus(self, ago: Duration) -> Self {
        let millis = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        Self::from_millis(self.0.saturating_sub(millis))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = UNIX_EPOCH + Duration::from_millis(self.0);
        write!(f, "{}", humantime::format_rfc3339_millis(time))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let time = humantime::parse_rfc3339(&text).map_err(serde::de::Error::custom)?;
        let since = time.duration_since(UNIX_EPOCH);
        let since = since.map_err(serde::de::Error::custom)?;
        Ok(Self::from_millis(since.as_millis() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn written_with_milliseconds_in_utc() {
        let at = Timestamp::from_millis(1_718_419_200_123);
        assert_eq!(at.to_string(), "2024-06-15T02:40:00.123Z");
    }

    #[test]
    fn ages_never_go_below_zero() {
        let (early, late) = (Timestamp::from_millis(1_000), Timestamp::from_millis(3_000));
        assert_eq!(early.age(late), Duration::from_secs(2));
        assert_eq!(late.age(early), Duration::ZERO);
        assert_eq!(late.minus(Duration::from_secs(2)), early);
        assert_eq!(early.minus(Duration::from_secs(2)).millis(), 0);
    }

    proptest! {
        #[test]
        fn written_values_read_back(millis in 0..=Timestamp::MAX_MILLIS) {
            let at = Timestamp::from_millis(millis);
            let json = serde_json::to_string(&at).unwrap();
            prop_assert_eq!(serde_json::from_str::<Timestamp>(&json).unwrap(), at);
        }
    }
}
