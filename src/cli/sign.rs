//! `contract sign` and `contract verify`: who stands behind a contract file.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::contract::trust::{self, Untrusted};
use crate::contract::{Contract, Profile, lint as rules, openapi};
use crate::identity::key::{KeyError, KeyPair, PublicKey};

use super::exit::{Exit, Failure};
use super::{OutputArgs, lint, output};

/// Sign a contract file: a signature is added, the rest of the file stays as it is.
///
/// A key that has signed this contract before adds nothing. Signatures that do not fit the
/// contract any more, because it was edited since, are left out and told.
#[derive(Debug, Args)]
pub(super) struct SignArgs {
    /// The contract.
    file: PathBuf,
    /// The private key, as keygen makes it.
    #[arg(long, value_name = "PATH")]
    key: PathBuf,
    /// Name that the signature calls the key by; default: its thumbprint.
    #[arg(long)]
    kid: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Verify the signatures of a contract file; exit 1 if they are not good.
///
/// Without --key every signature is checked by the key that it brings along: this proves that
/// nothing was changed since, not who signed.
#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// The contract.
    file: PathBuf,
    /// The public key that must have signed: PEM as keygen writes it to PATH.pub, or a JWK.
    #[arg(long, value_name = "PUB")]
    key: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn sign(args: SignArgs) -> Result<Exit, Failure> {
    let text = text(&args.file)?;
    let pair = private_key(&args.key)?;
    if !is_sound(&args.file, &text) {
        return Ok(Exit::Negative);
    }
    let renewed = match trust::sign(&text, &pair, args.kid.as_deref()) {
        Ok(renewed) => renewed,
        Err(error @ trust::SignError::Kid) => return Err(Failure::Usage(error.to_string())),
        Err(error) => {
            output::talk(&format!("{}: {error}", args.file.display()));
            return Ok(Exit::Negative);
        }
    };
    if let Some(text) = &renewed.text {
        let written = replace(&args.file, text.as_bytes());
        written.map_err(|source| Failure::Write {
            path: args.file.clone(),
            source,
        })?;
    }
    for kid in &renewed.dropped {
        let told = format!("left out: a signature by kid {kid}, which did not fit any more");
        output::talk(&output::plain(&told));
    }
    let (contract, kid) = (&renewed.contract, &renewed.kid);
    let is_new = renewed.text.is_some();
    if args.output.is_json() {
        let mut shown = described(contract);
        shown["kid"] = kid.as_str().into();
        shown["signed"] = is_new.into();
        shown["dropped"] = renewed.dropped.into();
        output::json(&shown);
        return Ok(Exit::Fine);
    }
    let (id, version, digest) = (&contract.id, &contract.version, contract.digest());
    let line = match is_new {
        true => format!("{id} {version} {digest} signed by kid {kid}"),
        false => format!("{id} {version} {digest} was signed by this key before, as kid {kid}"),
    };
    output::line(&output::plain(&line));
    Ok(Exit::Fine)
}

pub(super) fn verify(args: VerifyArgs) -> Result<Exit, Failure> {
    let text = text(&args.file)?;
    let key = args.key.as_deref().map(public_key).transpose()?;
    let contract = match Contract::from_slice(text.as_bytes()) {
        Ok(contract) => contract,
        Err(problems) => {
            output::talk(&format!("{}: {problems}", args.file.display()));
            return Ok(Exit::Negative);
        }
    };
    let outcome = match &key {
        Some(key) => trust::verify(&contract, key).map(|kid| vec![kid]),
        None => trust::integrity(&contract),
    };
    let is_pinned = key.is_some();
    let reason = match &outcome {
        Ok(kids) if kids.is_empty() => Some(unproven(&contract).to_owned()),
        Ok(_) => None,
        Err(untrusted) => Some(Untrusted::to_string(untrusted)),
    };
    let kids = outcome.unwrap_or_else(|untrusted| untrusted.kids.into_vec());
    let is_good = reason.is_none();
    if args.output.is_json() {
        let mut shown = described(&contract);
        shown["ok"] = is_good.into();
        shown["pinned"] = (is_good && is_pinned).into();
        shown["kids"] = kids.into();
        shown["reason"] = reason.into();
        output::json(&shown);
        return Ok(output::verdict(is_good));
    }
    let (id, digest, kids) = (&contract.id, contract.digest(), kids.join(", "));
    let line = match (reason, is_pinned) {
        (Some(reason), _) => reason,
        (None, true) => format!("{id} {digest} is signed by the given key, as kid {kids}"),
        (None, false) => format!(
            "{id} {digest} is unchanged since it was signed by kid {kids}; that key came with the \
             file and is not pinned: --key PUB proves whose it is"
        ),
    };
    output::line(&output::plain(&line));
    Ok(output::verdict(is_good))
}

/// Why nothing is proven although no signature is bad.
fn unproven(contract: &Contract) -> &'static str {
    match contract.signatures.is_empty() {
        true => "it bears no signature; sign it with `contract sign`",
        false => "its signatures bring no key along; give it with --key PUB",
    }
}

fn described(contract: &Contract) -> Value {
    json!({
        "id": contract.id.as_str(),
        "version": contract.version.to_string(),
        "digest": contract.digest().to_string(),
    })
}

fn text(path: &Path) -> Result<String, Failure> {
    let mut files = lint::read(&[path.to_owned()])?;
    let (_, body) = files.pop().unwrap_or_default();
    if openapi::is_document(&body) {
        return Err(Failure::Usage(format!(
            "{file} is an OpenAPI document, which bears no signatures; write its contract to a \
             file of its own: hermes-sidecar contract openapi {file} > contract.json",
            file = path.display()
        )));
    }
    let read = |_not_text| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8");
    String::from_utf8(body)
        .map_err(read)
        .map_err(|source| Failure::Read {
            path: path.to_owned(),
            source,
        })
}

/// Tells the faults of the contract itself, apart from its present signatures.
fn is_sound(path: &Path, text: &str) -> bool {
    let unsigned = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(mut members)) => {
            members.remove("signatures");
            Value::Object(members).to_string()
        }
        _ => text.to_owned(),
    };
    let file = (path.display().to_string(), unsigned.into_bytes());
    let findings = rules::lint(&[file], Profile::Default);
    let is_sound = !rules::has_errors(&findings);
    if !is_sound {
        output::talk(rules::human(&findings, Profile::Default).trim_end());
    }
    is_sound
}

fn private_key(path: &Path) -> Result<KeyPair, Failure> {
    let text = key_file(path)?;
    let mode = fs::metadata(path).map(|found| found.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o077 != 0) {
        let told = "can be read by others than its owner: chmod 600";
        output::talk(&format!("warning: {} {told}", path.display()));
    }
    KeyPair::from_pem(&text).map_err(|error| unusable(path, &error))
}

fn public_key(path: &Path) -> Result<PublicKey, Failure> {
    PublicKey::from_file(&key_file(path)?).map_err(|error| unusable(path, &error))
}

fn key_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut files = lint::read(&[path.to_owned()])?;
    Ok(files.pop().unwrap_or_default().1)
}

fn unusable(path: &Path, error: &KeyError) -> Failure {
    Failure::Usage(format!("{}: {error}", path.display()))
}

/// Replaces a file at once, so that no reader sees half of it; it keeps its mode, and a link to
/// it goes on leading to it.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let mode = fs::metadata(&path)?.permissions();
    let mut name = path.clone().into_os_string();
    name.push(format!(".{:016x}.tmp", fastrand::u64(..)));
    let temporary = PathBuf::from(name);
    let written = write(&temporary, content, mode).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        fs::remove_file(&temporary).ok();
    }
    written
}

fn write(path: &Path, content: &[u8], mode: fs::Permissions) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content)?;
    file.set_permissions(mode)?;
    file.sync_all()
}
