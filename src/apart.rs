//! Work that keeps a processor busy, apart from the threads that move traffic along.
//!
//! - a panic is not lost: it goes on in whoever waits (`run`), or is told to it (`caught`)
//! - whoever stops waiting leaves the work to end by itself
//! - elsewhere: how much may be under way at once, which is its room's affair

use std::panic::resume_unwind;
use tokio::task::{JoinError, spawn_blocking};

/// The work panicked; the log has where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the work panicked; the log tells where")]
pub struct Panicked;

/// Does work whose panic is a fault of ours, and ends whoever waits as if it had done it itself.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => unwind(error).await,
    }
}

/// Does work on what strangers wrote, which must not end whoever waits.
pub async fn caught<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Panicked> {
    match spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(error) if error.is_panic() => Err(Panicked),
        Err(error) => unwind(error).await,
    }
}

/// Hands a panic on; work that was never begun has none, and its runtime is about to drop those
/// who wait.
async fn unwind<T>(error: JoinError) -> T {
    match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_cancelled) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_told_to_those_who_catch_it() {
        assert_eq!(run(|| 7).await, 7);
        assert_eq!(caught(|| 7).await, Ok(7));
        assert_eq!(
            caught(|| panic!("on purpose")).await,
            Err::<(), _>(Panicked)
        );
    }

    #[tokio::test]
    #[should_panic = "on purpose"]
    async fn a_panic_goes_on_in_those_who_do_not() {
        run(|| panic!("on purpose")).await;
    }
}
