//! The third step of admission: calls that show that the application keeps the contract.
//!
//! Each call is one as the proxy sends it, marked as a trial; every single reply must hold. It is
//! no load test: a few calls at once find an application that forgets its reply now and then.
//!
//! - a trial is no task: it is counted as a step of admission, and nowhere else
//! - it has an end: each call, all of them together, and how many may fail before it is given up
//! - dropped, it stops calling at once

mod call;
mod expect;

use super::{Ours, health};
use crate::apart;
use crate::contract::derive::{self, Underivable};
use crate::contract::{Compiled, Probe, Violations, guard};
use crate::task::Id;
use arc_swap::ArcSwap;
use call::{Call, Fault};
use http::{HeaderName, Method};
use reqwest::Url;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// For all calls of a trial together.
const TOTAL: Duration = Duration::from_secs(600);
/// So many failures say enough.
const ENOUGH: u32 = 10;
/// The longest account of a failed call, in characters.
const LONGEST: usize = 400;

/// The application's own route to a capability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnRoute {
    pub method: Method,
    pub path: String,
    /// The input comes in a wrapper, with its context.
    pub is_wrapped: bool,
}

/// What a reply may look like.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub max_body_bytes: usize,
    pub json: guard::Limits,
}

/// What the trials of all contracts of one application have in common; the next one reads it anew.
#[derive(Debug)]
pub struct Trials(ArcSwap<Means>);

/// Whom a trial calls and what it may bring.
#[derive(Debug)]
struct Means {
    client: reqwest::Client,
    upstream: Url,
    is_outside: bool,
    added: Vec<HeaderName>,
    limits: Limits,
}

/// The trial of one contract.
#[derive(Clone)]
pub struct Trial {
    trials: Arc<Trials>,
    contract: Arc<Compiled>,
    route: OwnRoute,
    /// Without a probe an input is made up.
    derives: bool,
}

/// How a contract got through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// So many calls were answered well.
    Calls(u32),
    /// The contract has no probe, so that nothing could be tried.
    NoProbe,
}

/// Why a contract did not get through.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("probe.input does not conform to input_schema: {0}")]
    Input(Violations),
    #[error("derive_probe finds no input for a trial: {0}; write a probe into the contract")]
    Underivable(#[from] Underivable),
    #[error(
        "{failed} of {made} trial calls failed{}; call {number}: {fault}",
        asked(made, calls)
    )]
    Calls {
        failed: u32,
        made: u32,
        /// As many as the probe asks for.
        calls: u32,
        /// Of the first one that failed, counted from 1.
        number: u32,
        fault: String,
    },
    #[error("only {done} of {calls} trial calls were over within {TOTAL:?}; ask for fewer calls")]
    TooLong { done: u32, calls: u32 },
}

fn asked(made: &u32, calls: &u32) -> String {
    match made == calls {
        true => String::new(),
        false => format!(", then the trial of {calls} was given up"),
    }
}

/// Says what a trial will send, if anything; `derives`: without a probe an input is made up.
pub fn plan(contract: &Compiled, derives: bool) -> Result<Option<Probe>, Failure> {
    let Some(probe) = &contract.contract.probe else {
        return match derives {
            true => Ok(Some(Probe::of(derive::input(contract)?))),
            false => Ok(None),
        };
    };
    derive::conforms(contract, &probe.input).map_err(Failure::Input)?;
    Ok(Some(probe.clone()))
}

impl Trials {
    /// Will call the application that is asked for its health like this.
    pub fn new(application: &health::Config, limits: Limits) -> Result<Self, reqwest::Error> {
        Ok(Self(ArcSwap::from_pointee(Means::new(
            application,
            limits,
        )?)))
    }

    /// Makes later trials as `other` would.
    pub fn follow(&self, other: Self) {
        self.0.store(other.0.into_inner());
    }

    /// Prepares the trial of one contract.
    pub fn of(self: &Arc<Self>, ours: &Ours) -> Trial {
        Trial {
            trials: self.clone(),
            contract: ours.contract.clone(),
            route: ours.own_route.clone(),
            derives: ours.derive_probe,
        }
    }
}

impl Means {
    fn new(application: &health::Config, limits: Limits) -> Result<Self, reqwest::Error> {
        Ok(Self {
            client: application.client(TOTAL)?,
            upstream: application.upstream.clone(),
            is_outside: application.tls.is_some(),
            added: application.headers.keys().cloned().collect(),
            limits,
        })
    }
}

impl Trial {
    /// Makes all calls, unless so many fail that more would tell nothing.
    pub async fn run(&self) -> Result<Passed, Failure> {
        let (contract, derives) = (self.contract.clone(), self.derives);
        // Making an input up may take a while of a processor.
        let Some(probe) = apart::run(move || plan(&contract, derives)).await? else {
            return Ok(Passed::NoProbe);
        };
        let mut tally = Tally::default();
        let calls = probe.calls;
        let calling = self.call(probe, &mut tally);
        match tokio::time::timeout(TOTAL, calling).await {
            Ok(()) => {}
            Err(_elapsed) if tally.first.is_some() => {}
            Err(_elapsed) => {
                let done = tally.done;
                return Err(Failure::TooLong { done, calls });
            }
        }
        tally.verdict(calls)
    }

    async fn call(&self, probe: Probe, tally: &mut Tally) {
        let limits = &self.contract.contract.constraints;
        // More at once than the contract allows would prove nothing against the application.
        let at_once = probe.concurrency.min(limits.max_concurrent.get()) as usize;
        let calls = probe.calls;
        let call = Arc::new(self.prepared(probe));
        let mut running = JoinSet::new();
        let mut begun = 0;
        loop {
            while begun < calls && running.len() < at_once && tally.failed < ENOUGH {
                begun += 1;
                let (call, number) = (call.clone(), begun);
                running.spawn(async move { (number, call.make().await) });
            }
            match running.join_next().await {
                None => return,
                Some(Ok((number, made))) => tally.note(number, made),
                Some(Err(error)) if error.is_panic() => {
                    std::panic::resume_unwind(error.into_panic())
                }
                Some(Err(_cancelled)) => {}
            }
        }
    }

    fn prepared(&self, probe: Probe) -> Call {
        let trials = self.trials.0.load();
        let mut url = trials.upstream.clone();
        url.set_path(&self.route.path);
        let timeout = self.contract.contract.constraints.timeout;
        Call {
            client: trials.client.clone(),
            url,
            route: self.route.clone(),
            contract: self.contract.clone(),
            // A call has no more time than the contract gives it, so nor has its trial.
            within: probe.timeout.map_or(timeout, |own| own.min(timeout)),
            probe,
            task: Id::mint(),
            is_outside: trials.is_outside,
            added: trials.added.clone(),
            limits: trials.limits,
        }
    }
}

/// The calls that are over.
#[derive(Default)]
struct Tally {
    done: u32,
    failed: u32,
    first: Option<(u32, Fault)>,
}

impl Tally {
    fn note(&mut self, number: u32, made: Result<(), Fault>) {
        self.done += 1;
        let Err(fault) = made else {
            return;
        };
        self.failed += 1;
        if self.first.as_ref().is_none_or(|(first, _)| number < *first) {
            self.first = Some((number, fault));
        }
    }

    fn verdict(self, calls: u32) -> Result<Passed, Failure> {
        let Some((number, fault)) = self.first else {
            return Ok(Passed::Calls(self.done));
        };
        let text = fault.to_string();
        let fault = match text.char_indices().nth(LONGEST) {
            None => text,
            Some((end, _)) => format!("{}…", &text[..end]),
        };
        Err(Failure::Calls {
            failed: self.failed,
            made: self.done,
            calls,
            number,
            fault,
        })
    }
}
