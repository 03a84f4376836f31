//! `check`: everything that would keep a process from doing its work, found before it is started.
//!
//! Nothing is changed: no folder is made, nothing is registered. Each check is a function that
//! adds its findings; all of them run, whatever the others found.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::json;

use crate::app;
use crate::config::{self, Application, ContractSource, Examined, Role, Settings};
use crate::consul;
use crate::contract::openapi::Wanted;
use crate::contract::{self, Profile, lint};
use crate::identity::tls::{self, Tls};
use crate::socket::{Address, BindError, Listener};
use crate::task::Timestamp;
use crate::telemetry::log::Chain;

use super::exit::{Exit, Failure};
use super::output::{self, Palette, Tone};
use super::running::Running;
use super::{ConfigArgs, OutputArgs, client};

/// The clock of a machine that shows an earlier time was never set: 2025-01-01.
const EARLIEST_NOW: Duration = Duration::from_secs(1_735_689_600);
const MIN_FREE_BYTES: u64 = 64 << 20;
/// A certificate that expires within it should have been renewed.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Problem,
}

#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    message: String,
    #[serde(skip)]
    exit: Exit,
}

/// What was found so far.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, check: &'static str, level: Level, exit: Exit, message: impl Into<String>) {
        self.0.push(Finding {
            check,
            level,
            message: message.into(),
            exit,
        });
    }

    fn ok(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, Level::Ok, Exit::Fine, message);
    }

    fn warning(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, Level::Warning, Exit::Fine, message);
    }

    fn problem(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, Level::Problem, Exit::Negative, message);
    }

    fn worst(&self) -> Exit {
        self.0
            .iter()
            .map(|finding| finding.exit)
            .max()
            .unwrap_or(Exit::Fine)
    }
}

pub(super) fn check(config: ConfigArgs, output: OutputArgs) -> Result<Exit, Failure> {
    let mut found = Findings::default();
    let examined = Settings::examine(&config.source(), Role::Described);
    for problem in &examined.problems {
        found.add("config", Level::Problem, Exit::Usage, problem.to_string());
    }
    if examined.problems.is_empty() {
        found.ok("config", "is sound");
    }
    if examined.is_whole {
        surroundings(&mut found, &examined)?;
    }
    clock(&mut found, SystemTime::now());
    show(&found, output);
    Ok(found.worst())
}

/// Checks what the settings speak of; what has a problem in the settings is left out.
fn surroundings(found: &mut Findings, examined: &Examined) -> Result<(), Failure> {
    let settings = &examined.settings;
    let (is_sidecar, is_collector) = settings.roles();
    files(found, examined);
    if let Some(config) = &settings.tls {
        certificates(found, settings, config, is_sidecar);
    }
    folders(found, examined, is_sidecar, is_collector);
    contracts(found, &settings.application);
    client::block_on(async {
        let running = Running::ask(settings).await;
        ports(found, examined, &running, is_sidecar, is_collector).await;
        if !examined.is_faulty("consul") {
            consul(found, settings).await;
        }
        if is_sidecar && !examined.is_faulty("application.health") {
            application(found, &settings.application).await;
        }
        Ok(())
    })
}

fn show(found: &Findings, output: OutputArgs) {
    if output.is_json() {
        output::json(&json!({"ok": found.worst() == Exit::Fine, "findings": found.0}));
        return;
    }
    let palette = Palette::of_stdout();
    for finding in &found.0 {
        let (tone, word) = match finding.level {
            Level::Ok => (Tone::Good, "ok     "),
            Level::Warning => (Tone::Doubtful, "warning"),
            Level::Problem => (Tone::Bad, "problem"),
        };
        let (word, check) = (palette.paint(tone, word), finding.check);
        output::line(&format!(
            "{word}  {check:<11}  {}",
            output::plain(&finding.message)
        ));
    }
}

async fn ports(
    found: &mut Findings,
    examined: &Examined,
    running: &Running,
    is_sidecar: bool,
    is_collector: bool,
) {
    let settings = &examined.settings;
    let mut listeners: Vec<(&str, &Address)> = Vec::new();
    if is_sidecar {
        if settings.application.upstream.is_some() {
            listeners.push(("inbound", &settings.inbound.listen));
        }
        listeners.push(("outbound", &settings.outbound.listen));
        listeners.push(("admin", &settings.admin.listen));
        let public = settings.admin.public_listen.as_ref();
        listeners.extend(public.map(|address| ("public admin", address)));
    }
    if is_collector {
        listeners.push(("collector", &settings.collector.listen));
    }
    for (name, address) in listeners {
        let key = match name {
            "public admin" => "admin.public_listen".to_owned(),
            name => format!("{name}.listen"),
        };
        if examined.is_faulty(&key) {
            continue;
        }
        let error = match Listener::bind(address).await {
            Ok(_) => {
                found.ok("ports", format!("{name} {address} is free"));
                continue;
            }
            Err(error) => error,
        };
        match running.owner(name, address) {
            Some(owner) if is_in_use(&error) => found.ok(
                "ports",
                format!("{name} {address} is in use, by the {owner} that runs with these settings"),
            ),
            _ => found.problem("ports", format!("{name} {address}: {}", Chain(&error))),
        }
    }
}

fn is_in_use(error: &BindError) -> bool {
    match error {
        BindError::Tcp(source) => source.kind() == ErrorKind::AddrInUse,
        BindError::InUse => true,
        BindError::Unix(_) | BindError::NotASocket => false,
    }
}

fn files(found: &mut Findings, examined: &Examined) {
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
fn certificates(found: &mut Findings, settings: &Settings, config: &tls::Config, is_sidecar: bool) {
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

fn folders(found: &mut Findings, examined: &Examined, is_sidecar: bool, is_collector: bool) {
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
    if is_collector {
        databases.push(("store", &settings.collector.store, MIN_FREE_BYTES));
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

fn contracts(found: &mut Findings, application: &Application) {
    let paths: Vec<PathBuf> = application
        .contracts
        .iter()
        .filter_map(|source| Some(source.file()?.to_owned()))
        // A file that is missing is a problem of the settings.
        .filter(|file| file.is_file())
        .collect();
    let mut files = Vec::new();
    for path in paths {
        match super::lint::read(&[path]) {
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

/// The ids of the contracts that can be read; the others have findings of their own.
fn ids(application: &Application) -> Vec<String> {
    let id = |source: &ContractSource| {
        let wanted = Wanted {
            agent: None,
            method: source.method.as_str(),
            path: &source.path,
        };
        let body = std::fs::read(source.file()?).ok()?;
        let (contract, _) = contract::from_file(&body, &wanted).ok()?;
        Some(contract.id.to_string())
    };
    application.contracts.iter().filter_map(id).collect()
}

/// Asks Consul what a sidecar asks it: the leader, an address, a service, a key.
async fn consul(found: &mut Findings, settings: &Settings) {
    let advertises = settings.inbound.advertise.host.is_some();
    let contracts = ids(&settings.application);
    let settings = &settings.consul;
    let client = match consul::Client::new(app::consul_config(settings), Arc::new(|_, _, _| {})) {
        Ok(client) => client,
        Err(error) => return found.problem("consul", Chain(&error).to_string()),
    };
    match client.leader().await {
        Ok(Some(_)) => found.ok(
            "consul",
            format!("{} answers and has a leader", settings.address),
        ),
        Ok(None) => found.problem(
            "consul",
            format!(
                "{} answers, but the cluster has no leader",
                settings.address
            ),
        ),
        Err(error) => {
            let told = format!("{}: {}", settings.address, Chain(&error));
            return found.problem("consul", told);
        }
    }
    match client.node_address().await {
        Ok(Some(_)) => {}
        Ok(None) if advertises => {}
        Ok(None) => found.warning(
            "consul",
            "the token may not read the agent (agent:read); inbound.advertise must name the host",
        ),
        Err(error) => found.problem("consul", Chain(&error).to_string()),
    }
    let poll = consul::Poll::NOW;
    // A sidecar reads below its contracts' own keys before it publishes there.
    for id in &contracts {
        let key = client.layout().version(id);
        if let Err(error) = client.kv_get(&key, poll).await {
            found.problem("consul", format!("reading KV {key}: {}", Chain(&error)));
        }
    }
    if let Err(error) = client
        .health(&client.layout().service("hermes-collector"), poll)
        .await
    {
        found.problem("consul", format!("reading services: {}", Chain(&error)));
    }
}

/// Asks the application as admission will.
async fn application(found: &mut Findings, application: &Application) {
    let Some(upstream) = &application.upstream else {
        return;
    };
    if application
        .contracts
        .iter()
        .any(|source| source.file().is_none())
    {
        match app::ask_contract(application, upstream).await {
            Ok((id, version)) => {
                let told = format!("the application hands out {id} {version}");
                found.ok("contracts", told);
            }
            Err(error) => found.problem("contracts", Chain(&*error).to_string()),
        }
    }
    match app::ask_application(application, upstream).await {
        Ok(()) => found.ok("application", "is well"),
        Err(error) => found.problem("application", Chain(&*error).to_string()),
    }
}

fn clock(found: &mut Findings, now: SystemTime) {
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

    #[test]
    fn the_worst_finding_decides() {
        let mut found = Findings::default();
        assert_eq!(found.worst(), Exit::Fine);
        found.warning("disk", "x");
        assert_eq!(found.worst(), Exit::Fine);
        found.problem("disk", "x");
        assert_eq!(found.worst(), Exit::Negative);
        found.add("config", Level::Problem, Exit::Usage, "x");
        assert_eq!(found.worst(), Exit::Usage);
    }
}
