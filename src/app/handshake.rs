//! Serving the contract that the application hands out.
//!
//! - the application may start later: it is asked again and again, and readiness says why
//! - it is asked anew whenever its health changes, and now and then; another version follows the
//!   one served, another contract takes its place
//! - an answer that cannot be used changes nothing while a contract is served

use super::serving::{Bearer, Number, Serving, Terms, settled};
use crate::admission::publication::{self, check_version};
use crate::admission::{Handshake, HandshakeError, Health, contract_of};
use crate::apart;
use crate::backoff::Backoff;
use crate::config::ContractSource;
use crate::contract::Compiled;
use crate::lifecycle::{Observer, Phase};
use crate::telemetry::log::Chain;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Between two tries of an application that has not handed out a contract.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(5);
/// While all is well the application is asked once in so many health checks.
const CHECKS: u32 = 6;

/// Why an answer is not served.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("the contract {0} is served from a file already; give it once")]
    Twice(String),
    #[error(
        "the application hands out another contract as {id} {version} than it did; give a changed \
         contract another version"
    )]
    SameVersion { id: String, version: String },
    #[error("the contract that the application hands out now could not be registered")]
    Published(#[from] publication::Error),
}

/// Keeps the contract of one place; a worker.
pub struct Follower {
    serving: Arc<Serving>,
    /// Where the contract stands that is handed out now.
    number: watch::Sender<Number>,
    /// Ends with the entry of the configuration.
    sources: watch::Receiver<ContractSource>,
}

/// A contract and the very answer it was made of.
struct Known {
    reply: Bytes,
    contract: Arc<Compiled>,
}

/// What a follower hears while a contract is served.
enum Heard {
    /// The application hands out this now.
    Another(Known),
    /// The entry says something else of its route.
    Source,
    /// There is no such entry any more, or the process leaves.
    End,
}

impl Follower {
    pub fn new(
        serving: Arc<Serving>,
        number: watch::Sender<Number>,
        sources: watch::Receiver<ContractSource>,
    ) -> Self {
        Self {
            serving,
            number,
            sources,
        }
    }

    /// Runs until the process leaves or the configuration has no such entry any more.
    pub async fn run(mut self, mut phase: Observer) {
        let known = tokio::select! {
            known = self.first() => known,
            () = self.ended() => {
                self.serving.close(self.number());
                return;
            }
            () = phase.reached(Phase::Leaving) => return,
        };
        let mut bearers = JoinSet::new();
        self.follow(known, &phase, &mut bearers).await;
        // Nobody gives them terms any more.
        while let Some(ended) = bearers.join_next().await {
            settled(ended);
        }
    }

    /// Completes when the configuration has no such entry any more.
    async fn ended(&self) {
        let mut sources = self.sources.clone();
        while sources.changed().await.is_ok() {}
    }

    /// Asks until there is a contract.
    async fn first(&self) -> Known {
        let mut retry = Backoff::new(SOONEST, LATEST);
        let mut said = String::new();
        loop {
            let fault = match self.ask(None).await {
                Ok(Some(known)) => return known,
                Ok(None) => continue,
                Err(fault) => fault,
            };
            let reason = Chain(&fault).to_string();
            if reason != said {
                tracing::warn!(reason, "waiting for the application's contract");
                self.serving.wait(self.number(), &self.source(), &reason);
                said = reason;
            }
            tokio::time::sleep(retry.next_wait().max(SOONEST / 2)).await;
        }
    }

    /// Has the contract served that the application hands out, whichever it is, to the end.
    async fn follow(&mut self, first: Known, phase: &Observer, bearers: &mut JoinSet<()>) {
        let mut phase = phase.clone();
        let mut known = first;
        let mut terms = self.bear(&known, bearers, &phase);
        loop {
            let heard = tokio::select! {
                () = phase.reached(Phase::Leaving) => Heard::End,
                Some(ended) = bearers.join_next() => {
                    settled(ended);
                    continue;
                }
                heard = self.hear(&mut known) => heard,
            };
            match heard {
                Heard::End => return,
                Heard::Source => {
                    // It may mean another operation of the same document.
                    known.reply = Bytes::new();
                    let source = self.source();
                    terms.send_modify(|terms| terms.source = source);
                }
                Heard::Another(now) => {
                    let is_same_id = now.contract.contract.id == known.contract.contract.id;
                    known = now;
                    self.tell(&known);
                    if is_same_id {
                        terms.send_replace(self.terms(&known));
                    } else {
                        let beside = self.serving.open_beside(self.number(), &self.source());
                        self.number.send_replace(beside);
                        // The former one ends with its terms.
                        terms = self.bear(&known, bearers, &phase);
                    }
                }
            }
        }
    }

    fn bear(
        &self,
        known: &Known,
        bearers: &mut JoinSet<()>,
        phase: &Observer,
    ) -> watch::Sender<Terms> {
        let (given, terms) = watch::channel(self.terms(known));
        let bearer = Bearer {
            serving: self.serving.clone(),
            number: self.number(),
            terms,
            // An application that hands out another contract does not serve the former one.
            is_patient: false,
        };
        self.tell(known);
        bearers.spawn(bearer.run(phase.clone()));
        given
    }

    fn terms(&self, known: &Known) -> Terms {
        Terms {
            contract: known.contract.clone(),
            source: self.source(),
        }
    }

    fn tell(&self, known: &Known) {
        let contract = &known.contract.contract;
        let (id, version) = (contract.id.as_str(), &contract.version);
        tracing::info!(contract = id, %version, "the application has handed out its contract");
    }

    fn number(&self) -> Number {
        *self.number.borrow()
    }

    fn source(&self) -> ContractSource {
        self.sources.borrow().clone()
    }

    /// Waits until the application hands out another contract that can be served, or its entry of
    /// the configuration is another.
    async fn hear(&mut self, known: &mut Known) -> Heard {
        let mut sources = self.sources.clone();
        tokio::select! {
            changed = sources.changed() => {
                self.sources = sources;
                match changed {
                    Ok(()) => Heard::Source,
                    Err(_gone) => Heard::End,
                }
            }
            another = self.another(known) => Heard::Another(another),
        }
    }

    /// Waits until the application hands out another contract that can be served.
    async fn another(&self, known: &mut Known) -> Known {
        let means = &self.serving.means;
        let mut health = means.health.clone();
        let interval = || means.asked.borrow().interval;
        let mut said = String::new();
        // Whatever it answers, even another version every time, it is not asked, and Consul not
        // told, more often than its health is looked at.
        let mut not_before = Instant::now() + interval();
        loop {
            tokio::select! {
                () = tokio::time::sleep(interval() * CHECKS) => {}
                Ok(()) = health.changed() => {}
            }
            tokio::time::sleep_until(not_before).await;
            // An application that is not well may not know what it says.
            if !matches!(*health.borrow_and_update(), Health::Well { .. }) {
                continue;
            }
            not_before = Instant::now() + interval();
            match self.renewed(known).await {
                Ok(None) => {}
                Ok(Some(now)) if is_same(&now.contract, &known.contract) => *known = now,
                Ok(Some(now)) => return now,
                Err(fault) => {
                    let reason = Chain(&fault).to_string();
                    if reason != said {
                        tracing::warn!(reason, "the contract that is served stays in use");
                        said = reason;
                    }
                }
            }
        }
    }

    /// Asks while a contract is served: another that Consul would not take must not end it.
    async fn renewed(&self, known: &Known) -> Result<Option<Known>, Fault> {
        let now = self.ask(Some(known)).await?;
        if let Some(now) = &now
            && now.contract.digest != known.contract.digest
        {
            check_version(&self.serving.means.client, &now.contract.contract).await?;
        }
        Ok(now)
    }

    /// Asks once; nothing if the answer is the one that is known.
    async fn ask(&self, known: Option<&Known>) -> Result<Option<Known>, Fault> {
        let asked = self.serving.means.asked.borrow().clone();
        let reply = Handshake::new(&asked)?.ask().await?;
        if known.is_some_and(|known| known.reply == reply) {
            return Ok(None);
        }
        let text = reply.clone();
        let source = self.source();
        let (method, path) = (source.method.as_str(), source.path.clone());
        let contract = apart::run(move || contract_of(&text, method, &path)).await?;
        self.check(&contract, known.map(|known| &*known.contract))?;
        Ok(Some(Known { reply, contract }))
    }

    fn check(&self, now: &Compiled, before: Option<&Compiled>) -> Result<(), Fault> {
        let contract = &now.contract;
        let id = contract.id.to_string();
        if self.serving.is_taken(&id, self.number()) {
            // Both would register under one id and undo each other.
            return Err(Fault::Twice(id));
        }
        let changed = before.is_some_and(|before| {
            let same =
                before.contract.id == contract.id && before.contract.version == contract.version;
            same && before.digest != now.digest
        });
        if changed {
            // A published version never changes, so this one could not be registered.
            let version = contract.version.to_string();
            return Err(Fault::SameVersion { id, version });
        }
        Ok(())
    }
}

/// Says whether what is handed out now is what it was. Signatures are no part of the digest.
fn is_same(now: &Compiled, before: &Compiled) -> bool {
    now.digest == before.digest && now.contract.signatures == before.contract.signatures
}
