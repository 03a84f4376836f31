//! From settings to what each room asks for.

use super::{Error, application};
use crate::admission;
use crate::config::{self, Settings};
use crate::consul::{self, Observe, Operation, Outcome};
use crate::contract::guard;
use crate::contract::trust::Trust;
use crate::deferred;
use crate::identity::Secret;
use crate::identity::local::Local;
use crate::proxy::{Limits, Mode, head, inbound, outbound};
use crate::reply;
use crate::reporter;
use crate::route::EjectionConfig;
use crate::socket::{self, Address};
use crate::spool;
use crate::store::{Schema, Store};
use crate::telemetry::log;
use crate::telemetry::metrics::Sidecar;
use crate::{contract, store};
use http::HeaderValue;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The state file: what helps the next start, but is owed to nobody.
static STATE: Schema = Schema {
    name: "state",
    application_id: 0x4865_5374,
    migrations: &[
        contract::watch::known::MIGRATION,
        contract::trust::MIGRATION,
        reply::MIGRATION,
        deferred::MIGRATION,
    ],
};

static KEYS: Schema = Schema {
    name: "keys",
    // "HeKy"
    application_id: 0x4865_4B79,
    migrations: &[contract::trust::MIGRATION],
};

pub fn log(settings: &config::Log) -> log::Config {
    log::Config {
        format: match settings.format {
            config::LogFormat::Auto => log::Format::Auto,
            config::LogFormat::Text => log::Format::Text,
            config::LogFormat::Json => log::Format::Json,
        },
        filter: settings.filter.clone(),
    }
}

pub fn consul(settings: &config::Consul) -> consul::Config {
    let tls = &settings.tls;
    consul::Config {
        address: settings.address.clone(),
        token: settings.token.clone(),
        token_file: settings.token_file.clone(),
        tls: consul::TlsOptions {
            ca: tls.ca_file.clone(),
            cert: tls.cert_file.clone(),
            key: tls.key_file.clone(),
            server_name: tls.server_name.clone(),
            verify: tls.verify,
        },
        prefix: settings.prefix.clone(),
        watches: settings.watches,
    }
}

/// Counts requests to Consul; anything but silence shows that it is there.
pub fn observe(metrics: Arc<Sidecar>) -> Observe {
    for operation in Operation::ALL {
        for outcome in Outcome::all() {
            metrics.consul_kind(operation.as_str(), outcome.as_str());
        }
    }
    Arc::new(move |operation, outcome, took| {
        let silent = [consul::ErrorKind::Unreachable, consul::ErrorKind::Timeout];
        let answered = !matches!(outcome, Outcome::Failed(kind) if silent.contains(&kind));
        metrics.consul_request(operation.as_str(), outcome.as_str(), took, answered);
    })
}

pub async fn spool(settings: &config::Spool, metrics: Arc<Sidecar>) -> Result<spool::Spool, Error> {
    let mode = match settings.durability {
        config::Durability::Process => spool::Mode::Process,
        config::Durability::Disk => spool::Mode::Disk,
        config::Durability::Async => spool::Mode::Async,
    };
    let config = spool::Config {
        path: settings.path.clone(),
        mode,
        max_bytes: settings.max_bytes,
    };
    let opened = spool::Spool::open(config, metrics).await;
    let (spool, opened) = opened.map_err(|source| failed("spool.path", &settings.path, source))?;
    alarm(&settings.path, &opened);
    Ok(spool)
}

pub fn state(settings: &config::Spool) -> Result<Store, Error> {
    let path = &settings.state_path;
    let opened = Store::open(path, &STATE, store::Options::default());
    let (state, opened) = opened.map_err(|source| failed("spool.state_path", path, source))?;
    alarm(path, &opened);
    Ok(state)
}

/// Opens the file in which a collector remembers first keys while its book is elsewhere; without a
/// place for it they are not remembered.
pub fn keys(path: &Path) -> Result<Option<Store>, Error> {
    if path.as_os_str().is_empty() || path.parent() == Some(Path::new("")) {
        tracing::warn!(
            "no state directory: the first keys of contracts count for this process only"
        );
        return Ok(None);
    }
    let opened = Store::open(path, &KEYS, store::Options::default());
    let (keys, opened) = opened.map_err(|source| failed("STATE_DIRECTORY", path, source))?;
    alarm(path, &opened);
    Ok(Some(keys))
}

/// Opens what contracts are judged by; first keys are remembered in `state`, if it is given.
pub async fn trust(settings: &Settings, state: Option<Store>) -> Result<Arc<Trust>, Error> {
    let opened = Trust::open(settings.trust.clone(), state).await;
    opened.map_err(Error::Pins)
}

pub fn failed(key: &'static str, path: &Path, source: store::OpenError) -> Error {
    Error::Store {
        key,
        path: path.to_owned(),
        source: Box::new(source),
    }
}

/// A file that was no sound database needs a person, although the process goes on.
pub fn alarm(path: &Path, opened: &store::Opened) {
    if let Some(aside) = &opened.moved_aside {
        tracing::error!(
            file = %path.display(),
            moved_to = %aside.display(),
            "a file was no sound database; it was moved aside and a fresh one is in use"
        );
    }
}

pub fn reporter(settings: &config::Spool) -> reporter::Config {
    reporter::Config {
        token_file: settings.token_file.clone(),
        retry: settings.retry,
        expire: settings.expire,
        batch: settings.batch,
        linger: settings.linger,
    }
}

/// How long a connection may take to end once the process stops.
const CLOSE: Duration = Duration::from_secs(1);

pub fn listener(limits: &config::Limits) -> socket::Limits {
    socket::Limits {
        max_connections: limits.max_connections,
        header_timeout: limits.header_timeout,
        stream_idle_timeout: limits.stream_idle_timeout,
        idle_timeout: limits.idle_timeout,
        max_header_bytes: limits.max_header_bytes,
        max_headers: limits.max_headers,
        close: CLOSE,
    }
}

/// How long idle connections to other sidecars are kept: those close them after `idle_timeout`; we
/// let go a little earlier.
pub fn peers_keep(limits: &config::Limits) -> Duration {
    limits.idle_timeout.mul_f64(0.9)
}

/// The admin listeners need few connections, and must have some left when callers take many.
pub fn administration(limits: &config::Limits) -> socket::Limits {
    socket::Limits {
        max_connections: 256,
        ..listener(limits)
    }
}

fn intake(limits: &config::Limits) -> Limits {
    Limits {
        head: head::Limits {
            max_header_bytes: limits.max_header_bytes,
            max_headers: limits.max_headers,
        },
        max_body_bytes: limits.max_body_bytes,
        body: guard::Limits {
            max_depth: limits.max_json_depth,
        },
        body_timeout: limits.body_timeout,
    }
}

/// What the replies to trial calls may look like: as those to callers.
pub fn trial(limits: &config::Limits) -> admission::TrialLimits {
    let Limits {
        max_body_bytes,
        body,
        ..
    } = intake(limits);
    admission::TrialLimits {
        max_body_bytes,
        json: body,
    }
}

pub fn mode(validate: config::Validate) -> Mode {
    match validate {
        config::Validate::Strict => Mode::Strict,
        config::Validate::Warn => Mode::Warn,
        config::Validate::Off => Mode::Off,
    }
}

/// A name for `Via` that no other listener has: the process's random boot is part of it.
fn pseudonym(side: &str, application: &str, boot: &str) -> HeaderValue {
    let name = format!("hermes-{side}-{application}-{boot}");
    HeaderValue::try_from(name).unwrap_or_else(|_| HeaderValue::from_static("hermes"))
}

/// What a listener of this machine alone may be asked for.
pub fn local(settings: &Settings, address: &Address) -> Local {
    let own = match address {
        Address::Tcp(own) => Some(*own),
        Address::Unix(_) => None,
    };
    let allowed = settings.outbound.allow_hosts.clone();
    Local { own, allowed }
}

pub fn inbound(
    settings: &Settings,
    boot: &str,
    contracts: watch::Receiver<inbound::Roster>,
) -> Result<inbound::Config, Error> {
    let outside = match &settings.application.upstream {
        Some(upstream @ config::Upstream::Https { .. }) => upstream.authority(),
        _ => None,
    };
    Ok(inbound::Config {
        application: settings.application.name.clone(),
        contracts,
        passthrough: settings.inbound.passthrough.clone(),
        trust: settings.inbound.trust_context.clone(),
        is_secured: settings.tls.is_some(),
        forward_path: settings.application.forward_path,
        protocol: match settings.application.protocol {
            config::Protocol::Http1 => inbound::Protocol::Http1,
            config::Protocol::H2c => inbound::Protocol::H2c,
            config::Protocol::Same => inbound::Protocol::Same,
        },
        limits: intake(&settings.limits),
        pseudonym: pseudonym("in", &settings.application.name, boot),
        added: application::headers(&settings.application)?,
        outside: outside.and_then(|host| HeaderValue::try_from(host).ok()),
    })
}

fn ejection(settings: &config::Ejection) -> EjectionConfig {
    EjectionConfig {
        consecutive: settings.consecutive,
        success_rate: settings.success_rate,
        base: settings.base,
        max: settings.max,
        max_percent: settings.max_percent,
    }
}

fn retry(settings: &config::Retry) -> outbound::Retry {
    outbound::Retry {
        budget: outbound::budget::Config {
            percent: settings.budget_percent,
            min_per_second: settings.budget_min_per_second,
        },
        backoff: settings.backoff,
        max_backoff: settings.max_backoff,
    }
}

pub fn outbound(settings: &Settings, own_address: Address, boot: &str) -> outbound::Config {
    outbound::Config {
        application: settings.application.name.clone(),
        region: settings.application.region.clone(),
        team: settings.application.team.clone(),
        local: local(settings, &own_address),
        limits: intake(&settings.limits),
        retry: retry(&settings.retry),
        pseudonym: pseudonym("out", &settings.application.name, boot),
        ejection: ejection(&settings.ejection),
    }
}

pub fn admission(
    settings: &Settings,
    instance: &str,
    boot: &str,
    bound: &Address,
    public: Option<&Address>,
) -> admission::Config {
    let application = &settings.application;
    let advertise = &settings.inbound.advertise;
    admission::Config {
        application: application.name.clone(),
        instance: instance.to_owned(),
        region: application.region.clone(),
        team: application.team.clone(),
        tags: application.tags.clone(),
        weight: u32::from(application.weight),
        advertise_host: advertise.host.clone().unwrap_or_default(),
        // Without a port, where inbound is a unix socket, the settings would have been refused.
        advertise_port: advertise.port.or(bound.port()).unwrap_or_default(),
        bound: bound.ip().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        // Others cannot reach a unix socket.
        admin: public
            .and_then(|address| address.port().map(|_| address.to_string()))
            .unwrap_or_default(),
        proto: match settings.tls {
            Some(_) => "https",
            None => "http",
        },
        http_check: settings.consul.http_check,
        boot: boot.to_owned(),
        require_version: application.require_version,
    }
}

/// Reads a token from its file, without the line end that editors add.
///
/// A file without one, as it may be amid a rotation, is refused: it would let everybody in.
pub fn token(key: &'static str, path: Option<&Path>) -> Result<Option<Secret>, Error> {
    let Some(path) = path else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(path).map_err(|source| Error::ReadToken {
        key,
        path: path.to_owned(),
        source,
    })?;
    let token = Secret::new(text.trim());
    if token.is_empty() {
        let path = path.to_owned();
        return Err(Error::EmptyToken { key, path });
    }
    Ok(Some(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for text in ["", "\n", " \t\r\n"] {
            std::fs::write(&path, text).unwrap();
            let refused = token("collector.token_file", Some(&path)).unwrap_err();
            assert!(matches!(refused, Error::EmptyToken { .. }), "{refused}");
        }
        std::fs::write(&path, "s3cret\n").unwrap();
        let read = token("collector.token_file", Some(&path)).unwrap();
        assert_eq!(read, Some(Secret::new("s3cret")));
        assert_eq!(token("collector.token_file", None).unwrap(), None);
    }
}
