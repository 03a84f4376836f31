//! Reading the settings again while the process runs.
//!
//! - settings with a fault change nothing, and every fault is told
//! - `log.filter` takes effect; whatever else differs is named and waits for a restart, because
//!   listeners, files and contracts are set up once

use crate::config::{self, Settings};
use crate::telemetry::log;
use serde_json::{Value, json};
use std::sync::{Mutex, PoisonError};

/// The settings in force and the way to read them again.
pub struct Reload(Mutex<Settings>);

/// What reading again led to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Keys whose new values are in force.
    pub applied: Vec<String>,
    /// Keys whose new values want a restart.
    pub waiting: Vec<String>,
}

/// Why nothing was taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{0}")]
    Settings(#[from] config::Error),
    #[error("log.filter: {0}")]
    Filter(#[from] log::Error),
}

impl Reload {
    pub fn new(in_force: Settings) -> Self {
        Self(Mutex::new(in_force))
    }

    /// Shows the values in force with their origins.
    pub fn in_force(&self) -> Value {
        self.lock().to_json()
    }

    /// Reads file, variables and flags again, and applies what can be.
    pub fn reload(&self) -> Result<Reloaded, Refused> {
        let mut in_force = self.lock();
        let read = in_force.again()?;
        let mut reloaded = Reloaded::default();
        for key in in_force.differences(&read) {
            if key == "log.filter" {
                log::set_filter(&read.log.filter)?;
                in_force.take_log_filter(&read);
                reloaded.applied.push(key);
            } else {
                reloaded.waiting.push(key);
            }
        }
        Ok(reloaded)
    }

    /// Reloads as a SIGHUP asks: the outcome goes to the log.
    pub fn hangup(&self) {
        match self.reload() {
            Ok(reloaded) => reloaded.tell(),
            Err(error) => tracing::error!(%error, "SIGHUP: the settings stay as they are"),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Settings> {
        // Settings are replaced key by key; a panic in between leaves them usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reloaded {
    /// Tells the log.
    pub fn tell(&self) {
        let (applied, waiting) = (self.applied.join(" "), self.waiting.join(" "));
        if self.waiting.is_empty() {
            tracing::info!(applied, "settings read again");
        } else {
            tracing::warn!(
                applied,
                waiting,
                "settings read again; some want a restart to take effect"
            );
        }
    }

    /// As the admin listener tells it.
    pub fn to_json(&self) -> Value {
        json!({"applied": self.applied, "restart": self.waiting})
    }
}

impl Refused {
    /// Lists every reason.
    pub fn problems(&self) -> Vec<String> {
        match self {
            Refused::Settings(error) => error.problems().iter().map(ToString::to_string).collect(),
            Refused::Filter(_) => vec![self.to_string()],
        }
    }
}
