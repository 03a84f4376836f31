//! One call that is answered later, as long as this process carries it out.

use super::Reply;
use crate::task::{Id, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// How far a call has come.
#[derive(Debug, Clone)]
pub enum Stage {
    /// Nobody has acknowledged it.
    Asked,
    /// The application has it; the call is about to be entered.
    Acknowledged,
    /// It can be asked for.
    Entered,
    Ended(Arc<Reply>),
    /// It was given up without a reply.
    Lost,
}

/// What those who carry a call out and those who wait for it share.
#[derive(Debug)]
pub struct Open {
    pub task_id: Id,
    pub call_id: Id,
    stage: watch::Sender<Stage>,
    state: watch::Sender<State>,
    is_acknowledged: AtomicBool,
    is_counted: AtomicBool,
}

impl Open {
    pub fn new(task_id: Id, call_id: Id) -> Arc<Self> {
        Arc::new(Self {
            task_id,
            call_id,
            stage: watch::Sender::new(Stage::Asked),
            state: watch::Sender::new(State::Pending),
            is_acknowledged: AtomicBool::new(false),
            is_counted: AtomicBool::new(false),
        })
    }

    /// Returns the state of its newest attempt, as long as that has not ended.
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Notes where its newest attempt stands; an end of one may not be the call's.
    pub fn moved(&self, state: State) {
        if !state.is_end() {
            self.state.send_replace(state);
        }
    }

    /// Notes that the application has it; once is enough.
    pub fn acknowledge(&self) {
        if !self.is_acknowledged.swap(true, Ordering::SeqCst) {
            self.stage.send_replace(Stage::Acknowledged);
        }
    }

    /// Says whether an application has it or had it.
    pub fn is_acknowledged(&self) -> bool {
        self.is_acknowledged.load(Ordering::SeqCst)
    }

    /// Notes that it can be asked for.
    pub fn enter(&self) {
        self.stage.send_replace(Stage::Entered);
    }

    /// Notes its end.
    pub fn end(&self, stage: Stage) {
        self.stage.send_replace(stage);
    }

    pub fn stage(&self) -> Stage {
        self.stage.borrow().clone()
    }

    /// Says who counts its request: whoever asks first.
    pub fn is_to_be_counted(&self) -> bool {
        !self.is_counted.swap(true, Ordering::SeqCst)
    }

    /// Waits for the acknowledgement or the end.
    pub async fn acknowledged(&self) {
        self.reached(|stage| !matches!(stage, Stage::Asked)).await;
    }

    /// Waits until it can be asked for or has ended.
    pub async fn entered(&self) -> Stage {
        let known = |stage: &Stage| !matches!(stage, Stage::Asked | Stage::Acknowledged);
        self.reached(known).await
    }

    /// Waits for its end.
    pub async fn ended(&self) -> Stage {
        let over = |stage: &Stage| matches!(stage, Stage::Ended(_) | Stage::Lost);
        self.reached(over).await
    }

    async fn reached(&self, wanted: impl FnMut(&Stage) -> bool) -> Stage {
        let mut stage = self.stage.subscribe();
        match stage.wait_for(wanted).await {
            Ok(stage) => stage.clone(),
            // The sender is our own.
            Err(_closed) => Stage::Lost,
        }
    }
}
