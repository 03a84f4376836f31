//! One contract of ours and its workers, from its first version here to its leaving.
//!
//! - a further version is judged while the one before still serves; it takes over once it is
//!   admitted, or once the one before is no longer
//! - Consul's entry is written over then, so that there is no moment without one
//! - other ways to validate or to allow are in force at once, and nothing is judged for them
//! - once nobody gives terms any more, the contract is deregistered, served to those who have not
//!   heard, and then no more

use super::{Number, Serving, own_route, settled, style};
use crate::admission::{Charge, Judge, Ours, Reader, Record, Registrar, Standing};
use crate::app::compose;
use crate::app::ready::{Entry, Next};
use crate::config::ContractSource;
use crate::contract::Compiled;
use crate::lifecycle::{Lifecycle, Observer, Phase};
use crate::proxy::inbound::Served;
use crate::telemetry::metrics::{Admission, Direction};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A version of a contract and how the application takes its calls.
#[derive(Debug, Clone)]
pub struct Terms {
    pub contract: Arc<Compiled>,
    pub source: ContractSource,
}

/// Bears one contract; a worker.
pub struct Bearer {
    pub serving: Arc<Serving>,
    pub number: Number,
    pub terms: watch::Receiver<Terms>,
    /// Those who have not heard that the contract is served no more are served for a while.
    pub is_patient: bool,
}

/// One version under judgement.
struct Trialled {
    terms: Terms,
    ours: Ours,
    standing: Reader,
    /// Ends its judge.
    own: Lifecycle,
}

/// What the bearer holds while it runs.
struct Work {
    judges: JoinSet<()>,
    record: watch::Receiver<Record>,
    charges: watch::Sender<Charge>,
    team: String,
}

impl Bearer {
    /// Runs until the process leaves, or until nobody gives terms any more.
    pub async fn run(mut self, mut phase: Observer) {
        let mut judges = JoinSet::new();
        let terms = self.terms.borrow_and_update().clone();
        let mut present = self.judged(terms, &mut judges);
        let (charges, charged) = watch::channel(present.charge());
        let mut configs = self.serving.means.admission.subscribe();
        let (own, own_phase) = Lifecycle::new();
        let (registrar, record) = Registrar::new(
            configs.clone(),
            charged,
            self.serving.means.client.clone(),
            self.serving.means.metrics.clone(),
            own_phase,
        );
        let team = configs.borrow_and_update().team.clone();
        let mut work = Work {
            judges,
            record,
            charges,
            team,
        };
        self.serving.announce(&work.team, &present.terms.contract);
        self.put(&present, None, &work);
        let mut registering = std::pin::pin!(registrar.run());
        let mut next: Option<Trialled> = None;
        let is_leaving = loop {
            tokio::select! {
                biased;
                () = phase.reached(Phase::Leaving) => break true,
                // It ends only when it is told to.
                () = registering.as_mut() => return,
                changed = self.terms.changed() => match changed {
                    Ok(()) => next = self.consider(&mut present, &mut work),
                    Err(_given_no_more) => break false,
                },
                () = decided(&mut present, &mut next) => {
                    if let Some(next) = next.take() {
                        self.take_over(&mut present, next, &work);
                    }
                }
                Ok(()) = configs.changed() => {
                    let team = configs.borrow_and_update().team.clone();
                    self.rename(team, &present, &mut work);
                }
                Some(ended) = work.judges.join_next() => settled(ended),
            }
        };
        if !is_leaving {
            self.serving.leave(self.number);
            self.serving.withdraw(&work.team, &present.terms.contract);
        }
        let judged = [Some(&present), next.as_ref()].into_iter().flatten();
        for told in judged.map(|one| &one.own).chain([&own]) {
            told.advance(Phase::Leaving);
        }
        registering.await;
        while let Some(ended) = work.judges.join_next().await {
            settled(ended);
        }
        if !is_leaving {
            self.linger(&mut phase).await;
        }
    }

    /// Looks at terms that were given: what concerns the proxy alone is in force at once, another
    /// version is returned, to be judged first.
    fn consider(&mut self, present: &mut Trialled, work: &mut Work) -> Option<Trialled> {
        let terms = self.terms.borrow_and_update().clone();
        if present.differs_in_substance(&terms) {
            let contract = terms.contract.contract.id.as_str();
            let version = terms.contract.contract.version.to_string();
            tracing::info!(
                contract,
                version,
                "judged beside the one that serves, until it may take over"
            );
            let next = self.judged(terms, &mut work.judges);
            self.put(present, Some(&next), work);
            return Some(next);
        }
        present.terms = terms;
        self.put(present, None, work);
        None
    }

    fn take_over(&self, present: &mut Trialled, next: Trialled, work: &Work) {
        let before = std::mem::replace(present, next);
        self.put(present, None, work);
        work.charges.send_replace(present.charge());
        self.serving.withdraw(&work.team, &before.terms.contract);
        self.serving.announce(&work.team, &present.terms.contract);
        let contract = &present.terms.contract.contract;
        let (id, version) = (contract.id.as_str(), &contract.version);
        let standing = present.standing.borrow().state.as_str();
        tracing::info!(contract = id, %version, standing, "has taken over");
        before.own.advance(Phase::Leaving);
    }

    fn rename(&self, team: String, present: &Trialled, work: &mut Work) {
        let before = std::mem::replace(&mut work.team, team);
        if before != work.team {
            self.serving.withdraw(&before, &present.terms.contract);
            self.serving.announce(&work.team, &present.terms.contract);
        }
    }

    /// Begins to judge a version.
    fn judged(&self, terms: Terms, judges: &mut JoinSet<()>) -> Trialled {
        let means = &self.serving.means;
        let style = style(&terms.source);
        let ours = Ours {
            contract: terms.contract.clone(),
            route: style.route(terms.contract.contract.id.as_str()),
            own_route: own_route(&style),
            derive_probe: terms.source.derive_probe,
        };
        let (standing, reader) = watch::channel(Standing::starting());
        let (own, lifecycle) = Lifecycle::new();
        let judge = Judge {
            config: means.admission.subscribe(),
            trust: means.trust.clone(),
            trial: means.trials.of(&ours),
            ours: ours.clone(),
            versions: self.serving.versions.subscribe(),
            metrics: means.metrics.clone(),
            health: means.health.clone(),
            lifecycle,
            standing,
        };
        judges.spawn(judge.run());
        Trialled {
            terms,
            ours,
            standing: reader,
            own,
        }
    }

    /// Shows what is served, and what is to follow it.
    fn put(&self, present: &Trialled, next: Option<&Trialled>, work: &Work) {
        let means = &self.serving.means;
        let Terms { contract, source } = &present.terms;
        let id = contract.contract.id.to_string();
        let served = Served::new(
            contract.clone(),
            style(source),
            (compose::mode(source.input), compose::mode(source.output)),
            source.allow.clone(),
            format!("{}-{}", means.client.layout().service(&id), means.instance),
            present.standing.clone(),
            means.metrics.contract(Direction::Inbound, &id),
        );
        let served = match self.serving.served(self.number) {
            Some(before) => served.following(&before),
            None => served,
        };
        let entry = Entry::Taken {
            id,
            standing: present.standing.clone(),
            record: work.record.clone(),
            next: next.map(|next| Next {
                version: next.terms.contract.contract.version.to_string(),
                standing: next.standing.clone(),
            }),
        };
        self.serving.serve(self.number, Arc::new(served), entry);
    }

    async fn linger(&self, phase: &mut Observer) {
        let grace = match self.is_patient {
            true => *self.serving.means.grace.borrow(),
            false => Duration::ZERO,
        };
        tokio::select! {
            () = tokio::time::sleep(grace) => self.serving.close(self.number),
            // All that is there is served until the process drains.
            () = phase.reached(Phase::Leaving) => {}
        }
    }
}

impl Trialled {
    fn charge(&self) -> Charge {
        Charge {
            ours: self.ours.clone(),
            standing: self.standing.clone(),
        }
    }

    /// Says whether terms mean something that was not judged.
    fn differs_in_substance(&self, terms: &Terms) -> bool {
        let (ours, source) = (&self.terms.source, &terms.source);
        let is_same = self.terms.contract.digest == terms.contract.digest
            && self.terms.contract.contract.signatures == terms.contract.contract.signatures
            && ours.derive_probe == source.derive_probe
            && style(ours) == style(source);
        !is_same
    }
}

/// Completes when the next version is to take over: it is admitted, or the present one takes no
/// calls anyway.
async fn decided(present: &mut Trialled, next: &mut Option<Trialled>) {
    let Some(next) = next else {
        return std::future::pending().await;
    };
    loop {
        let is_admitted = next.standing.borrow_and_update().state == Admission::Admitted;
        if is_admitted || !present.standing.borrow_and_update().takes_calls() {
            return;
        }
        tokio::select! {
            Ok(()) = next.standing.changed() => {}
            Ok(()) = present.standing.changed() => {}
            // Without their judges they change no more.
            else => return std::future::pending().await,
        }
    }
}
