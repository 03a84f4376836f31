//! How long idle connections are trusted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A length that may change while it is in use; clones share it.
#[derive(Debug, Clone)]
pub struct Keep(Arc<AtomicU64>);

impl Keep {
    pub fn new(length: Duration) -> Self {
        Self(Arc::new(AtomicU64::new(millis(length))))
    }

    pub fn set(&self, length: Duration) {
        // Relaxed: it is a value of its own.
        self.0.store(millis(length), Ordering::Relaxed);
    }

    pub fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
