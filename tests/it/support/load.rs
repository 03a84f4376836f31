//! Steady traffic: calls begin at a fixed rate, whatever becomes of those before them.

use super::client::client;
use super::wait::wait_until;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Calls under way at once; one that finds no room counts as failed.
const MOST_UNDER_WAY: usize = 2_000;

/// For as many calls as a test ever waits for at once.
const MORE_WITHIN: Duration = Duration::from_secs(120);

/// One call as its client saw it.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub task: String,
    /// When it was to begin; its time counts from here, also if the machine was late.
    pub due: Instant,
    pub took: Duration,
    /// The status and the state in the reply, or why there is none.
    pub answer: Result<(u16, String), String>,
}

/// Traffic under way; stops with its value.
pub struct Load {
    outcomes: Arc<Mutex<Vec<Outcome>>>,
    urls: Urls,
    stop: oneshot::Sender<()>,
    worker: JoinSet<()>,
}

/// The listeners that calls go through in turn, and those under way by listener.
#[derive(Clone, Default)]
struct Urls {
    open: Arc<Mutex<Vec<String>>>,
    under_way: Arc<Mutex<HashMap<String, usize>>>,
}

/// What became of the calls, in the order of their beginning.
pub struct Record(pub Vec<Outcome>);

impl Load {
    /// Invokes `agent` with `input` `rate` times a second, through the listeners at `urls` in
    /// turn; each call is a task of its own.
    pub fn start(rate: u32, urls: &[String], agent: &str, input: &Value) -> Self {
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = oneshot::channel();
        let through = Urls::default();
        *through.open.lock().unwrap() = urls.to_vec();
        let traffic = Traffic {
            client: client(),
            urls: through.clone(),
            agent: agent.to_owned(),
            input: input.clone(),
            outcomes: Arc::clone(&outcomes),
        };
        let mut worker = JoinSet::new();
        worker.spawn(traffic.run(Duration::from_secs(1) / rate, stopped));
        Self {
            outcomes,
            urls: through,
            stop,
            worker,
        }
    }

    /// Sends further calls through these listeners, and returns once none is under way elsewhere.
    pub async fn turn_to(&self, urls: &[String]) {
        *self.urls.open.lock().unwrap() = urls.to_vec();
        wait_until(MORE_WITHIN, "calls that end elsewhere", async || {
            let under_way = self.urls.under_way.lock().unwrap();
            let mut elsewhere = under_way.iter().filter(|(url, _)| !urls.contains(url));
            elsewhere.all(|(_, count)| *count == 0)
        })
        .await;
    }

    /// Counts the calls that have ended.
    pub fn ended(&self) -> usize {
        self.outcomes.lock().unwrap().len()
    }

    /// Waits until `count` more calls have ended.
    pub async fn more(&self, count: usize) {
        let until = self.ended() + count;
        wait_until(MORE_WITHIN, "further calls", async || self.ended() >= until).await;
    }

    /// Begins no more calls and returns all of them, once the last has ended.
    pub async fn stop(self) -> Record {
        self.stop.send(()).ok();
        self.worker.join_all().await;
        let mut outcomes = std::mem::take(&mut *self.outcomes.lock().unwrap());
        outcomes.sort_by_key(|outcome| outcome.due);
        Record(outcomes)
    }
}

impl Record {
    /// Returns the calls that did not end as completed.
    pub fn failed(&self) -> Vec<&Outcome> {
        let completed = |outcome: &&Outcome| !matches!(&outcome.answer, Ok((200, state)) if state == "completed");
        self.0.iter().filter(completed).collect()
    }

    /// Returns the calls whose client got an answer.
    pub fn answered(&self) -> Vec<&Outcome> {
        let answered = |outcome: &&Outcome| outcome.answer.is_ok();
        self.0.iter().filter(answered).collect()
    }

    /// Returns the ids of all tasks.
    pub fn tasks(&self) -> Vec<String> {
        self.0.iter().map(|outcome| outcome.task.clone()).collect()
    }

    /// Returns the time that `quantile` of the calls begun in `when` stayed below.
    pub fn quantile(&self, quantile: f64, when: Range<Instant>) -> Duration {
        let begun = self.0.iter().filter(|outcome| when.contains(&outcome.due));
        let mut times: Vec<Duration> = begun.map(|outcome| outcome.took).collect();
        assert!(!times.is_empty(), "no call began in that time");
        times.sort();
        let rank = (times.len() as f64 * quantile).ceil() as usize;
        times[rank.clamp(1, times.len()) - 1]
    }
}

impl Urls {
    fn take(&self, number: usize) -> Way<'_> {
        // Counted under the same lock, so that who turns away sees every call.
        let open = self.open.lock().unwrap();
        let url = open[number % open.len()].clone();
        let mut under_way = self.under_way.lock().unwrap();
        *under_way.entry(url.clone()).or_default() += 1;
        Way { urls: self, url }
    }
}

/// A call's use of a listener.
struct Way<'a> {
    urls: &'a Urls,
    url: String,
}

impl Drop for Way<'_> {
    fn drop(&mut self) {
        let mut under_way = self.urls.under_way.lock().unwrap();
        if let Some(count) = under_way.get_mut(&self.url) {
            *count -= 1;
        }
    }
}

#[derive(Clone)]
struct Traffic {
    client: reqwest::Client,
    urls: Urls,
    agent: String,
    input: Value,
    outcomes: Arc<Mutex<Vec<Outcome>>>,
}

impl Traffic {
    async fn run(self, pace: Duration, mut stopped: oneshot::Receiver<()>) {
        let run = format!("load-{:08x}", fastrand::u32(..));
        let room = Arc::new(Semaphore::new(MOST_UNDER_WAY));
        let mut calls = JoinSet::new();
        let mut beat = interval(pace);
        beat.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for number in 0_usize.. {
            let due = tokio::select! {
                due = beat.tick() => due,
                _ = &mut stopped => break,
            };
            while calls.try_join_next().is_some() {}
            let (traffic, room) = (self.clone(), Arc::clone(&room));
            let task = format!("{run}-{number}");
            calls.spawn(async move {
                let answer = match room.try_acquire() {
                    Ok(_place) => traffic.invoke(number, &task).await,
                    Err(_full) => Err(format!("{MOST_UNDER_WAY} calls are under way")),
                };
                let took = due.elapsed();
                let mut outcomes = traffic.outcomes.lock().unwrap();
                outcomes.push(Outcome {
                    task,
                    due,
                    took,
                    answer,
                });
            });
        }
        while calls.join_next().await.is_some() {}
    }

    async fn invoke(&self, number: usize, task: &str) -> Result<(u16, String), String> {
        let way = self.urls.take(number);
        let url = &way.url;
        let body = json!({
            "agent": self.agent, "input": self.input, "context": {"task_id": task},
        });
        let request = self.client.post(format!("{url}/hermes/invoke")).json(&body);
        let reply = request.send().await.map_err(|error| format!("{error:?}"))?;
        let status = reply.status().as_u16();
        let state = reply.headers().get("hermes-state");
        let state = state.map_or("", |state| state.to_str().unwrap()).to_owned();
        // An answer counts when all of it has come.
        reply.bytes().await.map_err(|error| format!("{error:?}"))?;
        Ok((status, state))
    }
}
