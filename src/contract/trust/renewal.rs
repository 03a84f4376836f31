//! Signing a contract's text, or signing it anew.

use super::text::with_signatures;
use super::{MOST_SIGNATURES, One};
use crate::contract::{Contract, Problems};
use crate::identity::jws::{Payload, Signature, SignatureError, is_kid};
use crate::identity::key::KeyPair;

/// A text that was signed.
#[derive(Debug)]
pub struct Renewed {
    pub contract: Contract,
    /// The name that the key goes by in the signature.
    pub kid: String,
    /// Nothing where the key had signed this very contract before.
    pub text: Option<String>,
    /// The keys of signatures that did not fit any more and were left out.
    pub dropped: Vec<String>,
}

/// Why a text could not be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    #[error("the contract has faults: {0}")]
    Faulty(#[from] Problems),
    #[error("a kid is a text of 1 to 128 characters without control characters")]
    Kid,
    #[error("it bears {MOST_SIGNATURES} signatures, the most that are looked at; remove old ones")]
    Full,
    #[error("its layout leaves no place for a signature; write one JSON object")]
    Layout,
}

/// Adds a signature by `pair` to a contract's text; the key is called by its thumbprint unless
/// told otherwise. Signatures that the contract has outgrown are left out: they would be faults.
pub fn sign(text: &str, pair: &KeyPair, kid: Option<&str>) -> Result<Renewed, SignError> {
    let contract = Contract::from_slice(text.as_bytes())?;
    let kid = kid.map_or_else(|| pair.public().thumbprint(), str::to_owned);
    if !is_kid(&kid) {
        return Err(SignError::Kid);
    }
    let payload = Payload::new(contract.canonical());
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    let mut before = None;
    for value in &contract.signatures {
        let one = One::new(Signature::read(value));
        match one.by_own_key(&payload) {
            Ok((kid, key)) if key == *pair.public() => before = Some(kid),
            // A signature without its key may be good to somebody who has that.
            Ok(_) | Err(SignatureError::NoKey) => {}
            Err(_outgrown) => {
                dropped.push(one.kid.unwrap_or_else(|| "none".to_owned()));
                continue;
            }
        }
        kept.push(value.clone());
    }
    let is_new = before.is_none();
    if is_new {
        kept.push(Signature::sign(pair, &kid, &payload).to_json());
    }
    if kept.len() > MOST_SIGNATURES {
        return Err(SignError::Full);
    }
    let text = match is_new || !dropped.is_empty() {
        true => Some(with_signatures(text, &kept).ok_or(SignError::Layout)?),
        false => None,
    };
    let renewed = match &text {
        Some(text) => Contract::from_slice(text.as_bytes())?,
        None => contract,
    };
    Ok(Renewed {
        contract: renewed,
        kid: before.unwrap_or(kid),
        text,
        dropped,
    })
}
