//! Serving the contract that the application hands out.
//!
//! - the application may start later: it is asked again and again, and readiness says why
//! - it is asked anew whenever its health changes, and now and then; another contract takes the
//!   place of the one served
//! - an answer that cannot be used changes nothing while a contract is served

use super::serving::{Serving, Workers};
use crate::admission::{
    Handshake, HandshakeError, Health, PublicationError, check_version, contract_of,
};
use crate::backoff::Backoff;
use crate::contract::Compiled;
use crate::lifecycle::{Lifecycle, Observer, Phase};
use crate::telemetry::log::Chain;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
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
    Published(#[from] PublicationError),
}

/// Keeps the contract of one place; a worker.
pub struct Follower {
    pub serving: Arc<Serving>,
    pub at: usize,
    pub handshake: Handshake,
    /// The time between two health checks.
    pub interval: Duration,
}

/// A contract and the very answer it was made of.
struct Known {
    reply: Bytes,
    contract: Arc<Compiled>,
}

impl Follower {
    /// Runs until the process leaves.
    pub async fn run(self, mut phase: Observer) {
        let mut known = tokio::select! {
            known = self.first() => Some(known),
            () = phase.reached(Phase::Leaving) => None,
        };
        while let Some(there) = known {
            known = self.serve(there, &mut phase).await;
        }
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
                self.serving.wait(self.at, &reason);
                said = reason;
            }
            tokio::time::sleep(retry.next_wait().max(SOONEST / 2)).await;
        }
    }

    /// Serves a contract until the process leaves, or until the application hands out another.
    async fn serve(&self, known: Known, phase: &mut Observer) -> Option<Known> {
        let contract = known.contract.clone();
        let (id, version) = (contract.contract.id.as_str(), &contract.contract.version);
        tracing::info!(contract = id, %version, "the application has handed out its contract");
        let (own, own_phase) = Lifecycle::new();
        let workers = self.serving.take(self.at, contract.clone(), &own_phase);
        let Workers { judge, registrar } = workers;
        let mut working = std::pin::pin!(async { tokio::join!(judge.run(), registrar.run()) });
        let next = tokio::select! {
            // They end only when they are told to.
            _ = working.as_mut() => return None,
            () = phase.reached(Phase::Leaving) => None,
            next = self.another(known) => Some(next),
        };
        own.advance(Phase::Leaving);
        working.await;
        if next.is_some() {
            self.serving.withdrawn(&contract);
        }
        next
    }

    /// Waits until the application hands out another contract that can be served.
    async fn another(&self, mut known: Known) -> Known {
        let mut health = self.serving.parts.health.clone();
        let mut said = String::new();
        // Whatever it answers, even another version every time, it is not asked, and Consul not
        // told, more often than its health is looked at.
        let mut not_before = Instant::now() + self.interval;
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.interval * CHECKS) => {}
                Ok(()) = health.changed() => {}
            }
            tokio::time::sleep_until(not_before).await;
            // An application that is not well may not know what it says.
            if !matches!(*health.borrow_and_update(), Health::Well { .. }) {
                continue;
            }
            not_before = Instant::now() + self.interval;
            match self.renewed(&known).await {
                Ok(None) => {}
                Ok(Some(now)) if self.stays(&now.contract, &known.contract) => known = now,
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
            check_version(&self.serving.parts.client, &now.contract.contract).await?;
        }
        Ok(now)
    }

    /// Says whether what is handed out now is no reason to serve anew. Signatures are no part of
    /// the digest: another one may be what a contract lacked, while one that is admitted would only
    /// be taken from its callers for a while.
    fn stays(&self, now: &Compiled, before: &Compiled) -> bool {
        if now.digest != before.digest {
            return false;
        }
        let is_signed_anew = now.contract.signatures != before.contract.signatures;
        let is_admitted = self.serving.is_admitted(self.at);
        if is_signed_anew && is_admitted {
            let contract = now.contract.id.as_str();
            tracing::info!(
                contract,
                "the application hands out other signatures; they count from the next start"
            );
        }
        !is_signed_anew || is_admitted
    }

    /// Asks once; nothing if the answer is the one that is known.
    async fn ask(&self, known: Option<&Known>) -> Result<Option<Known>, Fault> {
        let reply = self.handshake.ask().await?;
        if known.is_some_and(|known| known.reply == reply) {
            return Ok(None);
        }
        let text = reply.clone();
        let source = &self.serving.parts.sources[self.at];
        let (method, path) = (source.method.as_str(), source.path.clone());
        let made = tokio::task::spawn_blocking(move || contract_of(&text, method, &path)).await;
        let contract = match made {
            Ok(made) => made?,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        self.check(&contract, known.map(|known| &*known.contract))?;
        Ok(Some(Known { reply, contract }))
    }

    fn check(&self, now: &Compiled, before: Option<&Compiled>) -> Result<(), Fault> {
        let contract = &now.contract;
        let id = contract.id.to_string();
        if self.serving.is_taken(&id, self.at) {
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
