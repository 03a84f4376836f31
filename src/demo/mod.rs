//! Everything on one machine.

use crate::app;
use std::time::Duration;

/// What the demo is asked for.
pub struct Options {
    pub consul: Option<String>,
    pub run_for: Option<Duration>,
    pub once: bool,
    pub draw: fn(&[u8]) -> Result<String, serde_json::Error>,
    pub say: fn(&str),
}

pub async fn run(_options: Options) -> Result<bool, app::Error> {
    Ok(false)
}
