//! The contracts an application serves, and the name it has from the first of them.

use std::io::Read;
use std::path::Path;

use super::address;
use super::origin::Origin;
use super::reader::Reader;
use super::secure;
use super::settings::*;
use super::{Role, Roles};
use crate::contract::{self, openapi};

/// Beyond it no contract is read; the canonical form may have 256 KiB.
const LONGEST_CONTRACT: u64 = 1 << 20;
/// Where an application takes wrapped calls unless it is told otherwise.
const ENVELOPE_PATH: &str = "/hermes/invoke";

/// The contracts of the settings.
pub(super) struct Contracts {
    /// How many there are, also those with a problem.
    pub(super) declared: usize,
    pub(super) sources: Vec<ContractSource>,
}

/// Reads every `[[application.contract]]`; problems stay with the reader.
pub(super) fn contracts(reader: &mut Reader) -> Contracts {
    let declared = reader.effective.list_length("application.contract");
    let mut sources: Vec<ContractSource> = Vec::with_capacity(declared);
    for index in 0..declared {
        let at = format!("application.contract[{index}]");
        let Some(source) = contract(reader, &at) else {
            continue;
        };
        let by_handshake = |source: &ContractSource| source.origin == ContractOrigin::Handshake;
        if by_handshake(&source) && sources.iter().any(by_handshake) {
            let message = "is set twice, but an application hands out one contract";
            reader.problem(&format!("{at}.handshake"), message);
        }
        sources.push(source);
    }
    Contracts { declared, sources }
}

fn contract(reader: &mut Reader, at: &str) -> Option<ContractSource> {
    let key = |name: &str| format!("{at}.{name}");
    let origin = contract_origin(reader, at);
    let styles = [("native", Style::Native), ("envelope", Style::Envelope)];
    let style = reader.word(&key("style"), &styles, Style::Native);
    let words = [
        ("strict", Validate::Strict),
        ("warn", Validate::Warn),
        ("off", Validate::Off),
    ];
    let methods = [
        ("POST", Method::Post),
        ("PUT", Method::Put),
        ("PATCH", Method::Patch),
    ];
    let method = reader.word(&key("method"), &methods, Method::Post);
    if style == Style::Envelope && method != Method::Post {
        reader.problem(&key("method"), "must be POST with style = \"envelope\"");
    }
    Some(ContractSource {
        path: contract_path(reader, at, style),
        method,
        style,
        input: reader.word(&key("validate.input"), &words, Validate::Strict),
        output: reader.word(&key("validate.output"), &words, Validate::Strict),
        derive_probe: reader.flag(&key("derive_probe")),
        allow: secure::allow(reader, &key("allow")),
        origin: origin?,
    })
}

/// Takes where a contract comes from: a file that is there, or the application.
fn contract_origin(reader: &mut Reader, at: &str) -> Option<ContractOrigin> {
    let (file, handshake) = (format!("{at}.file"), format!("{at}.handshake"));
    let path = reader.file(&file);
    match (path, reader.flag(&handshake)) {
        (None, true) => Some(ContractOrigin::Handshake),
        (Some(_), true) => {
            reader.problem(&handshake, "cannot stand beside file: give one of the two");
            None
        }
        (None, false) => {
            let message = "is required: the contract this entry is about, or handshake = true";
            missing(reader, at, "file", message);
            None
        }
        (Some(path), false) => {
            match std::fs::metadata(&path) {
                Ok(found) if found.is_file() => {}
                Ok(_) => reader.problem(&file, format!("{} is no file", path.display())),
                Err(error) => {
                    reader.problem(&file, format!("cannot read {}: {error}", path.display()));
                }
            }
            Some(ContractOrigin::File(path))
        }
    }
}

/// Takes the path at the application; a native one is also the path that peers call.
fn contract_path(reader: &mut Reader, at: &str, style: Style) -> String {
    let key = format!("{at}.path");
    let path = reader.text(&key);
    match style {
        Style::Envelope if path.is_empty() => {
            reader.derive(&key, ENVELOPE_PATH, "envelope style");
            ENVELOPE_PATH.to_owned()
        }
        Style::Envelope => path,
        Style::Native => {
            if path.is_empty() {
                let message = "is required: the path of the application's route";
                missing(reader, at, "path", message);
            } else if address::is_reserved(&path) {
                let message = "must not lie under /hermes/, which the sidecar answers itself";
                reader.problem(&key, message);
            }
            path
        }
    }
}

/// Notes a missing key at the line its table begins.
pub(super) fn missing(reader: &mut Reader, table: &str, name: &str, message: &str) {
    let key = format!("{table}.{name}");
    match reader.effective.get(&key).map(|entry| &entry.origin) {
        Some(Origin::Default) => {
            let origin = reader
                .effective
                .get(table)
                .map(|entry| entry.origin.clone());
            reader.problems.add(origin, &key, message);
        }
        _ => reader.problem(&key, message),
    }
}

/// Takes the name as given, else the family of the first contract.
pub(super) fn name(reader: &mut Reader, contracts: &Contracts, roles: Roles) -> String {
    let given = reader.text("application.name");
    let is_told = reader
        .effective
        .get("application.name")
        .is_some_and(|entry| entry.value.as_str() != Some(""));
    if is_told || !roles.has(Role::Sidecar) {
        return given;
    }
    if contracts.declared == 0 {
        reader.problem("application.name", "is required unless a contract gives it");
        return given;
    }
    if contracts
        .sources
        .iter()
        .any(|source| source.file().is_none())
    {
        let message = "is required with handshake = true: the contract is not known yet";
        reader.problem("application.name", message);
        return given;
    }
    // A contract whose file is missing or unreadable is a problem of its own.
    let sources = contracts.sources.first();
    let first = sources.and_then(|source| Some((source, source.file()?)));
    let Some((source, file)) = first.filter(|(_, file)| file.is_file()) else {
        return given;
    };
    match family(source, file) {
        Ok(family) => {
            reader.derive("application.name", &family, "first contract");
            family
        }
        Err(message) => {
            reader.problem("application.name", message);
            given
        }
    }
}

/// Reads the id of a contract without judging the rest, and cuts off its version.
fn family(source: &ContractSource, file: &Path) -> Result<String, String> {
    let cannot = |why: String| format!("cannot be taken from {}: {why}", file.display());
    let mut text = Vec::new();
    std::fs::File::open(file)
        .and_then(|opened| opened.take(LONGEST_CONTRACT).read_to_end(&mut text))
        .map_err(|error| cannot(error.to_string()))?;
    let id = match openapi::is_document(&text) {
        true => id_in_document(&text, source),
        false => id_of_contract(&text),
    };
    let id = id.map_err(cannot)?;
    let id = id.as_str();
    let family = match id.rsplit_once("-v") {
        Some((family, version))
            if version
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.') =>
        {
            family
        }
        _ => id,
    };
    address::check_name(family, 1, 63).map_err(cannot)?;
    Ok(family.to_owned())
}

fn id_of_contract(text: &[u8]) -> Result<String, String> {
    let contract: serde_json::Value =
        serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let id = contract["id"].as_str().map(str::to_owned);
    id.ok_or_else(|| "it has no id".to_owned())
}

fn id_in_document(text: &[u8], source: &ContractSource) -> Result<String, String> {
    let wanted = openapi::Wanted {
        agent: None,
        method: source.method.as_str(),
        path: &source.path,
    };
    match contract::from_file(text, &wanted) {
        Ok((contract, _warnings)) => Ok(contract.id.to_string()),
        Err(_problems) => Err("`contract lint` says what is wrong with it".to_owned()),
    }
}
