//! The calls that this process has begun and whose end is not written yet.
//!
//! A row in flight that is not here was left: its end could not be written, and nobody will ever
//! say what came of it. And while the disk is slow, what is here is known without it.

use super::Name;
use crate::identity::Digest;
use crate::task::Id;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// As many as are served at once and as have an end on its way into the file; both are bounded.
#[derive(Debug, Default)]
pub struct Live {
    runs: Mutex<Runs>,
}

#[derive(Debug, Default)]
struct Runs {
    begun: u64,
    by_id: HashMap<Box<str>, Run>,
}

#[derive(Debug)]
struct Run {
    /// Runs are numbered as they begin.
    number: u64,
    name: Name,
    payload: Digest,
}

impl Live {
    /// Enters a run before its row is written.
    pub fn enter(&self, run: &Id, name: Name, payload: Digest) {
        let mut runs = self.lock();
        runs.begun += 1;
        let entered = Run {
            number: runs.begun,
            name,
            payload,
        };
        runs.by_id.insert(Box::from(run.as_str()), entered);
    }

    /// Takes a run out, once its end is written or cannot be.
    pub fn leave(&self, run: &Id) {
        self.lock().by_id.remove(run.as_str());
    }

    pub fn holds(&self, run: &str) -> bool {
        self.lock().by_id.contains_key(run)
    }

    /// Returns the payload of a run of the same name that began before this one.
    pub fn earlier(&self, run: &Id) -> Option<Digest> {
        let runs = self.lock();
        let this = runs.by_id.get(run.as_str())?;
        let is_earlier = |other: &&Run| other.number < this.number && other.name == this.name;
        runs.by_id.values().find(is_earlier).map(|run| run.payload)
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
