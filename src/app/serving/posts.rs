//! Which contracts the configuration wants served, at a start and whenever it changes.
//!
//! - a contract of a file is recognised by its id, wherever its file or its entry has moved to;
//!   what is the same in all is left alone
//! - who is not wanted any more hears of it by the end of its terms

use super::{Bearer, Number, Serving, Terms, settled};
use crate::app::handshake::Follower;
use crate::config::ContractSource;
use crate::contract::Compiled;
use crate::lifecycle::{Observer, Phase};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// The worker of one contract.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An entry of the configuration, with its contract if that comes from a file.
pub type Wanted = (ContractSource, Option<Arc<Compiled>>);

/// All entries of the configuration; held by who reads it.
pub struct Posts {
    serving: Arc<Serving>,
    phase: Observer,
    all: Vec<Post>,
}

/// One entry.
struct Post {
    /// Where its contract stands; another place once the application hands out another id.
    number: watch::Receiver<Number>,
    given: Given,
}

/// What the worker of an entry is told.
enum Given {
    File(watch::Sender<Terms>),
    Handshake(watch::Sender<ContractSource>),
}

impl Posts {
    /// Begins without an entry.
    pub fn new(serving: Arc<Serving>, phase: Observer) -> Self {
        Self {
            serving,
            phase,
            all: Vec::new(),
        }
    }

    /// Makes the entries those that are wanted; returns the workers of those that are new.
    pub fn arrange(&mut self, wanted: Vec<Wanted>) -> Vec<Work> {
        let mut before = std::mem::take(&mut self.all);
        let is_asked = wanted.iter().any(|(_, contract)| contract.is_none());
        let mut begun: Vec<Work> = Vec::new();
        for (rank, (source, contract)) in wanted.into_iter().enumerate() {
            let known = before
                .iter()
                .position(|post| post.is_for(contract.as_deref()));
            let post = match known {
                Some(at) => {
                    let post = before.swap_remove(at);
                    self.serving.rank(post.number(), rank);
                    post.give(source, contract);
                    post
                }
                None => {
                    let former = contract.as_deref().filter(|_| !is_asked);
                    let former = former.and_then(|contract| self.handed_out(&before, contract));
                    let (post, work) = self.begin(rank, source, contract);
                    begun.push(match former {
                        Some(former) => Box::pin(async move {
                            ended(former).await;
                            work.await;
                        }),
                        None => work,
                    });
                    post
                }
            };
            self.all.push(post);
        }
        begun
    }

    /// Returns the contract that an entry serves under this id at present, if one of a file does.
    pub fn of_file(&self, id: &str) -> Option<Arc<Compiled>> {
        self.all.iter().find_map(|post| match &post.given {
            Given::File(terms) => {
                let contract = terms.borrow().contract.clone();
                (contract.contract.id.as_str() == id).then_some(contract)
            }
            Given::Handshake(_) => None,
        })
    }

    /// Says whether the contract that the application has handed out has this id.
    pub fn is_handed_out(&self, id: &str) -> bool {
        self.all.iter().any(|post| self.hands_out(post, id))
    }

    /// Returns the place of what the application handed out under a contract's id.
    fn handed_out(&self, posts: &[Post], contract: &Compiled) -> Option<watch::Receiver<Number>> {
        let id = contract.contract.id.as_str();
        let post = posts.iter().find(|post| self.hands_out(post, id));
        post.map(|post| post.number.clone())
    }

    fn hands_out(&self, post: &Post, id: &str) -> bool {
        let is_handed_out = matches!(post.given, Given::Handshake(_));
        let served = self.serving.served(post.number()).filter(|_| is_handed_out);
        served.is_some_and(|served| served.id() == id)
    }

    fn begin(
        &self,
        rank: usize,
        source: ContractSource,
        contract: Option<Arc<Compiled>>,
    ) -> (Post, Work) {
        let (serving, phase) = (self.serving.clone(), self.phase.clone());
        let opened = serving.open(rank, &source);
        let (numbers, number) = watch::channel(opened);
        let Some(contract) = contract else {
            let (given, source) = watch::channel(source);
            let follower = Follower::new(serving, numbers, source);
            let given = Given::Handshake(given);
            return (Post { number, given }, Box::pin(follower.run(phase)));
        };
        let (given, terms) = watch::channel(Terms { contract, source });
        let bearer = Bearer {
            serving,
            number: opened,
            terms,
            is_patient: true,
        };
        let given = Given::File(given);
        (Post { number, given }, Box::pin(bearer.run(phase)))
    }
}

impl Post {
    fn number(&self) -> Number {
        *self.number.borrow()
    }

    fn is_for(&self, contract: Option<&Compiled>) -> bool {
        match (&self.given, contract) {
            (Given::File(terms), Some(contract)) => {
                terms.borrow().contract.contract.id == contract.contract.id
            }
            (Given::Handshake(_), None) => true,
            (Given::File(_), None) | (Given::Handshake(_), Some(_)) => false,
        }
    }

    fn give(&self, source: ContractSource, contract: Option<Arc<Compiled>>) {
        match (&self.given, contract) {
            (Given::File(terms), Some(contract)) => {
                terms.send_if_modified(|present| {
                    let changed = present.source != source
                        || present.contract.digest != contract.digest
                        || present.contract.contract.signatures != contract.contract.signatures;
                    *present = Terms { contract, source };
                    changed
                });
            }
            (Given::Handshake(sources), _) => {
                sources.send_if_modified(|present| {
                    let changed = *present != source;
                    *present = source;
                    changed
                });
            }
            (Given::File(_), None) => {}
        }
    }
}

/// Completes once a follower and its bearers are done: two who register under one id would undo
/// each other's work.
async fn ended(mut number: watch::Receiver<Number>) {
    while number.changed().await.is_ok() {}
}

/// Carries the contracts' workers until the process leaves and each has settled; further ones may
/// come meanwhile.
pub async fn work(begun: Vec<Work>, mut more: mpsc::Receiver<Work>, mut phase: Observer) {
    let mut works = JoinSet::new();
    for work in begun {
        works.spawn(work);
    }
    loop {
        tokio::select! {
            () = phase.reached(Phase::Leaving) => break,
            Some(work) = more.recv() => drop(works.spawn(work)),
            Some(ended) = works.join_next() => settled(ended),
        }
    }
    while let Some(ended) = works.join_next().await {
        settled(ended);
    }
}
