//! Getting our contracts admitted, and keeping Consul's record of them true.
//!
//! A contract is born critical and passes once three steps hold, in this order: its signature,
//! the application's health and version, a trial. What Consul forgets is registered again.
//!
//! - no step is tried before those ahead of it hold; all begin anew with another contract
//! - one worker asks the application; per contract one judges and one keeps the record
//! - only the own id is ever touched, and not even that once another process has taken it
//! - elsewhere: how Consul is spoken to (`consul`), who reads the standing (`proxy`, `admin`)

mod beacon;
mod fitness;
mod handshake;
mod health;
mod judge;
pub mod publication;
mod registrar;
mod registration;
mod standing;
mod trial;

pub use beacon::{Beacon, shine};
pub use handshake::{Error as HandshakeError, Handshake, contract_of};
pub use health::{
    Config as HealthConfig, Error as HealthError, Health, Prober, Speaks as HealthSpeaks,
};
pub use judge::Judge;
pub use registrar::{Charge, Record, Registrar};
pub use standing::{Reader, Standing, Step, StepResult};
pub use trial::{Limits as TrialLimits, OwnRoute, Trials, plan as plan_trial};

use crate::contract::Compiled;
use std::net::IpAddr;
use std::sync::Arc;

/// What Consul is told about this sidecar, whatever the contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub application: String,
    pub instance: String,
    pub region: String,
    /// Without `team-`; empty for none.
    pub team: String,
    pub tags: Vec<String>,
    pub weight: u32,
    /// Empty: the address of the node.
    pub advertise_host: String,
    pub advertise_port: u16,
    /// Where the inbound listener is bound.
    pub bound: IpAddr,
    /// The public admin listener, `host:port`; empty for none.
    pub admin: String,
    /// What callers must speak: `http`, or `https` for mutual TLS.
    pub proto: &'static str,
    /// Also let Consul ask `/hermes/heartbeat`.
    pub http_check: bool,
    /// Random per start; tells our registration from another process's.
    pub boot: String,
    pub require_version: bool,
}

/// A contract of ours and where it is called.
#[derive(Debug, Clone)]
pub struct Ours {
    pub contract: Arc<Compiled>,
    /// `POST /api/v1/risk`.
    pub route: String,
    pub own_route: OwnRoute,
    /// Without a probe an input for the trial is made up.
    pub derive_probe: bool,
}
