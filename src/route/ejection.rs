//! Which instances are left out for a while because calls to them fail.
//!
//! Consul's checks are the slow truth: a dead instance may stay passing for seconds. What the
//! calls themselves tell is faster. An instance is ejected after failures in a row, or when too
//! few of its recent calls succeed; after its time it gets one call as a trial, which lets it in
//! again or out for longer.
//!
//! - only what speaks against the instance counts: whoever records decides what a failure is
//! - where more than `max_percent` of the instances would be out, the fault is likely elsewhere:
//!   then nobody is left out, and whoever serves is in again
//! - no call is sent out of its way for a trial; who is missed by no call is in again after a while
//! - time is an argument; elsewhere: which instances there are, and who asks (`proxy`)

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// The success rate is that of at most the last two spans.
const SPAN: Duration = Duration::from_secs(5);
/// Fewer calls say nothing about a rate.
const FEWEST: u32 = 20;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    #[error("its calls failed one after the other")]
    Consecutive,
    #[error("too few of its calls succeeded")]
    SuccessRate,
    #[error("the trial after its last ejection failed")]
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

/// One call to an instance, as far as its end matters here.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub began: Instant,
    /// It took the instance's trial.
    pub is_trial: bool,
}

/// An ejection that still holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ejection {
    pub since: Instant,
    /// From then on a trial may let it in.
    pub until: Instant,
    pub reason: Reason,
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
    out: Option<Ejection>,
    is_on_trial: bool,
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

    /// Goes by another configuration from now on.
    pub fn follow(&mut self, config: Config) {
        self.config = config;
    }

    /// Says how an instance stands, whatever the others' standing.
    pub fn standing(&self, id: &str, now: Instant) -> Standing {
        match self.records.get(id) {
            Some(record) => record.standing(self.config.max, now),
            None => Standing::In,
        }
    }

    /// Returns the ejection of an instance that is not in.
    pub fn ejection(&self, id: &str, now: Instant) -> Option<Ejection> {
        let record = self.records.get(id)?;
        record.out.filter(|_| record.is_out(self.config.max, now))
    }

    /// Says whether nobody has to be asked about: the usual case, for the path of every call.
    pub fn is_idle(&self) -> bool {
        self.records.values().all(|record| record.out.is_none())
    }

    /// Returns how many are not in.
    pub fn out(&self, now: Instant) -> usize {
        let is_out = |record: &&Record| record.is_out(self.config.max, now);
        self.records.values().filter(is_out).count()
    }

    /// Says whether so many of `all` are not in that this counts for nothing.
    pub fn is_overruled(&self, all: usize, now: Instant) -> bool {
        self.out(now) * 100 > all * self.config.max_percent as usize
    }

    /// Takes the trial of an instance, if it is due: until it ends, nobody else gets one.
    pub fn take_trial(&mut self, id: &str, now: Instant) -> bool {
        let max = self.config.max;
        match self.records.get_mut(id) {
            Some(record) if record.standing(max, now) == Standing::Trial => {
                record.is_on_trial = true;
                true
            }
            _ => false,
        }
    }

    /// Counts a call that the instance served; what it answered is the caller's matter. Says
    /// whether the instance is in again by it.
    pub fn succeeded(&mut self, id: &str, call: Call, now: Instant) -> bool {
        let max = self.config.max;
        let Some(record) = self.records.get_mut(id) else {
            return false;
        };
        record.lapse(max, now);
        record.count(now, false);
        record.failures_in_a_row = 0;
        if call.is_trial {
            record.is_on_trial = false;
        }
        // What began before the ejection tells of a time that is over.
        let is_back = match record.out {
            Some(out) => call.is_trial || call.began >= out.since,
            None => false,
        };
        if is_back {
            record.comes_back(now);
        }
        // Who is out does not rest, though calls that began before may still succeed.
        let rested = record.out.is_none()
            && record
                .back_since
                .is_none_or(|since| now.saturating_duration_since(since) >= max);
        if rested {
            record.times = 0;
        }
        if record.is_clean(now) {
            self.records.remove(id);
        }
        is_back
    }

    /// Counts a call that speaks against the instance; says that it is ejected, if it is.
    pub fn failed(&mut self, id: &Arc<str>, call: Call, now: Instant) -> Option<Ejection> {
        let config = &self.config;
        let record = self.records.entry(id.clone()).or_default();
        record.lapse(config.max, now);
        record.count(now, true);
        record.failures_in_a_row = record.failures_in_a_row.saturating_add(1);
        let was_trial = call.is_trial && std::mem::take(&mut record.is_on_trial);
        if record.out.is_some() && !was_trial {
            // Calls that began before the ejection end after it; they say nothing new.
            return None;
        }
        let reason = record.reason(config, was_trial)?;
        let doubled = config.base.saturating_mul(1u32 << record.times.min(20));
        let ejection = Ejection {
            since: now,
            until: now + doubled.min(config.max),
            reason,
        };
        record.times = record.times.saturating_add(1);
        record.out = Some(ejection);
        record.spans = Default::default();
        record.failures_in_a_row = 0;
        Some(ejection)
    }

    /// Gives back a trial that came to nothing: the call said nothing about the instance.
    pub fn untried(&mut self, id: &str) {
        if let Some(record) = self.records.get_mut(id) {
            record.is_on_trial = false;
        }
    }

    /// Forgets instances that are no more.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.records.retain(|id, _| is_there(id));
    }
}

impl Record {
    fn standing(&self, max: Duration, now: Instant) -> Standing {
        match self.out {
            Some(_) if !self.is_out(max, now) => Standing::In,
            Some(out) if now >= out.until && !self.is_on_trial => Standing::Trial,
            Some(_) => Standing::Out,
            None => Standing::In,
        }
    }

    /// An ejection ends by itself once its trial has been due for `max`: no call prefers the
    /// instance, and it would count against the others for ever.
    fn is_out(&self, max: Duration, now: Instant) -> bool {
        let held = |out: Ejection| self.is_on_trial || now < out.until + max;
        self.out.is_some_and(held)
    }

    fn lapse(&mut self, max: Duration, now: Instant) {
        if self.out.is_some() && !self.is_out(max, now) {
            self.comes_back(now);
        }
    }

    fn comes_back(&mut self, now: Instant) {
        self.out = None;
        self.back_since = Some(now);
        self.spans = Default::default();
        self.failures_in_a_row = 0;
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
        self.times == 0 && self.out.is_none() && self.failures_in_a_row == 0 && quiet
    }
}
