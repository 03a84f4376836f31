//! `doctor`: what makes tasks slow, looked for in the order in which it is likely: how loaded the
//! registry is, what validation costs, where the network loses time.
//!
//! - nothing is changed: no call is made, nothing is registered
//! - each step is examined whatever the others found; each wait and the whole have a bound
//! - times are medians of several tries, so that one slow moment is no finding
//! - elsewhere: whether the settings are sound and things are there at all (`check`)

mod findings;
mod known;
mod network;
mod registry;
mod show;
mod validation;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::time::Instant;

use super::exit::{Exit, Failure};
use super::{ConfigArgs, OutputArgs, client, length, output};
use crate::app;
use crate::config::{Examined, Role, Settings, Source};
use crate::consul;
use crate::contract::ContractId;
use crate::telemetry::log::Chain;
use findings::{Findings, Step};
use known::Known;

/// Keys without which there is nothing to examine, or only something else.
const NEEDED: [&str; 4] = ["consul", "tls", "admin", "application.contract"];

#[derive(Debug, Args)]
#[command(after_help = "\
Examined are, in this order: the registry (leader, servers, request times as measured from here and as
the agent tells them), validation (time to compile and to check, of the contracts in the config and of
those that the local sidecar uses), the network (to each of their instances: name lookup, TCP, TLS,
first byte of GET /hermes/health, each apart).

Exit codes: 0 nothing found, 1 findings, 2 usage or config, 3 Consul cannot be reached, 4 not everything
could be examined in time; the rest is examined and printed in any case.

Examples:
  hermes-sidecar doctor -c hermes.toml
  hermes-sidecar doctor --agent fraud-detection-v1.0 --samples 20 -o json")]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// A further contract to look at, whether it is in use or not; may be repeated.
    #[arg(long = "agent", value_name = "ID", value_parser = id)]
    agents: Vec<ContractId>,
    /// How often the registry is asked, twice a second; at least 3, so that one slow moment is no
    /// finding.
    #[arg(long, value_name = "COUNT", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(3..=600))]
    samples: u64,
    /// Length within which everything must have been examined.
    #[arg(long, value_name = "LENGTH", default_value = "30s",
        value_parser = length)]
    timeout: Duration,
    /// Base URL of the admin listener; default: HERMES_ADMIN, else as the settings say.
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

fn id(text: &str) -> Result<ContractId, String> {
    text.parse()
        .map_err(|_not_an_id| "write a contract id such as fraud-detection-v1.0".to_owned())
}

/// What was measured, beside what was found.
#[derive(Default)]
struct Measured {
    registry: Option<registry::Seen>,
    validation: Vec<validation::Cost>,
    network: Vec<network::Seen>,
}

pub(super) fn doctor(args: DoctorArgs) -> Result<Exit, Failure> {
    let source = Source::of_process(args.config.config.clone(), args.config.set.clone());
    let examined = Settings::examine(&source, Role::Described);
    refuse_unusable(&examined)?;
    let question = Question {
        admin: admin(&args, &examined.settings)?,
        settings: examined.settings,
        agents: args.agents,
        samples: args.samples,
        until: Instant::now() + args.timeout,
    };
    let mut found = Findings::default();
    let measured = client::block_on(question.examine(&mut found))?;
    show::show(&measured, &found, args.output);
    Ok(found.exit())
}

/// Decides where the sidecar's admin listener is: as told, else as the sidecar says that we run
/// beside (unless a file is named), else as the settings say.
fn admin(args: &DoctorArgs, settings: &Settings) -> Result<String, Failure> {
    let beside = match &args.config.config {
        None => Source::of_process(None, Vec::new()).beside("admin"),
        Some(_) => None,
    };
    match args.admin.clone().or(beside) {
        Some(url) => client::base(Some(url), "admin", None, |at| at.admin.clone()),
        None => Ok(settings.admin.listen.to_url()),
    }
}

fn refuse_unusable(examined: &Examined) -> Result<(), Failure> {
    let is_needed = |problem: &&crate::config::Problem| {
        !examined.is_whole || NEEDED.iter().any(|key| problem.key.starts_with(key))
    };
    let (needed, others): (Vec<_>, Vec<_>) = examined.problems.iter().partition(is_needed);
    if !needed.is_empty() {
        let told: Vec<String> = needed.iter().map(ToString::to_string).collect();
        return Err(Failure::Usage(told.join("\n")));
    }
    if !others.is_empty() {
        output::talk(&format!(
            "the settings have faults that do not matter here ({}): see hermes-sidecar check",
            others.len()
        ));
    }
    Ok(())
}

/// What is to be examined, with what, until when.
struct Question {
    settings: Settings,
    admin: String,
    agents: Vec<ContractId>,
    samples: u64,
    until: Instant,
}

impl Question {
    async fn examine(self, found: &mut Findings) -> Result<Measured, Failure> {
        let config = app::consul_config(&self.settings.consul);
        let client = consul::Client::new(config, Arc::new(|_, _, _| {}));
        let client = client.map_err(|error| Failure::Usage(Chain(&error).to_string()))?;
        let mut measured = Measured::default();
        let address = &self.settings.consul.address;
        let registry = registry::examine(&client, address, self.samples, self.until, found).await;
        let consul = registry.is_reachable.then_some(&client);
        measured.registry = Some(registry);
        let known = Known::gather(&self, consul, found).await;
        measured.validation = validation::examine(&known, self.until, found);
        let tls = self.settings.tls.as_ref();
        measured.network = network::examine(&known, tls, self.until, found).await;
        if Instant::now() >= self.until {
            found.cut(Step::Network);
        }
        Ok(measured)
    }
}
