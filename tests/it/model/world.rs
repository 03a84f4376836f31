//! One call as all who take part in it stand: the caller, the instances, the network between.
//!
//! Time is left out on purpose: a timer may fire at any moment, and the call's deadline may pass
//! at any moment. What holds then holds for every length of every timeout and delay.

use hermes_sidecar::task::{Course, Ended, State};

/// The first two sites are instances of the agent that is called; the third is its standby's.
pub const SITES: usize = 3;
pub const STANDBY: usize = 2;

/// Everything there is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub caller: Caller,
    pub sites: [Site; SITES],
    /// What is under way, in no order: any of it may arrive next.
    pub network: Vec<Message>,
    pub faults: Faults,
    /// A promise that the last step broke.
    pub broken: Option<&'static str>,
}

/// How many misfortunes are still to come at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Faults {
    pub losses: u8,
    /// Requests that are delivered twice.
    pub repeats: u8,
    /// Deaths of a sidecar or an application.
    pub crashes: u8,
    /// Look-ups of the record that give up, and ends that it does not keep.
    pub unrecorded: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    pub phase: Phase,
    pub attempts: Vec<Attempt>,
    /// What the agent's attempts came to so far.
    pub course: Course,
    /// The call's deadline has passed.
    pub is_expired: bool,
    /// How often it may still ask for an answer that is not there yet.
    pub questions: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A site is chosen next, one of these.
    Choosing(Choice),
    /// The newest attempt is under way.
    Waiting,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// An instance that was not tried, if there is one.
    Elsewhere,
    Same(usize),
    Standby,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub site: usize,
    pub state: State,
    /// The copy of its request whose answer is waited for.
    pub copy: u8,
    /// What the caller knows of it since its end.
    pub ended: Option<Ended>,
    /// Its callee has reported an end.
    pub is_told: bool,
}

/// An instance: its sidecar, what that keeps on disk, and its application.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Site {
    pub is_down: bool,
    /// What the record says of this call.
    pub row: Option<Row>,
    pub runs: Vec<Run>,
    /// How often the application has begun the work.
    pub executed: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Row {
    InFlight,
    /// With the end, and whether the application itself refused.
    Answered(State, bool),
    InDoubt,
}

/// A request that the sidecar has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    pub attempt: usize,
    pub copy: u8,
    /// Bytes went to the application.
    pub is_sent: bool,
    /// It owns the row.
    pub has_ticket: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    pub attempt: usize,
    pub copy: u8,
    pub said: Said,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Said {
    Request,
    /// The callee's sidecar tells the end, and whether bytes went to the application.
    Ended {
        end: State,
        is_refusal: bool,
        is_executed: bool,
    },
    InFlight,
    InDoubt,
    /// Nobody listens there.
    NoConnection,
    /// The connection broke after the request had gone out.
    Broken,
}

impl World {
    /// Begins a call with this many misfortunes ahead.
    pub fn new(course: Course, faults: Faults, questions: u8) -> Self {
        Self {
            caller: Caller {
                phase: Phase::Choosing(Choice::Elsewhere),
                attempts: Vec::new(),
                course,
                is_expired: false,
                questions,
            },
            sites: Default::default(),
            network: Vec::new(),
            faults,
            broken: None,
        }
    }

    /// Returns the attempt under way.
    pub fn current(&mut self) -> &mut Attempt {
        self.caller.attempts.last_mut().unwrap()
    }

    /// Counts the attempts made at these sites.
    pub fn attempts_at(&self, sites: std::ops::Range<usize>) -> usize {
        let attempts = self.caller.attempts.iter();
        attempts.filter(|made| sites.contains(&made.site)).count()
    }

    /// Counts how often these sites' applications have begun the work.
    pub fn executions_at(&self, sites: std::ops::Range<usize>) -> u8 {
        self.sites[sites].iter().map(|site| site.executed).sum()
    }

    pub fn send(&mut self, message: Message) {
        self.network.push(message);
        // In no order: two worlds that differ in it alone are one.
        self.network.sort_unstable();
    }

    pub fn break_promise(&mut self, promise: &'static str) {
        self.broken.get_or_insert(promise);
    }
}
