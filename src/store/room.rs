//! How much a table may hold, and how much may come before that is looked at again.

use std::sync::atomic::{AtomicI64, Ordering};

/// Where there is too much, this share of the bounds is left: counting a hundred thousand rows
/// takes milliseconds of the one writer, and so does removing a thousand.
const LEFT_PERCENT: i64 = 99;

/// How much is kept at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub max_rows: i64,
    pub max_bytes: i64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_rows: 100_000,
            max_bytes: 256 << 20,
        }
    }
}

impl Bounds {
    /// Says whether this is as much as may be.
    pub fn are_reached(self, rows: i64, bytes: i64) -> bool {
        rows >= self.max_rows || bytes >= self.max_bytes
    }

    /// Returns what is to be left once they were reached.
    pub fn aim(self) -> Self {
        Self {
            max_rows: self.max_rows / 100 * LEFT_PERCENT,
            max_bytes: self.max_bytes / 100 * LEFT_PERCENT,
        }
    }
}

/// What may come before rows and bytes are counted again; at first nothing, since nobody has
/// counted yet.
#[derive(Debug, Default)]
pub struct Room {
    rows: AtomicI64,
    bytes: AtomicI64,
}

impl Room {
    /// Takes so much; false if it is time to count.
    pub fn take(&self, rows: i64, bytes: i64) -> bool {
        // Relaxed: a count that comes a little early or late costs nothing.
        let rows_left = self.rows.fetch_sub(rows, Ordering::Relaxed) - rows;
        let bytes_left = self.bytes.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        rows_left > 0 && bytes_left > 0
    }

    /// Notes what a count has found to be left.
    pub fn counted(&self, (rows, bytes): (i64, i64)) {
        self.rows.store(rows, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}
