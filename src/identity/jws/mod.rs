//! Detached signatures: a protected header and the bytes of a signature (RFC 7515, appendix F).
//!
//! - a header is read exactly: no duplicate names, no padding, nothing that must be understood
//!   and is not
//! - a key is never fetched: `jku`, `x5u` and the like are passed over
//! - elsewhere: keys (`key`), which key counts (`contract`)

#[cfg(test)]
mod tests;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};

use super::key::{Algorithm, KeyError, KeyPair, PublicKey};
use super::unique;

/// The longest protected header, encoded; a JWK of 8192 bits fits.
pub const LONGEST_HEADER: usize = 4 << 10;
/// The longest signature, encoded; one of 8192 bits fits.
const LONGEST_SIGNATURE: usize = 1_366;
/// The longest key id.
pub const LONGEST_KID: usize = 128;

/// One signature whose header was read; the signature itself is not verified yet.
#[derive(Debug, Clone)]
pub struct Signature {
    algorithm: Algorithm,
    kid: Option<String>,
    jwk: Option<Value>,
    protected: String,
    bytes: Vec<u8>,
}

/// What is signed, encoded once for all its signatures.
#[derive(Debug, Clone)]
pub struct Payload(String);

/// Why a signature proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("it is no object with exactly \"protected\" and \"signature\", both text")]
    Shape,
    #[error("its {0} is longer than {1} characters")]
    TooLong(&'static str, usize),
    #[error("its {0} is not base64url without padding")]
    Encoding(&'static str),
    #[error("its protected header is not sound JSON: {0}")]
    Header(String),
    #[error("its header names no alg")]
    NoAlgorithm,
    #[error("its alg {0:?} is not accepted; EdDSA, RS256 and ES256 are")]
    Algorithm(String),
    #[error("its header holds {0:?}, which changes what must be understood and is not supported")]
    Critical(&'static str),
    #[error("its kid is no text of 1 to {LONGEST_KID} characters without control characters")]
    Kid,
    #[error("its header brings no jwk")]
    NoKey,
    #[error("the key it brings cannot be used: {0}")]
    Key(#[from] KeyError),
    #[error("its alg {algorithm} does not fit the key, which is for {key}")]
    OtherAlgorithm {
        algorithm: Algorithm,
        key: Algorithm,
    },
    #[error("it has {found} bytes where {algorithm} has {expected}")]
    Length {
        algorithm: Algorithm,
        found: usize,
        expected: usize,
    },
    #[error("it does not fit: what was signed was changed since, or another key signed it")]
    Mismatch,
}

impl Payload {
    pub fn new(bytes: &[u8]) -> Self {
        Self(BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }

    fn signed_with(&self, protected: &str) -> Vec<u8> {
        [protected.as_bytes(), b".", self.0.as_bytes()].concat()
    }
}

impl Signature {
    /// Reads one member of `signatures`.
    pub fn read(value: &Value) -> Result<Self, SignatureError> {
        let members = value.as_object().filter(|members| members.len() == 2);
        let text = |name| members?.get(name)?.as_str();
        match (text("protected"), text("signature")) {
            (Some(protected), Some(signature)) => Self::parse(protected, signature),
            _ => Err(SignatureError::Shape),
        }
    }

    fn parse(protected: &str, signature: &str) -> Result<Self, SignatureError> {
        let header = decode("protected header", protected, LONGEST_HEADER)?;
        let bytes = decode("signature", signature, LONGEST_SIGNATURE)?;
        let mut header = unique::object(&header).map_err(SignatureError::Header)?;
        for name in ["crit", "b64"] {
            if header.contains_key(name) {
                return Err(SignatureError::Critical(name));
            }
        }
        Ok(Self {
            algorithm: algorithm(&header)?,
            kid: kid(&header)?,
            jwk: header.remove("jwk"),
            protected: protected.to_owned(),
            bytes,
        })
    }

    /// Signs, naming the key and bringing it along.
    pub fn sign(pair: &KeyPair, kid: &str, payload: &Payload) -> Self {
        let algorithm = Algorithm::EdDsa;
        let jwk = pair.public().to_jwk();
        let header = json!({"alg": algorithm.as_str(), "jwk": jwk, "kid": kid}).to_string();
        let protected = BASE64_URL_SAFE_NO_PAD.encode(header);
        Self {
            algorithm,
            kid: Some(kid.to_owned()),
            jwk: Some(jwk),
            bytes: pair.sign(&payload.signed_with(&protected)),
            protected,
        }
    }

    /// Writes the member of `signatures`.
    pub fn to_json(&self) -> Value {
        let signature = BASE64_URL_SAFE_NO_PAD.encode(&self.bytes);
        json!({"protected": self.protected, "signature": signature})
    }

    /// The key's name as the header has it.
    pub fn kid(&self) -> Option<&str> {
        self.kid.as_deref()
    }

    /// Reads the key that the header brings; whoever believes it proves integrity alone.
    pub fn key(&self) -> Result<PublicKey, SignatureError> {
        let jwk = self.jwk.as_ref().ok_or(SignatureError::NoKey)?;
        Ok(PublicKey::from_jwk(jwk)?)
    }

    /// Verifies by this key and no other.
    pub fn verify(&self, key: &PublicKey, payload: &Payload) -> Result<(), SignatureError> {
        let algorithm = self.algorithm;
        if key.algorithm() != algorithm {
            let key = key.algorithm();
            return Err(SignatureError::OtherAlgorithm { algorithm, key });
        }
        let (found, expected) = (self.bytes.len(), 64);
        if algorithm != Algorithm::Rs256 && found != expected {
            return Err(SignatureError::Length {
                algorithm,
                found,
                expected,
            });
        }
        match key.verifies(&payload.signed_with(&self.protected), &self.bytes) {
            true => Ok(()),
            false => Err(SignatureError::Mismatch),
        }
    }
}

fn decode(what: &'static str, text: &str, most: usize) -> Result<Vec<u8>, SignatureError> {
    if text.len() > most {
        return Err(SignatureError::TooLong(what, most));
    }
    // Bits beyond the last byte must be zero, so that one value has one spelling.
    let decoded = BASE64_URL_SAFE_NO_PAD.decode(text);
    decoded.or(Err(SignatureError::Encoding(what)))
}

fn algorithm(header: &Map<String, Value>) -> Result<Algorithm, SignatureError> {
    let name = header.get("alg").ok_or(SignatureError::NoAlgorithm)?;
    let named = name.as_str().and_then(Algorithm::named);
    named.ok_or_else(|| {
        let told = name.as_str().unwrap_or("of another type than text");
        SignatureError::Algorithm(told.chars().take(20).collect())
    })
}

fn kid(header: &Map<String, Value>) -> Result<Option<String>, SignatureError> {
    match header.get("kid") {
        None => Ok(None),
        Some(Value::String(kid)) if is_kid(kid) => Ok(Some(kid.clone())),
        Some(_) => Err(SignatureError::Kid),
    }
}

/// Says whether a text can name a key.
pub fn is_kid(text: &str) -> bool {
    let is_control = |letter: char| letter.is_control();
    !text.is_empty() && text.chars().count() <= LONGEST_KID && !text.contains(is_control)
}
