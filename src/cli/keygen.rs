//! `keygen`: makes a key pair that signs contracts.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::identity::key::{CreateError, KeyPair};

use super::exit::{Exit, Failure};
use super::{OutputArgs, output};

/// Make an Ed25519 key pair that signs contracts: PATH for its owner alone, and PATH.pub.
///
/// Nothing is ever overwritten. The kid that signatures call the key by is printed; it is the
/// key's thumbprint (RFC 7638).
#[derive(Debug, Args)]
pub(super) struct KeygenArgs {
    /// Where the private key goes.
    path: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn keygen(args: KeygenArgs) -> Result<Exit, Failure> {
    let made = KeyPair::generate().and_then(|pair| Ok((pair.create(&args.path)?, pair)));
    let (public, pair) = made.map_err(|error| match error {
        CreateError::Write { path, source } => Failure::Write { path, source },
        CreateError::Exists(_) => Failure::Usage(error.to_string()),
        CreateError::Generate => Failure::bug(&error),
    })?;
    let kid = pair.public().thumbprint();
    let (private, public) = (args.path.display(), public.display());
    if args.output.is_json() {
        let (private, public) = (private.to_string(), public.to_string());
        output::json(&json!({"kid": kid, "private": private, "public": public}));
        return Ok(Exit::Fine);
    }
    output::line(&kid);
    output::talk(&format!(
        "{private} signs (contract sign FILE --key {private}) and stays with its owner; {public} \
         goes to those who list it as [[trust.key]]"
    ));
    Ok(Exit::Fine)
}
