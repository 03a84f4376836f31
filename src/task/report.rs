//! The report that tells the collector of one attempt.

use super::{Id, State, Timestamp};
use serde::{Deserialize, Serialize};

/// One state of an attempt and when it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateAt {
    pub state: State,
    pub at: Timestamp,
}

/// The highest number of an attempt that is believed; retries end long before.
pub const MOST_ATTEMPTS: u32 = 1000;

/// Who speaks of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reporter {
    /// The sidecar that sent the call.
    Caller,
    /// The sidecar that received it.
    Callee,
    /// The application itself.
    Application,
    /// The collector, for an attempt that nobody ended in time; gives way to a real report.
    Watchdog,
}

impl Reporter {
    /// Returns the wire name.
    pub fn as_str(self) -> &'static str {
        match self {
            Reporter::Caller => "caller",
            Reporter::Callee => "callee",
            Reporter::Application => "application",
            Reporter::Watchdog => "watchdog",
        }
    }
}

/// How urgent the business holds a task to be.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum SlaLevel {
    P0,
    P1,
    #[default]
    P2,
    P3,
}

impl SlaLevel {
    /// Returns the wire name.
    pub fn as_str(self) -> &'static str {
        match self {
            SlaLevel::P0 => "P0",
            SlaLevel::P1 => "P1",
            SlaLevel::P2 => "P2",
            SlaLevel::P3 => "P3",
        }
    }

    /// Reads a wire name.
    pub fn from_wire(name: &str) -> Option<Self> {
        [Self::P0, Self::P1, Self::P2, Self::P3]
            .into_iter()
            .find(|level| level.as_str() == name)
    }
}

/// Why an attempt did not complete; no text from a body ever stands here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: String,
    pub title: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// What one reporter says of one attempt.
///
/// `(call_id, attempt, reporter, state)` is its identity: the first report with it wins, a repeat
/// is a duplicate. Digests are `sha-256:<hex>` of the bodies as they cross between sidecars.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub call_id: Id,
    pub task_id: Id,
    pub step_id: Id,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_step: Option<Id>,
    pub attempt: u32,
    pub state: State,
    pub states: Vec<StateAt>,
    pub reporter: Reporter,
    /// The contract that was asked for or served.
    pub agent: String,
    /// Empty when the call ended before a version was chosen.
    #[serde(default)]
    pub agent_version: String,
    /// Empty when the call ended before an instance was chosen.
    #[serde(default)]
    pub instance: String,
    /// The application on the other side: whom the caller meant, or who called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    pub deadline_at: Timestamp,
    pub duration_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_digest: Option<String>,
    #[serde(default)]
    pub degraded: bool,
    /// True when the caller had hung up before its reply.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undelivered: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// What an application said beyond these fields; of the callee's sidecar, what links the step
    /// to the path it came by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    #[serde(default)]
    pub sla_level: SlaLevel,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scenario: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<String>,
    #[serde(default)]
    pub trace_id: String,
    pub application: String,
}

#[cfg(test)]
impl Report {
    /// Makes a report that tests change to their needs: a first attempt, as its callee sees it.
    pub fn sample(call: &str) -> Self {
        let id = |text| Id::parse(text).unwrap();
        Self {
            call_id: id(call),
            task_id: id("task-1"),
            step_id: id("step-1"),
            parent_step: None,
            attempt: 1,
            state: State::Pending,
            states: Vec::new(),
            reporter: Reporter::Callee,
            agent: "fraud-detection-v1.0".into(),
            agent_version: "1.0.0".into(),
            instance: "fraud-7401".into(),
            peer: None,
            deadline_at: Timestamp::from_millis(0),
            duration_ms: 12,
            input_digest: None,
            output_digest: None,
            degraded: false,
            undelivered: false,
            error: None,
            detail: None,
            sla_level: SlaLevel::P2,
            scenario: None,
            requester: None,
            trace_id: String::new(),
            application: "fraud".into(),
        }
    }
}
