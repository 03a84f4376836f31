//! A contract that this sidecar serves, and how its application takes a call.

use super::permits::Permits;
use crate::admission;
use crate::contract::Compiled;
use crate::identity::Allow;
use crate::proxy::check::Mode;
use crate::proxy::target;
use crate::telemetry::metrics;
use http::{Method, Uri};
use std::sync::Arc;

/// Below it peers call the contracts whose application takes a wrapper: `POST` to
/// `/hermes/agents/ID`.
pub const AGENTS: &str = "/hermes/agents/";

/// The application's own route and what it wants to be sent there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Style {
    /// The input alone; peers call the same route.
    Native { method: Method, path: String },
    /// The input and its context in a wrapper, by POST to this path; peers send the input alone,
    /// below `AGENTS`.
    Envelope { path: String },
}

impl Style {
    /// Names the route that peers call, as Consul tells it them.
    pub fn route(&self, id: &str) -> String {
        let (method, path) = self.public(id);
        format!("{method} {path}")
    }

    fn public(&self, id: &str) -> (Method, String) {
        match self {
            Style::Native { method, path } => (method.clone(), path.clone()),
            Style::Envelope { .. } => (Method::POST, format!("{AGENTS}{id}")),
        }
    }

    /// The application's path.
    pub fn path(&self) -> &str {
        match self {
            Style::Native { path, .. } | Style::Envelope { path } => path,
        }
    }
}

/// A contract that this sidecar serves.
#[derive(Debug)]
pub struct Served {
    pub contract: Arc<Compiled>,
    pub style: Style,
    /// What peers call.
    pub method: Method,
    pub path: String,
    pub input: Mode,
    pub output: Mode,
    pub allow: Allow,
    pub standing: admission::Reader,
    pub meters: Arc<metrics::Contract>,
    /// `ID@VERSION`.
    pub name: String,
    /// This copy's id in Consul.
    pub instance: String,
    pub(super) permits: Arc<Permits>,
    /// The application's path as a lenient server might read it.
    reduced: String,
}

impl Served {
    pub fn new(
        contract: Arc<Compiled>,
        style: Style,
        (input, output): (Mode, Mode),
        allow: Allow,
        instance: String,
        standing: admission::Reader,
        meters: Arc<metrics::Contract>,
    ) -> Self {
        let limit = contract.contract.constraints.max_concurrent.get() as usize;
        let (method, path) = style.public(contract.contract.id.as_str());
        Self {
            name: format!("{}@{}", contract.contract.id, contract.contract.version),
            permits: Arc::new(Permits::new(limit)),
            reduced: target::reduced(style.path()),
            contract,
            style,
            instance,
            method,
            path,
            input,
            output,
            allow,
            standing,
            meters,
        }
    }

    /// Lets the calls of an earlier version that still run count, too.
    pub fn following(mut self, before: &Self) -> Self {
        self.permits = Arc::new(before.permits.followed_by(self.permits.limit()));
        self
    }

    /// Returns the contract's id.
    pub fn id(&self) -> &str {
        self.contract.contract.id.as_str()
    }

    /// Returns the query of a request that is handed on: one that came along on the contract's own
    /// path.
    pub(super) fn query<'a>(&self, received: &'a Uri) -> Option<&'a str> {
        received.query().filter(|_| received.path() == self.path)
    }

    /// Says whether the application might take a path for the one where it takes calls.
    ///
    /// What peers call of a wrapped contract lies below `/hermes/`, which is never passed through.
    pub(super) fn is_meant_by(&self, reduced: &str) -> bool {
        self.reduced == reduced
    }
}
