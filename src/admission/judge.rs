//! Taking one contract through the three steps of admission, and its standing from them.
//!
//! Never waits for Consul: what the proxy and readiness see is as fresh as the last health check.
//!
//! - a step is tried once those before it hold; what failed is tried again after a growing wait,
//!   and at once when the application's health changes
//! - a trial holds for one start of the application: once it was away, or says another version of
//!   itself, it is tried again
//! - elsewhere: who may sign (`contract::trust`), what health says (`fitness`), what a trial is
//!   (`trial`)

use super::fitness::{self, Start, Unfit};
use super::health::Health;
use super::standing::{Standing, Step, StepResult};
use super::trial::{Failure, Passed, Trial};
use super::{Config, Ours};
use crate::backoff::Backoff;
use crate::contract::trust::{Trust, Trusted};
use crate::lifecycle::{Observer, Phase};
use crate::telemetry::log::Chain;
use crate::telemetry::metrics::{Admission, AdmissionStep, Sidecar, StepEnd};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Between a step that failed and its next try.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(60);

/// Keeps one contract's standing up to date.
pub struct Judge {
    pub config: watch::Receiver<Arc<Config>>,
    pub ours: Ours,
    pub trust: Arc<Trust>,
    pub trial: Trial,
    /// All contracts this sidecar serves: a bare health version must be that of one of them.
    pub versions: watch::Receiver<Vec<(String, semver::Version)>>,
    pub metrics: Arc<Sidecar>,
    pub health: watch::Receiver<Health>,
    pub lifecycle: Observer,
    pub standing: watch::Sender<Standing>,
}

/// What holds until the application is another.
struct Memory {
    is_signed: bool,
    /// The settings of trust that said so.
    judged_by: u64,
    /// The start that got through its trial.
    tried: Option<Start>,
    /// The start that failures are counted for.
    seen: Option<Start>,
    retry: Backoff,
}

/// What came of a trial.
enum Tried {
    /// The application is another, so the trial says nothing.
    Changed,
    Failed,
    /// It holds, also where there was nothing to try.
    Passed,
}

impl Judge {
    /// Runs until the process leaves.
    pub async fn run(mut self) {
        let mut leaving = self.lifecycle.clone();
        tokio::select! {
            () = leaving.reached(Phase::Leaving) => {}
            () = self.judge() => {}
        }
        // What was never admitted took no calls and shall take none now.
        if self.standing.borrow().takes_calls() {
            let steps = self.standing.borrow().steps.clone();
            let reason = "the sidecar is leaving".to_owned();
            self.stand(Admission::Draining, reason, steps);
        }
    }

    async fn judge(&mut self) {
        let mut memory = Memory {
            is_signed: false,
            judged_by: 0,
            tried: None,
            seen: None,
            // Half of the waits are longer than the soonest from the first failure on.
            retry: Backoff::new(SOONEST * 2, LATEST),
        };
        let mut trusts = self.trust.changed();
        loop {
            let judged_by = *trusts.borrow_and_update();
            if memory.judged_by != judged_by {
                memory.judged_by = judged_by;
                memory.is_signed = false;
            }
            let again = self.go_through(&mut memory).await;
            let waiting = async {
                match again {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.changed() => {}
                () = waiting => {}
                Ok(()) = trusts.changed() => {}
            }
        }
    }

    /// Waits until the application's health, or what it is compared with, has changed.
    async fn changed(&mut self) {
        tokio::select! {
            // Without their sender they change no more.
            Ok(()) = self.health.changed() => {}
            Ok(()) = self.versions.changed() => {}
            Ok(()) = self.config.changed() => {}
            else => std::future::pending().await,
        }
    }

    /// Tries what does not hold yet, step by step; returns when to try again if only time can help.
    async fn go_through(&mut self, memory: &mut Memory) -> Option<Duration> {
        if !memory.is_signed {
            memory.is_signed = self.look_at_signature().await;
            if !memory.is_signed {
                return Some(memory.wait());
            }
        }
        let start = match self.look_at_health() {
            Ok(start) => start,
            Err(unfit) => {
                memory.tried = None;
                self.show_unfit(unfit);
                return None;
            }
        };
        if memory.seen.as_ref() != Some(&start) {
            memory.seen = Some(start.clone());
            memory.retry.reset();
        }
        if memory.tried.as_ref() != Some(&start) {
            memory.tried = None;
            match self.try_out(&start).await {
                Tried::Changed => return Some(Duration::ZERO),
                Tried::Failed => return Some(memory.wait()),
                Tried::Passed => memory.tried = Some(start),
            }
        }
        let steps = self.standing.borrow().steps.clone();
        self.stand(Admission::Admitted, String::new(), steps);
        None
    }

    async fn look_at_signature(&mut self) -> bool {
        let step = AdmissionStep::Signature;
        match self.trust.judge(&self.ours.contract.contract).await {
            Ok(Trusted::Signed { kid }) => self.passed(step, format!("signed by {kid}")),
            Ok(Trusted::Unsigned) => {
                let detail = "the contract is unsigned, which trust.mode permits";
                self.skipped(step, detail.to_owned());
            }
            Ok(Trusted::Unjudged) => {
                self.skipped(step, "trust.mode is off: nobody looks".to_owned());
            }
            Err(untrusted) => {
                self.failed(step, Chain(&untrusted).to_string());
                return false;
            }
        }
        true
    }

    fn look_at_health(&mut self) -> Result<Start, Unfit> {
        let health = self.health.borrow_and_update().clone();
        let fit = self.fit(&health);
        let end = match fit {
            Ok(_) => StepEnd::Ok,
            Err(Unfit::Unasked) => return fit,
            Err(_) => StepEnd::Failed,
        };
        self.metrics.admission_step(AdmissionStep::Health, end);
        fit
    }

    fn fit(&self, health: &Health) -> Result<Start, Unfit> {
        let require_version = self.config.borrow().require_version;
        let contract = &self.ours.contract.contract;
        // Whatever version of this contract is served at present, this is about ours.
        let served = self.versions.borrow();
        let others = served.iter().filter(|(id, _)| id != contract.id.as_str());
        let mut all: Vec<_> = others.map(|(_, version)| version.clone()).collect();
        all.push(contract.version.clone());
        fitness::fit(contract, health, &all, require_version)
    }

    fn show_unfit(&self, unfit: Unfit) {
        let step = AdmissionStep::Health;
        match unfit {
            Unfit::Unasked => {
                let Standing { reason, .. } = Standing::starting();
                let steps = self.standing.borrow().steps.clone();
                self.stand(self.unchanged(), reason, steps);
            }
            Unfit::Ill(reason) => self.put(step, StepResult::Failed, reason, self.again()),
            Unfit::Drift(reason) => {
                self.put(step, StepResult::Failed, reason, Admission::Admitting);
            }
        }
    }

    /// Lets the application show what it can.
    async fn try_out(&mut self, start: &Start) -> Tried {
        let step = AdmissionStep::Trial;
        let version = start.version.as_deref().unwrap_or("no version");
        self.put(
            AdmissionStep::Health,
            StepResult::Passed,
            format!("the application is well and says {version}"),
            self.again(),
        );
        // A trial that failed is shown as such until the next one is over.
        if self.standing.borrow().steps[step as usize].result != StepResult::Failed {
            let running = "the trial calls are under way".to_owned();
            self.put(step, StepResult::Running, running, self.again());
        }
        match self.verdict(start).await {
            None => return Tried::Changed,
            Some(Ok(Passed::Calls(calls))) => self.passed(step, format!("{calls} calls, all good")),
            Some(Ok(Passed::NoProbe)) => {
                let detail = "no probe: the contract has none, so nothing was tried";
                self.skipped(step, detail.to_owned());
            }
            Some(Err(failure)) => {
                self.failed(step, Chain(&failure).to_string());
                return Tried::Failed;
            }
        }
        Tried::Passed
    }

    /// Runs the trial as long as the application is the one that it began with; nothing if it
    /// changed meanwhile.
    async fn verdict(&mut self, start: &Start) -> Option<Result<Passed, Failure>> {
        let trial = self.trial.clone();
        let mut trial = std::pin::pin!(trial.run());
        loop {
            tokio::select! {
                // What is known of the application goes before what it has just answered.
                biased;
                () = self.changed() => {
                    let health = self.health.borrow().clone();
                    if self.fit(&health).ok().as_ref() != Some(start) {
                        return None;
                    }
                }
                verdict = trial.as_mut() => return Some(verdict),
            }
        }
    }

    /// The state of a contract that is not, or not again, admitted.
    fn again(&self) -> Admission {
        match self.standing.borrow().state {
            Admission::Admitted | Admission::Unhealthy => Admission::Unhealthy,
            _ => Admission::Admitting,
        }
    }

    fn passed(&self, step: AdmissionStep, detail: String) {
        self.metrics.admission_step(step, StepEnd::Ok);
        self.put(step, StepResult::Passed, detail, self.unchanged());
    }

    fn skipped(&self, step: AdmissionStep, detail: String) {
        self.metrics.admission_step(step, StepEnd::Skipped);
        self.put(step, StepResult::Skipped, detail, self.unchanged());
    }

    fn failed(&self, step: AdmissionStep, detail: String) {
        self.metrics.admission_step(step, StepEnd::Failed);
        self.put(step, StepResult::Failed, detail, self.again());
    }

    fn unchanged(&self) -> Admission {
        self.standing.borrow().state
    }

    /// Shows what came of a step; those behind one that does not hold have to wait.
    fn put(&self, step: AdmissionStep, result: StepResult, detail: String, state: Admission) {
        let mut steps = self.standing.borrow().steps.clone();
        let at = step as usize;
        let now = Step { result, detail };
        if steps[at] != now {
            self.tell(step, &now);
        }
        let reason = match result.holds() {
            true => self.standing.borrow().reason.clone(),
            false => now.detail.clone(),
        };
        steps[at] = now;
        if !result.holds() {
            steps[at + 1..].fill(Step::waiting());
        }
        self.stand(state, reason, steps);
    }

    fn tell(&self, step: AdmissionStep, now: &Step) {
        let contract = self.ours.contract.contract.id.as_str();
        let (name, result) = (step.as_str(), now.result.as_str());
        let detail = now.detail.as_str();
        match (now.result, step) {
            (StepResult::Waiting | StepResult::Running, _) => {
                tracing::debug!(contract, step = name, result, detail, "step of admission");
            }
            // That a contract is unsigned is told where it is judged.
            (StepResult::Passed, _) | (StepResult::Skipped, AdmissionStep::Signature) => {
                tracing::info!(contract, step = name, result, detail, "step of admission");
            }
            (StepResult::Skipped | StepResult::Failed, _) => {
                tracing::warn!(contract, step = name, result, detail, "step of admission");
            }
        }
    }

    fn stand(&self, state: Admission, reason: String, steps: [Step; 3]) {
        let contract = self.ours.contract.contract.id.as_str();
        let standing = Standing {
            state,
            reason,
            steps,
        };
        self.standing.send_if_modified(|present| {
            let changed = *present != standing;
            if present.state != standing.state {
                let (state, reason) = (standing.state.as_str(), standing.reason.as_str());
                tracing::info!(contract, state, reason, "admission");
            }
            *present = standing;
            changed
        });
    }
}

impl Memory {
    fn wait(&mut self) -> Duration {
        self.retry.next_wait().max(SOONEST)
    }
}
