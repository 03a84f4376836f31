//! Contracts: what a capability promises, and the check that bodies keep it.
//!
//! A `Contract` was read strictly: what it holds is within bounds and agrees with itself.
//! A `Compiled` one also has schemas that cannot make a check slow. Both are immutable and
//! shared by `Arc`; the digest names them everywhere.
//!
//! - the body a contract was read from is kept byte for byte, for those who publish it
//! - faults are reported all at once, each with its place and remedy
//! - elsewhere: contracts as OpenAPI documents (`openapi`), following contracts in Consul (`watch`), who may sign them (`admission`)

pub mod compatibility;
pub mod derive;
pub mod guard;
pub mod lint;
pub mod openapi;

mod cache;
mod cost;
mod id;
mod keyword;
mod number;
mod pointer;
mod problem;
mod range;
mod read;
mod reference;
mod schema;
mod section;
mod tree;
pub mod trust;
mod violation;
pub mod watch;

use std::{fmt, num::NonZeroU32, time::Duration};

use bytes::Bytes;
use semver::Version;
use serde_json::{Map, Value};

pub use cache::{Cache, Compiled};
pub use id::{BadId, ContractId, Profile, UnknownProfile};
pub use problem::{Problem, Problems};
pub use range::{BadRange, Range};
pub use schema::{FORMATS, Validator};
pub use violation::{Violation, Violations};

use crate::identity::Digest;

/// The largest canonical form, in bytes.
pub const MAX_CANONICAL: usize = 256 * 1024;

/// Reads a file: a contract, or an OpenAPI document that holds the one that is wanted. What was
/// changed or left out on the way comes beside it.
pub fn from_file(
    body: &[u8],
    wanted: &openapi::Wanted<'_>,
) -> Result<(Contract, Problems), Problems> {
    if openapi::is_document(body) {
        let imported = openapi::read_one(body, wanted)?;
        return Ok((imported.contract, imported.warnings));
    }
    Ok((Contract::from_slice(body)?, Problems::default()))
}

/// Reads what an application says of itself, in the forms that a file may have.
pub fn from_reply(
    reply: &[u8],
    wanted: &openapi::Wanted<'_>,
) -> Result<(Contract, Problems), Problems> {
    if openapi::is_document(reply) {
        return from_file(reply, wanted);
    }
    let (contract, has_hash) = Contract::from_handshake(reply)?;
    if let Some(agent) = wanted.agent
        && contract.id.as_str() != agent
    {
        let message = format!("this is {}, not {agent}", contract.id);
        let remedy = "ask the application for that contract";
        return Err(Problem::new("no-contract", "/id", message, remedy).into());
    }
    let mut warnings = Problems::default();
    if has_hash {
        let message = "a hash is no signature: it proves nothing and is left out";
        let remedy = "sign the contract, which adds \"signatures\"";
        warnings.push(Problem::new(
            "signature-hash",
            "/signature",
            message,
            remedy,
        ));
    }
    Ok((contract, warnings))
}

/// What a capability promises.
#[derive(Clone)]
pub struct Contract {
    pub id: ContractId,
    /// MAJOR.MINOR.PATCH without suffixes; MAJOR.MINOR are the id's.
    pub version: Version,
    pub description: String,
    pub input_schema: Value,
    pub output_schema: Value,
    pub constraints: Constraints,
    pub tags: Vec<String>,
    pub idempotent: bool,
    /// Retries after the first attempt on one agent, 0 to 2.
    pub max_retries: u32,
    pub fallback: Vec<ContractId>,
    /// The capability that undoes this one; stored and shown only.
    pub compensate: Option<ContractId>,
    pub probe: Option<Probe>,
    /// Detached JWS objects as written; whoever trusts them verifies them.
    pub signatures: Vec<Value>,
    /// Members whose name begins with `x-`.
    pub extensions: Map<String, Value>,
    canonical: Bytes,
    body: Bytes,
    digest: Digest,
}

/// Under which limits a capability works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraints {
    pub timeout: Duration,
    /// Empty: everywhere.
    pub region_support: Vec<String>,
    /// Per instance.
    pub max_concurrent: NonZeroU32,
    /// `+08:00` and the like; empty: any.
    pub utc_offsets: Vec<String>,
}

/// The trial call of admission.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    pub input: Value,
    /// Members the reply must have.
    pub expect: Option<Value>,
    /// Nothing: the contract's own.
    pub timeout: Option<Duration>,
    pub calls: u32,
    pub concurrency: u32,
}

impl Probe {
    /// A trial of this input, with defaults for the rest.
    pub fn of(input: Value) -> Self {
        Self {
            input,
            expect: None,
            timeout: None,
            calls: read::DEFAULT_CALLS,
            concurrency: read::DEFAULT_CONCURRENCY,
        }
    }
}

impl Contract {
    /// Reads a contract; faults of its schemas are found when it is compiled.
    pub fn from_slice(body: &[u8]) -> Result<Self, Problems> {
        let document = read::document(body)?;
        read::contract(&document, body)
    }

    /// Reads an application's handshake reply. A truncated hash as `signature` proves nothing
    /// and is left out, also of the body; the flag tells that there was one.
    pub fn from_handshake(reply: &[u8]) -> Result<(Self, bool), Problems> {
        let mut document = read::document(reply)?;
        let has_hash = document.get("signature").is_some_and(Value::is_string);
        if !has_hash {
            return Ok((read::contract(&document, reply)?, false));
        }
        document.remove("signature");
        let body = Value::Object(document.clone()).to_string();
        Ok((read::contract(&document, body.as_bytes())?, true))
    }

    /// SHA-256 of the canonical form.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The RFC 8785 form without `signatures`, which is what digests and signatures cover.
    pub fn canonical(&self) -> &Bytes {
        &self.canonical
    }

    /// The bytes the contract was read from, unchanged.
    pub fn body(&self) -> &Bytes {
        &self.body
    }
}

impl fmt::Debug for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Contract({} {} {})", self.id, self.version, self.digest)
    }
}

#[cfg(test)]
mod tests;
