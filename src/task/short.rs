//! A report as an application writes it: few fields, and other words for some of them.

use super::{Failure, Id, Report, Reporter, SlaLevel, State, StateAt, Timestamp};
use serde::Deserialize;

/// The longest text that is kept, in characters.
const LONGEST: usize = 256;

/// What an application tells of its own work.
#[derive(Debug, Deserialize)]
pub struct Short {
    pub task_id: Id,
    pub step_id: Option<Id>,
    #[serde(alias = "status")]
    state: String,
    #[serde(alias = "output_hash")]
    output_digest: Option<String>,
    pub call_id: Option<Id>,
    pub attempt: Option<u32>,
    agent: Option<String>,
    application: Option<String>,
    error: Option<String>,
    reporter: Option<String>,
}

/// Why a short report cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error(
        "there is no such state: state (or status) is pending, dispatched, executing, completed, \
         failed_validation, failed_execution, timeout or fallback_invoked; success and failed are \
         taken for completed and failed_execution"
    )]
    State,
    #[error("a report with another reporter than application has all fields of a full one")]
    Reporter,
    #[error("task_id and step_id make no call_id")]
    Call,
}

impl Short {
    /// Names the application that sent the report, if it is known and the report does not say.
    pub fn of(mut self, application: Option<&str>) -> Self {
        self.application = self.application.or(application.map(str::to_owned));
        self
    }

    /// Completes the report; `sha256` returns the hex digits of a digest.
    ///
    /// Without ids of its own it tells of the first attempt of a call that task and step name.
    pub fn complete(
        self,
        now: Timestamp,
        sha256: impl Fn(&[u8]) -> String,
    ) -> Result<Report, Unfit> {
        if self
            .reporter
            .is_some_and(|reporter| reporter != "application")
        {
            return Err(Unfit::Reporter);
        }
        let state = State::from_wire(&self.state).ok_or(Unfit::State)?;
        let step_id = self.step_id.unwrap_or_else(|| self.task_id.clone());
        let call_id = match self.call_id {
            Some(call_id) => call_id,
            None => call_id(&self.task_id, &step_id, sha256)?,
        };
        let (output_digest, detail) = match self.output_digest {
            Some(other) if !is_digest(&other) => (None, Some(clipped(&other, "output_hash "))),
            digest => (digest, None),
        };
        let application = self.application.unwrap_or_else(|| "unknown".to_owned());
        let failure = |title: String| Failure {
            kind: "application".to_owned(),
            title: clipped(&title, ""),
            detail: String::new(),
        };
        Ok(Report {
            call_id,
            task_id: self.task_id,
            step_id,
            parent_step: None,
            attempt: self.attempt.unwrap_or(1),
            state,
            states: vec![StateAt { state, at: now }],
            reporter: Reporter::Application,
            agent: self.agent.unwrap_or_else(|| application.clone()),
            agent_version: String::new(),
            instance: String::new(),
            peer: None,
            deadline_at: now,
            duration_ms: 0,
            input_digest: None,
            output_digest,
            degraded: false,
            undelivered: false,
            error: self.error.map(failure),
            detail,
            sla_level: SlaLevel::default(),
            scenario: None,
            requester: None,
            trace_id: String::new(),
            application,
        })
    }
}

/// Names the call of a report that does not: task and step together, or their digest if too long.
fn call_id(task: &Id, step: &Id, sha256: impl Fn(&[u8]) -> String) -> Result<Id, Unfit> {
    let both = format!("{task}:{step}");
    let named = Id::parse(&both).or_else(|_| Id::parse(&sha256(both.as_bytes())));
    named.map_err(|_no_digits| Unfit::Call)
}

fn is_digest(text: &str) -> bool {
    let is_hex = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    text.strip_prefix("sha-256:")
        .is_some_and(|digits| digits.len() == 64 && digits.bytes().all(is_hex))
}

fn clipped(text: &str, before: &str) -> String {
    before.chars().chain(text.chars()).take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn complete(short: serde_json::Value) -> Result<Report, Unfit> {
        let short: Short = serde_json::from_value(short).unwrap();
        short.complete(Timestamp::from_millis(7), |_| "ab".repeat(32))
    }

    #[test]
    fn what_is_left_out_is_filled_in() {
        let report = complete(json!({
            "task_id": "t", "step_id": "step_3_risk_check", "status": "success",
            "output_hash": "d41d8cd98f00b204e9800998ecf8427e",
        }));
        let report = report.unwrap();
        assert_eq!(report.call_id.as_str(), "t:step_3_risk_check");
        assert_eq!((report.state, report.attempt), (State::Completed, 1));
        assert_eq!(report.reporter, Reporter::Application);
        assert_eq!(report.output_digest, None);
        let detail = report.detail.unwrap();
        assert_eq!(detail, "output_hash d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(report.states[0].at, Timestamp::from_millis(7));

        let digest = format!("sha-256:{}", "0".repeat(64));
        let failed = json!({"task_id": "t", "state": "failed", "output_digest": digest});
        let report = complete(failed).unwrap();
        assert_eq!(report.call_id.as_str(), "t:t");
        assert_eq!(report.state, State::FailedExecution);
        assert_eq!(report.output_digest, Some(digest));
        assert_eq!(report.detail, None);

        let long = "l".repeat(100);
        let both = json!({"task_id": long, "step_id": long, "state": "timeout"});
        assert_eq!(complete(both).unwrap().call_id.as_str(), "ab".repeat(32));
    }

    #[test]
    fn faults_are_told_apart() {
        let odd = json!({"task_id": "t", "status": "odd"});
        assert_eq!(complete(odd), Err(Unfit::State));
        let callee = json!({"task_id": "t", "status": "success", "reporter": "callee"});
        assert_eq!(complete(callee), Err(Unfit::Reporter));
    }
}
