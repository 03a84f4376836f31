//! Why a contract is not believed, and what to do about it.

use crate::contract::ContractId;
use crate::identity::Digest;

/// A contract that is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{id} {digest} is not trusted{}: {reason}", signers(kids))]
pub struct Untrusted {
    pub id: ContractId,
    pub digest: Digest,
    /// The keys that its signatures name.
    pub kids: Vec<String>,
    pub reason: Reason,
}

/// What is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("it bears no signature; sign it with `contract sign`")]
    Unsigned,
}

fn signers(kids: &[String]) -> String {
    match kids {
        [] => String::new(),
        kids => format!(" (kid {})", kids.join(", ")),
    }
}
