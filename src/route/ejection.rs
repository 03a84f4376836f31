//! Which instances are left out for a while because calls to them fail.
//!
//! Consul's checks are the slow truth: a dead instance may stay passing for seconds. What the
//! calls themselves tell is faster. An instance is ejected after failures in a row, or when too
//! few of its recent calls succeed; after its time it gets one call as a trial, which lets it in
//! again or out for longer.
//!
//! - only what speaks against the instance counts: whoever records decides what a failure is
//! - never more than `max_percent` of the instances are out; where more would be, none is
//! - time is an argument; elsewhere: which instances there are, and who asks (`proxy`)

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The success rate is that of at most the last two spans.
const SPAN: Duration = Duration::from_secs(5);
/// Fewer calls say nothing about a rate.
const FEWEST: u32 = 20;
/// A trial that never ended no longer keeps the next one back.
const TRIAL: Duration = Duration::from_secs(30);

/// When to eject and for how long.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Failures in a row that eject.
    pub consecutive: u32,
    /// Success rate, 0 to 1, below which an instance is ejected.
    pub success_rate: f64,
    /// The first time out; it doubles with every further one.
    pub base: Duration,
    pub max: Duration,
    /// Most instances out at once, in per cent of all.
    pub max_percent: u32,
}

/// Why an instance was ejected; also a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    Consecutive,
    SuccessRate,
    /// The trial after an ejection failed.
    Trial,
}

impl Reason {
    pub const ALL: [Reason; 3] = [Reason::Consecutive, Reason::SuccessRate, Reason::Trial];

    /// Returns the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Consecutive => "consecutive",
            Reason::SuccessRate => "success_rate",
            Reason::Trial => "trial",
        }
    }
}

/// Whether an instance gets calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    In,
    Out,
    /// One call may go there, to see whether it has recovered.
    Trial,
}

/// The instances of one contract, as far as they have failed.
#[derive(Debug)]
pub struct Ejector {
    config: Config,
    /// Only those with something to remember; the others are in.
    records: HashMap<Arc<str>, Record>,
}

/// What is remembered of one instance.
#[derive(Debug, Default)]
struct Record {
    failures_in_a_row: u32,
    /// The present span and the one before it.
    spans: [Span; 2],
    span_began: Option<Instant>,
    /// How often it was ejected without a rest since.
    times: u32,
    out_until: Option<Instant>,
    trial_began: Option<Instant>,
    /// When it was last let in again.
    back_since: Option<Instant>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Span {
    calls: u32,
    failures: u32,
}

impl Ejector {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            records: HashMap::new(),
        }
    }

    /// Says how an instance stands.
    pub fn standing(&self, id: &str, now: Instant) -> Standing {
        match self.records.get(id) {
            Some(record) => record.standing(now),
            None => Standing::In,
        }
    }

    /// Says whether nobody has to be asked about: the usual case, for the path of every call.
    pub fn is_idle(&self) -> bool {
        self.records
            .values()
            .all(|record| record.out_until.is_none())
    }

    /// Takes the trial of an instance, if it is due: until it ends, nobody else gets one.
    pub fn take_trial(&mut self, id: &str, now: Instant) -> bool {
        match self.records.get_mut(id) {
            Some(record) if record.standing(now) == Standing::Trial => {
                record.trial_began = Some(now);
                true
            }
            _ => false,
        }
    }

    /// Counts a call that the instance served; what it answered is the caller's matter.
    pub fn succeeded(&mut self, id: &str, now: Instant) {
        let Some(record) = self.records.get_mut(id) else {
            return;
        };
        record.count(now, false);
        record.failures_in_a_row = 0;
        if record.trial_began.take().is_some() && record.out_until.take().is_some() {
            record.back_since = Some(now);
            record.spans = Default::default();
        }
        let rested = record
            .back_since
            .is_none_or(|since| now.saturating_duration_since(since) >= self.config.max);
        if rested {
            record.times = 0;
        }
        if record.is_clean(now) {
            self.records.remove(id);
        }
    }

    /// Counts a call that speaks against the instance, one of `all` there are; says why it is
    /// ejected, if it is.
    pub fn failed(&mut self, id: &Arc<str>, all: usize, now: Instant) -> Option<Reason> {
        let may_eject = self.may_eject(id, all);
        let config = &self.config;
        let record = self.records.entry(id.clone()).or_default();
        record.count(now, true);
        record.failures_in_a_row = record.failures_in_a_row.saturating_add(1);
        let was_trial = record.trial_began.take().is_some();
        if record.out_until.is_some() && !was_trial {
            // Calls that began before the ejection end after it; they say nothing new.
            return None;
        }
        let reason = record.reason(config, was_trial)?;
        if !may_eject {
            return None;
        }
        let doubled = config.base.saturating_mul(1u32 << record.times.min(20));
        record.times = record.times.saturating_add(1);
        record.out_until = Some(now + doubled.min(config.max));
        record.spans = Default::default();
        record.failures_in_a_row = 0;
        Some(reason)
    }

    /// Gives back a trial that came to nothing: the call was not made.
    pub fn untried(&mut self, id: &str) {
        if let Some(record) = self.records.get_mut(id) {
            record.trial_began = None;
        }
    }

    /// Says whether so many are out of `all` that being out counts for nothing.
    pub fn is_overruled(&self, out: usize, all: usize) -> bool {
        out * 100 > all * self.config.max_percent as usize
    }

    /// Forgets instances that are no more.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.records.retain(|id, _| is_there(id));
    }

    fn may_eject(&self, id: &str, all: usize) -> bool {
        let is_out =
            |(other, record): &(&Arc<str>, &Record)| &***other != id && record.out_until.is_some();
        let others = self.records.iter().filter(is_out).count();
        !self.is_overruled(others + 1, all)
    }
}

impl Record {
    fn standing(&self, now: Instant) -> Standing {
        let Some(until) = self.out_until else {
            return Standing::In;
        };
        let trying = self
            .trial_began
            .is_some_and(|began| now.saturating_duration_since(began) < TRIAL);
        match now >= until && !trying {
            true => Standing::Trial,
            false => Standing::Out,
        }
    }

    fn count(&mut self, now: Instant, failed: bool) {
        let began = *self.span_began.get_or_insert(now);
        let age = now.saturating_duration_since(began);
        if age >= SPAN {
            let before = match age < 2 * SPAN {
                true => self.spans[0],
                false => Span::default(),
            };
            self.spans = [Span::default(), before];
            self.span_began = Some(now);
        }
        self.spans[0].calls = self.spans[0].calls.saturating_add(1);
        self.spans[0].failures = self.spans[0].failures.saturating_add(u32::from(failed));
    }

    fn reason(&self, config: &Config, was_trial: bool) -> Option<Reason> {
        if was_trial {
            return Some(Reason::Trial);
        }
        if self.failures_in_a_row >= config.consecutive {
            return Some(Reason::Consecutive);
        }
        let calls = self.spans[0].calls.saturating_add(self.spans[1].calls);
        let failures = self.spans[0]
            .failures
            .saturating_add(self.spans[1].failures);
        let succeeded = f64::from(calls - failures) / f64::from(calls);
        (calls >= FEWEST && succeeded < config.success_rate).then_some(Reason::SuccessRate)
    }

    /// Says whether there is nothing left to remember.
    fn is_clean(&self, now: Instant) -> bool {
        let began = self.span_began.unwrap_or(now);
        let quiet = now.saturating_duration_since(began) >= SPAN
            || self.spans.iter().all(|span| span.failures == 0);
        self.times == 0 && self.out_until.is_none() && self.failures_in_a_row == 0 && quiet
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config() -> Config {
        Config {
            consecutive: 5,
            success_rate: 0.5,
            base: Duration::from_secs(5),
            max: Duration::from_secs(60),
            max_percent: 50,
        }
    }

    fn after(began: Instant, seconds: u64) -> Instant {
        began + Duration::from_secs(seconds)
    }

    fn fail(ejector: &mut Ejector, id: &str, times: usize, now: Instant) -> Option<Reason> {
        let id = Arc::from(id);
        let told: Vec<_> = (0..times).map(|_| ejector.failed(&id, 3, now)).collect();
        let (last, before) = told.split_last().unwrap();
        assert!(before.iter().all(Option::is_none), "{told:?}");
        *last
    }

    #[test]
    fn failures_in_a_row_eject_and_a_success_between_them_does_not() {
        let (mut ejector, now) = (Ejector::new(config()), Instant::now());
        assert_eq!(fail(&mut ejector, "a", 4, now), None);
        ejector.succeeded("a", now);
        assert_eq!(fail(&mut ejector, "a", 4, now), None);
        assert_eq!(ejector.standing("a", now), Standing::In);
        assert_eq!(fail(&mut ejector, "a", 1, now), Some(Reason::Consecutive));
        assert_eq!(ejector.standing("a", now), Standing::Out);
        assert_eq!(ejector.standing("b", now), Standing::In);
        assert!(!ejector.is_idle());
    }

    #[test]
    fn a_low_success_rate_ejects_once_there_are_enough_calls() {
        let (mut ejector, now) = (Ejector::new(config()), Instant::now());
        let id = Arc::from("a");
        let mut told = Vec::new();
        for call in 1..=FEWEST + 1 {
            match call % 5 {
                0 => ejector.succeeded("a", now),
                _ => told.extend(ejector.failed(&id, 3, now)),
            }
        }
        assert_eq!(told, [Reason::SuccessRate]);
    }

    #[test]
    fn a_trial_is_one_call_and_decides() {
        let (mut ejector, began) = (Ejector::new(config()), Instant::now());
        fail(&mut ejector, "a", 5, began);
        assert_eq!(ejector.standing("a", after(began, 4)), Standing::Out);
        assert!(!ejector.take_trial("a", after(began, 4)));
        let due = after(began, 5);
        assert_eq!(ejector.standing("a", due), Standing::Trial);
        assert!(ejector.take_trial("a", due));
        assert!(!ejector.take_trial("a", due), "one at a time");
        assert_eq!(fail(&mut ejector, "a", 1, due), Some(Reason::Trial));
        // Twice as long now.
        assert_eq!(ejector.standing("a", after(began, 14)), Standing::Out);
        assert!(ejector.take_trial("a", after(began, 15)));
        ejector.succeeded("a", after(began, 15));
        assert_eq!(ejector.standing("a", after(began, 15)), Standing::In);
        // It has not rested yet: the next ejection is the third.
        fail(&mut ejector, "a", 5, after(began, 16));
        assert_eq!(ejector.standing("a", after(began, 35)), Standing::Out);
        assert_eq!(ejector.standing("a", after(began, 36)), Standing::Trial);
    }

    #[test]
    fn a_trial_that_was_not_made_or_never_ends_keeps_no_other_back() {
        let (mut ejector, began) = (Ejector::new(config()), Instant::now());
        fail(&mut ejector, "a", 5, began);
        let due = after(began, 5);
        assert!(ejector.take_trial("a", due));
        ejector.untried("a");
        assert!(ejector.take_trial("a", due));
        assert!(ejector.take_trial("a", due + TRIAL));
    }

    #[test]
    fn calls_that_end_after_the_ejection_change_nothing() {
        let (mut ejector, began) = (Ejector::new(config()), Instant::now());
        fail(&mut ejector, "a", 5, began);
        assert_eq!(fail(&mut ejector, "a", 20, after(began, 1)), None);
        ejector.succeeded("a", after(began, 1));
        assert_eq!(ejector.standing("a", after(began, 4)), Standing::Out);
        assert_eq!(ejector.standing("a", after(began, 5)), Standing::Trial);
    }

    #[test]
    fn not_more_than_the_allowed_share_is_out() {
        let now = Instant::now();
        for (all, most) in [(1, 0), (2, 1), (3, 1), (4, 2), (10, 5)] {
            let mut ejector = Ejector::new(config());
            let mut out = 0;
            for number in 0..all {
                let id: Arc<str> = Arc::from(format!("i{number}"));
                for _ in 0..50 {
                    out += usize::from(ejector.failed(&id, all, now).is_some());
                }
            }
            assert_eq!(out, most, "of {all}");
        }
        let ejector = Ejector::new(config());
        assert!(ejector.is_overruled(2, 3) && !ejector.is_overruled(1, 2));
    }

    #[test]
    fn times_out_grow_to_the_cap_and_are_forgotten_after_a_rest() {
        let (mut ejector, mut now) = (Ejector::new(config()), Instant::now());
        fail(&mut ejector, "a", 5, now);
        let mut lengths = Vec::new();
        for _ in 0..6 {
            let record = &ejector.records["a"];
            lengths.push((record.out_until.unwrap() - now).as_secs());
            now = record.out_until.unwrap();
            assert!(ejector.take_trial("a", now));
            fail(&mut ejector, "a", 1, now);
        }
        assert_eq!(lengths, [5, 10, 20, 40, 60, 60]);
        now = after(now, 60);
        assert!(ejector.take_trial("a", now));
        ejector.succeeded("a", now);
        ejector.succeeded("a", after(now, 61));
        assert!(ejector.records.is_empty(), "{:?}", ejector.records);
    }

    proptest! {
        #[test]
        fn whatever_happens_the_share_holds_and_everybody_comes_back(
            events in proptest::collection::vec((0usize..6, any::<bool>(), 0u64..4_000), 0..400),
        ) {
            let (mut ejector, mut now) = (Ejector::new(config()), Instant::now());
            let ids: Vec<Arc<str>> = (0..6).map(|n| Arc::from(format!("i{n}"))).collect();
            for (which, good, pause) in events {
                now += Duration::from_millis(pause);
                let id = &ids[which];
                match ejector.standing(id, now) {
                    Standing::Out => continue,
                    Standing::Trial => prop_assert!(ejector.take_trial(id, now)),
                    Standing::In => {}
                }
                match good {
                    true => ejector.succeeded(id, now),
                    false => drop(ejector.failed(id, ids.len(), now)),
                }
                let out = ids.iter().filter(|id| ejector.standing(id, now) != Standing::In);
                prop_assert!(out.count() <= 3);
            }
            now += Duration::from_secs(60);
            for id in &ids {
                prop_assert!(ejector.standing(id, now) != Standing::Out);
            }
        }
    }
}
