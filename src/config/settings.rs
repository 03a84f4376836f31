//! The settings as types; every field holds a value that needs no further question.
//!
//! Sections mirror the file. Keys whose feature is not built yet have no field: they were
//! refused unless they hold their default.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::contract::trust;
use crate::identity::{Allow, Hosts, Secret, tls};
use crate::socket::Address;

use super::address::{Advertise, CollectorTarget, Upstream};
use super::origin::Effective;
use super::{Role, Source};
use crate::identity::Trust;

/// Everything a sidecar or collector was told.
#[derive(Debug, Clone)]
pub struct Settings {
    pub application: Application,
    pub inbound: Inbound,
    pub outbound: Outbound,
    pub admin: Admin,
    pub limits: Limits,
    pub retry: Retry,
    pub consul: Consul,
    /// Whose contracts are used.
    pub trust: trust::Config,
    /// `None`: peers speak plain HTTP and are not authenticated.
    pub tls: Option<tls::Config>,
    pub ejection: Ejection,
    pub spool: Spool,
    pub log: Log,
    pub collector: Collector,
    /// The same values as written, with their origins, for `config show` and `/config`.
    pub effective: Effective,
    /// What they were made of, and for which role, to read them again.
    pub(super) source: Source,
    pub(super) role: Role,
}

#[derive(Debug, Clone)]
pub struct Application {
    /// For a collector that was given none: `collector`.
    pub name: String,
    /// `None`: the application only calls others, and `contracts` is empty.
    pub upstream: Option<Upstream>,
    /// Fields that every request to it carries; credentials, most likely.
    pub upstream_headers_file: Option<PathBuf>,
    /// Roots beside the system's for an upstream behind https.
    pub upstream_ca: Option<PathBuf>,
    pub protocol: Protocol,
    pub region: String,
    pub tags: Vec<String>,
    /// Without `team-`; empty: none.
    pub team: String,
    pub weight: u16,
    /// `None`: the usual paths, then a TCP connect.
    pub health: Option<String>,
    pub health_interval: Duration,
    pub health_timeout: Duration,
    pub health_failures: u32,
    pub require_version: bool,
    pub forward_path: bool,
    /// In the order of the file.
    pub contracts: Vec<ContractSource>,
    pub(super) instance: Option<String>,
    pub(super) host_name: String,
}

impl Application {
    /// Names this copy: as told, else by host name and the port that inbound really has.
    pub fn instance(&self, inbound_port: Option<u16>) -> String {
        match (&self.instance, inbound_port) {
            (Some(name), _) => name.clone(),
            (None, Some(port)) => format!("{}-{port}", self.host_name),
            (None, None) => self.host_name.clone(),
        }
    }
}

/// What the application speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    /// HTTP/2 in clear, by prior knowledge.
    H2c,
    /// What the request came in.
    Same,
}

/// Where a contract comes from and which route of the application it describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContractSource {
    pub origin: ContractOrigin,
    pub method: Method,
    /// At the application. Peers call an envelope contract at a path of the sidecar's own.
    pub path: String,
    pub style: Style,
    pub input: Validate,
    pub output: Validate,
    /// Without a probe an input for the trial is made up.
    pub derive_probe: bool,
    pub allow: Allow,
}

impl ContractSource {
    /// Returns the contract's file, if it comes from one.
    pub fn file(&self) -> Option<&Path> {
        match &self.origin {
            ContractOrigin::File(file) => Some(file),
            ContractOrigin::Handshake => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContractOrigin {
    /// Resolved; existed when the settings were read.
    File(PathBuf),
    /// The application hands it out.
    Handshake,
}

/// What the application is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// The input alone.
    Native,
    /// The input and its context in a wrapper.
    Envelope,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Post,
    Put,
    Patch,
}

impl Method {
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
        }
    }
}

/// What the callee does about a body that breaks the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validate {
    Strict,
    Warn,
    Off,
}

#[derive(Debug, Clone)]
pub struct Inbound {
    pub listen: Address,
    pub advertise: Advertise,
    pub passthrough: Vec<String>,
    pub trust_context: Trust,
}

#[derive(Debug, Clone)]
pub struct Outbound {
    pub listen: Address,
    pub allow_hosts: Hosts,
}

#[derive(Debug, Clone)]
pub struct Admin {
    pub listen: Address,
    pub public_listen: Option<Address>,
}

#[derive(Debug, Clone)]
pub struct Limits {
    pub max_body_bytes: usize,
    pub max_json_depth: usize,
    pub max_header_bytes: usize,
    pub max_headers: usize,
    pub max_connections: usize,
    pub header_timeout: Duration,
    pub body_timeout: Duration,
    pub idle_timeout: Duration,
    pub stream_idle_timeout: Duration,
    pub drain_delay: Duration,
    pub drain_timeout: Duration,
}

/// How failed calls are tried again.
#[derive(Debug, Clone)]
pub struct Retry {
    pub budget_percent: u32,
    pub budget_min_per_second: u32,
    pub backoff: Duration,
    pub max_backoff: Duration,
}

#[derive(Debug, Clone)]
pub struct Consul {
    /// `http(s)://HOST[:PORT]` without a slash at the end, or `unix:/PATH`.
    pub address: String,
    /// From CONSUL_HTTP_TOKEN; `token_file`, where given, counts instead.
    pub token: Option<Secret>,
    pub token_file: Option<PathBuf>,
    pub prefix: String,
    /// Registers the HTTP check beside the TTL check.
    pub http_check: bool,
    pub watches: usize,
    pub tls: ConsulTls,
}

/// How an `https` Consul is reached; all from Consul's own variables.
#[derive(Debug, Clone)]
pub struct ConsulTls {
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub server_name: Option<String>,
    pub verify: bool,
}

impl Default for ConsulTls {
    fn default() -> Self {
        Self {
            ca_file: None,
            cert_file: None,
            key_file: None,
            server_name: None,
            verify: true,
        }
    }
}

/// When an instance is left out for a while.
#[derive(Debug, Clone)]
pub struct Ejection {
    pub consecutive: u32,
    pub success_rate: f64,
    pub base: Duration,
    pub max: Duration,
    pub max_percent: u32,
}

#[derive(Debug, Clone)]
pub struct Spool {
    /// Its folder may have to be made.
    pub path: PathBuf,
    pub state_path: PathBuf,
    /// `None`: reports stay in the spool.
    pub collector: Option<CollectorTarget>,
    pub token_file: Option<PathBuf>,
    pub durability: Durability,
    pub max_bytes: u64,
    pub retry: Duration,
    pub expire: Duration,
    pub batch: usize,
    pub linger: Duration,
}

/// What a recorded end state survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process.
    Process,
    /// The loss of power.
    Disk,
    /// Nothing: it is only queued.
    Async,
}

#[derive(Debug, Clone)]
pub struct Log {
    pub format: LogFormat,
    /// A filter as `tracing` reads it; was parsed once.
    pub filter: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    Text,
    Json,
}

#[derive(Debug, Clone)]
pub struct Collector {
    pub listen: Address,
    /// Its folder may have to be made.
    pub store: PathBuf,
    pub token_file: Option<PathBuf>,
    pub retention: Duration,
    /// Registers the collector in Consul.
    pub consul: bool,
}
