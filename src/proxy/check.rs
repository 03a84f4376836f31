//! Holding bodies against a contract, and digests against bodies.

use super::respond::{Timing, Trouble};
use crate::context::header;
use crate::contract::guard::{self, Refusal, RefusalKind};
use crate::contract::{Compiled, Crowded, Validator, Violations, in_turn};
use crate::identity::Digest;
use crate::task::{Deadline, Problem};
use crate::telemetry::metrics::{Contract, Phase, Side, Sidecar, Validation};
use http::HeaderMap;
use std::time::Duration;
use tokio::time::Instant;

/// How strictly one direction of a contract is held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// A violation fails the call.
    #[default]
    Strict,
    /// A violation is counted and logged; the call goes on.
    Warn,
    /// Nothing is looked at.
    Off,
}

/// What is needed to check a body and to count the result.
pub struct Check<'a> {
    pub contract: &'a Compiled,
    pub limits: &'a guard::Limits,
    pub side: Side,
    pub mode: Mode,
    /// A large body waits no longer for its turn.
    pub deadline: Deadline,
    pub meters: &'a Contract,
    pub metrics: &'a Sidecar,
}

/// Why a body does not pass.
enum Fault {
    Refused(Refusal),
    Violates(Violations),
}

impl Check<'_> {
    /// Checks a body and notes the time it took, without that of waiting for its turn; in `Warn`
    /// mode a body that does not pass is only told to the log and the counters.
    pub async fn run(&self, body: &[u8], timing: &mut Timing) -> Result<(), Trouble> {
        if self.mode == Mode::Off {
            self.meters.validated(self.side, Validation::Skipped);
            return Ok(());
        }
        let timed = || {
            let started = Instant::now();
            (self.look_at(body), started.elapsed())
        };
        let until = match self.mode {
            // What is only told of holds nobody up.
            Mode::Warn => Instant::now(),
            Mode::Strict | Mode::Off => self.deadline.instant(),
        };
        let trouble = match in_turn(body.len(), until, timed).await {
            Ok((checked, took)) => {
                timing.validate += took;
                self.note(&checked, took);
                match checked {
                    Ok(()) => return Ok(()),
                    Err(fault) => self.trouble(fault),
                }
            }
            Err(crowded) => {
                self.meters.validated(self.side, Validation::Crowded);
                self.unchecked(crowded)
            }
        };
        match self.mode {
            Mode::Warn => {
                let (side, kind) = (self.side.as_str(), trouble.problem.as_str());
                tracing::warn!(
                    side,
                    kind,
                    detail = trouble.failure().detail,
                    "a body did not pass its check and went on"
                );
                Ok(())
            }
            Mode::Strict | Mode::Off => Err(trouble),
        }
    }

    fn note(&self, checked: &Result<(), Fault>, took: Duration) {
        let phase = match self.side {
            Side::Input => Phase::ValidateInput,
            Side::Output => Phase::ValidateOutput,
        };
        self.metrics.phase(phase, took);
        let result = match checked {
            Ok(()) => Validation::Valid,
            Err(_) => Validation::Invalid,
        };
        self.meters.validated(self.side, result);
    }

    fn validator(&self) -> &Validator {
        match self.side {
            Side::Input => &self.contract.input,
            Side::Output => &self.contract.output,
        }
    }

    fn look_at(&self, body: &[u8]) -> Result<(), Fault> {
        let document = match guard::parse(body, self.limits) {
            Ok(document) => document,
            // A reply without content stands for null where the contract accepts that.
            Err(refusal) if self.is_empty_output(&refusal) => {
                return match guard::parse(b"null", self.limits) {
                    Ok(null) if self.validator().check(&null).is_ok() => Ok(()),
                    _ => Err(Fault::Refused(refusal)),
                };
            }
            Err(refusal) => return Err(Fault::Refused(refusal)),
        };
        self.validator().check(&document).map_err(Fault::Violates)
    }

    fn is_empty_output(&self, refusal: &Refusal) -> bool {
        self.side == Side::Output && refusal.kind() == RefusalKind::BodyRequired
    }

    /// Says what it means that a body could not be checked in time. An input is another
    /// instance's to check; an output is of work that was done, and is too late now.
    fn unchecked(&self, crowded: Crowded) -> Trouble {
        match self.side {
            Side::Input => {
                let detail = format!("the input was not checked: {crowded}");
                let overloaded = Trouble::new(Problem::Overloaded, detail).executed(false);
                overloaded.retry_after(Duration::from_secs(1))
            }
            Side::Output => {
                let detail = format!("the reply came, but was not checked in time: {crowded}");
                Trouble::new(Problem::Timeout, detail)
            }
        }
    }

    fn trouble(&self, fault: Fault) -> Trouble {
        match (fault, self.side) {
            (Fault::Refused(refusal), Side::Input) => refused(&refusal),
            (Fault::Refused(refusal), Side::Output) => {
                let detail = format!("the reply is no acceptable JSON: {}", refusal.message());
                Trouble::new(Problem::OutputInvalid, detail)
            }
            (Fault::Violates(violations), side) => {
                for violation in violations.as_slice() {
                    self.metrics.violated(side, violation.keyword);
                }
                let problem = match side {
                    Side::Input => Problem::InputInvalid,
                    Side::Output => Problem::OutputInvalid,
                };
                Trouble::violating(problem, violations)
            }
        }
    }
}

/// Turns the guard's refusal of a request body into a problem.
pub fn refused(refusal: &Refusal) -> Trouble {
    let problem = match refusal.kind() {
        RefusalKind::BodyRequired => Problem::BodyRequired,
        RefusalKind::BadJson => Problem::BadJson,
    };
    Trouble::new(problem, refusal.message())
}

/// Holds a wrapper against the digest stated for it, which says nothing of the input inside.
pub fn wrapper(headers: &mut HeaderMap, body: &[u8]) -> Result<(), Trouble> {
    if headers.contains_key(header::CONTENT_DIGEST) {
        digest(headers, Digest::of(body), Problem::RequestDigestMismatch)?;
        headers.remove(header::CONTENT_DIGEST);
    }
    Ok(())
}

/// Holds a body against the digest its message states, if it states one.
pub fn digest(headers: &HeaderMap, body: Digest, problem: Problem) -> Result<(), Trouble> {
    for stated in headers.get_all(header::CONTENT_DIGEST) {
        match Digest::from_content_digest(stated.as_bytes()) {
            Ok(None) => {}
            Ok(Some(stated)) if stated == body => {}
            Ok(Some(_)) => {
                let detail = "the body is not the one Content-Digest was made for";
                return Err(Trouble::new(problem, detail));
            }
            Err(error) => return Err(Trouble::new(problem, error.to_string())),
        }
    }
    Ok(())
}
