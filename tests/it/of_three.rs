//! One of three instances is at fault: callers of idempotent work hardly notice, other work is
//! never done twice, and whatever is lost is shown where it was lost.

use crate::support::application::{Answer, Application};
use crate::support::collector::Collector;
use crate::support::consul::Consul;
use crate::support::contract;
use crate::support::fleet::{Caller, Member};
use crate::support::load::{Load, Outcome, Record};
use crate::support::pair::{FRAUD, RISK};
use crate::support::sidecar::Setup;
use crate::support::wait::wait_for;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Until ejection has acted, as far as a caller is promised anything.
const EJECTED_WITHIN: Duration = Duration::from_secs(5);
const RECORDED_WITHIN: Duration = Duration::from_secs(60);
const NAMES: [&str; 3] = ["fraud-1", "fraud-2", "fraud-3"];

/// What befalls the first of the three.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Sidecar and application are killed.
    Killed,
    /// The application takes requests and never answers.
    Hung,
    /// The application answers 500.
    Failing,
}

pub const FAULTS: [Fault; 3] = [Fault::Killed, Fault::Hung, Fault::Failing];

/// Which part of the calls must be completed: of all, and of those after ejection.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    pub all: f64,
    pub later: f64,
}

/// What a busy machine keeps, too.
const MOSTLY: Share = Share {
    all: 0.9,
    later: 0.95,
};

#[tokio::test]
async fn idempotent_work_is_completed_beside_a_killed_instance() {
    idempotent(Fault::Killed, 40, Duration::from_secs(7), MOSTLY).await;
}

#[tokio::test]
async fn idempotent_work_is_completed_beside_a_hung_instance() {
    idempotent(Fault::Hung, 40, Duration::from_secs(7), MOSTLY).await;
}

#[tokio::test]
async fn idempotent_work_is_completed_beside_a_failing_instance() {
    idempotent(Fault::Failing, 40, Duration::from_secs(7), MOSTLY).await;
}

#[tokio::test]
async fn other_work_is_never_done_twice_beside_a_killed_instance() {
    once(Fault::Killed, 40, Duration::from_secs(4)).await;
}

#[tokio::test]
async fn other_work_is_never_done_twice_beside_a_hung_instance() {
    once(Fault::Hung, 40, Duration::from_secs(4)).await;
}

/// Holds that callers of idempotent work get it done.
pub async fn idempotent(fault: Fault, rate: u32, length: Duration, share: Share) {
    let mut house = House::start(true).await;
    let (record, since) = house.suffer(fault, rate, length).await;
    let later = since + EJECTED_WITHIN;
    let all = completed(&record, |_| true);
    let after = completed(&record, |call| call.due >= later);
    eprintln!(
        "{fault:?}, idempotent: {} calls, {:.4} % completed, {:.4} % after {EJECTED_WITHIN:?}",
        record.0.len(),
        all * 100.0,
        after * 100.0
    );
    let failed = record.failed();
    assert!(all >= share.all, "{all}: {failed:#?}");
    assert!(after >= share.later, "{after}: {failed:#?}");
    house.knows_what_callers_saw(&record).await;
}

/// Holds that work which must not be done twice is not, and that each loss is a state.
pub async fn once(fault: Fault, rate: u32, length: Duration) {
    let mut house = House::start(false).await;
    let (record, _) = house.suffer(fault, rate, length).await;
    let executions = house.executions();
    let twice: Vec<_> = executions.iter().filter(|(_, count)| **count > 1).collect();
    eprintln!(
        "{fault:?}, not idempotent: {} calls, {} executed, {} lost",
        record.0.len(),
        executions.len(),
        record.failed().len()
    );
    assert!(twice.is_empty(), "done twice: {twice:#?}");
    assert!(completed(&record, |_| true) > 0.5, "{:#?}", record.failed());
    house.knows_what_callers_saw(&record).await;
}

/// Returns the part of some calls that was completed.
fn completed(record: &Record, which: impl Fn(&Outcome) -> bool) -> f64 {
    let all = record.0.iter().filter(|call| which(call)).count();
    let failed = record.failed();
    let failed = failed.iter().filter(|call| which(call)).count();
    assert!(all > 0, "no such call was made");
    1.0 - failed as f64 / all as f64
}

/// Three instances, a caller, and what they need around them. In the order in which they end.
struct House {
    caller: Caller,
    members: Vec<Member>,
    collector: Collector,
    _consul: Consul,
}

impl House {
    async fn start(is_idempotent: bool) -> Self {
        let (consul, collector) = tokio::join!(Consul::start(), Collector::start());
        let around = |setup: Setup| {
            let setup = setup.collector(&collector.url());
            setup.set("spool.retry", "200ms")
        };
        let mut body = contract::fraud_detection();
        body["constraints"] = json!({"timeout_ms": 500, "max_concurrent": 1000});
        body["idempotent"] = is_idempotent.into();
        let mut members = Vec::new();
        for name in NAMES {
            members.push(Member::start(&consul, name, body.clone(), around).await);
        }
        let caller = Caller::start(&consul, "payment", around).await;
        caller.knows(FRAUD, NAMES.len()).await;
        Self {
            caller,
            members,
            collector,
            _consul: consul,
        }
    }

    /// Makes calls for `length` from the fault on; returns them, and when the fault came.
    async fn suffer(&mut self, fault: Fault, rate: u32, length: Duration) -> (Record, Instant) {
        let urls = [self.caller.sidecar.outbound_url()];
        let load = Load::start(rate, &urls, FRAUD, &contract::fraud_input());
        // The caller has connections and knows everybody when it happens.
        load.more(rate as usize).await;
        let first = &mut self.members[0];
        let since = Instant::now();
        match fault {
            Fault::Killed => {
                first.sidecar.kill9();
                first.application.kill().await;
            }
            Fault::Hung => first.application.answer(RISK, Answer::Hang),
            Fault::Failing => {
                let failure = Answer::bytes(500, "text/plain", "no");
                first.application.answer(RISK, failure);
            }
        }
        // Not a wait for anything: the length of the show.
        tokio::time::sleep_until(since + length).await;
        (load.stop().await, since)
    }

    /// Counts by call how often an application was asked to do the work.
    fn executions(&self) -> HashMap<String, usize> {
        let mut executions = HashMap::new();
        for request in self
            .members
            .iter()
            .flat_map(|member| work(&member.application))
        {
            let key = request["idempotency-key"].to_str().unwrap().to_owned();
            *executions.entry(key).or_default() += 1;
        }
        executions
    }

    /// Waits until the collector shows each call in the state that its client was told.
    async fn knows_what_callers_saw(&self, record: &Record) {
        let tasks = record.tasks();
        let mut differing = Vec::new();
        let known = wait_for(RECORDED_WITHIN, "every task in its state", async || {
            let known = self.collector.tasks(&tasks).await;
            differing = record
                .0
                .iter()
                .filter(|call| !is_as_told(call, known.get(&call.task)))
                .map(|call| call.task.clone())
                .collect();
            differing.is_empty().then_some(known)
        });
        let known = known.await;
        for call in record.failed() {
            let verdict = known[&call.task]["verdict"].as_str().unwrap();
            assert!(!verdict.is_empty(), "{call:?}");
        }
    }
}

fn work(application: &Application) -> Vec<http::HeaderMap> {
    let received = application.received(RISK);
    received
        .into_iter()
        .map(|request| request.headers)
        .collect()
}

/// Says whether the record of a task agrees with what its client was told; work that was
/// completed although its client was told otherwise is shown as late.
fn is_as_told(call: &Outcome, task: Option<&Value>) -> bool {
    let Some(task) = task else { return false };
    let state = task["state"].as_str().unwrap();
    match &call.answer {
        Ok((_, told)) if told == state => true,
        Ok((_, told)) => told == "timeout" && state == "completed",
        Err(_) => state != "completed",
    }
}
