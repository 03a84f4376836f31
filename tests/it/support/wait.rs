//! Waiting for a condition with a deadline.

use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often a condition is looked at.
const PACE: Duration = Duration::from_millis(20);

/// Waits until `condition` gives a value; fails the test when it has not within `within`.
pub async fn wait_for<T>(
    within: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "no {what} within {within:?}");
        sleep(PACE).await;
    }
}

/// Waits until `condition` holds; fails the test when it does not within `within`.
pub async fn wait_until(within: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    wait_for(within, what, async || condition().await.then_some(())).await;
}
