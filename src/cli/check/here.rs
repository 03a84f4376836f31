//! What is on this machine: files, certificates, folders, contracts, the clock.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::admission;
use crate::collector::Place;
use crate::config::{self, Application, ContractSource, Examined, Settings};
use crate::contract::openapi::Wanted;
use crate::contract::trust::Trust;
use crate::contract::{self, Compiled, Contract, Profile, lint};
use crate::identity::tls::{self, Tls};
use crate::task::Timestamp;
use crate::telemetry::log::Chain;

use super::findings::Findings;

/// The clock of a machine that shows an earlier time was never set: 2025-01-01.
const EARLIEST_NOW: Duration = Duration::from_secs(1_735_689_600);
const MIN_FREE_BYTES: u64 = 64 << 20;
/// A certificate that expires within it should have been renewed.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);

pub(super) fn files(found: &mut Findings, examined: &Examined) {
    let settings = &examined.settings;
    let tls = &settings.consul.tls;
    let named = [
        ("consul.token_file", &settings.consul.token_file),
        ("spool.token_file", &settings.spool.token_file),
        ("collector.token_file", &settings.collector.token_file),
        ("CONSUL_CACERT", &tls.ca_file),
        ("CONSUL_CLIENT_CERT", &tls.cert_file),
        ("CONSUL_CLIENT_KEY", &tls.key_file),
    ];
    for (name, path) in named {
        let Some(path) = path.as_ref().filter(|_| !examined.is_faulty(name)) else {
            continue;
        };
        match read_some(path) {
            Ok(0) => found.problem("files", format!("{name}: {} is empty", path.display())),
            Ok(_) => found.ok("files", format!("{name} can be read")),
            Err(error) => found.problem("files", format!("{name}: {}: {error}", path.display())),
        }
    }
}

/// Reads our certificate, its key and the roots as a process does at its start.
pub(super) fn certificates(
    found: &mut Findings,
    settings: &Settings,
    config: &tls::Config,
    is_sidecar: bool,
) {
    let tls = match Tls::open(config.clone()) {
        Ok(tls) => tls,
        Err(error) => return found.problem("tls", Chain(&error).to_string()),
    };
    let application = &settings.application.name;
    match tls.name() {
        name if is_sidecar && *name != **application => found.problem(
            "tls",
            format!("tls.cert names {name:?} but application.name is {application:?}"),
        ),
        name => found.ok("tls", format!("the certificate names {name:?}")),
    }
    let (now, expiry) = (Timestamp::now(), tls.expiry());
    for (what, at) in [
        ("the certificate", expiry.own),
        ("the first root", expiry.ca),
    ] {
        match at <= now.plus(SOON) {
            true => found.warning("tls", format!("{what} expires soon, at {at}")),
            false => found.ok("tls", format!("{what} expires at {at}")),
        }
    }
    for doubt in tls.doubts() {
        found.warning("tls", doubt);
    }
}

fn read_some(path: &Path) -> std::io::Result<usize> {
    std::fs::File::open(path)?.read(&mut [0; 16])
}

pub(super) fn folders(
    found: &mut Findings,
    examined: &Examined,
    is_sidecar: bool,
    is_collector: bool,
) {
    // By default they are named after the application.
    if ["application.name", "spool", "collector"]
        .iter()
        .any(|key| examined.is_faulty(key))
    {
        return;
    }
    let settings = &examined.settings;
    let mut databases: Vec<(&str, &PathBuf, u64)> = Vec::new();
    if is_sidecar {
        databases.push(("spool", &settings.spool.path, settings.spool.max_bytes));
        databases.push(("state", &settings.spool.state_path, MIN_FREE_BYTES));
    }
    if is_collector && let Place::File(path) = &settings.collector.store {
        databases.push(("store", path, MIN_FREE_BYTES));
    }
    for (name, path, wanted) in databases {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        if !config::is_writable(folder) {
            found.problem(
                "disk",
                format!("{name}: {} cannot be written to", folder.display()),
            );
        } else if path.exists() && std::fs::OpenOptions::new().append(true).open(path).is_err() {
            found.problem(
                "disk",
                format!("{name}: {} cannot be written to", path.display()),
            );
        } else {
            space(found, name, folder, wanted);
        }
    }
}

fn space(found: &mut Findings, name: &str, folder: &Path, wanted: u64) {
    let Some(there) = folder.ancestors().find(|folder| folder.exists()) else {
        return;
    };
    let Ok(disk) = rustix::fs::statvfs(there) else {
        return;
    };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let (free_mib, wanted_mib) = (free >> 20, wanted >> 20);
    if free < MIN_FREE_BYTES {
        found.problem(
            "disk",
            format!("{name}: {} has {free_mib} MiB left", folder.display()),
        );
    } else if free < wanted {
        let told = format!(
            "{name}: {} has {free_mib} MiB left, it may grow to {wanted_mib} MiB",
            folder.display()
        );
        found.warning("disk", told);
    } else {
        found.ok(
            "disk",
            format!("{name}: {} can be written to", folder.display()),
        );
    }
}

pub(super) fn contracts(found: &mut Findings, application: &Application) {
    let paths: Vec<PathBuf> = application
        .contracts
        .iter()
        .filter_map(|source| Some(source.file()?.to_owned()))
        // A file that is missing is a problem of the settings.
        .filter(|file| file.is_file())
        .collect();
    let mut files = Vec::new();
    for path in paths {
        match crate::cli::file::read_all(&[path]) {
            Ok(read) => files.extend(read),
            Err(failure) => found.problem("contracts", failure.to_string()),
        }
    }
    let findings = lint::lint(&files, Profile::Default);
    if findings.is_empty() && !files.is_empty() {
        found.ok("contracts", format!("{} without findings", files.len()));
    }
    for finding in findings {
        let message = format!("{}: {}", finding.file, finding.problem);
        match finding.severity {
            lint::Severity::Error => found.problem("contracts", message),
            lint::Severity::Warning => found.warning("contracts", message),
        }
    }
}

/// Reads the contract of a file; nothing if it has findings of its own.
pub(super) fn contract(source: &ContractSource) -> Option<Contract> {
    let wanted = Wanted {
        agent: None,
        method: source.method.as_str(),
        path: &source.path,
    };
    let body = std::fs::read(source.file()?).ok()?;
    let (contract, _) = contract::from_file(&body, &wanted).ok()?;
    Some(contract)
}

/// Says what admission will send the application; that it sends nothing is a finding of `lint`.
pub(super) fn trials(found: &mut Findings, application: &Application) {
    for source in &application.contracts {
        let compiled = contract(source).map(Compiled::new);
        let Some(Ok(compiled)) = compiled else {
            continue;
        };
        let contract = &compiled.contract;
        let id = &contract.id;
        match admission::plan_trial(&compiled, source.derive_probe) {
            Ok(None) => {}
            Ok(Some(probe)) => {
                let (calls, at_once) = (probe.calls, probe.concurrency);
                let (method, path) = (source.method.as_str(), &source.path);
                let within = probe.timeout.unwrap_or(contract.constraints.timeout);
                found.ok(
                    "trial",
                    format!(
                        "{id}: {calls} calls to {method} {path}, {at_once} at once, each within \
                         {within:?}"
                    ),
                );
            }
            Err(failure) => found.problem("trial", format!("{id}: {}", Chain(&failure))),
        }
    }
}

/// Judges our own contracts as those who call them will, as far as they share these settings.
pub(super) async fn trust(found: &mut Findings, settings: &Settings) {
    let config = &settings.trust;
    let keys = config.keys.len();
    found.ok("trust", format!("mode {}, {keys} keys listed", config.mode));
    // Without a store nothing can go wrong, and nothing is remembered.
    let Ok(trust) = Trust::open(config.clone(), None).await else {
        return;
    };
    for source in &settings.application.contracts {
        // What cannot be read has findings of its own.
        if let Some(contract) = contract(source)
            && let Err(untrusted) = trust.judge(&contract).await
        {
            found.problem("trust", untrusted.to_string());
        }
    }
}

pub(super) fn clock(found: &mut Findings, now: SystemTime) {
    match now.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) if since >= EARLIEST_NOW => found.ok("clock", "is set"),
        _ => found.problem(
            "clock",
            "shows a time before 2025: set it, or reports carry false times",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings::Level;
    use super::*;

    #[test]
    fn a_clock_that_was_never_set_is_a_problem() {
        for (seconds, expected) in [(0, Level::Problem), (1_800_000_000, Level::Ok)] {
            let mut found = Findings::default();
            clock(
                &mut found,
                SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
            );
            assert_eq!(found.0[0].level, expected, "{seconds}");
        }
    }
}
