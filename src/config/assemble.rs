//! Builds the typed settings section by section, and holds the rules between keys.

use std::path::PathBuf;

use super::consul_env::ConsulVariables;
use super::contracts::{contracts, name};
use super::env::Source;
use super::reader::Reader;
use super::secure;
use super::settings::*;
use super::trust::trust;
use super::{Role, Roles};
use crate::socket::Address;

/// Reads every section; problems stay with the reader.
pub(super) fn settings(
    reader: &mut Reader,
    source: &Source,
    consul: ConsulVariables,
    roles: Roles,
) -> Settings {
    let inbound = inbound(reader);
    let mut application = application(reader, source, roles);
    if application.name.is_empty() && !roles.has(Role::Sidecar) {
        application.name = "collector".to_owned();
        reader.derive("application.name", "collector", "role");
    }
    let port = inbound.listen.port();
    if application.instance.is_none() && port != Some(0) && roles.has(Role::Sidecar) {
        let instance = application.instance(port);
        reader.derive("application.instance", &instance, "host name");
    }
    check_inbound(reader, &inbound, &application);
    let mut settings = Settings {
        outbound: Outbound {
            listen: reader.listen("outbound.listen"),
            allow_hosts: reader.hosts("outbound.allow_hosts"),
        },
        admin: Admin {
            listen: reader.listen("admin.listen"),
            public_listen: reader.optional_listen("admin.public_listen"),
        },
        limits: limits(reader),
        retry: retry(reader),
        consul: self::consul(reader, consul),
        trust: trust(reader),
        tls: secure::tls(reader),
        ejection: ejection(reader),
        spool: spool(reader, source, &application.name, roles),
        log: log(reader),
        collector: collector(reader, source, &application.name, roles),
        inbound,
        application,
        effective: Default::default(),
        source: source.clone(),
        role: Role::Described,
    };
    secure::settle(reader, &mut settings);
    check_listeners(reader, &settings, roles);
    settings.effective = reader.effective.clone();
    settings
}

fn application(reader: &mut Reader, source: &Source, roles: Roles) -> Application {
    let upstream = reader.upstream("application.upstream");
    let contracts = contracts(reader);
    if roles.has(Role::Sidecar) {
        match (&upstream, contracts.declared) {
            (None, 1..) => reader.problem(
                "application.upstream",
                "is required with contracts: http://HOST:PORT of the application",
            ),
            (Some(_), 0) => reader.problem(
                "application.contract",
                "is required with an upstream: add [[application.contract]] with file and path",
            ),
            _ => {}
        }
    }
    Application {
        name: name(reader, &contracts, roles),
        upstream,
        upstream_headers_file: reader.file("application.upstream_headers_file"),
        upstream_ca: reader.file("application.upstream_ca"),
        protocol: match reader.text("application.protocol").as_str() {
            "h2c" => Protocol::H2c,
            "same" => Protocol::Same,
            _ => Protocol::Http1,
        },
        region: reader.text("application.region"),
        tags: reader.texts("application.tags"),
        team: reader.text("application.team"),
        weight: reader.count("application.weight"),
        health: reader.optional("application.health"),
        health_interval: reader.length("application.health_interval"),
        health_timeout: reader.length("application.health_timeout"),
        health_failures: reader.count("application.health_failures"),
        require_version: reader.flag("application.require_version"),
        forward_path: reader.flag("application.forward_path"),
        contracts: contracts.sources,
        instance: reader.optional("application.instance"),
        host_name: as_id(&source.host_name),
    }
}

fn as_id(host_name: &str) -> String {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let name: String = host_name
        .chars()
        .take(100)
        .map(|letter| if fits(letter) { letter } else { '-' })
        .collect();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name
    }
}

fn inbound(reader: &mut Reader) -> Inbound {
    Inbound {
        listen: reader.listen("inbound.listen"),
        advertise: reader.advertise("inbound.advertise"),
        passthrough: reader.texts("inbound.passthrough"),
        trust_context: reader.trust_context("inbound.trust_context"),
    }
}

fn retry(reader: &mut Reader) -> Retry {
    Retry {
        budget_percent: reader.count("retry.budget_percent"),
        budget_min_per_second: reader.count("retry.budget_min_per_second"),
        backoff: reader.length("retry.backoff"),
        max_backoff: reader.length("retry.max_backoff"),
    }
}

fn limits(reader: &mut Reader) -> Limits {
    Limits {
        max_body_bytes: reader.count("limits.max_body_bytes"),
        max_json_depth: reader.count("limits.max_json_depth"),
        max_header_bytes: reader.count("limits.max_header_bytes"),
        max_headers: reader.count("limits.max_headers"),
        max_connections: reader.count("limits.max_connections"),
        header_timeout: reader.length("limits.header_timeout"),
        body_timeout: reader.length("limits.body_timeout"),
        idle_timeout: reader.length("limits.idle_timeout"),
        stream_idle_timeout: reader.length("limits.stream_idle_timeout"),
        drain_delay: reader.length("limits.drain_delay"),
        drain_timeout: reader.length("limits.drain_timeout"),
    }
}

pub(super) fn consul(reader: &mut Reader, variables: ConsulVariables) -> Consul {
    let checks = reader.texts("consul.checks");
    let token_file = reader.file("consul.token_file");
    Consul {
        address: reader.text("consul.address"),
        token: variables.token.filter(|_| token_file.is_none()),
        token_file,
        prefix: reader.text("consul.prefix"),
        http_check: checks.iter().any(|check| check == "http"),
        watches: reader.count("consul.watches"),
        tls: variables.tls,
    }
}

fn ejection(reader: &mut Reader) -> Ejection {
    Ejection {
        consecutive: reader.count("ejection.consecutive"),
        success_rate: reader.ratio("ejection.success_rate"),
        base: reader.length("ejection.base"),
        max: reader.length("ejection.max"),
        max_percent: reader.count("ejection.max_percent"),
    }
}

fn spool(reader: &mut Reader, source: &Source, name: &str, roles: Roles) -> Spool {
    let needed = roles.has(Role::Sidecar);
    let path = database(reader, source, "spool.path", "spool.db", name, needed);
    let state_path = database(reader, source, "spool.state_path", "state.db", name, needed);
    if needed && path == state_path && !path.as_os_str().is_empty() {
        reader.problem("spool.state_path", "must not be the file of spool.path");
    }
    let levels = [
        ("process", Durability::Process),
        ("disk", Durability::Disk),
        ("async", Durability::Async),
    ];
    Spool {
        path,
        state_path,
        collector: reader.collector_target("spool.collector"),
        token_file: reader.file("spool.token_file"),
        durability: reader.word("spool.durability", &levels, Durability::Process),
        max_bytes: reader.count("spool.max_bytes"),
        retry: reader.length("spool.retry"),
        expire: reader.length("spool.expire"),
        batch: reader.count("spool.batch"),
        linger: reader.length("spool.linger"),
    }
}

/// Takes the path of a database, else places it in the state folder of `name`.
fn database(
    reader: &mut Reader,
    source: &Source,
    key: &str,
    file: &str,
    name: &str,
    needed: bool,
) -> PathBuf {
    if let Some(given) = reader.file(key) {
        return given;
    }
    if !needed || name.is_empty() {
        return PathBuf::new();
    }
    let Some(folder) = source.state_folder(name) else {
        reader.problem(
            key,
            "has no default here (no STATE_DIRECTORY, no HOME): set it",
        );
        return PathBuf::new();
    };
    let path = folder.join(file);
    reader.derive(key, &path.to_string_lossy(), "state directory");
    path
}

fn log(reader: &mut Reader) -> Log {
    let formats = [
        ("auto", LogFormat::Auto),
        ("text", LogFormat::Text),
        ("json", LogFormat::Json),
    ];
    Log {
        format: reader.word("log.format", &formats, LogFormat::Auto),
        filter: reader.text("log.filter"),
    }
}

fn collector(reader: &mut Reader, source: &Source, name: &str, roles: Roles) -> Collector {
    Collector {
        listen: reader.listen("collector.listen"),
        store: database(
            reader,
            source,
            "collector.store",
            "collector.db",
            name,
            roles.has(Role::Collector),
        ),
        token_file: reader.file("collector.token_file"),
        retention: reader.length("collector.retention"),
        consul: reader.flag("collector.consul"),
    }
}

/// Refuses an inbound listener that nobody could reach, or that leads nowhere.
fn check_inbound(reader: &mut Reader, inbound: &Inbound, application: &Application) {
    if application.upstream.is_none() && !inbound.passthrough.is_empty() {
        reader.problem(
            "inbound.passthrough",
            "needs application.upstream to pass anything to",
        );
    }
    let is_hidden = inbound.listen.port().is_none() && application.upstream.is_some();
    if is_hidden && (inbound.advertise.host.is_none() || inbound.advertise.port.is_none()) {
        reader.problem(
            "inbound.advertise",
            "is required as HOST:PORT where inbound.listen is a unix socket: where others reach it",
        );
    }
}

/// Refuses two listeners on one port.
fn check_listeners(reader: &mut Reader, settings: &Settings, roles: Roles) {
    let mut listeners: Vec<(&str, &Address)> = Vec::new();
    if roles.has(Role::Sidecar) {
        listeners.push(("inbound.listen", &settings.inbound.listen));
        listeners.push(("outbound.listen", &settings.outbound.listen));
        listeners.push(("admin.listen", &settings.admin.listen));
        let public = settings.admin.public_listen.as_ref();
        listeners.extend(public.map(|address| ("admin.public_listen", address)));
    }
    if roles.has(Role::Collector) {
        listeners.push(("collector.listen", &settings.collector.listen));
    }
    for (index, (key, address)) in listeners.iter().enumerate() {
        let clash = listeners[..index]
            .iter()
            .find(|(_, other)| overlap(address, other));
        if let Some((other, _)) = clash {
            reader.problem(key, format!("takes the address of {other}"));
        }
    }
}

fn overlap(one: &Address, other: &Address) -> bool {
    let (Address::Tcp(one), Address::Tcp(other)) = (one, other) else {
        return one == other;
    };
    let everywhere = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && (everywhere || one.ip() == other.ip())
}
