//! Holding bodies against a contract, and digests against bodies.

use super::respond::{Timing, Trouble};
use crate::context::header;
use crate::contract::guard::{self, Refusal, RefusalKind};
use crate::contract::{Compiled, Validator, Violations};
use crate::identity::Digest;
use crate::task::Problem;
use crate::telemetry::metrics::{Contract, Phase, Side, Sidecar, Validation};
use http::HeaderMap;
use std::sync::LazyLock;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Bodies above this are checked off the threads that move other traffic along.
const LARGE: usize = 64 * 1024;
/// How many of those are checked at once, by all listeners together: the machine's processors are
/// what they share, and those who wait keep none busy.
static PLACES: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism();
    Semaphore::new(processors.map_or(1, |many| many.get()))
});

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
    pub meters: &'a Contract,
    pub metrics: &'a Sidecar,
}

/// Why a body does not pass.
enum Fault {
    Refused(Refusal),
    Violates(Violations),
}

impl Check<'_> {
    /// Checks a body and notes the time it took; in `Warn` mode a violation is only told to the
    /// log and the counters.
    pub async fn run(&self, body: &[u8], timing: &mut Timing) -> Result<(), Trouble> {
        let started = Instant::now();
        let checked = self.judge(body).await;
        let phase = match self.side {
            Side::Input => Phase::ValidateInput,
            Side::Output => Phase::ValidateOutput,
        };
        self.metrics.phase(phase, started.elapsed());
        timing.validate += started.elapsed();
        checked
    }

    async fn judge(&self, body: &[u8]) -> Result<(), Trouble> {
        if self.mode == Mode::Off {
            self.meters.validated(self.side, Validation::Skipped);
            return Ok(());
        }
        let checked = if body.len() > LARGE {
            // Never closed.
            let _place = PLACES.acquire().await;
            tokio::task::block_in_place(|| self.look_at(body))
        } else {
            self.look_at(body)
        };
        let Err(fault) = checked else {
            self.meters.validated(self.side, Validation::Valid);
            return Ok(());
        };
        self.meters.validated(self.side, Validation::Invalid);
        let trouble = self.trouble(fault);
        match self.mode {
            Mode::Warn => {
                let (side, kind) = (self.side.as_str(), trouble.problem.as_str());
                tracing::warn!(
                    side,
                    kind,
                    detail = trouble.failure().detail,
                    "a body broke its contract and went on"
                );
                Ok(())
            }
            Mode::Strict | Mode::Off => Err(trouble),
        }
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
