//! What validation costs: compiling a contract once, and checking its bodies at every call.

use std::hint::black_box;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::findings::{Findings, Step};
use super::known::{Known, Subject};
use crate::cli::quantile::{Times, shown};
use crate::contract::{Compiled, Contract, Validator, derive, guard};

/// A check is repeated so often, or for so long, whichever is over first.
const ROUNDS: usize = 200;
const ROUNDS_FOR: Duration = Duration::from_millis(100);
const COMPILATIONS: usize = 5;
/// Both sidecars of a call check its input and its output.
const SIDECARS: u32 = 2;
/// More than this part of the contract's timeout is too much for checking.
const MOST_SHARE: f64 = 0.1;

/// What one contract costs.
#[derive(Debug)]
pub(super) struct Cost {
    pub agent: String,
    pub version: String,
    pub origin: String,
    /// Of the canonical form.
    pub bytes: usize,
    pub timeout: Duration,
    pub compile: Duration,
    pub input: Check,
    pub output: Check,
}

/// What checking one body costs, parsing included.
#[derive(Debug)]
pub(super) struct Check {
    /// False: derived from the schema.
    pub is_probe: bool,
    pub bytes: usize,
    /// Whether the body conforms; one that does not costs more, as it is explained.
    pub conforms: bool,
    pub time: Duration,
}

impl Cost {
    /// Returns what all checks of one call take of the contract's timeout, 1 being all of it.
    pub fn share(&self) -> f64 {
        let checks = (self.input.time + self.output.time) * SIDECARS;
        checks.as_secs_f64() / self.timeout.as_secs_f64()
    }
}

pub(super) fn examine(known: &Known, until: Instant, found: &mut Findings) -> Vec<Cost> {
    let mut costs = Vec::new();
    for subject in &known.contracts {
        if Instant::now() >= until {
            found.cut(Step::Validation);
            break;
        }
        match measure(subject) {
            Ok(cost) => {
                judge(&cost, found);
                costs.push(cost);
            }
            Err(told) => {
                let contract = &subject.contract;
                let message = format!(
                    "{} {} cannot be compiled: {told}",
                    contract.id, contract.version
                );
                found.add(
                    Step::Validation,
                    message,
                    "see hermes-sidecar contract lint",
                );
            }
        }
    }
    costs
}

fn measure(subject: &Subject) -> Result<Cost, String> {
    let Subject { origin, contract } = subject;
    let (compiled, compile) = compile(contract)?;
    Ok(Cost {
        agent: contract.id.to_string(),
        version: contract.version.to_string(),
        origin: origin.clone(),
        bytes: contract.canonical().len(),
        timeout: contract.constraints.timeout,
        compile,
        input: check(&compiled.input, &contract.input_schema, probe(contract)),
        output: check(&compiled.output, &contract.output_schema, None),
    })
}

/// Compiles a contract several times: the first one of a process also reads the dialect.
fn compile(contract: &Contract) -> Result<(Compiled, Duration), String> {
    let once = || {
        let began = Instant::now();
        let compiled = Compiled::new(contract.clone());
        let compiled = compiled.map_err(|problems| problems.to_string())?;
        Ok::<_, String>((compiled, began.elapsed()))
    };
    let (mut compiled, first) = once()?;
    let mut times = vec![first];
    while times.len() < COMPILATIONS && times.iter().sum::<Duration>() < ROUNDS_FOR {
        let (again, took) = once()?;
        times.push(took);
        compiled = again;
    }
    Ok((compiled, Times::of(times).median().unwrap_or(first)))
}

fn probe(contract: &Contract) -> Option<&Value> {
    contract.probe.as_ref().map(|probe| &probe.input)
}

fn check(validator: &Validator, schema: &Value, probe: Option<&Value>) -> Check {
    let body = match probe {
        Some(given) => given.to_string(),
        None => derive::whole(schema).to_string(),
    };
    let limits = guard::Limits::default();
    let once = || match guard::parse(black_box(body.as_bytes()), &limits) {
        Ok(document) => validator.check(&document).is_ok(),
        Err(_refusal) => false,
    };
    let began = Instant::now();
    let mut times = Vec::with_capacity(ROUNDS);
    let mut conforms = true;
    while times.len() < ROUNDS && (times.is_empty() || began.elapsed() < ROUNDS_FOR) {
        let round = Instant::now();
        conforms = black_box(once());
        times.push(round.elapsed());
    }
    Check {
        is_probe: probe.is_some(),
        bytes: body.len(),
        conforms,
        time: Times::of(times).median().unwrap_or_default(),
    }
}

fn judge(cost: &Cost, found: &mut Findings) {
    if cost.share() <= MOST_SHARE {
        return;
    }
    let (input, output) = (&cost.input, &cost.output);
    let message = format!(
        "checking takes {:.0} % of the timeout of {} {}: input {}, output {}, at both sidecars, of {}",
        cost.share() * 100.0,
        cost.agent,
        cost.version,
        shown(input.time),
        shown(output.time),
        shown(cost.timeout)
    );
    let remedy = "simplify what is checked for each entry of long lists (uniqueItems, patterns, \
                  alternatives), send smaller bodies, or give the contract a longer timeout_ms";
    found.add(Step::Validation, message, remedy);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn subject(timeout_ms: u64, probe: Value) -> Subject {
        let contract = json!({
            "id": "list-check-v1.0", "version": "1.0.0",
            "input_schema": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}},
            "output_schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
            "constraints": {"timeout_ms": timeout_ms},
            "probe": {"input": probe},
        });
        let contract = Contract::from_slice(contract.to_string().as_bytes()).unwrap();
        let origin = "here".to_owned();
        Subject { origin, contract }
    }

    fn examined(subject: Subject) -> (Vec<Cost>, Findings) {
        let known = Known {
            contracts: vec![subject],
            targets: Vec::new(),
        };
        let mut found = Findings::default();
        let until = Instant::now() + Duration::from_secs(60);
        (examine(&known, until, &mut found), found)
    }

    #[test]
    fn a_costly_check_is_found_and_a_cheap_one_is_not() {
        let (costs, found) = examined(subject(60_000, json!(["a"])));
        assert_eq!(found.count(), 0, "{found:?}");
        assert!(
            costs[0].input.is_probe && costs[0].input.conforms,
            "{costs:?}"
        );
        assert!(
            !costs[0].output.is_probe && costs[0].output.conforms,
            "{costs:?}"
        );
        let long = vec!["abcdefghijklmnopqrstuvwxyz"; 8000];
        let (costs, found) = examined(subject(1, json!(long)));
        assert_eq!(found.count(), 1, "{costs:?}");
        assert!(
            found.all[0].message.contains("list-check-v1.0"),
            "{found:?}"
        );
    }

    #[test]
    fn nothing_is_measured_once_time_is_over() {
        let known = Known {
            contracts: vec![subject(1, json!([]))],
            targets: Vec::new(),
        };
        let mut found = Findings::default();
        let costs = examine(&known, Instant::now(), &mut found);
        assert!(costs.is_empty() && found.all.len() == 1, "{found:?}");
    }
}
