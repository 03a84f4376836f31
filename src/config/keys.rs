//! The one table of everything the config file may hold; loading, `config show`, `config schema`
//! and the help all read it.
//!
//! - defaults are TOML; `""` stands for "found out at start" where the help says how
//! - a key marked `live` is taken over by a reload; the others wait for a restart
//! - a key whose feature is not built accepts only its default, or refuses the values named

use super::file;
use super::kind::Kind;

/// One key: where it stands, what it holds, what it is for.
#[derive(Debug)]
pub struct Key {
    /// `section.name`; elements of a list of tables are written `section.list[].name`.
    pub path: &'static str,
    pub kind: Kind,
    pub default: &'static str,
    pub help: &'static str,
    pub(super) rule: Rule,
    /// A new value can come to be in force while the process runs.
    pub(super) is_live: bool,
}

/// What of a key is built.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    Built,
    /// Only the default is accepted.
    Later(&'static str),
    /// These texts are refused.
    Except(&'static [&'static str], &'static str),
}

/// A list of tables, `[[…]]` in the file.
#[derive(Debug)]
pub struct List {
    pub path: &'static str,
    pub help: &'static str,
    pub(super) later: Option<&'static str>,
}

/// Finds a key by its path; `application.contract[3].file` is found as `application.contract[].file`.
pub fn find(path: &str) -> Option<&'static Key> {
    let plain = without_indexes(path);
    KEYS.iter().find(|key| key.path == plain)
}

/// Finds a list of tables by its path.
pub fn find_list(path: &str) -> Option<&'static List> {
    LISTS.iter().find(|list| list.path == path)
}

/// Says whether a value at this path can change while the process runs; tables of lists come and go.
pub(super) fn is_live(path: &str) -> bool {
    find(path).map_or(path.ends_with(']'), |key| key.is_live)
}

/// Says whether any key lies below a path.
pub(super) fn is_section(path: &str) -> bool {
    !path.is_empty() && children(path).next().is_some()
}

/// Names what may stand directly below a path; the empty path is the whole file.
pub(super) fn children(path: &str) -> impl Iterator<Item = &'static str> {
    let plain = without_indexes(path);
    KEYS.iter().filter_map(move |key| {
        let rest = match plain.as_str() {
            "" => key.path,
            plain => key.path.strip_prefix(plain)?.strip_prefix('.')?,
        };
        rest.split(['.', '[']).next()
    })
}

fn without_indexes(path: &str) -> String {
    let mut plain = String::with_capacity(path.len());
    let mut inside = false;
    for letter in path.chars() {
        match letter {
            '[' => inside = true,
            ']' => inside = false,
            _ if inside => continue,
            _ => {}
        }
        plain.push(letter);
    }
    plain
}

const fn key(path: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Key {
    Key {
        path,
        kind,
        default,
        help,
        rule: Rule::Built,
        is_live: false,
    }
}

impl Key {
    /// Gives the default as a value; a test holds that each can be read.
    pub fn default_value(&self) -> toml::Value {
        file::literal(self.default).unwrap_or_else(|| toml::Value::String(String::new()))
    }

    const fn later(mut self, reason: &'static str) -> Self {
        self.rule = Rule::Later(reason);
        self
    }

    const fn live(mut self) -> Self {
        self.is_live = true;
        self
    }

    const fn except(mut self, refused: &'static [&'static str], reason: &'static str) -> Self {
        self.rule = Rule::Except(refused, reason);
        self
    }
}

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const MIB: u64 = 1 << 20;

const CONNECT: &str = "certificates from Consul Connect are not built into this version";
const SESSIONS: &str = "sessions are not built into this version";
const LEDGER: &str = "the delivery ledger is not built into this version";
const REFUSE: &str = "refusing calls that cannot be recorded is not built into this version";

pub static LISTS: &[List] = &[
    List {
        path: "application.contract",
        help: "one contract the application serves",
        later: None,
    },
    List {
        path: "trust.key",
        help: "a key and the contract ids it may sign",
        later: None,
    },
];

#[rustfmt::skip]
pub static KEYS: &[Key] = &[
    key("application.name", Kind::Name, r#""""#, "identity of the application; empty: family of the first contract"),
    key("application.upstream", Kind::Upstream, r#""""#, "where the application listens: http://HOST:PORT, https://HOST:PORT or unix:/PATH; empty: it only calls others"),
    key("application.upstream_headers_file", Kind::File, r#""""#, "file of `Name: value` lines that every request to the upstream carries, such as its credentials").live(),
    key("application.upstream_ca", Kind::File, r#""""#, "roots, beside the system's, that an https upstream may be certified by"),
    key("application.protocol", Kind::Choice(&["http1", "h2c", "same"]), r#""http1""#, "what the application speaks; same: as the request came, which gRPC needs").live(),
    key("application.instance", Kind::Id, r#""""#, "name of this copy, stable over restarts; empty: host name and inbound port"),
    key("application.region", Kind::Text(128), r#""""#, "where this copy runs").live(),
    key("application.tags", Kind::Texts, "[]", "further tags of the registration").live(),
    key("application.team", Kind::Team, r#""""#, "owning team, without `team-`").live(),
    key("application.weight", Kind::Count(1, 1000), "100", "share of the traffic relative to other copies").live(),
    key("application.health", Kind::UrlPath, r#""""#, "health path; empty: /hermes/health, then /hermes/heartbeat, then whether it answers at all").live(),
    key("application.health_interval", Kind::Length(100, HOUR), r#""5s""#, "time between health checks").live(),
    key("application.health_timeout", Kind::Length(10, 10 * MINUTE), r#""1s""#, "longest wait for a health answer").live(),
    key("application.health_failures", Kind::Count(1, 1000), "2", "failed checks in a row that make it unhealthy").live(),
    key("application.require_version", Kind::Flag, "false", "health must report the contract's version").live(),
    key("application.forward_path", Kind::Flag, "false", "send Hermes-Path on to the application").live(),
    key("application.contract[].file", Kind::File, r#""""#, "the contract, relative to this file").live(),
    key("application.contract[].handshake", Kind::Flag, "false", "ask the application for its contract, by GET /hermes/handshake, instead of reading a file").live(),
    key("application.contract[].method", Kind::Choice(&["POST", "PUT", "PATCH"]), r#""POST""#, "method of the application's route").live(),
    key("application.contract[].path", Kind::UrlPath, r#""""#, "path of the application's route; envelope: empty for /hermes/invoke").live(),
    key("application.contract[].style", Kind::Choice(&["native", "envelope"]), r#""native""#, "native: the body is the input alone; envelope: {\"input\",\"context\"}").live(),
    key("application.contract[].validate.input", Kind::Choice(&["strict", "warn", "off"]), r#""strict""#, "what a request that breaks the contract leads to").live(),
    key("application.contract[].validate.output", Kind::Choice(&["strict", "warn", "off"]), r#""strict""#, "what a reply that breaks the contract leads to").live(),
    key("application.contract[].derive_probe", Kind::Flag, "false", "make up an input for the trial calls of admission where the contract has no probe; it reaches the application marked as a trial").live(),
    key("application.contract[].allow", Kind::Texts, r#"["*"]"#, "names of the applications that may call, as their certificates have them; `*` for all").live(),

    key("inbound.listen", Kind::Listen, r#""0.0.0.0:7401""#, "where peers call: IP:PORT or unix:/PATH"),
    key("inbound.advertise", Kind::Advertise, r#""""#, "host, port or host:port given to others; empty: the node address Consul knows").live(),
    key("inbound.passthrough", Kind::UrlPrefixes, "[]", "path prefixes that go to the application unchecked").live(),
    key("inbound.trust_context", Kind::TrustContext, r#""any""#, "whose Hermes-* headers are believed: any, mtls or a list of networks; with TLS mtls unless told otherwise").live(),

    key("outbound.listen", Kind::LocalListen, r#""127.0.0.1:7402""#, "where the application calls others: a loopback address or unix:/PATH"),
    key("outbound.allow_hosts", Kind::Hosts, "[]", "hosts that may be called beside *.hermes, unchecked: HOST, HOST:PORT or *.SUFFIX").live(),

    key("admin.listen", Kind::LocalListen, r#""127.0.0.1:7403""#, "where the operator asks and commands: a loopback address or unix:/PATH"),
    key("admin.public_listen", Kind::OptionalListen, r#""""#, "second, read-only listener: /metrics /live /ready; empty: none"),

    key("limits.max_body_bytes", Kind::Count(1, 1024 * MIB), "4194304", "largest body of a contract call").live(),
    key("limits.max_json_depth", Kind::Count(1, 512), "64", "deepest nesting of a JSON body").live(),
    key("limits.max_header_bytes", Kind::Count(1024, MIB), "65536", "largest head of a message").live(),
    key("limits.max_headers", Kind::Count(8, 1000), "100", "most header fields of a message").live(),
    key("limits.max_connections", Kind::Count(1, 1_000_000), "10000", "most connections of a listener").live(),
    key("limits.header_timeout", Kind::Length(1, HOUR), r#""10s""#, "longest wait for a head, from its first byte").live(),
    key("limits.body_timeout", Kind::Length(1, HOUR), r#""30s""#, "longest wait for a body").live(),
    key("limits.idle_timeout", Kind::Length(1, DAY), r#""60s""#, "longest idle time of a connection").live(),
    key("limits.stream_idle_timeout", Kind::Length(1, DAY), r#""300s""#, "longest silence of a stream that is passed through, and longest wait for a reader to take some of its answer").live(),
    key("limits.drain_delay", Kind::Length(0, 10 * MINUTE), r#""3s""#, "how long everything is still served after SIGTERM, or a drain before it, until callers have heard").live(),
    key("limits.drain_timeout", Kind::Length(1, HOUR), r#""30s""#, "longest wait for running calls to end").live(),

    key("consul.address", Kind::ConsulAddress, r#""http://127.0.0.1:8500""#, "the Consul agent"),
    key("consul.token_file", Kind::File, r#""""#, "file with the ACL token"),
    key("consul.prefix", Kind::Prefix(32), r#""hermes""#, "first part of KV paths; another than hermes also begins service names"),
    key("consul.checks", Kind::Choices(&["ttl", "http"]), r#"["ttl"]"#, "health checks registered").live(),
    key("consul.watches", Kind::Count(1, 10_000), "32", "most blocking queries; beyond them Consul is polled"),

    key("trust.mode", Kind::Choice(&["pinned", "tofu", "off"]), r#""tofu""#, "whose contracts are used: pinned, signed by a listed key; tofu, by a listed key, else by the first key seen of the family, unsigned until one was seen; off: all").live(),
    key("trust.key[].file", Kind::File, r#""""#, "public key: PEM as keygen writes it to PATH.pub, or a JWK").live(),
    key("trust.key[].kid", Kind::Text(128), r#""""#, "name that signatures call the key by; empty: its thumbprint, as keygen prints it").live(),
    key("trust.key[].ids", Kind::Texts, "[]", "contract ids that the key may sign; * stands for any text, as in fraud-*").live(),

    key("tls.mode", Kind::Choice(&["off", "files", "consul-connect"]), r#""off""#, "how peers are authenticated").except(&["consul-connect"], CONNECT),
    key("tls.cert", Kind::File, r#""""#, "certificate chain, PEM; it must name the application"),
    key("tls.key", Kind::File, r#""""#, "private key, PEM"),
    key("tls.ca", Kind::File, r#""""#, "trusted roots, PEM"),

    key("retry.budget_percent", Kind::Count(0, 100), "20", "retries per hundred calls").live(),
    key("retry.budget_min_per_second", Kind::Count(0, 1000), "3", "retries a second that are allowed however little traffic there is").live(),
    key("retry.backoff", Kind::Length(1, HOUR), r#""25ms""#, "wait before the first retry").live(),
    key("retry.max_backoff", Kind::Length(1, HOUR), r#""250ms""#, "longest wait before a retry").live(),

    key("ejection.consecutive", Kind::Count(1, 1000), "5", "failures in a row that eject an instance").live(),
    key("ejection.success_rate", Kind::Ratio, "0.5", "success rate, 0 to 1, below which an instance is ejected").live(),
    key("ejection.base", Kind::Length(1, DAY), r#""5s""#, "first time out; it doubles with each further one, up to ejection.max").live(),
    key("ejection.max", Kind::Length(1, DAY), r#""60s""#, "longest time out").live(),
    key("ejection.max_percent", Kind::Count(0, 100), "50", "most instances out at once, in per cent; where more would be, none is").live(),

    key("spool.path", Kind::File, r#""""#, "database of what is owed; empty: spool.db in the state directory"),
    key("spool.state_path", Kind::File, r#""""#, "database of what is remembered; empty: state.db in the state directory"),
    key("spool.collector", Kind::CollectorTarget, r#""""#, "URL or consul:SERVICE; empty: reports stay in the spool").live(),
    key("spool.token_file", Kind::File, r#""""#, "file with the collector's bearer token").live(),
    key("spool.durability", Kind::Choice(&["process", "disk", "async"]), r#""process""#, "process: survives kill -9; disk: survives power loss; async: queued only"),
    key("spool.on_failure", Kind::Choice(&["serve", "refuse"]), r#""serve""#, "what happens to calls that cannot be recorded").except(&["refuse"], REFUSE),
    key("spool.max_bytes", Kind::Count(64 * 1024, 1 << 40), "1073741824", "largest size of the spool"),
    key("spool.retry", Kind::Length(10, HOUR), r#""5s""#, "wait after a failed delivery").live(),
    key("spool.expire", Kind::Length(SECOND, 365 * DAY), r#""1h""#, "age at which a report moves to the dead letters").live(),
    key("spool.batch", Kind::Count(1, 1000), "100", "most reports sent at once").live(),
    key("spool.linger", Kind::Length(0, 10 * SECOND), r#""50ms""#, "longest wait for a batch to fill").live(),

    key("session.freshness", Kind::Length(1, 365 * DAY), r#""1h""#, "age of the last turn up to which a session is fresh").later(SESSIONS),
    key("session.max_turns", Kind::Count(1, 1_000_000), "1000", "most turns kept").later(SESSIONS),
    key("session.hash_key_file", Kind::File, r#""""#, "key for hashing stored ids").later(SESSIONS),

    key("ledger.attempts", Kind::Count(1, 1000), "3", "most attempts of a delivery").later(LEDGER),
    key("ledger.stale", Kind::Length(1, 365 * DAY), r#""24h""#, "age at which a delivery is given up").later(LEDGER),
    key("ledger.retention", Kind::Length(1, 365 * DAY), r#""7d""#, "how long ended deliveries are kept").later(LEDGER),
    key("ledger.channels", Kind::Table, "{}", "named targets of deliveries").later(LEDGER),
    key("ledger.ids", Kind::Choice(&["v1", "v2"]), r#""v2""#, "how obligation ids are formed").later(LEDGER),

    key("log.format", Kind::Choice(&["auto", "text", "json"]), r#""auto""#, "auto: text on a terminal, else JSON"),
    key("log.filter", Kind::Filter, r#""info""#, "what is logged").live(),

    key("collector.listen", Kind::Listen, r#""127.0.0.1:7410""#, "where reports and questions arrive"),
    key("collector.store", Kind::Store, r#""""#, "database of tasks: a path, or postgres://USER:PASSWORD@HOST/DATABASE that several collectors share; empty: collector.db in the state directory"),
    key("collector.token_file", Kind::File, r#""""#, "file with the bearer token that senders must show; under TLS a certificate will do, too").live(),
    key("collector.retention", Kind::Length(MINUTE, 3650 * DAY), r#""30d""#, "how long tasks are kept").live(),
    key("collector.consul", Kind::Flag, "true", "register as hermes-collector; show contracts and who runs them"),
];
