//! Why a contract is not believed, and what to do about it.

use crate::contract::{Contract, ContractId};
use crate::identity::Digest;
use crate::identity::jws::SignatureError;
use std::fmt;

/// How many signatures are gone into, one by one.
const MOST_TOLD: usize = 3;

/// A contract that is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{id} with {digest}{} is not trusted: {reason}", signers(kids))]
pub struct Untrusted {
    pub id: ContractId,
    pub digest: Digest,
    /// The keys that its signatures name.
    pub kids: Box<[String]>,
    pub reason: Reason,
}

/// What is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("it bears no signature; sign it with `contract sign`")]
    Unsigned,
    #[error(
        "it bears no signature, while its family was signed before (kid {kid}); sign it with that key"
    )]
    UnsignedNow { kid: String },
    #[error("no [[trust.key]] has ids that match it; list the key of whoever answers for it")]
    NoKeyListed,
    #[error("it bears {0} signatures, at most {MOST} are looked at; remove old ones", MOST = super::MOST_SIGNATURES)]
    TooMany(usize),
    #[error("no signature is good{}", Faults(.0))]
    NoneGood(Vec<Fault>),
    #[error("not every signature is good{}", Faults(.0))]
    SomeBad(Vec<Fault>),
}

/// One signature that does not make the contract believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kid: Option<String>,
    pub why: Why,
}

/// Why it does not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error(
        "no [[trust.key]] for this contract has that kid; list the key, or sign with a listed one"
    )]
    Unlisted,
    #[error("it names no kid, and so no listed key")]
    Nameless,
    #[error(
        "another key than {0}, which counts for this family; sign with that, or list the new key as [[trust.key]] with ids that match"
    )]
    OtherKey(String),
}

impl Untrusted {
    pub(super) fn new(contract: &Contract, kids: Vec<String>, reason: Reason) -> Self {
        Self {
            id: contract.id.clone(),
            digest: contract.digest(),
            kids: kids.into(),
            reason,
        }
    }
}

/// Several signatures' faults as the rest of a sentence.
struct Faults<'a>(&'a [Fault]);

impl fmt::Display for Faults<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.0.iter().take(MOST_TOLD).enumerate() {
            f.write_str(if at == 0 { ": " } else { "; " })?;
            match &fault.kid {
                Some(kid) => write!(f, "by {kid}: {}", fault.why)?,
                None => write!(f, "signature {}: {}", at + 1, fault.why)?,
            }
        }
        match self.0.len().saturating_sub(MOST_TOLD) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

fn signers(kids: &[String]) -> String {
    match kids {
        [] => String::new(),
        kids => format!(", signed by kid {},", kids.join(", ")),
    }
}
