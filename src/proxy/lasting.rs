//! Calls that outlive the connection that asked for them.
//!
//! hyper drops the answer's future when the downstream hangs up. A contract call has begun
//! something that must be recorded truly, so it goes on by itself until its deadline.

use super::attempt::Presence;
use super::body::Body;
use crate::lifecycle::{Observer, Phase};
use http::Response;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio_util::task::TaskTracker;

type Call = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// How many calls are carried on at most: a caller that hangs up again and again frees its
/// connection each time, but not what it began.
const MOST_CARRIED: usize = 10_000;

/// Who carries on the calls whose connection has gone.
#[derive(Debug, Clone)]
pub struct Keeper {
    calls: TaskTracker,
    phase: Observer,
    /// How many were taken over from a connection.
    carried: Arc<AtomicUsize>,
    /// How many were given up since there were too many, since the last that was taken over.
    refused: Arc<AtomicUsize>,
}

impl Keeper {
    /// `phase` ends what is left when the process stops.
    pub fn new(calls: TaskTracker, phase: Observer) -> Self {
        Self {
            calls,
            phase,
            carried: Arc::default(),
            refused: Arc::default(),
        }
    }

    /// Carries out a call that never depended on a connection; says whether it has begun. How many
    /// there may be is the business of who asks.
    pub fn begin(&self, call: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut phase = self.phase.clone();
        let is_over = phase.phase() >= Phase::Stopping;
        if !is_over {
            self.calls.spawn(async move {
                tokio::select! {
                    () = call => {}
                    () = phase.reached(Phase::Stopping) => {}
                }
            });
        }
        !is_over
    }

    fn carry_on(&self, call: Call) {
        // Dropped here, the attempt settles itself as interrupted.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        if self.carried.load(Ordering::Relaxed) >= MOST_CARRIED {
            // The first of a row is told as it happens, the rest by their number.
            if self.refused.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(
                    limit = MOST_CARRIED,
                    "callers hang up on so many calls that further ones are given up with them"
                );
            }
            return;
        }
        let refused = self.refused.swap(0, Ordering::Relaxed);
        if refused > 0 {
            tracing::warn!(refused, "calls were given up when their callers hung up");
        }
        let carried = Carried::one_more(&self.carried);
        self.begin(async move {
            drop(call.await);
            drop(carried);
        });
    }
}

/// Counts a call for as long as it is carried on.
struct Carried(Arc<AtomicUsize>);

impl Carried {
    fn one_more(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that its keeper carries on when it is dropped before its end.
pub struct Lasting {
    call: Option<Call>,
    presence: Arc<Presence>,
    keeper: Keeper,
}

impl Lasting {
    /// Wraps `call`; `presence` hears when the downstream goes.
    pub fn new(
        keeper: Keeper,
        presence: Arc<Presence>,
        call: impl Future<Output = Response<Body>> + Send + 'static,
    ) -> Self {
        Self {
            call: Some(Box::pin(call)),
            presence,
            keeper,
        }
    }
}

impl Future for Lasting {
    type Output = Response<Body>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response<Body>> {
        let Some(call) = &mut self.call else {
            return Poll::Pending;
        };
        let answered = call.as_mut().poll(context);
        if answered.is_ready() {
            self.call = None;
        }
        answered
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else {
            return;
        };
        self.presence.left();
        self.keeper.carry_on(call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::Lifecycle;
    use std::sync::atomic::AtomicBool;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_dropped_call_runs_to_its_end() {
        let calls = TaskTracker::new();
        let (go, gone) = oneshot::channel::<()>();
        let ended = Arc::new(AtomicBool::new(false));
        let mark = ended.clone();
        let (_lifecycle, phase) = Lifecycle::new();
        let keeper = Keeper::new(calls.clone(), phase);
        let mut call = Box::pin(Lasting::new(keeper, Arc::default(), async move {
            gone.await.ok();
            mark.store(true, Ordering::SeqCst);
            Response::new(Body::empty())
        }));
        assert!(futures_poll(call.as_mut()).is_pending());
        drop(call);
        go.send(()).unwrap();
        calls.close();
        calls.wait().await;
        assert!(ended.load(Ordering::SeqCst));
    }

    fn futures_poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(std::task::Waker::noop()))
    }
}
