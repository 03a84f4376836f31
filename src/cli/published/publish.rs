//! `contract publish`: body, version and index of the contracts of one file.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use semver::Version;

use crate::admission::publication::{self, Pointed, Raise, Team};
use crate::cli::exit::{Exit, Failure};
use crate::cli::{OutputArgs, client, file, output};
use crate::config::Registry;
use crate::consul::Client;
use crate::contract::trust::Trust;
use crate::contract::{self, Contract, Profile, lint};
use crate::telemetry::log::Chain;

use super::course::{Course, Done, Stop, Why, tell};
use super::{Place, failed};

#[derive(Debug, Args)]
pub(in crate::cli) struct PublishArgs {
    /// A contract, or an OpenAPI document with contracts.
    file: PathBuf,
    /// Publish although it breaks, or may break, what other versions of its major promise.
    #[arg(long)]
    allow_breaking: bool,
    /// Make this published version the current one, be it lower than the one that is.
    #[arg(long, value_name = "VERSION")]
    current: Option<Version>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: OutputArgs,
}

pub(in crate::cli) fn publish(args: PublishArgs) -> Result<Exit, Failure> {
    let Some(contracts) = contracts(&args)? else {
        return Ok(Exit::Usage);
    };
    let (registry, consul) = args.place.registry()?;
    let trust = client::block_on(async {
        let opened = Trust::open(registry.trust.clone(), None).await;
        opened.map_err(|error| Failure::bug(&error))
    })?;
    let desk = Desk {
        registry,
        trust,
        consul,
        allow_breaking: args.allow_breaking,
        current: args.current,
    };
    let course = client::block_on(async { Ok::<_, Failure>(desk.publish(&contracts).await) })?;
    tell(course, args.output)
}

/// Where contracts are published, and how.
struct Desk {
    registry: Registry,
    trust: Arc<Trust>,
    consul: Client,
    allow_breaking: bool,
    current: Option<Version>,
}

impl Desk {
    async fn publish<'c>(&self, contracts: &'c [Contract]) -> Course<'c> {
        let mut course = Course {
            done: Vec::new(),
            stopped: None,
        };
        for (place, contract) in contracts.iter().enumerate() {
            match self.publish_one(contract).await {
                Ok(done) => course.done.push(done),
                Err(why) => {
                    course.stopped = Some(Stop {
                        at: contract,
                        later: &contracts[place + 1..],
                        why,
                    });
                    break;
                }
            }
        }
        course
    }

    async fn publish_one<'c>(&self, contract: &'c Contract) -> Result<Done<'c>, Why> {
        // What readers with these settings would not use must not take a version for good.
        let judged = self.trust.judge(contract).await;
        judged.map_err(|untrusted| {
            Why::Unpublished(Failure::Answer(Chain(&untrusted).to_string()))
        })?;
        let by = format!("cli/{}", self.registry.person);
        let published =
            publication::publish(&self.consul, contract, &by, self.allow_breaking).await;
        let publication = published.map_err(|error| match error {
            publication::Error::Breaking(conflicts) => Why::Breaking(conflicts),
            error => Why::Unpublished(failed(error)),
        })?;
        let pointed = self.made_current(contract).await;
        Ok(Done {
            contract,
            publication,
            pointed: pointed.map_err(|error| Why::Unfinished(failed(error)))?,
            doubts: publication::doubts(&self.consul, contract).await,
        })
    }

    /// Moves the version pointer, up or as asked, and the index with it.
    async fn made_current(&self, contract: &Contract) -> Result<Pointed, publication::Error> {
        let pointed = match &self.current {
            Some(version) => publication::point(&self.consul, &contract.id, version).await?,
            None => publication::raise(&self.consul, contract, Raise::Lower).await?,
        };
        let tags = contract.tags.iter();
        let tagged = tags.filter_map(|tag| tag.strip_prefix("team-")).next();
        let (name, insists) = match self.registry.team.as_str() {
            "" => (tagged.unwrap_or_default(), false),
            team => (team, true),
        };
        publication::follow(&self.consul, contract, Team { name, insists }).await?;
        Ok(pointed)
    }
}

/// Reads and judges the file; nothing if it has faults, which are told.
fn contracts(args: &PublishArgs) -> Result<Option<Vec<Contract>>, Failure> {
    let body = file::read(&args.file)?;
    let files = [(args.file.display().to_string(), body)];
    let findings = lint::lint(&files, Profile::Default);
    if !findings.is_empty() {
        let told = lint::human(&findings, Profile::Default);
        output::talk(told.trim_end());
    }
    if lint::has_errors(&findings) {
        return Ok(None);
    }
    let contracts = contract::all_from_file(&files[0].1);
    let contracts = contracts.map_err(|problems| Failure::Usage(problems.to_string()))?;
    let Some(version) = &args.current else {
        return Ok(Some(contracts));
    };
    match contracts.as_slice() {
        [one] if (version.major, version.minor) == (one.version.major, one.version.minor) => {
            Ok(Some(contracts))
        }
        [one] => Err(Failure::Usage(format!(
            "--current: {version} is no version of {}, whose versions are {}.{}.x",
            one.id, one.version.major, one.version.minor
        ))),
        _ => Err(Failure::Usage(
            "--current: the file holds several contracts".to_owned(),
        )),
    }
}
