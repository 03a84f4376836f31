//! What a read asks for and what comes with its answer.

use std::time::Duration;

use reqwest::header::HeaderMap;

/// How to ask: at once, or held back until something past `index` happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// `None` answers at once. Never 0: Consul takes that as none.
    pub index: Option<u64>,
    /// How long Consul may hold the answer back; means nothing without an index.
    pub wait: Duration,
    /// Lets any server answer; false asks the leader.
    pub stale: bool,
}

impl Poll {
    /// Asks any server, at once.
    pub const NOW: Poll = Poll {
        index: None,
        wait: Duration::ZERO,
        stale: true,
    };

    /// Asks the leader, at once.
    pub const CONSISTENT: Poll = Poll {
        stale: false,
        ..Poll::NOW
    };

    /// Asks for what comes after `index`, for at most `wait`.
    pub const fn after(index: u64, wait: Duration) -> Poll {
        Poll {
            index: Some(index),
            wait,
            stale: true,
        }
    }

    pub(super) fn is_blocking(&self) -> bool {
        self.index.is_some()
    }
}

/// A good answer and what its headers say about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    pub value: T,
    /// `X-Consul-Index`; 0 where it was missing or unreadable.
    pub index: u64,
    /// How long the answering server had been without contact to a leader.
    pub last_contact: Option<Duration>,
    pub known_leader: bool,
    /// Our token hid part of the result (Consul 1.11 and later say so).
    pub filtered_by_acls: bool,
}

impl<T> Answer<T> {
    pub(super) fn new(headers: &HeaderMap, value: T) -> Answer<T> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let number = |name: &str| text(name).and_then(|value| value.trim().parse::<u64>().ok());
        Answer {
            value,
            index: number("x-consul-index").unwrap_or(0),
            last_contact: number("x-consul-lastcontact").map(Duration::from_millis),
            known_leader: text("x-consul-knownleader") == Some("true"),
            filtered_by_acls: text("x-consul-results-filtered-by-acls") == Some("true"),
        }
    }

    /// Puts another value in place of this one.
    pub fn with<U>(self, value: U) -> Answer<U> {
        Answer {
            value,
            index: self.index,
            last_contact: self.last_contact,
            known_leader: self.known_leader,
            filtered_by_acls: self.filtered_by_acls,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_index_is_zero() {
        for (index, expected) in [("7", 7), ("0", 0), ("abc", 0), ("-1", 0), ("", 0)] {
            let mut headers = HeaderMap::new();
            headers.insert("x-consul-index", index.parse().expect("a header value"));
            assert_eq!(Answer::new(&headers, ()).index, expected, "{index:?}");
        }
        assert_eq!(Answer::new(&HeaderMap::new(), ()).index, 0);
    }
}
