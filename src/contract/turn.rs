//! Checks of large bodies take turns.
//!
//! The machine's processors are what all who check share: both listeners and the trials. Those
//! who wait for their turn keep no thread busy, and wait no longer than they have time.
//!
//! - elsewhere: how long one check may take (`cost`), what a check in vain means (`proxy`)

use std::sync::LazyLock;

use tokio::{
    sync::Semaphore,
    task::block_in_place,
    time::{Instant, timeout_at},
};

/// Bodies above this are checked off the threads that move other traffic along.
const LARGE: usize = 64 * 1024;

/// How many large bodies are checked at once.
static PLACES: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism();
    Semaphore::new(processors.map_or(1, |many| many.get()))
});

/// Other bodies were being checked for as long as there was time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("other large bodies were being checked for as long as there was time to wait")]
pub struct Crowded;

/// Does the `check` of a body of so many bytes, a large one when it is its turn.
///
/// The check itself has no deadline: it is bounded by its cost.
pub async fn in_turn<T>(
    length: usize,
    until: Instant,
    check: impl FnOnce() -> T,
) -> Result<T, Crowded> {
    match length > LARGE {
        true => in_turn_of(&PLACES, until, check).await,
        false => Ok(check()),
    }
}

async fn in_turn_of<T>(
    places: &Semaphore,
    until: Instant,
    check: impl FnOnce() -> T,
) -> Result<T, Crowded> {
    // A place that is free is had also when there is no time to wait.
    match timeout_at(until, places.acquire()).await {
        // Never closed.
        Ok(_place) => Ok(block_in_place(check)),
        Err(_elapsed) => Err(Crowded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_turn_is_waited_for_and_not_for_ever() {
        let places = Semaphore::new(1);
        let now = Instant::now();
        assert_eq!(in_turn_of(&places, now, || 7).await, Ok(7));
        let taken = places.acquire().await.unwrap();
        assert_eq!(in_turn_of(&places, now, || 7).await, Err(Crowded));
        let later = now + Duration::from_secs(60);
        let waiting = in_turn_of(&places, later, || 7);
        let (done, ()) = tokio::join!(waiting, async { drop(taken) });
        assert_eq!(done, Ok(7));
    }

    #[tokio::test]
    async fn small_bodies_need_no_turn() {
        let past = Instant::now();
        assert_eq!(in_turn(LARGE, past, || 7).await, Ok(7));
    }
}
