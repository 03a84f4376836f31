//! The admin listener: metrics, readiness, what is going on, and a few commands.
//!
//! Loopback only, closed to pages of other sites; what changes something also wants a header that
//! no page can send unasked. A second, public listener shows metrics and readiness alone.
//! Elsewhere: what the answers consist of, which the entrance hands in.

mod api;
mod question;

pub use api::{public, router};
pub use question::Question;

use crate::contract::watch::{Agent, Directory};
use crate::identity::local::Local;
use crate::spool::Spool;
use crate::telemetry::metrics::{Admission, Sidecar};
use serde::Serialize;
use serde_json::Value;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc;

/// One condition of readiness and why it does not hold.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    pub check: &'static str,
    pub ok: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// What it consists of, if it has parts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
}

/// One step of a contract's admission.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    pub contract: String,
    pub step: &'static str,
    pub result: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// What the process may be told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Leave Consul; who comes all the same is served, and the process stays.
    Drain,
    /// Stop as soon as nothing runs: the work is done.
    Quit,
}

/// Answers one question from the present state.
pub type Ask<T> = Box<dyn Fn() -> T + Send + Sync>;

/// Explains where a task's calls go, or says why that cannot be told.
pub type Explain = Box<dyn Fn(Question) -> Explaining + Send + Sync>;

/// Tells what calls have told of a contract's instances, by their ids.
pub type Seen = Box<dyn Fn(&Agent) -> HashMap<Arc<str>, Value> + Send + Sync>;

/// An explanation under way.
pub type Explaining = Pin<Box<dyn Future<Output = Result<Value, Refusal>> + Send>>;

/// A reload under way: what came of it.
pub type Reloading = Pin<Box<dyn Future<Output = Result<Value, Unchanged>> + Send>>;

/// Why a reload changed nothing.
#[derive(Debug)]
pub enum Unchanged {
    /// Every fault there is.
    Problems(Vec<String>),
    /// It is not the time for it.
    Refused(String),
}

/// A question that has no answer.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    /// The kind of problem.
    pub kind: &'static str,
    pub detail: String,
}

/// What the listener shows and whom it tells.
pub struct House {
    pub local: Ask<Arc<Local>>,
    pub metrics: Arc<Sidecar>,
    pub spool: Spool,
    pub directory: Arc<Directory>,
    pub ready: Ask<Vec<Check>>,
    pub outbound_ready: Ask<Check>,
    /// Where each contract of ours stands on its way to being called.
    pub states: Ask<Vec<Admission>>,
    pub contracts: Ask<Value>,
    pub explain: Explain,
    pub seen: Seen,
    pub active: Ask<Value>,
    pub config: Ask<Value>,
    /// Reads the settings again: what came of it, or every fault.
    pub reload: Ask<Reloading>,
    pub commands: mpsc::Sender<Command>,
}
