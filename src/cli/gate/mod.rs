//! `verify`: many calls of one contract through the local sidecar, held against three limits.
//!
//! - every contract call that is made is counted: none warms up, none is repeated by us
//! - each call is a task of its own, so that whatever it became can be looked at afterwards
//! - the total time is bounded; what was measured until its end, or until Ctrl-C, is told
//! - elsewhere: one call and its reply (`invoke`), what a contract promises (`contract`)

mod calls;
mod promise;
mod show;
mod verdict;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokio::time::Instant;

use super::exit::{Exit, Failure};
use super::{OutputArgs, client, invoke, length};
use crate::contract::{ContractId, Range};
use calls::{Ended, Plan};
use promise::Promise;
use verdict::Verdict;

/// Calls of one run: all of their ends are kept in memory.
const MOST_CALLS: u64 = 100_000;
const MOST_AT_ONCE: u64 = 256;
const FASTEST: f64 = 10_000.0;
/// One call in a quarter of an hour.
const SLOWEST: f64 = 0.001;
/// What a call may take beyond its contract's timeout: the sidecar's own grace, and a busy machine.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = "\
These are real calls: the application carries each of them out.

Met is: at least 99.9 % of the calls completed, the 99th percentile of their times at most 1.2 times
the contract's timeout_ms, and none failed validation. A time is from before the request is sent until
the reply is read; a call without a reply counts as not completed, with the time it was waited for.
What a fallback answered is not completed: it says nothing for the contract that was called.
The contract is read once at the instance that the sidecar chooses (GET /hermes/handshake), which is no
call of it. Every call is a task whose id begins with the prefix shown: `hermes-sidecar task ID`.

Exit codes: 0 met, 1 not met, 2 usage, 3 no sidecar answers, 4 not all calls were made in time.

Examples:
  hermes-sidecar verify fraud-detection-v1.0
  hermes-sidecar verify fraud-detection-v1.0 --input payment.json --calls 5000 --rate 50 -o json")]
pub(super) struct VerifyArgs {
    /// Contract id, e.g. fraud-detection-v1.0, or a range such as fraud-detection@^1.
    agent: String,
    /// How many calls are made.
    #[arg(long, value_name = "COUNT", default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=MOST_CALLS))]
    calls: u64,
    /// File with the input as JSON, or - for standard input; default: the contract's probe input.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Most calls under way at once, up to 256.
    #[arg(long, value_name = "COUNT", default_value_t = 4,
        value_parser = clap::value_parser!(u64).range(1..=MOST_AT_ONCE))]
    concurrency: u64,
    /// Most calls begun per second, e.g. 20 or 0.5, at least 0.001; default: as soon as one before has ended.
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    rate: Option<f64>,
    /// Length within which all calls must have been made.
    #[arg(long, value_name = "LENGTH", default_value = "10m",
        value_parser = length)]
    timeout: Duration,
    /// Base URL of the outbound listener; default: HERMES_OUTBOUND, else as the settings say.
    #[arg(long, value_name = "URL")]
    outbound: Option<String>,
    /// Config file that names the listener.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn verify(args: VerifyArgs) -> Result<Exit, Failure> {
    if !names_a_contract(&args.agent) {
        return Err(Failure::Usage(format!(
            "{:?} is no contract id such as fraud-detection-v1.0, and no range such as \
             fraud-detection@^1",
            args.agent
        )));
    }
    let given = match &args.input {
        Some(path) => Some(invoke::read_input(Some(path))?),
        None => None,
    };
    let base = client::base(
        args.outbound.clone(),
        "outbound",
        args.config.clone(),
        |at| at.outbound.clone(),
    )?;
    client::block_on(run(args, given, &base))
}

fn names_a_contract(agent: &str) -> bool {
    let id = agent.split_once('@').map_or(agent, |(id, _version)| id);
    agent.parse::<Range>().is_ok() || id.parse::<ContractId>().is_ok()
}

async fn run(
    args: VerifyArgs,
    given: Option<Box<serde_json::value::RawValue>>,
    base: &str,
) -> Result<Exit, Failure> {
    let until = Instant::now() + args.timeout;
    let mut promise = Promise::ask(base, &args.agent, args.timeout).await?;
    let input = match given {
        Some(input) => input,
        None => promise.probe_input()?,
    };
    let plan = Plan {
        http: client::http(base, promise.timeout().saturating_add(GRACE))?,
        base: base.to_owned(),
        agent: args.agent,
        input,
        calls: args.calls as usize,
        at_once: args.concurrency as usize,
        rate: args.rate,
        prefix: prefix(),
    };
    show::begin(&plan, &promise, args.output);
    let (plan, made) = calls::make(plan, until).await?;
    if !matches!(made.ended, Ended::Interrupted(_) | Ended::Gone(_)) {
        // Another version may have answered some of the calls, with a timeout of its own.
        let until = until.max(Instant::now() + GRACE);
        promise.add(base, &made.outcomes, until).await;
    }
    let verdict = Verdict::of(&made, &plan, &promise);
    show::end(&plan, &made, &promise, &verdict, args.output);
    Ok(match made.ended {
        Ended::All if verdict.is_met() => Exit::Fine,
        Ended::All => Exit::Negative,
        Ended::TimeOver => Exit::Timeout,
        Ended::Gone(_) => Exit::Unreachable,
        Ended::Interrupted(code) => Exit::Other(code),
    })
}

/// Makes the beginning that the task ids of one run share.
fn prefix() -> String {
    format!("verify-{:08x}-", fastrand::u32(..))
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (SLOWEST..=FASTEST).contains(&rate) => Ok(rate),
        _ => Err(format!("write a number from {SLOWEST} to {FASTEST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_positive_and_bounded() {
        for good in ["0.001", "0.5", "20", "10000"] {
            assert!(rate(good).is_ok(), "{good}");
        }
        for bad in ["0", "1e-300", "-1", "inf", "NaN", "10001", "fast"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_versions_and_ranges_name_a_contract() {
        for good in ["fraud-v1.0", "fraud-v1.0@1.0.2", "fraud@^1"] {
            assert!(names_a_contract(good), "{good}");
        }
        for bad in ["", "fraud", "fraud@1", "a/b", "../x-v1.0?y"] {
            assert!(!names_a_contract(bad), "{bad}");
        }
    }
}
