//! Taking over what the files hold anew.
//!
//! - pair and roots are judged each by itself: a broken renewal of one does not hold up the other
//! - what was refused is tried again with every look, since a certificate may only begin to hold,
//!   but it is said and counted once
//! - a root that expires is dropped at that moment, without a change of the file

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::files::{Content, Files};
use super::pair::{Pair, PairError};
use super::parties::{Parties, SetUpError};
use super::{Error, InUse, Tls, read_pair, read_roots};
use crate::task::Timestamp;

const EVERY: Duration = Duration::from_secs(1);
/// Files that differ are read once more after this: they may be half written, or half switched.
const SETTLED: Duration = Duration::from_millis(100);

/// Which of our certificates something is about; also the metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The process's own chain with its key.
    Own,
    /// The trusted roots.
    Ca,
}

impl Part {
    pub const fn as_str(self) -> &'static str {
        match self {
            Part::Own => "own",
            Part::Ca => "ca",
        }
    }
}

/// When the certificates in use expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry {
    pub own: Timestamp,
    /// Of the root that expires first.
    pub ca: Timestamp,
}

/// What an observer hears of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// What is in use now expires then.
    InUse(Expiry),
    /// A change was taken over.
    Taken(Part),
    /// A change was not taken over; the part in use stays.
    Refused(Part),
}

/// Receives every event; cheap and never blocking.
pub type Observe = Box<dyn Fn(Event) + Send + Sync>;

/// What was refused last, by part.
#[derive(Default)]
pub(super) struct Refused {
    own: Option<Content>,
    ca: Option<Content>,
}

impl Refused {
    fn of(&mut self, part: Part) -> &mut Option<Content> {
        match part {
            Part::Own => &mut self.own,
            Part::Ca => &mut self.ca,
        }
    }
}

impl InUse {
    pub(super) fn expiry(&self) -> Expiry {
        Expiry {
            own: self.pair.dates.until,
            ca: self.roots.next_end,
        }
    }
}

impl Tls {
    /// Lets `observe` hear what is in use and every event from now on; the first observer stays.
    pub fn observe(&self, observe: Observe) {
        let expiry = self.expiry();
        self.observe.get_or_init(|| observe)(Event::InUse(expiry));
    }

    /// Takes over changes of the files, about a second after they were made; never ends.
    pub async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(EVERY).await;
            if let Some(files) = self.settled().await {
                self.renew(&files, Timestamp::now());
            }
        }
    }

    /// Reads the files until they hold still, if they hold anything new.
    async fn settled(self: &Arc<Self>) -> Option<Files> {
        let first = self.read().await?;
        if !self.concerns(&first, Timestamp::now()) {
            return None;
        }
        tokio::time::sleep(SETTLED).await;
        let second = self.read().await?;
        let holds_still = (first.pair(), first.bundle()) == (second.pair(), second.bundle());
        holds_still.then_some(second)
    }

    async fn read(self: &Arc<Self>) -> Option<Files> {
        let tls = self.clone();
        // A read that was cancelled is one of a process that ends.
        tokio::task::spawn_blocking(move || Files::read(&tls.config))
            .await
            .ok()
    }

    /// Says whether there is something to judge.
    fn concerns(&self, files: &Files, now: Timestamp) -> bool {
        let in_use = self.in_use.load();
        let differs = (files.pair(), files.bundle()) != in_use.content;
        let concerns = differs || in_use.roots.next_end < now;
        if !concerns {
            // The files are as they were taken; whatever was refused before is gone.
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Refused::default();
        }
        concerns
    }

    /// Judges what differs from what is in use, and swaps everything if any of it is sound.
    pub(super) fn renew(&self, files: &Files, now: Timestamp) {
        let in_use = self.in_use.load_full();
        let pair = (files.pair() != in_use.content.0).then(|| self.new_pair(files, now));
        let is_due = in_use.roots.next_end < now;
        let roots = (is_due || files.bundle() != in_use.content.1)
            .then(|| read_roots(&self.config, files, now));
        let pair = self.sound(Part::Own, pair, &files.pair());
        let roots = self.sound(Part::Ca, roots, &files.bundle());
        if pair.is_none() && roots.is_none() {
            return;
        }
        let taken = [
            pair.as_ref().map(|_| Part::Own),
            roots.as_ref().map(|_| Part::Ca),
        ];
        let mut content = in_use.content.clone();
        if pair.is_some() {
            content.0 = files.pair();
        }
        if roots.is_some() {
            content.1 = files.bundle();
        }
        let pair = pair.unwrap_or_else(|| in_use.pair.clone());
        let roots = roots.unwrap_or_else(|| in_use.roots.clone());
        match Parties::build(&pair, &roots, &self.provider) {
            Ok(parties) => self.swap(
                InUse {
                    pair,
                    roots,
                    parties,
                    content,
                },
                taken,
            ),
            Err(error) => self.not_built(&error),
        }
    }

    fn new_pair(&self, files: &Files, now: Timestamp) -> Result<Pair, Error> {
        let pair = read_pair(&self.config, files, &self.provider, now)?;
        // Peers dial us by a name that was settled at the start.
        if pair.identity.name != self.name {
            return Err(Error::Pair {
                cert: self.config.cert.clone(),
                key: self.config.key.clone(),
                source: PairError::Renamed {
                    ours: self.name.clone(),
                    found: pair.identity.name,
                },
            });
        }
        Ok(pair)
    }

    /// Passes on what is sound; tells once about what is not.
    fn sound<T>(
        &self,
        part: Part,
        judged: Option<Result<T, Error>>,
        content: &Content,
    ) -> Option<T> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let last = refused.of(part);
        let error = match judged {
            Some(Err(error)) => error,
            sound => {
                *last = None;
                return sound.and_then(Result::ok);
            }
        };
        if last.as_ref() != Some(content) {
            *last = Some(content.clone());
            tracing::error!(
                error = said(&error),
                "TLS files have changed but cannot be used; those read before stay in use"
            );
            self.tell(Event::Refused(part));
        }
        None
    }

    fn swap(&self, new: InUse, taken: [Option<Part>; 2]) {
        let expiry = new.expiry();
        self.in_use.store(Arc::new(new));
        self.generation.send_modify(|generation| *generation += 1);
        for part in taken.into_iter().flatten() {
            self.tell(Event::Taken(part));
        }
        self.tell(Event::InUse(expiry));
        tracing::info!(
            own = taken[0].is_some(),
            ca = taken[1].is_some(),
            own_expires = %expiry.own,
            first_root_expires = %expiry.ca,
            "new TLS files are in use"
        );
        self.say_doubts();
    }

    /// Logs what works but may be meant otherwise.
    pub fn say_doubts(&self) {
        for doubt in self.doubts() {
            tracing::warn!(doubt, "TLS works, but look at this");
        }
    }

    fn not_built(&self, error: &SetUpError) {
        tracing::error!(error = said(error), "new TLS files could not be put to use");
    }

    fn tell(&self, event: Event) {
        if let Some(observe) = self.observe.get() {
            observe(event);
        }
    }
}

/// An error with its causes, as one sentence.
fn said(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
