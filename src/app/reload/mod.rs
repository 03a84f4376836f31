//! Reading the settings again while the process runs.
//!
//! - all or nothing: settings or contracts with a fault change nothing, and every fault is told
//! - reloads follow each other; none begins once the process leaves
//! - which keys can change is said where keys are declared (`config`); the others are named and
//!   wait for a restart
//! - elsewhere: what the rooms are given (`rooms`), how contracts follow each other (`serving`)

mod rooms;

pub use rooms::{Callee, Rooms, admission, problem};

use super::compose;
use crate::apart;
use crate::config::{self, Settings};
use crate::lifecycle::{Observer, Phase};
use crate::telemetry::log;
use arc_swap::ArcSwap;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Reloads that wait for the one under way; more are refused.
const MOST_WAITING: usize = 16;

/// What reading again led to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Keys whose new values are in force.
    pub applied: Vec<String>,
    /// Keys whose new values want a restart.
    pub waiting: Vec<String>,
}

/// Who is given the settings.
pub trait Takes: Send + 'static {
    /// All that can fail is done, and nothing has changed.
    type Prepared: Send;

    /// Says whether a key means anything here.
    fn concerns(&self, key: &str) -> bool;

    /// Looks for everything that would be wrong with other settings; changes nothing.
    fn prepare(
        &self,
        before: &Settings,
        settings: &Settings,
    ) -> impl Future<Output = Result<Self::Prepared, Vec<String>>> + Send;

    /// Puts in force what was prepared; returns the keys whose files have another content.
    fn settle(
        &mut self,
        prepared: Self::Prepared,
        settings: &Settings,
    ) -> impl Future<Output = Vec<String>> + Send;
}

/// Why nothing was taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{}", .0.join("\n"))]
    Problems(Vec<String>),
    #[error("the process is leaving; what it still does, it does by the settings in force")]
    Leaving,
    #[error("{MOST_WAITING} reloads are waiting already; ask again later")]
    Crowded,
}

type Answer = oneshot::Sender<Result<Reloaded, Refused>>;

/// Asks for reloads, and knows what is in force.
#[derive(Clone)]
pub struct Reload {
    asks: mpsc::Sender<Option<Answer>>,
    state: Arc<ArcSwap<InForce>>,
}

/// The settings in force, and those read last, which may wait.
struct InForce {
    settings: Settings,
    read: Settings,
}

/// Carries reloads out, one after the other; a worker.
pub struct Reloader<T> {
    rooms: T,
    phase: Observer,
    asked: mpsc::Receiver<Option<Answer>>,
    state: Arc<ArcSwap<InForce>>,
}

impl Reload {
    /// Makes the one who asks and the worker who does it.
    pub fn new<T>(in_force: Settings, rooms: T, phase: Observer) -> (Self, Reloader<T>) {
        let (asks, asked) = mpsc::channel(MOST_WAITING);
        let state = Arc::new(ArcSwap::from_pointee(InForce {
            read: in_force.clone(),
            settings: in_force,
        }));
        let reloader = Reloader {
            rooms,
            phase,
            asked,
            state: state.clone(),
        };
        (Self { asks, state }, reloader)
    }

    /// Shows the values in force with their origins, and which others wait for a restart.
    pub fn in_force(&self) -> Value {
        let state = self.state.load();
        let mut shown = state.settings.to_json();
        let waiting = state.settings.differences(&state.read);
        let all = waiting.live.into_iter().chain(waiting.waiting);
        shown["restart"] = all
            .map(|key| {
                let value = state.read.effective.get(&key);
                let value = value.map(|entry| json!(entry.value));
                (key, value.unwrap_or_default())
            })
            .collect();
        shown
    }

    /// Returns the limits in force.
    pub fn limits(&self) -> config::Limits {
        self.state.load().settings.limits.clone()
    }

    /// Reads file, variables and flags again, and applies what can be.
    pub async fn reload(&self) -> Result<Reloaded, Refused> {
        let (answer, answered) = oneshot::channel();
        let asked = self.asks.try_send(Some(answer));
        asked.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Refused::Crowded,
            mpsc::error::TrySendError::Closed(_) => Refused::Leaving,
        })?;
        // A worker that has gone has done so because the process ends.
        answered.await.unwrap_or(Err(Refused::Leaving))
    }

    /// Reloads as a SIGHUP asks: the outcome goes to the log.
    pub fn hangup(&self) {
        // A full queue is one of reloads that are still to read what is there now.
        self.asks.try_send(None).ok();
    }
}

impl<T: Takes> Reloader<T> {
    /// Runs for as long as somebody may ask.
    pub async fn run(mut self) {
        while let Some(answer) = self.asked.recv().await {
            let done = self.carry_out().await;
            match &done {
                Ok(reloaded) => reloaded.tell(),
                Err(Refused::Problems(problems)) => {
                    for problem in problems {
                        tracing::error!(problem, "a reload was refused; all stays as it is");
                    }
                }
                Err(refused) => tracing::warn!(%refused, "a reload was refused"),
            }
            if let Some(answer) = answer {
                // Whoever asked may have gone; the log tells it.
                answer.send(done).ok();
            }
        }
    }

    async fn carry_out(&mut self) -> Result<Reloaded, Refused> {
        if self.phase.phase() >= Phase::Leaving {
            return Err(Refused::Leaving);
        }
        let before = self.state.load_full();
        let (read, settings) = read(before.clone()).await?;
        let mut applied = before.settings.differences(&settings).live;
        applied.retain(|key| self.rooms.concerns(key));
        let prepared = self.rooms.prepare(&before.settings, &settings).await;
        let prepared = prepared.map_err(Refused::Problems)?;
        if settings.log.filter != before.settings.log.filter {
            let set = log::set_filter(&settings.log.filter);
            set.map_err(|error| Refused::Problems(vec![format!("log.filter: {error}")]))?;
        }
        let moved = self.rooms.settle(prepared, &settings).await;
        // A file may have another content under the same name.
        applied.extend(
            moved
                .into_iter()
                .filter(|key| !applied.contains(key))
                .collect::<Vec<_>>(),
        );
        let left = settings.differences(&read);
        let waiting = left.live.into_iter().chain(left.waiting).collect();
        self.state.store(Arc::new(InForce { settings, read }));
        Ok(Reloaded { applied, waiting })
    }
}

/// Reads what is there now, and what of it can be in force.
async fn read(before: Arc<InForce>) -> Result<(Settings, Settings), Refused> {
    let read = apart::run(move || {
        let read = before.settings.again()?;
        let settings = before.settings.adopt(&read)?;
        Ok::<_, config::Error>((read, settings))
    });
    let read = read.await;
    read.map_err(|error| {
        let problems = error.problems().iter().map(ToString::to_string);
        Refused::Problems(problems.collect())
    })
}

impl Reloaded {
    /// Tells the log.
    fn tell(&self) {
        let (applied, waiting) = (self.applied.join(" "), self.waiting.join(" "));
        if self.waiting.is_empty() {
            tracing::info!(applied, "settings read again");
        } else {
            tracing::warn!(
                applied,
                waiting,
                "settings read again; some want a restart to take effect"
            );
        }
    }

    /// As the admin listener tells it.
    pub fn to_json(&self) -> Value {
        json!({"applied": self.applied, "restart": self.waiting})
    }
}
