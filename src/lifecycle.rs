//! The phases of a process, from start to exit, and how everyone hears of them.
//!
//! - phases only move forward
//! - elsewhere: what each phase means for a listener (`proxy`), who moves them (`app`)

use tokio::sync::watch;

/// Where a process stands, in life order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Listeners come up; nothing is promised yet.
    Starting,
    /// Normal service.
    Serving,
    /// Told to stop: unready and deregistered, still serving for callers that have not heard.
    Leaving,
    /// New inbound calls are refused; running calls and all outbound calls go on.
    Draining,
    /// Idle or out of time: connections end, owed rows are flushed.
    Stopping,
}

impl Phase {
    /// Says whether new inbound work is taken.
    pub fn takes_inbound(self) -> bool {
        self <= Phase::Leaving
    }

    /// Says whether replies should ask the peer to close its connection.
    pub fn closes_connections(self) -> bool {
        self >= Phase::Leaving
    }
}

/// Moves the phase; held by the process entrance alone.
#[derive(Debug)]
pub struct Lifecycle {
    phase: watch::Sender<Phase>,
}

/// Reads the phase; cheap to clone, given to every listener and worker.
#[derive(Debug, Clone)]
pub struct Observer {
    phase: watch::Receiver<Phase>,
}

impl Lifecycle {
    /// Begins in `Starting`.
    pub fn new() -> (Self, Observer) {
        let (sender, receiver) = watch::channel(Phase::Starting);
        (Self { phase: sender }, Observer { phase: receiver })
    }

    /// Moves forward to `phase`; a step back is ignored.
    pub fn advance(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let forward = phase > *current;
            if forward {
                *current = phase;
            }
            forward
        });
    }
}

impl Observer {
    /// Returns the present phase.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until `phase` or a later one is reached; also returns when the owner is gone.
    pub async fn reached(&mut self, phase: Phase) {
        // An error means that the lifecycle was dropped, which is the end in any case.
        drop(self.phase.wait_for(|current| *current >= phase).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn phases_only_move_forward() {
        let (lifecycle, mut observer) = Lifecycle::new();
        lifecycle.advance(Phase::Draining);
        lifecycle.advance(Phase::Serving);
        assert_eq!(observer.phase(), Phase::Draining);
        observer.reached(Phase::Leaving).await;
        drop(lifecycle);
        observer.reached(Phase::Stopping).await;
    }
}
