//! `contract publish`: body, version and index of the contracts of one file.

use std::path::PathBuf;

use clap::Args;
use semver::Version;
use serde::Serialize;
use serde_json::{Value, json};

use crate::admission::publication::{self, Change, Conflict, Publication, Raise, Team};
use crate::cli::exit::{Exit, Failure};
use crate::cli::lint::read;
use crate::cli::{OutputArgs, client, output};
use crate::config::Registry;
use crate::consul::Client;
use crate::contract::trust::MOST_SIGNATURES;
use crate::contract::{Contract, Profile, lint, openapi};

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

/// What was done for one contract.
#[derive(Debug, Serialize)]
struct Done {
    agent: String,
    version: String,
    digest: String,
    /// `published`, `signed` or `unchanged`.
    body: &'static str,
    signatures_added: usize,
    signatures_left_out: usize,
    current: String,
    /// What it breaks all the same.
    allowed: Vec<Value>,
    passed_over: Vec<String>,
}

pub(in crate::cli) fn publish(args: PublishArgs) -> Result<Exit, Failure> {
    let Some(contracts) = contracts(&args)? else {
        return Ok(Exit::Usage);
    };
    let (registry, consul) = args.place.registry()?;
    client::block_on(async {
        let mut exit = Exit::Fine;
        let mut all = Vec::new();
        for contract in &contracts {
            let by = format!("cli/{}", registry.person);
            let published = publication::publish(&consul, contract, &by, args.allow_breaking).await;
            let publication = match published {
                Err(publication::Error::Breaking(conflicts)) => {
                    refuse(&conflicts, args.output);
                    return Ok(Exit::Negative);
                }
                published => published.map_err(failed)?,
            };
            let current = args.current.as_ref();
            let current = made_current(&registry, &consul, contract, current).await?;
            if publication.left_out > 0 {
                exit = Exit::Negative;
            }
            all.push(done(contract, &publication, current));
        }
        show(&all, args.output);
        Ok(exit)
    })
}

/// Reads and judges the file; nothing if it has faults, which are told.
fn contracts(args: &PublishArgs) -> Result<Option<Vec<Contract>>, Failure> {
    let files = read(std::slice::from_ref(&args.file))?;
    let findings = lint::lint(&files, Profile::Default);
    if !findings.is_empty() {
        let told = lint::human(&findings, Profile::Default);
        output::talk(told.trim_end());
    }
    if lint::has_errors(&findings) {
        return Ok(None);
    }
    let body = &files[0].1;
    let contracts = match openapi::is_document(body) {
        true => openapi::read(body).map(|imported| {
            let contracts = imported.into_iter().map(|one| one.contract);
            contracts.collect()
        }),
        false => Contract::from_slice(body).map(|contract| vec![contract]),
    };
    let contracts: Vec<_> = contracts.map_err(|problems| Failure::Usage(problems.to_string()))?;
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

/// Moves the version pointer, up or as asked, and the index with it.
async fn made_current(
    registry: &Registry,
    consul: &Client,
    contract: &Contract,
    wanted: Option<&Version>,
) -> Result<Version, Failure> {
    let current = match wanted {
        Some(version) => {
            let pointed = publication::point(consul, &contract.id, version).await;
            pointed.map_err(failed)?;
            version.clone()
        }
        None => {
            let raised = publication::raise(consul, contract, Raise::Lower).await;
            raised.map_err(failed)?
        }
    };
    let tags = contract.tags.iter();
    let tagged = tags.filter_map(|tag| tag.strip_prefix("team-")).next();
    let (name, insists) = match registry.team.as_str() {
        "" => (tagged.unwrap_or_default(), false),
        team => (team, true),
    };
    let followed = publication::follow(consul, contract, Team { name, insists }).await;
    followed.map_err(failed)?;
    Ok(current)
}

fn done(contract: &Contract, publication: &Publication, current: Version) -> Done {
    let (body, signatures_added) = match publication.change {
        Change::Created => ("published", 0),
        Change::Signed(added) => ("signed", added),
        Change::None => ("unchanged", 0),
    };
    Done {
        agent: contract.id.to_string(),
        version: contract.version.to_string(),
        digest: contract.digest().to_string(),
        body,
        signatures_added,
        signatures_left_out: publication.left_out,
        current: current.to_string(),
        allowed: publication.neighbours.conflicts.iter().map(told).collect(),
        passed_over: publication.neighbours.passed_over.clone(),
    }
}

fn told(conflict: &Conflict) -> Value {
    json!({
        "older": conflict.older,
        "newer": conflict.newer,
        "verdict": conflict.comparison.verdict(),
        "findings": conflict.comparison.findings,
        "left_out": conflict.comparison.left_out,
    })
}

fn refuse(conflicts: &[Conflict], format: OutputArgs) {
    if format.is_json() {
        let refused: Vec<_> = conflicts.iter().map(told).collect();
        output::json(&json!({ "refused": refused }));
    } else {
        for conflict in conflicts {
            let (older, newer) = (&conflict.older, &conflict.newer);
            let verdict = conflict.comparison.verdict().as_str();
            output::line(&format!("from {older} to {newer}: {verdict}"));
            for difference in conflict.differences() {
                output::line(&format!("  {}", output::plain(&difference)));
            }
            if conflict.comparison.left_out > 0 {
                output::line(&format!("  and {} more", conflict.comparison.left_out));
            }
        }
    }
    output::talk("nothing was published; raise the major, or publish with --allow-breaking");
}

fn show(all: &[Done], format: OutputArgs) {
    for done in all {
        for passed_over in &done.passed_over {
            let passed_over = output::plain(passed_over);
            output::talk(&format!(
                "warning: could not be compared with {passed_over}"
            ));
        }
        if !done.allowed.is_empty() {
            let (agent, version) = (&done.agent, &done.version);
            output::talk(&format!(
                "warning: {agent} {version} is not compatible with its neighbours, as allowed"
            ));
        }
        if done.signatures_left_out > 0 {
            output::talk(&format!(
                "signatures left out: {}; a contract bears {} at the most, and none that is published is dropped",
                done.signatures_left_out, MOST_SIGNATURES
            ));
        }
    }
    if format.is_json() {
        output::json(&json!(all));
        return;
    }
    for done in all {
        let body = match done.body {
            "signed" => format!("{} signatures added", done.signatures_added),
            "unchanged" => "is published already".to_owned(),
            body => body.to_owned(),
        };
        let Done {
            agent,
            version,
            digest,
            current,
            ..
        } = done;
        output::line(&format!(
            "{agent} {version}: {body}; current is {current}; {digest}"
        ));
    }
}
