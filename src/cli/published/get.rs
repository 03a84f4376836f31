//! `contract get`: a published contract as it stands.

use clap::Args;
use semver::Version;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::admission::publication::{self, Book, Unusable};
use crate::cli::exit::{Exit, Failure};
use crate::cli::{OutputArgs, client, output};
use crate::consul::Client;
use crate::contract::ContractId;

use super::{Place, failed};

#[derive(Debug, Args)]
pub(in crate::cli) struct GetArgs {
    /// The contract, and a version of it; without one the current version.
    #[arg(value_name = "ID[@VERSION]", value_parser = wanted)]
    agent: (ContractId, Option<Version>),
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Wrapped<'a> {
    agent: &'a str,
    version: String,
    digest: String,
    published_at: &'a str,
    published_by: &'a str,
    contract: &'a RawValue,
}

fn wanted(text: &str) -> Result<(ContractId, Option<Version>), String> {
    let (id, version) = match text.split_once('@') {
        Some((id, version)) => (id, Some(version)),
        None => (text, None),
    };
    let id = id.parse().map_err(|error| format!("{error}"))?;
    let version = version.map(Version::parse).transpose();
    let version = version.map_err(|error| format!("the version is MAJOR.MINOR.PATCH: {error}"))?;
    Ok((id, version))
}

pub(in crate::cli) fn get(args: GetArgs) -> Result<Exit, Failure> {
    let (_, consul) = args.place.registry()?;
    let (id, version) = args.agent;
    let (version, book) = client::block_on(found(&consul, &id, version))?;
    let unusable = |reason: Unusable| Failure::Answer(format!("{}: {reason}", book.key));
    let published = book.published().map_err(unusable)?;
    if args.output.is_json() {
        let wrapped = serde_json::to_string(&Wrapped {
            agent: id.as_str(),
            version: version.to_string(),
            digest: published.digest.to_string(),
            published_at: &published.published_at,
            published_by: &published.published_by,
            contract: published.contract,
        });
        output::line(&wrapped.map_err(|error| Failure::bug(&error))?);
    } else {
        output::data(published.contract.get().as_bytes());
    }
    // It is shown as it stands, and one that no consumer would take is told apart.
    match book.contract() {
        Ok(_) => Ok(Exit::Fine),
        Err(reason) => Err(unusable(reason)),
    }
}

async fn found(
    consul: &Client,
    id: &ContractId,
    version: Option<Version>,
) -> Result<(Version, Book), Failure> {
    let wanted = match version {
        Some(version) => Some(version),
        None => publication::current(consul, id).await.map_err(failed)?,
    };
    if let Some(version) = &wanted
        && let Some(book) = publication::read(consul, id, version)
            .await
            .map_err(failed)?
    {
        return Ok((version.clone(), book));
    }
    let known = publication::versions(consul, id).await.map_err(failed)?;
    let known = publication::told(&known);
    Err(Failure::Answer(match wanted {
        Some(version) => format!("{id} {version} is not published; {known}"),
        None => format!("{id} has no current version; {known}"),
    }))
}
