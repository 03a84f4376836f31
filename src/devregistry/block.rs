//! Blocking reads: an answer is held back until its index moves, or its time is over.

use std::collections::HashMap;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::time::{Instant, sleep_until};

use super::decode::go_duration;
use super::state::{Data, Refusal, Shared};

const DEFAULT_WAIT: Duration = Duration::from_secs(300);
const MAX_WAIT: Duration = Duration::from_secs(600);

/// A request's query; a bare name has an empty value.
pub(super) type Query = HashMap<String, String>;

/// Waits as the query says. `moved` gives the index that is waited for to pass the query's.
pub(super) async fn for_index(
    shared: &Shared,
    query: &Query,
    moved: impl Fn(&Data) -> u64,
) -> Result<(), Refusal> {
    let index = match query.get("index") {
        None => 0,
        Some(text) => text
            .parse()
            .map_err(|_error| Refusal::bad("Invalid index"))?,
    };
    let until = Instant::now() + wait_of(query)?;
    if index > 0 {
        hold(shared, until, |data| moved(data) > index).await?;
    }
    Ok(())
}

/// Waits while `is_same` holds, at most as long as the query says.
pub(super) async fn while_same(
    shared: &Shared,
    query: &Query,
    is_same: impl Fn(&Data) -> bool,
) -> Result<(), Refusal> {
    let until = Instant::now() + wait_of(query)?;
    hold(shared, until, |data| !is_same(data)).await
}

async fn hold(
    shared: &Shared,
    until: Instant,
    is_over: impl Fn(&Data) -> bool,
) -> Result<(), Refusal> {
    let full = |_error| Refusal(StatusCode::TOO_MANY_REQUESTS, "too many polls".to_owned());
    let _room = shared.polls.try_acquire().map_err(full)?;
    let mut changes = shared.changes();
    while !shared.read(&is_over) {
        tokio::select! {
            _moved = changes.changed() => {}
            () = sleep_until(until) => break,
            () = shared.stopping.cancelled() => break,
        }
    }
    Ok(())
}

/// Consul lets a wait run up to a sixteenth longer, so that polls drift apart.
fn wait_of(query: &Query) -> Result<Duration, Refusal> {
    let wait = match query.get("wait") {
        None => Duration::ZERO,
        Some(text) => go_duration(text).map_err(|_why| Refusal::bad("Invalid wait time"))?,
    };
    let wait = if wait.is_zero() {
        DEFAULT_WAIT
    } else {
        wait.min(MAX_WAIT)
    };
    Ok(wait + (wait / 16).mul_f64(fastrand::f64()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::JoinSet;

    use super::*;

    fn query(text: &str) -> Query {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_lets_go_of_what_is_held() {
        let shared = Arc::new(Shared::new(([127, 0, 0, 1], 1).into()));
        let all = shared.polls.available_permits();
        let mut polls = JoinSet::new();
        let held = shared.clone();
        polls.spawn(async move { for_index(&held, &query("index=1&wait=60s"), |_| 1).await });
        while shared.polls.available_permits() == all {
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        shared.stopping.cancel();
        assert_eq!(
            polls.join_next().await.expect("a poll").expect("no panic"),
            Ok(())
        );
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(shared.polls.available_permits(), all);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_runs_at_most_a_sixteenth_over() {
        let shared = Shared::new(([127, 0, 0, 1], 1).into());
        for (text, least, most) in [
            ("index=9", 300, 319),
            ("index=9&wait=16s", 16, 17),
            ("index=9&wait=2h", 600, 638),
            ("index=0&wait=16s", 0, 0),
            ("wait=16s", 0, 0),
        ] {
            let began = Instant::now();
            assert_eq!(for_index(&shared, &query(text), |_| 9).await, Ok(()));
            let held = began.elapsed();
            assert!(
                held >= Duration::from_secs(least) && held <= Duration::from_secs(most),
                "{text}: {held:?}"
            );
        }
        for text in ["index=x", "index=-1", "index=1&wait=5"] {
            assert!(
                for_index(&shared, &query(text), |_| 9).await.is_err(),
                "{text}"
            );
        }
    }
}
