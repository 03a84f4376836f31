//! How many calls of each contract are tried on canaries, followed in Consul's key/value store.
//!
//! An operator writes the ratio of a contract, 0 to 10 000 of 10 000 calls, as plain text. One
//! watch reads all of them, from the first contract in use on.
//!
//! - a ratio that cannot be read is told once; the last good one of that contract stays
//! - while Consul is silent the last ratios stay, and for `HOLD` after it came back one that it
//!   no longer names: it may have forgotten them
//! - without any answer, as after a start without Consul, nothing is tried on canaries
//! - elsewhere: which calls are picked (`route`)

use super::members::HOLD;
use super::{Directory, FIRST_USE};
use crate::consul::KvEntry;
use crate::consul::watch::{Options, Seen};
use crate::contract::ContractId;
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;
use tokio::time::Instant;

/// The most text of a fault that is shown.
const MOST_SHOWN: usize = 40;

/// How many of 10 000 calls are tried on canaries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ratio(u16);

/// What is written for one contract.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Share {
    pub ratio: Ratio,
    /// Why what is written now does not count.
    pub fault: Option<String>,
}

impl Ratio {
    const MOST: u16 = 10_000;

    pub fn of_ten_thousand(self) -> u16 {
        self.0
    }

    /// Says whether every call is picked.
    pub fn is_all(self) -> bool {
        self.0 == Self::MOST
    }

    fn read(value: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(value).ok().map(str::trim);
        let is_number =
            |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.filter(is_number).and_then(|text| text.parse().ok());
        match number.filter(|number| *number <= Self::MOST) {
            Some(number) => Ok(Self(number)),
            None => {
                let shown: String = String::from_utf8_lossy(value)
                    .chars()
                    .take(MOST_SHOWN)
                    .collect();
                Err(format!(
                    "{shown:?} is no ratio; write a whole number from 0 to 10000, the calls of \
                     10000 that are tried on canaries"
                ))
            }
        }
    }
}

/// Reads ratios by themselves, without what was good before; what cannot be read is none.
pub(super) fn written(entries: &[KvEntry], prefix: &str) -> HashMap<String, Ratio> {
    let ratio = |entry: &KvEntry| {
        let name = entry.key.strip_prefix(prefix)?;
        let ratio = Ratio::read(&entry.value).ok()?;
        Some((name.to_owned(), ratio))
    };
    entries.iter().filter_map(ratio).collect()
}

type Shares = HashMap<String, Share>;

/// The ratios in force, shared by the directory and its follower.
#[derive(Debug, Default)]
pub struct Ratios {
    shares: ArcSwap<Shares>,
    /// When they were first asked for, and what tells that something is known.
    followed: OnceLock<(Instant, watch::Receiver<bool>)>,
}

impl Ratios {
    /// Returns the ratio of a contract; nothing written is none.
    pub fn of(&self, id: &ContractId) -> Ratio {
        let shares = self.shares.load();
        shares
            .get(id.as_str())
            .map_or(Ratio(0), |share| share.ratio)
    }

    /// Returns what is written for a contract, with what is wrong with it.
    pub fn share(&self, id: &ContractId) -> Share {
        let shares = self.shares.load();
        shares.get(id.as_str()).cloned().unwrap_or_default()
    }

    /// Waits until something is known: at most until `until`, and only while they are new.
    pub async fn settled(&self, until: Instant) {
        let Some((first, settled)) = self.followed.get() else {
            return;
        };
        if *settled.borrow() {
            return;
        }
        let until = until.min(*first + FIRST_USE);
        let mut settled = settled.clone();
        // Late or given up: the call goes on without canaries.
        drop(tokio::time::timeout_at(until, settled.wait_for(|is| *is)).await);
    }
}

impl Directory {
    /// Returns the ratios; they are followed once a contract is.
    pub fn ratios(&self) -> &Ratios {
        &self.ratios
    }

    /// Begins to follow the ratios, once.
    pub(super) fn follow_ratios(self: &Arc<Self>) {
        self.ratios.followed.get_or_init(|| {
            let prefix = self.client.layout().canaries();
            let (seen, watching) = self.client.watch_entries(&prefix, Options::URGENT);
            let (settle, settled) = watch::channel(false);
            let follower = Follower {
                directory: self.clone(),
                written: Written::below(prefix),
                seen,
                settle,
            };
            let closing = self.closing.clone();
            self.workers.spawn(async move {
                tokio::select! {
                    () = watching => {}
                    () = follower.run() => {}
                    () = closing.cancelled() => {}
                }
            });
            (Instant::now(), settled)
        });
    }
}

/// Keeps the ratios in step with their watch.
struct Follower {
    directory: Arc<Directory>,
    written: Written,
    seen: watch::Receiver<Seen<Vec<KvEntry>>>,
    settle: watch::Sender<bool>,
}

impl Follower {
    async fn run(mut self) {
        loop {
            let seen = self.seen.borrow_and_update().clone();
            let again = self.written.read(&seen, Instant::now());
            self.directory
                .ratios
                .shares
                .store(Arc::new(self.written.shares.clone()));
            if seen.value.is_some() || seen.error.is_some() {
                self.settle.send_replace(true);
            }
            let changed = self.seen.changed();
            let changed = match again {
                Some(again) => tokio::time::timeout_at(again, changed).await,
                None => Ok(changed.await),
            };
            if matches!(changed, Ok(Err(_))) {
                return;
            }
        }
    }
}

/// What is written, given what the watch has seen.
struct Written {
    prefix: String,
    shares: Shares,
    /// Names that are no contract id, each told when it appears.
    strangers: Vec<String>,
}

impl Written {
    fn below(prefix: String) -> Self {
        Self {
            prefix,
            shares: Shares::new(),
            strangers: Vec::new(),
        }
    }

    /// Takes in what the watch has seen by `now`; returns when to look again although nothing was
    /// heard.
    fn read(&mut self, seen: &Seen<Vec<KvEntry>>, now: Instant) -> Option<Instant> {
        let (Some(entries), None) = (&seen.value, &seen.error) else {
            return None;
        };
        let held_until = seen.broken_at.map(|at| at + HOLD);
        let held_until = held_until.filter(|until| now < *until);
        let before = std::mem::take(&mut self.shares);
        let mut strangers = Vec::new();
        for entry in entries.iter() {
            let name = entry.key.strip_prefix(&self.prefix).unwrap_or(&entry.key);
            // Keeps the prefix from being empty.
            if name == "_keep" {
                continue;
            }
            if name.parse::<ContractId>().is_err() {
                strangers.push(entry.key.clone());
                continue;
            }
            let share = share(name, &entry.value, before.get(name));
            self.shares.insert(name.to_owned(), share);
        }
        if held_until.is_some() {
            for (name, share) in before {
                self.shares.entry(name).or_insert(share);
            }
        }
        for key in strangers.iter().filter(|key| !self.strangers.contains(key)) {
            tracing::warn!(key, "a canary ratio is written for what is no contract id");
        }
        self.strangers = strangers;
        held_until
    }
}

/// Reads what is written for one contract; a new fault is told.
fn share(id: &str, value: &[u8], before: Option<&Share>) -> Share {
    match Ratio::read(value) {
        Ok(ratio) => Share { ratio, fault: None },
        Err(fault) => {
            let last_good = before.map_or(Ratio(0), |share| share.ratio);
            let told = before.is_some_and(|share| share.fault.as_ref() == Some(&fault));
            if !told {
                let kept = last_good.of_ten_thousand();
                tracing::warn!(agent = id, fault, kept, "a canary ratio cannot be read");
            }
            Share {
                ratio: last_good,
                fault: Some(fault),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consul::Error;
    use std::time::Duration;

    fn seen(
        entries: Option<&[(&str, &str)]>,
        broken_at: Option<Instant>,
        fails: bool,
    ) -> Seen<Vec<KvEntry>> {
        let entry = |(name, value): &(&str, &str)| KvEntry {
            key: format!("hermes/canary/{name}"),
            value: value.as_bytes().to_vec().into(),
            modify_index: 1,
        };
        Seen {
            value: entries.map(|entries| Arc::new(entries.iter().map(entry).collect())),
            at: None,
            unbroken: broken_at.is_none(),
            broken_at,
            error: fails.then(|| {
                Arc::new(Error::BadAnswer {
                    doing: "read key".to_owned(),
                    reason: "made up".to_owned(),
                })
            }),
            generation: 0,
        }
    }

    fn written() -> Written {
        Written::below("hermes/canary/".to_owned())
    }

    fn ratio(written: &Written, id: &str) -> Option<u16> {
        let share = written.shares.get(id);
        share.map(|share| share.ratio.of_ten_thousand())
    }

    #[test]
    fn ratios_are_whole_numbers_up_to_ten_thousand() {
        for (text, ratio) in [
            ("0", Some(0)),
            ("1000", Some(1_000)),
            (" 1000\n", Some(1_000)),
            ("10000", Some(10_000)),
            ("10001", None),
            ("70000", None),
            ("-1", None),
            ("+1", None),
            ("10%", None),
            ("0.1", None),
            ("", None),
            ("\u{0661}", None),
        ] {
            let read = Ratio::read(text.as_bytes());
            assert_eq!(read.ok().map(Ratio::of_ten_thousand), ratio, "{text:?}");
        }
        assert!(Ratio::read(&[0xff, 0xfe]).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_read_leaves_the_last_good_ratio() {
        let (mut written, now) = (written(), Instant::now());
        written.read(
            &seen(Some(&[("a-v1.0", "500"), ("_keep", "")]), None, false),
            now,
        );
        assert_eq!(ratio(&written, "a-v1.0"), Some(500));
        assert_eq!(written.shares.len(), 1);
        let garbage = [("a-v1.0", "half"), ("b-v1.0", "10001"), ("nobody", "1")];
        written.read(&seen(Some(&garbage), None, false), now);
        assert_eq!(ratio(&written, "a-v1.0"), Some(500));
        assert_eq!(ratio(&written, "b-v1.0"), Some(0));
        let fault = written.shares["a-v1.0"].fault.as_deref();
        assert!(fault.unwrap().contains("\"half\""), "{fault:?}");
        assert_eq!(written.strangers, ["hermes/canary/nobody"]);
        written.read(&seen(Some(&[("a-v1.0", "7")]), None, false), now);
        assert_eq!(ratio(&written, "a-v1.0"), Some(7));
        assert_eq!(written.shares["a-v1.0"].fault, None);
        assert_eq!(ratio(&written, "b-v1.0"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn ratios_outlive_a_silent_consul_and_one_that_has_just_forgotten_them() {
        let (mut written, now) = (written(), Instant::now());
        written.read(&seen(Some(&[("a-v1.0", "500")]), None, false), now);
        let later = now + Duration::from_secs(3600);
        written.read(&seen(Some(&[("a-v1.0", "500")]), Some(now), true), later);
        assert_eq!(ratio(&written, "a-v1.0"), Some(500));
        let again = written.read(&seen(Some(&[]), Some(later), false), later);
        assert_eq!(
            (ratio(&written, "a-v1.0"), again),
            (Some(500), Some(later + HOLD))
        );
        // What is written meanwhile counts at once.
        written.read(&seen(Some(&[("a-v1.0", "0")]), Some(later), false), later);
        assert_eq!(ratio(&written, "a-v1.0"), Some(0));
        written.read(&seen(Some(&[]), Some(later), false), later + HOLD);
        assert_eq!(ratio(&written, "a-v1.0"), None);
    }
}
