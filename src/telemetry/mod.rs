//! What the process tells about itself: metrics and log setup.

pub mod log;
pub mod metrics;
