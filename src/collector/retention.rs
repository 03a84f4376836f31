//! Forgets tasks past their retention, a few at a time so that reports are never kept waiting.

use super::Desk;
use crate::task::Timestamp;
use std::time::Duration;

/// How often old tasks are looked for, unless the retention is shorter still.
const EVERY: Duration = Duration::from_secs(600);

/// The breath between two transactions.
const BREATH: Duration = Duration::from_millis(20);

/// Runs for ever.
pub(super) async fn run(desk: &Desk) {
    let mut terms = desk.terms.subscribe();
    loop {
        let retention = terms.borrow_and_update().retention;
        let every = EVERY.min(retention / 10).max(Duration::from_secs(1));
        let cutoff = Timestamp::now().minus(retention);
        loop {
            match desk.book.forget(cutoff).await {
                Ok(true) => tokio::time::sleep(BREATH).await,
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "old tasks could not be forgotten, will be tried again");
                    break;
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            Ok(()) = terms.changed() => {}
        }
    }
}
